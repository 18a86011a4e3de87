"""How far results are from exact ones. For check scripts: nothing but torch and the standard library."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

# Largest error allowed, relative to the largest element of the exact result: some units of what the type
# resolves (6e-8, 5e-4, 4e-3), because sums of products are longer than one.
ALLOWED = {
    torch.float64: 1e-11,
    torch.complex128: 1e-11,
    torch.float32: 1e-4,
    torch.complex64: 1e-4,
    torch.float16: 8e-3,
    torch.bfloat16: 5e-2,
}
FLOATS = (torch.float32, torch.float16, torch.bfloat16)


def short(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def devices() -> list[str]:
    """The CPU, and the GPU where there is one."""
    return ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


def usual_device() -> str:
    return devices()[-1]


def normal(*shape: int, seed: int = 0, dtype: Any = torch.float64) -> Any:
    """Normally distributed numbers, the same each time."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def spoil(*tensors: Any) -> None:
    """Leave NaN in freed memory of these tensors' sizes: what is allocated next but not written shows it."""
    spare = [torch.full_like(each, float("nan")) for each in tensors if each.is_floating_point()]
    del spare


def leaves(*tensors: Any, dtype: Any = None, device: str = "cpu") -> list[Any]:
    """Copies of these that gradients can be asked of."""
    return [
        each.detach().to(device=device, dtype=dtype or each.dtype, copy=True).requires_grad_()
        for each in tensors
    ]


class Errors:
    """Compares results with exact ones and keeps the largest error of each type."""

    def __init__(self) -> None:
        self.count = 0
        self._worst: dict[Any, tuple[float, float]] = {}

    def compare(
        self, what: str, got: Any, exact: Any, *, allowed: float | None = None, kind: Any = None
    ) -> None:
        """AssertionError unless `got` is `exact` (FP64) within what its type (`kind`) allows."""
        kind = kind or got.dtype
        limit = ALLOWED[kind] if allowed is None else allowed
        assert got.shape == exact.shape, f"{what}: shape {tuple(got.shape)}, not {tuple(exact.shape)}"
        wide = torch.complex128 if exact.is_complex() else torch.float64
        mine, true = got.detach().to("cpu", wide), exact.detach().to("cpu", wide)
        bad = int((~torch.isfinite(mine)).sum())
        assert not bad, f"{what}: {bad} of {mine.numel()} elements are not finite, or were not written"
        largest = float(true.abs().max()) or 1.0
        error = float((mine - true).abs().max()) / largest
        assert error <= limit, f"{what}: relative error {error:.1e}, allowed {limit:.0e}"
        self.count += 1
        if error >= self._worst.get(kind, (-1.0, 0.0))[0]:
            self._worst[kind] = (error, limit)

    def __str__(self) -> str:
        """Such as "36 results; largest error float16 4.1e-04 (8e-03 allowed)"."""
        worst = ", ".join(
            f"{short(kind)} {error:.1e} ({limit:.0e} allowed)" for kind, (error, limit) in self._worst.items()
        )
        return f"{self.count} results; largest error {worst}"


def differentiate(
    errors: Errors,
    what: str,
    operator: Callable[..., Any],
    plain: Callable[..., Any],
    *inputs: Any,
    dtype: Any,
    allowed: float | None = None,
) -> None:
    """Compare an operator and its gradients with the plain form of it in FP64.

    `allowed`: the largest relative error; by default what the type of each result allows.
    """
    rounded = [each.to(dtype) for each in inputs]
    mine = leaves(*rounded, device=usual_device())
    true = leaves(*rounded, dtype=torch.float64)
    spoil(*mine, *mine)
    result, exact = operator(*mine), plain(*true)
    direction = normal(*exact.shape, seed=9).to(result.dtype)
    spoil(*mine, *mine)
    gradients = torch.autograd.grad(result, mine, direction.to(result.device))
    wanted = torch.autograd.grad(exact, true, direction.double())
    errors.compare(what, result, exact, allowed=allowed)
    for number, (got, want) in enumerate(zip(gradients, wanted, strict=True)):
        # A bias sums over everything: its gradient grows, the error of what is summed does, too.
        errors.compare(f"{what}: gradient {number}", got, want, allowed=allowed)
