"""`verify`: functional checks, and the burn-in when asked for; `compare` and `gate` for what was measured."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from spark_build.cli import render
from spark_build.cli.hints import nothing_checked
from spark_build.cli.lazy_group import LazyGroup
from spark_build.cli.measuring import Asked, measuring_options
from spark_build.cli.options import Options, shared
from spark_build.errors import NothingCheckedError

if TYPE_CHECKING:
    from spark_build.build.context import Setting
    from spark_build.events import Emit
    from spark_build.measure.model import BurnIn, Check
    from spark_build.wheelhouse.generations import Generation

COMMANDS = {
    "compare": ("spark_build.cli.comparing", "compare", "Say what changed between two burn-ins."),
    "gate": ("spark_build.cli.comparing", "gate", "For CI: is it as fast as it must be?"),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Judged:
    """What verification has to say: JSON fields, lines for people, exit code."""

    document: dict[str, Any]
    lines: list[str]
    code: int
    unchecked: tuple[str, str] | None = None  # why nothing was checked, and what to do next


@click.group(cls=LazyGroup, table=COMMANDS, invoke_without_command=True)
@click.option("--burn-in", is_flag=True, help="Measure the build against the public wheels.")
@measuring_options
@click.option("--reverify", is_flag=True, help="Repeat checks that were done.")
@shared
@click.pass_context
def verify(
    context: click.Context, options: Options, burn_in: bool, asked: Asked, reverify: bool
) -> int | None:
    """Install the wheels into a fresh environment, check them; --burn-in measures them."""
    if context.invoked_subcommand is not None:
        return None
    if asked.said and not burn_in:
        raise click.UsageError(f"{asked.said} is about a burn-in: add --burn-in")
    from spark_build.cli.build import running
    from spark_build.cli.wheelhouse import current

    generation = current(options) if asked.needs_wheelhouse() else None
    setting = options.setting()
    with running(options, setting.home.runs) as (folder, emit):
        judged = judge(
            setting, generation, folder, emit, reverify=reverify, burn_in=asked if burn_in else None
        )
    if options.json:
        render.print_json({"arms": [], "burn_in": None, **judged.document, "exit_code": judged.code})
        return nothing_checked(*judged.unchecked) if judged.unchecked else judged.code
    render.print_table(["PACKAGE", "CHECK", "STATUS", "EVIDENCE"], _rows(judged.document["checks"]))
    for line in judged.lines:
        print(line)
    return nothing_checked(*judged.unchecked) if judged.unchecked else judged.code


def _rows(checks: list[dict[str, str]]) -> list[list[str]]:
    """Of a package only the first row bears its name: so they stand in groups."""
    packages = [one.get("package", "") for one in checks]
    shown = [
        package if package != before else ""
        for before, package in zip(["", *packages], packages, strict=False)
    ]
    return [
        [package, one["name"], one["status"], one["evidence"]]
        for package, one in zip(shown, checks, strict=True)
    ]


def judge(
    setting: Setting,
    generation: Generation | None,
    folder: Path,
    emit: Emit,
    *,
    reverify: bool = False,
    burn_in: Asked | None = None,
) -> Judged:
    """Verify a generation unless it was; burn in what was asked for."""
    wheelless = burn_in is not None and burn_in.arm and generation is None
    if not wheelless and (generation is None or not generation.built()):
        return _unchecked("no wheel here was built by spark-build", "spark-build plan")
    if not wheelless and not setting.is_here:
        return _unchecked(
            f"target {setting.target.name} is {setting.target.platform}, {setting.target.python}, "
            "and this machine is not",
            "spark-build wheelhouse export FILE.tar, then on that machine: "
            "spark-build wheelhouse import FILE.tar, and verify there",
        )
    checked = _checked(setting, generation, folder, emit, reverify=reverify)
    if burn_in is None:
        return checked
    checks = tuple(_check(row) for row in checked.document["checks"])
    measured = _burn_in(setting, generation, emit, checks, burn_in)
    document = {"checks": [dataclasses.asdict(check) for check in measured.checks]}
    return _with_burn_in(document, checked.lines, measured)


def _unchecked(why: str, following: str) -> Judged:
    """Nothing could be verified: why, and what to do next."""
    return Judged(
        document={"checks": []},
        lines=[],
        code=NothingCheckedError.exit_code,
        unchecked=(why, following),
    )


def _check(row: dict[str, str]) -> Check:
    from spark_build.measure.model import Check

    return Check(**row)  # type: ignore[arg-type] # as it was written


def _checked(
    setting: Setting, generation: Generation | None, folder: Path, emit: Emit, *, reverify: bool
) -> Judged:
    """Functional checks of a generation; without one there is nothing to check."""
    from spark_build.errors import VerificationError
    from spark_build.measure.checks import verify as check_all

    if generation is None:
        return Judged(document={"checks": []}, lines=[], code=0)
    recipes = setting.catalogue.recipes
    checks, now = check_all(setting.home, recipes, generation, folder, emit, again=reverify)
    failed = [check for check in checks if check.status == "fail"]
    done = sum(check.status == "ok" for check in checks)
    when = "" if now else " (earlier; --reverify repeats it)"
    skipped = sum(check.status == "skipped" for check in checks)
    apart = f", {skipped} skipped" if skipped else ""
    lines = [f"verified: {done} of {len(checks)} checks ok{apart}{when}"]
    lines += [f"FAILED {check.name}: {check.evidence}" for check in failed]
    document: dict[str, Any] = {"checks": [dataclasses.asdict(check) for check in checks]}
    return Judged(document=document, lines=lines, code=VerificationError.exit_code if failed else 0)


def _burn_in(
    setting: Setting,
    generation: Generation | None,
    emit: Emit,
    checks: tuple[Check, ...],
    asked: Asked,
) -> BurnIn:
    """Measure; an interrupted measurement of the same things goes on."""
    from spark_build.measure import session

    wish = asked.wish(cuda=bool(setting.target.cuda_architectures))
    return session.measure(
        setting.home,
        setting.train.name,
        generation,
        emit,
        recipes=setting.catalogue.recipes,
        checks=checks,
        wish=wish,
    )


def _other_cases(measured: BurnIn) -> list[str]:
    """What was found of the deciding arm besides the headline; nothing where nothing may be claimed."""
    from spark_build.text import flops

    headline = measured.verdict.headline
    spoilt = any(gate.status == "fail" for gate in measured.gates)
    if headline is None or spoilt or measured.verdict.word == "FUNCTIONAL-FAIL":
        return []
    lines = []
    for each in measured.cases:
        if each.second == headline.second and not each.headline:
            low, high = each.comparison.ci95
            ratio = f"ratio {each.comparison.ratio:.3f} [{low:.3f}, {high:.3f}]"
            rates = f"{flops(each.rates[1])} against {flops(each.rates[0])}"
            lines.append(f"{each.case}: {each.finding}, {ratio}; {rates}")
    return lines


def _with_burn_in(document: dict[str, Any], lines: list[str], measured: BurnIn) -> Judged:
    from spark_build.measure.model import burn_in_json
    from spark_build.measure.verdict import exit_code

    verdict = measured.verdict
    mark = " (indicative)" if verdict.indicative else ""
    found = [*lines, f"burn-in: {verdict.claim}{mark}", f"  {verdict.explanation}"]
    found += [f"  {line}" for line in _other_cases(measured)]
    found.append(f"  holds for {'; '.join(f'{name}: {value}' for name, value in measured.scope.items())}")
    found += [f"  gate {gate.name}: {gate.evidence}" for gate in measured.gates if gate.status != "ok"]
    found.append(f"  report: {measured.report}")
    raw = burn_in_json(measured)
    return Judged(
        document={**document, "arms": raw["arms"], "burn_in": raw}, lines=found, code=exit_code(verdict)
    )
