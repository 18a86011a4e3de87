"""The thread that grants and withdraws jobs, and the usage history that it writes."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from spark_build.decoding import decoder
from spark_build.events import ExpectedUsage
from spark_build.files import locked, write_atomically
from spark_build.paths import Home
from spark_build.process import refuse_cancelled
from spark_build.resources import policy
from spark_build.resources.policy import BuildUsage, JobDemand, Throttle

if TYPE_CHECKING:  # a plan reads the history only
    from spark_build.resources.jobserver import Jobserver

CALM_SECONDS, ALERT_SECONDS = 0.2, 0.05  # between two samples
ALERT_SHARE, ALERT_HORIZON = 0.7, 1.0  # of the limit, seconds ahead: from there on more samples

# Jobs that run, jobs that may run, memory of all stages and what they may have, in MiB.
OnSample = Callable[[int, int, int, int], None]


class Governor:
    """Shares processors and memory among the stages that run in this process."""

    def __init__(
        self,
        *,
        cores: int,
        memory_budget_mib: int | None = None,
        reserve_mib: int = 0,
        on_sample: OnSample = lambda *_: None,
    ) -> None:
        self._cores = max(1, cores)
        self._budget = memory_budget_mib
        self.reserve_mib = reserve_mib  # left free
        self._on_sample = on_sample
        self._changing = threading.Lock()  # over the stages and all they hold
        self._stages: list[Jobserver] = []
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None
        self._throttle = Throttle(cap=self._cores, changed=time.monotonic())
        self._memory = 0
        self._growth = 0.0  # MiB per second
        self._sampled = time.monotonic()
        self._limit = 0  # where jobs are stopped
        self._kept = 0  # for the first jobs of stages that wait
        self._told = 0.0
        self._wake = threading.Event()

    @contextlib.contextmanager
    def stage(
        self,
        name: str,
        *,
        memory_per_job_mib: int,
        root: Callable[[], int | None],
        folder: Path,
        threads_per_job: int = 1,
        waiting: Callable[[], None] = lambda: None,
    ) -> Iterator[Jobserver]:
        """Yield a jobserver for one stage once its first job fits; until then `waiting` is told.

        `root` gives the process whose descendants are the stage's, None between two commands.
        `folder` is the stage's own; the scripts in it stay, because CMake remembers their path.
        """
        from spark_build.resources.jobserver import Jobserver

        jobserver = Jobserver(
            name=name,
            folder=folder,
            cores=self._cores,
            memory_per_job_mib=memory_per_job_mib,
            threads_per_job=min(threads_per_job, self._cores),
            root=root,
            changing=self._changing,
        )
        try:
            self._enter(jobserver)
            if not jobserver.ready.wait(CALM_SECONDS):
                waiting()
            while not jobserver.ready.wait(CALM_SECONDS):
                refuse_cancelled()
            yield jobserver
        finally:
            self._leave(jobserver)
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _enter(self, jobserver: Jobserver) -> None:
        with self._changing:
            self._stages.append(jobserver)
            if self._thread is None:
                self._thread = threading.Thread(target=self._govern, name="governor", daemon=True)
                self._thread.start()
        self._wake.set()

    def _leave(self, jobserver: Jobserver) -> None:
        with self._changing:
            if jobserver in self._stages:
                self._stages.remove(jobserver)
            jobserver.resume_all()
        jobserver.close()
        self._wake.set()

    def _govern(self) -> None:
        """Sample and adjust until no stage is left."""
        try:
            while True:
                with self._changing:
                    if not self._stages:
                        self._thread = None
                        return
                    self._sample()
                    self._adjust()
                self._tell()
                self._wait()
        except BaseException as error:  # noqa: BLE001  raised again where the stage ends
            self._failure = error
            with self._changing:
                self._thread = None
                for stage in self._stages:
                    stage.resume_all()
                    stage.ready.set()

    def _sample(self) -> None:
        from spark_build.resources import memory

        table = memory.processes()
        for stage in self._stages:
            stage.sample(table)
        before, self._memory = self._memory, sum(stage.reading.memory_mib for stage in self._stages)
        last, self._sampled = self._sampled, time.monotonic()
        self._growth = (self._memory - before) / max(0.01, self._sampled - last)

    def _adjust(self) -> None:
        """Withdraw excess tokens, grant what fits, stop or resume jobs."""
        from spark_build.resources import memory

        now = time.monotonic()
        available = memory.available_mib()
        pressure = memory.pressure(self.reserve_mib, available)
        in_use = sum(stage.going for stage in self._stages)
        self._throttle = self._throttle.step(now=now, pressure=pressure, in_use=in_use, cores=self._cores)
        room = self._room(available, self.reserve_mib)
        # Tokens keep the whole reserve free; jobs are stopped when half of it is gone.
        self._limit = self._room(available, self.reserve_mib // 2)
        jobs = sum(job.memory_mib for stage in self._stages for job in stage.reading.jobs)
        # Where jobs can be told apart, the rest of the tree is not theirs to use.
        space = room - (self._memory - jobs if jobs else 0)
        self._hand_out(now, space)
        self._guard()

    def _room(self, available: int, reserve: int) -> int:
        return policy.room(
            budget_mib=self._budget,
            available_mib=available,
            reserve_mib=reserve,
            running_mib=self._memory,
        )

    def _hand_out(self, now: float, space: int) -> None:
        """Grant tokens by processors.

        ninja asks for a token only when a job ends, so it would find those late that memory allows later.
        `_guard` decides which of the jobs run.
        """
        cores = min(self._cores, self._throttle.cap)
        several = len(self._stages) > 1
        present = self._present(cores, space)
        demands = [
            JobDemand(
                threads_per_job=stage.threads_per_job, wanted=stage.wanted(now) if several else self._cores
            )
            for stage in present
        ]
        for stage, slots in zip(present, policy.share(demands, cores=cores), strict=True):
            stage.aim = slots
            stage.sure = max(1, min(slots, space // len(present) // stage.memory_per_job_mib))
            stage.withdraw()
        entered = [stage for stage in present if stage.ready.is_set()]
        threads = sum(stage.slots * stage.threads_per_job for stage in entered)
        promised = self._memory + sum(stage.promised_mib for stage in entered)
        for stage in present:
            while not stage.ready.is_set() or stage.slots < stage.aim:
                more = threads + stage.threads_per_job
                late = not stage.ready.is_set() and promised + stage.memory_per_job_mib > space
                if entered and (more > cores or late):
                    break  # others still hold what is to be given
                threads = more
                if stage.ready.is_set():
                    stage.put()
                else:
                    promised += stage.memory_per_job_mib
                    entered.append(stage)
                    stage.ready.set()
        self._kept = sum(stage.memory_per_job_mib for stage in present if not stage.ready.is_set())

    def _present(self, cores: int, space: int) -> list[Jobserver]:
        """Return the running stages, and those waiting that fit when each has one slot."""
        found = [stage for stage in self._stages if stage.ready.is_set()]
        for stage in self._stages:
            together = [*found, stage]
            memory_mib = sum(stage.memory_per_job_mib for stage in together)
            threads = sum(stage.threads_per_job for stage in together)
            fits = memory_mib <= space and threads <= cores
            if not stage.ready.is_set() and (fits or not found):
                found = together
        return found

    def _guard(self) -> None:
        """Stop the newest jobs before the limit is passed, and those that just began, until there is room."""
        pairs = [(stage, job) for stage in self._stages for job in stage.reading.jobs]
        pairs.sort(key=lambda pair: (pair[1].members[0].started, pair[1].members[0].pid))
        running = tuple(not stage.is_stopped(job) for stage, job in pairs)
        growths = [stage.growth_mib(job) for stage, job in pairs]
        may = policy.may_run(growths, memory_mib=self._memory, limit_mib=self._limit - self._kept)
        alarm = policy.must_stop(memory_mib=self._memory, growth_mib_s=self._growth, limit_mib=self._limit)
        if alarm and not any(now and not then for now, then in zip(running, may, strict=True)):
            may = policy.stop_some(running, growths)
        for (stage, job), going in zip(pairs, may, strict=True):
            if going:
                stage.resume(job)
            else:
                stage.stop(job)  # again, too: it may have started more processes

    def _tell(self) -> None:
        if time.monotonic() - self._told >= CALM_SECONDS * 0.9:
            self._told = time.monotonic()
            with self._changing:
                in_use = sum(stage.going for stage in self._stages)
                slots = sum(stage.slots for stage in self._stages)
            self._on_sample(in_use, slots, self._memory, self._limit)

    def _wait(self) -> None:
        """Wait for the next sample or a change."""
        soon = self._memory + max(0.0, self._growth) * ALERT_HORIZON
        alert = soon > self._limit * ALERT_SHARE
        if self._wake.wait(ALERT_SECONDS if alert else CALM_SECONDS):
            self._wake.clear()


FORMAT = 1
LENGTH = 30  # builds remembered for each recipe


def record_build(home: Home, recipe: str, taken: BuildUsage) -> None:
    """Record a build's usage and drop the oldest ones."""
    path = _path(home, recipe)
    with locked(path.with_suffix(".lock"), purpose=f"history of {recipe}"):
        known = [*_read(path), taken][-LENGTH:]
        content = {"format": FORMAT, "builds": [asdict(build) for build in known]}
        write_atomically(path, json.dumps(content, indent=1) + "\n")


