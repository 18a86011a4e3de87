"""Clients that take and never give back: half requests, half handshakes, answers that nobody reads, long logs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import shutil
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import pytest
from starlette.responses import PlainTextResponse

from spark_build.wheelhouse import server
from spark_build.wheelhouse.server import ClientLimits, Guard, Shelf, Tls, application
from tests.helpers.wheelhouse import VIEW, demo_house, make_wheel, publish, put_public
from tests.wheelhouse.test_serve import certificate

SMALL = ClientLimits(connections=12, header_seconds=0.5, idle_seconds=1.0)  # 3 of one address
PAGE = f"GET /{VIEW}/simple/demo/ HTTP/1.1\r\nHost: x\r\n\r\n".encode()
LARGE = 8 << 20  # more than sockets buffer
PATIENCE = 60.0  # seconds; not what is measured

Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Shelf:
    home, before = demo_house(tmp_path_factory.mktemp("house"))
    noise = random.Random(7).randbytes(LARGE)
    large = make_wheel(home.wheelhouse.parent / "d", "large", "4.0", files={"large/data": noise})
    publish(home, [*before.wheels, put_public(home.store, large)])
    return Shelf(views=home.views, store=home.store)


@contextlib.asynccontextmanager
async def running(shelf: Shelf, limits: ClientLimits = SMALL, tls: Tls | None = None) -> AsyncIterator[int]:
    """A server in this process; yields its port."""
    import uvicorn

    listening = server.bind("127.0.0.1", 0, limits)
    config = server.configuration(application(shelf), tls=tls, verbose=False, limits=limits)
    made = uvicorn.Server(config)
    task = asyncio.create_task(made._serve(sockets=[listening]))
    while not made.started:  # noqa: ASYNC110 - uvicorn has no event for it
        await asyncio.sleep(0.01)
    try:
        yield listening.getsockname()[1]
    finally:
        made.should_exit = made.force_exit = True
        await asyncio.wait_for(task, PATIENCE)


async def opened(port: int, host: str = "127.0.0.1", source: str = "127.0.0.1", **more: object) -> Stream:
    return await asyncio.open_connection(host, port, local_addr=(source, 0), **more)  # type: ignore[arg-type]  # more is for TLS


async def status(port: int, source: str = "127.0.0.1") -> bytes:
    """The first line of a page's answer, empty where the server hangs up."""
    try:
        reader, writer = await opened(port, source=source)
        with contextlib.closing(writer):
            writer.write(PAGE)
            return (await asyncio.wait_for(reader.readline(), PATIENCE)).strip()
    except ConnectionError:
        return b""


async def hung_up(reader: asyncio.StreamReader) -> bytes:
    """What comes until the server ends the connection."""
    with contextlib.suppress(ConnectionError):
        return await asyncio.wait_for(reader.read(), PATIENCE)
    return b""


def attacked(shelf: Shelf, attack: Callable[[int], Awaitable[None]], limits: ClientLimits = SMALL) -> None:
    """Run an attack; afterwards pages come as before."""

    async def scenario() -> None:
        async with running(shelf, limits) as port:
            assert await status(port) == b"HTTP/1.1 200 OK"
            await attack(port)
            while await status(port) != b"HTTP/1.1 200 OK":  # noqa: ASYNC110 - it asks anew
                await asyncio.sleep(0.05)

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE))


