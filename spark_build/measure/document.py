"""bench.json and back."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from types import GenericAlias
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError

from spark_build.errors import UsageError
from spark_build.measure.bench import SCHEMA, Bench, Figure
from spark_build.measure.trial import LARGEST
from spark_build.text import printable

HINT = "give the bench.json that `spark-build bench run` wrote"


@cache
def _adapter() -> TypeAdapter[list[Bench]]:
    """The list around the type hands the configuration to every class inside."""
    listed: Any = GenericAlias(list, (Bench,))
    return TypeAdapter(listed, config=ConfigDict(extra="forbid", strict=True, allow_inf_nan=False))


def bench_from_json(raw: Any, where: str = "") -> Bench:
    """A run from the document that `bench_json` makes. Raises UsageError, which says the first mistake."""
    if not isinstance(raw, Mapping) or raw.get("kind") != "bench":
        burn_in = isinstance(raw, Mapping) and "verdict" in raw
        hint = "of burn-ins: spark-build verify compare" if burn_in else HINT
        raise UsageError("this is no run of the suite", where=where, hint=hint)
    if raw.get("schema") != SCHEMA:
        said = f"a run of schema {raw.get('schema')!r}; this program knows {SCHEMA}"
        raise UsageError(said, where=where, hint="use the version that wrote it")
    fields = {name: value for name, value in raw.items() if name not in ("schema", "kind")}
    try:
        # By way of JSON: there strict mode takes arrays for tuples.
        (bench,) = _adapter().validate_json(json.dumps([fields]))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"][1:])
        more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
        said = printable(f"{place}: {first['msg']}{more}")
        raise UsageError(said, where=where, hint=HINT) from error
    _consistent(bench, where)
    return bench


def _consistent(bench: Bench, where: str) -> None:
    """Names that are used are known, and numbers such as can be measured. Raises UsageError."""
    if problem := next(_problems(bench), ""):
        raise UsageError(printable(problem), where=where, hint=HINT)


def _problems(bench: Bench) -> Iterator[str]:
    arms, works = {arm.name for arm in bench.arms}, {work.name for work in bench.works}
    if not arms:
        yield "a run without arms"
    yield from (f"a name with control characters: {name}" for name in arms | works if not name.isprintable())
    for work in bench.works:
        if not 0 < work.amount < LARGEST:
            yield f"{work.name}: an amount of {work.amount:g}"
        if not (_is_count(work.flops or 0) and _is_count(work.moved or 0)):
            yield f"{work.name}: {work.flops} FLOP, {work.moved} bytes moved"
    for each in bench.rounds:
        start = f"round {each.slot.index + 1}"
        if each.slot.arm not in arms:
            yield f"{start} is of an unknown arm {each.slot.arm!r}"
        for figure in each.figures:
            if figure.work not in works:
                yield f"{start} has an unknown case {figure.work!r}"
            yield from (f"{start}, {figure.work}: {problem}" for problem in _of_figure(figure))


def _of_figure(figure: Figure) -> Iterator[str]:
    if not 0 <= figure.rate < LARGEST:
        yield f"a rate of {figure.rate:g}"
    counted = figure.facts.get("flops_by", {})
    if not isinstance(counted, dict) or not all(map(_is_count, counted.values())):
        yield "flops_by is no number of FLOP for each operation"


def _is_count(value: object) -> bool:
    return isinstance(value, int | float) and 0 <= value < LARGEST
