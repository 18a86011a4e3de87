"""A real HTTP server on 127.0.0.1 for tests: ranges, index pages, connections that break off."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import re
import ssl
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

JSON = "application/vnd.pypi.simple.v1+json"


@dataclass
class Page:
    """What is served at a path. `statuses` and `cuts` are used up, one for each request."""

    body: bytes
    kind: str = "application/octet-stream"
    ranges: bool = True
    lies: str = ""  # 206 with a range from here on, whatever was asked for
    endless: bool = False  # 200 without a length, chunked by closing
    location: str = ""  # redirect there
    login: str = ""  # "user:password"
    statuses: list[int] = field(default_factory=list)
    cuts: list[int] = field(default_factory=list)  # bytes of the body after which the line breaks
    headers: dict[str, str] = field(default_factory=dict)
    until: threading.Event | None = None  # what a slow server waits for before it answers


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    headers: Mapping[str, str]


class Site:
    """The pages of a running server and the requests that it got."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.pages: dict[str, Page] = {}
        self.requests: list[Request] = []

    def add(self, path: str, body: bytes, **options: object) -> str:
        self.pages[path] = Page(body, **options)  # type: ignore[arg-type] # options are Page's fields
        return self.url + path

    def asked(self, path: str, method: str = "GET") -> list[Request]:
        return [request for request in self.requests if request.path == path and request.method == method]

    def index(self, project: str, files: Mapping[str, str], *, as_json: bool = False) -> str:
        """A project page; `files` are URLs (with #sha256=...) by file name. Returns the index."""
        if as_json:
            entries = []
            for name, link in files.items():
                url, _, fragment = link.partition("#sha256=")
                hashes = {"sha256": fragment} if fragment else {}
                entries.append({"filename": name, "url": url, "hashes": hashes, "size": 12345})
            page = {"meta": {"api-version": "1.0"}, "name": project, "files": entries}
            self.add(f"/simple/{project}/", json.dumps(page).encode(), kind=JSON)
        else:
            links = "".join(f'<a href="{link}">{name}</a><br>' for name, link in files.items())
            html = f"<!DOCTYPE html><html><body>{links}</body></html>"
            self.add(f"/simple/{project}/", html.encode(), kind="text/html; charset=utf-8")
        return f"{self.url}/simple"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    site: Site

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        self.site.requests.append(Request(self.command, self.path, {**self.headers}))
        page = self.site.pages.get(self.path)
        if page is not None and page.until is not None:
            page.until.wait(60)
        if page is None:
            self.send_error(404)
        elif page.statuses:
            self.send_error(page.statuses.pop(0))
        elif page.login and self.headers.get("Authorization") != _basic(page.login):
            self.send_error(401)
        elif page.location:
            self.send_response(302)
            self.send_header("Location", page.location)
            self.send_header("Content-Length", "0")
            self.end_headers()
        else:
            self.serve(page)

    def serve(self, page: Page) -> None:
        wanted = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", "")) if page.ranges else None
        start = int(wanted[1]) if wanted else 0
        if wanted and start >= len(page.body):
            self.send_error(416)
            return
        body = page.body[start:]
        self.send_response(206 if wanted else 200)
        self.send_header("Content-Type", page.kind)
        if wanted:
            shown = page.lies or start
            self.send_header("Content-Range", f"bytes {shown}-{len(page.body) - 1}/{len(page.body)}")
        for name, value in page.headers.items():
            self.send_header(name, value)
        if page.endless:
            self.send_header("Connection", "close")
        else:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        if page.cuts:
            self.wfile.write(body[: page.cuts.pop(0)])
            self.wfile.flush()
            self.close_connection = True
        else:
            self.wfile.write(body)


@contextlib.contextmanager
def serving(certificate: str = "", host: str = "127.0.0.1") -> Iterator[Site]:
    """A server for the time of the block; with `certificate` (a PEM with its key) over TLS."""

    class Handler(_Handler):
        pass

    server = ThreadingHTTPServer((host, 0), Handler)
    server.daemon_threads = True
    scheme = "http"
    if certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        server.handle_error = lambda *_: None  # type: ignore[method-assign] # refused handshakes are wanted
        scheme = "https"
    site = Handler.site = Site(f"{scheme}://{host}:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield site
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _basic(login: str) -> str:
    return "Basic " + base64.b64encode(login.encode()).decode()


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
