"""`wheelhouse serve` as clients see it: forms, caching, ranges, tokens, TLS, and those who mean harm."""

from __future__ import annotations

import errno
import json
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from spark_build.paths import Home
from spark_build.wheelhouse import generations
from spark_build.wheelhouse import store as stores
from spark_build.wheelhouse.generations import Generation
from spark_build.wheelhouse.simple_index import HTML_FORM, INDEX, JSON_FORM
from spark_build.wheels.model import StoredWheel
from tests.conftest import CLI
from tests.helpers import processes
from tests.helpers.servers import Served, served
from tests.helpers.wheelhouse import VIEW, demo_house, eventually, make_wheel, publish, put_built, snapshot
from tests.helpers.wheels import PYTHON

WHEEL = "demo-1.0-1_0123abcd-py3-none-any.whl"
SIMPLE = f"{VIEW}/simple/"
LARGE = 12 << 20  # more than sockets buffer


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> tuple[Home, Generation]:
    """demo_house with a large wheel, and papers for it."""
    home, before = demo_house(tmp_path_factory.mktemp("house"))
    dist = home.wheelhouse.parent / "dist"
    noise = random.Random(7).randbytes(LARGE)
    large = put_built(
        home.store, make_wheel(dist, "large", "4.0+gb10", build="1_0123abcd", files={"large/data": noise})
    )
    library = {"sass": {"sm_121a": 20, "sm_90": 1}, "ptx": {"compute_120": 1}}
    folder = stores.entry_folder(home.store, large.key)
    (folder / "audit.json").write_text(json.dumps({"facts": {"libraries": [library]}, "findings": []}))
    (folder / "provenance.json").write_text('{"predicateType": "x"}')
    generation = publish(home, [*before.wheels, large])
    check = {"name": "import", "status": "ok", "evidence": ""}
    generations.write_verdict(generation, {"time": "2026-11-21T06:00:00+00:00", "checks": [check, check]})
    return home, generation


@pytest.fixture(scope="module")
def server(house: tuple[Home, Generation]) -> Iterator[Served]:
    """Whatever the tests do to it: it must write nothing, and end well."""
    home, _ = house
    before = snapshot(home.wheelhouse)
    with served(home.wheelhouse.parent) as running:
        yield running
        assert running.get("").status_code == 200
    assert snapshot(home.wheelhouse) == before


def stored(house: tuple[Home, Generation], name: str) -> StoredWheel:
    return next(wheel for wheel in house[1].wheels if wheel.name == name)


def test_the_form_follows_the_accept_header(server: Served) -> None:
    for accept, kind in (
        (JSON_FORM, JSON_FORM),
        (HTML_FORM, HTML_FORM),
        ("text/html", "text/html"),
        (f"{JSON_FORM};q=0.1, text/html", "text/html"),
    ):
        for path in (SIMPLE, f"{SIMPLE}demo/", f"{VIEW}/2/simple/demo/"):
            answer = server.get(path, Accept=accept)
            assert answer.status_code == 200
            assert answer.headers["content-type"].partition(";")[0] == kind
            assert answer.headers["vary"] == "Accept"
            assert ("files" in answer.text) == (kind == JSON_FORM and "demo" in path)


def test_names_are_normalised_by_redirects(server: Served) -> None:
    moved = server.get(f"{SIMPLE}De_mo.x/")
    assert (moved.status_code, moved.headers["location"]) == (301, "../de-mo-x/")
    slash = server.get(f"{SIMPLE}demo")
    assert slash.headers["location"].endswith(f"/{SIMPLE}demo/")


def test_pages_are_asked_for_again_and_known_ones_not_sent(server: Served) -> None:
    first = server.get(f"{SIMPLE}demo/", Accept=JSON_FORM)
    assert first.headers["cache-control"] == "no-cache"
    known = server.get(f"{SIMPLE}demo/", Accept=JSON_FORM, If_None_Match=first.headers["etag"])
    assert (known.status_code, known.content) == (304, b"")
    other_form = server.get(f"{SIMPLE}demo/", Accept="text/html", If_None_Match=first.headers["etag"])
    assert other_form.status_code == 200


@pytest.mark.parametrize(
    ("path", "lasting"),
    [
        (f"{SIMPLE}demo/{WHEEL}", True),
        (f"{VIEW}/2/simple/helper/helper-1.5-py3-none-any.whl", True),
        # A public wheel's name does not say its bytes: by the moving URL it must be asked for again.
        (f"{SIMPLE}helper/helper-1.5-py3-none-any.whl", False),
    ],
)
def test_wheels_are_kept_for_good(server: Served, path: str, lasting: bool) -> None:
    answer = server.get(path)
    assert answer.status_code == 200
    assert ("immutable" in answer.headers["cache-control"]) == lasting
    assert server.get(path, If_None_Match=f'"x", {answer.headers["etag"]}').status_code == 304


