"""The command verify: checks, burn-ins, comparisons."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from spark_build.cli import render
from spark_build.cli.hints import carry_over, nothing_checked
from spark_build.cli.lazy_group import LazyGroup
from spark_build.cli.options import POSITIVE, Options, Renamed, as_one, command, json_of, shared
from spark_build.cli.render import running
from spark_build.errors import (
    Hint,
    HintStep,
    InconclusiveError,
    NothingCheckedError,
    SparkBuildError,
    UsageError,
    VerificationError,
    ours,
)
from spark_build.events import Emit
from spark_build.measure.request import LAYOUTS, BurnInRequest
from spark_build.text import format_flops

if TYPE_CHECKING:
    from spark_build.build.context import Context
    from spark_build.measure.cluster import ClusterRequest
    from spark_build.measure.model import BurnIn, Check
    from spark_build.measure.session import MeasureSite
    from spark_build.wheelhouse.generations import Generation

DTYPES = ("fp16", "bf16", "tf32", "fp32", "fp8", "fp4")


def measuring_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of a burn-in, handed on as one BurnInRequest."""
    decorated = as_one(BurnInRequest, "asked")(function)  # long, and nothing but a list
    for declare in (
        click.option(
            "--bus-bandwidth",
            type=POSITIVE,
            metavar="GB/S",
            help="With --nodes: wanted of all-reduce between them.",
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
            help=f"Number format of {', '.join(DTYPES)}; repeatable.",
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


@dataclass(frozen=True, kw_only=True)
class VerifyOutcome:
    """Result of a verification: JSON fields, lines for people, exit code."""

    document: dict[str, Any]
    lines: list[str]
    code: int
    unchecked: tuple[str, Hint | HintStep] | None = None  # why nothing was checked, and what to do next
    table: list[list[str]] = field(default_factory=list)  # above the lines; its first row is the header

    @property
    def in_short(self) -> list[str]:
        """The line of a burn-in, else that of the checks; and what failed."""
        found = [line for line in self.lines if line.startswith(("verified:", "burn-in:"))][-1:]
        return [*found, *(line for line in self.lines if line.startswith("FAILED"))]

    def joined(self, checks: list[dict[str, str]], where: str, document: dict[str, Any]) -> VerifyOutcome:
        """Return it with what another machine checked; what this one could not check is no failure then."""
        lines, failed = _summed(checks, f" {where}")
        code = VerificationError.exit_code if failed else 0 if self.unchecked else self.code
        return replace(self, document=document, lines=[*self.lines, *lines], code=code, unchecked=None)


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
        render.print_table(["PACKAGE", "CHECK", "STATUS", "EVIDENCE"], _rows(judged.document["checks"]))
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


def _cluster(asked: BurnInRequest) -> ClusterRequest | None:
    """Return the nodes that burn in together; None for this machine alone. Raises UsageError."""
    if asked.nodes is None:
        if asked.rank is not None or asked.bus_bandwidth is not None:
            raise click.UsageError("--rank and --bus-bandwidth are about several nodes: add --nodes")
        return None
    if asked.rounds is not None or asked.swap is not None:
        raise click.UsageError("with --nodes each node measures one environment once")
    from spark_build.measure.cluster import parse_nodes

    least = None if asked.bus_bandwidth is None else asked.bus_bandwidth * 1e9
    return parse_nodes(asked.nodes, asked.rank, least)


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
    setting: Context,
    generation: Generation | None,
    folder: Path,
    emit: Emit,
    *,
    reverify: bool = False,
    burn_in: BurnInRequest | None = None,
) -> VerifyOutcome:
    """Verify a generation unless it was; burn in what was asked for."""
    cluster = _cluster(burn_in) if burn_in else None
    wheelless = burn_in is not None and burn_in.arm and generation is None
    if not wheelless and (generation is None or not generation.built()):
        return _unchecked("no wheel here was built by spark-build", ours("plan"))
    if not wheelless and not setting.is_here:
        return _unchecked(
            f"target {setting.target.name} is {setting.target.platform}, {setting.target.python}, "
            "and this machine is not",
            carry_over("verify there"),
        )
    checked = _checked(setting, generation, folder, emit, reverify=reverify)
    if burn_in is None:
        return checked
    checks = tuple(_check(row) for row in checked.document["checks"])
    from spark_build.measure import session

    wish = burn_in.on(cuda=bool(setting.target.cuda_architectures))
    site = session.MeasureSite(home=setting.home, train=setting.train.name, generation=generation, emit=emit)
    if cluster is not None:
        return _of_cluster(site, wish, cluster, checks, folder)
    measured = session.measure_burn_in(site, wish, setting.catalogue.recipes, checks)
    document = {"checks": [asdict(check) for check in measured.checks]}
    return _with_burn_in(document, checked.lines, measured)


def _unchecked(why: str, following: Hint | HintStep) -> VerifyOutcome:
    """Nothing could be verified: why, and what to do next."""
    return VerifyOutcome(
        document={"checks": []},
        lines=[],
        code=NothingCheckedError.exit_code,
        unchecked=(why, following),
    )


def _check(row: dict[str, str]) -> Check:
    from spark_build.measure.model import Check

    return Check(**row)  # type: ignore[arg-type] # as it was written


def _checked(
    setting: Context, generation: Generation | None, folder: Path, emit: Emit, *, reverify: bool
) -> VerifyOutcome:
    """Functional checks of a generation; without one there is nothing to check."""
    from spark_build.wheelhouse.generations import checks_of

    if generation is None:
        return VerifyOutcome(document={"checks": []}, lines=[], code=0)
    # Verified before: what runs checks takes longer to import than all else that `all` then does.
    checks, now = None if reverify else checks_of(generation), False
    if checks is None:
        from spark_build.measure.checks import verify as check_all

        recipes = setting.catalogue.recipes
        found, now = check_all(setting.home, recipes, generation, folder, emit, again=reverify)
        checks = [asdict(check) for check in found]
    lines, failed = _summed(checks, "" if now else " (earlier; --reverify repeats it)")
    document: dict[str, Any] = {"checks": checks}
    if not failed and all(check["status"] != "ok" for check in checks):
        every = f"every check was skipped ({checks[0]['evidence']})" if checks else "no recipe names a check"
        return replace(_unchecked(every, ours("doctor")), document=document, lines=lines)
    return VerifyOutcome(document=document, lines=lines, code=VerificationError.exit_code if failed else 0)


def _summed(checks: list[dict[str, Any]], how: str) -> tuple[list[str], bool]:
    """Return the lines on checks, and whether one failed."""
    failed = [check for check in checks if check["status"] == "fail"]
    done = sum(check["status"] == "ok" for check in checks)
    skipped = sum(check["status"] == "skipped" for check in checks)
    apart = f", {skipped} skipped" if skipped else ""
    lines = [f"verified: {done} of {len(checks)} checks ok{apart}{how}"]
    return [*lines, *(f"FAILED {check['name']}: {check['evidence']}" for check in failed)], bool(failed)


def _of_cluster(
    site: MeasureSite, wish: BurnInRequest, nodes: ClusterRequest, checks: tuple[Check, ...], folder: Path
) -> VerifyOutcome:
    """Measure this node together with the others; what is said is the same on all of them."""
    from spark_build.measure import cluster

    found = cluster.burn_in_cluster(site, wish, nodes, checks, folder)
    rows = cluster.table_of(found)
    lines = [f"burn-in: {found['verdict']}"]
    lines += [f"  {why}" for why in dict.fromkeys((*found["why"], *found["findings"]))]
    if found["slowest"]:
        slow = found["slowest"]
        lines.append(f"  slowest: {slow['name']}, {slow['ratio']:.1%} of the fastest: {slow['reason']}")
    if found["bus"]:
        bound = "no bound known" if found["bound"] is None else f"wanted {found['bound'] / 1e9:.4g} GB/s"
        link, count = found["link"], len(found["nodes"])
        lines.append(f"  all_reduce by {link['backend']} of {count}: {found['bus'] / 1e9:.4g} GB/s; {bound}")
    lines.append(f"  report: {folder / 'cluster.md'}")
    document = {"checks": [asdict(check) for check in checks], "cluster": found}
    return VerifyOutcome(document=document, lines=lines, code=found["exit_code"], table=rows)


def _other_cases(measured: BurnIn) -> list[str]:
    """Return the deciding arm's results besides the headline; [] where nothing may be claimed."""
    headline = measured.verdict.headline
    spoilt = any(gate.status == "fail" for gate in measured.gates)
    if headline is None or spoilt or measured.verdict.word == "FUNCTIONAL-FAIL":
        return []
    lines = []
    for each in measured.cases:
        if each.second == headline.second and not each.headline:
            low, high = each.comparison.ci95
            ratio = f"ratio {each.comparison.ratio:.3f} [{low:.3f}, {high:.3f}]"
            rates = f"{format_flops(each.rates[1])} against {format_flops(each.rates[0])}"
            lines.append(f"{each.case}: {each.finding}, {ratio}; {rates}")
    return lines


def _with_burn_in(document: dict[str, Any], lines: list[str], measured: BurnIn) -> VerifyOutcome:
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
    return VerifyOutcome(
        document={**document, "arms": raw["arms"], "burn_in": raw}, lines=found, code=exit_code(verdict)
    )


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
@click.option("--every-case", is_flag=True, help="Fail when a case is undecided.")
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
