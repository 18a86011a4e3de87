"""Memory bandwidth as STREAM measures it: copy, scale, triad."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from ceilings import plain_copy

from workloads import SHARES, Asked, Case, Run, Work, rotating

# name: vectors that one call reads and writes
KINDS = {"copy": 2, "scale": 2, "triad": 3}


def cases(asked: Asked) -> Iterator[Case]:
    sizes = asked.pick(cpu_quick=(24,), cpu=(26,), cuda_quick=(28,), cuda=(24, 26, 28, 29))
    return (_case(asked, kind, 1 << size) for kind in KINDS for size in sizes)


def _case(asked: Asked, kind: str, count: int) -> Case:
    # Each vector passes once between memory and processor. Caches that write through without reading
    # first do no more than that; others read what they write, which STREAM does not count either.
    moved = float(KINDS[kind] * count * 4)
    flops = {"copy": None, "scale": float(count), "triad": 2.0 * count}[kind]
    if "formula" in asked.inject:
        moved *= 2
    work = Work(name=f"bandwidth.{kind}.{count * 4 >> 20}MiB", unit="B/s", amount=moved, dtype="fp32",
                size=count, operation="copy", flops=flops, moved=moved)  # fmt: skip
    return Case(work=work, prepare=lambda: _run(asked, kind, count))


def _run(asked: Asked, kind: str, count: int) -> Run:
    def vectors() -> list[Any]:
        return [torch.rand(count, device=asked.device) for _ in range(3)]

    sets = rotating(torch, asked.device, vectors, 12 * count)
    turn = 0

    def step() -> object:
        nonlocal turn
        turn += 1
        a, b, c = sets[turn % len(sets)]
        kinds: dict[str, Callable[[], object]] = {
            "copy": lambda: c.copy_(a),
            "scale": lambda: torch.mul(a, 3.0, out=c),
            "triad": lambda: torch.add(a, b, alpha=3.0, out=c),
        }
        return kinds[kind]()

    return Run(
        step=step,
        countable=False,  # torch counts products of matrices only
        plain=plain_copy(torch, asked.device),
        share=SHARES[asked.device],
    )
