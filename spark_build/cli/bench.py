"""The commands of bench: run, compare, report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from spark_build.cli import render
from spark_build.cli.hints import nothing_checked, typeable
from spark_build.cli.lazy_group import LazyGroup
from spark_build.cli.options import NOT_NEGATIVE, POSITIVE, Options, Renamed, as_one, command, json_of, shared
from spark_build.cli.render import running
from spark_build.errors import (
    Hint,
    InconclusiveError,
    NothingCheckedError,
    SparkBuildError,
    UsageError,
    VerificationError,
    ours,
)
from spark_build.measure.request import ResultFields, SuiteRequest
from spark_build.text import format_quantity, printable

if TYPE_CHECKING:
    from spark_build.measure.comparison import Trial
    from spark_build.measure.model import Bench, BenchRound, Check, Compared
    from spark_build.wheelhouse.generations import Generation

COMMANDS = {
    "run": ("spark_build.cli.bench", "run", "Run the workloads in one environment or more."),
    "compare": ("spark_build.cli.bench", "compare", "Compare arms, runs, or results of other tools."),
    "report": ("spark_build.cli.bench", "report", "Write the pages of a run again."),
}


@click.group(cls=LazyGroup, table=COMMANDS)
@shared
def bench(_options: Options) -> None:
    """Measure which workloads gain, what a container costs, where the memory goes."""


MAXIMUM = ".maximum"


@command()
@click.option(
    "--workload", multiple=True, metavar="NAME", help="Run this one; repeatable (--list names all)."
)
@click.option(
    "--arm",
    multiple=True,
    metavar="NAME=WHAT",
    help="Where to run; the first is the baseline: public, wheelhouse, container:IMAGE, a folder.",
)
@click.option("--quick/--full", default=None, help="Small and short, or 30 s for a case.")
@click.option("--rounds", type=click.IntRange(min=1), help="Rounds of each arm.")
@click.option("--duration", type=POSITIVE, help="Seconds of one timed window.")
@click.option(
    "--cooldown",
    "--cool",
    "cool",
    cls=Renamed,
    type=POSITIVE,
    metavar="CELSIUS",
    help="Cool down to this before each round.",
)
@click.option(
    "--timeout",
    "--patience",
    "patience",
    cls=Renamed,
    type=POSITIVE,
    help="Seconds after which a silent workload counts as hung.",
)
@click.option("--seed", type=int, help="Seed of data and order (default: random, recorded).")
@click.option("--device", type=click.Choice(["cpu", "cuda"]), help="What computes (default: target).")
@click.option("--profile", type=click.Choice(["torch", "nsys"]), help="Capture traces instead of times.")
@click.option("--inject", default="", hidden=True, help="Plant a fault, for tests of this program.")
@click.option("--list", "listed", is_flag=True, help="Name the workloads and stop.")
@as_one(SuiteRequest, "asked")
@shared
def run(options: Options, asked: SuiteRequest, profile: Literal["torch", "nsys"] | None, listed: bool) -> int:
    """Measure the workloads in one environment or more."""
    if listed:
        return _list(options)
    wish = asked.on(cuda=bool(options.setting().target.cuda_architectures))
    return _profile(options, wish, profile) if profile else _measure(options, wish)


def _generation(options: Options, wish: SuiteRequest) -> Generation | None:
    """Return the wheelhouse's generation where an arm needs it; it may be missing where none does."""
    from spark_build.cli.wheelhouse import current

    if not wish.needs_wheelhouse:
        return None
    try:
        return current(options)
    except SparkBuildError:
        if wish.arm:
            raise
        return None


def _measure(options: Options, wish: SuiteRequest) -> int:
    from spark_build.measure import suite
    from spark_build.measure.comparison import doubts_of
    from spark_build.measure.session import MeasureSite

    setting, generation = options.setting(), _generation(options, wish)
    with running(options, setting.home.runs) as (_, emit):
        site = MeasureSite(home=setting.home, train=setting.train.name, generation=generation, emit=emit)
        result = suite.measure_suite(site, wish)
    failed = _failed(result)
    measured = any(each.figures for each in result.rounds)
    doubts = () if failed else doubts_of(result)
    code = VerificationError.exit_code if failed else 0 if measured else NothingCheckedError.exit_code
    code = InconclusiveError.exit_code if doubts else code
    if options.json:
        from spark_build.measure.model import bench_json

        document = bench_json(result)
        for each in document["rounds"]:  # bench.json has them
            del each["samples"], each["environment"]
        render.print_json({**document, "doubts": doubts, "exit_code": code})
        return _or_nothing(code)
    with render.details(options):
        _print(result, fit=not doubts)
    for doubt in doubts:
        print(f"not to be believed: {doubt}")
    for each, check in failed:
        print(f"FAILED {check.name} in {each.slot.arm}: {check.evidence}")
    for file in dict.fromkeys(each.file for each, _ in failed):
        print(f"see {Path(file).with_suffix('.log')}")
    with render.details(options):
        _print_serving(result)
        print()
    print(f"all samples: {Path(result.folder) / 'bench.json'}")
    return _or_nothing(code)