def test_a_wheel_comes_whole_or_in_parts(house: tuple[Home, Generation], server: Served) -> None:
    wheel = stored(house, "large")
    path = f"{SIMPLE}large/{wheel.filename.replace('+', '%2B')}"
    data = (house[1].folder / wheel.filename).read_bytes()
    whole = server.get(path)
    assert whole.content == data
    assert whole.headers["accept-ranges"] == "bytes"
    head = server.ask("HEAD", path)
    assert (head.status_code, head.content, head.headers["content-length"]) == (200, b"", str(len(data)))
    part = server.get(path, Range="bytes=1000-1999")
    assert (part.status_code, part.content) == (206, data[1000:2000])
    assert part.headers["content-range"] == f"bytes 1000-1999/{len(data)}"
    assert server.get(path, Range="bytes=-100").content == data[-100:]
    resumed = server.get(path, Range=f"bytes={len(data) - 5}-", If_Range=whole.headers["etag"])
    assert (resumed.status_code, resumed.content) == (206, data[-5:])
    changed = server.get(path, Range="bytes=5-", If_Range='"another"')
    assert (changed.status_code, changed.content) == (200, data)
    assert server.get(path, Range=f"bytes={len(data)}-").status_code == 416


def test_papers_of_an_entry(house: tuple[Home, Generation], server: Served) -> None:
    key = stored(house, "large").key
    assert server.get(f"papers/{key}/provenance.json").json() == {"predicateType": "x"}
    assert "findings" in server.get(f"papers/{key}/audit.json").json()
    for path in (f"papers/{key}/build.log", f"papers/{key}/key.json", f"papers/{'0' * 64}/audit.json"):
        assert server.get(path).status_code == 404


def test_lists_of_a_generation(house: tuple[Home, Generation], server: Served) -> None:
    for prefix in (VIEW, f"{VIEW}/2"):
        for name in ("requirements.txt", "constraints.txt", "manifest.json"):
            assert server.get(f"{prefix}/{name}").content == (house[1].folder / name).read_bytes()
    assert server.get(f"{VIEW}/verdict.json").status_code == 404


def test_the_page_tells_people_what_there_is(house: tuple[Home, Generation], server: Served) -> None:
    page = server.get("", Accept="text/html")
    assert page.headers["content-security-policy"].startswith("default-src 'none'")
    for text in (
        "large",
        "4.0+gb10",
        "12.0 MiB",
        "sm_90, sm_121a, compute_120",
        "2 of 2 checks ok",
        "provenance",
    ):
        assert text in page.text
    assert f"pip install --index-url {server.indexes[VIEW]} NAME" in page.text
    assert f"uv pip install --default-index {server.indexes[VIEW]} NAME" in page.text
    assert "<script" not in page.text
    older = server.get(f"{VIEW}/1/")
    assert "not verified yet" in older.text
    assert "4.0+gb10" not in older.text


def test_other_names_are_no_markup(server: Served) -> None:
    answer = server.get("", Host='x"><script>alert(1)</script>')
    assert "<script>" not in answer.text


ESCAPES = [
    f"/{VIEW}/simple/..%2f..%2f..%2f..%2fstore",
    f"/{VIEW}/simple/demo/..%2f..%2fmanifest.json",
    f"/{VIEW}/simple/demo/..",
    f"/{VIEW}/simple/../../../../../../etc/passwd",
    f"/{VIEW}/simple/%2e%2e/%2e%2e/manifest.json",
    "/../etc/passwd",
    "//etc/passwd",
    "/%2e%2e/simple/",
    "/../views/simple/",
    f"/{VIEW}/lock",
    f"/{VIEW}/../{VIEW}/current",
    f"/{VIEW}/00000000000000000000000000000000000000000000000000000000000000009/simple/",
    f"/{VIEW}/-1/simple/",
    f"/{VIEW}/{'9' * 300}/simple/",
    f"/{VIEW}/{'9' * 5000}/simple/",
    f"/{'v' * 300}/simple/",
    f"/{VIEW}/simple/{'p' * 300}/",
    f"/{VIEW}/simple/demo/{'x' * 300}.whl",
    f"/{VIEW}/simple/demo/a%00.whl",
    f"/{VIEW}/simple/demo/{'x' * 5000}.whl",
    f"/{VIEW}/simple/demo/index.json",
    "/papers/../../../etc/passwd",
    f"/papers/{'0' * 64}/..%2frecord.json",
    "/%ff%fe/simple/",
]


