"""Probe this machine: cores, memory, GPUs, tools and their versions."""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path

from spark_build.cgroups import within_limits
from spark_build.machine import Gpu, Machine
from spark_build.process import capture

# Where compilers are looked for, also by builds: not the user's PATH, whose shims need his HOME.
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
CUDA = "/usr/local/cuda"  # where NVIDIA's packages and images put a toolkit
SYSTEM = {"PATH": SYSTEM_PATH, "LC_ALL": "C"}


def probe() -> Machine:
    """Measure this machine; about 1 ms without a GPU driver."""
    memory = _meminfo()
    return Machine(
        platform=f"{sys.platform}-{platform.machine()}",
        python=f"cp{sys.version_info.major}{sys.version_info.minor}",
        cores=len(os.sched_getaffinity(0)),
        memory_mib=memory.get("MemTotal", 0),
        available_mib=within_limits(memory.get("MemAvailable", 0)),
        gpus=_gpus(),
        prefixes={"cuda": home} if (home := cuda_home(os.environ)) else {},
    )


def _meminfo() -> dict[str, int]:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return {name: int(rest.split()[0]) // 1024 for name, _, rest in (line.partition(":") for line in lines)}


def _gpus() -> tuple[Gpu, ...]:
    if shutil.which("nvidia-smi") is None:
        return ()
    table = capture(["nvidia-smi", "--query-gpu=name,compute_cap", "--format=csv,noheader"], timeout=30)
    rows = [line.rpartition(",") for line in (table or "").splitlines() if "," in line]
    return tuple(
        Gpu(name=name.strip(), capability=capability.strip())
        for name, _, capability in rows
        if re.fullmatch(r"\d+\.\d+", capability.strip())
    )


def cuda_home(environ: Mapping[str, str]) -> str:
    """Return this machine's CUDA toolkit: CUDA_HOME, CUDA_PATH, else the usual place; "" without one."""
    for home in (environ.get("CUDA_HOME", ""), environ.get("CUDA_PATH", ""), CUDA):
        if home.startswith("/") and os.access(f"{home}/bin/nvcc", os.X_OK):
            return home.rstrip("/")
    return ""


def nvcc_version(home: str) -> str:
    """Return the release of a toolkit's nvcc such as "13.0"; "" without nvcc."""
    said = capture([f"{home}/bin/nvcc", "--version"], env=SYSTEM) if home else ""
    found = re.search(r"release (\d+\.\d+)", said or "")
    return found.group(1) if found else ""


def toolchain(*, cuda_home: str, packages: Sequence[str], strip: bool = False) -> dict[str, str]:
    """Return the tools and system packages that decide a build's bytes, with their versions.

    cuda_home: a toolkit that is no need with a content of its own; empty where there is none to measure.
    """
    compiler = (capture(["c++", "--version"], env=SYSTEM) or "missing").splitlines()[0]
    tools = {
        "c++": compiler,
        "libc": os.confstr("CS_GNU_LIBC_VERSION") or "unknown",
        "python": f"{platform.python_version()} {sysconfig.get_config_var('SOABI')}",
    }
    if host := _cross_host():
        tools["cross-compiled"] = f"on {host}"
    if cuda_home:
        tools["nvcc"] = nvcc_version(cuda_home) or "missing"
    if strip:
        tools["strip"] = (capture(["strip", "--version"], env=SYSTEM) or "missing").splitlines()[0]
    versions = package_versions(packages)
    return tools | {f"package {name}": versions.get(name, "missing") for name in sorted(packages)}


def _cross_host() -> str:
    """Return the machine that the compiler runs on where that is not the one it compiles for, else "".

    Only what qemu-user may emulate is asked: `-v` costs a process. Its /proc/cpuinfo is no help from 8.1 on.
    """
    if platform.machine() != "aarch64":
        return ""
    said = capture(["sh", "-c", "c++ -v 2>&1"], env=SYSTEM) or ""
    host, target = (re.search(rf"--{name}=(\S+)", said) for name in ("host", "target"))
    return host[1] if host and target and host[1] != target[1] else ""


def package_versions(packages: Sequence[str]) -> dict[str, str]:
    """Return the versions of Debian packages, without those that are not installed."""
    if not packages or shutil.which("dpkg-query") is None:
        return {}
    form = "${Package} ${Version} ${db:Status-Status}\n"
    # dpkg-query exits 1 when any of them is unknown and still prints the others.
    table = capture(["dpkg-query", "-W", f"-f={form}", "--", *packages], check=False) or ""
    rows = [line.split() for line in table.splitlines()]
    return {row[0]: row[1] for row in rows if len(row) == 3 and row[2] == "installed"}


def has_python_headers() -> bool:
    """Return whether C extensions can be compiled for this interpreter."""
    return Path(sysconfig.get_path("include"), "Python.h").is_file()
