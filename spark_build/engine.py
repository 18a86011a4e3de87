"""From a plan to results: a lock for each recipe, one published generation at the end."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spark_build.core import planner, targets
from spark_build.core.key import build_inputs, digest
from spark_build.errors import HostError, SparkBuildError, StageError, from_os_error
from spark_build.host import closure, probe, store, wheelhouse
from spark_build.host.catalogue import Catalogue
from spark_build.host.files import discard_tree, locked, remove_empty, remove_tree, write_atomically
from spark_build.host.home import Home
from spark_build.host.job import Job
from spark_build.host.provide import Provided, locate
from spark_build.model.event import Emit, Note, RecipeFinished
from spark_build.model.machine import Machine
from spark_build.model.plan import Plan, Step
from spark_build.model.recipe import Target, Train
from spark_build.model.result import RecipeResult, Status
from spark_build.model.wheel import StoredWheel
from spark_build.pipeline import run_stages

LOG = "build.log"


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """What a command works on: the folders, the recipes, the machine, the target and the train."""

    home: Home
    catalogue: Catalogue
    machine: Machine
    target: Target
    train: Train
    provide: Mapping[str, str]  # need -> store, public or a path

    @property
    def is_here(self) -> bool:
        """Whether what is built for the target also runs on this machine's interpreter."""
        here = (self.machine.platform, self.machine.python)
        return here == (self.target.platform, self.target.python)

    @property
    def view(self) -> Path:
        """The view of this target, train and ABI."""
        return self.home.views / targets.view_name(self.target, self.train.name)


def settle(
    home: Home, catalogue: Catalogue, target: str, train: str | None, provide: Mapping[str, str]
) -> Setting:
    """Resolve target and train names on this machine."""
    machine = probe.probe()
    chosen = (
        targets.detect(catalogue.targets, machine)
        if target == "auto"
        else targets.resolve(catalogue.target(target), machine)
    )
    return Setting(
        home=home,
        catalogue=catalogue,
        machine=machine,
        target=chosen,
        train=catalogue.train(train),
        provide=provide,
    )


def plan(setting: Setting, names: Sequence[str] = ()) -> Plan:
    """Decide every recipe asked for (default: all) on this machine, with this store."""
    for name in names:
        setting.catalogue.recipe(name)

    def lookup(step: Step, needs: Mapping[str, str]) -> tuple[str, bool]:
        inputs, _ = _inputs_of(setting, step, needs)
        key = digest(inputs)
        return key, _is_stored(setting, step, key)

    recipes = setting.catalogue.recipes
    return planner.make_plan(
        names or sorted(recipes),
        recipes,
        setting.train,
        setting.target,
        setting.machine,
        lookup,
        _known(setting),
    )


def _is_stored(setting: Setting, step: Step, key: str) -> bool:
    """Whether the store has all that the step would make; an imported entry has no prefix."""
    entry = store.read(setting.home.store, key)
    makes_prefix = step.recipe.kind == "cmake" or bool(step.recipe.prefix.copy)
    return entry is not None and (entry.prefix is not None or not makes_prefix)


def _known(setting: Setting) -> Mapping[str, str]:
    """The providers asked for; each must be for a recipe that there is."""
    for name in setting.provide:
        setting.catalogue.recipe(name)
    return setting.provide


def _inputs_of(
    setting: Setting, step: Step, keys: Mapping[str, str]
) -> tuple[dict[str, Any], tuple[Provided, ...]]:
    """Build key inputs and the needs they speak of: declared, found, measured."""
    provided = tuple(locate(one, setting.home.store, keys) for one in step.provisions)
    contents = {one.provision.need: one.identity for one in provided}
    # What is only repacked depends on no tool of this machine.
    repacked = step.recipe.kind == "repack"
    tools = {} if repacked else probe.toolchain(cuda=step.recipe.requires.cuda, packages=step.evaluated.apt)
    return build_inputs(step.declared, contents, tools), provided