@pytest.mark.parametrize(
    "begun", [b"", b"G", PAGE[:-2], b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n"]
)
def test_half_a_request_is_waited_for_and_not_for_ever(shelf: Shelf, begun: bytes) -> None:
    async def attack(port: int) -> None:
        reader, writer = await opened(port)
        with contextlib.closing(writer):
            writer.write(begun)
            assert await hung_up(reader) == b""

    attacked(shelf, attack)


@pytest.mark.parametrize("first", [b"", PAGE])
def test_a_request_that_comes_byte_by_byte_gets_no_more_time(shelf: Shelf, first: bytes) -> None:
    """Slowloris, at once or on a connection that was used before."""

    async def attack(port: int) -> None:
        reader, writer = await opened(port)
        with contextlib.closing(writer):
            writer.write(first + b"GET / HTTP/1.1\r\n")
            ended = asyncio.create_task(hung_up(reader))
            while not ended.done():
                with contextlib.suppress(ConnectionError):
                    writer.write(b"X-A: b\r\n")
                    await writer.drain()
                await asyncio.sleep(0.05)
            assert ended.result().count(b"HTTP/1.1 200") == bool(first)

    attacked(shelf, attack)


def test_a_body_that_never_ends_keeps_no_connection(shelf: Shelf) -> None:
    async def attack(port: int) -> None:
        reader, writer = await opened(port)
        with contextlib.closing(writer):
            writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 999999999\r\n\r\n")
            ended = asyncio.create_task(hung_up(reader))
            while not ended.done():
                with contextlib.suppress(ConnectionError):
                    writer.write(b"x")
                    await writer.drain()
                await asyncio.sleep(0.05)
            assert b"405" in ended.result()

    attacked(shelf, attack)


def test_half_open_connections_of_one_address_stop_nobody_else(shelf: Shelf) -> None:
    """Once 1,020 of them stopped the server for all."""

    async def attack(port: int) -> None:
        async with contextlib.AsyncExitStack() as stack:
            for _ in range(40):
                with contextlib.suppress(ConnectionError):
                    _, writer = await opened(port)
                    stack.enter_context(contextlib.closing(writer))
                    writer.write(b"GET / HTTP/1.1\r\n")
            assert await status(port) == b""
            assert await status(port, "127.0.0.2") == b"HTTP/1.1 200 OK"

    attacked(shelf, attack, ClientLimits(connections=12, header_seconds=PATIENCE / 20, idle_seconds=1.0))


def test_half_open_connections_of_many_addresses_end(shelf: Shelf) -> None:
    async def attack(port: int) -> None:
        async with contextlib.AsyncExitStack() as stack:
            for number in range(40):
                with contextlib.suppress(ConnectionError):
                    _, writer = await opened(port, source=f"127.0.0.{2 + number // 3}")
                    stack.enter_context(contextlib.closing(writer))
            assert await status(port, "127.0.0.99") == b""
            while await status(port, "127.0.0.99") != b"HTTP/1.1 200 OK":  # noqa: ASYNC110 - it asks anew
                await asyncio.sleep(0.05)

    attacked(shelf, attack, ClientLimits(connections=12, header_seconds=1.5, idle_seconds=1.0))


def is_open(name: str) -> bool:
    """Return whether this process has a file of this name open."""
    links = []
    for one in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            links.append(one.readlink().name)
    return name in links


def test_an_answer_that_nobody_reads_ends(shelf: Shelf) -> None:
    async def attack(port: int) -> None:
        with socket.socket() as reader:
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            reader.connect(("127.0.0.1", port))
            reader.sendall(
                f"GET /{VIEW}/simple/large/large-4.0-py3-none-any.whl HTTP/1.1\r\nHost: x\r\n\r\n".encode()
            )
            for wanted in (True, False):  # the server opens the wheel, and closes it
                while is_open("large-4.0-py3-none-any.whl") != wanted:  # noqa: ASYNC110 - of the kernel
                    await asyncio.sleep(0.02)

    attacked(shelf, attack)


def test_half_a_handshake_counts(shelf: Shelf, tmp_path: Path) -> None:
    """Before TLS stands nothing knows the connection but the one who accepts it."""
    pair = certificate(tmp_path)
    tls = Tls(certificate=pair[0], key=pair[1])

    async def scenario() -> None:
        async with (
            running(shelf, ClientLimits(connections=12), tls) as port,
            contextlib.AsyncExitStack() as stack,
        ):
            for _ in range(10):
                with contextlib.suppress(ConnectionError):
                    _, writer = await opened(port)
                    stack.enter_context(contextlib.closing(writer))
            context = ssl.create_default_context(cafile=str(pair[0]))
            with pytest.raises((ConnectionError, ssl.SSLError)):
                await opened(port, ssl=context, server_hostname="localhost")
            _, writer = await opened(port, source="127.0.0.2", ssl=context, server_hostname="localhost")
            writer.close()

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE))


