"""Build a plan on a farm: hand tasks to its workers, take what they pushed from the remote stores."""

from __future__ import annotations

import contextlib
import logging
import re
import secrets
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import CancelledError
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from distributed import Client
from distributed.client import ClosedClientError
from distributed.comm.core import CommClosedError
from distributed.scheduler import KilledWorker

from spark_build.build import plan, scheduler
from spark_build.build.context import Context
from spark_build.build.recipe_build import LOG, Run, build_recipe, result_of
from spark_build.errors import Hint, HostError, SparkBuildError, StoreError, UsageError, ours
from spark_build.events import Emit, Note, RecipeFinished, RecipeResult, decode
from spark_build.farm.nodes import GPU, MEMORY, VERSION, WHO, ReachedFarm, node_of, refuse_other, why
from spark_build.farm.task import TOPIC, Examination, Task, TaskAnswer, examine, perform
from spark_build.files import write_atomically
from spark_build.process import refuse_cancelled
from spark_build.recipes.model import Plan, Step, Target
from spark_build.transfer.remote import configured
from spark_build.wheelhouse import store, trust

LOOK_EVERY = 1.0  # seconds between two looks at the workers
WAIT = 0.5  # seconds between two looks at whether to go on waiting
COMING = 120.0  # seconds for workers that were just started
PATIENCE = 600.0  # seconds that a scheduler may be away
FITTING = 600.0  # seconds for a worker that can take a recipe
FACTS = 8  # workers whose facts a message has
WAITING = 100  # recipes that may wait for a better worker beside those that are built
GONE = (OSError, RuntimeError, KeyError, CancelledError, ClosedClientError)  # of a scheduler that is away
BUILD_KEY = re.compile("[0-9a-f]{64}")


def require_return(setting: Context) -> None:
    """Raise UsageError where nothing that workers push could come back."""
    if not configured(setting.home.wheelhouse):
        raise UsageError(
            "a farm's results come back by a remote store, and there is none",
            hint=ours("remotes add NAME URL --trust KEY.pub"),
        )
    if not trust.signers(setting.home.wheelhouse):
        raise UsageError(
            "a farm's workers sign what they push, and nobody is trusted here",
            hint=ours("wheelhouse trust add NAME KEY.pub"),
        )


def demands(step: Step, target: Target) -> dict[str, float]:
    """Return the Dask resources that a worker must have for a step."""
    wanted = {VERSION: 1.0, f"platform {target.platform}": 1.0}
    if step.recipe.kind == "pep517":
        wanted[f"python {target.python}"] = 1.0
    if any(one.need == "cuda" and one.provider == "path" for one in step.provisions):
        wanted["CUDA toolkit"] = 1.0
    if step.estimate is not None and step.recipe.is_compiled:
        wanted[MEMORY] = float(step.estimate.memory_per_job_mib)
    return wanted


