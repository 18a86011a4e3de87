"""The cage that a build's commands run in: no network, nothing to write but the work tree.

bubblewrap gives all of it, and shows the work tree and the needs' prefixes at fixed places as well: the
same bytes and cache hits wherever a checkout lies. Their real paths stay, too, because the scripts of the
build environment name their interpreter by it. unshare closes the network only. Where neither works,
builds run as they are, and provenance.json says so.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import pwd
import re
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from spark_build.errors import HostError
from spark_build.process import Completed, capture

Kind = Literal["bubblewrap", "unshare", "none"]
MOST_LINKS = 40  # on the way to one file; the kernel gives up there, too
# Replaced by an empty read-only folder, but for what a build needs of it. /run: sockets of daemons
# that would do for a build what it may not (docker, D-Bus).
EMPTY = ("/home", "/root", "/run")
SCRATCH = ("/tmp", "/var/tmp")  # noqa: S108 - empty and private inside, for tools that ignore TMPDIR
SYSTEM = ("/bin", "/dev", "/etc", "/lib", "/lib64", "/proc", "/sbin", "/sys", "/usr")
# --cap-drop: root would keep all capabilities, and with them the power to remount.
PLACE = Path("/run/spark-build")  # in the empty /run of the cage: fixed, and free of spaces
CAGE = ("--unshare-all", "--die-with-parent", "--cap-drop", "ALL")
BASE = ("--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc")


@dataclass(frozen=True, kw_only=True, slots=True)
class Sandbox:
    """What works here. reason: why nothing stronger does; program: the command with its first options."""

    kind: Kind
    program: tuple[str, ...] = ()
    reason: str = ""

    @property
    def limits(self) -> str:
        """What it does not close, and why; empty for bubblewrap."""
        if self.kind == "bubblewrap":
            return ""
        left = "the file system is" if self.kind == "unshare" else "network and file system are"
        return f"{left} open to builds: {self.reason}"

    def mark(self, *, network: bool) -> dict[str, str | bool]:
        """For the provenance: the kind in force, and whether the build could use the network."""
        kind = "none" if self.kind == "unshare" and network else self.kind
        return {"kind": kind, "network": network or kind == "none"}


@functools.cache
def choose() -> Sandbox:
    """The strongest that really runs a command here; tried once per process (5 ms)."""
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        reason = "bubblewrap is not installed"
    else:
        reason = _refusal([bwrap, *CAGE, *BASE])
        if not reason:
            return Sandbox(kind="bubblewrap", program=(bwrap, *CAGE))
    unshare = shutil.which("unshare")
    if unshare is not None:
        # Without a map of its own only root may.
        for program in ((unshare, "--net", "--map-root-user"), (unshare, "--net")):
            if not _refusal(program):
                return Sandbox(kind="unshare", program=program, reason=reason)
    return Sandbox(kind="none", reason=reason)


def place_of(sandbox: Sandbox, name: str, real: Path) -> Path:
    """Where a build sees a folder of ours that is passed to `wrap` as `placed`."""
    return PLACE / name if sandbox.kind == "bubblewrap" else real


_told: set[str] = set()


def warning(sandbox: Sandbox) -> str:
    """What a user should know before a build, once per process; empty when there is nothing to say."""
    if not sandbox.limits or sandbox.kind in _told:
        return ""
    _told.add(sandbox.kind)
    return f"warning: no full sandbox: {sandbox.limits} (`spark-build doctor` says how to mend it)"


def _refusal(program: Sequence[str]) -> str:
    """Why `program` cannot run a command; empty when it can."""
    said = capture(["sh", "-c", '"$@" 2>&1', "sh", *program, "true"], timeout=20, check=False)
    return "it does not end" if said is None else said.strip().partition("\n")[0]


def wrap(
    sandbox: Sandbox,
    command: Sequence[str],
    *,
    work: Path,
    writable: Sequence[Path] = (),
    readable: Sequence[Path] = (),
    placed: Mapping[Path, Path] | None = None,
    cwd: Path,
    network: bool = False,
) -> list[str]:
    """The command line that runs `command` inside.

    writable, readable: beyond `work` and the system, with the links on the way to them. The files
    that the command names and the base of our interpreter need not be given. placed: real folder ->
    where it is shown as well (`place_of`); only what is in `work` can be written there.
    """
    if sandbox.kind == "none" or (sandbox.kind == "unshare" and network):
        return list(command)
    if sandbox.kind == "unshare":
        return [*sandbox.program, *command]
    named, exchange = _named(command)
    resolver = [Path("/etc/resolv.conf")] if network else []
    view = _view(
        [work, *writable, *exchange],
        [*readable, *named, *resolver, Path(sys.base_prefix), Path(sys.base_exec_prefix)],
        {real: place for real, place in (placed or {}).items() if place != real},
        work,
    )
    shared = ["--share-net"] if network else []
    return [*sandbox.program, *shared, *BASE, *view, "--chdir", str(cwd), "--", *command]


def refuse_unstarted(done: Completed) -> None:
    """HostError when a sandbox could not be set up for a command, or the program is not there."""
    last = done.output.rpartition("\n")[2]
    if done.returncode not in (1, 126, 127) or Path(done.args[0]).name not in ("bwrap", "unshare"):
        return
    missing = re.fullmatch(r"(?:bwrap: execvp|unshare: failed to execute) (.*): (.*)", last)
    if missing:
        program, why = missing.groups()
        why = "it is not installed" if why == os.strerror(errno.ENOENT) else why
        raise HostError(f"cannot run {program}: {why}", hint="spark-build doctor")
    if last.startswith("bwrap: "):
        raise HostError(f"cannot set up the sandbox: {last}", hint="spark-build doctor")


def _named(command: Sequence[str]) -> tuple[list[Path], list[Path]]:
    """Existing files that the command names, and the folder that a build hook answers through.

    pyproject-hooks makes that folder among our own temporary files; it is the last word.
    """
    files = [Path(word) for word in command if word.startswith("/") and Path(word).is_file()]
    is_hook = len(command) > 2 and Path(command[1]).name == "_in_process.py"
    last = Path(command[-1])
    return files, [last] if is_hook and last.is_dir() else []


def _view(
    writable: Iterable[Path], readable: Iterable[Path], placed: Mapping[Path, Path], work: Path
) -> list[str]:
    """Options that hide what is private and put back what is needed, outer folders first."""
    hidden = _hidden()
    links: dict[Path, str] = {}
    binds: dict[Path, str] = {}
    wanted = [*((path, "--ro-bind") for path in readable), *((path, "--bind") for path in writable)]
    for path, option in wanted:
        passed, real = _way(path)
        links |= {link: str(link.readlink()) for link in passed if _inside(link, hidden)}
        if real.exists() and (option == "--bind" or _inside(real, hidden)):
            binds[real] = option
    found = ["--tmpfs", ""] * len(hidden)
    found[1::2] = map(str, hidden)
    for path, option in sorted(binds.items()):
        if not (option == "--ro-bind" and _inside(path, [one for one in binds if one != path])):
            found += [option, str(path), str(path)]
    for link, target in sorted(links.items()):
        if not _inside(link, binds):
            found += ["--symlink", target, str(link)]
    for real, place in placed.items():
        found += ["--bind" if real.is_relative_to(work) else "--ro-bind", str(real), str(place)]
    closed = [folder for folder in hidden if folder not in binds and str(folder) not in SCRATCH]
    return [*found, *(word for folder in closed for word in ("--remount-ro", str(folder)))]


def _hidden() -> list[Path]:
    """Existing folders that are empty inside, without those below another of them."""
    homes = [os.environ.get("HOME", "")]
    with contextlib.suppress(KeyError):  # a user that only has a number
        homes.append(pwd.getpwuid(os.getuid()).pw_dir)
    wanted = {Path(os.path.realpath(one)) for one in (*EMPTY, *SCRATCH, *homes) if one.startswith("/")}
    usable = {
        path
        for path in wanted
        if path.is_dir() and path != Path("/") and not _inside(path, map(Path, SYSTEM))
    }
    return sorted(path for path in usable if not _inside(path, usable - {path}))


def _inside(path: Path, folders: Iterable[Path]) -> bool:
    """Whether `path` is one of the folders or lies below one."""
    return any(path.is_relative_to(folder) for folder in folders)


def _way(path: Path) -> tuple[list[Path], Path]:
    """The symbolic links on the way to `path`, and where it really lies."""
    links: list[Path] = []
    here = Path("/")
    ahead = list(reversed(path.absolute().parts[1:]))
    while ahead and len(links) <= MOST_LINKS:
        part = ahead.pop()
        here = here.parent if part == ".." else here / part
        if here.is_symlink():
            links.append(here)
            target = here.readlink()
            ahead += reversed(target.parts[1:] if target.is_absolute() else target.parts)
            here = Path("/") if target.is_absolute() else here.parent
    return links, here
