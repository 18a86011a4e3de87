"""The command doctor: missing requirements of the recipes on this machine, with a fix for each."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from spark_build.cli import render
from spark_build.cli.hints import typeable
from spark_build.cli.options import Options, command, shared
from spark_build.errors import Finding, Severity

if TYPE_CHECKING:
    from spark_build.build.context import Context
    from spark_build.doctor.model import Facts, IndexFacts
    from spark_build.doctor.probe import MachineAccess


# The words of this command for a finding's severity.
STATUS: dict[Severity, str] = {"ok": "ok", "warning": "warn", "error": "fail"}


@command()
@click.argument("recipes", nargs=-1)
@click.option("--fix", is_flag=True, help="Run the safe fixes; asks before each.")
@click.option("--yes", is_flag=True, help="With --fix: do not ask.")
@click.option("--cluster", is_flag=True, help="Also check the links between several machines.")
@click.option("--bundle", metavar="FILE", help="Write a support bundle (tar) without secrets.")
@shared
def doctor(
    options: Options, recipes: tuple[str, ...], fix: bool, yes: bool, cluster: bool, bundle: str | None
) -> int:
    """Check this machine for what builds need; each finding comes with its fix."""
    from spark_build.doctor import support as bundles
    from spark_build.doctor.probe import MachineAccess
    from spark_build.errors import HostError, UsageError

    if fix and not yes and not sys.stdin.isatty():
        raise UsageError("--fix asks before each command, and there is no terminal", hint="--fix --yes")
    place = Path(bundle or "").expanduser()
    if bundle is not None:
        bundles.refuse_bundle(place)
    setting = options.setting()
    facts, findings = examine(MachineAccess(), setting, recipes, with_cluster=cluster)
    applied: list[tuple[str, int]] = []
    if fix:
        applied = _apply_fixes(findings, ask=not yes)
        if applied:
            setting = options.setting()
            facts, findings = examine(MachineAccess(), setting, recipes, with_cluster=cluster)
    rows = [
        {
            "check": one.rule,
            "status": STATUS[one.severity],
            "message": one.message,
            "fix": typeable(one.hint, Options()),
            "safe": bool(bundles.safe_line(one)),
        }
        for one in findings
    ]
    document: dict[str, Any] = {"findings": rows}
    if fix:
        document["fixed"] = [{"command": command, "exit_code": code} for command, code in applied]
    if bundle is not None:
        document["bundle"] = {
            "path": bundle,
            "files": bundles.write_support_bundle(place, setting.home, facts, rows),
        }
    if options.json:
        render.print_json(document)
    else:
        print_findings(findings, quiet=options.verbosity < 0)
        if bundle is not None:
            print(f"{bundle} has what support needs; look through it before you send it")
    return HostError.exit_code if any(finding.severity == "error" for finding in findings) else 0


def examine(
    access: MachineAccess,
    setting: Context,
    recipes: Sequence[str],
    *,
    with_cluster: bool,
    indexes: Callable[[], IndexFacts] | None = None,
) -> tuple[Facts, tuple[Finding, ...]]:
    """Collect and judge all facts; `indexes` replaces asking those that pip is configured for."""
    from spark_build.build import requirements, scheduler
    from spark_build.doctor import checks_system, collect
    from spark_build.doctor.model import PlanRequirements

    planned = scheduler.plan(setting, recipes)
    wants = PlanRequirements(plan=planned, limits=setting.limits)

    def ask() -> IndexFacts:
        return collect.reachable(lambda: len(requirements.missing_sources(planned, setting.home)))

    facts = collect.collect_facts(
        access, setting.home, wants, setting.machine, indexes=indexes or ask, with_cluster=with_cluster
    )
    return facts, checks_system.everything(facts, wants)


def _apply_fixes(findings: Sequence[Finding], *, ask: bool) -> list[tuple[str, int]]:
    from spark_build.doctor import support

    def agree(command: str, fixed: list[Finding]) -> bool:
        for row in fixed:
            click.echo(f"{row.rule}: {row.message}", err=True)
        click.echo(f"  {command}", err=True)
        return not ask or click.confirm("run it?", err=True)

    done = support.apply_fixes(findings, agree)
    for line, code in done:
        if code:
            click.echo(f"failed with exit code {code}: {line}", err=True)
    if not done:
        click.echo("nothing to run: the other findings need you", err=True)
    return done


def print_findings(findings: Sequence[Finding], *, quiet: bool = False) -> None:
    """Print a table, then the fix of each finding that is not ok; with quiet only what fails."""
    wrong = [one for one in findings if one.severity == "error" or (one.severity != "ok" and not quiet)]
    shown = wrong if quiet else findings
    render.print_table(
        ["CHECK", "STATUS", "FOUND"], [[one.rule, STATUS[one.severity], one.message] for one in shown]
    )
    if shown:
        print()
    print_fixes(wrong)
    count = Counter(finding.severity for finding in findings)
    print(f"{len(findings)} checks: {', '.join(f'{count[one]} {word}' for one, word in STATUS.items())}")


def print_fixes(wrong: Sequence[Finding]) -> None:
    """Print the fixes of these findings, each command once."""
    from spark_build.doctor.support import safe_line

    fixes: dict[str, list[str]] = {}
    for finding in wrong:
        if finding.hint:
            fixes.setdefault(typeable(finding.hint), []).append(finding.rule)
    safe = {typeable(finding.hint) for finding in wrong if safe_line(finding)}
    if fixes:
        print("to fix it" + (" (* runs with --fix)" if safe else ""))
        for fix, names in fixes.items():
            print(f"{'*' if fix in safe else ' '} {', '.join(dict.fromkeys(names))}: {fix}")
        print()