@pytest.mark.parametrize("path", ESCAPES)
def test_no_path_leads_elsewhere(server: Served, path: str) -> None:
    """Sent as it is: libraries would tidy the path first."""
    head, _, _ = exchange(
        server, f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode()
    ).partition(b"\r\n")
    assert head.split()[1] in (b"404", b"400"), head


def test_a_link_out_of_the_wheelhouse_is_not_followed(tmp_path: Path) -> None:
    home, generation = demo_house(tmp_path)
    secret = tmp_path / "secret"
    secret.write_text("secret")
    page = (generation.folder / INDEX / "demo").resolve()
    (page / WHEEL).unlink()
    (page / WHEEL).symlink_to(secret)
    (page / f"{WHEEL}.metadata").unlink()
    (page / f"{WHEEL}.metadata").symlink_to(secret)
    with served(home.wheelhouse.parent) as server:
        assert server.get(f"{SIMPLE}demo/{WHEEL}").status_code == 404
        assert server.get(f"{SIMPLE}demo/{WHEEL}.metadata").status_code == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "NONSENSE"])
def test_it_is_read_only(server: Served, method: str) -> None:
    assert server.ask(method, f"{SIMPLE}demo/").status_code == 405


def exchange(server: Served, data: bytes, *, hang_up: bool = False) -> bytes:
    """Send bytes as they are, end our half if asked to, and read until the server ends its own."""
    host, port = server.url.removeprefix("http://").rstrip("/").split(":")
    answer = b""
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        try:
            connection.sendall(data)
            if hang_up:
                connection.shutdown(socket.SHUT_WR)
            while more := connection.recv(1 << 16):
                answer += more
        except OSError as error:  # it hung up before we did
            if error.errno not in (errno.ECONNRESET, errno.EPIPE, errno.ENOTCONN):
                raise
    return answer


GARBAGE = [
    b"\x00" * 5000,
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(256)) * 4,  # TLS to a plain port
    b"GET / HTTP/9.9\r\n\r\n",
    b"GET  HTTP/1.1\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\nzzzzzzzz",
    b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"x" * 500_000 + b"\r\n\r\n",
    b"GET /" + b"a" * 500_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\nRange: bytes=" + b"0-1," * 3000 + b"\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"GET / HTTP/1.1\r\nUpgrade: websocket\r\nConnection: upgrade\r\nHost: x\r\n\r\n",
]


def test_garbage_harms_nobody(server: Served) -> None:
    noise = random.Random(11)
    for data in (*GARBAGE, *(noise.randbytes(noise.randrange(1, 3000)) for _ in range(50))):
        answer = exchange(server, data, hang_up=True)
        status = answer.split(b" ", 2)[1] if answer.startswith(b"HTTP/") else b"hung up"
        assert status in (b"hung up", b"400", b"200", b"404", b"431"), answer[:200]
        assert server.get(f"{SIMPLE}demo/").status_code == 200
    assert "Traceback" not in server.log.read_text()


def test_odd_ranges_harm_nobody(house: tuple[Home, Generation], server: Served) -> None:
    path = f"{SIMPLE}demo/{WHEEL}"
    data = (house[1].folder / WHEEL).read_bytes()
    for wanted in (
        "bytes=5-1",
        "bytes=--",
        "bytes=a-b",
        "lines=1-2",
        "bytes=" + "0-," * 2000,
        "bytes=0-0,2-2",
    ):
        answer = server.get(path, Range=wanted)
        assert answer.status_code in (200, 206, 400, 416)
        if answer.status_code == 200:
            assert answer.content == data
    assert "Traceback" not in server.log.read_text()


def open_files(server: Served) -> int:
    return len(list(Path(f"/proc/{server.process.pid}/fd").iterdir()))


