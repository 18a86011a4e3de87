"""Is this environment's PyTorch built for this GPU, with the libraries it needs, and does it multiply?"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
# This file has the name of a package, for which its folder must not stand in.
sys.path[:] = [str(HERE.parent), *(entry for entry in sys.path if Path(entry or ".").resolve() != HERE)]

from judging import PREFIX, Skip, inside, run  # noqa: E402 - the path comes first


def check_import() -> str:
    import torch

    assert inside(torch.__file__, PREFIX), f"{torch.__file__} is not inside {PREFIX}"
    return f"torch {torch.__version__} from inside the environment, CUDA {torch.version.cuda}"


def check_architectures() -> str:
    import torch

    if torch.version.cuda is None:
        raise Skip("built without CUDA")
    flags = torch._C._cuda_getArchFlags()
    assert flags, "built with CUDA, but for no architecture"
    if not torch.cuda.is_available():
        return f"built for {flags}; no GPU here"
    major, minor = torch.cuda.get_device_capability()
    fits = [fit for each in flags.split() if (fit := fitting(each, major, minor))]
    assert fits, f"this GPU is sm_{major}{minor}, the build is for {flags}"
    return f"sm_{major}{minor} {'native' if 'native' in fits else fits[0]}: {flags}"


def fitting(built: str, major: int, minor: int) -> str:
    """How code of that architecture runs on such a GPU; "" when not.

    Machine code runs on the same major number and no smaller minor one; with `a` on that very number only;
    PTX (compute_) is compiled on any later GPU (CUDA programming guide, compatibility).
    """
    parts = re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", built)
    if parts is None:
        return ""
    kind, number, suffix = parts[1], (int(parts[2]), int(parts[3])), parts[4]
    if kind == "sm" and number == (major, minor):
        return "native"
    if kind == "sm" and suffix != "a" and number[0] == major and number[1] <= minor:
        return "runs, not native"
    compiled = kind == "compute" and not suffix and number <= (major, minor)
    return "compiled when it is loaded" if compiled else ""


def check_libraries() -> str:
    """cuBLAS and cuDNN are really loaded; which, they say themselves."""
    import torch
    from surroundings import called_versions, loaded_libraries

    if torch.version.cuda is None:
        raise Skip("built without CUDA")
    if not torch.cuda.is_available():
        raise Skip("no GPU here")
    torch.mm(*(torch.ones(16, 16, device="cuda") for _ in range(2)))
    assert torch.backends.cudnn.is_available(), "built without cuDNN"
    wanted = torch.backends.cudnn.version()  # loads it
    libraries = loaded_libraries()
    versions = called_versions(torch, libraries)
    loaded = [name for name in ("cublas", "cublasLt", "cudnn") if name in versions]
    places = {
        str(Path(path).parent)
        for path in libraries
        if Path(path).name.startswith(("libcublas.so", "libcudnn.so"))
    }
    said = ", ".join(f"{name} {versions[name]}" for name in loaded) or "linked into torch"
    assert versions.get("cudnn", wanted) == wanted, f"two versions of cuDNN: {said}, torch says {wanted}"
    return f"{said}; cuDNN as torch knows it {wanted}; from {' and '.join(sorted(places)) or 'torch'}"


def check_matmul() -> str:
    """Products in all layouts, batched and not, of a size that fits no tile; TF32 off."""
    import torch
    from numerics import FLOATS, Errors, short, spoil, usual_device

    errors, device = Errors(), usual_device()
    random = torch.Generator().manual_seed(0)
    allowed = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    for dtype in (torch.float64, *FLOATS):
        a, b = (
            torch.rand(3, 257, 257, generator=random, dtype=torch.float64).mul_(2).sub_(1) for _ in range(2)
        )
        a, b = a.to(device, dtype), b.to(device, dtype)
        forms: dict[str, tuple[Any, Any]] = {
            "a@b": (a[0], b[0]),
            "a.T@b": (a[0].t(), b[0]),
            "a@b.T": (a[0], b[0].t()),
            "batched": (a, b),
            "vector": (a[0], b[0, 0]),
            "thin": (a[0, :5], b[0]),
        }
        for name, (left, right) in forms.items():
            spoil(left, right)
            exact = left.cpu().double() @ right.cpu().double()
            errors.compare(f"{short(dtype)} {name}", left @ right, exact)
        exact = torch.addmm(b[0].cpu().double(), a[0].cpu().double(), b[1].cpu().double().t())
        errors.compare(f"{short(dtype)} addmm", torch.addmm(b[0], a[0], b[1].t()), exact)
        linear = a[1].cpu().double() @ b[1].cpu().double().t() + b[2, 0].cpu().double()
        errors.compare(f"{short(dtype)} linear", torch.nn.functional.linear(a[1], b[1], b[2, 0]), linear)
    torch.backends.cuda.matmul.allow_tf32 = allowed
    return f"on {device}: {errors}"


def check_attention() -> str:
    """One case by each implementation; bench/checks/attention.py has the others."""
    from attending import CASES, compare
    from numerics import Errors
    from torch.nn.attention import SDPBackend

    names = ("MATH", "EFFICIENT_ATTENTION", "FLASH_ATTENTION", "CUDNN_ATTENTION")
    errors, refusals = Errors(), list[str]()
    took = [name for name in names if compare(getattr(SDPBackend, name), CASES[:1], errors, refusals)]
    assert len(took) > 1, f"no implementation but the plain one takes anything: {refusals[0]}"
    return f"{', '.join(name.partition('_')[0].lower() for name in took)}: {errors}"


def check_storage() -> str:
    """cuFile: whether the build has it at all, which hasattr does not tell."""
    import torch

    if torch.version.cuda is None:
        raise Skip("built without CUDA")
    entry = getattr(torch._C, "_gds_register_handle", None)
    if type(entry).__name__ != "builtin_function_or_method":
        raise Skip("built without cuFile: no GPUDirect Storage")
    return "built with cuFile; on a Spark it works in compatibility mode only"


CHECKS: dict[str, Callable[[], str]] = {
    "import": check_import,
    "architectures": check_architectures,
    "libraries": check_libraries,
    "matmul": check_matmul,
    "attention": check_attention,
    "storage": check_storage,
}


if __name__ == "__main__":
    sys.exit(run(CHECKS))