@pytest.mark.parametrize(
    ("highest", "ciphers", "wanted"),
    [
        (ssl.TLSVersion.TLSv1_3, "DEFAULT", "TLSv1.3"),
        (ssl.TLSVersion.TLSv1_2, "DEFAULT", "TLSv1.2"),
        (ssl.TLSVersion.TLSv1_2, "AES128-SHA:ECDHE-ECDSA-AES128-SHA:@SECLEVEL=0", None),
        (ssl.TLSVersion.TLSv1_1, "ALL:@SECLEVEL=0", None),
    ],
)
@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1")
def test_tls_is_what_the_page_says(
    shelf: Shelf, tmp_path: Path, highest: ssl.TLSVersion, ciphers: str, wanted: str | None
) -> None:
    cert, key = certificate(tmp_path)
    context = ssl.create_default_context(cafile=str(cert))
    context.set_ciphers(ciphers)
    context.minimum_version, context.maximum_version = ssl.TLSVersion.MINIMUM_SUPPORTED, highest

    async def scenario() -> None:
        async with running(shelf, tls=Tls(certificate=cert, key=key)) as port:
            if wanted is None:
                with pytest.raises((ssl.SSLError, ConnectionError)):
                    await opened(port, ssl=context, server_hostname="localhost")
                return
            _, writer = await opened(port, ssl=context, server_hostname="localhost")
            with contextlib.closing(writer):
                spoken = writer.get_extra_info("ssl_object")
                assert spoken.version() == wanted
                assert "GCM" in spoken.cipher()[0] or "CHACHA20" in spoken.cipher()[0]

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE))


def test_the_log_grows_no_faster_than_a_line_in_a_second() -> None:
    clock = [0.0]
    thrifty = server._Thrifty(10, lambda: clock[0])
    written: list[str] = []
    for number in range(5000):
        clock[0] += 0.001
        record = logging.LogRecord("x", logging.INFO, "x", 1, '%s - "GET /%s"', (number, "a" * 5000), None)
        if thrifty.filter(record):
            written.append(record.getMessage())
    assert len(written) == 14  # ten at once, and one in each of the five seconds but the first
    assert max(map(len, written)) < 600
    assert written[10].endswith("lines before this one are left out)")


def test_guesses_of_the_token_become_slow() -> None:
    """Also the right one is not looked at then, or a guess would be as quick as before; others are served."""
    clock = [0.0]
    guard = Guard(PlainTextResponse("in"), "secret", lambda: clock[0])

    def answers(*tokens: str, client: str = "192.0.2.1") -> list[int]:
        found: list[int] = []

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                found.append(message["status"])

        for token in tokens:
            said = [(b"authorization", f"Bearer {token}".encode())] if token else []
            scope = {"type": "http", "method": "GET", "path": "/x", "headers": said, "client": (client, 1)}
            asyncio.run(guard(scope, cast(Any, None), send))
        return found

    assert answers(*["wrong"] * 40) == [401] * server.GUESSES + [429] * (40 - server.GUESSES)
    assert answers("secret") == [429]
    assert answers("", "") == [401, 401], "who says none guesses none"
    assert answers("wrong", "secret", client="192.0.2.2") == [401, 200]
    clock[0] += 1.5
    assert answers("wrong", "wrong") == [401, 429]
    assert answers(*["wrong"] * 21, client="2001:db8::1")[-1] == 429
    assert answers("wrong", client="2001:db8::ffff") == [429], "one client has a network of addresses"
    assert answers("wrong", client="2001:db8:0:1::1") == [401]
    for number in range(server.REMEMBERED + 5):
        guard._count(str(number))
    assert len(guard._wrong) == server.REMEMBERED


def test_a_view_of_an_odd_name_stops_no_other(tmp_path: Path) -> None:
    """What an import takes is served; what a user made beside it is passed over."""
    home, generation = demo_house(tmp_path)
    view = generation.folder.parent.parent
    for name in ("_t+x!1-cp311", "a b", ".hidden"):
        shutil.copytree(view, home.views / name, symlinks=True)
    shelf = Shelf(views=home.views, store=home.store)
    shelf.prepare()
    assert shelf.names() == sorted([view.name, "_t+x!1-cp311"])