def test_dropped_connections_harm_nobody(house: tuple[Home, Generation], server: Served) -> None:
    """Hanging up in the middle of a large wheel leaves no open file and no trace in the log."""
    server.session.close()
    assert eventually(lambda: open_files(server) < 40, seconds=20)
    before = open_files(server)
    wheel = stored(house, "large").filename.replace("+", "%2B")
    request = f"GET /{SIMPLE}large/{wheel} HTTP/1.1\r\nHost: x\r\n\r\n".encode()

    def drop(number: int) -> None:
        host, port = server.url.removeprefix("http://").rstrip("/").split(":")
        with socket.create_connection((host, int(port)), timeout=20) as connection:
            connection.sendall(request[: 20 if number % 3 == 0 else None])
            if number % 3 == 2:
                connection.recv(1000)
            # A reset, not a polite end.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")

    threads = [threading.Thread(target=drop, args=(number,)) for number in range(60)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert server.get(f"{SIMPLE}demo/").status_code == 200
    server.session.close()
    assert eventually(lambda: open_files(server) <= before, seconds=20)
    assert "Traceback" not in server.log.read_text()


def test_publications_are_followed_and_older_wheels_stay(tmp_path: Path) -> None:
    home, _ = demo_house(tmp_path)
    with served(tmp_path) as server:
        before = server.get(f"{SIMPLE}demo/", Accept=JSON_FORM)
        newer = put_built(home.store, make_wheel(tmp_path / "dist", version="2.0", build="1_89abcdef"))
        publish(home, [newer])
        after = server.get(f"{SIMPLE}demo/", Accept=JSON_FORM, If_None_Match=before.headers["etag"])
        assert after.json()["versions"] == ["2.0"]
        assert server.get(f"{SIMPLE}helper/").status_code == 404
        # Who read the page a moment ago still gets the wheel, by either URL.
        assert server.get(f"{SIMPLE}demo/{WHEEL}").status_code == 200
        assert server.get(f"{SIMPLE}demo/{WHEEL}.metadata").status_code == 200
        assert server.get(f"{VIEW}/1/simple/demo/{WHEEL}").status_code == 200
        assert server.get(f"{VIEW}/2/simple/demo/{WHEEL}").status_code == 404
        other = "other-2.13-cp312"
        publish(home, [newer], view=other)
        assert server.get(f"{other}/simple/demo/").status_code == 200
        assert other in server.get("").text


def test_a_damaged_generation_is_said_and_others_go_on(tmp_path: Path) -> None:
    home, generation = demo_house(tmp_path)
    publish(home, generation.wheels[:1])
    with served(tmp_path) as server:
        (generation.folder / "manifest.json").write_text("half")
        broken = server.get(f"{VIEW}/1/")
        assert (broken.status_code, "manifest" in broken.text) == (503, True)
        assert server.get(f"{VIEW}/2/").status_code == 200
        assert "Traceback" not in server.log.read_text()


def test_one_generation_only(tmp_path: Path) -> None:
    home, _ = demo_house(tmp_path)
    wheel = put_built(home.store, make_wheel(tmp_path / "dist", version="2.0", build="1_89abcdef"))
    view = f"host-cpu-2.13-{PYTHON}"
    publish(home, [wheel], view=view)
    publish(home, [put_built(home.store, make_wheel(tmp_path / "dist", version="3.0"))], view=view)
    options = ["--generation", "1", "--target", "host-cpu", "--train", "2.13"]
    with served(tmp_path, *options) as server:
        assert list(server.indexes) == [view]
        assert server.get(f"{view}/simple/demo/", Accept=JSON_FORM).json()["versions"] == ["2.0"]
        assert server.get(f"{view}/1/simple/demo/").status_code == 200
        assert server.get(f"{view}/2/simple/demo/").status_code == 404
        assert server.get(f"{SIMPLE}demo/").status_code == 404
    refused = run(tmp_path, "--generation", "9", *options[2:])
    assert (refused.returncode, "no such generation" in refused.stderr) == (10, True)


@pytest.mark.parametrize(
    ("login", "status"),
    [
        (None, 401),
        (("_", "right"), 200),
        (("anybody", "right"), 200),
        (("right", ""), 401),
        (("_", "wrong"), 401),
        (("_", "rightright"), 401),
    ],
)
def test_the_token_is_a_password(locked: Served, login: tuple[str, str] | None, status: int) -> None:
    for path in ("", f"{SIMPLE}demo/", f"{SIMPLE}demo/{WHEEL}", "nowhere"):
        answer = requests.get(locked.url + path, auth=login, timeout=20)
        assert answer.status_code == (404 if path == "nowhere" and status == 200 else status)
        assert ("www-authenticate" in answer.headers) == (status == 401)


@pytest.mark.parametrize(
    ("said", "status"),
    [
        ("Bearer right", 200),
        ("bearer  right ", 200),
        ("Bearer wrong", 401),
        ("Bearer", 401),
        ("Basic !!!", 401),
        ("Basic /////w==", 401),
        ("Digest right", 401),
        ("right", 401),
    ],
)
def test_the_token_is_a_bearer(locked: Served, said: str, status: int) -> None:
    assert locked.get("", Authorization=said).status_code == status


@pytest.fixture(scope="module")
def locked(house: tuple[Home, Generation], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    token = tmp_path_factory.mktemp("token") / "token"
    token.write_text("right\n")
    with served(house[0].wheelhouse.parent, "--token-file", token) as running:
        running.session.trust_env = False
        yield running
        assert "right" not in running.log.read_text()


def certificate(folder: Path) -> tuple[Path, Path]:
    cert, key = folder / "cert.pem", folder / "key.pem"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"]
    words = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    subprocess.run(
        [*words, "-keyout", key, "-out", cert, "-days", "2", *subject],
        check=True,
        timeout=60,
        capture_output=True,
    )
    return cert, key


def test_tls(house: tuple[Home, Generation], tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    with served(house[0].wheelhouse.parent, "--certificate", cert, "--key", key) as server:
        assert server.url.startswith("https://")
        assert requests.get(f"{server.url}{SIMPLE}demo/", verify=str(cert), timeout=20).status_code == 200
        port = int(server.url.rstrip("/").rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), timeout=20) as plain:
            plain.sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert not plain.recv(100).startswith(b"HTTP/1.1 200")
        assert requests.get(f"{server.url}", verify=str(cert), timeout=20).status_code == 200
    refused = run(house[0].wheelhouse.parent, "--certificate", key, "--key", key)
    assert refused.returncode == 2
    assert "--certificate FILE --key FILE" in refused.stderr


def run(
    root: Path, *arguments: object, python: Path | str = sys.executable
) -> subprocess.CompletedProcess[str]:
    """A server that is expected not to start."""
    words = [str(python), *CLI[1:], "--root", str(root), "wheelhouse", "serve", *map(str, arguments)]
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)


def test_what_cannot_be_served_is_said(house: tuple[Home, Generation], tmp_path: Path) -> None:
    root = house[0].wheelhouse.parent
    empty = run(tmp_path, "--port", "0")
    assert (empty.returncode, f"next: spark-build --root {tmp_path} all" in empty.stderr) == (10, True)
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = run(root, "--port", other.getsockname()[1])
    assert (taken.returncode, "--port N" in taken.stderr) == (4, True)
    foreign = run(root, "--host", "192.0.2.1")
    assert foreign.returncode == 4
    (tmp_path / "a token").write_text("\n")
    blank = run(root, "--token-file", tmp_path / "a token")
    assert (blank.returncode, "empty" in blank.stderr) == (2, True)
    assert f"openssl rand -hex 16 > '{tmp_path / 'a token'}'" in blank.stderr


def downloading(house: tuple[Home, Generation]) -> tuple[subprocess.Popen[str], socket.socket, int]:
    """A server, a client that has begun to read a large wheel from it, and how much it got."""
    words = [*CLI, "--root", str(house[0].wheelhouse.parent), "wheelhouse", "serve", "--port", "0"]
    process = processes.start(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    port = int(process.stdout.readline().split()[1].rstrip("/").rpartition(":")[2])
    client = socket.create_connection(("127.0.0.1", port), timeout=20)
    path = f"/{SIMPLE}large/{stored(house, 'large').filename.replace('+', '%2B')}"
    client.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    return process, client, len(client.recv(4096))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_running_download_ends_before_the_server(
    house: tuple[Home, Generation], number: signal.Signals
) -> None:
    process, client, received = downloading(house)
    with client:
        process.send_signal(number)
        time.sleep(0.5)
        assert process.poll() is None
        while more := client.recv(1 << 16):
            received += len(more)
    assert received > stored(house, "large").size
    _, said = process.communicate(timeout=30)
    assert process.returncode == 128 + number
    assert said == f"{number.name}: ended\n"


def test_a_second_signal_waits_for_no_download(house: tuple[Home, Generation]) -> None:
    process, client, _ = downloading(house)
    with client:
        process.send_signal(signal.SIGINT)
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=30)
    assert process.returncode == 130
    # Not: a task was cancelled because the time was over; and no traceback of what was cut off.
    assert said == "SIGINT: ended\n"


def test_others_are_warned_about(house: tuple[Home, Generation]) -> None:
    root = house[0].wheelhouse.parent
    with served(root, "--host", "0.0.0.0") as server:
        said = server.log.read_text()
    assert "everyone who reaches this port can read the wheels" in said
    assert "without TLS" in said
    with served(root) as server:
        said = server.log.read_text()
    assert "warning" not in said
