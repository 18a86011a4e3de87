"""Verify a generation, burn in what was asked for, and say what came of it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from spark_build.cli.hints import carry_over
from spark_build.decoding import decoder
from spark_build.errors import Hint, HintStep, NothingCheckedError, VerificationError, ours
from spark_build.events import Emit
from spark_build.text import format_flops

if TYPE_CHECKING:
    from spark_build.build.context import Context
    from spark_build.measure.cluster import ClusterRequest
    from spark_build.measure.model import BurnIn, Check
    from spark_build.measure.request import BurnInRequest
    from spark_build.measure.session import MeasureSite
    from spark_build.wheelhouse.generations import Generation


@dataclass(frozen=True, kw_only=True)
class VerifyOutcome:
    """Result of a verification: JSON fields, lines for people, exit code.

    unmeasured: a burn-in was asked for and not begun, which another machine's checks do not stand for.
    """

    document: dict[str, Any]
    lines: list[str]
    code: int
    unchecked: tuple[str, Hint | HintStep] | None = None  # why nothing was checked, and what to do next
    unmeasured: bool = False
    table: list[list[str]] = field(default_factory=list)  # above the lines; its first row is the header

    @property
    def in_short(self) -> list[str]:
        """The line of a burn-in, else that of the checks; and what failed or is open."""
        found = [line for line in self.lines if line.startswith(("verified:", "burn-in:"))][-1:]
        return [*found, *(line for line in self.lines if line.startswith(("FAILED", "open:")))]

    def joined(self, checks: list[dict[str, Any]], where: str, document: dict[str, Any]) -> VerifyOutcome:
        """Return it with what another machine checked; what this one could not check is no failure then.

        Raise TypeError, ValueError or LookupError for rows that are no checks.
        """
        lines, failed = _summed([asdict(check) for check in _checks(checks)], f" {where}")
        found = replace(self, document=document, lines=[*self.lines, *lines])
        if failed:
            return replace(found, code=VerificationError.exit_code, unchecked=None)
        return found if self.unmeasured or not self.unchecked else replace(found, code=0, unchecked=None)


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
    why: tuple[str, Hint | HintStep] | None = None
    if generation is None or not generation.built():
        why = "no wheel here was built by spark-build", ours("plan")
    elif not setting.is_here:
        target = setting.target
        other = f"target {target.name} is {target.platform}, {target.python}, and this machine is not"
        why = other, carry_over("verify there")
    if why and not wheelless:
        return replace(_unchecked(*why), unmeasured=burn_in is not None)
    checked = _checked(setting, generation, folder, emit, reverify=reverify)
    if burn_in is None:
        return checked
    checks = _checks(checked.document["checks"])
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


def _checks(rows: list[dict[str, Any]]) -> tuple[Check, ...]:
    """Return checks as they were written. Raise TypeError, ValueError or LookupError for anything else."""
    from spark_build.measure.model import Check

    found: tuple[Check, ...] = decoder(tuple[Check, ...])(rows)
    return found


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


def default_burn_in() -> BurnInRequest:
    """Return the burn-in of `all --burn-in`, imported only where it is asked for."""
    from spark_build.measure.request import BurnInRequest

    return BurnInRequest()


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
