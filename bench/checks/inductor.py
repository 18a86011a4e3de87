"""Does torch.compile make programs that compute the same, forward and backward?"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from judging import Skip, need_compiler, run
from numerics import Errors, leaves, usual_device


def compiler() -> str:
    """Inductor writes C++ for CPUs; for GPUs Triton needs a C compiler for what starts its kernels."""
    if usual_device() == "cpu":
        return need_compiler("CXX", "g++", "clang++")
    try:
        import triton
    except ImportError as error:
        raise Skip(f"needs triton on a GPU: {error}") from error
    need_compiler("CC", "gcc", "clang")
    return f"triton {triton.__version__}"


def check_module() -> str:
    """A layer with a product, a norm and activations, without any fallback to uncompiled code."""
    made_by = compiler()
    from torch._inductor import metrics

    torch.manual_seed(0)
    layer = torch.nn.Sequential(
        torch.nn.Linear(65, 130),
        torch.nn.GELU(),
        torch.nn.LayerNorm(130),
        torch.nn.Linear(130, 33),
        torch.nn.Softmax(-1),
    )
    x, direction = torch.randn(50, 65), torch.randn(50, 33)
    names = [name for name, _ in layer.named_parameters()]
    wide = layer.double()
    true = leaves(x, dtype=torch.float64)
    exact = wide(*true)
    wanted = torch.autograd.grad(exact, [*true, *wide.parameters()], direction.double())

    mine = leaves(x, device=usual_device())
    ours = layer.float().to(usual_device())
    with tempfile.TemporaryDirectory() as cache:  # nothing that another run compiled
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache
        os.environ["TRITON_CACHE_DIR"] = str(Path(cache, "triton"))
        metrics.reset()
        result = torch.compile(ours, fullgraph=True)(*mine)
        got = torch.autograd.grad(result, [*mine, *ours.parameters()], direction.to(usual_device()))
    errors = Errors()
    errors.compare("result", result, exact)
    for name, one, other in zip(["input", *names], got, wanted, strict=True):
        errors.compare(f"gradient of {name}", one, other)
    kernels = metrics.generated_kernel_count
    assert kernels > 0, "nothing was compiled"
    return f"{kernels} kernels by {made_by} on {usual_device()}: {errors}"


CHECKS: dict[str, Callable[[], str]] = {"module": check_module}


if __name__ == "__main__":
    sys.exit(run(CHECKS))
