"""The command doctor: missing requirements of the recipes on this machine, with a fix for each."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from spark_build import __version__
from spark_build.cli import render
from spark_build.cli.farm import FarmOptions, farm_options, reached, refuse_certificates
from spark_build.cli.hints import nothing_checked, typeable
from spark_build.cli.options import Options, as_one, command, shared
from spark_build.cli.plan import with_option
from spark_build.errors import Finding, Hint, HostError, NothingCheckedError, Severity, UsageError, ours
from spark_build.paths import path_given

if TYPE_CHECKING:
    from spark_build.build.context import Context
    from spark_build.doctor.model import Facts, IndexFacts
    from spark_build.doctor.probe import MachineAccess


# The words of this command for a finding's severity.
STATUS: dict[Severity, str] = {"ok": "ok", "warning": "warn", "error": "fail"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Scope:
    """Scope of a doctor: the recipes whose needs it looks at, and whether the links of a cluster."""

    recipes: tuple[str, ...] = ()
    also: tuple[str, ...] = ()  # beside those that are built by default
    cluster: bool = False


@command()
@click.argument("recipes", nargs=-1)
@with_option("Also look at what these need, which are not built by default.")
@click.option("--fix", is_flag=True, help="Run the safe fixes; asks before each.")
@click.option("--yes", is_flag=True, help="With --fix: do not ask.")
@click.option("--cluster", is_flag=True, help="Also check the links between several machines.")
@click.option("--bundle", metavar="FILE", help="Write a support bundle (tar) without secrets.")
@farm_options("Check all workers of tls://HOST:PORT, or the machines of ssh:HOST,HOST.")
@as_one(Scope, "scope")
@shared
def doctor(
    options: Options, scope: Scope, fix: bool, yes: bool, bundle: str | None, where: FarmOptions
) -> int:
    """Check this machine for what builds need; each finding comes with its fix."""
    refuse_certificates(where.farm)
    if where.farm:
        _refuse_away(fix=fix, bundle=bundle is not None)
        return _examine_farm(options, scope, where)
    from spark_build.doctor import support as bundles
    from spark_build.doctor.probe import MachineAccess

    if fix and not yes and not sys.stdin.isatty():
        raise UsageError("--fix asks before each command, and there is no terminal", hint="--fix --yes")
    if bundle is not None:
        bundles.refuse_bundle(path_given(bundle, "--bundle"))
    setting = options.setting()
    facts, findings = examine(MachineAccess(), setting, scope)
    applied = _apply_fixes(findings, ask=not yes) if fix else []
    if applied:
        setting = options.setting()
        facts, findings = examine(MachineAccess(), setting, scope)
    rows = [_finding_row(one) for one in findings]
    document: dict[str, Any] = {"findings": rows, "machine": machine_of(facts)}
    if fix:
        document["fixed"] = [{"command": command, "exit_code": code} for command, code in applied]
    if bundle is not None:
        files = bundles.write_support_bundle(path_given(bundle, "--bundle"), setting.home, facts, rows)
        document["bundle"] = {"path": bundle, "files": files}
    if options.json:
        render.print_json(document)
    else:
        print_findings(findings, quiet=options.verbosity < 0)
        if bundle is not None:
            print(f"{bundle} has what support needs; look through it before you send it")
    return HostError.exit_code if any(finding.severity == "error" for finding in findings) else 0


def _finding_row(one: Finding) -> dict[str, Any]:
    from spark_build.doctor.support import safe_line

    row = {"check": one.rule, "status": STATUS[one.severity], "message": one.message}
    return {**row, "fix": typeable(one.hint), "safe": bool(safe_line(one))}


def _refuse_away(**given: bool) -> None:
    """Raise UsageError for options that work on this machine only."""
    for name in (name for name, value in given.items() if value):
        raise click.UsageError(f"--{name} works on this machine only: no --farm")


def machine_of(facts: Facts) -> dict[str, Any]:
    """Return what distinguishes machines of one farm."""
    basics = facts.basics
    return {
        "platform": basics.machine.platform,
        "cores": basics.machine.cores,
        "memory_mib": basics.machine.memory_mib,
        "gpus": [gpu.name for gpu in facts.gpus],
        "cuda": basics.nvcc,
        "driver": facts.driver.libraries or facts.driver.module,
        "python": basics.python,
        "spark_build": __version__,
    }


ALIKE = {"driver": "driver", "cuda": "CUDA toolkit", "python": "Python", "spark_build": "spark-build"}
COLUMNS = ["NODE", "PLATFORM", "CORES", "MEMORY", "CUDA", "DRIVER", "WORST FINDING"]


def _examine_farm(options: Options, scope: Scope, where: FarmOptions) -> int:
    """Show what the doctors of all nodes of a farm find, and in what the nodes differ."""
    with reached(options.home(), where, lambda text: click.echo(text, err=True)) as there:
        from spark_build.farm.client import ask_all
        from spark_build.farm.task import Examination

        asked = Examination(
            recipes=list(scope.recipes),
            also=list(scope.also),
            train=options.train,
            target=options.target,
            provide=dict(options.provide),
            choices={f"{recipe}.{name}": value for (recipe, name), value in options.choices.items()},
            cluster=scope.cluster,
        )
        nodes = sorted(ask_all(there, asked), key=lambda node: str(node["node"]))
    wanted = len(where.address.nodes)
    if len(nodes) < wanted:
        gone = {"problem": "the worker ended before it was asked", "findings": []}
        nodes.append({"node": f"{wanted - len(nodes)} of {wanted}", **gone})
    code = HostError.exit_code if any(worst_of(node)[0] == "fail" for node in nodes) else 0
    code = code if nodes else NothingCheckedError.exit_code
    differing = differences(nodes)
    if options.json:
        render.print_json({"nodes": nodes, "differences": differing, "exit_code": code})
    if not nodes:
        worker = ours("farm worker", where.address.scheduler, elsewhere=True)
        return nothing_checked("the farm has no worker", Hint("on each machine that builds: ", worker))
    if options.json:
        return code
    render.print_table(COLUMNS, [_row(node) for node in nodes])
    for what, values in differing.items():
        each = "; ".join(f"{value or 'none'} on {', '.join(names)}" for value, names in values.items())
        print(f"the nodes differ in {ALIKE[what]}: {each}")
    for node in nodes:
        for one in node["findings"]:
            if one["status"] == "fail" or (one["status"] != "ok" and options.verbosity >= 0):
                fix = f"\n  to fix it: {one['fix']}" if one["fix"] else ""
                print(f"{node['node']}: {one['check']} {one['status']}: {one['message']}{fix}")
    return code


def worst_of(node: Mapping[str, Any]) -> tuple[str, str]:
    """Return the status and the text of the first of a node's worst findings."""
    if node["problem"]:
        return "fail", node["problem"]
    for status in ("fail", "warn"):
        for one in node["findings"]:
            if one["status"] == status:
                return status, f"{one['check']} {status}: {one['message']}"
    return "ok", "ok"


