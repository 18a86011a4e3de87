"""Are products, conversions and walks of torch-sparse right? Products with gradients, against FP64."""

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

# Rows, columns, entries, and columns of the dense factor. Rows are empty, and longer than a warp.
SHAPES = ((1, 1, 1, 1), (5, 7, 11, 3), (33, 129, 400, 33), (200, 3, 150, 64), (3, 300, 500, 17))
REFUSED = "not implemented for"  # how torch says that a kernel was not compiled for a type


def entries(rows: int, columns: int, count: int, seed: int = 0) -> tuple[Any, Any]:
    """Different places of a matrix, sorted by row and column."""
    import torch

    generator = torch.Generator().manual_seed(rows + seed)
    places = torch.randperm(rows * columns, generator=generator)[:count].sort()[0]
    return places // columns, places % columns


def matrix(row: Any, column: Any, value: Any, rows: int, columns: int) -> Any:
    import torch_sparse

    sizes = (rows, columns)
    return torch_sparse.SparseTensor(row=row, col=column, value=value, sparse_sizes=sizes, is_sorted=True)


def dense(row: Any, column: Any, value: Any, rows: int, columns: int) -> Any:
    import torch

    return torch.zeros(rows, columns, dtype=value.dtype).index_put((row, column), value)


def plain(reduce: str, row: Any, column: Any, value: Any, factor: Any, rows: int) -> Any:
    """Multiply in FP64, row by row; empty rows give 0."""
    import torch

    products = value[:, None] * factor[column]
    results = []
    for number in range(rows):
        mine = products[row == number]
        if not len(mine):
            results.append(torch.zeros_like(factor[0]))
        elif reduce in ("sum", "mean"):
            results.append(getattr(mine, reduce)(0))
        else:
            results.append(getattr(mine, f"a{reduce}")(0))
    return torch.stack(results)


def check_products() -> str:
    """A sparse matrix times a dense one; gradients of both."""
    import torch
    import torch_sparse
    from numerics import FLOATS, Errors, differentiate, normal, short, usual_device

    errors, refused = Errors(), set()
    for reduce, (rows, columns, count, width), dtype in itertools.product(
        ("sum", "mean", "min", "max"), SHAPES, (torch.float64, *FLOATS)
    ):
        row, column = entries(rows, columns, count)
        there = [each.to(usual_device()) for each in (row, column)]
        if reduce in ("sum", "mean"):
            value, factor = normal(len(row), seed=1), normal(columns, width, seed=2)
        else:  # products that every type resolves, no two of them equal: the place of the extreme is certain
            generator = torch.Generator().manual_seed(width)
            value = torch.randint(0, 2, (len(row),), generator=generator).double() * 2 - 1
            ranks = [torch.randperm(columns, generator=generator) for _ in range(width)]
            factor = (torch.stack(ranks, 1) % 255 + 1).double() / 64

        def operator(
            value: Any, factor: Any, there: Any = there, sizes: Any = (rows, columns), reduce: str = reduce
        ) -> Any:
            return torch_sparse.matmul(matrix(*there, value, *sizes), factor, reduce)

        def exact(
            value: Any,
            factor: Any,
            row: Any = row,
            column: Any = column,
            rows: int = rows,
            reduce: str = reduce,
        ) -> Any:
            return plain(reduce, row, column, value, factor, rows)

        what = f"{short(dtype)} {reduce} {(rows, columns, count, width)}"
        try:
            differentiate(errors, what, operator, exact, value, factor, dtype=dtype)
        except (RuntimeError, NotImplementedError) as error:
            if REFUSED not in str(error):
                raise
            assert dtype not in (torch.float64, torch.float32), f"{what}: refused"
            refused.add(short(dtype))
    assert errors.count, "not one product was computed"
    return str(errors) + (f"; no kernels for {', '.join(sorted(refused))}" if refused else "")


def check_sparse_products() -> str:
    """Sparse times sparse, and what torch-sparse calls coalesce and transpose."""
    import torch
    import torch_sparse
    from numerics import Errors, normal, short, usual_device

    errors = Errors()
    for (rows, columns, count, width), dtype in itertools.product(SHAPES, (torch.float64, torch.float32)):
        left, right = entries(rows, columns, count), entries(columns, width, min(count, columns * width), 1)
        values = [normal(len(each[0]), seed=seed).to(dtype) for seed, each in enumerate((left, right))]
        sizes = ((rows, columns), (columns, width))
        wide = [dense(*each, value.double(), *size) for each, value, size in
                zip((left, right), values, sizes, strict=True)]  # fmt: skip
        mine = [matrix(*(part.to(usual_device()) for part in (*each, value)), *size)
                for each, value, size in zip((left, right), values, sizes, strict=True)]  # fmt: skip
        name = f"{short(dtype)} {(rows, columns, width)}"
        errors.compare(f"product {name}", torch_sparse.matmul(*mine).to_dense(), wide[0] @ wide[1])
        errors.compare(f"transpose {name}", mine[0].t().to_dense(), wide[0].t())
        doubled = [torch.cat([part, part.flip(0)]).to(usual_device()) for part in (*left, values[0])]
        index, value = torch_sparse.coalesce(torch.stack(doubled[:2]), doubled[2], rows, columns, op="add")
        summed = dense(*index.cpu(), value.cpu().double(), rows, columns)
        errors.compare(f"coalesce {name}", summed, 2 * wide[0], kind=dtype)
    return str(errors)


