"""Does this environment's PyTorch compute what it should? GPU checks are skipped without a GPU."""

from __future__ import annotations

import sys
from itertools import product
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
# This file has the name of a package, for which its folder must not stand in.
sys.path[:] = [str(HERE.parent), *(entry for entry in sys.path if Path(entry or ".").resolve() != HERE)]

from judging import PREFIX, Skip, inside, run  # noqa: E402 - the path comes first

# Absolute error allowed on values of about 1, by what the type resolves.
TOLERANCE = {"float32": 2e-3, "float16": 2e-2, "bfloat16": 8e-2}


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
    assert f"sm_{major}" in flags, f"this GPU is sm_{major}{minor}, the build is for {flags}"
    native = f"sm_{major}{minor}" in flags.split()
    return f"sm_{major}{minor} {'native' if native else 'runs, not native'}: {flags}"


def check_matmul() -> str:
    import torch

    torch.manual_seed(0)
    worst = 0.0
    device = "cuda" if torch.cuda.is_available() else "cpu"
    names = ("float32", "float16", "bfloat16") if device == "cuda" else ("float32", "bfloat16")
    for name in names:
        dtype = getattr(torch, name)
        a, b = (torch.rand(257, 257, device=device, dtype=torch.float64) * 2 - 1 for _ in range(2))
        a, b = a.to(dtype), b.to(dtype)
        exact = a.double() @ b.double()
        error = ((a @ b).double() - exact).abs().max().item() / exact.abs().max().item()
        assert error < TOLERANCE[name], f"{name} on {device}: relative error {error:.1e}"
        worst = max(worst, error)
    return f"{', '.join(names)} on {device} within {worst:.1e} of FP64"


def attend(backend: Any, tensors: list[Any]) -> list[Any]:
    """Attention and its gradients by one backend."""
    import torch
    from torch.nn.attention import sdpa_kernel

    inputs = [tensor.detach().clone().requires_grad_() for tensor in tensors]
    with sdpa_kernel(backend):
        result = torch.nn.functional.scaled_dot_product_attention(*inputs)
    result.sum().backward()
    return [result.detach(), *(one.grad for one in inputs)]


def check_attention() -> str:
    """Each backend against the math one, forward and backward: a broken kernel writes nothing."""
    import torch
    from torch.nn.attention import SDPBackend

    torch.manual_seed(0)
    cuda = torch.cuda.is_available()
    names = ("float32", "float16", "bfloat16") if cuda else ("float32",)
    backends = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION]
    done = []
    for name, backend in product(names, backends if cuda else [SDPBackend.FLASH_ATTENTION]):
        dtype = getattr(torch, name)
        shape = (2, 4, 128, 64)
        tensors = [torch.randn(shape, dtype=dtype, device="cuda" if cuda else "cpu") for _ in range(3)]
        try:
            ours = attend(backend, tensors)
        except RuntimeError as error:
            if "No available kernel" in str(error) or "No viable backend" in str(error):
                continue  # this backend does not take this type here
            raise
        exact = attend(SDPBackend.MATH, [tensor.double() for tensor in tensors])
        for mine, true in zip(ours, exact, strict=True):
            error = (mine.double() - true).abs().max().item()
            assert error < 5 * TOLERANCE[name], f"{backend.name} {name}: off by {error:.1e}"
        done.append(f"{backend.name.split('_')[0].lower()} {name}")
    assert done, "no backend took any type"
    return f"forward and backward equal math: {', '.join(done)}"


def check_cusparselt() -> str:
    import torch

    if not torch.cuda.is_available():
        raise Skip("no GPU here")
    assert torch.backends.cusparselt.is_available(), "built without cuSPARSELt"
    return f"version {torch.backends.cusparselt.version()}"


if __name__ == "__main__":
    sys.exit(
        run(
            {
                "import": check_import,
                "architectures": check_architectures,
                "matmul": check_matmul,
                "attention": check_attention,
                "cusparselt": check_cusparselt,
            }
        )
    )
