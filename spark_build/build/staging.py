"""The six stages of a build in order, each kept when an earlier run finished it with the same inputs."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spark_build.build.job import Job, Outputs, Stage
from spark_build.errors import SparkBuildError, from_os_error
from spark_build.events import Expected, StageFinished, StageResult, StageStarted
from spark_build.files import write_atomically
from spark_build.hashing import digest


def _stages() -> tuple[Stage, ...]:
    # What they import takes a quarter of a second: only when something is built.
    from spark_build.build.stages import audit, compilation, environment, fetch, patch, publish

    return (fetch, patch, environment, compilation, audit, publish)


def run_stages(job: Job, stop_after: str = "") -> Mapping[str, Outputs]:
    """Run each stage, or keep what an earlier run left when nothing before it changed."""
    outputs: dict[str, Any] = {}
    chain = ""
    for stage in _stages():
        stamp = job.work / "stamps" / f"{stage.NAME}.json"
        chain = digest([chain, stage.NAME, stage.inputs(job)])
        kept = _read_stamp(stamp, chain)
        if kept is not None and stage.intact(job, kept):
            outputs[stage.NAME] = kept
            result = StageResult(stage=stage.NAME, status="kept", seconds=0.0)
            job.emit(StageFinished(recipe=job.step.recipe.name, result=result))
        else:
            outputs[stage.NAME] = _run_stage(stage, job, outputs)
            write_atomically(stamp, json.dumps({"chain": chain, "outputs": outputs[stage.NAME]}))
        # Another result of this stage invalidates what later ones made from the old one.
        chain = digest([chain, outputs[stage.NAME]])
        if stop_after == stage.NAME:
            break
    return outputs


def _run_stage(stage: Stage, job: Job, earlier: Mapping[str, Outputs]) -> Outputs:
    """Run one stage, and say how it went."""
    start, name = time.monotonic(), job.step.recipe.name
    job.emit(StageStarted(recipe=name, stage=stage.NAME, expected=_expected(stage, job)))
    try:
        outputs = dict(stage.run(job, earlier))
    except (SparkBuildError, OSError) as error:
        failure = error if isinstance(error, SparkBuildError) else from_os_error(error)
        seconds = time.monotonic() - start
        result = StageResult(stage=stage.NAME, status="failed", seconds=seconds, error=failure)
        job.emit(StageFinished(recipe=name, result=result))
        raise
    result = StageResult(stage=stage.NAME, status="done", seconds=time.monotonic() - start)
    job.emit(StageFinished(recipe=name, result=result))
    return outputs


def _expected(stage: Stage, job: Job) -> Expected | None:
    return job.expected if stage.NAME == "build" else None


def _read_stamp(path: Path, chain: str) -> dict[str, Any] | None:
    try:
        stamp = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    outputs: dict[str, Any] = stamp["outputs"]
    return outputs if stamp["chain"] == chain else None


def left_before_build(work: Path) -> dict[str, Outputs]:
    """What the stages before the build left; empty when one of them is missing."""
    outputs: dict[str, Outputs] = {}
    for name in ("fetch", "patch", "environment"):
        try:
            outputs[name] = json.loads((work / "stamps" / f"{name}.json").read_text())["outputs"]
        except (OSError, ValueError):
            return {}
    return outputs
