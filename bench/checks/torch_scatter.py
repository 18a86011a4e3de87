"""Are scatter, segment and gather of torch-scatter right, forward and backward? By masks in FP64."""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
# This file has the name of a package, for which its folder must not stand in.
sys.path[:] = [str(HERE.parent), *(entry for entry in sys.path if Path(entry or ".").resolve() != HERE)]

from judging import kernels_inside, run  # noqa: E402 - the path comes first

# Before, along and after the axis that is reduced, and the number of groups: some of them are empty.
SHAPES = ((1, 1, 1, 1), (1, 37, 1, 5), (1, 257, 7, 31), (3, 64, 33, 70), (5, 129, 2, 3))
EMPTY = {"sum": 0.0, "mul": 1.0, "min": float("inf"), "max": float("-inf")}


def values(before: int, along: int, after: int) -> Any:
    """Numbers that all types resolve and no two of which are equal along the axis: no ties."""
    import torch

    generator = torch.Generator().manual_seed(along)
    rows = [torch.randperm(along, generator=generator) for _ in range(before * after)]
    numbers = torch.stack(rows).double().reshape(before, after, along).transpose(1, 2)
    return ((numbers - along / 2 + 0.5) / 64).contiguous()


def groups(before: int, along: int, after: int, size: int, *, whole: bool, ordered: bool = False) -> Any:
    """To which group each belongs; `whole`: not by the place on the axis alone."""
    import torch

    shape = (before, along, after) if whole else (along,)
    index = torch.randint(size, shape, generator=torch.Generator().manual_seed(size))
    return index.sort(dim=-1)[0] if ordered else index


def plain(reduce: str, x: Any, index: Any, size: int) -> Any:
    """Reduce axis 1 in FP64 by a mask for each group; what nothing fell into is 0, a product 1."""
    import torch

    if index.dim() == 1:
        index = index[:, None].expand(x.shape)
    results = []
    for group in range(size):
        mask = index == group
        if reduce == "mean":
            results.append(torch.where(mask, x, 0.0).sum(1) / mask.sum(1).clamp(min=1))
            continue
        masked = torch.where(mask, x, EMPTY[reduce])
        if reduce in ("sum", "mul"):
            results.append(masked.sum(1) if reduce == "sum" else masked.prod(1))
        else:
            found = masked.amax(1) if reduce == "max" else masked.amin(1)
            results.append(torch.where(mask.any(1), found, 0.0))
    return torch.stack(results, dim=1)


def compare(
    errors: Any,
    what: str,
    operator: Callable[[Any], Any],
    plain: Callable[[Any], Any],
    x: Any,
    *,
    times: int = 1,
    least_bits: int = 16,
) -> None:
    """Compare result and gradient in every floating-point type with the plain form in FP64.

    times: how much more than usual the error may be; least_bits: of the types that are compared.
    """
    import torch
    from numerics import ALLOWED, FLOATS, differentiate, short

    for dtype in (torch.float64, *FLOATS):
        if torch.finfo(dtype).bits < least_bits:
            continue
        allowed = times * ALLOWED[dtype]
        differentiate(errors, f"{short(dtype)} {what}", operator, plain, x, dtype=dtype, allowed=allowed)


def check_scatter() -> str:
    """By places in any order, one for each row or one for each element."""
    import torch_scatter
    from numerics import Errors, usual_device

    errors = Errors()
    for reduce, shape, whole in itertools.product(
        ("sum", "mean", "mul", "min", "max"), SHAPES, (False, True)
    ):
        x, size = values(*shape[:3]), shape[3]
        if reduce == "mul":  # near 1, so that neither products nor the divisions of their gradient overflow
            x = 1 + x / 8
        index = groups(*shape, whole=whole)
        there = index.to(usual_device())

        def operator(x: Any, there: Any = there, size: int = size, reduce: str = reduce) -> Any:
            function = getattr(torch_scatter, f"scatter_{reduce}")
            wide = there[:, None].expand(x.shape) if there.dim() == 1 else there
            found = function(x, wide, dim=1, dim_size=size)
            return found[0] if reduce in ("min", "max") else found

        def exact(x: Any, index: Any = index, size: int = size, reduce: str = reduce) -> Any:
            return plain(reduce, x, index, size)

        compare(errors, f"{reduce} {shape}{' by element' if whole else ''}", operator, exact, x)
    return str(errors)


