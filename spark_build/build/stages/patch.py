"""Write the source's tree afresh and apply the train's patches to it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spark_build.build import patches
from spark_build.build.context import Job, Outputs
from spark_build.errors import PatchError, SourceError
from spark_build.events import Note
from spark_build.files import copy_tree, remove_tree
from spark_build.recipes.evaluation import fill_placeholders
from spark_build.sources import source_types

NAME = "patch"


def inputs(job: Job) -> Any:
    """Return the patches by content."""
    return [patch.sha256 for patch in job.step.patches]


def intact(job: Job, _outputs: Outputs) -> bool:
    """Return whether the tree is there and an interrupted build in it may continue.

    Only ninja knows which objects of a killed build are whole; make and setuptools trust truncated
    ones, so such a tree starts afresh.
    """
    if not job.step.recipe.is_compiled:
        return True
    if not job.source.is_dir():
        return False
    if not job.build_started.exists():
        return True
    return next(job.source.rglob(".ninja_log"), None) is not None


def run(job: Job, earlier: Mapping[str, Outputs]) -> Outputs:
    """Unpack, patch, and find the newest time in the source (SOURCE_DATE_EPOCH of the build)."""
    source, recipe = job.step.source, job.step.recipe.name
    if source is None:
        raise SourceError(f"{recipe} has no source")
    if not job.step.recipe.is_compiled:
        return {"epoch": 0, "extra": {}}  # the vendor's files stay as they are
    if job.source.is_dir() and job.build_started.exists():
        told = (
            "its tree is unpacked afresh: a build began there, and only ninja knows which objects are whole"
        )
        job.emit(Note(recipe=recipe, message=told))
    remove_tree(job.source)
    job.build_started.unlink(missing_ok=True)
    source_types.write_tree(source, earlier["fetch"], folder=job.home.sources, destination=job.source)
    epoch = int(_newest(job.source))
    for patch in job.step.patches:
        file = patches.located(patch, job.home)
        try:
            patches.apply(file, job.source, job.log)
        except PatchError as error:
            error.message = f"{error.message} (source: {recipe} {job.step.pin.version})"
            raise
    extra = _extra(job, earlier["fetch"]["extra"])
    _place(job, extra)
    return {"epoch": epoch, "extra": extra}


def _newest(folder: Path) -> float:
    """Return the newest time in a tree; seconds since 1970, 0 when it is empty."""
    newest = 0.0
    with os.scandir(folder) as entries:
        for entry in entries:
            newest = max(newest, entry.stat(follow_symlinks=False).st_mtime)
            if entry.is_dir(follow_symlinks=False):
                newest = max(newest, _newest(Path(entry.path)))
    return newest


def _extra(job: Job, fetched: Mapping[str, Outputs]) -> dict[str, str]:
    """Write the extra sources' trees; returns name -> folder, for {extra:NAME}."""
    remove_tree(job.work / "extra")
    folders = {}
    for name, source in job.step.evaluated.extra_sources.items():
        shared = source.folder or name
        folder = job.work / "extra" / shared
        folder.parent.mkdir(parents=True, exist_ok=True)
        source_types.lay_tree(source, fetched[name], folder=job.home.sources, destination=folder)
        folders[shared] = str(folder)
    return folders


def _place(job: Job, extra: Mapping[str, str]) -> None:
    """Copy what the recipe places into the source's tree, beside the files that are there."""
    known = {f"extra:{name}": folder for name, folder in extra.items()}
    for path, variable in job.step.recipe.build.place.items():
        where = f"recipes/{job.step.recipe.name}.toml: build.place.{path}"
        placed = Path(fill_placeholders(variable.value, known, where=where))
        if not placed.is_dir():
            raise SourceError(f"{variable.value} is no folder, which is to be placed at {path}", where=where)
        copy_tree(placed, job.source / path, existing=True)
