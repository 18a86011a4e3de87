"""Matrix products over number formats and sizes; the report finds the maximum."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import torch
from findings import SCALED_REFUSED, recognised
from operands import SCALED, Operands

from workloads import Asked, Case, Run, Work


def cases(asked: Asked) -> Iterator[Case]:
    sizes = asked.pick(
        cpu_quick=(256, 512, 1024),
        cpu=(256, 512, 1024, 2048, 4096),
        cuda_quick=(1024, 4096, 8192),
        cuda=(512, 1024, 2048, 3072, 4096, 6144, 8192, 12288, 16384),
    )
    formats = ("fp32", "bf16") if asked.device == "cpu" else ("fp32", "tf32", "fp16", "bf16", "fp8", "fp4")
    for dtype in formats:
        for size in sizes:
            yield _case(asked, dtype, size)


def _case(asked: Asked, dtype: str, size: int) -> Case:
    width = {"fp32": 4, "tf32": 4, "fp8": 1, "fp4": 0.5}.get(dtype, 2)
    # Each of n x n results is n products and n sums; a scaled product leaves BF16.
    flops = 2.0 * size**3
    if "formula" in asked.inject and size == 1024:
        flops *= 16
    moved = (2 * width + (2 if dtype in SCALED else width)) * size**2
    work = Work(name=f"gemm.{dtype}.{size}", unit="FLOP/s", amount=flops, dtype=dtype, size=size,
                operation="gemm", flops=flops, moved=moved)  # fmt: skip

    def prepare() -> Run:
        torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
        operands = Operands(torch, SimpleNamespace(device=asked.device, seed=asked.seed), dtype, size)
        layout = "scaled" if dtype in SCALED else "ab"
        turn = 0

        def step() -> object:
            nonlocal turn
            turn += 1
            return operands.product(layout, turn, turn % 2)

        try:
            operands.product(layout, 0)
        except RuntimeError as error:
            raise recognised(error, SCALED_REFUSED if dtype in SCALED else ()) from error
        # FP4 packs two values into an element, which torch's counter does not know.
        return Run(step=step, countable=dtype != "fp4", facts={"sets": operands.count})

    return Case(work=work, prepare=prepare)
