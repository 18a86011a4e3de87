"""Run rounds: one process per arm and visit, in a scrubbed environment, resumable from its files."""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
import itertools
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from spark_build.core.judging.ticks import MARK
from spark_build.host.files import sha256_of, write_atomically
from spark_build.host.run import Completed, run
from spark_build.model.event import Emit, Note, Progress
from spark_build.model.verification import Arm, Round, Settings, Slot
from spark_build.verify import containers
from spark_build.verify.reading import read_round
from spark_build.verify.telemetry import Sampler, probes_for
from spark_build.verify.watching import Watch

SCHEMA = 1
KEPT_VARIABLES = ("PATH", "HOME", "USER", "LANG", "LC_ALL", "TMPDIR", "CUDA_VISIBLE_DEVICES")
PRELOAD = "LD_PRELOAD"
PAUSE = 60  # seconds between two rounds that are a break, whoever made it
TIMED_OUT, KILLED = 124, 137  # exit statuses of coreutils' timeout; 137 also for SIGKILL from outside


def digest_of(settings: Settings, arms: Sequence[Arm]) -> str:
    """What makes two runs the same measurement: settings, arms, and the scripts' content."""
    scripts = {file.name: sha256_of(file) for file in sorted(Path(settings.script).parent.glob("*.py"))}
    facts = {"settings": asdict(settings), "arms": [asdict(arm) for arm in arms], "scripts": scripts}
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:12]


def run_rounds(
    settings: Settings,
    arms: Sequence[Arm],
    order: Sequence[Slot],
    folder: Path,
    emit: Emit,
    watch: Watch,
    keep: Sequence[int] = (),
) -> tuple[tuple[Round, ...], tuple[str, ...]]:
    """Measure what is missing; returns all rounds and what interrupted them.

    Rounds of an earlier invocation with the same settings are kept. One whose pair was torn by the
    interruption, or that did not end well, is measured again; its file stays beside. Stops at the
    first round that fails: no number after it could change the verdict.
    """
    place = folder / f"rounds-{digest_of(settings, arms)}"
    place.mkdir(parents=True, exist_ok=True)
    launch = f"{_now()} {os.getpid()}"
    by_name = {arm.name: arm for arm in arms}
    kept, notes = _kept(place, order)
    if kept:
        emit(Note(message=f"going on: {len(kept)} of {len(order)} rounds are there already"))
    rounds: list[Round] = []
    for slot in order:
        emit(Progress(recipe="", stage="burn-in", done=len(rounds), total=len(order)))
        done = kept.get(slot) or _measure(settings, by_name[slot.arm], slot, place, launch, watch, keep)
        rounds.append(done)
        watch.end(rounds, kept=slot in kept)
        if done.problem or any(check.status == "fail" for check in done.checks):
            emit(Note(message=f"round {slot.index + 1} of {slot.arm} failed: the burn-in ends here"))
            break
    emit(Progress(recipe="", stage="burn-in", done=len(rounds), total=len(order)))
    return tuple(rounds), (*notes, *_breaks(rounds))


def _kept(place: Path, order: Sequence[Slot]) -> tuple[dict[Slot, Round], list[str]]:
    found = {slot: read_round(file) for slot in order if (file := _file(place, slot)).is_file()}
    notes: list[str] = []
    for slot, done in list(found.items()):
        mates = [other for other in order if other.visit == slot.visit]
        torn = not all(other in found for other in mates)
        if torn or done.problem:
            why = done.problem or "its pair was torn by an interruption"
            notes.append(f"round {slot.index + 1} of {slot.arm} was measured again: {why}")
            _file(place, slot).rename(_aside(_file(place, slot)))
    return {slot: done for slot, done in found.items() if _file(place, slot).is_file()}, notes


def _aside(file: Path) -> Path:
    number = 1
    while (candidate := file.with_suffix(f".before-{number}.json")).exists():
        number += 1
    return candidate


def _breaks(rounds: Sequence[Round]) -> list[str]:
    """Where one invocation of the program took over from another, or the machine slept."""
    notes: list[str] = []
    for before, after in itertools.pairwise(rounds):
        ended = dt.datetime.fromisoformat(before.started).timestamp() + before.seconds
        gap = dt.datetime.fromisoformat(after.started).timestamp() - ended
        if before.launch != after.launch or gap > PAUSE:
            notes.append(f"a break of {gap:.0f} s after round {before.slot.index + 1}")
    return notes


