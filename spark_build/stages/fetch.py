"""Get the source and prove that it is the pinned one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spark_build.core.key import source_identity
from spark_build.errors import SourceError
from spark_build.host import sources
from spark_build.host.job import Job, Outputs
from spark_build.model.event import Note, Progress

NAME = "fetch"


def inputs(job: Job) -> Any:
    """The pin."""
    return source_identity(job.step.source)


def intact(job: Job, outputs: Outputs) -> bool:
    """What was verified is still in the source cache."""
    source = job.step.source
    return source is not None and sources.is_here(source, outputs, folder=job.home.sources)


def run(job: Job, _earlier: Mapping[str, Outputs]) -> Outputs:
    """Download (or find) the source and verify its hash or commit: {"name"} and "archive" or "git"."""
    source = job.step.source
    recipe = job.step.recipe.name
    if source is None:
        raise SourceError(f"{recipe} {job.step.pin.version} has no source for {job.target.name}")
    in_git = source.kind == "git"

    def progress(done: int, total: int) -> None:
        unit = Progress(
            recipe=recipe, stage=NAME, done=done, total=total, unit="steps" if in_git else "bytes"
        )
        job.emit(unit)

    def waiting(holder: str) -> None:
        job.emit(Note(recipe=recipe, message=f"waiting for another spark-build: {holder}"))

    return sources.obtain(
        source,
        folder=job.home.sources,
        offline=job.offline,
        log=job.log,
        progress=progress,
        waiting=waiting,
    )
