"""The sandbox that a build's commands run in: no network, and only the files that a build needs.

bubblewrap gives all of it: an empty file system that gets the system's programs and libraries, the needs and
the work tree, which alone can be written, in part. The work tree and the needs' prefixes are shown at fixed
places as well: the same bytes and cache hits wherever a checkout lies. Their real paths stay, too, because
the scripts of the build environment name their interpreter by it. A filter refuses system calls that no
build needs. unshare closes the network only. Where neither works, builds run as they are, and provenance.json
says so.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import re
import shutil
import stat
import struct
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from spark_build.errors import HostError, ours
from spark_build.process import Completed, capture

Kind = Literal["bubblewrap", "unshare", "none"]
MOST_LINKS = 40  # on the way to one file; the kernel gives up there, too
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
# Of /etc, what compilers, interpreters and the C library read; nothing that only root may.
ETC = (
    "alternatives", "ca-certificates", "ca-certificates.conf", "crypto-policies", "debian_version", "group",
    "host.conf", "hosts", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "magic", "mime.types",
    "nsswitch.conf", "os-release", "passwd", "perl", "pki/ca-trust", "pki/tls/cert.pem", "pki/tls/certs",
    "pki/tls/openssl.cnf", "protocols", "redhat-release", "services", "ssl/cert.pem", "ssl/certs",
    "ssl/openssl.cnf", "timezone",
)  # fmt: skip
CPUS = "/sys/devices/system"  # how many processors there are
SCRATCH = ("/tmp", "/var/tmp")  # noqa: S108 - empty and private inside, for tools that ignore TMPDIR
# Folders that the user allows builds to read beyond that, as in PATH: compilers in /sw, say.
ALLOWED = "SPARK_BUILD_SANDBOX_READ"
PLACE = Path("/run/spark-build")  # fixed, and free of spaces
# --cap-drop: root would keep all capabilities, and with them the power to remount.
# --clearenv: what the recipe sets is for the build's commands; bwrap itself would load its LD_PRELOAD.
CAGE = ("--unshare-all", "--die-with-parent", "--cap-drop", "ALL", "--clearenv")

# The filter: numbers of system calls on x86-64 and aarch64, whose audit numbers these are.
MACHINES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
# The keyring is the session's, whatever namespace asks; behind the others were many of the kernel's holes.
DENIED = {
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219), "bpf": (321, 280),
    "perf_event_open": (298, 241), "userfaultfd": (323, 282), "io_uring_setup": (425, 425),
}  # fmt: skip
CLONE, UNSHARE, CLONE3, IOCTL = (56, 220), (272, 97), (435, 435), (16, 29)
NEW_USER = 0x10000000  # CLONE_NEWUSER: in a user namespace of its own a build would have all capabilities
TYPING = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX: typing into the terminal that `build --shell` shares
OTHER_ABI = 0x40000000  # a bit of x32's numbers
# Classic BPF: load from struct seccomp_data, jump if equal or if a bit is set; answer EPERM, ENOSYS, allow.
LOAD, EQUAL, ANY_BIT = 0x20, 0x15, 0x45
NUMBER, ARCH, FIRST, SECOND = 0, 4, 16, 24  # of arguments the lower half, as the kernel reads them here
REFUSED, MISSING, PASSED = (6, 0, 0, 0x50000 | 1), (6, 0, 0, 0x50000 | 38), (6, 0, 0, 0x7FFF0000)
# bwrap takes a filter as an open descriptor only. Compilers that crash leave no core; wheels hold modes.
FILTERED = 'ulimit -c 0; umask 022; exec {filter}<"$0" && exec "$1" --seccomp $filter "${@:2}"'


@dataclass(frozen=True, kw_only=True, slots=True)
class Sandbox:
    """A sandbox that works here; `reason`: why none is stronger; `program`: its command and first options."""

    kind: Kind
    program: tuple[str, ...] = ()
    reason: str = ""

    @property
    def limits(self) -> str:
        """Accesses that it does not block, and why; "" for bubblewrap."""
        if self.kind == "bubblewrap":
            return ""
        left = "the file system is" if self.kind == "unshare" else "network and file system are"
        return f"{left} open to builds: {self.reason}"

    def mark(self, *, network: bool) -> dict[str, str | bool]:
        """For the provenance: the kind in force, which files and whether the network a build could reach."""
        kind = "none" if self.kind == "unshare" and network else self.kind
        files = "allow-list" if self.kind == "bubblewrap" else "all"
        return {"kind": kind, "files": files, "network": network or kind == "none"}


@functools.cache
def choose() -> Sandbox:
    """Return the strongest sandbox that runs a command here; tried once per process (5 ms)."""
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        reason = "bubblewrap is not installed"
    else:
        for filtering in (_filtering(), ()):
            reason = _refusal([*filtering, bwrap, *CAGE, *_system()])
            if not reason:
                return Sandbox(kind="bubblewrap", program=(*filtering, bwrap, *CAGE))
    unshare = shutil.which("unshare")
    if unshare is not None:
        # Without a map of its own only root may.
        for program in ((unshare, "--net", "--map-root-user"), (unshare, "--net")):
            if not _refusal(program):
                return Sandbox(kind="unshare", program=program, reason=reason)
    return Sandbox(kind="none", reason=reason)


def _filtering() -> tuple[str, ...]:
    """Return the words before bwrap that give it the filter; none where it has none for this machine."""
    program, bash = syscall_filter(os.uname().machine), shutil.which("bash")
    if not program or bash is None:
        return ()
    return (bash, "-c", FILTERED, f"/proc/{os.getpid()}/fd/{_file_in_memory(program)}")


@functools.cache
def _file_in_memory(content: bytes) -> int:
    """Return the descriptor of a file that lives as long as this process, for all that it starts."""
    file = os.memfd_create("syscalls")
    os.write(file, content)
    return file


def syscall_filter(machine: str) -> bytes:
    """Return the seccomp filter of a build as the kernel reads it, classic BPF; b"" for an unknown machine.

    Refused calls fail with EPERM. Those of another architecture (32-bit, x32) and clone3, whose flags no
    filter can see, fail as on a kernel without them: the C library then takes clone.
    """
    if machine not in MACHINES:
        return b""
    steps = [(LOAD, 0, 0, ARCH)]
    # Of both machines: under qemu-user all calls are those of the kernel's machine, which it does not show.
    for column, arch in enumerate(MACHINES.values()):
        decisions = _decisions(column)
        steps += [(EQUAL, 0, len(decisions), arch), *decisions]
    return b"".join(struct.pack("=HBBI", *step) for step in [*steps, MISSING])


def _decisions(column: int) -> list[tuple[int, int, int, int]]:
    """Return the steps that answer each call of one machine; none of them leads behind the last one."""
    steps = [(LOAD, 0, 0, NUMBER), (ANY_BIT, 0, 1, OTHER_ABI), MISSING]
    steps += [(EQUAL, 0, 1, CLONE3[column]), MISSING]
    for one in DENIED.values():
        steps += [(EQUAL, 0, 1, one[column]), REFUSED]
    for one in (CLONE, UNSHARE):
        steps += [(EQUAL, 0, 4, one[column]), (LOAD, 0, 0, FIRST), (ANY_BIT, 0, 1, NEW_USER), REFUSED, PASSED]
    steps += [(EQUAL, 0, 4, IOCTL[column]), (LOAD, 0, 0, SECOND)]
    return [*steps, (EQUAL, 1, 0, TYPING[0]), (EQUAL, 0, 1, TYPING[1]), REFUSED, PASSED]


def place_of(sandbox: Sandbox, name: str, real: Path) -> Path:
    """Return where a build sees a folder that `wrap` gets in `placed`."""
    return PLACE / name if sandbox.kind == "bubblewrap" else real


_told: set[str] = set()


def warning(sandbox: Sandbox) -> str:
    """Return a warning for the user, once per process; "" when there is none."""
    if not sandbox.limits or sandbox.kind in _told:
        return ""
    _told.add(sandbox.kind)
    return f"warning: no full sandbox: {sandbox.limits} (`doctor` says how to mend it)"


def _refusal(program: Sequence[str]) -> str:
    """Return why `program` cannot run a command; "" when it can."""
    # What a filter kills says nothing; the shell does.
    asking = 'exec 2>&1; "$@" || echo "exit status $?"'
    said = capture(["sh", "-c", asking, "sh", *program, "true"], timeout=60)
    return "it does not end" if said is None else said.strip().partition("\n")[0]


def wrap(  # noqa: PLR0913 - what a sandbox lets in, by name
    sandbox: Sandbox,
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    writable: Sequence[Path] = (),
    readable: Sequence[Path] = (),
    placed: Mapping[Path, Path] | None = None,
    cwd: Path,
    network: bool = False,
) -> list[str]:
    """Return the command line that runs `command` inside.

    writable, readable: beyond the system, with the links on the way to them; what does not exist is left
    out. The program, its script and the base of our interpreter need not be given. placed: real
    folder -> where it is shown as well (`place_of`), with the writable folders below it.
    """
    variables = {"PATH": os.defpath, **env}
    if sandbox.kind != "bubblewrap":
        program = () if sandbox.kind == "none" or network else sandbox.program
        setting = [f"{name}={value}" for name, value in variables.items()]
        return [*program, "/usr/bin/env", "-i", *setting, *command]
    named, exchange = _named(command)
    resolver = [Path("/etc/resolv.conf")] if network else []
    allowed = [Path(one) for one in os.environ.get(ALLOWED, "").split(":") if one.startswith("/")]
    view = _view(
        [*writable, *exchange],
        [*readable, *named, *resolver, *allowed, Path(sys.base_prefix), Path(sys.base_exec_prefix)],
        {real: place for real, place in (placed or {}).items() if place != real},
    )
    shared = ["--share-net"] if network else []
    setting = [word for name, value in variables.items() for word in ("--setenv", name, value)]
    inside = ["--chdir", str(cwd), "--", *command]
    return [*sandbox.program, *shared, *_system(), *view, "--remount-ro", "/", *setting, *inside]


def refuse_unstarted(done: Completed) -> None:
    """Raise HostError when a sandbox could not be set up for a command, or the program is not there."""
    last = done.output.rpartition("\n")[2]
    programs = ("bash", "bwrap", "unshare", "env")
    if done.returncode not in (1, 126, 127) or Path(done.args[0]).name not in programs:
        return
    missing = re.fullmatch(r"(?:bwrap: execvp |/usr/bin/env: \W)(.*?)\W?: (.*)", last)
    if missing:
        program, why = missing.groups()
        why = "it is not installed" if why == os.strerror(errno.ENOENT) else why
        raise HostError(f"cannot run {program}: {why}", hint=ours("doctor"))
    if last.startswith("bwrap: "):
        raise HostError(f"cannot set up the sandbox: {last}", hint=ours("doctor"))


def _named(command: Sequence[str]) -> tuple[list[Path], list[Path]]:
    """Return the program with its script, and the folder for a build hook's answers.

    pyproject-hooks makes that folder among our own temporary files; it is the last word.
    """
    files = [Path(word) for word in command[:2] if word.startswith("/") and Path(word).is_file()]
    is_hook = len(command) > 2 and Path(command[1]).name == "_in_process.py"
    last = Path(command[-1])
    return files, [last] if is_hook and last.is_dir() else []


@functools.cache
def _system() -> tuple[str, ...]:
    """Return options that show the system in an empty file system."""
    found = ["--dev", "/dev", "--proc", "/proc"]
    for name in SYSTEM:
        path = Path(name)
        if path.is_symlink():  # /bin -> usr/bin
            found += ["--symlink", str(path.readlink()), name]
        elif path.is_dir():
            found += ["--ro-bind", name, name]
    versions = [path.name for path in Path("/etc").glob("python3*")]  # Debian's sitecustomize.py
    for name in (*(f"/etc/{one}" for one in (*ETC, *versions)), CPUS):
        if Path(name).exists():
            found += ["--ro-bind", name, name]
    return (*found, *(word for name in SCRATCH for word in ("--tmpfs", name)))


def _view(writable: Iterable[Path], readable: Iterable[Path], placed: Mapping[Path, Path]) -> list[str]:
    """Return options that show what is needed beside the system, outer folders first."""
    seen = [path for path in map(Path, (*SYSTEM, "/etc/alternatives")) if not path.is_symlink()]
    links: dict[Path, str] = {}
    binds: dict[Path, str] = {}
    wanted = [*((path, "--ro-bind") for path in readable), *((path, "--bind") for path in writable)]
    for path, option in wanted:
        passed, real = _way(path)
        links |= {link: str(link.readlink()) for link in passed if not _inside(link, seen)}
        if real.exists() and (option == "--bind" or not _inside(real, seen)):
            binds[real] = option
    found: list[str] = []
    for path, option in sorted(binds.items()):
        if not (option == "--ro-bind" and _inside(path, [one for one in binds if one != path])):
            found += [option, str(path), str(path)]
    for link, target in sorted(links.items()):
        if not _inside(link, binds) and str(link) not in SYSTEM:
            found += ["--symlink", target, str(link)]
    for real, place in placed.items():
        found += ["--ro-bind", str(real), str(place)]
        for path in writable:
            if path.is_relative_to(real) and path.exists():
                found += ["--bind", str(path), str(place / path.relative_to(real))]
    return found


def clear_privileges(folders: Iterable[Path]) -> None:
    """Take the set-user-ID and set-group-ID bits from all files below; outside they would count."""
    for top in folders:
        for folder, inner, names in os.walk(top):
            for path in (Path(folder, name) for name in (*inner, *names)):
                # Another build may use the same compiler cache, and remove files there meanwhile.
                with contextlib.suppress(FileNotFoundError):
                    mode = path.lstat().st_mode
                    if stat.S_ISREG(mode) and mode & (stat.S_ISUID | stat.S_ISGID):
                        path.chmod(stat.S_IMODE(mode) & 0o777)
                    if stat.S_ISDIR(mode) and mode & 0o700 != 0o700:  # hidden from the walk, not from others
                        path.chmod(0o700)


def _inside(path: Path, folders: Iterable[Path]) -> bool:
    """Return whether `path` is one of the folders or lies below one."""
    return any(path.is_relative_to(folder) for folder in folders)


def _way(path: Path) -> tuple[list[Path], Path]:
    """Return the symbolic links on the way to `path`, and its real location."""
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
