"""Make the wheel self-contained as its recipe says, then look inside before anyone gets it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from spark_build.build import attestations, environment
from spark_build.build.context import Job, Outputs
from spark_build.build.diagnosis import kept
from spark_build.errors import AuditError, Finding, Hint, ours, rm
from spark_build.files import copy_or_link, remove_tree
from spark_build.recipes.model import Step, Target
from spark_build.text import digest
from spark_build.wheelhouse.store import StoreEntry, next_serial, read, tree_digest
from spark_build.wheels.audit import as_vendor
from spark_build.wheels.model import WheelFacts, finding_row
from spark_build.wheels.reader import facts_and_digest
from spark_build.wheels.repair import Repaired, findings_of, repair
from spark_build.wheels.rules_device import demand, device_findings

NAME = "audit"
_UNSEEN = "nothing was printed about the expected feature "


def inputs(job: Job) -> Any:
    """Return the repair and the inputs of the judgement."""
    return {"repair": asdict(job.step.recipe.repair), "judgement": environment.judgement_inputs_of(job.step)}


def intact(job: Job, outputs: Outputs) -> bool:
    """Return whether the audited wheel is still there."""
    return not outputs["wheel"] or (job.out / str(outputs["wheel"])).is_file()


def run(job: Job, earlier: Mapping[str, Outputs]) -> Outputs:
    """Repair, read, judge; any error finding stops the publishing."""
    remove_tree(job.out)
    job.out.mkdir(parents=True)
    built = earlier["build"]
    job.log.flush()
    # The build watched its features; a recipe that asks for others since has the log of a kept build stage.
    missing, _ = _of_log(job.step, Path(job.log.name))
    findings = (*missing, *(_of_prefix(job.step, job.prefix) if built["prefix"] else ()))
    contents = [tree_digest(job.prefix)] if built["prefix"] else []
    if not built["wheel"]:
        _write(job, None, findings)
        _refuse_errors(f"the prefix of {job.step.recipe.name}", findings, job.log.name)
        return _outputs(job, None, contents)
    finished = _finish(job, job.dist / built["wheel"], earlier)
    wheel = finished.path
    facts, content = facts_and_digest(wheel, own=[str(job.work)])
    findings += _of_wheel(job.step, job.target, facts)
    _write(job, facts, findings)
    _refuse_errors(wheel.name, findings, job.log.name)
    return {**_outputs(job, facts, [content, *contents]), "repair": dict(finished.changes)}


def again(step: Step, target: Target, entry: StoreEntry, log: Path, *, built_in: Path) -> tuple[Finding, ...]:
    """Judge an entry of the store by what is asked today; AuditError when it is not good any more.

    log: of the build; built_in: below that it was built, and no file of it may name the folder.
    """
    missing, unseen = _of_log(step, log)
    findings = (*missing, *unseen, *(_of_prefix(step, entry.prefix) if entry.prefix else ()))
    what = f"the prefix of {step.recipe.name}"
    if entry.wheel is not None:
        what = entry.wheel.filename
        facts, content = facts_and_digest(entry.folder / what, own=[str(built_in)])
        findings += _of_wheel(step, target, facts)
        if entry.imported and content != entry.content_digest:  # a fetch leaves that to us
            findings += (Finding("record", "error", "its content digest is not what its record says"),)
    errors = _errors(findings)
    if errors:
        name = step.recipe.name
        anew = Hint(rm(entry.folder), ours("build", name))
        if entry.imported:  # it would be fetched again
            anew = Hint(ours("wheelhouse trust remove", entry.imported), anew)
        raise AuditError(
            f"{what} is in the store, but not good by what is asked of it today: {'; '.join(errors)}",
            hint=Hint(f"mend recipes/{name}.toml, or build it anew: ", anew),
        )
    return findings


def _of_wheel(step: Step, target: Target, facts: WheelFacts) -> tuple[Finding, ...]:
    """Return the rules' findings on a wheel."""
    findings = findings_of(facts, step.recipe, step.evaluated.wheel_version, target)
    findings += device_findings(facts, demand(step.recipe, target))
    return as_vendor(findings) if step.recipe.kind == "repack" else findings


def _of_log(step: Step, log: Path) -> tuple[tuple[Finding, ...], tuple[Finding, ...]]:
    """(Features that the build lacks by its log, those that the log does not mention)."""
    expected = step.evaluated.features
    if not expected:
        return (), ()
    with log.open(errors="replace") as lines:
        missing, unseen = kept(expected, lines)
    return missing, tuple(Finding("features", "warning", _UNSEEN + one.name) for one in unseen)


def _of_prefix(step: Step, prefix: Path) -> tuple[Finding, ...]:
    """Return findings on files that the recipe expects in a prefix and that are missing."""
    missing = [path for path in step.recipe.expect if not (prefix / path).exists()]
    said = f"the prefix lacks {', '.join(missing)}"
    return (Finding("expect", "error", said),) if missing else ()


def _finish(job: Job, wheel: Path, earlier: Mapping[str, Outputs]) -> Repaired:
    """Return the wheel to publish: repaired and tagged, or a vendor's own unchanged."""
    recipe = job.step.recipe
    if recipe.kind == "repack":
        copy_or_link(wheel, job.out / wheel.name)
        return Repaired(path=job.out / wheel.name, changes={})
    return repair(
        wheel,
        job.out,
        repair=recipe.repair,
        build_tag=_build_tag(job),
        epoch=int(earlier["patch"]["epoch"]),
        log=job.log,
        libraries=environment.library_folders(job),
        extra=attestations.inside(job, earlier),
    )


def _build_tag(job: Job) -> str:
    """Return a new serial, unless this build is in the store: repeating it must give the same bytes."""
    known = read(job.home.store, job.key)
    if known is not None and known.wheel is not None:
        return known.wheel.filename.split("-")[2]
    serial = next_serial(job.home.store, job.step.recipe.distribution, job.step.evaluated.wheel_version)
    return f"{serial}_{job.key[:8]}"


def _outputs(job: Job, facts: WheelFacts | None, contents: Sequence[str]) -> dict[str, Any]:
    recipe = job.step.recipe
    return {
        "wheel": facts.filename if facts else "",
        "name": facts.name if facts else recipe.distribution,
        "version": facts.version if facts else job.step.pin.version,
        "requires": list(facts.requires) if facts else [],
        "content_digest": contents[0] if len(contents) == 1 else digest(contents),
    }


def _write(job: Job, facts: WheelFacts | None, findings: Sequence[Finding]) -> None:
    """audit.json, and the findings in the log."""
    document = {"facts": asdict(facts) if facts else None, "findings": [finding_row(one) for one in findings]}
    (job.work / "audit.json").write_text(json.dumps(document, indent=1) + "\n")
    for finding in findings:
        job.log.write(f"audit {finding.severity} {finding.rule}: {finding.message}\n".encode())


def _refuse_errors(wheel: str, findings: Sequence[Finding], log: str) -> None:
    errors = _errors(findings)
    if errors:
        raise AuditError(f"{wheel} may not be published: {'; '.join(errors)}", log=log)


def _errors(findings: Sequence[Finding]) -> list[str]:
    return [f"{one.rule}: {one.message}" for one in findings if one.severity == "error"]