def build(
    setting: Setting, planned: Plan, emit: Emit, *, jobs: int | None = None, offline: bool = False
) -> tuple[RecipeResult, ...]:
    """Build what the plan says, in its order; a failure blocks its dependents, not the others."""
    store.remove_leftovers(setting.home.store)
    results: dict[str, RecipeResult] = {}
    for step in planned.steps:
        result = _unbuilt(step, results) or _build_step(setting, step, results, emit, jobs, offline)
        results[step.recipe.name] = result
        emit(RecipeFinished(result=result))
    return tuple(results.values())


def _unbuilt(step: Step, results: Mapping[str, RecipeResult]) -> RecipeResult | None:
    """The result of a step that is not worked on; None for one that is."""
    lost = [name for name in step.from_store if results[name].status in ("failed", "blocked")]
    if lost:
        return _result(step, "blocked", reasons=tuple(f"blocked by {name}" for name in lost))
    if step.decision in ("SKIP", "BLOCKED"):
        return _result(step, "skipped" if step.decision == "SKIP" else "blocked", reasons=step.reasons)
    if step.decision == "REUSE":
        return _result(step, "reused", reasons=step.reasons, key=step.build_key)
    return None


def _result(
    step: Step,
    status: Status,
    *,
    seconds: float = 0.0,
    reasons: tuple[str, ...] = (),
    key: str = "",
    log: Path | None = None,
    error: SparkBuildError | None = None,
) -> RecipeResult:
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


def _build_step(
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
        inputs, provided = _inputs_of(setting, step, needs)
        built = _build_under_lock(setting, step, inputs, provided, work, emit, jobs, offline)
    except (SparkBuildError, OSError) as error:
        return _failure(setting, step, work, error, time.monotonic() - start)
    key = digest(inputs)
    if not built:
        reason = "in the store: what it needs came out with the same content, or another run built it"
        return _result(step, "reused", reasons=(reason,), key=key)
    log = store.entry_folder(setting.home.store, key) / "build.log"
    return _result(step, "built", seconds=time.monotonic() - start, key=key, log=log)


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
        if _is_stored(setting, step, key):
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
    failure = _explained(error, log)
    if (work / "stamps").exists():
        return _result(step, "failed", seconds=seconds, log=log, error=failure)
    remove_tree(work)
    remove_empty(work.parent, setting.home.build)
    return _result(step, "failed", seconds=seconds, error=failure)


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


def publish(
    setting: Setting, results: Iterable[RecipeResult], *, with_closure: bool, offline: bool, emit: Emit
) -> tuple[wheelhouse.Generation | None, bool]:
    """Publish the results as a generation of the view: (generation, is it new?).

    Wheels of other recipes stay; a recipe's new wheel replaces its old one.
    """
    fresh: dict[str, StoredWheel] = {}
    for result in results:
        entry = store.read(setting.home.store, result.build_key) if result.build_key else None
        if entry is not None and entry.wheel is not None:
            fresh[entry.wheel.name] = entry.wheel
    if not fresh:
        return wheelhouse.current(setting.view), False

    def choose(before: wheelhouse.Generation | None) -> tuple[list[StoredWheel], str]:
        kept = {wheel.name: wheel for wheel in before.built()} if before else {}
        built = list((kept | fresh).values())
        if not with_closure:
            return built, ""
        pins = setting.train.closure
        key = closure.closure_key(built, pins, setting.target.python)
        if before is not None and before.closure_key == key:
            return [*built, *(wheel for wheel in before.wheels if wheel.origin == "public")], key
        emit(Note(message="completing the set with verified public wheels"))
        public = closure.resolve(
            built,
            pins,
            store=setting.home.store,
            offline=offline,
            foreign=None if setting.is_here else setting.target,
        )
        return [*built, *public], key

    return wheelhouse.publish(
        setting.view,
        setting.home.store,
        choose,
        waiting=lambda holder: emit(Note(message=f"waiting for another spark-build: {holder}")),
    )
