"""The six stages in their order, each kept when an earlier run finished it with the same inputs."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from spark_build.core.key import digest
from spark_build.errors import SparkBuildError, from_os_error
from spark_build.host.files import write_atomically
from spark_build.host.job import Job, Stage
from spark_build.model.event import StageFinished, StageStarted
from spark_build.model.result import StageResult


def _stages() -> tuple[Stage, ...]:
    from spark_build.stages import audit, build, environment, fetch, patch, publish

    return (fetch, patch, environment, build, audit, publish)


def run_stages(job: Job) -> None:
    """Run each stage, or keep what an earlier run left when nothing before it changed."""
    outputs: dict[str, Any] = {}
    chain = ""
    for stage in _stages():
        start = time.monotonic()
        stamp = job.work / "stamps" / f"{stage.NAME}.json"
        chain = digest([chain, stage.NAME, stage.inputs(job)])
        kept = _read_stamp(stamp, chain)
        if kept is not None and stage.intact(job, kept):
            outputs[stage.NAME] = kept
            chain = digest([chain, kept])
            result = StageResult(stage=stage.NAME, status="kept", seconds=0.0)
            job.emit(StageFinished(recipe=job.step.recipe.name, result=result))
            continue
        job.emit(StageStarted(recipe=job.step.recipe.name, stage=stage.NAME))
        try:
            outputs[stage.NAME] = dict(stage.run(job, outputs))
        except (SparkBuildError, OSError) as error:
            failure = error if isinstance(error, SparkBuildError) else from_os_error(error)
            seconds = time.monotonic() - start
            result = StageResult(stage=stage.NAME, status="failed", seconds=seconds, error=failure)
            job.emit(StageFinished(recipe=job.step.recipe.name, result=result))
            raise
        write_atomically(stamp, json.dumps({"chain": chain, "outputs": outputs[stage.NAME]}))
        # Another result of this stage invalidates what later ones made from the old one.
        chain = digest([chain, outputs[stage.NAME]])
        result = StageResult(stage=stage.NAME, status="done", seconds=time.monotonic() - start)
        job.emit(StageFinished(recipe=job.step.recipe.name, result=result))


def _read_stamp(path: Path, chain: str) -> dict[str, Any] | None:
    try:
        stamp = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    outputs: dict[str, Any] = stamp["outputs"]
    return outputs if stamp["chain"] == chain else None
