"""Read and write measurements in long form: CSV, and rows made of other tools' results."""

from __future__ import annotations

import csv
import io
import math
import re
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from spark_build.errors import Hint, UsageError
from spark_build.measure.comparison import LARGEST, Trial, TrialCase, in_order
from spark_build.measure.model import Bench, Kind
from spark_build.measure.request import ResultFields
from spark_build.text import printable

# As we write them; what others call them.
COLUMNS = {
    "environment": ("environment", "env"),
    "metric": ("metric",),
    "value": ("value",),
    "unit": ("unit", "units"),
    "workload": ("workload", "benchmark", "test", "case"),
    "round": ("round",),
    "run": ("run",),
    "when": (),  # seconds since 1970, of readers that know it
    "doubt": (),
    "left out": (),
}
ALIASES = {alias: name for name, aliases in COLUMNS.items() for alias in aliases}
NEEDED = ("environment", "metric", "value")
HINT = "one value in a row: environment,metric,value and, where known, unit,workload,round or run"
ALL = "all"  # the workload of rows that name none


SAMPLES = "# samples of a run: compare its bench.json, which knows what takes its claims away"
# The headings below "# quick", "# doubt: " and "# scope: " in what older versions wrote.
OLDER = re.compile(r"environment,workload,(class,)?metric,value,unit,round\s*")
NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?", re.ASCII)
LONGEST = 60  # characters of the input that an error repeats


@dataclass(frozen=True, slots=True)
class _Series:
    """Values of one workload, metric and unit."""

    name: str  # of the workload; of a speed: of the case
    memory: str = ""  # which kind; "" for a speed
    factor: float = 1.0


@dataclass
class _Rows:
    """Rows read so far; `lower`, `higher`: metrics for which less or more is better."""

    lower: frozenset[str]
    higher: frozenset[str]
    cases: dict[str, TrialCase] = field(default_factory=dict)
    lines: dict[str, str] = field(default_factory=dict)  # case -> where it was first met
    series: dict[tuple[str, str, str], _Series] = field(default_factory=dict)
    values: dict[tuple[str, str], dict[str, list[float]]] = field(default_factory=dict)
    memory: dict[tuple[str, str, str], dict[str, list[float]]] = field(default_factory=dict)
    arms: dict[str, None] = field(default_factory=dict)
    order: dict[tuple[str, str], float] = field(default_factory=dict)  # (arm, launch) -> when it was measured
    guessed: set[str] = field(default_factory=set)
    said: dict[str, list[str]] = field(default_factory=lambda: {"doubt": [], "left out": []})


USUAL = ResultFields()


def trial_from_csv(text: str, where: str, named: ResultFields = USUAL) -> Trial:
    """Return the rows as a trial, the first environment as baseline.

    Raises UsageError, with the line, for the first row that cannot be read.
    """
    comments, lines = _parts(text)
    older = any(one.startswith(("# doubt: ", "# quick", "# scope: ")) for one in comments)
    if SAMPLES in comments or (older and OLDER.fullmatch(lines[0] if lines else "")):
        raise UsageError("the raw samples of a run", where=where, hint="compare its bench.json")
    return trial_from_rows(_rows(lines, len(comments), where, named), where, named)


def trial_from_rows(rows: Iterable[tuple[str, Mapping[str, str]]], where: str, named: ResultFields) -> Trial:
    """Return a trial of (place in the input, cells by the names of COLUMNS).

    Raises UsageError for the first row that cannot be read.
    """
    lower, higher = (frozenset(map(str.casefold, some)) for some in (named.lower, named.higher))
    found, by = _Rows(lower=lower, higher=higher), ""
    for place, row in rows:
        if said := next((name for name in found.said if name in row), ""):
            found.said[said].append(row[said])
            continue
        by = by or next((name for name in ("round", "run") if row.get(name)), "row")
        try:
            _take(found, row, _launch(row, by, place), place)
        except UsageError as error:
            error.where = place
            raise
    if not found.arms:
        raise UsageError(
            "; ".join(dict.fromkeys(found.said["left out"])) or "a table without rows", where=where, hint=HINT
        )
    _refuse_unknown({metric for _, metric, _ in found.series}, where, lower=named.lower, higher=named.higher)
    arms = tuple(found.arms)
    trial = Trial(
        arms=arms,
        cases=tuple(found.cases.values()),
        values={key: _means(launches) for key, launches in found.values.items()},
        contrasts=tuple((arms[0], arm) for arm in arms[1:]),
        paired=by == "round",
        more=Hint("measure in more launches of each environment, a row for each: run 1, 2, 3"),
        quick=by == "row",
        memory={key: _means(launches) for key, launches in found.memory.items()},
        doubts=tuple(dict.fromkeys(found.said["doubt"])),
        left_out=tuple(dict.fromkeys(found.said["left out"])),
        notes=_notes(found, by),
        when=found.order,
    )
    apart, drifts = in_order(trial)
    if apart and drifts:
        return replace(trial, doubts=(*trial.doubts, *apart, *drifts))
    return replace(trial, notes=(*trial.notes, *apart, *drifts))


