"""Is attention right, by every implementation that PyTorch has, forward and backward?

The exact result is made of plain products in FP64 on the CPU, so that the math backend is checked, too.
"""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from attending import CASES, Case, compare
from judging import Skip, run
from numerics import FLOATS, Errors, short, spoil, usual_device
from torch.nn.attention import SDPBackend, sdpa_kernel

# What some implementations refuse by design: compared where they take it.
OPTIONAL = (
    Case(65, 200, 64, mask=True),
    Case(128, 128, 64, groups=2),
    Case(77, 77, 128, causal=True, groups=4),
)
# Memory-efficient kernels are one for each type, size class of heads and alignment: each may be broken alone.
VARIANTS = (
    *(
        Case(length, length, dim, causal=causal)
        for length, dim, causal in itertools.product((64, 63, 200), (32, 40, 64, 96, 128, 256), (False, True))
    ),
    Case(50, 77, 33),
    Case(64, 128, 80),
)


def check_backend(backend: Any, required: tuple[Any, ...]) -> str:
    """`required`: types that this implementation must take on this device."""
    errors, refusals = Errors(), []
    taken = compare(backend, CASES, errors, refusals)
    missing = [short(dtype) for dtype in required if dtype not in {dtype for _, dtype in taken}]
    assert not missing, f"takes no {', '.join(missing)}: {refusals[0]}"
    if not taken:
        raise Skip(f"refused all cases; the first, {refusals[0]}")
    compare(backend, OPTIONAL, errors, refusals)
    return f"{errors}; refused {len(refusals)} of {3 * len(CASES + OPTIONAL)} cases"


def check_efficient_kernels() -> str:
    """Each kernel of memory-efficient attention writes what it should: those built for 12.1 may not."""
    errors, refusals = Errors(), []
    if not compare(SDPBackend.EFFICIENT_ATTENTION, VARIANTS[:1], errors, refusals):
        raise Skip(f"refused all cases; the first, {refusals[0]}")
    compare(SDPBackend.EFFICIENT_ATTENTION, VARIANTS[1:], errors, refusals)
    dropped = check_dropout()
    return f"{errors}; {dropped}: no kernel left memory unwritten (pytorch#176243)"


def check_dropout() -> str:
    """With dropout other kernels run: they write everything, and drop about what they should."""
    device = usual_device()
    for dtype, dim in itertools.product(FLOATS, (64, 128, 256)):
        value = torch.ones(2, 4, 128, dim, dtype=dtype, device=device, requires_grad=True)
        query, key = (torch.zeros_like(value).requires_grad_() for _ in range(2))
        spoil(value, value, value)
        with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
            result = torch.nn.functional.scaled_dot_product_attention(query, key, value, dropout_p=0.5)
            gradients = torch.autograd.grad(result, (query, key, value), torch.ones_like(result))
        for each in (result, *gradients):
            assert bool(torch.isfinite(each).all()), f"with dropout, {short(dtype)}, head {dim}: not finite"
        # Uniform weights over 128 keys of which half are dropped and the others doubled: 1 on average.
        mean = float(result.detach().double().mean())
        assert abs(mean - 1) < 0.02, f"with dropout, {short(dtype)}, head {dim}: mean {mean:.3f}, not 1"
    return "dropout averages 1"


def checks() -> dict[str, Callable[[], str]]:
    """One for each implementation, and one for what is known to break on 12.1."""
    half = (torch.float16, torch.bfloat16)
    cuda = torch.cuda.is_available() and torch.cuda.get_device_capability() >= (8, 0)
    backends = {
        "math": (SDPBackend.MATH, FLOATS),
        "efficient": (SDPBackend.EFFICIENT_ATTENTION, FLOATS if cuda else ()),
        "flash": (SDPBackend.FLASH_ATTENTION, half if cuda else FLOATS),
        "cudnn": (SDPBackend.CUDNN_ATTENTION, ()),
    }
    found = {name: functools.partial(check_backend, *facts) for name, facts in backends.items()}
    return {**found, "efficient-kernels": check_efficient_kernels}


CHECKS = checks()


if __name__ == "__main__":
    sys.exit(run(CHECKS))