def _measure(
    settings: Settings,
    arm: Arm,
    slot: Slot,
    place: Path,
    launch: str,
    watch: Watch,
    keep: Sequence[int],
) -> Round:
    """One process; whatever happens to it ends as a file."""
    watch.begin(slot)
    report = place / f".report-{slot.index:03d}.json"
    report.unlink(missing_ok=True)
    threads = arm.threads or settings.threads
    environment = _variables(arm)
    started, limit = _now(), time_limit(settings)
    log = _file(place, slot).with_suffix(".log")
    command, container = _command(settings, arm, threads, report), ""
    if arm.image:
        container = f"spark-build-{os.getpid()}-{slot.index}"
        command = _contained(settings, arm, command, environment, place, container)
    # SIGABRT first: Python then prints where it stood.
    guard = ["timeout", "--signal=ABRT", "--kill-after=10", f"{limit:.0f}"]
    try:
        with log.open("wb") as stream, Sampler(probes_for(settings.device), watch.look) as sampler:
            done = run(
                [*guard, *command],
                cwd=place,
                env=_bare(environment),
                log=stream,
                on_line=watch.line,
                keep=keep,
            )
    finally:
        if container:
            containers.remove(arm, container)
    left: dict[str, Any] = {}
    with contextlib.suppress(OSError, ValueError):
        left = json.loads(report.read_text())
    problem = _problem(done, bool(left), limit)
    envelope = {
        "schema": SCHEMA,
        "slot": asdict(slot),
        "launch": launch,
        "started": started,
        "seconds": done.seconds,
        "exit": done.returncode,
        "problem": problem,
        "killed": done.returncode == KILLED and done.seconds < limit,
        "threads": threads,
        "device": settings.device,
        "variables": {"given": environment, "left_out": sorted(os.environ.keys() - environment.keys())},
        "telemetry": sampler.rows,
        "report": left,
    }
    write_atomically(_file(place, slot), json.dumps(envelope))
    report.unlink(missing_ok=True)
    return read_round(_file(place, slot))


def _bare(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name != PRELOAD}


def _command(settings: Settings, arm: Arm, threads: int, report: Path) -> list[str]:
    given = {
        "device": settings.device,
        "cases": ",".join(f"{case.dtype}:{case.size}:{case.layout}" for case in settings.cases),
        "warmup": settings.warmup,
        "window": settings.window,
        "tick": settings.tick,
        "threads": threads,
        "seed": settings.seed,
        "out": report,
    } | ({"inject-error": settings.inject} if settings.inject else {})
    options = [part for name, value in given.items() for part in (f"--{name}", str(value))]
    command = [arm.python, "-I", "-B", "-X", "faulthandler", settings.script, *options]
    # Only the arm itself may meet these libraries, not the programs that start it.
    preload = arm.env.get(PRELOAD)
    return ["env", f"{PRELOAD}={preload}", *command] if preload and not arm.image else command


def _contained(
    settings: Settings,
    arm: Arm,
    command: Sequence[str],
    environment: Mapping[str, str],
    place: Path,
    name: str,
) -> list[str]:
    """The same in the arm's container, which gets no variable that speaks of folders of this machine."""
    ours = {key: value for key, value in environment.items() if key not in ("PATH", "HOME", "USER", "TMPDIR")}
    script = Path(settings.script)
    return containers.wrap(
        arm, command, device=settings.device, env=ours, script=script, place=place, name=name
    )


def name_kernels(
    settings: Settings, arms: Sequence[Arm], folder: Path, keep: Sequence[int] = ()
) -> dict[str, dict[str, list[str]]]:
    """Arm -> case -> kernels that the profiler saw, in a run of its own; what fails is left out."""
    found: dict[str, dict[str, list[str]]] = {}
    for arm in arms:
        if arm.image or arm.role == "control":
            continue
        report = folder / f".kernels-{arm.name}.json"
        command = ["timeout", "300", *_command(settings, arm, settings.threads, report), "--profile"]
        with (folder / f"kernels-{arm.name}.log").open("wb") as log, contextlib.suppress(OSError, ValueError):
            run(command, cwd=folder, env=_bare(_variables(arm)), log=log, keep=keep)
            found[arm.name] = json.loads(report.read_text())["kernels"]
        report.unlink(missing_ok=True)
    return found


def _variables(arm: Arm) -> dict[str, str]:
    """The scrubbed environment of an arm."""
    kept = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
    return kept | {"PYTHONNOUSERSITE": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID", **arm.env}


def time_limit(settings: Settings) -> float:
    """Seconds after which a round hangs: as asked, else thrice its honest length and a slow start."""
    if settings.patience is not None:
        return settings.patience
    return 120 + 3 * len(settings.cases) * (3 * settings.warmup + settings.window + 5)


def _problem(done: Completed, reported: bool, limit: float) -> str:
    said = [line for line in done.output.strip().split("\n") if MARK not in line]
    last = said[-1][:300] if said else ""
    if done.returncode == TIMED_OUT or (done.returncode == KILLED and done.seconds >= limit):
        return f"hung: no end after {limit:.0f} s"
    if done.returncode == KILLED:
        return "was killed (SIGKILL)"
    if done.returncode != 0:
        return f"crashed with exit status {done.returncode}: {last}"
    return "" if reported else "left no report"


def _file(place: Path, slot: Slot) -> Path:
    name = "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in slot.arm)
    return place / f"{slot.index:03d}-{name}.json"


def _now() -> str:
    return dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds")
