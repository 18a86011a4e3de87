"""Read files, commands and NVML of a machine, or of a copy of one."""

from __future__ import annotations

import functools
import json
import locale
import os
import platform
import re
import shlex
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import spark_build
from spark_build import probe
from spark_build.build import compiler_cache, sandbox
from spark_build.build.compiler_cache import Cache
from spark_build.build.sandbox import Sandbox
from spark_build.doctor.model import install_line
from spark_build.errors import HostError
from spark_build.paths import Home
from spark_build.probe import has_python_headers, package_versions
from spark_build.process import capture, run
from spark_build.resources import memory

TIMEOUT = 10.0  # seconds for one command; nvidia-smi hangs on a driver that is broken


class MachineAccess:
    """Read access to this machine; tests use one to a copy in files."""

    def __init__(self) -> None:
        self.root = Path("/")
        self.environ: Mapping[str, str] = os.environ
        self.uid = os.geteuid()
        self.python = platform.python_version()

    def read(self, path: str) -> str:
        """Return the text of a file; "" when it cannot be read."""
        try:
            return (self.root / path.lstrip("/")).read_text(errors="replace")
        except OSError:
            return ""

    def head(self, path: str) -> bytes:
        """Return the first 64 bytes of a file; b"" when it cannot be read."""
        try:
            with (self.root / path.lstrip("/")).open("rb") as file:
                return file.read(64)
        except OSError:
            return b""

    def exists(self, path: str) -> bool:
        """Return whether the file or folder exists."""
        return (self.root / path.lstrip("/")).exists()

    def glob(self, pattern: str) -> list[str]:
        """Return the absolute paths that match, sorted."""
        return sorted("/" + str(path.relative_to(self.root)) for path in self.root.glob(pattern.lstrip("/")))

    def real(self, path: str) -> str:
        """Return the path without symbolic links."""
        found = (self.root / path.lstrip("/")).resolve()
        return "/" + str(found.relative_to(self.root.resolve()))

    def which_all(self, program: str, search: str) -> list[str]:
        """Return the programs of that name on a PATH, in its order."""
        found = [f"{folder.rstrip('/')}/{program}" for folder in search.split(":") if folder.startswith("/")]
        return [path for path in dict.fromkeys(found) if self._runs(path)]

    def _runs(self, path: str) -> bool:
        return os.access(self.root / path.lstrip("/"), os.X_OK)

    def ask(self, args: Sequence[str], *, check: bool = True) -> str | None:
        """Return a command's output; None when it is missing, hangs or (`check`) fails."""
        return capture(args, env={**self.environ, "LC_ALL": "C"}, timeout=TIMEOUT, check=check)

    def sandbox(self) -> Sandbox:
        """Return the strongest sandbox that works."""
        return sandbox.choose()

    def cache(self, home: Home) -> Cache:
        """Return the compiler cache that builds of this home would use."""
        return compiler_cache.chosen_for(home, self.environ)

    def missing_packages(self, names: Sequence[str]) -> tuple[str, ...]:
        """Return those of these system packages that are missing."""
        return missing_packages(names)

    def python_headers(self) -> bool:
        """Return whether C extensions can be compiled."""
        return probe.has_python_headers()

    def free_mib(self, folder: Path) -> int:
        """Return the free space on the folder's disk, in MiB."""
        return shutil.disk_usage(folder).free >> 20

    def now(self) -> float:
        """Return the time of day in seconds since 1970."""
        return time.time()

    def installed(self) -> float:
        """Return the time when our own files were written."""
        return Path(spark_build.__file__).stat().st_mtime

    def encoding(self) -> str:
        """Return the encoding of text files and file names."""
        return locale.getencoding()

    @functools.cached_property
    def locale_usable(self) -> bool:
        """Return whether the locale that the environment names is installed."""
        before = locale.setlocale(locale.LC_CTYPE)
        try:
            locale.setlocale(locale.LC_CTYPE, "")
        except locale.Error:
            return False
        finally:
            locale.setlocale(locale.LC_CTYPE, before)
        return True

    def largest_users(self) -> tuple[tuple[str, int], ...]:
        """Return the processes with most memory, in MiB."""
        return tuple(memory.largest_users())

    def rdma(self) -> bool | None:
        """Return whether the driver offers GPUDirect RDMA for the first GPU; None when it cannot be asked."""
        said = self.ask([sys.executable, "-I", "-S", "-c", RDMA])
        return {"0": False, "1": True}.get((said or "").strip())


# In a process of its own: the driver stays loaded in the one that asks.
# 116: CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED in cuda.h.
RDMA = """
import ctypes
cuda, device, answer = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(), ctypes.c_int()
failed = cuda.cuInit(0) or cuda.cuDeviceGet(ctypes.byref(device), 0)
failed = failed or cuda.cuDeviceGetAttribute(ctypes.byref(answer), 116, device)
print("" if failed else answer.value)
"""


def missing_packages(packages: Sequence[str]) -> tuple[str, ...]:
    """Return those of these Debian packages that are not installed and really missing.

    python3-dev counts only when the interpreter in use has no headers: one from pyenv, uv or conda
    brings its own.
    """
    wanted = [name for name in packages if name != "python3-dev" or not has_python_headers()]
    if shutil.which("dpkg-query") is None:
        return ()
    have = package_versions(wanted)
    return tuple(name for name in wanted if name not in have)


def can_install() -> bool:
    """Return whether packages can be installed without asking for a password."""
    return shutil.which("apt-get") is not None and (
        os.geteuid() == 0 or capture(["sudo", "-n", "true"], timeout=10) is not None
    )