def _refuse_unknown(metrics: set[str], where: str, **options: Sequence[str]) -> None:
    """Raise UsageError for a metric that is said to be better one way and is not there."""
    for option, given in options.items():
        if unknown := [name for name in given if name.casefold() not in map(str.casefold, metrics)]:
            raise UsageError(
                f"--{option}-is-better {unknown[0]}: no such metric in {where}",
                hint=f"there are {_cut(', '.join(sorted(metrics)))}",
            )


def _notes(found: _Rows, by: str) -> tuple[str, ...]:
    notes = [
        f"{name}: more is taken as better; if less is, add --lower-is-better '{name}'"
        for name in sorted(found.guessed)
    ]
    if by == "row":
        notes.append(
            "no round or run: every row counts as a launch of its own; repeats in one process are none"
        )
    return tuple(notes)


def csv_of(bench: Bench) -> str:
    """Return every raw sample of a run: rates by round, seconds of calls, peaks of memory."""
    out = io.StringIO()
    out.write(f"{SAMPLES}\n")
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(("environment", "workload", "metric", "value", "unit", "round"))
    units = {work.name: work.unit for work in bench.works}
    for each in bench.rounds:
        for figure in each.figures if not each.problem else ():
            rows = [("rate", figure.rate, units[figure.work])]
            rows += [("call", call, "s") for call in figure.calls]
            rows += [(f"peak {what}", count, "B") for what, count in figure.peak.items()]
            start, end = (each.slot.arm, figure.work), each.slot.visit + 1
            writer.writerows((*start, metric, repr(float(value)), unit, end) for metric, value, unit in rows)
    return out.getvalue()


def _means(launches: Mapping[str, list[float]]) -> dict[str, float]:
    return {key: statistics.fmean(values) for key, values in launches.items()}


def _launch(row: Mapping[str, str], by: str, place: str) -> str:
    """Return the launch of a row; the first row decides whether rounds, runs or rows are launches."""
    if by == "row" and (late := next((name for name in ("round", "run") if row.get(name)), "")):
        raise UsageError(f"a {late} in this row, and none in the first", hint="give it in all, or in none")
    if by != "row" and not row.get(by):
        raise UsageError(f"no {by} in this row", hint="give it in all, or in none")
    return row[by] if by != "row" else place


def _parts(text: str) -> tuple[list[str], list[str]]:
    """Comments and empty lines above the headings; and all other lines."""
    lines = io.StringIO(text.removeprefix("\ufeff"), newline="").readlines()
    start = 0
    while start < len(lines) and (
        lines[start].lstrip().startswith("#") or not lines[start].strip(",; \t\r\n")
    ):
        start += 1
    return [printable(line.strip()) for line in lines[:start]], lines[start:]


