"""Do a task on a worker: run spark-build as a child process, pass on what it says, answer."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from distributed import get_worker

from spark_build import process
from spark_build.build import background, scheduler
from spark_build.build.context import Context, resolve_context
from spark_build.errors import HostError, SparkBuildError, VerificationError
from spark_build.events import Event, Progress, RecipeFinished, RecipeResult, Usage, encode
from spark_build.farm.nodes import VERSION, BuildWorker, Workplace, end, node_of
from spark_build.files import from_os_error, tail_of
from spark_build.journal import new_run
from spark_build.recipes.loader import load
from spark_build.recipes.model import Step
from spark_build.wheelhouse import generations

TOPIC = "spark-build"  # of Dask's events
LOG_BYTES = 1 << 18  # of a failed build's log that go to the client
EXAMINED = 180.0  # seconds that a worker's doctor may take
SAID = "error: "  # the beginning of lines that say why a command did not begin
DONE = ("built", "reused")
JUDGED = (0, VerificationError.exit_code)  # of `all`, once it has verified
_numbers = itertools.count()


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """A recipe to build, as plain data; plan_key: what the client would build.

    verified: recipes whose wheels are checked together, of which `recipe` is the first.
    """

    run: str  # the client's, for its events
    recipe: str
    plan_key: str
    train: str
    target: str
    provide: dict[str, str] = field(default_factory=dict)
    choices: dict[str, str] = field(default_factory=dict)  # "recipe.option" -> value
    offline: bool = False
    ignore_memory: bool = False
    require_sandbox: bool = False
    verified: list[str] = field(default_factory=list)
    reverify: bool = False
    version: str = VERSION

    def command(self, site: Workplace) -> list[str]:
        """Return the command line that does it at a worker's place."""
        words = [*site.program, f"--train={self.train}", f"--target={self.target}"]
        words += [f"--provide={need}={where}" for need, where in self.provide.items()]
        words += [f"--option={name}={value}" for name, value in self.choices.items()]
        words += ["all"] if self.verified else ["build", "--no-closure"]
        flags = {
            "--offline": self.offline,
            "--ignore-memory": self.ignore_memory,
            "--require-sandbox": self.require_sandbox,
            "--reverify": self.reverify,
        }
        words += [name for name, wanted in flags.items() if wanted]
        words += [f"--jobs={site.jobs}"] if site.jobs else []
        words += [f"--memory={site.memory_mib}"] if site.memory_mib else []
        return [*words, "--", *(self.verified or [self.recipe])]


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskAnswer:
    """A worker's answer; `result` is missing where the build did not begin: `problem` says why.

    build_key: what remote stores have it under; checks: of a verification, and of which wheels (sha256).
    """

    worker: str
    address: str
    result: dict[str, Any] | None = None
    problem: str = ""
    build_key: str = ""
    log: bytes = b""
    checks: list[dict[str, Any]] = field(default_factory=list)
    wheels: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Examination:
    """Order for a worker's doctor, as plain data; without a train or target its own."""

    recipes: list[str] = field(default_factory=list)
    also: list[str] = field(default_factory=list)  # beside those that are built by default
    train: str | None = None
    target: str | None = None
    provide: dict[str, str] = field(default_factory=dict)
    choices: dict[str, str] = field(default_factory=dict)  # "recipe.option" -> value
    cluster: bool = False

    def command(self, site: Workplace) -> list[str]:
        """Return the command line that does it at a worker's place."""
        words = [*site.program, "--json"]
        words += [f"--train={self.train}"] if self.train is not None else []
        words += [f"--target={self.target}"] if self.target is not None else []
        words += [f"--provide={need}={where}" for need, where in self.provide.items()]
        words += [f"--option={name}={value}" for name, value in self.choices.items()]
        also = [f"--with={name}" for name in self.also]
        return [*words, "doctor", *also, *(["--cluster"] if self.cluster else []), "--", *self.recipes]


async def examine(raw: Mapping[str, Any], dask_worker: Any) -> dict[str, Any]:
    """Return what a worker's doctor says, also while it builds, or the problem that kept it from that."""
    command = Examination(**raw).command(dask_worker.site)
    said = await asyncio.to_thread(process.capture, command, timeout=EXAMINED, check=False)
    answer: dict[str, Any] = {"node": node_of(dask_worker.name), "problem": "", "findings": []}
    try:
        document = json.loads(said or "")
    except ValueError:
        return {**answer, "problem": f"its doctor did not answer in {EXAMINED:.0f} s"}
    if "error" in document:
        return {**answer, "problem": document["error"]["message"]}
    return {**answer, "findings": document["findings"], "machine": document["machine"]}


def perform(raw: Mapping[str, Any]) -> TaskAnswer:
    """Build a task's recipe, or check its wheels as `all` does; clients name this function to workers."""
    task, worker = Task(**raw), cast("BuildWorker", get_worker())
    answer = TaskAnswer(worker=str(worker.name), address=worker.address)
    try:
        if task.version != VERSION:
            raise HostError(f"it runs {VERSION}, the client {task.version}")
        return (_verify if task.verified else _build)(task, worker, answer)
    except (SparkBuildError, OSError) as error:
        known = from_os_error(error) if isinstance(error, OSError) else error
        return replace(answer, problem=known.message if known else f"{type(error).__name__}: {error}")