def _or_nothing(code: int) -> int:
    """Return the exit code, and report when no case was finished."""
    if code != NothingCheckedError.exit_code:
        return code
    return nothing_checked(
        "not one case was finished: this device or environment has none of these workloads",
        Hint("name others of ", ours("bench run --list")),
    )


def _failed(result: Bench) -> list[tuple[BenchRound, Check]]:
    """Return the failed checks with their round; a round without a report is a failure too."""
    from spark_build.measure.model import Check

    checks = [(each, check) for each in result.rounds for check in each.checks]
    return [each for each in checks if each[1].status == "fail"] + [
        (each, Check(name=f"round {each.slot.index + 1}", status="fail", evidence=each.problem))
        for each in result.rounds
        if each.problem and not each.invalid
    ]


def _print(result: Bench, *, fit: bool) -> None:
    """Print a row for each case: every arm's rate, and what holds it; nothing does on a machine not `fit`."""
    from statistics import fmean

    from spark_build.measure.bounds import figures, places
    from spark_build.measure.comparison import held_by

    rows = []
    places_of = places(result, result.arms[0].name)
    for work in result.works:
        cells = []
        for arm in result.arms:
            rates = [figure.rate for figure in figures(result, work.name, arm.name)]
            cells.append(format_quantity(fmean(rates), work.unit) if rates else "-")
        held = held_by(result, work.name, roof=places_of[work.name].roof)
        rows.append([work.name, *cells, held if fit or "-" in cells else f"unbounded, see below ({held})"])
    render.print_table(["CASE", *(arm.name for arm in result.arms), "HELD BY"], rows)
    for each in result.rounds:
        found = [check for check in each.checks if check.name.endswith(MAXIMUM)]
        told = [f"{check.name.removesuffix(MAXIMUM)} {check.evidence}" for check in found]
        if told:
            print(f"fastest in round {each.slot.index + 1}, {each.slot.arm}: {', '.join(told)}")


def _print_serving(result: Bench) -> None:
    """Print percentiles of the times of first and next tokens, where the serving workload ran."""
    from spark_build.measure.comparison import from_bench
    from spark_build.measure.report.suite_view import SERVING, serving_rows

    if rows := serving_rows(result, from_bench(result)):
        print()
        render.print_table([head.upper() for head in SERVING], rows)


def _profile(options: Options, wish: SuiteRequest, tool: Literal["torch", "nsys"]) -> int:
    """Capture traces, and say what the cases spend their time on."""
    from spark_build.measure import suite
    from spark_build.measure.session import MeasureSite, script_of
    from spark_build.measure.suite import capture, need

    need(tool, wish.arms)
    setting, generation = options.setting(), _generation(options, wish)
    with running(options, setting.home.runs) as (folder, emit):
        settings = suite.plan_suite(wish, script_of(setting.home, "suite"))
        site = MeasureSite(home=setting.home, train=setting.train.name, generation=generation, emit=emit)
        arms = suite.arms_of(site, folder, wish)
        found = capture(settings, arms, tool, folder, emit)
    captured = any(each.profiles for each in found)
    failed = any(each.problem for each in found)
    code = VerificationError.exit_code if failed else 0 if captured else NothingCheckedError.exit_code
    if options.json:
        render.print_json({"profiles": [asdict(each) for each in found], "exit_code": code})
        return _or_nothing(code)
    for each in found:
        rows = [
            [profile["work"], f"{top['share']:.0%}", top["name"][:90]]
            for profile in each.profiles
            for top in profile.get("top", [])[:3]
        ]
        render.print_table(["CASE", "TIME", "OPERATION"], rows)
        print(f"{each.problem or 'captured'}: {each.arm}, in {each.folder}")
    return _or_nothing(code)


def _list(options: Options) -> int:
    from spark_build.measure.session import script_of
    from spark_build.measure.suite import workloads_of

    known = workloads_of(script_of(options.home(), "suite"))
    if options.json:
        render.print_json({"workloads": known, "exit_code": 0})
        return 0
    render.print_table(["WORKLOAD", "WHAT"], [[name, what] for name, what in known.items()])
    return 0


FILE = click.Path(path_type=Path)


@command()
@click.argument("file", type=FILE)
@click.argument("new", type=FILE, required=False)
@click.option("--arm", "arms", multiple=True, metavar="NAME",
              help="Arm to compare (the first is the baseline), or the field that names arms.")  # fmt: skip
@click.option("--case", default="", metavar="FIELD", help="Field or column that names the case.")
@click.option("--value", default="", metavar="FIELD", help="Field with the value.")
@click.option("--unit", default="", metavar="FIELD", help="Field with the unit, or the unit itself.")
@click.option("--lower-is-better", "lower", multiple=True, metavar="METRIC",
              help="Less of METRIC is better, where its unit does not say so.")  # fmt: skip
@click.option("--higher-is-better", "higher", multiple=True, metavar="METRIC",
              help="More of METRIC is better.")  # fmt: skip
