"""Are sums, indices, orders and random numbers right? Against Python's own lists, mostly to the bit."""

from __future__ import annotations

import itertools
import math
import random
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from judging import run
from numerics import FLOATS, Errors, devices, normal, short, usual_device

F = torch.nn.functional


def check_reductions() -> str:
    """Sums, means and extremes along each axis, of sizes that fit no block."""
    errors = Errors()
    for dtype, shape in itertools.product(FLOATS, ((7, 4099, 3), (513, 1, 65))):
        x = (normal(*shape) + 0.25).to(dtype)
        for axis in (0, 1, 2, (0, 2), (0, 1, 2)):
            name, mine = f"{short(dtype)} {shape} axis {axis}", x.to(usual_device())
            errors.compare(f"sum {name}", mine.sum(axis), x.double().sum(axis))
            errors.compare(f"mean {name}", mine.mean(axis), x.double().mean(axis))
            errors.compare(f"amax {name}", mine.amax(axis), x.double().amax(axis), allowed=0)
    total = math.fsum(normal(100_003, dtype=torch.float32).tolist())
    mine = normal(100_003, dtype=torch.float32).to(usual_device()).sum()
    errors.compare("sum of 100003", mine, torch.tensor(total, dtype=torch.float64))
    return str(errors)


def check_indexing() -> str:
    """Gather, scatter, index and mask, with repeated targets; exact, by Python's lists."""
    numbers = random.Random(3)
    count, size = 4099, 257
    where = [numbers.randrange(size) for _ in range(count)]
    values = [numbers.randrange(100) for _ in range(count)]
    sums, last = [0] * size, dict(zip(where, values, strict=True))
    for at, value in zip(where, values, strict=True):
        sums[at] += value
    for device in devices():
        index, given = torch.tensor(where, device=device), torch.tensor(values, device=device)
        for dtype in (torch.float32, torch.int64):
            zeros, source = torch.zeros(size, dtype=dtype, device=device), given.to(dtype)
            found = {
                "scatter_add": torch.scatter_add(zeros, 0, index, source),
                "index_add": torch.index_add(zeros, 0, index, source),
                "index_put": torch.index_put(zeros, (index,), source, accumulate=True),
                "bincount": torch.bincount(index, weights=source, minlength=size),
            }
            for name, got in found.items():
                assert got.tolist() == sums, f"{name} of {short(dtype)} on {device} sums wrong"
        table = torch.arange(size, device=device) * 3
        wanted = [3 * at for at in where]
        read = {"gather": torch.gather(table, 0, index), "index_select": torch.index_select(table, 0, index),
                "index": table[index], "take": torch.take(table, index)}  # fmt: skip
        for name, got in read.items():
            assert got.tolist() == wanted, f"{name} on {device} reads wrong"
        distinct = torch.tensor(list(last), device=device)
        written = torch.scatter(torch.full((size,), -1, device=device), 0, distinct, distinct * 2)
        assert written.tolist() == [2 * at if at in last else -1 for at in range(size)], (
            f"scatter on {device}"
        )
        mask = given > 50
        chosen = [value for value in values if value > 50]
        assert torch.masked_select(given, mask).tolist() == chosen, f"masked_select on {device}"
        places = [at for at, value in enumerate(values) if value > 50]
        assert torch.nonzero(mask).flatten().tolist() == places, f"nonzero on {device}"
        assert torch.where(mask, given, -given).tolist() == [v if v > 50 else -v for v in values], (
            f"where on {device}"
        )
        embedded = F.embedding(index, torch.eye(size, device=device))
        assert embedded.argmax(-1).tolist() == where, f"embedding on {device}"
    return f"{count} indices into {size} places on {' and '.join(devices())}: exact"


