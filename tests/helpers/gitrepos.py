"""Real git repositories for tests, and a real server for them (git http-backend)."""

from __future__ import annotations

import base64
import contextlib
import io
import os
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from spark_build.errors import SourceError
from spark_build.recipes.model import Source
from spark_build.sources.git import export_commit, fetch_commit
from spark_build.sources.git_remote import mirror_name

WHEN = 1_700_000_000
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
ENVIRONMENT = {
    **CLEAN,
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "a",
    "GIT_AUTHOR_EMAIL": "a@example.org",
    "GIT_COMMITTER_NAME": "a",
    "GIT_COMMITTER_EMAIL": "a@example.org",
}


@dataclass(frozen=True, kw_only=True)
class Repository:
    """A repository with a work tree."""

    folder: Path

    @classmethod
    def make(cls, folder: Path) -> Repository:
        folder.mkdir(parents=True)
        made = cls(folder=folder)
        made.git("init", "--quiet", "--initial-branch=main")
        return made

    def git(self, *arguments: str, **extra: str) -> str:
        done = subprocess.run(
            ["git", *arguments],
            cwd=self.folder,
            env=ENVIRONMENT | extra,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def write(self, files: Mapping[str, str]) -> None:
        for name, text in files.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        self.git("add", "--all", "--", *files)

    def submodule(self, path: str, commit: str, url: str, name: str = "") -> None:
        """Record a submodule; nothing is cloned."""
        modules = self.folder / ".gitmodules"
        before = modules.read_text() if modules.exists() else ""
        section = f'[submodule "{name or path}"]\n\tpath = {path}\n\turl = {url}\n'
        self.write({".gitmodules": before + section})
        self.link(path, commit)

    def link(self, path: str, commit: str) -> None:
        self.git("update-index", "--add", "--cacheinfo", f"160000,{commit},{path}")

    def commit(self, when: int = WHEN) -> str:
        """Commit what is in the index."""
        date = f"{when} +0000"
        self.git(
            "commit",
            "--quiet",
            "--allow-empty",
            "-m",
            "change",
            GIT_AUTHOR_DATE=date,
            GIT_COMMITTER_DATE=date,
        )
        return self.git("rev-parse", "HEAD")

    def save(self, files: Mapping[str, str], when: int = WHEN) -> str:
        """Write files and commit."""
        self.write(files)
        return self.commit(when)

    def source(self, commit: str, *, tag: str = "", url: str = "") -> Source:
        """The pin of a commit, submodules included."""
        return Source(kind="git", url=url or str(self.folder), commit=commit, tag=tag, submodules=True)


@dataclass
class Server:
    """Serves the repositories below a folder; what it does can be changed while it runs."""

    root: Path
    url: str = ""
    login: str = ""  # user:password that is asked for
    broken: int = 0  # so many requests are answered with HTTP 503 first
    stalled: threading.Event | None = None  # answers to fetches stop halfway until it is set
    fetches: int = 0
    paths: list[str] = field(default_factory=list)


@contextlib.contextmanager
def serving(root: Path) -> Iterator[Server]:
    """A server on a free port."""
    server = Server(root=root)

    class Handler(_Handler):
        site = server

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.url = f"http://127.0.0.1:{listening.server_port}"
    thread = threading.Thread(target=listening.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        if server.stalled is not None:
            server.stalled.set()
        listening.shutdown()
        listening.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    site: Server

    def do_GET(self) -> None:
        self._answer(b"")

    def do_POST(self) -> None:
        self._answer(self.rfile.read(int(self.headers.get("Content-Length", "0"))))

    def log_message(self, *_arguments: object) -> None:
        pass

    def _answer(self, body: bytes) -> None:
        site = self.site
        site.paths.append(self.path)
        if site.broken > 0:
            site.broken -= 1
            self.send_error(503)
            return
        wanted = "Basic " + base64.b64encode(site.login.encode()).decode()
        if site.login and self.headers.get("Authorization") != wanted:
            self.send_response(401)
            self.send_header("WWW-Authenticate", 'Basic realm="test"')
            self.end_headers()
            return
        path, _, query = self.path.partition("?")
        fetch = b"command=fetch" in body
        site.fetches += fetch
        done = subprocess.run(
            ["git", "http-backend"],
            input=body,
            env=ENVIRONMENT
            | {
                "GIT_PROJECT_ROOT": str(site.root),
                "GIT_HTTP_EXPORT_ALL": "1",
                "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
                "PATH_INFO": path,
                "QUERY_STRING": query,
                "REQUEST_METHOD": self.command,
                "CONTENT_TYPE": self.headers.get("Content-Type", ""),
                "CONTENT_LENGTH": str(len(body)),
                "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
            },
            capture_output=True,
            check=False,
        )
        self._pass_on(done.stdout, stall=fetch)

    def _pass_on(self, answer: bytes, *, stall: bool) -> None:
        head, _, content = answer.partition(b"\r\n\r\n")
        headers = [line.partition(": ") for line in head.decode().split("\r\n")]
        status = next((value for name, _, value in headers if name == "Status"), "200 OK")
        self.send_response(int(status.split()[0]))
        for name, _, value in headers:
            if name != "Status":
                self.send_header(name, value)
        self.end_headers()
        half = len(content) // 2 if stall and self.site.stalled is not None else len(content)
        with contextlib.suppress(OSError):
            self.wfile.write(content[:half])
            self.wfile.flush()
            if self.site.stalled is not None and stall:
                self.site.stalled.wait(60)
            self.wfile.write(content[half:])


def get(source: Source, cache: Path, *, offline: bool = False, log: io.BytesIO | None = None) -> None:
    fetch_commit(source, folder=cache, offline=offline, log=log, pause=lambda _: None)


def tree(source: Source, cache: Path, tmp_path: Path) -> Path:
    """Fetched, then exported with the originals out of reach."""
    get(source, cache)
    target = tmp_path / f"tree-{time.monotonic_ns()}"
    export_commit(source, folder=cache, destination=target)
    return target


def refusal(source: Source, cache: Path, *, offline: bool = False) -> str:
    """The one-line error of a fetch that must fail."""
    with pytest.raises(SourceError) as caught:
        get(source, cache, offline=offline)
    assert "\n" not in caught.value.message
    assert caught.value.hint
    return caught.value.message


def mirror(source: Source, cache: Path) -> Path:
    return cache / "git" / mirror_name(source.url)


def in_mirror(source: Source, cache: Path, *arguments: str) -> str:
    args = ["git", f"--git-dir={mirror(source, cache)}", *arguments]
    return subprocess.run(args, capture_output=True, text=True, check=True).stdout.strip()
