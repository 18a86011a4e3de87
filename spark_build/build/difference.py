"""What differs between two sets of key inputs, as paths into them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple


class Difference(NamedTuple):
    """One value that is not the same; None where there was or is none."""

    path: str  # "recipe.env.USE_CUDA"
    before: Any
    now: Any


def differences(before: Any, now: Any) -> tuple[Difference, ...]:
    """Every leaf that differs, in order of path."""
    return tuple(_differences(before, now, ""))


def changes(before: Mapping[str, Any], now: Mapping[str, Any], *, most: int = 2) -> tuple[str, ...]:
    """What changed since a build, in a few words: as reasons in a plan."""
    found = differences(before, now)
    said = [f"{one.path} changed: {_short(one.before)} -> {_short(one.now)}" for one in found[:most]]
    return (*said, f"{len(found) - most} more (spark-build why)") if len(found) > most else tuple(said)


def _short(value: Any) -> str:
    text = "none" if value is None else str(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _differences(before: Any, now: Any, path: str) -> Iterator[Difference]:
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        for name in sorted({*before, *now}):
            inner = f"{path}.{name}" if path else str(name)
            if name not in before or name not in now:
                yield Difference(inner, before.get(name), now.get(name))
            else:
                yield from _differences(before[name], now[name], inner)
    elif isinstance(before, list) and isinstance(now, list):
        yield from _listed(before, now, path)
    elif not _same(before, now):
        yield Difference(path, before, now)


def _same(before: Any, now: Any) -> bool:
    """Equal as JSON: true is not 1."""
    return type(before) is type(now) and bool(before == now)


def _listed(before: list[Any], now: list[Any], path: str) -> Iterator[Difference]:
    """Lists of one length differ by place; otherwise by what came and went at one place."""
    if len(before) == len(now):
        for place, (old, new) in enumerate(zip(before, now, strict=True)):
            yield from _differences(old, new, f"{path}[{place}]")
        return
    start = 0
    while start < min(len(before), len(now)) and not differences(before[start], now[start]):
        start += 1
    end = 0
    while end < min(len(before), len(now)) - start and not differences(before[-1 - end], now[-1 - end]):
        end += 1
    gone, come = before[start : len(before) - end], now[start : len(now) - end]
    for place in range(max(len(gone), len(come))):
        old = gone[place] if place < len(gone) else None
        new = come[place] if place < len(come) else None
        yield Difference(f"{path}[{start + place}]", old, new)
