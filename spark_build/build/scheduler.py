"""Plan, build in parallel under locks, publish."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, closing
from contextvars import copy_context
from functools import partial
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Protocol, TypeVar

from packaging.utils import canonicalize_name

from spark_build.build import plan as build_plan
from spark_build.build import recipe_build
from spark_build.build.context import Context, Shell
from spark_build.build.environment import no_folder
from spark_build.build.keys import closure_key, key_changes
from spark_build.build.recipe_build import Run, build_recipe, inputs_of, kept_of, result_of
from spark_build.errors import UsageError, ours
from spark_build.events import Emit, ExpectedUsage, Note, RecipeFinished, RecipeResult, Repetition, Usage
from spark_build.machine import Machine
from spark_build.process import cancel_all
from spark_build.recipes.loader import closure_locks, closure_pins, read_lock
from spark_build.recipes.model import CONFIGURE, BuildOptions, Download, Plan, Recipe, Step
from spark_build.resources import governor
from spark_build.resources.governor import Governor
from spark_build.text import digest
from spark_build.transfer.remote import RemoteEntry
from spark_build.wheelhouse import generations, store
from spark_build.wheelhouse.trust import is_trusted
from spark_build.wheels.model import StoredWheel


def plan(
    setting: Context, names: Sequence[str] = (), also: Sequence[str] = (), builder: Machine | None = None
) -> Plan:
    """Decide every recipe asked for on this machine, with this store.

    No names: all but the catalogue, and `also`; builder: another machine, to estimate for.
    """
    for name in (*names, *also, *setting.provide):
        setting.catalogue.recipe(name)
    for need, where in setting.provide.items():
        # A path may be one of the machine that builds; a mere word, such as the provider `path`, is none.
        if where not in ("store", "public") and "/" not in where and not Path(where).expanduser().is_dir():
            raise no_folder(need, where)

    def usage(recipe: Recipe) -> ExpectedUsage:
        declared = recipe.build.memory_per_job_mib
        return governor.expected_usage(
            setting.home, recipe.name, target=setting.target.name, declared_mib=declared
        )

    def downloads(step: Step) -> tuple[Download, ...]:
        from spark_build.build import requirements  # reads indexes: its imports take a third of a plan

        return requirements.downloads(step, None if builder else setting.home)

    recipes = setting.catalogue.recipes
    return build_plan.make_plan(
        [*names, *also],
        recipes,
        setting.train,
        setting.target,
        setting.machine,
        partial(_stored, setting, {}),
        setting.provide,
        others=() if names else sorted(name for name, one in recipes.items() if not one.in_catalogue),
        limits=setting.limits,
        history=usage,
        lock_of=partial(read_lock, setting.home),
        builder=builder,
        downloads_of=downloads,
    )


def _stored(
    setting: Context, away: dict[str, RemoteEntry], step: Step, needs: Mapping[str, str]
) -> build_plan.StoredResult:
    """Return what this store has of a step, else a remote store; `away`: what those before are there."""
    coupled = [one for one in step.provisions if one.provider == "store" and one.need in away]
    inputs, _ = inputs_of(setting, step, needs, {one.need: away[one.need].told(one) for one in coupled})
    key = digest(inputs)
    found = kept_of(setting, step, inputs)
    if found is not None and not found.lacking:
        there = found.entry.folder.name
        older = there if there != key else ""
        return build_plan.StoredResult(
            key, stored=True, stale=found.stale, stored_as=older, imported=found.entry.imported
        )
    if found is not None:
        return build_plan.StoredResult(key, stored=False, missing=(*found.stale, found.lacking))
    entry = None if build_plan.makes_prefix(step) else setting.remotes.find(key)
    if entry is not None:
        away[step.recipe.name] = entry
        return build_plan.StoredResult(key, stored=True, imported=entry.signer, remote=entry.remote)
    last = store.last_build(setting.home.store, step.recipe.name, setting.target)
    missing = key_changes(recipe_build.recorded_inputs(setting.home.store, last), inputs) if last else ()
    refused = tuple(
        f"what is imported ({row['imported']}) is not reused: its signer is not trusted"
        for row in store.imports_of(setting.home.store, key)
        if not is_trusted(setting.home.wheelhouse, row)
    )
    return build_plan.StoredResult(key, stored=False, missing=(*refused, *missing))


class Elsewhere(Protocol):
    """Other machines that build recipes."""

    def build(self, run: Run, step: Step, results: Mapping[str, RecipeResult]) -> RecipeResult:
        """Return a recipe's result, with the key that it has in this machine's store."""
        ...

    def slots(self) -> int:
        """Return how many recipes may be under way now."""
        ...


def build(
    setting: Context,
    planned: Plan,
    emit: Emit,
    options: BuildOptions | None = None,
    elsewhere: Elsewhere | None = None,
) -> tuple[RecipeResult, ...]:
    """Build the plan, independent recipes in parallel; `elsewhere`: there, the longest chain first.

    All share one budget. After a failure nothing more is started, unless the options say so; what runs
    goes on to its end.
    """
    run = _run(setting, planned, emit, options or BuildOptions())
    steps = {step.recipe.name: step for step in planned.steps}
    idle = _nothing_to_configure(planned, run.options)
    results: dict[str, RecipeResult] = {}
    make, here = elsewhere.build if elsewhere else build_recipe, max(2, setting.limits.cores)
    ahead = build_plan.critical_paths(planned) if elsewhere else dict.fromkeys(steps, 0.0)
    work = in_order(
        {name: steps[name].from_store for name in sorted(steps, key=lambda name: -ahead[name])},
        lambda name: (
            _unbuilt(run, steps[name], results, idle.get(name, "")) or make(run, steps[name], results)
        ),
        workers=elsewhere.slots if elsewhere else lambda: here,
    )
    with closing(work):
        for name, result in work:
            results[name] = result
            emit(RecipeFinished(result=result))
    return tuple(results[name] for name in steps)


def _run(setting: Context, planned: Plan, emit: Emit, options: BuildOptions) -> Run:
    """Return the values that the recipes of one command share, the budget among them."""

    def tell(jobs: int, allowed: int, memory_mib: int, budget_mib: int) -> None:
        emit(Usage(jobs=jobs, allowed=allowed, memory_mib=memory_mib, budget_mib=budget_mib))

    governor = Governor(
        cores=setting.limits.cores,
        memory_budget_mib=setting.limits.memory_mib,
        reserve_mib=setting.limits.reserve_mib,
        on_sample=tell,
    )
    versions = {step.recipe.name: step.evaluated.wheel_version for step in planned.steps}
    return Run(setting=setting, options=options, governor=governor, emit=emit, versions=versions)


def shell(
    setting: Context, planned: Plan, name: str, emit: Emit, options: BuildOptions
) -> AbstractContextManager[Shell]:
    """Open a shell in a recipe's tree as its build sees it; the tree is locked meanwhile."""
    steps = {step.recipe.name: step for step in planned.steps}
    step = steps[name]
    if not step.recipe.is_compiled:
        raise UsageError(f"{name} is only unpacked: there is no tree to enter")
    # What is stale may have been fetched and never been unpacked: its build audits it.
    missing = [need for need in step.from_store if not steps[need].stored_as or steps[need].stale]
    if missing:
        raise UsageError(f"{name} needs {', '.join(missing)} first", hint=ours("build", missing[0]))
    keys = {need: steps[need].stored_as for need in step.from_store}
    return recipe_build.shell(_run(setting, planned, emit, options), step, keys)


