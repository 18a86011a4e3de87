"""Are neighbours, cells, pairs and walks of torch-cluster right? By distances in FP64, or what must hold."""

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

# Points to find, points that ask, dimensions; both are spread over three clouds.
SHAPES = ((7, 5, 2), (130, 65, 3), (999, 33, 17))
REFUSED = "not implemented for"  # how torch says that a kernel was not compiled for a type


def clouds(count: int, dimensions: int, seed: int) -> tuple[Any, Any]:
    """Points, and to which of three clouds each belongs."""
    import torch
    from numerics import normal

    return normal(count, dimensions, seed=seed), torch.arange(count) * 3 // count


def each_type(search: Callable[[Any, Any, str], None]) -> str:
    """Run a search for all shapes and types; returns how many, and which types it was not compiled for."""
    import torch
    from numerics import FLOATS, short

    count, refused = 0, set()
    for shape, dtype in itertools.product(SHAPES, (torch.float64, *FLOATS)):
        try:
            search(shape, dtype, f"{short(dtype)} {shape}")
        except (RuntimeError, NotImplementedError) as error:
            if REFUSED not in str(error):
                raise
            refused.add(short(dtype))
            continue
        count += 1
    assert count >= 2 * len(SHAPES), f"refused for {', '.join(sorted(refused))}"
    return f"{count} searches" + (f"; no kernels for {', '.join(sorted(refused))}" if refused else "")


def tolerance(dtype: Any) -> float:
    """How far a distance may be off: the kernels compute in the points' type."""
    from numerics import ALLOWED

    return 4 * ALLOWED[dtype]


def check_knn() -> str:
    """The distances of the neighbours found are the smallest ones, of the same cloud."""
    import torch
    import torch_cluster
    from numerics import usual_device

    def search(shape: Any, dtype: Any, name: str) -> None:
        many, few, dimensions = shape
        (x, of_x), (y, of_y) = clouds(many, dimensions, 1), clouds(few, dimensions, 2)
        x, y = x.to(dtype), y.to(dtype)
        there = [each.to(usual_device()) for each in (x, y, of_x, of_y)]
        asking, found = torch_cluster.knn(there[0], there[1], 2, there[2], there[3]).cpu()
        distances = torch.cdist(y.double(), x.double())
        for number in range(few):
            mine = found[asking == number]
            own = distances[number][of_x == of_y[number]].sort()[0][:2]
            assert len(set(mine.tolist())) == len(own), f"{name}: {len(mine)} neighbours, not {len(own)}"
            assert (of_x[mine] == of_y[number]).all(), f"{name}: a neighbour of another cloud"
            error = (distances[number][mine].sort()[0] - own).abs().max() / distances.max()
            assert error <= tolerance(dtype), f"{name}: neighbours are farther away by {error:.1e}"

    return each_type(search)


def check_radius() -> str:
    """All within the radius are found and no other, but for those at its very edge."""
    import torch
    import torch_cluster
    from numerics import usual_device

    def search(shape: Any, dtype: Any, name: str) -> None:
        many, few, dimensions = shape
        (x, of_x), (y, of_y) = clouds(many, dimensions, 1), clouds(few, dimensions, 2)
        x, y = x.to(dtype), y.to(dtype)
        distances = torch.cdist(y.double(), x.double())
        distances[of_y[:, None] != of_x] = torch.inf
        reach = distances[distances.isfinite()].quantile(0.3).item()
        there = [each.to(usual_device()) for each in (x, y, of_x, of_y)]
        asking, found = torch_cluster.radius(*there[:2], reach, *there[2:], max_num_neighbors=many).cpu()
        inside_it = torch.zeros(distances.shape, dtype=torch.bool)
        inside_it[asking, found] = True
        edge = (distances - reach).abs() <= tolerance(dtype) * reach
        wrong = (inside_it != (distances < reach)) & ~edge
        assert not wrong.any(), f"{name}: {int(wrong.sum())} pairs are wrong"
        assert len(found) == int(inside_it.sum()), f"{name}: pairs are found twice"

    return each_type(search)


def check_nearest() -> str:
    import torch
    import torch_cluster
    from numerics import usual_device

    def search(shape: Any, dtype: Any, name: str) -> None:
        many, few, dimensions = shape
        (x, of_x), (y, of_y) = clouds(many, dimensions, 1), clouds(few, dimensions, 2)
        x, y = x.to(dtype), y.to(dtype)
        there = [each.to(usual_device()) for each in (x, y, of_x, of_y)]
        found = torch_cluster.nearest(*there).cpu()
        distances = torch.cdist(x.double(), y.double())
        distances[of_x[:, None] != of_y] = torch.inf
        mine = distances.gather(1, found[:, None])[:, 0]
        error = (mine - distances.amin(1)).abs().max() / distances[distances.isfinite()].max()
        assert error <= tolerance(dtype), f"{name}: not the nearest, by {error:.1e}"

    return each_type(search)


