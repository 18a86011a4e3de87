"""The compiler cache of a build: ccache, or sccache where a shared remote cache is configured.

ccache runs inside the sandbox and writes to one folder of this machine. Its entries hold for any work tree:
the sandbox shows all of them at one place. Where it cannot, paths below the tree are made relative
(CCACHE_BASEDIR), and then __FILE__ says ../a.cpp where it said /build/src/a.cpp. Compilers
count by their content, flags and headers by ccache's own rules, CUDA by ours (wrappers.py). A build
can write what a later one reads: the cache is as trustworthy as the sources that were built with it.

sccache compiles in a server, which must reach the remote cache and therefore runs outside the sandbox: a
build may ask it to run anything. The server of a build listens on a socket in the file system, which
works without a network, and ends with the build.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from spark_build.build import cachestats, wrappers
from spark_build.build.cachestats import CacheUse
from spark_build.errors import HostError, UsageError
from spark_build.process import capture

Kind = Literal["ccache", "sccache", "none"]
CHOICE = "SPARK_BUILD_CACHE"
MAX_SIZE = "20G"
# Any of these makes sccache use a remote cache.
REMOTES = (
    "SCCACHE_AZURE_CONNECTION_STRING",
    "SCCACHE_BUCKET",
    "SCCACHE_COS_BUCKET",
    "SCCACHE_GCS_BUCKET",
    "SCCACHE_GHA_ENABLED",
    "SCCACHE_MEMCACHED",
    "SCCACHE_MEMCACHED_ENDPOINT",
    "SCCACHE_OSS_BUCKET",
    "SCCACHE_REDIS",
    "SCCACHE_REDIS_CLUSTER_ENDPOINTS",
    "SCCACHE_REDIS_ENDPOINT",
    "SCCACHE_WEBDAV_ENDPOINT",
)
OFF = ("", "0", "false", "no", "off")
SOCKET = b"SCCACHE_SERVER_UDS"  # versions that know the variable have its name in them
IDLE_SECONDS = 7200  # longer than any link step; ends a server whose build was killed
INSTALL = "apt-get install ccache"


@dataclass(frozen=True, kw_only=True, slots=True)
class Cache:
    """Which cache builds use. reason: why this one, for a person."""

    kind: Kind
    program: Path | None = None
    version: str = ""
    remote: bool = False
    reason: str = ""

    @property
    def marks(self) -> dict[str, str | bool]:
        """For the provenance."""
        outside = self.kind == "sccache"
        return {
            "kind": self.kind,
            "version": self.version,
            "remote": self.remote,
            "compiles_outside_sandbox": outside,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Setup:
    """What one build needs to use the cache; `cache` may have become none, with the reason."""

    cache: Cache
    variables: Mapping[str, str] = field(default_factory=dict)
    path: tuple[Path, ...] = ()  # to stand before the build's PATH
    writable: tuple[Path, ...] = ()
    readable: tuple[Path, ...] = ()
    log: Path  # for use_of


def choose(environ: Mapping[str, str]) -> Cache:
    """By SPARK_BUILD_CACHE; else sccache where its own variables name a remote; else ccache; else none."""
    wanted = environ.get(CHOICE, "")
    remote = any(environ.get(name, "").lower() not in OFF for name in REMOTES)
    if wanted == "none":
        return Cache(kind="none", reason=f"{CHOICE}=none")
    if wanted not in ("", "ccache", "sccache"):
        raise UsageError(f"{CHOICE}={wanted}: there is no such cache", hint="none, ccache or sccache")
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


def _installed(
    kind: Literal["ccache", "sccache"], environ: Mapping[str, str], *, remote: bool, reason: str
) -> Cache | None:
    """The program on PATH; None where it is not there or does not run."""
    program = shutil.which(kind, path=environ.get("PATH", os.defpath))
    said = capture([program, "--version"], timeout=20) if program else None
    version = re.search(r"\d+(?:\.\d+)+\S*", said or "")
    if program is None or version is None:
        return None
    return Cache(
        kind=kind, program=Path(program).absolute(), version=version[0], remote=remote, reason=reason
    )


def _refusal(found: Cache | None) -> str:
    """Why this sccache cannot serve a build; empty when it can."""
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
    """Make ready for one build. folder: the cache's own, shared by all builds; work: its work tree, None
    where all builds see theirs at the same place; links: a folder of the build for wrappers and the log;
    search: the build's PATH without ours."""
    log = links / "stats"
    log.unlink(missing_ok=True)
    if cache.kind == "ccache" and (why := _unusable(folder)):
        cache = Cache(kind="none", reason=f"cannot write to {folder}: {why}")
    if cache.program is None:
        # Projects that look for ccache themselves would use it with their own rules.
        return Setup(cache=cache, variables={"CCACHE_DISABLE": "1"}, log=log)
    path = wrappers.write(links, program=cache.program, search=search)
    tools, compilers = path
    launcher = str(tools / "ccache")
    variables = {f"CMAKE_{language}_COMPILER_LAUNCHER": launcher for language in ("C", "CXX", "CUDA")}
    if (compilers / "nvcc").exists():
        variables["PYTORCH_NVCC"] = str(compilers / "nvcc")  # torch's cpp_extension, which takes its path
    if cache.kind == "sccache":
        return Setup(cache=cache, variables=variables, path=path, readable=(cache.program,), log=log)
    variables |= _ccache_variables(folder, work, log, environ)
    return Setup(
        cache=cache,
        variables=variables,
        path=path,
        writable=(folder,),
        readable=(cache.program,),
        log=log,
    )


def _unusable(folder: Path) -> str:
    """Why nothing can be written there; empty when it can."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
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
    """For the time of a build: with sccache its server, outside the sandbox; else nothing more."""
    program = setup.cache.program
    if setup.cache.kind != "sccache" or program is None:
        yield setup
        return
    with tempfile.TemporaryDirectory(prefix="spark-build-") as folder:  # a socket's path must be short
        socket = {"SCCACHE_SERVER_UDS": str(Path(folder, "socket"))}
        mine = {**environ, **socket, "SCCACHE_IDLE_TIMEOUT": str(IDLE_SECONDS)}
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
    """What the build took from the cache; nothing where there is no log."""
    try:
        return cachestats.parse(log.read_text(errors="replace"))
    except OSError:
        return CacheUse()
