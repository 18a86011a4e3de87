"""The build stage: run the builder of the recipe's kind in the build environment."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from spark_build.build import compiler_cache, sandbox
from spark_build.build import environment as build_environment
from spark_build.build.backends import BUILDERS, BuildReached, Product, Runner
from spark_build.build.context import Job, Outputs, Shell
from spark_build.build.diagnosis import FeatureWatch, diagnose, last_command
from spark_build.errors import Finding, NothingCheckedError, StageError, ours
from spark_build.events import Cost, Note, Progress
from spark_build.files import read_made, remove_any, remove_tree, tail_of, write_atomically
from spark_build.process import niceness
from spark_build.process import run as run_command
from spark_build.resources import governor, jobserver, memory, policy
from spark_build.resources.jobserver import Jobserver
from spark_build.resources.policy import BuildUsage
from spark_build.text import printable

CALL = "build-call"  # the name of the file that the scripts write
MOST = 4096  # bytes of it that are read
STEP = re.compile(r"^\[\s*\d+(/\d+|%)\] ")  # ninja's, and that of CMake's makefiles
COMPILING = re.compile(
    r"^(\S*/)?(\w+-)*(cc|c\+\+|gcc|g\+\+|clang|clang\+\+|nvcc)(-[\d.]+)? (.* )?-c .*\.(c|cc|cpp|cxx|cu|C)\b"
)
# As the kernel calls them, of the compiler cache and of compilers with a version in their name too.
_COMPILERS = frozenset({"ccache", "cc1", "cc1plus", "cicc", "cudafe++", "as", "ptxas", "clang", "clang++"})
_MODES = ("--build", "--install", "--open", "--workflow", "-E", "-P")
_STEPS = ("configure", "config.status")


NAME = "build"
NINJA_STEP = re.compile(r"^\[(\d{1,15})/(\d{1,15})\] ")
MOSTLY_CACHED = 0.2  # from this share of hits on a build's time says nothing about the next one's
CONFIGURE_MIB = 1024  # enough for what a configure step compiles to try things out
LOG_SIZE = 16 << 20  # bytes at the end of a log in which the first error is searched


@dataclass(kw_only=True, slots=True)
class Ending:
    """The end of a run that only configures: the first build call of the project.

    The scripts before ninja and make (`resources/jobserver.py`) say so through a file. Two kinds of
    projects get past them: those that call their ninja by its path, as scikit-build-core does, whose first
    printed step tells, and those whose setup.py compiles by itself, where the printed command line does.

    call: a file in which the scripts say what was called, and the build may put anything; mark: our own.
    """

    call: Path
    mark: Path
    root: int | None = None  # process id above the running command

    @property
    def variables(self) -> dict[str, str]:
        """Variables for the build, by which the scripts know; and what Python prints comes at once."""
        return {jobserver.STOP: str(self.call), "PYTHONUNBUFFERED": "1"}

    def see(self, line: str) -> None:
        """Look at a line of output. Raise BuildReached when something is to be built, or is being built."""
        if jobserver.SIGN in line:  # not as soon as the file is there: what was printed before comes first
            self.check()
        step, compiling = STEP.match(line), COMPILING.match(line)
        if (step or compiling) and self.root and builds(self.root, memory.CLIENTS if step else _COMPILERS):
            write_atomically(self.mark, "")
            raise BuildReached(printable(line), began=True, by_itself=step is None)

    def check(self) -> None:
        """Raise BuildReached when one of the scripts was asked to build."""
        with contextlib.suppress(OSError):
            said = read_made(self.call, MOST).decode(errors="replace").strip()
            write_atomically(self.mark, "")
            raise BuildReached(printable(said))


def inputs(job: Job) -> Any:
    """Return all inputs that decide the bytes."""
    return {"key": job.key}


def intact(job: Job, outputs: Outputs) -> bool:
    """Return whether the product is still there."""
    wheel, prefix = str(outputs["wheel"]), bool(outputs["prefix"])
    return (not wheel or (job.dist / wheel).is_file()) and (not prefix or job.prefix.is_dir())


@dataclass(kw_only=True, slots=True)
class _BuildProgress:
    """Progress of a build while it runs."""

    began: float = field(default_factory=time.monotonic)
    root: int | None = None  # process id above the running command
    total: int = 0  # compile steps
    times: list[tuple[int, float]] = field(default_factory=list)  # steps done, seconds since the start

    def step(self, done: int, total: int) -> None:
        """Count a compile step; another total means another run of ninja, and the longest one counts."""
        if total > self.total:
            self.total = total
            self.times.clear()
        if total == self.total:
            self.times.append((done, time.monotonic() - self.began))


def run(job: Job, earlier: Mapping[str, Outputs]) -> Outputs:
    """Run the builder; an interrupted ninja build continues."""
    _clear(job)
    if not job.step.recipe.is_compiled:
        return {**asdict(_repack(job)), "sandbox": {"kind": "not needed", "network": False}}
    started = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    is_whole = not job.build_started.exists()
    job.build_started.touch()
    with _acquire_job_slots(job, job.expected.memory_per_job_mib) as (jobserver, course):
        with _compiler_cache(job) as setup:
            product = _build(job, earlier, jobserver, course, setup)
        use = compiler_cache.use_of(setup.log)
        cost = Cost(
            peak_mib=jobserver.peak_mib,
            peak_mib_per_job=jobserver.peak_mib_per_job,
            jobs=jobserver.most,
            cache=str(use) if use.total else "",
        )
    _record_usage(job, course, cost, is_whole=is_whole and (use.rate or 0.0) < MOSTLY_CACHED)
    marks = {
        "sandbox": sandbox.choose().mark(network=job.step.recipe.build.network),
        "compiler_cache": setup.cache.marks,
        "started": started,
    }
    return {**asdict(product), **marks, "cost": asdict(cost)}


def configure(job: Job, earlier: Mapping[str, Outputs]) -> Outputs:
    """Run the builder up to the project's first build call, and judge the features by its output.

    The tree is left as a build would have it there. Raises StageError when a feature is missing or the
    configure step fails, NothingCheckedError where the project shows no end of one.
    """
    _clear(job)
    is_begun = job.build_started.exists()
    job.build_started.touch()
    watch, missing = FeatureWatch(job.step.evaluated.features), list[Finding]()
    try:
        reached = _end_of_configuring(job, earlier, watch, missing)
    except StageError:
        if not missing:
            raise
    if missing:
        job.configured.unlink(missing_ok=True)
        raise _lacking(*missing)
    # scons has read all of SConstruct, with its checks, before it starts a compiler.
    ended = reached is not None and (not reached.by_itself or job.step.recipe.kind == "scons")
    if not ended and not watch.values:
        job.configured.unlink(missing_ok=True)
        raise _without_build_call(job, reached)
    if reached is not None and not reached.began and not is_begun:
        job.build_started.unlink()  # whatever built there would have built on this
    _note_unseen(job, watch)
    return {"ended": job.unseen(reached.call) if reached else ""}


def _end_of_configuring(
    job: Job, earlier: Mapping[str, Outputs], watch: FeatureWatch, missing: list[Finding]
) -> BuildReached | None:
    """Run the builder until something is to be built; None when it ended without that."""
    ending = Ending(call=job.work / "tmp" / CALL, mark=job.configured)
    memory_mib = min(CONFIGURE_MIB, job.expected.memory_per_job_mib)

    def see(line: str) -> None:
        ending.root = course.root
        if (found := watch.see(line)) is not None:
            missing.append(found)
        ending.see(line)

    with (
        _acquire_job_slots(job, memory_mib, is_told=False) as (jobserver, course),
        _compiler_cache(job) as setup,
    ):
        values = build_environment.values(job, earlier, jobserver.sure)
        command = _runner(job, earlier, jobserver, course, setup, values, see, ending.variables)

        def runner(words: Sequence[str], cwd: Path, extra: Mapping[str, str]) -> None:
            try:
                command(words, cwd, extra)
            except StageError:
                ending.check()  # the project took the output of its build tool
                raise
            ending.check()

        try:
            BUILDERS[job.step.recipe.kind](job, runner, values)
        except BuildReached as reached:
            return reached
    return None


def _without_build_call(job: Job, reached: BuildReached | None) -> NothingCheckedError:
    name = job.step.recipe.name
    how = "its setup.py compiles by itself" if reached else "it was built to its end"
    return NothingCheckedError(
        f"nothing was checked: {how}, without ninja or make, so nothing tells where configuring ends, and "
        "no expected feature was printed before",
        hint=ours("build", name),
    )


def _clear(job: Job) -> None:
    """Make the build's folders, without an earlier build's files."""
    remove_tree(job.dist)
    remove_any(job.work / "tmp" / CALL)
    job.configured.unlink(missing_ok=True)
    for folder in (job.dist, job.work / "home", job.work / "tmp"):
        folder.mkdir(parents=True, exist_ok=True)


def _repack(job: Job) -> Product:
    def refuse(*_: object) -> None:
        raise StageError("unpacking wheels executes nothing")

    return BUILDERS[job.step.recipe.kind](job, refuse, {})


@contextmanager
def _compiler_cache(job: Job) -> Iterator[compiler_cache.Setup]:
    """Yield the compiler cache, ready for this build."""
    placed = job.places[job.work] != job.work
    work = None if placed else job.work
    asked = compiler_cache.Cache(kind="none", reason="as asked")
    setup = compiler_cache.prepare(
        compiler_cache.chosen_for(job.home, os.environ) if job.cached else asked,
        folder=job.compiler_cache,
        work=work,
        links=job.work / compiler_cache.LINKS,
        search=build_environment.path_of(job),
        environ=os.environ,
    )
    if setup.cache.kind == "sccache":
        told = "sccache compiles in its server, outside the sandbox"
        job.emit(Note(recipe=job.step.recipe.name, message=told))
    if setup.cache.unshared:
        told = f"objects are not shared: {setup.cache.unshared}"
        job.emit(Note(recipe=job.step.recipe.name, message=told))
    with compiler_cache.serving(setup, work=work, environ=os.environ) as ready:
        yield ready


@contextmanager
def _acquire_job_slots(
    job: Job, memory_mib: int, *, is_told: bool = True
) -> Iterator[tuple[Jobserver, _BuildProgress]]:
    """Yield job slots once the first job fits; `is_told`: record the usage for later builds."""
    course = _BuildProgress()
    recipe = job.step.recipe
    wait = f"waiting for a free job slot and {memory_mib} MiB for its first job"
    with job.governor.stage(
        recipe.name,
        memory_per_job_mib=memory_mib,
        threads_per_job=recipe.build.threads_per_job,
        root=lambda: course.root,
        folder=job.work / "jobserver",
        waiting=lambda: job.emit(Note(recipe=recipe.name, message=wait)),
    ) as jobserver:
        course.began = time.monotonic()
        try:
            yield jobserver, course
        except StageError:
            # Also what failed says how much memory a job needs: the next attempt plans with it.
            cost = Cost(peak_mib=jobserver.peak_mib, peak_mib_per_job=jobserver.peak_mib_per_job)
            if is_told:
                _record_usage(job, course, cost, is_whole=False)
            raise


def _record_usage(job: Job, course: _BuildProgress, cost: Cost, *, is_whole: bool) -> None:
    seconds = round(time.monotonic() - course.began, 1)
    taken = BuildUsage(
        peak_mib_per_job=cost.peak_mib_per_job,
        seconds=seconds if is_whole else 0.0,
        target=job.target.name,
        steps=course.total if is_whole else 0,
        curve=policy.pace_curve(course.times, course.total, seconds) if is_whole else (),
    )
    governor.record_build(job.home, job.step.recipe.name, taken)


def _build(
    job: Job,
    earlier: Mapping[str, Outputs],
    jobserver: Jobserver,
    course: _BuildProgress,
    setup: compiler_cache.Setup,
) -> Product:
    values = build_environment.values(job, earlier, jobserver.sure)
    watch = FeatureWatch(job.step.evaluated.features)
    runner = _runner(
        job, earlier, jobserver, course, setup, values, lambda line: _see(job, watch, course, line)
    )
    product = BUILDERS[job.step.recipe.kind](job, runner, values)
    _note_unseen(job, watch)
    return product


def _note_unseen(job: Job, watch: FeatureWatch) -> None:
    for feature in watch.unseen():
        job.log.write(f"warning: nothing was printed about the expected feature {feature.name}\n".encode())


def _runner(  # noqa: PLR0913 - what the stage has set up, for one closure
    job: Job,
    earlier: Mapping[str, Outputs],
    jobserver: Jobserver,
    course: _BuildProgress,
    setup: compiler_cache.Setup,
    values: build_environment.Values,
    see: Callable[[str], None],
    more: Mapping[str, str] | None = None,
) -> Runner:
    """Return a function that runs commands in the sandbox; `see` gets output lines, `more` are variables."""
    own = build_environment.variables(job, values, int(earlier["patch"]["epoch"]))
    path = ":".join([*map(str, setup.path), own["PATH"]])
    # The recipe's own variables come last; whatever its PATH, it finds our ninja first.
    shared = {**setup.variables, **jobserver.environment(path)}
    environment = {**shared, **own, **(more or {}), "PATH": shared["PATH"]}
    writable, nice = (*jobserver.outside, *setup.writable), niceness(os.environ)

    def runner(command: Sequence[str], cwd: Path, extra: Mapping[str, str]) -> None:
        started: list[int] = []

        def on_start(pid: int) -> None:
            course.root = pid
            started.append(pid)
            _limit_memory(job, pid)

        given = {**environment, **extra}
        inside = build_environment.sandboxed(job, command, cwd, given, writable, setup.readable)
        try:
            done = run_command(
                inside, cwd=cwd, log=job.log, on_line=see, pass_fds=job.keep, nice=nice, on_start=on_start
            )
        finally:
            course.root = None
            for pid in started:
                memory.release(pid)
        sandbox.refuse_unstarted(done)
        if done.returncode != 0:
            raise _first_error(job, done.output)

    return runner


def _limit_memory(job: Job, pid: int) -> None:
    """Limit a command to the memory that is available, if that is enough for one job."""
    room = memory.available_mib() - job.governor.reserve_mib // 2
    # Who insists on building without room must not be killed for it.
    if room > job.expected.memory_per_job_mib:
        memory.limit(pid, room)


def shell(job: Job, earlier: Mapping[str, Outputs]) -> Shell:
    """Open a shell that sees what this build's commands see."""
    values = build_environment.values(job, earlier, jobs=1)
    env = build_environment.variables(job, values, int(earlier["patch"]["epoch"]))
    env |= {name: os.environ[name] for name in ("TERM", "COLORTERM") if name in os.environ}
    for folder in (job.work / "home", job.work / "tmp"):
        folder.mkdir(exist_ok=True)
    program = shutil.which("bash") or "sh"
    args = build_environment.sandboxed(job, [program], job.source, env)
    return Shell(
        args=tuple(args),
        cwd=job.source,
        keep=job.keep,
        told=f"the tree of {job.step.recipe.name} is {job.work}, here {job.places[job.work]}",
    )


