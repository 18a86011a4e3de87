"""Get the source and prove that it is the pinned one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from spark_build.core.key import source_identity
from spark_build.errors import SourceError
from spark_build.host import sources
from spark_build.host.job import Job, Outputs
from spark_build.model.event import Note, Progress
from spark_build.model.recipe import Source

NAME = "fetch"


def inputs(job: Job) -> Any:
    """The pins."""
    extra = {name: source_identity(source) for name, source in job.step.evaluated.extra_sources.items()}
    return {"source": source_identity(job.step.source), "extra": extra}


def intact(job: Job, outputs: Outputs) -> bool:
    """What was verified is still in the source cache."""
    wanted = [(job.step.source, outputs)]
    wanted += [(source, outputs["extra"][name]) for name, source in job.step.evaluated.extra_sources.items()]
    return all(
        source is not None and sources.is_here(source, found, folder=job.home.sources)
        for source, found in wanted
    )


def run(job: Job, _earlier: Mapping[str, Outputs]) -> Outputs:
    """Download (or find) the sources, verify hash or commit: {"name", "archive" or "git", "extra"}."""
    source = job.step.source
    if source is None:
        raise SourceError(
            f"{job.step.recipe.name} {job.step.pin.version} has no source for {job.target.name}"
        )
    extra = {name: _obtain(job, one) for name, one in job.step.evaluated.extra_sources.items()}
    return {**_obtain(job, source), "extra": extra}


def _obtain(job: Job, source: Source) -> dict[str, Any]:
    recipe = job.step.recipe.name
    unit: Literal["steps", "bytes"] = "steps" if source.kind == "git" else "bytes"

    def progress(done: int, total: int) -> None:
        job.emit(Progress(recipe=recipe, stage=NAME, done=done, total=total, unit=unit))

    def waiting(holder: str) -> None:
        job.emit(Note(recipe=recipe, message=f"waiting for another spark-build: {holder}"))

    return dict(
        sources.obtain(
            source,
            folder=job.home.sources,
            offline=job.offline,
            log=job.log,
            progress=progress,
            waiting=waiting,
        )
    )