def check_farthest() -> str:
    """Each point chosen is the farthest from those before it, in its cloud."""
    import torch
    import torch_cluster
    from numerics import usual_device

    def search(shape: Any, dtype: Any, name: str) -> None:
        many, _, dimensions = shape
        x, of_x = clouds(many, dimensions, 1)
        x = x.to(dtype)
        there = x.to(usual_device()), of_x.to(usual_device())
        chosen = torch_cluster.fps(*there, ratio=0.5, random_start=False).cpu()
        for cloud in range(3):
            mine = chosen[of_x[chosen] == cloud]
            points = x[of_x == cloud].double()
            wanted = -(-len(points) // 2)
            assert len(set(mine.tolist())) == wanted, f"{name}: {len(mine)} points, not {wanted}"
            near = torch.full((len(points),), torch.inf, dtype=torch.float64)
            first = int((of_x < cloud).sum())
            for place, number in enumerate((mine - first).tolist()):
                if place:
                    short = (near.max() - near[number]) / near.max()
                    assert short <= tolerance(dtype), f"{name}: a farther one was there, by {short:.1e}"
                near = torch.minimum(near, (points - points[number]).norm(dim=1))

    return each_type(search)


def check_grid() -> str:
    """Points of one cell, and only they, get one number."""
    import torch
    import torch_cluster
    from numerics import usual_device

    def search(shape: Any, dtype: Any, name: str) -> None:
        many, _, dimensions = shape
        dimensions = min(dimensions, 3)
        generator = torch.Generator().manual_seed(many)
        cells = torch.randint(0, 4, (many, dimensions), generator=generator)
        points = (cells * 2 + 0.25 + torch.randint(0, 6, cells.shape, generator=generator) / 4).to(dtype)
        size, start = torch.full((dimensions,), 2.0, dtype=dtype), torch.zeros(dimensions, dtype=dtype)
        there = [each.to(usual_device()) for each in (points, size, start, start + 8)]
        found = torch_cluster.grid_cluster(*there).cpu()
        pairs = {*zip(map(tuple, cells.tolist()), found.tolist(), strict=True)}
        assert len({cell for cell, _ in pairs}) == len({number for _, number in pairs}) == len(pairs), (
            f"{name}: points of one cell have several numbers, or of several one"
        )

    return each_type(search)


def check_matching() -> str:
    """Graclus: clusters of one or of two that are joined by an edge, and no edge between two of one."""
    import torch
    import torch_cluster
    from numerics import usual_device

    for nodes, edges in ((5, 8), (100, 400), (1000, 1500)):
        generator = torch.Generator().manual_seed(nodes)
        one, two = torch.randint(0, nodes, (2, edges), generator=generator)
        one, two = one[one != two], two[one != two]
        row, column = torch.cat([one, two]), torch.cat([two, one])
        joined = {*zip(row.tolist(), column.tolist(), strict=True)}
        weight = torch.rand(len(one), generator=generator).repeat(2)
        for extra in ((), (weight.to(usual_device()),)):
            there = row.to(usual_device()), column.to(usual_device())
            found = torch_cluster.graclus_cluster(*there, *extra, num_nodes=nodes).cpu()
            members: dict[int, list[int]] = {}
            for node, cluster in enumerate(found.tolist()):
                members.setdefault(cluster, []).append(node)
            for mine in members.values():
                assert len(mine) == 1 or tuple(mine) in joined, f"{mine} is no pair with an edge"
            alone = {mine[0] for mine in members.values() if len(mine) == 1}
            left = [pair for pair in joined if {*pair} <= alone]
            assert not left, f"{left[0]} could have been a pair"
    return "6 matchings: pairs with an edge, and none was left out"


def check_walks() -> str:
    """Random walks go along edges, with a bias and without; sampled neighbours are neighbours (CPU only)."""
    import torch
    import torch_cluster
    from numerics import usual_device

    generator = torch.Generator().manual_seed(0)
    places = torch.randperm(60 * 60, generator=generator)[:400].sort()[0]
    row, column = places // 60, places % 60
    edges = {*zip(row.tolist(), column.tolist(), strict=True)}
    start = torch.arange(60)
    there = [each.to(usual_device()) for each in (row, column, start)]
    for p, q in ((1.0, 1.0), (0.5, 2.0)):
        walks = torch_cluster.random_walk(*there, 20, p=p, q=q, num_nodes=60).cpu()
        assert walks.shape == (60, 21), f"walks of shape {tuple(walks.shape)}"
        assert torch.equal(walks[:, 0], start), "walks begin elsewhere"
        stuck = set(range(60)) - set(row.tolist())
        for pair in (pair for walk in walks.tolist() for pair in itertools.pairwise(walk)):
            assert pair in edges or (pair[0] in stuck and pair[0] == pair[1]), f"no edge is {pair}"
        assert len(set(walks[:, 1:].flatten().tolist())) > 30, "walks see few nodes"
    bounds = torch.searchsorted(row, torch.arange(61))
    found = torch_cluster.neighbor_sampler(start, bounds, 2.0)
    degrees = torch.bincount(row, minlength=60).clamp(max=2)
    assert len(set(found.tolist())) == len(found) == int(degrees.sum()), "other numbers of neighbours"
    assert torch.equal(torch.bincount(row[found], minlength=60), degrees), "neighbours of other nodes"
    return f"120 walks of 20 steps, {len(found)} sampled neighbours"


CHECKS: dict[str, Callable[[], str]] = {
    "import": functools.partial(kernels_inside, "torch_cluster"),
    "knn": check_knn,
    "radius": check_radius,
    "nearest": check_nearest,
    "farthest": check_farthest,
    "grid": check_grid,
    "matching": check_matching,
    "walks": check_walks,
}


if __name__ == "__main__":
    sys.exit(run(CHECKS))