def repeat(
    setting: Context,
    planned: Plan,
    names: Sequence[str],
    results: Sequence[RecipeResult],
    emit: Emit,
    options: BuildOptions,
) -> tuple[Repetition, ...]:
    """Build these recipes, which are in the store, again elsewhere, and compare the results."""
    keys = {result.recipe: result.build_key for result in results}
    run = _run(setting, planned, emit, options)
    found = []
    for step in planned.steps:
        if step.recipe.name in names and keys[step.recipe.name]:
            told = "building once more in another folder, without the compiler cache, to compare"
            emit(Note(recipe=step.recipe.name, message=told))
            found.append(recipe_build.repeat(run, step, {need: keys[need] for need in step.from_store}))
    return tuple(found)


def _nothing_to_configure(planned: Plan, options: BuildOptions) -> dict[str, str]:
    """Return name -> why a configure-only run skips a recipe; empty for other runs."""
    if options.stop_after != CONFIGURE:
        return {}
    wanted = {step.recipe.name for step in planned.steps if not options.named} | {*options.named}
    needed: set[str] = set()
    for step in reversed(planned.steps):
        if step.recipe.name in wanted:
            needed |= {*_read_by(step)}
            wanted |= needed
    idle = {}
    for step in planned.steps:
        name = step.recipe.name
        if name not in wanted:
            idle[name] = "not needed to configure what was asked for: nothing but its version counts"
        elif not step.recipe.is_compiled and name not in needed:
            idle[name] = "only unpacked: there is nothing to configure"
    return idle


def _read_by(step: Step) -> tuple[str, ...]:
    """Return the built needs whose files a recipe's configure step reads."""
    coupled = [one.need for one in step.provisions if one.coupling == "content"]
    return tuple(name for name in step.from_store if name in coupled)


