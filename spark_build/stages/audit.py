"""Make the wheel self-contained as its recipe says, then look inside before anyone gets it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from spark_build.core.planning.key import digest
from spark_build.core.wheels.audit import as_vendor, audit
from spark_build.core.wheels.audit_device import demand, device_findings
from spark_build.errors import AuditError
from spark_build.host.building.job import Job, Outputs
from spark_build.host.files import copy_or_link, remove_tree
from spark_build.host.wheelhouse.prefix import tree_digest
from spark_build.host.wheelhouse.store import read
from spark_build.host.wheelhouse.storeindex import next_serial
from spark_build.host.wheels import papers
from spark_build.host.wheels.policies import symbol_policies, system_libraries
from spark_build.host.wheels.repair import Repaired, repair
from spark_build.host.wheels.wheelfile import facts_and_digest
from spark_build.model.wheel import Finding, WheelFacts

NAME = "audit"


def inputs(job: Job) -> Any:
    """What the rules judge by."""
    recipe = job.step.recipe
    return {
        "repair": asdict(recipe.repair),
        "audit": asdict(recipe.audit),
    }


def intact(job: Job, outputs: Outputs) -> bool:
    """The audited wheel is still there."""
    return not outputs["wheel"] or (job.out / str(outputs["wheel"])).is_file()


def run(job: Job, earlier: Mapping[str, Outputs]) -> Outputs:
    """Repair, read, judge; any error finding stops the publishing."""
    remove_tree(job.out)
    job.out.mkdir(parents=True)
    built = earlier["build"]
    contents = [tree_digest(job.prefix)] if built["prefix"] else []
    if not built["wheel"]:
        _write(job, None, ())
        return _outputs(job, None, contents)
    finished = _finish(job, job.dist / built["wheel"], earlier)
    wheel = finished.path
    facts, content = facts_and_digest(wheel, own=[str(job.work)])
    findings = audit(
        facts,
        distribution=job.step.recipe.distribution,
        version=job.step.evaluated.wheel_version,
        platform=job.target.platform,
        python=job.target.python,
        provided=job.step.recipe.repair.exclude,
        system_libraries=system_libraries(job.target.platform),
        policies=symbol_policies(job.target.platform),
    )
    findings += device_findings(facts, demand(job.step.recipe, job.target))
    if job.step.recipe.kind == "repack":
        findings = as_vendor(findings)
    _write(job, facts, findings)
    _refuse_errors(wheel.name, findings, job.log.name)
    return {**_outputs(job, facts, [content, *contents]), "repair": dict(finished.changes)}


def _finish(job: Job, wheel: Path, earlier: Mapping[str, Outputs]) -> Repaired:
    """The wheel to be published: repaired and tagged, or a vendor's own, untouched."""
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
        extra=papers.inside(job, earlier),
    )


def _build_tag(job: Job) -> str:
    """A new serial, unless this very build is in the store: repeating it is to give the same bytes."""
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
    document = {"facts": asdict(facts) if facts else None, "findings": [asdict(one) for one in findings]}
    (job.work / "audit.json").write_text(json.dumps(document, indent=1) + "\n")
    for finding in findings:
        job.log.write(f"audit {finding.severity} {finding.rule}: {finding.message}\n".encode())


def _refuse_errors(wheel: str, findings: Sequence[Finding], log: str) -> None:
    errors = [f"{one.rule}: {one.message}" for one in findings if one.severity == "error"]
    if errors:
        raise AuditError(f"{wheel} may not be published: {'; '.join(errors)}", log=log)
