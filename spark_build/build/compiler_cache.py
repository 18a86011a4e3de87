"""Compiler caches: wrappers, settings, statistics."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from spark_build.errors import HostError, UsageError, rm
from spark_build.files import open_made, read_made, remove_any, replacing
from spark_build.paths import Home
from spark_build.process import capture
from spark_build.text import render_template

Kind = Literal["ccache", "sccache", "none"]
CHOICE = "SPARK_BUILD_CACHE"
LINKS = "compiler-cache"  # a build's folder for wrappers, the log and fresh objects, in its tree
MAX_SIZE = "20G"
MOST_SHARED = 20 << 30  # bytes that one build hands on
# Variables that make sccache use a remote cache.
REMOTE = re.compile(r"SCCACHE_(\w*(BUCKET|ENDPOINTS?|CONNECTION_STRING)|GHA_ENABLED|MEMCACHED|REDIS)")
MOST_STATISTICS = 64 << 20  # bytes that are read: half a kilobyte for each call
ENTRY = re.compile("[0-9a-f]{2}/[0-9a-v]{20,60}")  # of ccache's remote storage
OFF = ("", "0", "false", "no", "off")
SOCKET = b"SCCACHE_SERVER_UDS"  # versions that know the variable have its name in them
IDLE_SECONDS = 7200  # longer than any link step; ends a server whose build was killed
INSTALL = "apt-get install ccache"


@dataclass(frozen=True, kw_only=True, slots=True)
class Cache:
    """The cache that builds use; `reason`: why this one, for people."""

    kind: Kind
    program: Path | None = None
    version: str = ""
    remote: bool = False  # others write what is taken from it
    shared: Path | None = None  # ccache's remote storage: a folder with one for each recipe
    unshared: str = ""  # why that is not used
    reason: str = ""

    @property
    def marks(self) -> dict[str, str | bool]:
        """Cache, version and settings for the provenance."""
        outside = self.kind == "sccache"
        return {
            "kind": self.kind,
            "version": self.version,
            "remote": self.remote,
            "compiles_outside_sandbox": outside,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Setup:
    """A build's access to the cache; `cache` may be none, with the reason."""

    cache: Cache
    variables: Mapping[str, str] = field(default_factory=dict)
    path: tuple[Path, ...] = ()  # to stand before the build's PATH
    writable: tuple[Path, ...] = ()
    readable: tuple[Path, ...] = ()
    log: Path  # for use_of


def choose(environ: Mapping[str, str]) -> Cache:
    """Return the cache: SPARK_BUILD_CACHE, else sccache with a remote configured, else ccache, else none."""
    wanted = environ.get(CHOICE, "")
    if wanted.startswith("file:"):
        return _shared(wanted, environ)
    remote = any(REMOTE.fullmatch(name) and value.lower() not in OFF for name, value in environ.items())
    if wanted == "none":
        return Cache(kind="none", reason=f"{CHOICE}=none")
    if wanted not in ("", "ccache", "sccache"):
        raise UsageError(
            f"{CHOICE}={wanted}: there is no such cache",
            hint="none, ccache, file:/FOLDER (ccache with a folder for several machines) or sccache; "
            "builds reach no server but sccache's",
        )
    reason = f"{CHOICE}={wanted}" if wanted else ""
    refused = ""
    if wanted == "sccache" or (remote and not wanted):
        found = _installed("sccache", environ, remote=remote, reason=reason or "a remote cache is configured")
        refused = _refusal(found)
        if found is not None and not refused:
            return found
        if wanted:
            raise HostError(f"{CHOICE} asks for sccache, but {refused}", hint=f"unset {CHOICE}")
    found = _installed("ccache", environ, remote=False, reason=refused or reason)
    if found is None and wanted:
        raise HostError(f"{CHOICE} asks for ccache, but it is not installed", hint=INSTALL)
    return found or Cache(kind="none", reason="; ".join(filter(None, (refused, "ccache is not installed"))))


def chosen_for(home: Home, environ: Mapping[str, str]) -> Cache:
    """Return `choose`; what a folder's recipes compile is shared with others only if the user named it."""
    cache = choose(environ)
    if cache.shared is None or not home.is_strange:
        return cache
    told = "the recipes are of the working directory; --root . says that they are yours"
    return replace(cache, remote=False, shared=None, unshared=told)