def differences(nodes: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, list[str]]]:
    """Return, of what should be alike on all nodes and is not, each value with its nodes."""
    found: dict[str, dict[str, list[str]]] = {}
    for what in ALIKE:
        values: dict[str, list[str]] = {}
        for node in nodes:
            if "machine" in node:
                values.setdefault(str(node["machine"][what]), []).append(str(node["node"]))
        if len(values) > 1:
            found[what] = values
    return found


def _row(node: Mapping[str, Any]) -> list[str]:
    if "machine" not in node:
        return [str(node["node"]), *["-"] * 5, worst_of(node)[1]]
    machine = node["machine"]
    numbers = [str(machine["cores"]), f"{machine['memory_mib'] / 1024:.1f} GiB"]
    versions = [machine["cuda"] or "none", machine["driver"] or "none"]
    return [str(node["node"]), machine["platform"], *numbers, *versions, worst_of(node)[1]]


def examine(
    access: MachineAccess,
    setting: Context,
    scope: Scope,
    *,
    indexes: Callable[[], IndexFacts] | None = None,
) -> tuple[Facts, tuple[Finding, ...]]:
    """Collect and judge all facts; `indexes` replaces asking those that pip is configured for."""
    from spark_build.build import requirements, scheduler
    from spark_build.doctor import checks_system, collect
    from spark_build.doctor.model import PlanRequirements

    planned = scheduler.plan(setting, scope.recipes, scope.also)
    wants = PlanRequirements(
        plan=planned, limits=setting.limits, named=frozenset((*scope.recipes, *scope.also))
    )

    def ask() -> IndexFacts:
        return collect.reachable(lambda: len(requirements.missing_sources(planned, setting.home)))

    facts = collect.collect_facts(
        access, setting.home, wants, setting.machine, indexes=indexes or ask, with_cluster=scope.cluster
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