def check_sorting() -> str:
    """Sort, top-k, unique, cumulative sum and product, search; short and long, exact by Python's lists."""
    for device, count in itertools.product(devices(), (1, 100, 5003, 100_003)):
        numbers = random.Random(count)
        values = [numbers.randrange(-1000, 1000) for _ in range(count)]
        given, name = torch.tensor(values, device=device), f"{count} on {device}"
        order = sorted(range(count), key=values.__getitem__)
        ranked = [values[at] for at in order]
        got, places = torch.sort(given, stable=True)
        assert got.tolist() == ranked, f"sort of {name}"
        assert places.tolist() == order, f"stable sort of {name}"
        assert torch.sort(given.float(), descending=True)[0].tolist() == ranked[::-1], (
            f"sort of floats, {name}"
        )
        few = min(count, 17)
        assert torch.topk(given, few)[0].tolist() == ranked[::-1][:few], f"topk of {name}"
        assert torch.cumsum(given, 0).tolist() == list(itertools.accumulate(values)), f"cumsum of {name}"
        assert torch.cummax(given, 0)[0].tolist() == list(itertools.accumulate(values, max)), (
            f"cummax of {name}"
        )
        kinds, counts = torch.unique(given, return_counts=True)
        assert kinds.tolist() == sorted(set(values)), f"unique of {name}"
        assert dict(zip(kinds.tolist(), counts.tolist(), strict=True)) == Counter(values), f"counts of {name}"
        found = torch.searchsorted(got, got)
        first = {value: at for at, value in reversed(list(enumerate(ranked)))}
        assert found.tolist() == [first[value] for value in ranked], f"searchsorted of {name}"
    return f"1 to 100003 numbers on {' and '.join(devices())}: exact"


def check_random() -> str:
    """Equal seeds give equal numbers, others do not; the numbers are spread as they should."""
    count, found = 100_000, []
    for device in devices():
        generator = torch.Generator(device=device)

        def draw(seed: int, kind: str, generator: Any = generator, device: str = device) -> Any:
            generator.manual_seed(seed)
            return getattr(torch, kind)(count, generator=generator, device=device)

        for kind, mean, spread in (("rand", 0.5, math.sqrt(1 / 12)), ("randn", 0.0, 1.0)):
            first = draw(7, kind)
            assert torch.equal(first, draw(7, kind)), f"{kind} on {device} is not repeated by its seed"
            assert not torch.equal(first, draw(8, kind)), (
                f"{kind} on {device}: another seed, the same numbers"
            )
            state = generator.get_state()
            more = torch.rand(100, generator=generator, device=device)
            generator.set_state(state)
            again = torch.rand(100, generator=generator, device=device)
            assert torch.equal(more, again), f"{kind} on {device} is not repeated by its state"
            off = abs(float(first.double().mean()) - mean) / spread * math.sqrt(count)
            assert off < 6, f"{kind} on {device}: mean {off:.1f} standard errors off"
            ratio = float(first.double().std()) / spread
            assert abs(ratio - 1) < 0.02, f"{kind} on {device}: spread {ratio:.3f} of what it should be"
        torch.manual_seed(7)
        mask = F.dropout(torch.ones(count, device=device), 0.25)
        torch.manual_seed(7)
        assert torch.equal(mask, F.dropout(torch.ones(count, device=device), 0.25)), f"dropout on {device}"
        kept = float((mask > 0).double().mean())
        assert abs(kept - 0.75) < 0.01, f"dropout on {device} keeps {kept:.3f}, not 0.75"
        assert sorted(torch.randperm(5003, device=device).tolist()) == list(range(5003)), (
            f"randperm on {device}"
        )
        found.append(f"{device} {float(draw(0, 'rand')[0]):.6f}")
    return f"repeatable; first number of seed 0: {', '.join(found)}"


CHECKS: dict[str, Callable[[], str]] = {
    "reductions": check_reductions,
    "indexing": check_indexing,
    "sorting": check_sorting,
    "random": check_random,
}


if __name__ == "__main__":
    sys.exit(run(CHECKS))
