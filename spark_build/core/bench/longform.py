"""Long-form CSV, one value in a row: of other tools, and what a report leaves in samples.csv."""

from __future__ import annotations

import csv
import io
import math
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import get_args

from spark_build.core.bench.direction import better, size_in_bytes
from spark_build.core.bench.trial import Trial, TrialCase
from spark_build.errors import UsageError
from spark_build.model.bench import Bench, Kind

# As we write them; what others call them.
COLUMNS = {
    "environment": ("environment", "env"),
    "metric": ("metric",),
    "value": ("value",),
    "unit": ("unit", "units"),
    "workload": ("workload", "benchmark", "test", "case"),
    "class": ("class",),
    "round": ("round",),
    "run": ("run",),
}
NEEDED = ("environment", "metric", "value")
HINT = "one value in a row: environment,metric,value and, where known, unit,workload,round or run"
RATE, CALL, PEAK = "rate", "call", "peak "  # metrics of samples.csv


@dataclass
class _Rows:
    """What was read so far."""

    cases: dict[str, TrialCase] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)  # case -> where it was first met
    values: dict[tuple[str, str], dict[str, list[float]]] = field(default_factory=dict)
    calls: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    memory: dict[tuple[str, str, str], dict[str, list[float]]] = field(default_factory=dict)
    arms: dict[str, None] = field(default_factory=dict)
    metrics: set[str] = field(default_factory=set)
    guessed: set[str] = field(default_factory=set)


def trial_from_csv(text: str, where: str, lower: Sequence[str] = ()) -> Trial:
    """The rows as a trial; the first environment is the baseline. `lower`: metrics of which less is better.

    Raises UsageError, with the line, for the first row that cannot be read.
    """
    found, by = _Rows(), ""
    for line, row in _rows(text, where):
        key = row.get("round") or row.get("run") or ""
        by = by or ("round" if row.get("round") else "run" if row.get("run") else "row")
        if not key and by != "row":
            raise UsageError(
                f"no {by} in this row", where=f"{where}:{line}", hint="give it in all, or in none"
            )
        _take(found, row, key or str(line), f"{where}:{line}", lower)
    if not found.arms:
        raise UsageError("a table without rows", where=where, hint=HINT)
    if unknown := [name for name in lower if name.casefold() not in found.metrics]:
        there = ", ".join(sorted(found.metrics))
        raise UsageError(
            f"--lower-is-better {unknown[0]}: no such metric in {where}", hint=f"there are {there}"
        )
    notes = [
        f"{name}: more is taken as better; if less is, add --lower-is-better '{name}'"
        for name in sorted(found.guessed)
    ]
    if by == "row":
        notes.append(
            "no round or run: every row counts as a launch of its own; repeats in one process are none"
        )
    arms = tuple(found.arms)
    return Trial(
        arms=arms,
        cases=tuple(found.cases.values()),
        values={key: _means(launches) for key, launches in found.values.items()},
        contrasts=tuple((arms[0], arm) for arm in arms[1:]),
        paired=by == "round",
        calls={key: tuple(values) for key, values in found.calls.items()},
        memory={key: _means(launches) for key, launches in found.memory.items()},
        notes=tuple(notes),
    )


