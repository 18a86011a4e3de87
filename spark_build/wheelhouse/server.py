"""What `serve` answers: the views of a wheelhouse, read from disk with each request, never written.

/<view>/simple/... follows publications; /<view>/<n>/simple/... is one generation for good.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from spark_build.errors import SparkBuildError, StoreError
from spark_build.wheelhouse import frontpage, generations
from spark_build.wheelhouse.guard import Guard
from spark_build.wheelhouse.simple_index import INDEX, add_index
from spark_build.wheelhouse.simpleindex import HTML, JSON, JSON_FORM, METADATA, negotiate
from spark_build.wheelhouse.store import entry_folder

# As long as file systems take.
VIEW = re.compile(r"(?=.{1,255}$)[A-Za-z0-9][A-Za-z0-9._-]*")
PROJECT = re.compile(r"(?=.{1,255}$)[a-z0-9]+(-[a-z0-9]+)*")
FILE = re.compile(r"(?=.{1,255}$)[A-Za-z0-9_.+!~-]+\.whl(\.metadata)?")
GENERATIONS = 10**9
KEY = re.compile(r"[0-9a-f]{64}")
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
    """What may be served. `only`: one view and generation, instead of all views and what is current."""

    views: Path
    store: Path
    only: tuple[str, int] | None = None
    token: str = ""

    def names(self) -> list[str]:
        """The views that have a current generation."""
        if self.only:
            return [self.only[0]]
        return sorted(path.parent.name for path in self.views.glob("*/current"))

    def prepare(self) -> None:
        """Refuse to serve nothing; write the index of a generation that an older version published."""
        if not self.names():
            raise StoreError("nothing is published yet", where=str(self.views), hint="spark-build all")
        for name in self.names():
            try:
                folder = self.folder(name, None)
            except HTTPException as error:
                raise StoreError(f"{name} has no such generation", where=str(self.views / name)) from error
            add_index(folder, self.views / name, generations.read(folder).wheels, self.store)

    def folder(self, view: str, number: int | None) -> Path:
        """The folder of a generation, of the current one without a number; 404 when there is none."""
        allowed = self.only is None or (self.only[0] == view and number in (None, self.only[1]))
        if not VIEW.fullmatch(view) or not allowed or (number or 0) > GENERATIONS:
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
        """A wheel or its metadata. What just left the current generation is still found in an older one."""
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


class _Wheel(FileResponse):
    chunk_size: ClassVar[int] = 1 << 20  # type: ignore[misc] # Starlette's are 64 KiB: half as fast


def application(shelf: Shelf) -> ASGIApp:
    """The ASGI application."""
    handlers = _Handlers(shelf)
    routes = [Route("/", handlers.front), Route("/papers/{key}/{name}", handlers.paper)]
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
        """All views, for people."""
        shown = [self._shown(request, name, None) for name in self.shelf.names()]
        return _answer(request, frontpage.render(shown).encode(), "text/html", ASK_AGAIN)

    def view(self, request: Request) -> Response:
        """One view or generation, for people."""
        view, number = _place(request)
        page = frontpage.render([self._shown(request, view, number)])
        return _answer(request, page.encode(), "text/html", ASK_AGAIN)

    def index(self, request: Request) -> Response:
        """The list of projects or the page of one, in the form that the client likes."""
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
        """A wheel, whole or in parts, or its metadata."""
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
        """Provenance, SBOM or audit of a wheel, by its key in the store."""
        key, name = request.path_params["key"], request.path_params["name"]
        if not KEY.fullmatch(key) or name not in frontpage.PAPERS:
            raise HTTPException(404, "no such paper")
        data = _bytes(entry_folder(self.shelf.store, key) / name)
        return _answer(request, data, "application/json", FOR_GOOD)

    def _shown(self, request: Request, view: str, number: int | None) -> frontpage.ShownView:
        generation = generations.read(self.shelf.folder(view, number))
        root = f"{request.url.scheme}://{request.url.netloc}"
        own = f"{root}/{view}/" if number is None else f"{root}/{view}/{number}/"
        fixed = f"{root}/{view}/{generation.number}/"
        host = request.url.hostname or ""
        trusted = "" if request.url.scheme == "https" or is_loopback(host) else host
        manifest = json.loads(_bytes(generation.folder / generations.MANIFEST))
        return frontpage.ShownView(
            name=view,
            number=generation.number,
            created=str(manifest["created"])[:16].replace("T", " ") + " UTC",
            verdict=frontpage.verdict(generations.verdict_of(generation)),
            index=f"{own}simple/",
            fixed=fixed,
            install=frontpage.install_lines(f"{own}simple/", token=bool(self.shelf.token), trusted=trusted),
            wheels=tuple(
                frontpage.ShownWheel(
                    name=wheel.name,
                    version=wheel.version,
                    filename=wheel.filename,
                    sha256=wheel.sha256,
                    size=wheel.size,
                    built=wheel.origin == "built",
                    url=f"{fixed}simple/{wheel.name}/{wheel.filename.replace('+', '%2B')}",
                    devices=_devices(entry_folder(self.shelf.store, wheel.key)),
                    papers=_papers(entry_folder(self.shelf.store, wheel.key), root),
                )
                for wheel in generation.wheels
            ),
        )


@functools.lru_cache(maxsize=20_000)
def _devices(entry: Path) -> tuple[str, ...]:
    try:
        return frontpage.devices(json.loads((entry / "audit.json").read_text()))
    except (OSError, ValueError, KeyError, TypeError):
        return ()


@functools.lru_cache(maxsize=20_000)
def _papers(entry: Path, root: str) -> tuple[tuple[str, str], ...]:
    return tuple(
        (label, f"{root}/papers/{entry.name}/{name}")
        for name, label in frontpage.PAPERS.items()
        if (entry / name).is_file()
    )


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches that address."""
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
    if response.headers["etag"] not in known and known != ["*"]:
        return response
    names = ("etag", "cache-control", "vary", "last-modified")
    return Response(
        status_code=304, headers={name: response.headers[name] for name in names if name in response.headers}
    )
