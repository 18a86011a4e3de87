"""Attention by plain products in FP64 on the CPU, and how far PyTorch's implementations are from that."""

from __future__ import annotations

import functools
import itertools
import math
import warnings
from typing import Any, NamedTuple

import torch
from numerics import FLOATS, Errors, leaves, short, spoil, usual_device
from torch.nn.attention import sdpa_kernel


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


CASES = (
    Case(128, 128, 64),
    Case(256, 256, 64, causal=True),
    Case(257, 257, 64, causal=True),
    Case(128, 128, 128, causal=True),
    Case(129, 391, 128),
    Case(1, 333, 64),
)
REFUSED = ("No available kernel", "No viable backend")


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


def attend(backend: Any, case: Case, dtype: Any) -> list[Any]:
    """The result and its gradients by one implementation; memory that it gets holds NaN."""
    inputs, direction, _ = exact(case, dtype)
    device = usual_device()
    tensors = leaves(*inputs, device=device)
    direction = direction.to(device)
    mask = bias(case).to(device, dtype) if case.mask else None
    options = {"enable_gqa": True} if case.groups > 1 else {}
    spoil(*tensors, *tensors, direction)
    with sdpa_kernel(backend):
        result = torch.nn.functional.scaled_dot_product_attention(
            *tensors, attn_mask=mask, is_causal=case.causal, **options
        )
        spoil(*tensors, *tensors, direction)
        gradients = torch.autograd.grad(result, tensors, direction)
    return [result, *gradients]


def compare(backend: Any, cases: tuple[Case, ...], errors: Errors, refusals: list[str]) -> list[Any]:
    """All cases and types; (case, type) that the implementation does not take go to `refusals`."""
    taken = []
    for case, dtype in itertools.product(cases, FLOATS):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            try:
                results = attend(backend, case, dtype)
            except RuntimeError as error:
                if not any(mark in str(error) for mark in REFUSED):
                    raise
                why = [str(each.message) for each in said if "Expected " in str(each.message)]
                reason = (why or [str(error)])[0].partition(" (Triggered")[0].partition(". This is")[0]
                refusals.append(f"{short(dtype)} {case}: {reason}"[:200])
                continue
        for name, mine, true in zip(
            ("result", "dQ", "dK", "dV"), results, exact(case, dtype)[2], strict=True
        ):
            errors.compare(f"{short(dtype)} {case}: {name}", mine, true)
        taken.append((case, dtype))
    return taken
