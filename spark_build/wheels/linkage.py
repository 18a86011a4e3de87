"""Where each library that a wheel needs comes from, and why we think so."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

from spark_build.wheels.model import WheelFacts

Provenance = Literal[
    "wheel", "system", "driver", "toolkit", "stack", "package", "recipe", "python", "missing"
]

_DRIVER = re.compile(
    r"lib(cuda|nvcuvid|nvidia-[^/]+|nvoptix|cudadebugger|cuda-[^/]+)\.so(\.[\d.]+)?", re.ASCII
)
_TOOLKIT = re.compile(
    r"lib(cudart|cublas|cublasLt|cufft|cufftw|cufile|cufile_rdma|cupti|curand|cusolver|cusolverMg|cusparse|"
    r"npp[a-z]+|nvblas|nvfatbin|nvJitLink|nvjpeg|nvperf_[a-z]+|nvrtc|nvrtc-builtins|nvToolsExt|nvvm|"
    r"accinj64|cuinj64)\.so(\.[\d.]+)?",
    re.ASCII,
)
_STACK = (
    (re.compile(r"lib(torch|c10)[A-Za-z0-9_]*\.so|libshm\.so|libcaffe2[a-z_]*\.so"), "torch"),
    (re.compile(r"libtriton\.so"), "triton"),
    (re.compile(r"libcusparseLt\.so(\.\d+)*"), "nvidia-cusparselt"),
)
# NVIDIA's libraries outside the toolkit, each in a package of its own.
_PACKAGES = (
    (re.compile(r"libcudnn[a-z_]*\.so(\.\d+)*"), "cuDNN"),
    (re.compile(r"libnccl\.so(\.\d+)*"), "NCCL"),
    (re.compile(r"libnvshmem[a-z_]*\.so(\.\d+)*"), "NVSHMEM"),
    (re.compile(r"libcutensor[A-Za-z]*\.so(\.\d+)*"), "cuTENSOR"),
)
_PYTHON = re.compile(r"libpython\d[^/]*")


@dataclass(frozen=True, kw_only=True, slots=True)
class Needed:
    """A soname that libraries of the wheel name in NEEDED."""

    soname: str
    by: tuple[str, ...]  # paths in the wheel
    source: Provenance
    reason: str


def explain(
    facts: WheelFacts, *, system_libraries: frozenset[str], provided: Sequence[str] = ()
) -> tuple[Needed, ...]:
    """Each needed soname once, in order of name. `provided`: what the recipe leaves outside (wildcards)."""
    users: dict[str, set[str]] = {}
    inside: dict[str, str] = {}
    for library in facts.libraries:
        # By the name of the file: the loader opens that, whatever the soname inside.
        inside.setdefault(library.path.rpartition("/")[2], library.path)
        for soname in library.needed:
            users.setdefault(soname, set()).add(library.path)
    found = []
    for soname, by in sorted(users.items()):
        source, reason = _explained(soname, inside, system_libraries, provided)
        found.append(Needed(soname=soname, by=tuple(sorted(by)), source=source, reason=reason))
    return tuple(found)


def _explained(
    soname: str, inside: dict[str, str], system_libraries: frozenset[str], provided: Sequence[str]
) -> tuple[Provenance, str]:
    if soname in inside:
        return "wheel", f"it is {inside[soname]}"
    if soname in system_libraries:
        return "system", "manylinux systems have it"
    known = origin(soname)
    if known:
        return known
    for pattern in provided:
        if fnmatchcase(soname, pattern):
            return "recipe", f"the recipe leaves it outside: repair.exclude has {pattern}"
    return "missing", "nothing that we know brings it: repair should bundle it"


def origin(soname: str) -> tuple[Provenance, str] | None:
    """What is known of a soname by its name alone."""
    if _DRIVER.fullmatch(soname):
        return "driver", "it is a part of the GPU driver, which must be the machine's own"
    if _TOOLKIT.fullmatch(soname):
        return "toolkit", "it is a part of the CUDA toolkit"
    for pattern, name in _STACK:
        if pattern.fullmatch(soname):
            return "stack", f"it comes with {name}"
    for pattern, name in _PACKAGES:
        if pattern.fullmatch(soname):
            return "package", f"it comes with NVIDIA's {name}"
    if _PYTHON.match(soname):
        return "python", "the interpreter brings its symbols: an extension module must not link with it"
    return None