def _build(task: Task, worker: BuildWorker, answer: TaskAnswer) -> TaskAnswer:
    site = worker.site
    before = _step(site, task)
    if before.key != task.plan_key:
        raise HostError(f"its recipes or settings make another {task.recipe} than the client's")
    result, said = _built(task, worker)
    if result is None:
        return replace(answer, problem="; ".join(said) or "the build ended without a word")
    if result.error is None and result.status not in DONE:
        reasons = "; ".join(result.reasons)
        return replace(answer, problem=f"{task.recipe} was not built ({result.status}): {reasons}")
    key = _step(site, task).build_key if result.error is None else ""
    log = tail_of(Path(result.log), LOG_BYTES) if result.error else b""
    return replace(answer, result=encode(RecipeFinished(result=result)), build_key=key, log=log)


def _verify(task: Task, worker: BuildWorker, answer: TaskAnswer) -> TaskAnswer:
    with _running(task, worker) as (child, look, lines):
        while not child.done():
            look(background.PAUSE)
    code = child.result().returncode
    generation = generations.current(_setting(worker.site, task).view)
    checks = generations.checks_of(generation) if generation else None
    if generation is None or checks is None or code not in JUDGED:
        return replace(answer, problem="; ".join(_errors(lines)) or "it verified nothing")
    wheels = {wheel.filename: wheel.sha256 for wheel in generation.wheels}
    # This root may hold other recipes' wheels, too; a check of no package is that of the files' origin.
    mine = [check for check in checks if check.get("package", "") in ("", *task.verified)]
    return replace(answer, checks=mine, wheels=wheels)


@contextmanager
def _running(
    task: Task, worker: BuildWorker, more: Mapping[str, str] | None = None
) -> Iterator[tuple[Future[process.Completed], Callable[[float], None], Sequence[str]]]:
    """Run the child beside the block; yield it, what waits for it a while, and its last lines.

    more: variables for it. It ends with the block, and when nobody waits for the task any more.
    """
    lines: deque[str] = deque(maxlen=process.TAIL_LINES)
    pids: list[int] = []
    key = worker.get_current_task()
    with ThreadPoolExecutor(1) as pool:
        child = pool.submit(
            process.run,
            task.command(worker.site),
            env={**os.environ, **(more or {})},
            on_line=lines.append,
            on_start=pids.append,
        )

        def look(seconds: float) -> None:
            _end_unwanted(worker, key, child, pids)
            wait([child], seconds)

        try:
            yield child, look, lines
        finally:
            end(child, pids)


def _errors(lines: Sequence[str]) -> list[str]:
    """Return why a command did not begin, from its last lines."""
    return [line.removeprefix(SAID) for line in lines if line.startswith(SAID)]


def _setting(site: Workplace, task: Task) -> Context:
    """Return where and with what this machine does a task."""
    pairs = (name.partition(".") for name in task.choices)
    choices = {(recipe, option): task.choices[f"{recipe}.{option}"] for recipe, _, option in pairs}
    catalogue = load(site.home.data).with_options(choices)
    setting = resolve_context(site.home, catalogue, task.target, task.train, task.provide)
    setting.remotes.offline = task.offline
    return setting


def _step(site: Workplace, task: Task) -> Step:
    """Return how this machine decides the recipe now."""
    setting = _setting(site, task)
    steps = scheduler.plan(setting, [task.recipe]).steps
    return next(step for step in steps if step.recipe.name == task.recipe)


def _built(task: Task, worker: BuildWorker) -> tuple[RecipeResult | None, list[str]]:
    """Run the child; return the recipe's result, and without one the lines that say why.

    A recipe that its needs held up has the error of the first that failed.
    """
    folder = new_run(worker.site.home.runs)
    folder = folder.with_name(f"{folder.name}{next(_numbers) % 1000:03}")
    folder.mkdir(parents=True)
    result: RecipeResult | None = None
    failed: RecipeResult | None = None
    with _running(task, worker, {worker.site.record_in: str(folder)}) as (child, look, lines):
        while not child.done() and not (folder / background.RECORD).exists():
            look(background.PAUSE)
        for batch in background.follow(folder, look):
            events = [event for _, event in batch]
            ended = [one.result for one in events if isinstance(one, RecipeFinished)]
            result = next((one for one in ended if one.recipe == task.recipe), result)
            failed = failed or next((one for one in ended if one.status == "failed"), None)
            _pass_on(worker, task, events)
        child.result()
    if result is not None and failed is not None and result.status not in DONE:
        result = replace(result, status="failed", error=failed.error, log=failed.log)
    return result, _errors(lines)


def _pass_on(worker: BuildWorker, task: Task, events: list[Event]) -> None:
    """Send events to the client, of one stage's progress only the last."""
    places = {(one.recipe, one.stage): place for place, one in enumerate(events) if isinstance(one, Progress)}
    rows = [
        encode(one)
        for place, one in enumerate(events)
        if not isinstance(one, Usage | RecipeFinished)
        and not (isinstance(one, Progress) and places[one.recipe, one.stage] != place)
    ]
    if rows:
        worker.log_event(TOPIC, {"run": task.run, "worker": str(worker.name), "rows": rows})


def _end_unwanted(worker: BuildWorker, key: Any, child: Future[Any], pids: list[int]) -> None:
    """End the child when nobody waits for it any more: Dask leaves running tasks alone."""
    state = worker.state.tasks.get(key)
    wanted = worker.status.name == "running" and state is not None and state.state == "executing"
    if not wanted:
        end(child, pids)