def _shared(wanted: str, environ: Mapping[str, str]) -> Cache:
    """Return ccache with a folder that several machines share."""
    place = wanted.removeprefix("file:")
    if not place.startswith("/"):
        raise UsageError(f"{CHOICE}={wanted}: the folder must begin with /", hint=f"{CHOICE}=file:/FOLDER")
    found = choose({**environ, CHOICE: "ccache"})
    shared = Path("/", place.lstrip("/"))
    if not shared.is_dir():
        raise HostError(f"{CHOICE}={wanted}: there is no folder {shared}", hint="mount it, or mkdir -p it")
    if [*map(int, re.findall(r"\d+", found.version)[:2])] < [4, 7]:
        raise HostError(f"{CHOICE}={wanted} needs ccache 4.7, and this is {found.version}", hint=INSTALL)
    return replace(found, remote=True, shared=shared, reason=f"{CHOICE}={wanted}")


def _installed(
    kind: Literal["ccache", "sccache"], environ: Mapping[str, str], *, remote: bool, reason: str
) -> Cache | None:
    """Return the program on PATH; None where it is missing or does not run."""
    program = shutil.which(kind, path=environ.get("PATH", os.defpath))
    said = capture([program, "--version"], timeout=20) if program else None
    version = re.search(r"\d+(?:\.\d+)+\S*", said or "")
    if program is None or version is None:
        return None
    return Cache(
        kind=kind, program=Path(program).absolute(), version=version[0], remote=remote, reason=reason
    )


def _refusal(found: Cache | None) -> str:
    """Return why this sccache cannot serve a build; "" when it can."""
    if found is None or found.program is None:
        return "sccache is not installed"
    if SOCKET in found.program.read_bytes():
        return ""
    return f"sccache {found.version} cannot listen on a socket that a build without network reaches"


def prepare(
    cache: Cache,
    *,
    folder: Path,
    work: Path | None,
    links: Path,
    search: str,
    environ: Mapping[str, str],
) -> Setup:
    """Make ready for one build.

    folder: the cache of the recipe; work: its work tree, None where all builds see theirs at the same place;
    links: a folder of the build for wrappers and the log; search: the build's PATH without ours.
    """
    log = links / "statistics" / "log"
    log.parent.mkdir(parents=True, exist_ok=True)
    remove_any(log)
    if cache.kind == "ccache" and (why := _unusable(folder)):
        cache = Cache(kind="none", reason=f"cannot write to {folder}: {why}")
    if cache.program is None:
        # Projects that look for ccache themselves would use it with their own rules.
        return Setup(cache=cache, variables={"CCACHE_DISABLE": "1"}, log=log)
    path = write_compiler_wrappers(links, program=cache.program, search=search)
    tools, compilers = path
    launcher = str(tools / "ccache")
    variables = {f"CMAKE_{language}_COMPILER_LAUNCHER": launcher for language in ("C", "CXX", "CUDA")}
    if (compilers / "nvcc").exists():
        variables["PYTORCH_NVCC"] = str(compilers / "nvcc")  # torch's cpp_extension, which takes its path
    if cache.kind == "sccache":
        return Setup(cache=cache, variables=variables, path=path, readable=(cache.program,), log=log)
    variables |= _ccache_variables(folder, work, log, environ)
    writable: tuple[Path, ...] = (folder, log.parent)
    readable: tuple[Path, ...] = (cache.program,)
    if cache.shared is not None:
        fresh = fresh_in(links)
        fresh.mkdir(exist_ok=True)
        # Read there, write here: what others will take waits for the audit (`share`).
        taken = cache.shared / folder.name
        if taken.is_symlink():  # others write there: it could show builds any folder of the user's
            raise HostError("a link is in the place of shared objects", where=str(taken), hint=rm(taken))
        variables["CCACHE_REMOTE_STORAGE"] = f"file:{quote(str(taken))}|read-only file:{quote(str(fresh))}"
        writable, readable = (*writable, fresh), (*readable, taken)
    return Setup(cache=cache, variables=variables, path=path, writable=writable, readable=readable, log=log)


