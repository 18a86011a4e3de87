"""Products that only newer GPUs have: FP8, FP4, and matrices of which every second pair is empty."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from judging import Skip, run
from numerics import Errors, short, spoil, usual_device

SHAPES = ((128, 256, 128), (272, 512, 144))  # M, K, N: cuBLASLt wants multiples of 16
FP4_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # by code; bit 3 is the sign
FP4_BLOCK = 16  # values that share a scale
OUTPUT = 1e-2  # BF16 comes out: half a unit is 2e-3, and tensor cores add FP8 products with few bits


def need_capability(least: tuple[int, int], what: str) -> None:
    """Skip unless there is a GPU of at least this compute capability."""
    if not torch.cuda.is_available():
        raise Skip("no GPU here")
    have = torch.cuda.get_device_capability()
    if have < least:
        raise Skip(f"{what} needs compute capability {least[0]}.{least[1]}, this GPU has {have[0]}.{have[1]}")


def eight(rows: int, columns: int, seed: int) -> Any:
    """Random FP8 numbers."""
    values = torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))
    return values.to(torch.float8_e4m3fn).to(usual_device())


def scaled(errors: Errors, what: str, left: Any, right: Any, scales: tuple[Any, Any], *, fast: bool) -> None:
    """One product of FP8 matrices; the second one lies by columns."""
    scale_left, scale_right = (each.to(usual_device()) for each in scales)
    spoil(torch.empty(left.shape[0], right.shape[0], dtype=torch.bfloat16, device=usual_device()))
    result = torch._scaled_mm(
        left,
        right.t(),
        scale_a=scale_left,
        scale_b=scale_right,
        out_dtype=torch.bfloat16,
        use_fast_accum=fast,
    )
    exact = (left.cpu().double() * scales[0].double()) @ (right.cpu().double().t() * scales[1].double())
    errors.compare(what, result, exact, allowed=OUTPUT)


def check_fp8() -> str:
    """One scale for each matrix. CPUs compute it, too, from a release after 2.6 on."""
    if torch.cuda.is_available():
        need_capability((8, 9), "FP8")
    elif not torch._C._dispatch_has_kernel_for_dispatch_key("aten::_scaled_mm", "CPU"):
        raise Skip(f"torch {torch.__version__} has no FP8 products on a CPU")
    errors = Errors()
    for (m, k, n), fast in itertools.product(SHAPES, (False, True)):
        scales = torch.tensor(0.5), torch.tensor(3.0)
        scaled(errors, f"{m}x{k}x{n}", eight(m, k, 0), eight(n, k, 1), scales, fast=fast)
    return f"e4m3 on {usual_device()}: {errors}"


def check_fp8_rows() -> str:
    """A scale for each row and column: kernels of their own, which 12.1 has only in builds for 12.1a."""
    need_capability((9, 0), "row-wise FP8")
    errors = Errors()
    for (m, k, n), fast in itertools.product(SHAPES, (False, True)):
        scales = torch.linspace(0.5, 2, m).reshape(m, 1), torch.linspace(0.25, 4, n).reshape(1, n)
        scaled(errors, f"{m}x{k}x{n}", eight(m, k, 0), eight(n, k, 1), scales, fast=fast)
    return f"e4m3 on {usual_device()}: {errors}"


def four(rows: int, columns: int, seed: int) -> tuple[Any, Any]:
    """Random FP4 numbers, two in a byte (the first in the low half), and their values."""
    random = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 256, (rows, columns // 2), generator=random, dtype=torch.uint8)
    table = torch.tensor((*FP4_VALUES, *(-value for value in FP4_VALUES)), dtype=torch.float64)
    values = torch.stack((table[codes.int() & 15], table[codes.int() >> 4]), dim=-1).reshape(rows, columns)
    return codes.to(usual_device()).view(torch.float4_e2m1fn_x2), values


def check_fp4() -> str:
    """NVFP4: a scale for each 16 numbers; here all alike, so that their order in memory does not matter."""
    if not hasattr(torch, "float4_e2m1fn_x2"):
        raise Skip(f"torch {torch.__version__} has no FP4")
    need_capability((10, 0), "FP4")
    errors = Errors()
    for m, k, n in ((128, 256, 128), (256, 512, 384)):
        (left, exact_left), (right, exact_right) = four(m, k, 0), four(n, k, 1)
        blocks = -(-k // FP4_BLOCK // 4) * 4
        scales = [
            torch.full((rows * blocks,), value, device=usual_device()).to(torch.float8_e4m3fn)
            for rows, value in ((m, 2.0), (n, 0.25))
        ]
        result = torch._scaled_mm(
            left, right.t(), scale_a=scales[0], scale_b=scales[1], out_dtype=torch.bfloat16
        )
        errors.compare(f"{m}x{k}x{n}", result, 0.5 * exact_left @ exact_right.t(), allowed=OUTPUT)
    return f"e2m1: {errors}"


def check_sparse() -> str:
    """2:4: of four neighbours two are zero. cuSPARSELt compresses and multiplies."""
    need_capability((8, 0), "2:4 sparsity")
    assert torch.backends.cusparselt.is_available(), "built without cuSPARSELt"
    errors = Errors()
    for dtype, (m, k, n) in itertools.product(
        (torch.float16, torch.bfloat16), ((128, 128, 64), (256, 512, 128))
    ):
        random = torch.Generator().manual_seed(k)
        pattern = torch.tensor([[0, 1, 1, 0], [1, 0, 0, 1], [1, 1, 0, 0]]).repeat(1, k // 4)
        dense = torch.randn(m, k, generator=random) * pattern[torch.arange(m) % 3]
        left, right = dense.to("cuda", dtype), torch.randn(k, n, generator=random).to("cuda", dtype)
        compressed = torch._cslt_compress(left)
        assert compressed.numel() < left.numel(), "compressing left it as large as it was"
        spoil(torch.empty(m, n, dtype=dtype, device="cuda"))
        result = torch._cslt_sparse_mm(compressed, right)
        errors.compare(f"{short(dtype)} {m}x{k}x{n}", result, left.cpu().double() @ right.cpu().double())
    return f"cuSPARSELt {torch.backends.cusparselt.version()}: {errors}"


CHECKS: dict[str, Callable[[], str]] = {
    "fp8": check_fp8,
    "fp8-rows": check_fp8_rows,
    "fp4": check_fp4,
    "sparse-2of4": check_sparse,
}


if __name__ == "__main__":
    sys.exit(run(CHECKS))
