"""What a measured process stands in: caches, memory, libraries, versions; and writing its report.

For scripts that run inside an arm: nothing but torch and the standard library.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import operator
import os
import platform
import tempfile
from pathlib import Path
from typing import Any

RECORDED = (
    "CUBLAS",
    "CUDA",
    "CUDNN",
    "DNNL",
    "GLOO",
    "GOMP",
    "KMP",
    "LD_",
    "MKL",
    "NCCL",
    "NVIDIA",
    "OMP",
    "ONEDNN",
    "PYTORCH",
    "TORCH",
)
UNKNOWN_CACHE = 32 << 20
FLAGS = (
    "backends.cuda.matmul.allow_fp16_accumulation",
    "backends.cuda.matmul.allow_fp16_reduced_precision_reduction",
    "backends.cuda.matmul.allow_bf16_reduced_precision_reduction",
    "backends.cudnn.allow_tf32",
    "backends.cudnn.enabled",
)


def cache_bytes(torch: Any, device: str) -> int:
    """Size of the last cache before memory: L2 of the GPU, LLC of the CPU; UNKNOWN_CACHE where not told."""
    if device == "cuda":
        return getattr(torch.cuda.get_device_properties(0), "L2_cache_size", 0) or UNKNOWN_CACHE
    sizes = [0]
    for file in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = file.read_text().strip()
        with contextlib.suppress(ValueError):
            sizes.append(int(text[:-1]) << {"K": 10, "M": 20, "G": 30}.get(text[-1:], 0))
    return max(sizes) or UNKNOWN_CACHE


def free_bytes(torch: Any, device: str) -> int:
    """Free memory of the device."""
    if device == "cuda":
        return int(torch.cuda.mem_get_info()[0])
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return 4 << 30


def loaded_libraries() -> list[str]:
    """Shared libraries really mapped into this process, with their paths."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return sorted({part[5] for line in lines if len(part := line.split(None, 5)) == 6 and ".so" in part[5]})


def called_versions(torch: Any, libraries: list[str]) -> dict[str, int]:
    """Versions that the loaded libraries themselves report."""
    found: dict[str, int] = {}
    for stem, function in (("libcublasLt.so", "cublasLtGetVersion"), ("libcudnn.so", "cudnnGetVersion")):
        for path in (each for each in libraries if Path(each).name.startswith(stem)):
            call = getattr(ctypes.CDLL(path), function)
            call.restype = ctypes.c_size_t
            found[function.removesuffix("GetVersion")] = call()
    for path in (each for each in libraries if Path(each).name.startswith("libcublas.so")):
        version = ctypes.c_int()
        handle = ctypes.c_void_p(torch.cuda.current_blas_handle())
        if ctypes.CDLL(path).cublasGetVersion_v2(handle, ctypes.byref(version)) == 0:
            found["cublas"] = version.value
    return found


def flags(torch: Any) -> dict[str, str]:
    """What torch itself is set to that could change speed or precision; what it does not have is left out."""
    found = {}
    for name in FLAGS:
        with contextlib.suppress(AttributeError, RuntimeError):
            found[name] = str(operator.attrgetter(name)(torch))
    with contextlib.suppress(AttributeError, RuntimeError):
        found["float32_matmul_precision"] = str(torch.get_float32_matmul_precision())
    with contextlib.suppress(AttributeError, RuntimeError):
        found["preferred_blas_library"] = str(torch.backends.cuda.preferred_blas_library())
    return found


def surroundings(torch: Any, device_kind: str) -> dict[str, Any]:
    """Device, versions, libraries and the variables that could change a result."""
    libraries = loaded_libraries()
    device: dict[str, Any] = {"name": platform.processor() or platform.machine()}
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            device["name"] = line.partition(":")[2].strip()
    if device_kind == "cuda":
        facts = torch.cuda.get_device_properties(0)
        device = {"name": facts.name, "capability": f"{facts.major}.{facts.minor}",
                  "multiprocessors": facts.multi_processor_count, "memory": facts.total_memory}  # fmt: skip
    return {
        "device": device,
        "python": platform.python_version(),
        "torch": {"version": torch.__version__, "cuda": torch.version.cuda, "config": torch.__config__.show(),
                  "threads": torch.get_num_threads(), "capability": torch.backends.cpu.get_cpu_capability(),
                  "flags": flags(torch)},
        "called_versions": called_versions(torch, libraries) if device_kind == "cuda" else {},
        "libraries": libraries,
        "variables": {name: value for name, value in os.environ.items() if name.startswith(RECORDED)},
    }  # fmt: skip


def write_report(path: Path, report: dict[str, Any]) -> None:
    """Temporary name, fsync, rename: a reader never meets half a report."""
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
        json.dump(report, file)
        file.flush()
        os.fsync(file.fileno())
    Path(file.name).replace(path)
