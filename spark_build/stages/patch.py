"""Unpack the source afresh and apply the train's patches to it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spark_build.errors import PatchError
from spark_build.host.files import remove_tree, sha256_of
from spark_build.host.job import Job, Outputs
from spark_build.host.run import run as run_command
from spark_build.host.unpack import unpack

NAME = "patch"


def inputs(job: Job) -> Any:
    """The patches, by content."""
    return [patch.sha256 for patch in job.step.patches]


def intact(job: Job, _outputs: Outputs) -> bool:
    """The tree is there and an interrupted build in it may go on.

    Only ninja knows which objects of a killed build are whole; make and setuptools trust truncated
    ones, so such a tree starts afresh.
    """
    if not job.source.is_dir():
        return False
    if not job.build_started.exists():
        return True
    return next(job.source.rglob(".ninja_log"), None) is not None


def run(job: Job, earlier: Mapping[str, Outputs]) -> Outputs:
    """Unpack, patch, and find the newest time in the source (SOURCE_DATE_EPOCH of the build)."""
    remove_tree(job.source)
    remove_tree(job.work / "unpacked")
    job.build_started.unlink(missing_ok=True)
    top = unpack(Path(earlier["fetch"]["archive"]), job.work / "unpacked")
    top.rename(job.source)
    remove_tree(job.work / "unpacked")
    epoch = int(max(path.lstat().st_mtime for path in job.source.rglob("*")))
    for patch in job.step.patches:
        found = job.home.find(f"patches/{patch.file}")
        if found is None or sha256_of(found) != patch.sha256:
            state = "is missing" if found is None else "does not have the sha256 of its recipe"
            raise PatchError(f"patches/{patch.file} {state}", hint="spark-build recipes list")
        apply(found, job)
    return {"epoch": epoch}


def apply(patch: Path, job: Job) -> None:
    """Apply one patch and make sure that every file it names really changed.

    Inside another repository's ignored folder `git apply` exits 0 and does nothing, hence the
    ceiling and the check.
    """
    touched = re.findall(r"^\+\+\+ b/(\S+)", patch.read_text(), re.MULTILINE)
    before = {name: _state(job.source / name) for name in touched}
    environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(job.work)}
    done = run_command(
        ["git", "apply", "--verbose", str(patch)], cwd=job.source, env=environment, log=job.log
    )
    if done.returncode != 0:
        raise PatchError(
            f"{patch.name} does not apply to {job.step.recipe.name} {job.step.pin.version}: "
            + next((line for line in done.output.splitlines() if line.startswith("error:")), "see the log"),
            where=str(patch),
        )
    unchanged = [name for name in touched if _state(job.source / name) == before[name]]
    if unchanged:
        raise PatchError(f"{patch.name} changed nothing in {', '.join(unchanged)}", where=str(patch))


def _state(path: Path) -> str:
    return sha256_of(path) if path.is_file() else ""
