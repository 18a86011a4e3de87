"""From a plan to results: every recipe in its order, one published generation at the end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from spark_build.core import planner
from spark_build.core.key import digest
from spark_build.host import closure, store, wheelhouse
from spark_build.model.event import Emit, Note, RecipeFinished
from spark_build.model.plan import Plan, Step
from spark_build.model.result import RecipeResult
from spark_build.model.wheel import StoredWheel
from spark_build.pipeline import build_recipe, inputs_of, is_stored, result_of
from spark_build.setting import Setting


def plan(setting: Setting, names: Sequence[str] = ()) -> Plan:
    """Decide every recipe asked for (default: all) on this machine, with this store."""
    for name in names:
        setting.catalogue.recipe(name)

    def lookup(step: Step, needs: Mapping[str, str]) -> tuple[str, bool]:
        inputs, _ = inputs_of(setting, step, needs)
        key = digest(inputs)
        return key, is_stored(setting, step, key)

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


def _known(setting: Setting) -> Mapping[str, str]:
    """The providers asked for; each must be for a recipe that there is."""
    for name in setting.provide:
        setting.catalogue.recipe(name)
    return setting.provide


def build(
    setting: Setting, planned: Plan, emit: Emit, *, jobs: int | None = None, offline: bool = False
) -> tuple[RecipeResult, ...]:
    """Build what the plan says, in its order; a failure blocks its dependents, not the others."""
    store.remove_leftovers(setting.home.store)
    results: dict[str, RecipeResult] = {}
    for step in planned.steps:
        result = _unbuilt(step, results) or build_recipe(setting, step, results, emit, jobs, offline)
        results[step.recipe.name] = result
        emit(RecipeFinished(result=result))
    return tuple(results.values())


def _unbuilt(step: Step, results: Mapping[str, RecipeResult]) -> RecipeResult | None:
    """The result of a step that is not worked on; None for one that is."""
    lost = [name for name in step.from_store if results[name].status in ("failed", "blocked")]
    if lost:
        return result_of(step, "blocked", reasons=tuple(f"blocked by {name}" for name in lost))
    if step.decision in ("SKIP", "BLOCKED"):
        return result_of(step, "skipped" if step.decision == "SKIP" else "blocked", reasons=step.reasons)
    if step.decision == "REUSE":
        return result_of(step, "reused", reasons=step.reasons, key=step.build_key)
    return None


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
