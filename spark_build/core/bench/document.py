"""bench.json and back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from types import GenericAlias
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError

from spark_build.errors import UsageError
from spark_build.model.bench import SCHEMA, Bench

HINT = "give the bench.json that `spark-build bench run` wrote"


@cache
def _adapter() -> TypeAdapter[list[Bench]]:
    """The list around the type hands the configuration to every class inside."""
    listed: Any = GenericAlias(list, (Bench,))
    return TypeAdapter(listed, config=ConfigDict(extra="forbid", strict=True))


def bench_from_json(raw: Any, where: str = "") -> Bench:
    """A run from the document that `bench_json` makes. Raises UsageError, which says the first mistake."""
    if not isinstance(raw, Mapping) or raw.get("kind") != "bench":
        raise UsageError("this is no run of the suite", where=where, hint=HINT)
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
        raise UsageError(f"{place}: {first['msg']}{more}", where=where, hint=HINT) from error
    _consistent(bench, where)
    return bench


def _consistent(bench: Bench, where: str) -> None:
    """Names that are used are known. Raises UsageError."""
    arms, works = {arm.name for arm in bench.arms}, {work.name for work in bench.works}
    problem = "" if arms else "a run without arms"
    for each in bench.rounds:
        if each.slot.arm not in arms:
            problem = problem or f"round {each.slot.index + 1} is of an unknown arm {each.slot.arm!r}"
        for figure in each.figures:
            if figure.work not in works:
                problem = problem or f"round {each.slot.index + 1} has an unknown case {figure.work!r}"
    for work in bench.works:
        if not work.amount > 0:
            problem = problem or f"{work.name}: an amount of {work.amount:g}"
    if problem:
        raise UsageError(problem, where=where, hint=HINT)