def _see(job: Job, watch: FeatureWatch, course: _BuildProgress, line: str) -> None:
    """Handle an output line: a compile step, or a feature in the configure summary."""
    step = NINJA_STEP.match(line)
    if step:
        done, total = int(step.group(1)), int(step.group(2))
        course.step(done, total)
        job.emit(Progress(recipe=job.step.recipe.name, stage=NAME, done=done, total=total))
    missing = watch.see(line)
    if missing is not None:
        raise _lacking(missing)


def _lacking(*missing: Finding) -> StageError:
    """Return the features that the build would lack, each once."""
    said = "; ".join(dict.fromkeys(one.message for one in missing))
    return StageError(said, hint="install what it needs, or mend the recipe's features")


def _first_error(job: Job, output: str) -> StageError:
    """Return the best explanation of the last command's failure."""
    job.log.flush()
    log = tail_of(Path(job.log.name), LOG_SIZE).decode(errors="replace")
    found = diagnose(last_command(job.unseen(log)))
    if found is None:
        return StageError((output.splitlines() or ["no output"])[-1])
    error, why = found.finding, found.explanation
    said = f"{error.message.rstrip('.')}. {why}" if why else error.message
    return StageError(said, where=str(error.place) or None, hint=error.hint)


def builds(root: int, tools: Container[str]) -> bool:
    """Return whether one of these programs runs below a process, and no configure step that it may run for.

    A line alone proves nothing: CMake prints what a nested build said when it gives up.
    """
    table = memory.processes()
    below = [root]
    for pid in below:  # grows while we walk it
        below += [one.pid for one in table.values() if one.parent == pid]
    names = [table[pid].name for pid in below if pid in table]
    return any(name in tools for name in names) and not any(is_configure_step(_words(pid)) for pid in below)


def is_configure_step(words: Sequence[str]) -> bool:
    """Return whether a command line is CMake without a mode of its own, or a configure script."""
    first = [word.rpartition("/")[2] for word in words[:2]]  # an interpreter may come before
    if "cmake" in first or "cmake3" in first:
        return not any(word in _MODES for word in words)
    return any(name in _STEPS for name in first)


def _words(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").rstrip("\0").split("\0")
    except OSError:
        return []
