"""`verify compare` and `verify gate`: what was measured earlier, read from its JSON."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import click

from spark_build.cli import render
from spark_build.cli.options import Options, shared
from spark_build.text import flops

FILE = click.Path(path_type=Path)


@click.command()
@click.argument("old", type=FILE)
@click.argument("new", type=FILE)
@click.option("--arm", help="Arm to compare (default: the candidate, else the baseline).")
@shared
def compare(options: Options, old: Path, new: Path, arm: str | None) -> int:
    """Say what changed from burn-in OLD.json to NEW.json."""
    from spark_build.measure.compare_runs import compare_runs

    crossed = compare_runs(_read(old), _read(new), arm)
    if options.json:
        render.print_json({**dataclasses.asdict(crossed), "exit_code": 0})
        return 0
    rows = [
        [
            each.case + (" *" if each.headline else ""),
            flops(each.rates[0]),
            flops(each.rates[1]),
            f"{each.ratio:.3f} [{each.ci95[0]:.3f}, {each.ci95[1]:.3f}]",
            each.finding,
        ]
        for each in crossed.changes
    ]
    render.print_table(["CASE", "OLD", "NEW", "RATIO", "FINDING"], rows)
    for doubt in crossed.doubts:
        print(f"doubtful: {doubt}")
    return 0


@click.command()
@click.argument("new", type=FILE, required=False)
@click.option("--min-ratio", type=click.FloatRange(min=0, min_open=True), default=0.98, show_default=True,
              help="Least acceptable rate, relative to the baseline.")  # fmt: skip
@click.option(
    "--against", type=FILE, metavar="OLD.json", help="Compare with this run, not with the baseline."
)
@shared
def gate(options: Options, new: Path | None, min_ratio: float, against: Path | None) -> int:
    """Exit 0 when NEW.json (default: the last burn-in) is fast enough, 9 when not, 11 when unknown."""
    from spark_build.errors import InconclusiveError, VerificationError
    from spark_build.measure.compare_runs import gate_run

    file = new or _last(options)
    decision, why = gate_run(_read(file), min_ratio, _read(against) if against else None)
    code = {"pass": 0, "fail": VerificationError.exit_code, "inconclusive": InconclusiveError.exit_code}[
        decision
    ]
    if options.json:
        document = {"decision": decision, "reason": why, "file": str(file), "exit_code": code}
        render.print_json(document)
    else:
        print(f"{decision}: {why}")
    return code


def _read(file: Path) -> dict[str, Any]:
    from spark_build.cli.json_input import json_of, text_of
    from spark_build.measure.compare_runs import HINT, check_document

    return check_document(json_of(text_of(file, HINT), str(file), HINT), str(file))


def _last(options: Options) -> Path:
    from spark_build.errors import UsageError

    runs = options.home().runs
    found = sorted(runs.glob("*/burn-in.json"), key=lambda file: file.stat().st_mtime)
    if not found:
        raise UsageError(f"there is no burn-in in {runs}", hint="spark-build verify --burn-in --full")
    return found[-1]