def recorded_builds(home: Home, recipe: str, *, target: str | None = None) -> tuple[BuildUsage, ...]:
    """Return earlier builds, newest last, for one target if given; none from a damaged file."""
    return tuple(build for build in _read(_path(home, recipe)) if target is None or build.target == target)


def expected_usage(
    home: Home, recipe: str, *, target: str, declared_mib: int, guess: float | None = None
) -> ExpectedUsage:
    """Return the usage to expect of a recipe's next build; `guess`: seconds, where no earlier one says."""
    known = recorded_builds(home, recipe, target=target)
    whole = [build for build in known if build.seconds > 0]
    # What went on, failed or came from the cache may have missed the largest job: it can only raise.
    parts = [build.peak_mib_per_job for build in known if build.seconds <= 0]
    memory = max(
        policy.learned([build.peak_mib_per_job for build in whole], declared_mib),
        policy.learned(parts, 0),
    )
    if not whole:
        return ExpectedUsage(memory_per_job_mib=memory, guess=guess)
    last = whole[-1]
    return ExpectedUsage(memory_per_job_mib=memory, seconds=last.seconds, steps=last.steps, curve=last.curve)


def _path(home: Home, recipe: str) -> Path:
    return home.runs / "history" / f"{recipe}.json"


def _read(path: Path) -> list[BuildUsage]:
    """Return the history; an unreadable file counts as empty, an unreadable row as missing."""
    row_of, rows = decoder(BuildUsage, newer=True), []
    try:
        content = json.loads(path.read_text())
        if content["format"] != FORMAT:
            return []
        for raw in content["builds"]:
            with contextlib.suppress(ValueError, LookupError, TypeError):
                rows.append(row_of(raw))
    except (OSError, ValueError, LookupError, TypeError):
        return []
    return rows