def _rows(
    lines: Sequence[str], skipped: int, where: str, named: ResultFields
) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield place and cells by our names for the columns; the first line has the headings."""
    if not lines:
        raise UsageError("an empty table", where=where, hint=HINT)
    delimiter = max(",;\t", key=lines[0].count)
    reader = csv.reader(lines, delimiter=delimiter)
    names: list[str] = []
    try:
        for cells in reader:
            row = list(map(str.strip, cells))
            if not "".join(row).isprintable():
                row = list(map(printable, row))
            # A name may begin with "#": only a row of nothing else is a comment.
            if not any(row) or (row[0].startswith("#") and not any(row[1:])):
                continue
            line = reader.line_num + skipped
            if not names:
                names = _names(row, f"{where}:{line}", named)
                continue
            if len(row) > len(names) and any(row[len(names) :]):
                said = f"{len(row)} values under {len(names)} headings"
                raise UsageError(said, where=f"{where}:{line}", hint=HINT)
            cells_of = dict(zip(names, row, strict=False))
            if delimiter != ",":
                cells_of["value"] = cells_of.get("value", "").replace(",", ".")
            cells_of.setdefault("metric", named.value)
            if "unit" not in names:  # no column is called so: it is the unit itself
                cells_of["unit"] = named.unit
            yield f"{where}:{line}", cells_of
    except csv.Error as error:
        place = f"{where}:{reader.line_num + skipped}"
        raise UsageError(f"not CSV: {error}", where=place, hint=HINT) from error


def _names(heads: Sequence[str], where: str, named: ResultFields) -> list[str]:
    """Our names for the headings; a column that means nothing to us keeps its own."""
    asked = named.columns()
    there = {head.casefold() for head in heads}
    if unknown := [name for name, our in asked.items() if our != "unit" and name not in there]:
        said = f"no column {unknown[0]!r}; there are {_cut(', '.join(heads))}"
        raise UsageError(said, where=where, hint="see --case and --value")
    # A column that is asked for stands in place of the one that is usually taken.
    names = [asked.get(head.casefold()) or ALIASES.get(head.casefold(), f" {head}") for head in heads]
    names = [
        f" {head}" if name in asked.values() and head.casefold() not in asked else name
        for name, head in zip(names, heads, strict=True)
    ]
    if twice := [name for name in names if name in COLUMNS and names.count(name) > 1]:
        raise UsageError(f"two columns for the {twice[0]}", where=where, hint=HINT)
    needed = [name for name in NEEDED if name != "metric" or not named.value]
    if missing := [name for name in needed if name not in names]:
        said = f"no column {missing[0]!r}; there are {_cut(', '.join(heads))}"
        raise UsageError(said, where=where, hint=HINT)
    return names


def _take(found: _Rows, row: Mapping[str, str], launch: str, place: str) -> None:
    arm, metric = row["environment"], row.get("metric", "")
    if not arm or not metric:
        raise UsageError(f"no {'metric' if arm else 'environment'} in this row", hint=HINT)
    key = (row.get("workload", ""), metric, row.get("unit", ""))
    value = _number(row.get("value", ""))
    series = found.series.get(key)
    if series is None:
        series = found.series[key] = _series(found, *key, place)
    found.arms.setdefault(arm)
    found.order.setdefault((arm, launch), float(row.get("when") or math.nan))
    if not series.memory:
        if not value > 0:
            raise UsageError(f"{metric} is {value:g}: nothing below or at 0 is compared")
        found.values.setdefault((arm, series.name), {}).setdefault(launch, []).append(value)
    elif value > 0:
        launches = found.memory.setdefault((arm, series.name, series.memory), {})
        launches.setdefault(launch, []).append(value * series.factor)


def _series(found: _Rows, workload: str, metric: str, unit: str, place: str) -> _Series:
    """Return the series of a row, a new one for a new case."""
    direction = better(unit, metric)
    if is_capacity := direction in (None, "memory") and holds(f"{workload} {metric}"):
        direction = "higher"
    if (name := metric.casefold()) in found.lower | found.higher:
        direction = "lower" if name in found.lower else "higher"
    if direction == "memory":
        return _Series(workload or ALL, metric.removeprefix("peak "), size_in_bytes(1, unit or metric))
    if direction is None:
        found.guessed.add(metric)
    name = " ".join(filter(None, (workload, metric)))
    bound: Kind | None = "capacity" if is_capacity else None
    case = TrialCase(name=name, work=workload or ALL, unit=unit, lower=direction == "lower", kind=bound)
    if found.cases.setdefault(name, case) != case:
        there = f"in {found.cases[name].unit or 'no unit'} at {found.lines[name]}"
        raise UsageError(
            f"{name} in {unit or 'no unit'} here, and {there}",
            hint="one unit for a metric of a workload",
        )
    found.lines.setdefault(name, place)
    return _Series(name)


def _number(text: str) -> float:
    if not NUMBER.fullmatch(text):
        raise UsageError(f"{_cut(text)!r} is no number", hint=HINT)
    value = float(text)
    if abs(value) > LARGEST or 0 < abs(value) < 1 / LARGEST:
        raise UsageError(f"{_cut(text)} is too {'large' if abs(value) > 1 else 'small'}")
    return value


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


Better = Literal["higher", "lower", "memory"]
TIMES = frozenset(
    ("ns", "us", "µs", "ms", "s", "sec", "secs", "second", "seconds", "msec", "millisecond",
     "milliseconds", "min", "minute", "minutes", "h", "hour", "hours")
)  # fmt: skip
BYTES = frozenset(("b", "byte", "bytes", "kb", "mb", "gb", "tb", "kib", "mib", "gib", "tib"))
FACTORS = {"": 1, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
SPEEDS = frozenset(
    ("throughput", "bandwidth", "speed", "rate", "tflops", "gflops", "mflops", "flops", "fps", "gbps",
     "mbps", "ips", "qps", "bogo", "score")
)  # fmt: skip
LESS = frozenset(("time", "latency", "duration", "elapsed", "ttft", "tpot", "itl", "error", "errors", "miss"))
ONE = ("s", "sec", "second", "min", "minute", "h", "hour")  # what a rate is counted in
FINE = frozenset(("ns", "us", "µs", "ms", "msec"))  # nobody counts anything in them
COUNTED = frozenset(
    name + end
    for name in ("tok", "token", "image", "img", "sample", "seq", "sequence", "request", "req", "query",
                 "frame", "step", "iter", "it", "item", "op", "epoch", "batch", "word")
    for end in ("", "s")
)  # fmt: skip
ROOM = frozenset(("capacity", "kv", "room", "headroom", "free", "available"))
TAKEN = frozenset(("peak", "used", "usage", "alloc", "allocated", "reserved", "rss", "max"))
UNSAID = frozenset(("b", "h", "min"))  # as the last word of a name: 8B, a height, the least


def better(unit: str, metric: str) -> Better | None:
    """By the unit, else by the metric's words, such as latency_ms; None: nobody can tell."""
    return _by_unit(unit) if unit.strip() else _by_name(metric)


