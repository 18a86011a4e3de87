"""Make the wheel self-contained as its recipe says, then look inside before anyone gets it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from spark_build.core.audit import audit
from spark_build.errors import AuditError
from spark_build.host.files import remove_tree
from spark_build.host.job import Job, Outputs
from spark_build.host.repair import repair, system_libraries
from spark_build.host.store import next_serial
from spark_build.host.wheelfile import content_digest, read_facts
from spark_build.model.wheel import Finding

NAME = "audit"


def inputs(job: Job) -> Any:
    """What the rules judge by."""
    return {"exclude": list(job.step.recipe.repair.exclude), "bundle": job.step.recipe.repair.bundle}


def intact(job: Job, outputs: Outputs) -> bool:
    """The audited wheel is still there."""
    return (job.out / str(outputs["wheel"])).is_file()


def run(job: Job, earlier: Mapping[str, Outputs]) -> Outputs:
    """Repair, read, judge; any error finding stops the publishing."""
    recipe, pin = job.step.recipe, job.step.pin
    remove_tree(job.out)
    job.out.mkdir(parents=True)
    serial = next_serial(job.home.store, recipe.distribution, pin.version)
    wheel = repair(
        job.dist / earlier["build"]["wheel"],
        job.out,
        repair=recipe.repair,
        build_tag=f"{serial}_{job.key[:8]}",
        epoch=int(earlier["patch"]["epoch"]),
        log=job.log,
    )
    facts = read_facts(wheel)
    findings = audit(
        facts,
        distribution=recipe.distribution,
        version=pin.version,
        platform=job.target.platform,
        python=job.target.python,
        provided=recipe.repair.exclude,
        system_libraries=system_libraries(job.target.platform),
    )
    (job.work / "audit.json").write_text(
        json.dumps({"facts": asdict(facts), "findings": [asdict(one) for one in findings]}, indent=1) + "\n"
    )
    for finding in findings:
        job.log.write(f"audit {finding.severity} {finding.rule}: {finding.message}\n".encode())
    errors = [finding for finding in findings if finding.severity == "error"]
    if errors:
        raise AuditError(
            f"{wheel.name} may not be published: "
            + "; ".join(f"{one.rule}: {one.message}" for one in errors),
            log=job.log.name,
        )
    return {
        "wheel": wheel.name,
        "name": facts.name,
        "version": facts.version,
        "requires": list(facts.requires),
        "content_digest": content_digest(wheel),
    }


def _refuse_errors(wheel: str, findings: Sequence[Finding], log: str) -> None:
    errors = [f"{one.rule}: {one.message}" for one in findings if one.severity == "error"]
    if errors:
        raise AuditError(f"{wheel} may not be published: {'; '.join(errors)}", log=log)
