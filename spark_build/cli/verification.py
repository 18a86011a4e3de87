"""`verify`: functional checks, and the burn-in when asked for."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from spark_build.cli import render
from spark_build.cli.options import Options, shared

if TYPE_CHECKING:
    from spark_build.host.wheelhouse import Generation
    from spark_build.model.event import Emit
    from spark_build.model.verification import BurnIn, Check
    from spark_build.setting import Setting

Mode = Literal["quick", "full"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Judged:
    """What verification has to say: JSON fields, lines for people, exit code."""

    document: dict[str, Any]
    lines: list[str]
    code: int


@click.command()
@click.option("--burn-in", is_flag=True, help="Measure the build against the public wheels.")
@click.option("--quick/--full", default=None, help="Few short rounds (indicative), or a verdict.")
@click.option("--seed", type=int, help="Seed of data and order (default: random, recorded).")
@click.option("--reverify", is_flag=True, help="Repeat checks that were done.")
@shared
def verify(options: Options, burn_in: bool, quick: bool | None, seed: int | None, reverify: bool) -> int:
    """Install the wheels into a fresh environment, check them; --burn-in measures them."""
    from spark_build.cli.building import running
    from spark_build.cli.wheelhouse import current

    generation = current(options)
    setting = options.setting()
    mode: Mode | None = None if quick is None else "quick" if quick else "full"
    with running(options, setting.home.runs) as (folder, emit):
        judged = judge(
            setting, generation, folder, emit, reverify=reverify, burn_in=burn_in, mode=mode, seed=seed
        )
    if options.json:
        render.print_json({"arms": [], "burn_in": None, **judged.document, "exit_code": judged.code})
        return judged.code
    rows = [[one["name"], one["status"], one["evidence"]] for one in judged.document["checks"]]
    render.print_table(["CHECK", "STATUS", "EVIDENCE"], rows)
    for line in judged.lines:
        print(line)
    return judged.code


def judge(
    setting: Setting,
    generation: Generation | None,
    folder: Path,
    emit: Emit,
    *,
    reverify: bool = False,
    burn_in: bool = False,
    mode: Mode | None = None,
    seed: int | None = None,
) -> Judged:
    """Verify a generation unless it was; burn it in when asked to."""
    from spark_build.errors import VerificationError
    from spark_build.verify.functional import verify as check_all

    if generation is None or not generation.built():
        return Judged(document={"checks": []}, lines=["nothing to verify"], code=0)
    if not setting.is_here:
        here = f"{setting.target.platform}, {setting.target.python}"
        lines = [f"not verified: {setting.target.name} is {here}; run `spark-build verify` there"]
        return Judged(document={"checks": []}, lines=lines, code=0)
    recipes = setting.catalogue.recipes
    checks, now = check_all(setting.home, recipes, generation, folder, emit, again=reverify)
    failed = [check for check in checks if check.status == "fail"]
    done = sum(check.status == "ok" for check in checks)
    when = "" if now else " (earlier; --reverify repeats it)"
    lines = [f"verified: {done} of {len(checks)} checks ok{when}"]
    lines += [f"FAILED {check.name}: {check.evidence}" for check in failed]
    document: dict[str, Any] = {"checks": [dataclasses.asdict(check) for check in checks]}
    code = VerificationError.exit_code if failed else 0
    if burn_in:
        measured = _burn_in(setting, generation, emit, checks, mode, seed)
        return _with_burn_in(document, lines, measured)
    return Judged(document=document, lines=lines, code=code)


def _burn_in(
    setting: Setting,
    generation: Generation,
    emit: Emit,
    checks: tuple[Check, ...],
    mode: Mode | None,
    seed: int | None,
) -> BurnIn:
    """Measure; an interrupted measurement of this generation and mode goes on."""
    from spark_build.verify import session

    cuda = bool(setting.target.cuda_architectures)
    return session.measure(
        setting.home,
        setting.train.name,
        generation,
        emit,
        checks=checks,
        device="cuda" if cuda else "cpu",
        mode=mode or ("full" if cuda else "quick"),
        seed=seed,
    )


def _with_burn_in(document: dict[str, Any], lines: list[str], measured: BurnIn) -> Judged:
    from spark_build.core.verdict import exit_code
    from spark_build.model.verification import burn_in_json

    verdict = measured.verdict
    mark = " (indicative)" if verdict.indicative else ""
    found = [*lines, f"burn-in: {verdict.claim}{mark}", f"  {verdict.explanation}"]
    found += [f"  gate {gate.name}: {gate.evidence}" for gate in measured.gates if gate.status != "ok"]
    found.append(f"  report: {measured.report}")
    raw = burn_in_json(measured)
    return Judged(
        document={**document, "arms": raw["arms"], "burn_in": raw}, lines=found, code=exit_code(verdict)
    )
