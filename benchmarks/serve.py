"""What `wheelhouse serve` answers in a second, beside python -m http.server and nginx with one worker.

The same files, the same client (wrk), loopback, one server at a time, rounds interleaved. Needs wrk; nginx if
it is there, or --nginx PATH. Run it in a checkout: .venv/bin/python benchmarks/serve.py
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(HERE))

from spark_build.wheelhouse.generations import Generation  # noqa: E402 - the path comes first
from tests.helpers.wheelhouse import VIEW, home_in, make_wheel, publish, put_built  # noqa: E402 - the path comes first

PROJECTS = 200
LARGE = 256 << 20
NGINX = """daemon off; worker_processes 1; pid {folder}/pid; error_log {folder}/error.log;
events {{ worker_connections 1024; }}
http {{ access_log off; sendfile on; default_type text/html; client_body_temp_path {folder};
proxy_temp_path {folder}; fastcgi_temp_path {folder}; uwsgi_temp_path {folder}; scgi_temp_path {folder};
server {{ listen 127.0.0.1:{port}; root {root}; index index.html; }} }}
"""


def house(root: Path) -> Generation:
    """A published view: many small wheels and a large one."""
    home = home_in(root)
    noise = {"large/data": os.urandom(LARGE)}
    paths = [make_wheel(root / "dist", f"p{number}", build="1_0123abcd") for number in range(PROJECTS)]
    paths.append(make_wheel(root / "dist", "large", build="1_0123abcd", files=noise))
    return publish(home, [put_built(home.store, path) for path in paths])


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


def command(server: str, root: Path, generation: Generation, port: int, nginx: str) -> tuple[list[str], str]:
    """How a server is started, and where the index then is."""
    index = generation.folder / "index"
    if server == "spark-build":
        words = ["-m", "spark_build", "--root", str(root), "-q", "wheelhouse", "serve", "--port", str(port)]
        return [sys.executable, *words], f"/{VIEW}/simple"
    if server == "http.server":
        words = ["-m", "http.server", "--bind", "127.0.0.1", "--directory", str(index), str(port)]
        return [sys.executable, *words], ""
    config = root / "nginx.conf"
    config.write_text(NGINX.format(folder=root, port=port, root=index))
    return [nginx, "-p", str(root), "-c", str(config)], ""


@contextlib.contextmanager
def running(words: list[str], port: int) -> Iterator[None]:
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(200):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            time.sleep(0.05)
        yield
    finally:
        process.terminate()
        process.wait(timeout=30)


def wrk(url: str, connections: int, seconds: int) -> tuple[float, float]:
    """(requests/s, MB/s); fails when an answer is no success."""
    words = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--timeout", "20s", url]
    said = subprocess.check_output(words, text=True)
    assert "Non-2xx" not in said, said
    rate = re.search(r"Requests/sec:\s+([\d.]+)", said)
    moved = re.search(r"Transfer/sec:\s+([\d.]+)([KMG]?)B", said)
    assert rate is not None, said
    assert moved is not None, said
    scale = {"": 1e-6, "K": 1.024e-3, "M": 1.048576, "G": 1073.741824}[moved[2]]
    return float(rate[1]), float(moved[1]) * scale


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=4)
    parser.add_argument("--nginx", default=shutil.which("nginx") or "")
    options = parser.parse_args()
    if not shutil.which("wrk"):
        sys.exit("wrk is not here: apt-get install wrk")
    servers = ["spark-build", "http.server", *(["nginx"] if options.nginx else [])]
    page, metadata, wheel = ("project page", "metadata file", f"wheel of {LARGE >> 20} MiB")
    name = "1.0-1_0123abcd-py3-none-any.whl"
    paths = {page: "/p7/", metadata: f"/p7/p7-{name}.metadata", wheel: f"/large/large-{name}"}
    seen: dict[tuple[str, str], list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        generation = house(root)
        for _ in range(options.rounds):
            for server in servers:
                port = free_port()
                words, base = command(server, root, generation, port, options.nginx)
                with running(words, port):
                    for what, path in paths.items():
                        url = f"http://127.0.0.1:{port}{base}{path}"
                        found = wrk(url, 2 if what == wheel else 16, options.seconds)
                        seen.setdefault((what, server), []).append(found[what == wheel])
    for what in paths:
        unit = "MB/s" if what == wheel else "requests/s"
        own = statistics.median(seen[what, "spark-build"])
        for server in servers:
            rate = statistics.median(seen[what, server])
            print(f"{what:18} {server:12} {rate:9.0f} {unit:10}  ours is {own / rate:.2f} of it")


if __name__ == "__main__":
    main()
