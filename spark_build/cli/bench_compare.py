"""`bench compare`: arms of a run, two runs, or a CSV of another tool."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import click

from spark_build.cli import render
from spark_build.cli.options import Options, Renamed, shared

if TYPE_CHECKING:
    from spark_build.errors import InconclusiveError
    from spark_build.measure.comparison import Trial
    from spark_build.measure.model import CaseChange, Compared

FILE = click.Path(path_type=Path)
HINT = "give a bench.json of `spark-build bench run`, or a CSV: environment,metric,value"


@click.command()
@click.argument("file", type=FILE)
@click.argument("new", type=FILE, required=False)
@click.option("--arm", "arms", multiple=True, metavar="NAME",
              help="Compare only these; the first is the baseline.")  # fmt: skip
@click.option("--lower-is-better", "lower", multiple=True, metavar="METRIC",
              help="Of a CSV's metric whose unit does not say so.")  # fmt: skip
@click.option(
    "--fail-above", "--fail-over", "fail_over", cls=Renamed, type=click.FloatRange(min=0), metavar="PERCENT",
    help="Exit 9 when a case takes that much longer.",
)  # fmt: skip
@shared
def compare(
    options: Options,
    file: Path,
    new: Path | None,
    arms: tuple[str, ...],
    lower: tuple[str, ...],
    fail_over: float | None,
) -> int:
    """Compare the arms of FILE (bench.json or CSV), or FILE with NEW."""
    from spark_build.measure.comparison import compare as compare_all
    from spark_build.measure.comparison import exit_code
    from spark_build.text import printable

    trial = _trial(file, new, arms, lower)
    compared = compare_all(trial)
    if not compared.changes and not compared.memory:
        raise _nothing(trial, file)
    code, why = exit_code(compared, fail_over)
    if options.json:
        render.print_json({**dataclasses.asdict(compared), "reason": why, "exit_code": code})
        return code
    _show(compared)
    if why and not compared.doubts:
        print(printable(why))
    return code


def _nothing(trial: Trial, file: Path) -> InconclusiveError:
    """Why there is nothing to show, and what would help."""
    from spark_build.errors import InconclusiveError

    if trial.memory and not trial.values:
        said = "nothing may be said: no memory is shown to differ, and there is no speed"
    else:
        said = "nothing may be said: no case has two launches in both arms"
    return InconclusiveError(said, where=str(file), hint=trial.more)


def _trial(file: Path, new: Path | None, arms: tuple[str, ...], lower: tuple[str, ...]) -> Trial:
    from spark_build.errors import UsageError
    from spark_build.measure.comparison import chosen, joined

    old = _read(file, lower)
    if new is not None:
        pair = old, _read(new, lower)
        if arms:
            pair = _picked(pair, arms)
        return joined(*pair)
    trial = chosen(old, arms)
    if not trial.contrasts:
        raise UsageError(
            f"only one environment: {', '.join(trial.arms)}",
            where=str(file),
            hint="give a second file, or measure two: spark-build bench run --arm A=... --arm B=...",
        )
    return trial


def _picked(pair: tuple[Trial, Trial], arms: tuple[str, ...]) -> tuple[Trial, Trial]:
    """One arm of each file: the same name, or one name for either."""
    from spark_build.errors import UsageError
    from spark_build.measure.comparison import chosen

    if len(arms) > 2:
        raise UsageError("two files: name one arm, or one for each", hint="--arm A --arm B")
    return chosen(pair[0], arms[:1]), chosen(pair[1], arms[-1:])


def _read(file: Path, lower: tuple[str, ...]) -> Trial:
    """By what is in it: JSON begins with a brace."""
    from spark_build.cli.json_input import json_of, text_of
    from spark_build.errors import UsageError
    from spark_build.measure.comparison import from_bench
    from spark_build.measure.csv_io import trial_from_csv
    from spark_build.measure.suite import bench_from_json

    text = text_of(file, HINT)
    if not text.lstrip().startswith(("{", "[")):
        return trial_from_csv(text, str(file), lower)
    if lower:
        raise UsageError("--lower-is-better is about a CSV", where=str(file), hint="leave it out")
    return from_bench(bench_from_json(json_of(text, str(file), HINT), str(file)))


def _show(compared: Compared) -> None:
    from spark_build.measure.comparison import BANDS, said
    from spark_build.measure.report.suite_view import headline, interval
    from spark_build.text import printable

    rows = [
        [
            each.case,
            each.kind or "",
            each.second,
            " -> ".join(_value(one.mean, each) for one in each.values),
            interval(each.contrast),
            each.finding,
            f"{each.overhead:+.1f}%",
            said(each),
        ]
        for each in compared.changes
    ]
    heads = ["CASE", "CLASS", "ARM", "MEAN", "RATIO", "FINDING", "OVERHEAD", "BAND"]
    kept = [at for at in range(len(heads)) if any(row[at] for row in rows)]
    for doubt in compared.doubts:
        print(printable(f"nothing may be claimed: {doubt}"))
    if compared.doubts:
        print("\nWhat was seen, for what it is worth:")
    if rows:
        render.print_table([heads[at] for at in kept], [[printable(row[at]) for at in kept] for row in rows])
        print()
    for _, line in headline(compared):
        print(printable(line))
    slow = {each.band for each in compared.changes if each.finding == "slower" and not compared.doubts}
    for band in (band for band in BANDS if band.name in slow and band.checks):
        print(f"overhead {band.name}: {band.meaning}; look next at")
        for check in band.checks:
            print(f"  {check.name}: {check.question}  {check.command}")
    if compared.indicative:
        print("indicative: a quick run, fewer than 10 launches of each arm, or no launches named")
    for line in compared.left_out:
        print(printable(f"left out: {line}"))
    for note in compared.notes:
        print(printable(f"note: {note}"))


def _value(value: float, change: CaseChange) -> str:
    from spark_build.text import quantity

    return quantity(value, change.unit)
