"""Sums and products element by element, over number formats."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from ceilings import plain_copy

from workloads import SHARES, SIZES, Asked, Case, Run, Work, rotating

FORMATS = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def cases(asked: Asked) -> Iterator[Case]:
    count = asked.pick(cpu_quick=1 << 23, cpu=1 << 25, cuda_quick=1 << 28, cuda=1 << 29)
    for kind in ("add", "mul"):
        for dtype in ("fp32", "bf16") if asked.device == "cpu" else FORMATS:
            yield _case(asked, kind, dtype, count)


def _case(asked: Asked, kind: str, dtype: str, count: int) -> Case:
    moved = 3.0 * count * SIZES[dtype]  # two operands are read, one result is written
    work = Work(name=f"elementwise.{kind}.{dtype}", unit="B/s", amount=moved, dtype=dtype, size=count,
                operation="elementwise", flops=float(count), moved=moved)  # fmt: skip

    def vectors() -> list[Any]:
        return [torch.rand(count, device=asked.device).to(FORMATS[dtype]) for _ in range(3)]

    def prepare() -> Run:
        sets = rotating(torch, asked.device, vectors, 3 * count * SIZES[dtype])
        operation = getattr(torch, kind)
        turn = 0

        def step() -> object:
            nonlocal turn
            turn += 1
            a, b, c = sets[turn % len(sets)]
            return operation(a, b, out=c)

        # A CPU without BF16 arithmetic converts on the way: slower than a copy, never faster.
        low, high = SHARES[asked.device]
        low /= 4 if asked.device == "cpu" and dtype == "bf16" else 1
        return Run(
            step=step,
            countable=False,
            plain=plain_copy(torch, asked.device),
            share=(low, high),
        )

    return Case(work=work, prepare=prepare)
