"""Serve a wheelhouse over HTTP."""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import errno
import functools
import hashlib
import hmac
import json
import logging
import os
import re
import signal
import socket
import ssl
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from types import FrameType
from typing import Any, BinaryIO, ClassVar
from urllib.parse import quote as urlquote

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.staticfiles import NotModifiedResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from spark_build.errors import HostError, SparkBuildError, StoreError, UsageError, ours
from spark_build.files import open_below
from spark_build.text import format_size, render_template
from spark_build.wheelhouse import generations
from spark_build.wheelhouse.simple_index import HTML, INDEX, JSON, JSON_FORM, METADATA, negotiate
from spark_build.wheelhouse.store import entry_folder
from spark_build.wheels.model import StoredWheel
from spark_build.wheels.rules_device import order

# As long as file systems take.
PROJECT = re.compile(r"(?=.{1,255}$)[a-z0-9]+(-[a-z0-9]+)*")
FILE = re.compile(r"(?=.{1,255}$)[A-Za-z0-9_.+!~-]+\.whl(\.metadata)?")
GENERATIONS = 10**9
KEY = re.compile(r"[0-9a-f]{64}")
ENTRY = re.compile(r"[0-9a-f]{32}\.tar")
# Our build tag: other bytes never bear this name. What a public wheel is called, a foreign one may be, too.
OURS = re.compile(r"[^-]+-[^-]+-\d+_[0-9a-f]{8}-.*")
LISTS = ("requirements.txt", "constraints.txt", generations.MANIFEST)
FOR_GOOD = "max-age=31536000, immutable"
ASK_AGAIN = "no-cache"
SAFE = {
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Shelf:
    """Generations to serve; `only`: one view and generation, else all views' current ones.

    remotes: folders of remote stores whose entries are handed on; others may write there.
    """

    views: Path
    store: Path
    only: tuple[str, int] | None = None
    token: str = ""
    remotes: tuple[Path, ...] = ()

    def names(self) -> list[str]:
        """Return the views that have a current generation."""
        if self.only:
            return [self.only[0]]
        found = (path.parent.name for path in self.views.glob("*/current"))
        return sorted(name for name in found if generations.VIEW.fullmatch(name))

    def prepare(self) -> None:
        """Refuse to serve nothing."""
        if not self.names():
            raise StoreError("nothing is published yet", where=str(self.views), hint=ours("all"))
        for name in self.names():
            try:
                self.folder(name, None)
            except HTTPException as error:
                raise StoreError(f"{name} has no such generation", where=str(self.views / name)) from error

    def folder(self, view: str, number: int | None) -> Path:
        """Return a generation's folder, by default the current one's; 404 when there is none."""
        allowed = self.only is None or (self.only[0] == view and number in (None, self.only[1]))
        if not generations.VIEW.fullmatch(view) or not allowed or (number or 0) > GENERATIONS:
            raise HTTPException(404, "no such view or generation")
        if number is None and self.only:
            number = self.only[1]
        home = self.views / view
        try:
            where = home / "current" if number is None else home / "generations" / str(number)
            folder = home / where.readlink() if number is None else where
        except OSError as error:
            raise HTTPException(404, "no such view") from error
        if not (folder / generations.MANIFEST).is_file():
            raise HTTPException(404, "no such generation")
        return folder

    def file(self, view: str, number: int | None, project: str, name: str) -> Path:
        """Return a wheel or its metadata, from an older generation if the current one just lost it."""
        folder = self.folder(view, number)
        others: list[Path] = []
        if number is None and self.only is None:
            numbers = [path for path in folder.parent.iterdir() if path.name.isdigit()]
            others = sorted(numbers, key=lambda path: int(path.name), reverse=True)
        inside = os.path.realpath(self.views / view if name.endswith(METADATA) else self.store)
        for generation in (folder, *others):
            # Strings: pathlib takes longer than the system calls.
            found = os.path.realpath(f"{generation}/{INDEX}/{project}/{name}")
            if found.startswith(inside + os.sep) and os.path.isfile(found):  # noqa: PTH113 - a string
                return Path(found)
        raise HTTPException(404, "no such file")

    def entry(self, build_key: str, name: str) -> BinaryIO:
        """Open an entry of a remote store; 404 when there is none."""
        for folder in self.remotes:
            with contextlib.suppress(OSError):
                return open_below(folder, "entries", build_key[:2], build_key, name)
        raise HTTPException(404, "no such entry")


class _Wheel(FileResponse):
    chunk_size: ClassVar[int] = 1 << 20  # type: ignore[misc] # Starlette's are 64 KiB: half as fast


def application(shelf: Shelf) -> ASGIApp:
    """Return the ASGI application."""
    handlers = _Handlers(shelf)
    routes = [
        Route("/", handlers.front),
        Route("/papers/{key}/{name}", handlers.paper),
        Route("/entries/{start}/{key}/{name}", handlers.entry),
    ]
    for prefix in ("/{view}", "/{view}/{number:int}"):
        routes += [
            Route(f"{prefix}/", handlers.view),
            Route(f"{prefix}/simple/", handlers.index),
            Route(f"{prefix}/simple/{{project}}/", handlers.index),
            Route(f"{prefix}/simple/{{project}}/{{file}}", handlers.file),
            Route(f"{prefix}/{{name}}", handlers.listed),
        ]
    # The order above would take /view/3 for a list called 3.
    routes.sort(key=lambda route: route.path.endswith("/{name}"))
    return Starlette(
        routes=routes,
        middleware=[Middleware(Guard, token=shelf.token)],
        exception_handlers={SparkBuildError: _damaged},
    )


def _damaged(_request: Request, error: Exception) -> Response:
    return PlainTextResponse(f"{error}\n", 503)


class _Handlers:
    """One method for each kind of URL; run in threads, so that a slow disk stops nobody else."""

    def __init__(self, shelf: Shelf) -> None:
        self.shelf = shelf

    def front(self, request: Request) -> Response:
        """Return all views, for people."""
        shown = [self._shown(request, name, None) for name in self.shelf.names()]
        return _answer(request, render_front_page(shown).encode(), "text/html", ASK_AGAIN)

    def view(self, request: Request) -> Response:
        """One view or generation, for people."""
        view, number = _place(request)
        page = render_front_page([self._shown(request, view, number)])
        return _answer(request, page.encode(), "text/html", ASK_AGAIN)

    def index(self, request: Request) -> Response:
        """Return the list of projects or one project's page, in the client's preferred form."""
        folder = self.shelf.folder(*_place(request)) / INDEX
        project = request.path_params.get("project", "")
        if project and not PROJECT.fullmatch(project):
            normalised = re.sub(r"[-_.]+", "-", project).lower()
            if not PROJECT.fullmatch(normalised):
                raise HTTPException(404, "no such project")
            return RedirectResponse(f"../{normalised}/", 301)
        form = negotiate(request.headers.get("accept", ""))
        page = folder / project / (JSON if form == JSON_FORM else HTML)
        return _answer(request, _bytes(page), form, ASK_AGAIN, vary=True)

    def file(self, request: Request) -> Response:
        """Return a wheel, whole or in parts, or its metadata."""
        project, name = request.path_params["project"], request.path_params["file"]
        if not PROJECT.fullmatch(project) or not FILE.fullmatch(name):
            raise HTTPException(404, "no such file")
        view, number = _place(request)
        path = self.shelf.file(view, number, project, name)
        lasting = FOR_GOOD if number is not None or OURS.fullmatch(name) else ASK_AGAIN
        if name.endswith(METADATA):
            return _answer(request, _bytes(path), "text/plain", lasting)
        headers = {"Cache-Control": lasting, **SAFE}
        whole = _Wheel(path, headers=headers, media_type="application/zip", stat_result=path.stat())
        return _unless_known(request, whole)

    def listed(self, request: Request) -> Response:
        """requirements.txt, constraints.txt, manifest.json of a generation."""
        name = request.path_params["name"]
        if name not in LISTS:
            raise HTTPException(404)
        kind = "application/json" if name.endswith(".json") else "text/plain"
        return _answer(request, _bytes(self.shelf.folder(*_place(request)) / name), kind, ASK_AGAIN)

    def paper(self, request: Request) -> Response:
        """Return provenance, SBOM or audit of a wheel, by its key in the store."""
        key, name = request.path_params["key"], request.path_params["name"]
        if not KEY.fullmatch(key) or name not in PAPERS:
            raise HTTPException(404, "no such paper")
        data = _bytes(entry_folder(self.shelf.store, key) / name)
        return _answer(request, data, "application/json", FOR_GOOD)

    def entry(self, request: Request) -> Response:
        """Return an entry of a remote store: a signed export of one build."""
        start, key, name = (request.path_params[one] for one in ("start", "key", "name"))
        if not KEY.fullmatch(key) or start != key[:2] or not ENTRY.fullmatch(name):
            raise HTTPException(404, "no such entry")
        file = self.shelf.entry(key, name)
        size = os.fstat(file.fileno()).st_size
        headers = {"Content-Length": str(size), "Cache-Control": ASK_AGAIN, **SAFE}
        if request.method == "HEAD":
            file.close()
            return Response(headers=headers, media_type="application/x-tar")
        return StreamingResponse(_chunks(file, size), headers=headers, media_type="application/x-tar")

    def _shown(self, request: Request, view: str, number: int | None) -> ShownView:
        generation = generations.read(self.shelf.folder(view, number))
        root = f"{request.url.scheme}://{request.url.netloc}"
        top = f"{root}/{urlquote(view)}/"
        own = top if number is None else f"{top}{number}/"
        fixed = f"{top}{generation.number}/"
        host = request.url.hostname or ""
        trusted = "" if request.url.scheme == "https" or is_loopback(host) else host
        return ShownView(
            name=view,
            number=generation.number,
            created=generation.created[:16].replace("T", " ") + " UTC",
            verdict=verdict(generations.verdict_of(generation)),
            fixed=fixed,
            install=install_lines(f"{own}simple/", token=bool(self.shelf.token), trusted=trusted),
            wheels=tuple(
                ShownWheel(
                    wheel=wheel,
                    url=f"{fixed}simple/{wheel.name}/{wheel.filename.replace('+', '%2B')}",
                    devices=_devices(entry_folder(self.shelf.store, wheel.key)),
                    papers=_papers(entry_folder(self.shelf.store, wheel.key), root),
                )
                for wheel in generation.wheels
            ),
        )


def _chunks(file: BinaryIO, size: int) -> Iterator[bytes]:
    """Yield so many bytes, and close the file."""
    with file:
        while data := file.read(min(size, _Wheel.chunk_size)):
            size -= len(data)
            yield data


@functools.lru_cache(maxsize=20_000)
def _devices(entry: Path) -> tuple[str, ...]:
    try:
        return devices(json.loads((entry / "audit.json").read_text()))
    except (OSError, ValueError):
        return ()


@functools.lru_cache(maxsize=20_000)
def _papers(entry: Path, root: str) -> tuple[tuple[str, str], ...]:
    return tuple(
        (label, f"{root}/papers/{entry.name}/{name}")
        for name, label in PAPERS.items()
        if (entry / name).is_file()
    )


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach that address."""
    import ipaddress

    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def _place(request: Request) -> tuple[str, int | None]:
    return request.path_params["view"], request.path_params.get("number")


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise HTTPException(404, "no such page") from error


def _answer(request: Request, data: bytes, kind: str, lasting: str, *, vary: bool = False) -> Response:
    headers = {"ETag": f'"{hashlib.sha256(data).hexdigest()[:32]}"', "Cache-Control": lasting, **SAFE}
    if vary:
        headers["Vary"] = "Accept"
    return _unless_known(request, Response(data, headers=headers, media_type=kind))


def _unless_known(request: Request, response: Response) -> Response:
    """304 where the client has it already."""
    known = [tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")]
    is_known = response.headers["etag"] in known or known == ["*"]
    return NotModifiedResponse(response.headers) if is_known else response


LONGEST = 800  # characters of a path
GUESSES = 20  # wrong tokens of one address at once; afterwards one in a second is looked at
REMEMBERED = 10_000  # addresses that said a wrong one


class Allowance:
    """So many at once, one more each second, never more than at first."""

    def __init__(self, most: int, clock: Callable[[], float]) -> None:
        self._most, self._left, self._clock, self._last = most, float(most), clock, clock()

    def is_left(self) -> bool:
        """Return whether one can be taken now."""
        now = self._clock()
        self._left, self._last = min(self._most, self._left + now - self._last), now
        return self._left >= 1

    def take(self) -> bool:
        """Take one, where one is left."""
        left = self.is_left()
        self._left -= left
        return left


def _client(scope: Scope) -> str:
    """Return the address whose guesses count together: of IPv6 the network, of which one client has all."""
    import ipaddress

    host = scope["client"][0] if scope.get("client") else ""
    try:
        address = ipaddress.IPv6Address(host)
    except ValueError:
        return str(host)
    return str(address.ipv4_mapped or ipaddress.IPv6Network((address, 64), strict=False))


class Guard:
    """Lets through who says the token: as the password of basic authentication, or as a bearer."""

    def __init__(self, app: ASGIApp, token: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.app = app
        self.token = token
        self._clock = clock
        self._wrong: dict[str, Allowance] = {}

    def _may_guess(self, client: str) -> bool:
        return client not in self._wrong or self._wrong[client].is_left()

    def _count(self, client: str) -> None:
        """Take note of a wrong token; of too many clients the first are forgotten."""
        if client not in self._wrong and len(self._wrong) >= REMEMBERED:
            del self._wrong[next(iter(self._wrong))]
        self._wrong.setdefault(client, Allowance(GUESSES, self._clock)).take()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 401 without the token, 429 to guesses, 404 to endless paths; else hand the request on."""
        app = self.app
        said = Headers(scope=scope).get("authorization", "")
        if self.token and said and not self._may_guess(_client(scope)):
            app = PlainTextResponse("too many wrong tokens\n", 429, headers={"Retry-After": "2"})
        elif self.token and not bears(said, self.token):
            if said:
                self._count(_client(scope))
            challenge = {"WWW-Authenticate": 'Basic realm="wheelhouse", charset="UTF-8"'}
            app = PlainTextResponse("say the token as the password\n", 401, headers=challenge)
        elif len(scope["path"]) > LONGEST:
            app = PlainTextResponse("too long a path\n", 404)
        await app(scope, receive, send)


def bears(authorization: str, token: str) -> bool:
    """Return whether an Authorization header has the token, in constant time."""
    scheme, _, said = authorization.strip().partition(" ")
    said = said.strip()
    if scheme.lower() == "basic":
        try:
            said = base64.b64decode(said, validate=True).decode().partition(":")[2]
        except (binascii.Error, ValueError):
            return False
    elif scheme.lower() != "bearer":
        return False
    # Of digests, so that the time does not tell the length either.
    return hmac.compare_digest(*(hashlib.sha256(one.encode()).digest() for one in (said, token)))


TOKEN = "SPARK_BUILD_TOKEN"  # noqa: S105 - the variable's name
GRACE = 10  # seconds that running downloads get when the server is told to end


@dataclass(frozen=True, kw_only=True, slots=True)
class Tls:
    """PEM files; `key` may be in the certificate's file."""

    certificate: Path
    key: Path | None


def check_tls(tls: Tls) -> None:
    """UsageError where the files are no certificate with its key."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(tls.certificate, tls.key, password=lambda: "")
    except (OSError, ValueError) as error:
        raise UsageError(
            f"no certificate with its key can be read: {error}",
            where=str(tls.certificate),
            hint="give PEM files: --certificate FILE --key FILE (a key without a password)",
        ) from error


def read_token(file: Path | None) -> str:
    """Return the token from a file, else from the environment; "" for none."""
    if file is None:
        token = os.environ.get(TOKEN, "")
        where = TOKEN
    else:
        token, where = file.read_text(errors="replace").strip(), str(file)
        if not token:
            raise UsageError(
                "the token file is empty", where=where, hint=f"openssl rand -hex 16 > {quote(where)}"
            )
    if token and not (token.isascii() and token.isprintable() and " " not in token):
        raise UsageError("a token is one line of visible ASCII characters", where=where)
    return token


@dataclass(frozen=True, kw_only=True, slots=True)
class ClientLimits:
    """Limits on what clients may take. Each connection and each download of it needs a file descriptor."""

    connections: int = 400
    header_seconds: float = 10.0  # for a request to come, from its first byte on
    idle_seconds: float = 30.0  # without a request, or without reading a MiB of an answer
    log_lines: int = 10_000  # at once; afterwards one in a second

    @property
    def of_one_address(self) -> int:
        """Connections of one client."""
        return max(1, self.connections // 4)


class _Listening(socket.socket):
    """Accepts no more connections than its limits allow; before TLS, so that half a handshake counts."""

    limits = ClientLimits()

    def __init__(self, *named: Any, **more: Any) -> None:
        super().__init__(*named, **more)
        self._open: list[tuple[socket.socket, str]] = []

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept a connection, or drop it and raise ConnectionAbortedError, which asyncio passes over."""
        connection, address = super().accept()
        self._open = [(one, host) for one, host in self._open if one.fileno() >= 0]
        own = sum(host == address[0] for _, host in self._open)
        if len(self._open) >= self.limits.connections or own >= self.limits.of_one_address:
            connection.close()
            raise ConnectionAbortedError
        self._open.append((connection, address[0]))
        return connection, address


def bind(host: str, port: int, limits: ClientLimits = ClientLimits()) -> socket.socket:
    """Return a listening socket; HostError when the address is taken or not ours."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
        plain = socket.create_server((host, port), family=family, backlog=1024)
    except (OSError, OverflowError) as error:
        taken = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
        raise HostError(
            f"cannot listen on {host} port {port}: {error}",
            hint="choose another with --port N (0: any that is free)" if taken else "see: ip address",
        ) from error
    listening = _Listening(family, socket.SOCK_STREAM, fileno=plain.detach())
    listening.limits = limits
    # Accepted connections inherit it. asyncio would not set it for this socket, and each answer of two
    # packets would wait 40 ms for the client's delayed acknowledgement.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


def serve(
    app: ASGIApp,
    listening: socket.socket,
    *,
    tls: Tls | None,
    verbose: bool,
    limits: ClientLimits = ClientLimits(),
) -> int:
    """Answer until a signal comes; returns its number. Running downloads get GRACE seconds to end."""
    import uvicorn

    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(_Thrifty(limits.log_lines))
    logging.basicConfig(handlers=[handler], format="%(message)s")
    logging.getLogger("uvicorn.error").addFilter(_tells)

    class Server(uvicorn.Server):
        ended_by = 0

        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            # The base class raises the signal again afterwards, which here means an error.
            del frame
            self.force_exit = self.should_exit
            if self.force_exit:  # since Python 3.12 asyncio waits for every connection
                for connection in list(self.server_state.connections):
                    connection.transport.abort()
            self.should_exit, self.ended_by = True, sig

    server = Server(configuration(app, tls=tls, verbose=verbose, limits=limits))
    signal.signal(signal.SIGHUP, server.handle_exit)
    server.run(sockets=[listening])
    return server.ended_by


CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"  # of TLS 1.2; those of 1.3 are all sound


def configuration(app: ASGIApp, *, tls: Tls | None, verbose: bool, limits: ClientLimits) -> Any:
    """Return uvicorn's configuration of a server."""
    import uvicorn

    config = uvicorn.Config(
        app,
        log_config=None,
        log_level="info" if verbose else "error",
        access_log=verbose,
        lifespan="off",
        loop="asyncio",  # others accept connections without asking `_Listening`
        ws="none",
        http=_bounded_protocol(limits),
        server_header=False,
        timeout_keep_alive=int(limits.idle_seconds),
        timeout_graceful_shutdown=GRACE,
        ssl_certfile=tls.certificate if tls else None,
        ssl_keyfile=tls.key if tls else None,
        ssl_ciphers=CIPHERS,
    )
    config.load()
    if config.ssl is not None:
        config.ssl.minimum_version = ssl.TLSVersion.TLSv1_2
    return config


def _bounded_protocol(limits: ClientLimits) -> type[asyncio.Protocol]:
    """Return uvicorn's HTTP protocol that waits for no client for ever.

    h11 bounds what it keeps of a request that never ends; uvicorn bounds the time between requests only.
    """
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class TimedProtocol(H11Protocol):
        def __init__(self, *named: Any, **more: Any) -> None:
            super().__init__(*named, **more)
            self._asking = _Alarm(limits.header_seconds)
            self._reading = _Alarm(limits.idle_seconds)

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._asking.begin(transport)

        def data_received(self, data: bytes) -> None:
            """Let a request come in time: more of its bytes give it no more time, nor does a body."""
            super().data_received(data)
            cycle: Any = self.cycle  # None before the first request
            if cycle is not None and not cycle.response_complete:
                self._asking.end()
            else:
                self._asking.begin(self.transport)

        def pause_writing(self) -> None:
            super().pause_writing()
            self._reading.begin(self.transport)

        def resume_writing(self) -> None:
            super().resume_writing()
            self._reading.end()

        def connection_lost(self, exc: Exception | None) -> None:
            self._asking.end()
            self._reading.end()
            super().connection_lost(exc)

    return TimedProtocol


class _Alarm:
    """Ends a connection some seconds after it began to wait."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, transport: asyncio.Transport) -> None:
        """Begin, unless it has begun."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._seconds, transport.abort)

    def end(self) -> None:
        """Tell that what it waited for is there."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class _Thrifty(logging.Filter):
    """Lets through so many lines, later one in a second: whoever asks much fills no disk with it."""

    LONGEST = 500  # characters of a line

    def __init__(self, lines: int, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._allowance, self._dropped = Allowance(lines, clock), 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a line is written; it is cut, and says how many before it were not."""
        if not self._allowance.take():
            self._dropped += 1
            return False
        told = f" ({self._dropped} lines before this one are left out)" if self._dropped else ""
        record.msg, record.args, self._dropped = f"{record.getMessage():.{self.LONGEST}}{told}", (), 0
        return True


def _tells(record: logging.LogRecord) -> bool:
    """Return whether a log line matters; the traceback of a download cut off at the end does not."""
    return not (record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError))