def check_conversions() -> str:
    """Row numbers to bounds and back, the diagonal, reductions by row and column: exactly."""
    import torch
    import torch_sparse
    from numerics import usual_device

    count = 0
    for rows, columns, number, _ in SHAPES:
        row, column = entries(rows, columns, number)
        value = (torch.arange(len(row)) % 100 + 1).float()
        sparse = matrix(*(part.to(usual_device()) for part in (row, column, value)), rows, columns)
        whole = dense(row, column, value, rows, columns)
        bounds = torch.searchsorted(row, torch.arange(rows + 1))
        assert torch.equal(sparse.storage.rowptr().cpu(), bounds), f"{rows} rows: other bounds"
        back = torch.ops.torch_sparse.ptr2ind(bounds.to(usual_device()), len(row))
        assert torch.equal(back.cpu(), row), f"{rows} rows: other numbers from the bounds"
        for axis, reduce in itertools.product((0, 1), ("sum", "max")):
            found = getattr(torch_sparse, reduce)(sparse, dim=axis).cpu()
            wanted = whole.sum(axis) if reduce == "sum" else whole.amax(axis)
            assert torch.equal(found, wanted), f"{reduce} along {axis} of {rows} x {columns}"
        short = min(rows, columns)
        ones = torch_sparse.set_diag(sparse, torch.full((short,), 7.0, device=usual_device()))
        wanted = whole.clone().fill_diagonal_(0)
        wanted[range(short), range(short)] = 7.0
        assert torch.equal(ones.to_dense().cpu(), wanted), f"set_diag of {rows} x {columns}"
        assert torch.equal(torch_sparse.get_diag(ones).cpu(), torch.full((short,), 7.0)), "get_diag"
        wanted[range(short), range(short)] = 0.0
        assert torch.equal(torch_sparse.remove_diag(ones).to_dense().cpu(), wanted), "remove_diag"
        count += 8
    return f"{count} results, all exact"


def check_walks() -> str:
    """Random walks go along entries; samples of neighbours are neighbours (the latter on the CPU only)."""
    import torch
    import torch_sparse
    from numerics import usual_device

    row, column = entries(60, 60, 400)
    # On the CPU a walk goes on with another row's entries where a row has none.
    onward = torch.arange(60) * 60 + (torch.arange(60) + 7) % 60
    places = torch.cat([row * 60 + column, onward]).unique()
    row, column = places // 60, places % 60
    steps = {*zip(row.tolist(), column.tolist(), strict=True)}
    graph = matrix(row.to(usual_device()), column.to(usual_device()), None, 60, 60)
    walks = torch_sparse.random_walk(graph, torch.arange(60, device=usual_device()), 20).cpu()
    assert walks.shape == (60, 21), f"walks of shape {tuple(walks.shape)}"
    assert torch.equal(walks[:, 0], torch.arange(60)), "walks begin elsewhere"
    for walk in walks.tolist():
        for here, there in itertools.pairwise(walk):
            assert (here, there) in steps, f"a walk goes from {here} to {there}, where nothing is"
    assert len(set(walks[:, 1:].flatten().tolist())) > 30, "walks see few places"
    subset = torch.arange(0, 60, 7)
    sampled, nodes = torch_sparse.sample_adj(matrix(row, column, None, 60, 60), subset, 3, replace=False)
    found = list(zip(*(part.tolist() for part in sampled.coo()[:2]), strict=True))
    assert torch.equal(nodes[: len(subset)], subset), "the sample begins with other nodes"
    for target, source in found:
        assert (subset[target].item(), nodes[source].item()) in steps, "no neighbours were sampled"
    degrees = torch.bincount(row, minlength=60)[subset].clamp(max=3)
    assert len(found) == int(degrees.sum()), f"{len(found)} neighbours, not {int(degrees.sum())}"
    return f"60 walks of 20 steps, {len(found)} sampled neighbours"


CHECKS: dict[str, Callable[[], str]] = {
    "import": functools.partial(kernels_inside, "torch_sparse"),
    "products": check_products,
    "sparse-products": check_sparse_products,
    "conversions": check_conversions,
    "walks": check_walks,
}


if __name__ == "__main__":
    sys.exit(run(CHECKS))
