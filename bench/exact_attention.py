"""Attention and its gradients by plain products in FP64 on the CPU: what all others are compared with."""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import torch
from numerics import leaves


class Case(NamedTuple):
    """One problem; `keys` has `heads // groups` heads."""

    queries: int
    keys: int
    dim: int
    causal: bool = False
    mask: bool = False
    groups: int = 1
    batch: int = 1
    heads: int = 4

    def __str__(self) -> str:
        marks = [name for name in ("causal", "mask") if getattr(self, name)]
        marks += [f"{self.groups} query heads for each key"] if self.groups > 1 else []
        return f"{self.queries}x{self.keys}, head {self.dim}" + "".join(f", {mark}" for mark in marks)


@functools.cache
def exact(case: Case, dtype: Any) -> tuple[list[Any], Any, list[Any]]:
    """Inputs (rounded to `dtype`), the direction of the gradient, and the results in FP64."""
    random = torch.Generator().manual_seed(case.queries * 1000 + case.dim)
    few = case.heads // case.groups
    shapes = [
        (case.batch, heads, length, case.dim)
        for heads, length in ((case.heads, case.queries), (few, case.keys), (few, case.keys))
    ]
    inputs = [torch.randn(shape, generator=random, dtype=torch.float64).to(dtype) for shape in shapes]
    direction = torch.randn(shapes[0], generator=random, dtype=torch.float64).to(dtype)
    wide = leaves(*inputs, dtype=torch.float64)
    query, key, value = wide[0], *(each.repeat_interleave(case.groups, dim=1) for each in wide[1:])
    scores = query @ key.transpose(-1, -2) / math.sqrt(case.dim) + bias(case).double()
    result = torch.softmax(scores, dim=-1) @ value
    gradients = torch.autograd.grad(result, wide, direction.double())
    return inputs, direction, [result.detach(), *gradients]


def bias(case: Case) -> Any:
    """What is added to the scores: minus infinity where nothing may be seen."""
    shape = (case.queries, case.keys)
    if case.causal:
        return torch.full(shape, -math.inf).triu(1)
    if case.mask:
        return torch.linspace(-2, 2, case.queries * case.keys).reshape(shape)
    return torch.zeros(shape)