PAPERS = {"provenance.json": "provenance", "sbom.json": "SBOM", "audit.json": "audit"}


@dataclass(frozen=True, kw_only=True, slots=True)
class ShownWheel:
    """A line of the table. `devices`: what its code for GPUs is for; `papers`: (label, URL)."""

    wheel: StoredWheel
    url: str
    devices: tuple[str, ...] = ()
    papers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class ShownView:
    """A generation of a view. `fixed`: its URL, which never changes."""

    name: str
    number: int
    created: str
    verdict: tuple[str, str]  # tone, text
    fixed: str
    install: tuple[str, ...]  # lines to copy
    wheels: tuple[ShownWheel, ...]

    @property
    def groups(self) -> dict[str, list[ShownWheel]]:
        """Wheels by the title of their table, those built here first."""
        titles = {"built": "Built here", "public": "Public, to complete them"}
        groups: dict[str, list[ShownWheel]] = {title: [] for title in titles.values()}
        for one in self.wheels:
            origin = one.wheel.shown_origin
            groups.setdefault(titles.get(origin, origin[:1].upper() + origin[1:]), []).append(one)
        return {title: wheels for title, wheels in groups.items() if wheels}


def devices(audit: Any) -> tuple[str, ...]:
    """Return the architectures for which an audit found code, machine code first; none of another shape."""
    try:
        facts = audit.get("facts") or {}
        loaded = [*facts.get("libraries", ()), *(code["loaded"] for code in facts.get("device_code", ()))]
        return tuple(sorted({arch for one in loaded for arch in (*one["sass"], *one["ptx"])}, key=order))
    except (LookupError, TypeError, AttributeError, ValueError):
        return ()


def verdict(found: Mapping[str, Any] | None) -> tuple[str, str]:
    """(tone, text) of a generation's verdict.json."""
    if found is None:
        return "unsure", "not verified yet"
    states = [check.get("status") for check in found.get("checks", ())]
    text = f"{states.count('ok')} of {len(states)} checks ok"
    return ("bad" if "fail" in states else "good"), f"verified {str(found.get('time', ''))[:10]}: {text}"


def install_lines(index: str, *, token: bool, trusted: str) -> tuple[str, ...]:
    """Return lines to copy, for pip and for uv. `trusted`: the host that pip must be told to trust, or ""."""
    if token:
        index = index.replace("://", "://_:TOKEN@", 1)
    host = f"--trusted-host {trusted} " if trusted else ""
    return (
        f"pip install {host}--index-url {index} NAME",
        f"uv pip install --default-index {index} NAME",
    )


def render_front_page(views: Sequence[ShownView]) -> str:
    """Return the whole page."""
    return render_template("front_page.html", views=views, size=format_size)
