"""The command verify: checks, burn-ins, comparisons."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import click

from spark_build.cli import render
from spark_build.cli.hints import nothing_checked
from spark_build.cli.judgement import judge
from spark_build.cli.lazy_group import LazyGroup
from spark_build.cli.options import POSITIVE, Options, Renamed, as_one, command, json_of, shared
from spark_build.cli.render import running
from spark_build.errors import (
    InconclusiveError,
    NothingCheckedError,
    SparkBuildError,
    UsageError,
    VerificationError,
    ours,
)
from spark_build.measure.request import LAYOUTS, BurnInRequest
from spark_build.text import format_flops

DTYPES = ("fp16", "bf16", "tf32", "fp32", "fp8", "fp4")


def measuring_options(function: Callable[..., Any]) -> Callable[..., Any]:  # long: a list of options
    """Add the options of a burn-in, handed on as one BurnInRequest."""
    decorated = as_one(BurnInRequest, "asked")(function)
    for declare in (
        click.option(
            "--bus-bandwidth",
            type=POSITIVE,
            metavar="GB/S",
            help="With --nodes: all-reduce between them must reach it.",
        ),
        click.option(
            "--rank", type=click.IntRange(min=0), help="With --nodes: which of them this is, from 0."
        ),
        click.option(
            "--nodes", metavar="HOST[:PORT],HOST...", help="Burn in these machines at once; type it on each."
        ),
        click.option("--device", type=click.Choice(["cpu", "cuda"]), help="What computes (default: target)."),
        click.option(
            "--timeout",
            "--patience",
            "patience",
            cls=Renamed,
            type=POSITIVE,
            help="Seconds after which a round counts as hung, a node as missing.",
        ),
        click.option("--seed", type=int, help="Seed of data and order (default: random, recorded)."),
        click.option("--quick/--full", default=None, help="Few short rounds (indicative), or a verdict."),
        click.option(
            "--rounds", type=click.IntRange(min=2), help="Rounds of each arm; 10 or more for --full."
        ),
        click.option("--duration", type=POSITIVE, help="Seconds of one timed window."),
        click.option(
            "--layout", type=click.Choice(list(LAYOUTS)), help="Measure a@b (ab), F.linear, or both."
        ),
        click.option("--sweep", is_flag=True, help="Measure all usual sizes."),
        click.option(
            "--size", type=click.IntRange(min=16), multiple=True, help="Rows of a matrix; repeatable."
        ),
        click.option(
            "--dtype",
            type=click.Choice(DTYPES),
            metavar="TYPE",
            multiple=True,
            help=f"Number format: {', '.join(DTYPES)}; repeatable.",
        ),
        click.option(
            "--swap", type=click.Choice(["cublas", "openmp"]), help="Measure with one library swapped, too."
        ),
        click.option(
            "--arm",
            metavar="NAME=WHAT",
            multiple=True,
            help="What to measure; the first is the baseline: public, wheelhouse, container:IMAGE, a folder.",
        ),
    ):
        decorated = declare(decorated)
    return decorated


COMMANDS = {
    "compare": ("spark_build.cli.verify", "compare", "Compare two burn-ins."),
    "gate": ("spark_build.cli.verify", "gate", "Decide for CI: is it fast enough?"),
    "history": ("spark_build.cli.verify", "history", "Show this machine's burn-ins over time."),
}


@click.group(cls=LazyGroup, table=COMMANDS, invoke_without_command=True)
@click.option("--burn-in", is_flag=True, help="Measure the build against the public wheels.")
@measuring_options
@click.option("--reverify", is_flag=True, help="Repeat checks that passed.")
@shared
@click.pass_context
def verify(
    context: click.Context, options: Options, burn_in: bool, asked: BurnInRequest, reverify: bool
) -> int | None:
    """Install the wheels into a fresh environment and check them; --burn-in measures them."""
    if context.invoked_subcommand is not None:
        return None
    if (given := _given(asked)) and not burn_in:
        raise click.UsageError(f"{given} is about a burn-in: add --burn-in")
    if asked.sweep and asked.size:
        raise click.UsageError("--sweep chooses the sizes: leave --size away")
    from spark_build.cli.wheelhouse import current

    generation = current(options) if asked.needs_wheelhouse else None
    setting = options.setting()
    with running(options, setting.home.runs) as (folder, emit):
        judged = judge(
            setting, generation, folder, emit, reverify=reverify, burn_in=asked if burn_in else None
        )
    if options.json:
        render.print_json({"arms": [], "burn_in": None, **judged.document, "exit_code": judged.code})
        return nothing_checked(*judged.unchecked) if judged.unchecked else judged.code
    with render.details(options):
        rows = [
            [one.get("package", ""), one["name"], one["status"], one["evidence"]]
            for one in judged.document["checks"]
        ]
        render.print_table(["PACKAGE", "CHECK", "STATUS", "EVIDENCE"], rows)
    if judged.table:
        render.print_table(judged.table[0], judged.table[1:])
    for line in judged.lines if options.verbosity >= 0 else judged.in_short:
        print(line)
    return nothing_checked(*judged.unchecked) if judged.unchecked else judged.code


def _given(asked: BurnInRequest) -> str:
    """Return the first option of a burn-in that was given; "" when none was."""
    values = {one.name: getattr(asked, one.name) for one in fields(asked)}
    given = (name for name, value in values.items() if value not in (None, ()) and value is not False)
    return next((f"--{name.replace('_', '-')}" for name in given), "")


FILE = click.Path(path_type=Path)


@command()
@click.argument("old", type=FILE)
@click.argument("new", type=FILE)
@click.option("--arm", metavar="NAME", help="Arm to compare (default: the candidate, else the baseline).")
@shared
def compare(options: Options, old: Path, new: Path, arm: str | None) -> int:
    """Show what changed from burn-in OLD.json to NEW.json."""
    from spark_build.measure.compare_runs import compare_runs

    crossed = compare_runs(_read(old), _read(new), arm)
    if options.json:
        render.print_json({**asdict(crossed), "exit_code": 0})
        return 0
    rows = [
        [
            each.case + (" *" if each.headline else ""),
            format_flops(each.rates[0]),
            format_flops(each.rates[1]),
            f"{each.ratio:.3f} [{each.ci95[0]:.3f}, {each.ci95[1]:.3f}]",
            each.finding,
        ]
        for each in crossed.changes
    ]
    render.print_table(["CASE", "OLD", "NEW", "RATIO", "FINDING"], rows)
    for doubt in crossed.doubts:
        print(f"doubtful: {doubt}")
    return 0


@command()
@click.argument("new", type=FILE, required=False)
@click.option("--min-ratio", type=POSITIVE, default=0.98, show_default=True,
              help="Least acceptable rate, relative to the baseline.")  # fmt: skip
@click.option(
    "--against", type=FILE, metavar="OLD.json", help="Compare with this run, not with the baseline."
)
@click.option("--every-case", is_flag=True, help="Exit 11 when any case is undecided.")
@shared
def gate(options: Options, new: Path | None, min_ratio: float, against: Path | None, every_case: bool) -> int:
    """Decide whether NEW.json (default: the last burn-in) is fast enough.

    Exits 0 when it is, 9 when not, 11 when unknown.
    """
    from spark_build.measure.compare_runs import gate_run

    file = new or _last(options)
    decision, why = gate_run(_read(file), min_ratio, _read(against) if against else None, every=every_case)
    code = {"pass": 0, "fail": VerificationError.exit_code, "inconclusive": InconclusiveError.exit_code}[
        decision
    ]
    if options.json:
        document = {"decision": decision, "reason": why, "file": str(file), "exit_code": code}
        render.print_json(document)
    else:
        print(f"{decision}: {why}")
    return code


@command()
@shared
def history(options: Options) -> int:
    """Show this machine's burn-ins over time, and how much they vary from run to run."""
    from spark_build.measure.compare_runs import history_of

    documents = []
    for file in sorted(options.home().runs.glob("*/burn-in.json")):
        try:
            documents.append(_read(file))
        except SparkBuildError as error:
            print(f"left out: {error}", file=sys.stderr)
    groups = history_of(documents)
    code = 0 if groups else NothingCheckedError.exit_code
    if options.json:
        render.print_json({"arms": [asdict(each) for each in groups], "exit_code": code})
    if not groups:
        return nothing_checked(
            f"there is no burn-in in {options.home().runs}", ours("verify --burn-in --full")
        )
    if options.json:
        return code
    rows = [
        [each.headline, each.arm, when[:16].replace("T", " "), format_flops(rate)]
        for each in groups
        for when, rate in zip(each.started, each.rates, strict=True)
    ]
    render.print_table(["CASE", "ARM", "WHEN", "RATE"], rows)
    for each in groups:
        known = "not known from fewer than 3 runs" if each.spread is None else f"{each.spread:.2%}"
        print(f"{each.headline}, {each.arm}: standard deviation from run to run {known}")
    return 0


def _read(file: Path) -> dict[str, Any]:
    from spark_build.files import text_of
    from spark_build.measure.compare_runs import HINT, check_document

    return check_document(json_of(text_of(file, HINT), str(file), HINT), str(file))


def _last(options: Options) -> Path:
    runs = options.home().runs
    found = sorted(runs.glob("*/burn-in.json"), key=lambda file: file.stat().st_mtime)
    if not found:
        raise UsageError(f"there is no burn-in in {runs}", hint=ours("verify --burn-in --full"))
    return found[-1]