def _unbuilt(
    run: Run, step: Step, results: Mapping[str, RecipeResult], idle: str = ""
) -> RecipeResult | None:
    """Return the result of a step that is not built, None for one that is; `idle`: reasons to skip."""
    awaited = _read_by(step) if run.options.stop_after == CONFIGURE else step.from_store
    lost = [name for name in awaited if results[name].status in ("failed", "blocked")]
    if lost:
        return result_of(step, "blocked", reasons=tuple(f"blocked by {name}" for name in lost))
    if step.decision in ("SKIP", "BLOCKED"):
        return result_of(step, "skipped" if step.decision == "SKIP" else "blocked", reasons=step.reasons)
    again = step.stale or step.remote
    if step.decision == "REUSE" and (not again or run.options.stop_after == "fetch"):
        return result_of(step, "reused", reasons=step.reasons, key=step.stored_as)
    if idle:
        return result_of(step, "skipped", reasons=(idle,))
    ends = {"stopped": "was stopped", "configured": "was only configured"}
    stopped = [name for name in awaited if results[name].status in ends]
    if stopped and run.options.stop_after != "fetch":
        reasons = tuple(f"needs {name}, which {ends[results[name].status]}" for name in stopped)
        return result_of(step, "stopped", reasons=reasons)
    failed = [name for name, result in tuple(results.items()) if result.status == "failed"]
    if failed and not run.options.keep_going:
        reason = f"not started, because {failed[0]} failed (--keep-going goes on with others)"
        return result_of(step, "skipped", reasons=(reason,))
    return None


def publish(
    setting: Context, results: Iterable[RecipeResult], *, with_closure: bool, offline: bool, emit: Emit
) -> tuple[generations.Generation | None, bool]:
    """Publish the results as a generation; returns it and whether it is new.

    Wheels of other recipes stay; a recipe's new wheel replaces its old one.
    """
    fresh: dict[str, StoredWheel] = {}
    for result in results:
        entry = store.read(setting.home.store, result.build_key) if result.build_key else None
        if entry is not None and entry.wheel is not None:
            fresh[entry.wheel.name] = entry.wheel
    if not fresh:
        return generations.current(setting.view), False

    def choose(before: generations.Generation | None) -> tuple[list[StoredWheel], str]:
        kept = {wheel.name: wheel for wheel in before.own()} if before else {}
        built = list((kept | fresh).values())
        if not with_closure:
            return built, ""
        names = {wheel.name for wheel in built}
        recipes = setting.catalogue.recipes.values()
        chosen = [one for one in recipes if canonicalize_name(one.distribution) in names]
        locks = closure_locks(setting.home, setting.train, setting.target.platform, chosen)
        wheels = {pin: files for lock in reversed(locks) for pin, files in lock.wheels.items()}
        pins = closure_pins(locks)
        foreign = None if setting.is_here else setting.target
        key = closure_key(built, pins, wheels, setting.target.python, foreign=foreign)
        if before is not None and before.closure_key == key:
            return [*built, *(wheel for wheel in before.wheels if wheel.origin == "public")], key

        from spark_build.environments import closure

        emit(Note(message="completing the set with verified public wheels"))
        public = closure.resolve(
            built, pins, store=setting.home.store, offline=offline, foreign=foreign, locks=locks
        )
        if free := closure.unlocked(public, locks):
            emit(Note(message=f"held by no lock of train {setting.train.name}: {', '.join(free)}"))
        return [*built, *public], key

    made, is_new = generations.publish(setting.view, setting.home.store, choose)
    setting.remotes.push_all(made)
    return made, is_new


T = TypeVar("T")
LOOK_EVERY = 2.0  # seconds between two looks at how many may run
JOIN_SECONDS = 6.0  # a supervisor needs up to four to end what does not want to


def in_order(
    graph: Mapping[str, Collection[str]], work: Callable[[str], T], *, workers: Callable[[], int]
) -> Generator[tuple[str, T], None, None]:
    """Yield (name, result) as they finish; `graph` maps a name to its predecessors.

    At most `workers()` at once, in the graph's order where free. When `work` raises, or the reader of this
    does, all running commands are ended before the exception goes on.
    """
    order = {name: place for place, name in enumerate(graph)}
    sorter = TopologicalSorter({name: set(needs) for name, needs in graph.items()})
    sorter.prepare()
    done: queue.SimpleQueue[tuple[str, Future[T]]] = queue.SimpleQueue()
    threads: list[threading.Thread] = []
    waiting: list[str] = []
    running = 0

    def one(name: str) -> None:
        future: Future[T] = Future()
        try:
            future.set_result(work(name))
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that asked for it
            future.set_exception(error)
        done.put((name, future))

    try:
        while sorter.is_active():
            waiting = sorted([*waiting, *sorter.get_ready()], key=order.__getitem__)
            while waiting and running < workers():
                # A daemon: who waits for another process's lock must not keep ours alive.
                inside, name = copy_context(), waiting.pop(0)
                thread = threading.Thread(target=inside.run, args=(one, name), name=name, daemon=True)
                threads.append(thread)
                running += 1
                thread.start()
            try:
                name, future = done.get(timeout=LOOK_EVERY)
            except queue.Empty:
                continue
            running -= 1
            yield name, future.result()
            sorter.done(name)
    except BaseException:
        _end(threads)
        raise


def _end(threads: list[threading.Thread]) -> None:
    cancel_all()
    deadline = time.monotonic() + JOIN_SECONDS
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
