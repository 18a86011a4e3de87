"""Get the source and the build requirements, and prove that they are the pinned ones."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Literal

from spark_build.build import requirements
from spark_build.build.context import Job, Outputs
from spark_build.build.keys import source_identity
from spark_build.errors import SourceError
from spark_build.events import Note, Progress
from spark_build.recipes.model import Source
from spark_build.reporting import Reporter, reporting
from spark_build.sources import source_types

NAME = "fetch"


def inputs(job: Job) -> Any:
    """Return the pins."""
    extra = {name: source_identity(source) for name, source in job.step.evaluated.extra_sources.items()}
    wanted = list(requirements.wanted(job.step, job.target))
    hashes = {pin: list(one) for pin, one in job.step.evaluated.hashes.items()}
    return {"source": source_identity(job.step.source), "extra": extra, "requires": wanted, "hashes": hashes}


def intact(job: Job, outputs: Outputs) -> bool:
    """Return whether the verified files are still in the source cache."""
    wanted = [(job.step.source, outputs)]
    wanted += [(source, outputs["extra"][name]) for name, source in job.step.evaluated.extra_sources.items()]
    return all(map(os.path.isfile, outputs["requirements"])) and all(
        source is not None and source_types.is_here(source, found, folder=job.home.sources)
        for source, found in wanted
    )


def run(job: Job, _earlier: Mapping[str, Outputs]) -> Outputs:
    """Download or find the build's inputs, and verify hash or commit.

    {"name", "archive" or "git", "extra"; "requirements": paths of wheels}.
    """
    source = job.step.source
    if source is None:
        raise SourceError(
            f"{job.step.recipe.name} {job.step.pin.version} has no source for {job.target.name}"
        )
    extra = {name: _obtain(job, one) for name, one in job.step.evaluated.extra_sources.items()}
    main = _obtain(job, source)
    wheels = requirements.obtain(
        requirements.wanted(job.step, job.target),
        job.step.evaluated.hashes,
        recipe=job.step.recipe.name,
        folder=job.home.sources,
        scratch=job.work / "requirements",
        offline=job.offline,
        log=job.log,
        keep=job.keep,
    )
    return {**main, "extra": extra, "requirements": [str(path) for path in wheels]}


def _obtain(job: Job, source: Source) -> dict[str, Any]:
    recipe = job.step.recipe.name
    unit: Literal["steps", "bytes"] = "steps" if source.kind == "git" else "bytes"

    def message(text: str) -> None:
        job.log.write(f"{text}\n".encode())
        job.emit(Note(recipe=recipe, message=text))

    def progress(done: int, total: int) -> None:
        job.emit(Progress(recipe=recipe, stage=NAME, done=done, total=total, unit=unit))

    with reporting(Reporter(message, progress)):
        return source_types.obtain(source, folder=job.home.sources, offline=job.offline, log=job.log)