def holds(name: str) -> bool:
    """Return whether a name tells of room, of which more is better, and not of memory that is taken."""
    words = frozenset(_words(name))
    return not words.isdisjoint(ROOM) and words.isdisjoint(TAKEN)


def size_in_bytes(value: float, unit: str) -> float:
    """Return bytes for an amount in a unit of memory, taken from the metric's name if need be."""
    words = _words(unit)
    prefix = re.sub(r"b$|bytes?$", "", words[-1] if words else "")
    return value * FACTORS.get(prefix, 1)


def _words(text: str) -> list[str]:
    return [word for word in re.split(r"[^a-zµ]+", text.lower()) if word]


def _by_unit(unit: str) -> Better | None:
    text = re.sub(r"(^|[ _-])per[ _-]", "/", unit.strip().lower())
    if re.search(rf"/\s*({'|'.join(ONE)}|ms|us)(?![a-z-])|flops$|^(k|m|g|t)?bps$|^fps$|^hz$", text):
        return "higher"
    if text in TIMES or re.fullmatch(rf"(.*[^a-zµ])?({'|'.join(TIMES)})\s*/.+|(joules?|j)(/.+)?", text):
        return "lower"
    return "memory" if text in BYTES else None


def _by_name(metric: str) -> Better | None:
    """Return the direction that a metric's name tells; None where it can be read in two ways."""
    words = _words(metric)
    before, last = ["", "", *words][-2:]
    more, less = (not known.isdisjoint(words) for known in (SPEEDS, LESS))
    if less != (more and last not in FINE):
        return "lower" if less else "higher"
    if "/" in metric and last in FINE:
        return None  # a rate, or a path that ends in its unit
    if ("/" in metric or "per" in words) and (found := _by_unit(metric)):
        return found
    if last in UNSAID or (last in ONE and before in COUNTED | BYTES):
        return None
    if last in TIMES:
        return "lower"
    return "memory" if last in BYTES else None