def apt_install(packages: Sequence[str]) -> None:
    """Install through apt. Raises HostError with the command to type where that is not allowed or fails."""
    hint = install_line(packages)
    if not can_install():
        raise HostError(f"missing system packages: {', '.join(packages)}", hint=hint)
    prefix = [] if os.geteuid() == 0 else ["sudo", "-n"]
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for arguments in (["update"], ["install", "-y", "--no-install-recommends", "--", *packages]):
        done = run([*prefix, "apt-get", "-q", *arguments], env=environment)
        if done.returncode != 0 and arguments[0] == "install":
            last = next((line for line in done.output.splitlines() if line.startswith("E:")), "see apt-get")
            raise HostError(f"cannot install {', '.join(packages)}: {last}", hint=hint)
    # What was installed may be what the sandbox was missing.
    sandbox.choose.cache_clear()


ELF_MACHINES = {62: "linux-x86_64", 183: "linux-aarch64"}
_NUMBER = r"\d+(?:\.\d+)+"


def shell_values(text: str) -> dict[str, str]:
    """Return the NAME="value" lines of a file such as /etc/os-release."""
    found = {}
    for line in text.splitlines():
        name, equals, value = line.strip().partition("=")
        if not equals or not name.isidentifier():
            continue
        try:
            found[name] = " ".join(shlex.split(value))
        except ValueError:  # a quote that is not closed
            found[name] = value
    return found


def meminfo(text: str) -> dict[str, int]:
    """Return /proc/meminfo in MiB."""
    rows = re.findall(r"^(\S+):\s+(\d+) kB", text, re.MULTILINE)
    return {name: int(kib) // 1024 for name, kib in rows}


def pressure(text: str) -> dict[str, float] | None:
    """Return averages over 10 s of /proc/pressure/*, in per cent; None when the kernel has none."""
    rows = re.findall(r"^(some|full) avg10=(\d+(?:\.\d+)?)", text, re.MULTILINE)
    return {kind: float(share) for kind, share in rows} or None


def candidates(text: str) -> tuple[str, ...]:
    """Return the packages that `apt-cache policy` has a version of."""
    return tuple(re.findall(r"^(\S+):\n  Installed: .*\n  Candidate: (?!\(none\))", text, re.MULTILINE))


def macros(text: str, *names: str) -> str:
    """Return a version from a header's `#define NAME number` lines; empty unless all are there."""
    found = dict(re.findall(r"^[ \t]*#[ \t]*define[ \t]+(\w+)[ \t]+(\d+)\b", text, re.MULTILINE))
    numbers = [found[name] for name in names if name in found]
    return ".".join(numbers) if len(numbers) == len(names) else ""


def version_of_file(name: str) -> str:
    """Return the version in a library's file name: libnccl.so.2.28.3; empty for libnccl.so.2."""
    found = re.search(rf"\.so\.({_NUMBER})$", name)
    return found[1] if found else ""


def driver_module(text: str) -> str:
    """Return the version in /proc/driver/nvidia/version."""
    found = re.search(rf"Kernel Module.*?\s({_NUMBER})\s", text)
    return found[1] if found else ""


def nvcc(text: str) -> tuple[str, str]:
    """Return release and version as nvcc prints them: ("13.0", "13.0.88")."""
    found = re.search(rf"release (\d+\.\d+), V({_NUMBER})", text)
    return (found[1], found[2]) if found else ("", "")


def compiler(text: str) -> tuple[str, str]:
    """Return kind and version of a C++ compiler from its --version."""
    first = re.sub(r"\([^)]*\)", "", text.partition("\n")[0])  # the packager's words
    found = re.search(rf"(?<![\w.-])({_NUMBER})", first)
    if not found:
        return "", ""
    return ("clang" if "clang" in first else "gcc"), found[1]


def tool_version(text: str) -> str:
    """Return the first version number in what a tool prints."""
    found = re.search(_NUMBER, text)
    return found[0] if found else ""


def host_limits(text: str) -> tuple[int | None, int | None]:
    """Return the newest supported gcc and the first unsupported clang, from CUDA's crt/host_config.h."""
    gcc = re.search(r"gcc versions later than (\d+)", text)
    clang = re.search(r"clang version must be less than (\d+)", text)
    return (int(gcc[1]) if gcc else None), (int(clang[1]) if clang else None)


def allows_compat(text: str) -> bool | None:
    """Return allow_compat_mode of a cufile.json, which is JSON with comments."""
    found = re.search(r'^[^/\n]*"allow_compat_mode"\s*:\s*(true|false)', text, re.MULTILINE)
    return found[1] == "true" if found else None


def elf_machine(head: bytes) -> str:
    """Return the platform of a little-endian ELF file by its first bytes; empty for anything else."""
    if len(head) < 20 or head[:4] != b"\x7fELF" or head[5] != 1:
        return ""
    number = int.from_bytes(head[18:20], "little")
    return ELF_MACHINES.get(number, f"machine {number}")


def addresses(text: str) -> dict[str, tuple[tuple[str, ...], tuple[str, ...]]]:
    """Return the addresses of each interface, and the temporary ones, from `ip -j addr`."""
    try:
        rows = json.loads(text)
        return {row["ifname"]: _addresses(row.get("addr_info", [])) for row in rows}
    except (ValueError, TypeError, KeyError, AttributeError):
        return {}


def _addresses(rows: list[Mapping[str, object]]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    # Every interface gives itself an IPv6 address of its own; one of IPv4 means that nobody gave it any.
    kept = [row for row in rows if row.get("scope") != "link" or row.get("family") == "inet"]
    moving = [row for row in kept if row.get("dynamic") or str(row.get("local", "")).startswith("169.254.")]
    return tuple(str(row["local"]) for row in kept), tuple(str(row["local"]) for row in moving)
