"""Get the source and prove that it is the pinned one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spark_build.core.key import source_identity
from spark_build.errors import SourceError
from spark_build.host.fetch import fetch_pinned
from spark_build.host.job import Job, Outputs
from spark_build.model.event import Progress

NAME = "fetch"


def inputs(job: Job) -> Any:
    """The pin."""
    return source_identity(job.step.source)


def intact(_job: Job, outputs: Outputs) -> bool:
    """The verified archive is still in the source cache."""
    return Path(outputs["archive"]).is_file()


def run(job: Job, _earlier: Mapping[str, Outputs]) -> Outputs:
    """Download (or find) the source and verify its hash."""
    source = job.step.source
    if source is None:
        raise SourceError(
            f"{job.step.recipe.name} {job.step.pin.version} has no source for {job.target.name}"
        )

    def progress(done: int, total: int) -> None:
        job.emit(Progress(recipe=job.step.recipe.name, stage=NAME, done=done, total=total, unit="bytes"))

    archive = fetch_pinned(source, folder=job.home.sources, offline=job.offline, progress=progress)
    job.log.write(f"source {archive.name} sha256 {source.sha256}\n".encode())
    return {"archive": str(archive)}