@click.option(
    "--fail-above", "--fail-over", "fail_over", cls=Renamed, type=NOT_NEGATIVE, metavar="PERCENT",
    help="Exit 9 when a case takes that much longer.",
)  # fmt: skip
@as_one(ResultFields, "named")
@shared
def compare(
    options: Options,
    file: Path,
    new: Path | None,
    named: ResultFields,
    arms: tuple[str, ...],
    fail_over: float | None,
) -> int:
    """Compare the arms of FILE, or FILE with NEW: our runs, or results of other tools."""
    from spark_build.measure.comparison import compare as compare_all
    from spark_build.measure.comparison import exit_code
    from spark_build.measure.formats import read_results

    trial = _trial(partial(read_results, alone=new is None, arms=arms, named=named), file, new)
    compared = compare_all(trial)
    if not compared.changes and not compared.memory:
        raise _nothing(trial, file)
    code, why = exit_code(compared, fail_over)
    if options.json:
        render.print_json({**asdict(compared), "reason": why, "exit_code": code})
        return code
    _show(compared)
    if why and not compared.doubts:
        print(printable(why))
    return code


def _nothing(trial: Trial, file: Path) -> InconclusiveError:
    """Return the error that says why there is nothing to show, and what helps."""
    if trial.memory and not trial.values:
        said = "nothing may be said: no memory is shown to differ, and there is no speed"
    else:
        said = "nothing may be said: no case has two launches in both arms"
    return InconclusiveError(said, where=str(file), hint=trial.more)


def _trial(read: Callable[[Path], tuple[Trial, tuple[str, ...]]], file: Path, new: Path | None) -> Trial:
    from spark_build.measure.comparison import chosen, joined

    old, arms = read(file)
    if new is not None:
        pair = old, read(new)[0]
        if arms:
            pair = _picked(pair, arms)
        return joined(*pair)
    trial = chosen(old, arms)
    if not trial.contrasts:
        raise UsageError(
            f"only one environment: {', '.join(trial.arms)}",
            where=str(file),
            hint=Hint("give a second file, or measure two: ", ours("bench run --arm A=... --arm B=...")),
        )
    return trial


def _picked(pair: tuple[Trial, Trial], arms: tuple[str, ...]) -> tuple[Trial, Trial]:
    """One arm of each file: the same name, or one name for either."""
    from spark_build.measure.comparison import chosen

    if len(arms) > 2:
        raise UsageError("two files: name one arm, or one for each", hint="--arm A --arm B")
    return chosen(pair[0], arms[:1]), chosen(pair[1], arms[-1:])


def _show(compared: Compared) -> None:
    from spark_build.measure.comparison import BANDS, band_text
    from spark_build.measure.report.suite_view import finding_text, headline_text

    timed = [each for each in compared.changes if each.kind != "capacity"]
    rows = [
        [
            each.case,
            each.kind or "",
            each.second,
            " -> ".join(format_quantity(one.mean, each.unit) for one in each.values),
            str(each.contrast),
            finding_text(each),
            f"{each.overhead:+.1f}%" if each in timed else "",
            band_text(each) if each in timed else "",
        ]
        for each in compared.changes
    ]
    heads = ["CASE", "CLASS", "ARM", "MEAN", "RATIO", "FINDING", "OVERHEAD", "BAND"]
    for doubt in compared.doubts:
        print(printable(f"nothing may be claimed: {doubt}"))
    if compared.doubts:
        print("\nWhat was seen, for what it is worth:")
    if rows:
        render.print_table(heads, [list(map(printable, row)) for row in rows], always=0)
        print()
    for _, line in headline_text(compared):
        print(printable(line))
    slow = {each.band for each in timed if each.finding == "slower" and not compared.doubts}
    for band in (band for band in BANDS if band.name in slow and band.checks):
        print(f"overhead {band.name}: {band.meaning}; look next at")
        for check in band.checks:
            print(f"  {check.name}: {check.question}  {typeable(check.step)}")
    if compared.indicative:
        print("indicative: a quick run, fewer than 10 launches of each arm, or no launches named")
    for line in compared.left_out:
        print(printable(f"left out: {line}"))
    for note in compared.notes:
        print(printable(f"note: {note}"))


@command()
@click.argument("file", type=FILE, metavar="BENCH.json")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), metavar="DIR",
              help="Where to write (default: beside BENCH.json).")  # fmt: skip
@shared
def report(options: Options, file: Path, out: Path | None) -> int:
    """Write report.html, report.md and samples.csv from BENCH.json."""
    from spark_build.files import text_of
    from spark_build.measure.suite import HINT as SUITE_HINT
    from spark_build.measure.suite import bench_from_json, write_suite_report

    raw = json_of(text_of(file, SUITE_HINT), str(file), SUITE_HINT)
    folder = out or file.parent
    page = write_suite_report(bench_from_json(raw, str(file)), folder)
    if options.json:
        render.print_json({"report": str(page), "folder": str(folder), "exit_code": 0})
    else:
        print(page)
    return 0