def named(resources: Mapping[str, float]) -> str:
    """Return Dask resources as people read them."""
    units = {MEMORY: "MiB of memory"}
    return ", ".join(
        name if amount == 1 and name not in units else f"{amount:.0f} {units.get(name, name)}"
        for name, amount in resources.items()
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Order:
    """A task, what its worker must have, and how urgent it is."""

    task: Task
    demands: Mapping[str, float]
    priority: int


class Connection:
    """A client of a scheduler, made again when that was away."""

    def __init__(self, there: ReachedFarm, hear: Callable[[Any], None]) -> None:
        self._there, self._hear = there, hear
        self._away: HostError | None = None  # given up
        self._lock = threading.RLock()
        self._looked = 0.0
        self._workers: dict[str, tuple[str, Mapping[str, float]]] = {}  # machine and resources, by address
        logging.getLogger("distributed").setLevel(logging.CRITICAL)
        self._client = self._connect()

    def _connect(self) -> Client:
        with contextlib.ExitStack() as failed:
            try:
                client = Client(self._there.address, security=self._there.security, set_as_default=False)
                failed.callback(_leave, client)
                said = client.get_metadata([WHO], default="")
                client.subscribe_topic(TOPIC, self._hear)
            except (*GONE, ValueError) as error:
                raise HostError(
                    f"the farm at {self._there.address} does not answer: {why(error)}",
                    hint="is its scheduler running, and is the certificate that farm's?",
                ) from error
            refuse_other(said)
            failed.pop_all()
        return client

    def close(self) -> None:
        """Leave the farm: what it still does for us ends."""
        with contextlib.suppress(*GONE):
            self._client.close()

    def renew(self, broken: Client) -> None:
        """Connect again where nobody did yet. Raise HostError when the scheduler stays away."""
        with self._lock:
            if self._client is not broken:
                return
            if self._away is not None:
                raise self._away
            _leave(broken)
            deadline = time.monotonic() + PATIENCE
            while True:
                try:
                    self._client = self._connect()
                except HostError as error:
                    if time.monotonic() > deadline:
                        self._away = error
                        raise
                    self._there.check()
                    refuse_cancelled()
                    time.sleep(WAIT)
                else:
                    return

    def workers(self, wanted: Mapping[str, float]) -> list[str]:
        """Return the addresses of the workers that have what is wanted."""
        with self._lock:
            if time.monotonic() - self._looked > LOOK_EVERY:
                with contextlib.suppress(*GONE):
                    rows = self._client.scheduler_info(n_workers=-1)["workers"]
                    self._workers = {
                        address: (node_of(row["name"]), row["resources"]) for address, row in rows.items()
                    }
                self._looked = time.monotonic()
        return [
            address
            for address, (_, has) in self._workers.items()
            if all(has.get(name, 0) >= amount for name, amount in wanted.items())
        ]

    def facts(self) -> str:
        """Say what each worker has."""
        shown = [*dict.fromkeys(f"{node} has {named(has)}" for node, has in self._workers.values())]
        more = [f"and {len(shown) - FACTS} more"] if len(shown) > FACTS else []
        return "; ".join([*shown[:FACTS], *more]) or "the farm has no worker"

    def coming(self) -> int | None:
        """Return how many workers that we started are still to come; None for a farm that others started."""
        alive = self._there.alive()
        return max(0, alive - len(self._workers)) if alive else None

    def await_all(self) -> None:
        """Wait for the workers that we started. Raise HostError where one does not come in time."""
        deadline = time.monotonic() + COMING
        while len(self._client.scheduler_info(n_workers=-1)["workers"]) < self._there.alive():
            self._there.check()
            if time.monotonic() > deadline:
                raise HostError(f"not all workers came within {COMING:.0f} s")
            time.sleep(WAIT)
        self._there.check()

    def refuse_gone(self) -> None:
        """Raise an error of Dask's where the scheduler is away: its list of workers is only empty then."""
        self._client.get_metadata([WHO], default="")

    def run(self, asked: Examination) -> dict[str, Any]:
        """Have every worker examined beside its builds; return their answers, or errors, by address."""
        answers: dict[str, Any] = self._client.run(examine, asdict(asked), on_error="return")
        return answers

    def ask(
        self,
        function: Callable[..., TaskAnswer],
        order: Order,
        allowed: Collection[str],
        waiting: Callable[[], None],
    ) -> TaskAnswer | None:
        """Have a worker do a task, one of `allowed` if there are any; `waiting` is called again and again.

        None: handed in for nothing, because the scheduler or all of those went away. Raise HostError for a
        task whose workers died one after the other.
        """
        client = self._client
        done = threading.Event()
        try:
            future = client.submit(
                function,
                asdict(order.task),
                key=f"{order.task.recipe}-{secrets.token_hex(8)}",
                resources=dict(order.demands),
                priority=order.priority,
                workers=list(allowed) or None,
                pure=False,
            )
            future.add_done_callback(lambda _: done.set())
            try:
                while future.status == "pending" and not done.wait(WAIT):
                    refuse_cancelled()
                    self._there.check()
                    waiting()
                    if client is not self._client or self._lacks(allowed, order):
                        return None
                return future.result()
            finally:
                if future.status == "pending":
                    future.cancel()
        except KilledWorker as error:
            raise HostError(f"worker after worker was lost while it built {order.task.recipe}") from error
        except (CancelledError, CommClosedError):
            pass
        except GONE:  # of a client that is being closed
            if client.status == "running" and client is self._client:
                raise
        self.renew(client)
        return None

    def _lacks(self, allowed: Collection[str], order: Order) -> bool:
        return bool(allowed) and not {*allowed} & {*self.workers(order.demands)}


@contextlib.contextmanager
def _connected(there: ReachedFarm) -> Iterator[Connection]:
    """Ask a farm during the block. Raise HostError where it goes away meanwhile."""
    connection = Connection(there, lambda _: None)
    try:
        yield connection
    except GONE as error:
        raise HostError(f"the farm went away ({type(error).__name__})") from error
    finally:
        connection.close()


def ask_all(there: ReachedFarm, asked: Examination) -> list[dict[str, Any]]:
    """Have every worker of a farm examined, once those that we started came, and return their answers."""
    with _connected(there) as connection:
        connection.await_all()
        answers = connection.run(asked)
        if not answers:
            connection.refuse_gone()
        lost = {"problem": "it was lost meanwhile", "findings": []}
        return [
            {"node": address, **lost} if isinstance(answer, BaseException) else answer
            for address, answer in answers.items()
        ]


def verified_by(there: ReachedFarm, task: Task, target: Target) -> TaskAnswer | None:
    """Have a worker of the target with a GPU verify what was built; None where the farm has none."""
    common = {VERSION: 1.0, f"platform {target.platform}": 1.0, f"python {target.python}": 1.0}
    with _connected(there) as connection:
        connection.await_all()
        for capability in target.cuda_architectures:
            order = Order(task=task, demands={**common, f"{GPU} {capability}": 1.0}, priority=0)

            def still(order: Order = order) -> None:
                if not connection.workers(order.demands):
                    raise HostError("the worker that has one went away")

            while connection.workers(order.demands):
                if (answer := connection.ask(perform, order, (), still)) is not None:
                    return answer
        connection.refuse_gone()
        return None


def _leave(client: Client) -> None:
    with contextlib.suppress(*GONE):
        client.close(timeout=1)


class Farm:
    """Workers that the scheduler asks for each recipe in place of building it here."""

    def __init__(self, setting: Context, planned: Plan, common: Task, emit: Emit) -> None:
        self._setting, self._common, self._emit = setting, common, emit
        self._ahead = plan.critical_paths(planned)
        self._there: Connection  # that of `at`
        # Recipes that no worker can take: since when, and whether it was said that workers are still coming.
        self._unfit: dict[str, tuple[float, bool | None]] = {}
        self.function: Callable[..., TaskAnswer] = perform

    @contextlib.contextmanager
    def at(self, there: ReachedFarm) -> Iterator[Farm]:
        """Work with a farm during the block."""
        self._there = Connection(there, self._hear)
        try:
            yield self
        finally:
            self._there.close()

    def _hear(self, event: tuple[float, Mapping[str, Any]]) -> None:
        """Show what a worker says."""
        message = event[1]
        if message.get("run") != self._common.run:
            return
        for row in message["rows"]:
            if (shown := decode(row)) is not None:
                self._emit(shown)

    @property
    def _base(self) -> Mapping[str, float]:
        return {VERSION: 1, f"platform {self._setting.target.platform}": 1}

    def slots(self) -> int:
        """Return the workers for this target, one at least, and what waits for others than these."""
        able = len(self._there.workers(self._base))
        return able + min(len(self._unfit), WAITING) if able else 1

    def build(self, run: Run, step: Step, results: Mapping[str, RecipeResult]) -> RecipeResult:
        """Return a recipe's result: of a remote store that has it, of this machine, else of a worker."""
        if step.remote and (found := self._fetched(step, step.build_key)):
            return found
        if step.decision == "REUSE" and not step.remote:
            return build_recipe(run, step, results)  # to be audited again
        if plan.makes_prefix(step):
            if step.recipe.is_compiled or step.recipe.kind == "assemble":
                reason = "a prefix leaves no machine: each worker makes its own where it is needed"
                return result_of(step, "skipped", reasons=(reason,))
            return build_recipe(run, step, results)  # only unpacked
        start = time.monotonic()
        try:
            result = self._elsewhere(step)
        except SparkBuildError as error:
            result = result_of(step, "failed", error=error)
        self._unfit.pop(step.recipe.name, None)
        return replace(result, seconds=result.seconds or time.monotonic() - start)

    def _elsewhere(self, step: Step) -> RecipeResult:
        """Have workers try, one after the other while the reason lies with the worker."""
        task = replace(self._common, recipe=step.recipe.name, plan_key=step.key)
        order = Order(
            task=task,
            demands=demands(step, self._setting.target),
            priority=int(self._ahead[step.recipe.name]),
        )
        refused: dict[str, RecipeResult] = {}
        while True:
            allowed = [one for one in self._there.workers(order.demands) if one not in refused]
            if refused and not allowed:
                return [*refused.values()][-1]
            answer = self._there.ask(
                self.function, order, allowed if refused else (), partial(self._expect_worker, order)
            )
            if answer is None:
                told = "its scheduler or its workers went away"
                self._emit(Note(recipe=step.recipe.name, message=told))
                if found := self._pushed_meanwhile(step):
                    return found
                continue
            result = self._taken(step, answer)
            if not isinstance(result.error, HostError | StoreError):
                return result
            refused[answer.address] = result
            told = f"{answer.worker} cannot: {result.error.message}"
            self._emit(Note(recipe=step.recipe.name, message=told))

    def _expect_worker(self, order: Order) -> None:
        """Say at once what no worker has for a task. Raise HostError when none that has it comes in time."""
        recipe, there = order.task.recipe, self._there
        coming = there.coming()  # asked before: who comes meanwhile must not be missed
        if there.workers(order.demands):
            self._unfit.pop(recipe, None)
            return
        since, said = self._unfit.get(recipe, (time.monotonic(), None))
        told = f"no worker can take {recipe}: it needs {named(order.demands)}; {there.facts()}"
        if coming == 0 or time.monotonic() - since >= FITTING:
            raise HostError(told, hint=Hint("on a machine that can: ", ours("farm worker ADDRESS")))
        wait = "waiting for the workers that were just started"
        if not coming:
            wait = f"{told}; waiting {FITTING / 60:.0f} min for one that can"
        if bool(coming) != said:
            self._emit(Note(message=wait))
        self._unfit[recipe] = since, bool(coming)

    def _taken(self, step: Step, answer: TaskAnswer) -> RecipeResult:
        """Return an answer as a result of this machine."""
        event = decode(answer.result) if answer.result else None
        if not isinstance(event, RecipeFinished):
            error: SparkBuildError = HostError(answer.problem, where=answer.worker)
            return result_of(step, "failed", error=error)
        result = event.result
        if result.error is not None:
            result.error.where = result.error.where or answer.worker
            result.error.log = None  # a path there
            log = self._setting.home.build / step.recipe.name / "farm.log"
            if answer.log:
                write_atomically(log, answer.log)
            return replace(result, log=str(log) if answer.log else "")
        found = self._fetched(step, answer.build_key) if BUILD_KEY.fullmatch(answer.build_key) else None
        if found is None:
            error = StoreError(
                f"{answer.worker} built it, and no remote store here has it by a trusted signer",
                hint=ours("remotes list"),
            )
            return result_of(step, "failed", error=error)
        reasons = (*result.reasons, f"by {answer.worker}")
        return replace(found, status=result.status, seconds=result.seconds, cost=result.cost, reasons=reasons)

    def _fetched(self, step: Step, key: str) -> RecipeResult | None:
        """Return a build of the recipe that a remote store has, taken into this machine's store."""
        home = self._setting.home
        wheel = self._setting.remotes.fetch_anew(key, self._setting.target)
        entry = store.read(home.store, wheel.key) if wheel else None
        if wheel is None or entry is None or entry.recipe != step.recipe.name:
            return None
        log = store.entry_folder(home.store, wheel.key) / LOG
        return result_of(step, "reused", reasons=step.reasons, key=wheel.key, log=log)

    def _pushed_meanwhile(self, step: Step) -> RecipeResult | None:
        """Return what a worker pushed before its scheduler went away."""
        self._setting.remotes.forget()
        planned = scheduler.plan(self._setting, [step.recipe.name])
        now = next(one for one in planned.steps if one.recipe.name == step.recipe.name)
        return self._fetched(now, now.build_key) if now.remote else None