def check_arguments() -> str:
    """Where minimum and maximum stood: those places hold them, and empty groups name none."""
    import torch
    import torch_scatter
    from numerics import FLOATS, short, usual_device

    count = 0
    for reduce, shape, dtype in itertools.product(("min", "max"), SHAPES, FLOATS):
        x, size = values(*shape[:3]).to(dtype), shape[3]
        index = groups(*shape, whole=True)
        function = getattr(torch_scatter, f"scatter_{reduce}")
        found, places = function(x.to(usual_device()), index.to(usual_device()), dim=1, dim_size=size)
        found, places = found.cpu(), places.cpu()
        empty = places == x.shape[1]
        name = f"{reduce} {short(dtype)} {shape}"
        counts = torch.zeros(found.shape).scatter_add_(1, index, torch.ones(index.shape))
        assert torch.equal(empty, counts == 0), f"{name}: other groups are empty"
        clamped = places.clamp(max=x.shape[1] - 1)
        there = torch.where(empty, torch.zeros_like(found), x.gather(1, clamped))
        assert torch.equal(there, found), f"{name}: not what stands at the places that it names"
        groups_there = torch.where(empty, torch.arange(size)[None, :, None], index.gather(1, clamped))
        assert (groups_there == torch.arange(size)[None, :, None]).all(), f"{name}: a place in another group"
        count += 1
    return f"{count} results: the places hold what was found"


def check_segments() -> str:
    """Sorted groups, by their numbers (COO) and by their bounds (CSR)."""
    import torch
    import torch_scatter
    from numerics import Errors, usual_device

    errors = Errors()
    for reduce, shape in itertools.product(("sum", "mean", "min", "max"), SHAPES):
        before, along, after, size = shape
        x = values(before, along, after)
        index = groups(1, along, 1, size, whole=False, ordered=True)
        bounds = torch.searchsorted(index, torch.arange(size + 1))

        def exact(x: Any, index: Any = index, size: int = size, reduce: str = reduce) -> Any:
            return plain(reduce, x, index, size)

        for kind, where in (("coo", index), ("csr", bounds)):
            there = where[None].expand(before, -1).contiguous().to(usual_device())
            extra = {"dim_size": size} if kind == "coo" else {}

            def operator(
                x: Any, there: Any = there, name: str = f"segment_{reduce}_{kind}", extra: Any = extra
            ) -> Any:
                found = getattr(torch_scatter, name)(x, there, **extra)
                return found[0] if isinstance(found, tuple) else found

            compare(errors, f"segment_{reduce}_{kind} {shape}", operator, exact, x)
    return str(errors)


def check_gather() -> str:
    """The reverse of segments: each gets what its group has."""
    import torch
    import torch_scatter
    from numerics import Errors, usual_device

    errors = Errors()
    for before, along, after, size in SHAPES:
        x = values(before, size, after)
        index = groups(1, along, 1, size, whole=False, ordered=True)
        bounds = torch.searchsorted(index, torch.arange(size + 1))
        for kind, where in (("coo", index), ("csr", bounds)):
            there = where[None].expand(before, -1).contiguous().to(usual_device())

            def operator(x: Any, there: Any = there, kind: str = kind) -> Any:
                return getattr(torch_scatter, f"gather_{kind}")(x, there)

            def exact(x: Any, index: Any = index) -> Any:
                return x[:, index]

            compare(errors, f"gather_{kind} {(before, along, after, size)}", operator, exact, x)
    return str(errors)


def plain_composite(name: str, x: Any, *, index: Any, size: int) -> Any:
    sums = plain("sum", x.exp(), index, size)
    if name == "logsumexp":  # torch-scatter has a floor, so that empty groups are not infinite
        return (sums + (sums == 0)).log() * (sums != 0)
    found = x - sums.gather(1, index).log()
    return found.exp() if name == "softmax" else found


def check_composites() -> str:
    """Softmax, its logarithm, and the logarithm of sums of powers, group by group."""
    import torch_scatter
    from numerics import Errors, usual_device

    errors = Errors()
    # A group's sum is rounded at each step, in any order on a GPU. The gradient of logsumexp is off by that
    # times the sum: in 16 bits by up to 0.4 in groups of sixty (seen), so there groups have about four.
    for shape, few in itertools.product(SHAPES[1:], (False, True)):
        x = values(*shape[:3])
        size = shape[1] // 4 if few else shape[3]
        index = groups(*shape[:3], size, whole=True)
        options = {"index": index.to(usual_device()), "dim": 1}
        for name in ("softmax", "log_softmax", "logsumexp"):
            extra = {"dim_size": size} if name == "logsumexp" else {}
            operator = functools.partial(getattr(torch_scatter, f"scatter_{name}"), **options, **extra)
            exact = functools.partial(plain_composite, name, index=index, size=size)
            what, times = f"{name} {(*shape[:3], size)}", 1 if name == "softmax" else 4
            compare(errors, what, operator, exact, x, times=times, least_bits=16 if few else 32)
    return str(errors)


CHECKS: dict[str, Callable[[], str]] = {
    "import": functools.partial(kernels_inside, "torch_scatter"),
    "scatter": check_scatter,
    "arguments": check_arguments,
    "segments": check_segments,
    "gather": check_gather,
    "composites": check_composites,
}


if __name__ == "__main__":
    sys.exit(run(CHECKS))
