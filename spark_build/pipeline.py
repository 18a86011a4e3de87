"""One recipe under its lock: six stages, each kept when an earlier run finished it with the same inputs."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spark_build.core import planner
from spark_build.core.key import build_inputs, digest
from spark_build.errors import HostError, SparkBuildError, StageError, from_os_error
from spark_build.host import probe, store
from spark_build.host.files import discard_tree, locked, remove_empty, remove_tree, write_atomically
from spark_build.host.job import Job, Stage
from spark_build.host.provide import Provided, locate
from spark_build.model.event import Emit, Note, StageFinished, StageStarted
from spark_build.model.plan import Step
from spark_build.model.result import RecipeResult, StageResult, Status
from spark_build.setting import Setting

LOG = "build.log"


def inputs_of(
    setting: Setting, step: Step, keys: Mapping[str, str]
) -> tuple[dict[str, Any], tuple[Provided, ...]]:
    """Build key inputs and the needs they speak of: declared, found, measured."""
    provided = tuple(locate(one, setting.home.store, keys) for one in step.provisions)
    contents = {one.provision.need: one.identity for one in provided}
    return build_inputs(step.declared, contents, tools_of(step)), provided


def tools_of(step: Step) -> dict[str, str]:
    """The measured toolchain of a step; what is only repacked depends on no tool of this machine."""
    if step.recipe.kind == "repack":
        return {}
    return probe.toolchain(cuda=step.recipe.requires.cuda, packages=step.evaluated.apt)


def is_stored(setting: Setting, step: Step, key: str) -> bool:
    """Whether the store has all that the step would make; an imported entry has no prefix."""
    entry = store.read(setting.home.store, key)
    makes_prefix = step.recipe.kind == "cmake" or bool(step.recipe.prefix.copy)
    return entry is not None and (entry.prefix is not None or not makes_prefix)


def build_recipe(
    setting: Setting,
    step: Step,
    results: Mapping[str, RecipeResult],
    emit: Emit,
    jobs: int | None,
    offline: bool,
) -> RecipeResult:
    """Build one recipe; a failure is a result."""
    start = time.monotonic()
    work = setting.home.build / step.recipe.name / step.key
    try:
        needs = {name: results[name].build_key for name in step.from_store}
        inputs, provided = inputs_of(setting, step, needs)
        built = _build_under_lock(setting, step, inputs, provided, work, emit, jobs, offline)
    except (SparkBuildError, OSError) as error:
        return _failure(setting, step, work, error, time.monotonic() - start)
    key = digest(inputs)
    if not built:
        reason = "in the store: what it needs came out with the same content, or another run built it"
        return result_of(step, "reused", reasons=(reason,), key=key)
    log = store.entry_folder(setting.home.store, key) / "build.log"
    return result_of(step, "built", seconds=time.monotonic() - start, key=key, log=log)


def _build_under_lock(
    setting: Setting,
    step: Step,
    inputs: Mapping[str, Any],
    provided: tuple[Provided, ...],
    work: Path,
    emit: Emit,
    jobs: int | None,
    offline: bool,
) -> bool:
    """Run the stages; False when somebody else built the same while we waited for the lock."""
    recipe = step.recipe

    def waiting(holder: str) -> None:
        emit(Note(recipe=recipe.name, message=f"waiting for another spark-build: {holder}"))

    key = digest(inputs)
    lock = work.with_name(f"{work.name}.lock")
    with locked(lock, purpose=f"building {recipe.name}", waiting=waiting) as held:
        if is_stored(setting, step, key):
            return False
        _fresh_tree(work, key)
        with (work / LOG).open("ab") as log:
            job = Job(
                step=step,
                target=setting.target,
                home=setting.home,
                work=work,
                log=log,
                jobs=jobs or planner.jobs_for(recipe, setting.machine),
                offline=offline,
                key=key,
                inputs=inputs,
                emit=emit,
                provided=provided,
                keep=(held,),
            )
            run_stages(job)
        discard_tree(work, setting.home.build / ".trash")
    return True


def _failure(
    setting: Setting, step: Step, work: Path, error: SparkBuildError | OSError, seconds: float
) -> RecipeResult:
    """Keep the tree of a failed build, but nothing of one in which not one stage got done."""
    log = work / LOG
    explained = _explained(error, log)
    if (work / "stamps").exists():
        return result_of(step, "failed", seconds=seconds, log=log, error=explained)
    remove_tree(work)
    remove_empty(work.parent, setting.home.build)
    return result_of(step, "failed", seconds=seconds, error=explained)


def _fresh_tree(work: Path, key: str) -> None:
    """Keep a tree only for the build key it was made for: other tools would mix objects."""
    mark = work / "build-key"
    if work.is_dir() and (not mark.is_file() or mark.read_text() != key):
        remove_tree(work)
    if not mark.is_file():
        write_atomically(mark, key)


def _explained(error: SparkBuildError | OSError, log: Path) -> SparkBuildError:
    """A failure as the user should see it: a full disk under any tool is a full disk."""
    if isinstance(error, OSError):
        known = from_os_error(error)
        if known is None:
            raise error
        return known
    if isinstance(error, StageError) and "No space left on device" in _tail(log):
        return HostError(
            "the disk is full",
            hint="free some space, then run the same command again: it goes on where it stopped",
            log=str(log),
        )
    error.log = error.log or (str(log) if (log.parent / "stamps").exists() else None)
    return error


def _tail(log: Path, size: int = 1 << 16) -> str:
    if not log.is_file():
        return ""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - size))
        return file.read().decode(errors="replace")


def result_of(
    step: Step,
    status: Status,
    *,
    seconds: float = 0.0,
    reasons: tuple[str, ...] = (),
    key: str = "",
    log: Path | None = None,
    error: SparkBuildError | None = None,
) -> RecipeResult:
    """A result of a step."""
    return RecipeResult(
        recipe=step.recipe.name,
        version=step.pin.version,
        status=status,
        seconds=seconds,
        reasons=reasons,
        build_key=key,
        log=str(log) if log else "",
        error=error,
    )


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
