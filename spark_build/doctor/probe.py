"""How the doctor reaches a machine: files below a root, commands, NVML. Another root is another machine."""

from __future__ import annotations

import functools
import importlib
import locale
import os
import platform
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import spark_build
from spark_build import probe
from spark_build.build import compiler_cache, sandbox
from spark_build.build.compiler_cache import Cache
from spark_build.build.sandbox import Sandbox
from spark_build.doctor import system
from spark_build.process import capture
from spark_build.resources import memory

TIMEOUT = 10.0  # seconds for one command; nvidia-smi hangs on a driver that is broken


class Access:
    """This machine."""

    def __init__(self) -> None:
        self.root = Path("/")
        self.environ: Mapping[str, str] = os.environ
        self.uid = os.geteuid()
        self.python = platform.python_version()

    def read(self, path: str) -> str:
        """A text file; empty when it cannot be read."""
        try:
            return (self.root / path.lstrip("/")).read_text(errors="replace")
        except OSError:
            return ""

    def head(self, path: str, size: int = 64) -> bytes:
        """The first bytes of a file; none when it cannot be read."""
        try:
            with (self.root / path.lstrip("/")).open("rb") as file:
                return file.read(size)
        except OSError:
            return b""

    def exists(self, path: str) -> bool:
        """Whether there is such a file or folder."""
        return (self.root / path.lstrip("/")).exists()

    def glob(self, pattern: str) -> list[str]:
        """Absolute paths that match, sorted."""
        return sorted("/" + str(path.relative_to(self.root)) for path in self.root.glob(pattern.lstrip("/")))

    def real(self, path: str) -> str:
        """The same without symbolic links."""
        found = (self.root / path.lstrip("/")).resolve()
        return "/" + str(found.relative_to(self.root.resolve()))

    def which_all(self, program: str, search: str) -> list[str]:
        """Programs of that name in the folders of a PATH, in order."""
        found = [f"{folder.rstrip('/')}/{program}" for folder in search.split(":") if folder.startswith("/")]
        return [path for path in dict.fromkeys(found) if self._runs(path)]

    def _runs(self, path: str) -> bool:
        return os.access(self.root / path.lstrip("/"), os.X_OK)

    def ask(self, args: Sequence[str], *, check: bool = True) -> str | None:
        """What a command prints; None when it is missing, hangs or (`check`) fails."""
        return capture(args, env={**self.environ, "LC_ALL": "C"}, timeout=TIMEOUT, check=check)

    def nvml(self) -> Any:
        """NVML, ready to be asked; None without the package, the driver or its library."""
        try:
            module = importlib.import_module("pynvml")
            module.nvmlInit()
        except Exception:  # noqa: BLE001  whatever is wrong, nvidia-smi will name it
            return None
        return module

    def sandbox(self) -> Sandbox:
        """The strongest that works."""
        return sandbox.choose()

    def cache(self) -> Cache:
        """The compiler cache that builds would use."""
        return compiler_cache.choose(self.environ)

    def missing_packages(self, names: Sequence[str]) -> tuple[str, ...]:
        """Of these system packages those that lack."""
        return system.missing_packages(names)

    def python_headers(self) -> bool:
        """Whether C extensions can be compiled."""
        return probe.has_python_headers()

    def free_mib(self, folder: Path) -> int:
        """Room on the folder's disk."""
        return shutil.disk_usage(folder).free >> 20

    def now(self) -> float:
        """The time of day, seconds since 1970."""
        return time.time()

    def installed(self) -> float:
        """When our own files were written."""
        return Path(spark_build.__file__).stat().st_mtime

    def encoding(self) -> str:
        """Of text files and names."""
        return locale.getencoding()

    @functools.cached_property
    def locale_usable(self) -> bool:
        """Whether the locale that the environment names is installed."""
        before = locale.setlocale(locale.LC_CTYPE)
        try:
            locale.setlocale(locale.LC_CTYPE, "")
        except locale.Error:
            return False
        finally:
            locale.setlocale(locale.LC_CTYPE, before)
        return True

    def largest_users(self) -> tuple[tuple[str, int], ...]:
        """Processes that hold most memory, MiB."""
        return tuple(memory.largest_users())

    def rdma(self) -> bool | None:
        """Whether the driver offers GPUDirect RDMA for the first GPU; None when it cannot be asked."""
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