def fresh_in(links: Path) -> Path:
    """Return where a build puts what it compiled, for others, below its folder `links`."""
    return links / "fresh"


def share(cache: Cache, recipe: str, links: Path) -> None:
    """Put what a build compiled into the shared folder, once its result is published.

    Only what ccache names like this; manifests that were read there come back with a line more. Raise OSError
    where the folder takes nothing, HostError for more than one build may hand on.
    """
    if cache.shared is None:
        return
    left = MOST_SHARED
    for path in sorted(fresh_in(links).glob("??/*")):
        name = f"{path.parent.name}/{path.name}"
        # The build could write here: a link may lead anywhere, a file with holes be larger than the disk.
        if not ENTRY.fullmatch(name) or path.parent.is_symlink() or path.is_symlink():
            continue
        left -= path.lstat().st_size
        if left < 0:
            raise HostError(f"this build left more than the {MOST_SHARED >> 30} GiB that one may hand on")
        with (
            open_made(path) as file,
            _folder_in(cache.shared, recipe, path.parent.name) as there,
            replacing(there / path.name, mode=0o644, folder=there, prefix=".new-") as out,
        ):
            shutil.copyfileobj(file, out)


@contextlib.contextmanager
def _folder_in(shared: Path, *parts: str) -> Iterator[Path]:
    """Yield a folder below the shared one, made where it is missing. Raise OSError for a link on the way.

    Others write there, and a link could lead into /etc/cron.d: so it is opened, and named by its descriptor.
    """
    place = os.open(shared, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in parts:
            with contextlib.suppress(FileExistsError):
                os.mkdir(part, dir_fd=place)
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            inner = os.open(part, flags, dir_fd=place)
            os.close(place)
            place = inner
        yield Path(f"/proc/self/fd/{place}")
    finally:
        os.close(place)


def _unusable(folder: Path) -> str:
    """Return why the folder cannot be written to; "" when it can."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return ""
    except OSError as error:
        return error.strerror or str(error)


def _ccache_variables(
    folder: Path, work: Path | None, log: Path, environ: Mapping[str, str]
) -> dict[str, str]:
    relative = {} if work is None else {"CCACHE_BASEDIR": str(work)}
    return relative | {
        "CCACHE_DIR": str(folder),
        # No file of the user's or in the cache, which builds can write, makes it sloppy.
        "CCACHE_CONFIGPATH": os.devnull,
        "CCACHE_NOHASHDIR": "1",  # -ffile-prefix-map takes the path out of the debug information
        "CCACHE_COMPILERCHECK": "content",
        # ccache itself knows that of gcc; nvcc hands it on. What it maps to is the same in every tree.
        "CCACHE_IGNOREOPTIONS": "-Xcompiler=-ffile-prefix-map=*",
        "CCACHE_MAXSIZE": environ.get("CCACHE_MAXSIZE") or MAX_SIZE,
        "CCACHE_STATSLOG": str(log),
    }


@contextlib.contextmanager
def serving(setup: Setup, *, work: Path | None, environ: Mapping[str, str]) -> Iterator[Setup]:
    """Run sccache's server, outside the sandbox, during a build; does nothing for other caches."""
    program = setup.cache.program
    if setup.cache.kind != "sccache" or program is None:
        yield setup
        return
    with tempfile.TemporaryDirectory(prefix="spark-build-") as folder:  # a socket's path must be short
        socket = {"SCCACHE_SERVER_UDS": str(Path(folder, "socket"))}
        # What it knows of headers would name those of another tree, once SCCACHE_BASEDIRS makes both one.
        mine = {**environ, **socket, "SCCACHE_IDLE_TIMEOUT": str(IDLE_SECONDS), "SCCACHE_DIRECT": "false"}
        if work is not None:
            mine["SCCACHE_BASEDIRS"] = str(work)
        if capture([str(program), "--start-server"], env=mine) is None:
            raise HostError(
                "sccache's server does not start: is its remote cache reachable?",
                hint=f"{CHOICE}=ccache builds without it",
            )
        try:
            yield Setup(
                cache=setup.cache,
                variables={**setup.variables, **socket},
                path=setup.path,
                readable=(*setup.readable, Path(folder)),
                log=setup.log,
            )
        finally:
            said = capture([str(program), "--show-stats", "--stats-format=json"], env=mine)
            with contextlib.suppress(OSError):
                setup.log.write_text(said or "")
            capture([str(program), "--stop-server"], env=mine)


def use_of(log: Path) -> CacheUse:
    """Return a build's use of the cache; empty where there is no log."""
    try:
        return parse_statistics(read_made(log, MOST_STATISTICS).decode(errors="replace"))
    except OSError:
        return CacheUse()


MARK = ".spark-build-wrappers"  # a folder with this file holds wrappers, perhaps those of another build
_COMPILER = re.compile(r"((\w+-)*linux-gnu-)?(cc|c\+\+|gcc|g\+\+|clang|clang\+\+)(-\d+(\.\d+)*)?|nvcc")


def write_compiler_wrappers(folder: Path, *, program: Path, search: str) -> tuple[Path, Path]:
    """Write wrappers for the compilers on the PATH `search`; returns folders to prepend, in order."""
    tools, compilers = folder / "tools", folder / "compilers"
    script = render_template("compiler_wrapper.sh", cache=shlex.quote(str(program)), mark=MARK)
    found = {
        path.name
        for place in map(Path, filter(None, search.split(":")))
        if place.is_dir()
        for path in place.iterdir()
        if _COMPILER.fullmatch(path.name) or path.name == "cmake"
    }
    for place, names in (
        (tools, {"ccache", "sccache"} | (found & {"cmake"})),
        (compilers, found - {"cmake"}),
    ):
        place.mkdir(parents=True, exist_ok=True)
        (place / MARK).touch()
        for name in names:
            (place / name).unlink(missing_ok=True)
            (place / name).write_text(script)
            (place / name).chmod(0o755)
    return tools, compilers


HITS = frozenset({"direct_cache_hit", "preprocessed_cache_hit"})
MISSES = frozenset({"cache_miss", "recache"})
# sccache keeps what nvcc runs as entries of their own, beside the whole compilation ("CUDA").
STEPS = frozenset({"CUDA (Device code)", "PTX", "CUBIN"})


@dataclass(frozen=True, kw_only=True, slots=True)
class CacheUse:
    """Compilations of one build that a cache can keep, by their result."""

    hits: int = 0
    misses: int = 0

    @property
    def total(self) -> int:
        """Number of compilations."""
        return self.hits + self.misses

    @property
    def rate(self) -> float | None:
        """Share that came from the cache; None when nothing was compiled."""
        return self.hits / self.total if self.total else None

    def __str__(self) -> str:
        """Return a summary; 100% and 0% are printed only when exact."""
        if self.rate is None:
            return "nothing that the cache keeps was compiled"
        percent = 100 if self.hits == self.total else min(round(100 * self.rate), 99)
        percent = max(percent, 1) if self.hits else 0
        word = "compilation" if self.total == 1 else "compilations"
        return f"{self.hits} of {self.total} {word} from the cache ({percent}%)"


def parse_statistics(text: str) -> CacheUse:
    """Parse either tool's statistics; never fails, because they must not end a good build."""
    return _sccache(text) if text.lstrip().startswith("{") else _ccache(text)


def _ccache(text: str) -> CacheUse:
    """Return ccache's results: each call has its counters, one a line, below a line with its source."""
    counters = [line.strip() for line in text.splitlines()]
    return CacheUse(
        hits=sum(counter in HITS for counter in counters),
        misses=sum(counter in MISSES for counter in counters),
    )


def _sccache(text: str) -> CacheUse:
    """Return the results of `sccache --show-stats --stats-format=json`; its server served this build only."""
    try:
        stats = json.loads(text)["stats"]
        return CacheUse(
            hits=_sum(stats["cache_hits"]["counts"]), misses=_sum(stats["cache_misses"]["counts"])
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return CacheUse()


def _sum(counts: Mapping[str, Any]) -> int:
    return sum(max(0, int(number)) for name, number in counts.items() if name not in STEPS)