def csv_of(bench: Bench, kinds: Mapping[str, Kind | None]) -> str:
    """Every raw sample of a run: rates by round, seconds of calls, peaks of memory."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(("environment", "workload", "class", "metric", "value", "unit", "round"))
    units = {work.name: work.unit for work in bench.works}
    names = [arm.name for arm in bench.arms]
    # The baseline first: who reads this takes the first environment for it.
    for each in sorted(bench.rounds, key=lambda each: (names.index(each.slot.arm), each.slot.visit)):
        for figure in each.figures if not each.problem else ():
            start = (each.slot.arm, figure.work, kinds.get(figure.work) or "")
            end = str(each.slot.visit + 1)
            if figure.rate > 0:
                writer.writerow((*start, RATE, repr(figure.rate), units[figure.work], end))
            writer.writerows((*start, CALL, repr(call), "s", end) for call in figure.calls)
            writer.writerows(
                (*start, f"{PEAK}{what}", repr(float(count)), "B", end) for what, count in figure.peak.items()
            )
    return out.getvalue()


def _means(launches: Mapping[str, list[float]]) -> dict[str, float]:
    return {key: statistics.fmean(values) for key, values in launches.items()}


def _rows(text: str, where: str) -> Iterator[tuple[int, dict[str, str]]]:
    """Line number and cells by our names for the columns."""
    text = text.removeprefix("\ufeff")
    head = text.split("\n", 1)[0]
    delimiter = max(",;\t", key=head.count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    names: list[str] = []
    try:
        for cells in reader:
            row = [cell.strip() for cell in cells]
            if not any(row) or row[0].startswith("#"):
                continue
            if not names:
                names = _names(row, f"{where}:{reader.line_num}")
                continue
            if len(row) > len(names) and any(row[len(names) :]):
                said = f"{len(row)} values under {len(names)} headings"
                raise UsageError(said, where=f"{where}:{reader.line_num}", hint=HINT)
            cells_of = dict(zip(names, row, strict=False))
            if delimiter != ",":
                cells_of["value"] = cells_of.get("value", "").replace(",", ".")
            yield reader.line_num, cells_of
    except csv.Error as error:
        raise UsageError(f"not CSV: {error}", where=f"{where}:{reader.line_num}", hint=HINT) from error
    if not names:
        raise UsageError("an empty table", where=where, hint=HINT)


def _names(heads: Sequence[str], where: str) -> list[str]:
    """Our names for the headings; a column that means nothing to us keeps its own."""
    known = {alias: name for name, aliases in COLUMNS.items() for alias in aliases}
    names = [known.get(head.casefold(), f" {head}") for head in heads]
    if twice := [name for name in names if name in COLUMNS and names.count(name) > 1]:
        raise UsageError(f"two columns for the {twice[0]}", where=where, hint=HINT)
    if missing := [name for name in NEEDED if name not in names]:
        raise UsageError(f"no column {missing[0]!r}; there are {', '.join(heads)}", where=where, hint=HINT)
    return names


def _take(found: _Rows, row: Mapping[str, str], key: str, where: str, lower: Sequence[str]) -> None:
    arm, metric, unit = row["environment"], row.get("metric", ""), row.get("unit", "")
    if not arm or not metric:
        raise UsageError(f"no {'metric' if arm else 'environment'} in this row", where=where, hint=HINT)
    value = _number(row.get("value", ""), where)
    workload = row.get("workload", "")
    found.arms.setdefault(arm)
    found.metrics.add(metric.casefold())
    if workload and metric == CALL:
        found.calls.setdefault((arm, workload), []).append(value)
        return
    forced = metric.casefold() in {name.casefold() for name in lower}
    direction = "lower" if forced else better(unit, metric)
    name = " ".join(filter(None, (workload, "" if workload and metric == RATE else metric)))
    if direction == "memory":
        what = metric.removeprefix(PEAK)
        if value > 0:
            launches = found.memory.setdefault((arm, workload or "all", what), {})
            launches.setdefault(key, []).append(size_in_bytes(value, unit or metric.rpartition("_")[2]))
        return
    if not value > 0:
        raise UsageError(f"{metric} is {value:g}: nothing below or at 0 is compared", where=where)
    if direction is None:
        found.guessed.add(metric)
    kind = _kind(row.get("class", ""), where)
    case = TrialCase(name=name, unit=unit, lower=direction == "lower", kind=kind)
    if found.cases.setdefault(name, case) != case:
        other = f"line {found.lines[name]}"
        said = f"{name} in {unit or 'no unit'} here, and in {found.cases[name].unit or 'no unit'} on {other}"
        raise UsageError(said, where=where, hint="one unit and one class for a metric of a workload")
    found.lines.setdefault(name, int(where.rpartition(":")[2]))
    found.values.setdefault((arm, name), {}).setdefault(key, []).append(value)


def _number(text: str, where: str) -> float:
    if not re.fullmatch(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?", text):
        raise UsageError(f"{text!r} is no number", where=where, hint=HINT)
    value = float(text)
    if not math.isfinite(value):
        raise UsageError(f"{text} is too large", where=where)
    return value


def _kind(text: str, where: str) -> Kind | None:
    for kind in get_args(Kind):
        if text.casefold() == kind:
            return kind  # type: ignore[no-any-return] # get_args forgets what it lists
    if text:
        raise UsageError(
            f"no class {text!r}", where=where, hint=f"one of {', '.join(get_args(Kind))}, or empty"
        )
    return None
