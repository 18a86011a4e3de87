"""Run rounds in randomised order; read and resume them."""

from __future__ import annotations

import contextlib
import datetime as dt
import itertools
import json
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

from spark_build.events import Emit, Note, Progress
from spark_build.files import sha256_of, write_atomically
from spark_build.measure import arms
from spark_build.measure.bounds import LINKS
from spark_build.measure.checks import KILLED, guarded, problem_of
from spark_build.measure.gates import failures, number_problem, rate_problem, window_problem
from spark_build.measure.model import (
    JOULES,
    Arm,
    BenchRound,
    Case,
    Check,
    CommonSettings,
    Figure,
    Launch,
    Measurement,
    Reference,
    Round,
    Sample,
    Settings,
    Slot,
    Tick,
    Work,
)
from spark_build.measure.statistics import drop, variation
from spark_build.measure.telemetry import (
    ArmMonitor,
    Sampler,
    between,
    mean_of,
    probes_for,
    summarise,
)
from spark_build.measure.verdict import reference_for
from spark_build.process import Completed, run
from spark_build.text import digest

SCHEMA = 1
# The last three are an administrator's: multicast in NVLink switches stays off where it was switched off.
KEPT_VARIABLES = (
    "PATH", "HOME", "USER", "LANG", "LC_ALL", "TMPDIR", "CUDA_VISIBLE_DEVICES",
    "NCCL_NVLS_ENABLE", "TORCH_SYMM_MEM_DISABLE_MULTICAST", "NVSHMEM_DISABLE_NVLS",
)  # fmt: skip
FOLDERS = ("PATH", "HOME", "USER", "TMPDIR")
PRELOAD = "LD_PRELOAD"
STEP = "@step "  # then DONE and TOTAL: how a script of several steps tells how far it is
WINOGRAD = 2.25  # times fewer products than a convolution's formula counts
PAUSE = 60  # seconds between two rounds that are a break, whoever made it


R = TypeVar("R", bound=Launch)


def failed(done: Launch) -> bool:
    """Return whether the round did not end, or found something wrong."""
    return bool(done.problem or failures([done]))


@dataclass(frozen=True, kw_only=True, slots=True)
class Program(Generic[R]):
    """A program that runs inside the arms, with the reader of its rounds."""

    name: str  # as it is called while it runs
    script: Path
    settings: CommonSettings
    options: Mapping[str, object]  # of the script, beside those of the settings
    limit: float  # seconds after which a round hangs
    read: Callable[[Path], R]
    stops: Callable[[R], bool] = failed  # what ends it: no number after that could change what is said
    before: Callable[[], None] = field(default=lambda: None)  # each round that is measured now
    enough: Callable[[Sequence[R]], bool] = lambda _: False  # whether the rest need not be measured
    watch: ArmMonitor = field(default_factory=lambda: ArmMonitor({}, lambda _: (), lambda _: None))


def burn_in_program(settings: Settings, references: Sequence[Reference] = ()) -> Program[Round]:
    """Return the matrix products of a burn-in."""
    cases = ",".join(f"{case.dtype}:{case.size}:{case.layout}" for case in settings.cases)
    return Program(
        name="burn-in",
        script=Path(settings.script),
        settings=settings,
        options={"cases": cases, "tick": settings.tick},
        limit=time_limit(settings),
        read=partial(read_round, references=references),
    )


def digest_of(program: Program[R], arms: Sequence[Arm]) -> str:
    """Return a digest of what makes two runs the same measurement: settings, arms, scripts."""
    folder = program.script.parent
    files = sorted((*folder.glob("*.py"), *folder.glob("workloads/*.py")))
    scripts = {str(file.relative_to(folder)): sha256_of(file) for file in files}
    facts = {"settings": asdict(program.settings), "arms": [asdict(arm) for arm in arms], "scripts": scripts}
    return digest(facts)[:12]


def run_rounds(
    program: Program[R],
    arms: Sequence[Arm],
    order: Sequence[Slot],
    folder: Path,
    emit: Emit,
    keep: Sequence[int] = (),
) -> tuple[tuple[R, ...], tuple[str, ...]]:
    """Measure what is missing; returns all rounds and what interrupted them.

    Rounds of an earlier invocation with the same settings are kept. One whose pair was torn by the
    interruption, or that did not end well, is measured again; its file stays beside.
    """
    place = folder / f"rounds-{digest_of(program, arms)}"
    place.mkdir(parents=True, exist_ok=True)
    launch = f"{_now()} {os.getpid()}"
    by_name = {arm.name: arm for arm in arms}
    kept, notes = _kept(program, place, order, emit)
    rounds: list[R] = []
    steps = 1  # of a round

    def tell(done: int) -> None:
        done += len(rounds) * steps
        emit(Progress(recipe="", stage=program.name, done=done, total=len(order) * steps))

    def hear(line: str) -> None:
        nonlocal steps
        if line.startswith(STEP):
            done, steps = map(int, line.split()[1:3])
            tell(done)
        program.watch.line(line)

    for slot in order:
        tell(0)
        done = kept.get(slot) or _measure(program, by_name[slot.arm], slot, place, launch, keep, hear)
        rounds.append(done)
        program.watch.end(rounds, kept=slot in kept)
        if program.stops(done):
            emit(Note(message=f"round {slot.index + 1} of {slot.arm} failed: the {program.name} ends here"))
            break
        if program.enough(rounds):
            break
    tell(0)
    return tuple(rounds), (*notes, *_breaks(rounds))


def _kept(
    program: Program[R], place: Path, order: Sequence[Slot], emit: Emit
) -> tuple[dict[Slot, R], list[str]]:
    found = {slot: program.read(file) for slot in order if (file := _file(place, slot)).is_file()}
    notes: list[str] = []
    for slot, done in list(found.items()):
        mates = [other for other in order if other.visit == slot.visit]
        torn = not all(other in found for other in mates)
        if torn or done.problem:
            why = done.problem or "its pair was torn by an interruption"
            notes.append(f"round {slot.index + 1} of {slot.arm} was measured again: {why}")
            _file(place, slot).rename(_aside(_file(place, slot)))
    kept = {slot: done for slot, done in found.items() if _file(place, slot).is_file()}
    if kept:
        emit(Note(message=f"going on: {len(kept)} of {len(order)} rounds are there already"))
    return kept, notes


def _aside(file: Path) -> Path:
    number = 1
    while (candidate := file.with_suffix(f".before-{number}.json")).exists():
        number += 1
    return candidate


def _breaks(rounds: Sequence[R]) -> list[str]:
    """Return where another invocation of the program took over, or the machine slept."""
    notes: list[str] = []
    for before, after in itertools.pairwise(rounds):
        ended = dt.datetime.fromisoformat(before.started).timestamp() + before.seconds
        gap = dt.datetime.fromisoformat(after.started).timestamp() - ended
        if before.launch != after.launch or gap > PAUSE:
            notes.append(f"a break of {gap:.0f} s after round {before.slot.index + 1}")
    return notes


def _measure(
    program: Program[R],
    arm: Arm,
    slot: Slot,
    place: Path,
    launch: str,
    keep: Sequence[int],
    hear: Callable[[str], None],
) -> R:
    """Measure a round in a process of its own; whatever happens to that ends as a file."""
    program.before()
    program.watch.begin(slot)
    report = place / f".report-{slot.index:03d}.json"
    report.unlink(missing_ok=True)
    environment = variables_of(arm)
    started = _now()
    done, telemetry = _run_arm(program, arm, slot, report, environment, keep, hear)
    left: dict[str, Any] = {}
    with contextlib.suppress(OSError, ValueError):
        left = json.loads(report.read_text())
    envelope = {
        "schema": SCHEMA,
        "slot": asdict(slot),
        "launch": launch,
        "started": started,
        "seconds": done.seconds,
        "exit": done.returncode,
        "problem": problem_of(done, program.limit, is_reported=bool(left)),
        "killed": done.returncode == KILLED and done.seconds < program.limit,
        "threads": arm.threads or program.settings.threads,
        "device": program.settings.device,
        "variables": {"given": environment, "left_out": sorted(os.environ.keys() - environment.keys())},
        "telemetry": telemetry,
        "report": left,
    }
    write_atomically(_file(place, slot), json.dumps(envelope))
    report.unlink(missing_ok=True)
    return program.read(_file(place, slot))


def _run_arm(
    program: Program[R],
    arm: Arm,
    slot: Slot,
    report: Path,
    environment: Mapping[str, str],
    keep: Sequence[int],
    hear: Callable[[str], None],
) -> tuple[Completed, list[tuple[float, Sample]]]:
    """Run the program, in a container where the arm is an image; return how it ended and the telemetry."""
    place, device = report.parent, program.settings.device
    command, container = command_of(program, arm, report), ""
    if arm.image:
        container = f"spark-build-{os.getpid()}-{slot.index}"
        # Variables about this machine's folders say nothing in there.
        told = {name: value for name, value in environment.items() if name not in FOLDERS}
        command = arms.wrap_in_container(
            arm, command, device=device, env=told, script=program.script, place=place, name=container
        )
    log, ours = _file(place, slot).with_suffix(".log"), bare(environment)
    try:
        with log.open("wb") as stream, Sampler(probes_for(device), program.watch.look) as sampler:
            done = run(
                guarded(command, program.limit), cwd=place, env=ours, log=stream, on_line=hear, pass_fds=keep
            )
    finally:
        if container:
            arms.remove_container(arm, container)
    return done, sampler.rows


def bare(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables for the programs that start an arm."""
    return {name: value for name, value in environment.items() if name != PRELOAD}


def command_of(program: Program[R], arm: Arm, report: Path) -> list[str]:
    """Return the program's command line in an arm; its report goes to `report`."""
    settings = program.settings
    given = {name: getattr(settings, name) for name in ("device", "warmup", "window", "seed")}
    given |= {"inject": settings.inject} if settings.inject else {}
    given |= {**program.options, "threads": arm.threads or settings.threads, "out": report}
    options = [part for name, value in given.items() for part in (f"--{name}", str(value))]
    command = [arm.python, "-I", "-B", "-X", "faulthandler", str(program.script), *options]
    # Only the arm itself may meet these libraries, not the programs that start it.
    preload = arm.env.get(PRELOAD)
    return ["env", f"{PRELOAD}={preload}", *command] if preload and not arm.image else command


def name_kernels(
    settings: Settings, arms: Sequence[Arm], folder: Path, keep: Sequence[int] = ()
) -> dict[str, dict[str, list[str]]]:
    """Arm -> case -> kernels that the profiler saw, in a run of its own; what fails is left out."""
    program = burn_in_program(settings)
    found: dict[str, dict[str, list[str]]] = {}
    for arm in arms:
        if arm.image or arm.role == "control":
            continue
        report = folder / f".kernels-{arm.name}.json"
        command = ["timeout", "300", *command_of(program, arm, report), "--profile"]
        with (folder / f"kernels-{arm.name}.log").open("wb") as log, contextlib.suppress(OSError, ValueError):
            run(command, cwd=folder, env=bare(variables_of(arm)), log=log, pass_fds=keep)
            found[arm.name] = json.loads(report.read_text())["kernels"]
        report.unlink(missing_ok=True)
    return found


def variables_of(arm: Arm) -> dict[str, str]:
    """Return the scrubbed environment of an arm."""
    kept = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
    return kept | {"PYTHONNOUSERSITE": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID", **arm.env}


def time_limit(settings: Settings) -> float:
    """Return seconds after which a round hangs: as asked, else thrice its honest length and a slow start."""
    if settings.patience is not None:
        return settings.patience
    return 120 + 3 * len(settings.cases) * (3 * settings.warmup + settings.window + 5)


def _file(place: Path, slot: Slot) -> Path:
    name = re.sub(r"[^\w.-]", "-", slot.arm)
    return place / f"{slot.index:03d}-{name}.json"


def _now() -> str:
    return dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds")


CLOCK_STILL = 5  # MHz
# What is kept of an arm's report beside what it measured.
ENVIRONMENT = (
    "device", "python", "torch", "called_versions", "libraries", "variables", "copy", "ceilings",
)  # fmt: skip


def _opened(
    file: Path, what: str, references: Sequence[Reference], problem_of: Callable[..., str]
) -> tuple[dict[str, Any], list[tuple[float, Sample]], list[dict[str, Any]], bool]:
    """Return a round's document, telemetry, possible measurements, and whether there were impossible ones.

    The first of these is the document's problem then: it is shown, but nothing is claimed by such a round.
    """
    raw = json.loads(file.read_text())
    rows = [(float(when), sample) for when, sample in raw["telemetry"]]
    report, within = raw["report"], (rows[0][0], rows[-1][0])
    known = reference_for(references, str(report.get("device", {}).get("name", "")))
    sound: list[Any] = []
    problems: list[str] = []
    for each in report.get(what, []):
        try:
            problem = problem_of(each, raw, within, known)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            problem = f"is damaged: {type(error).__name__}: {error}"
        if problem:
            problems.append(problem)
        else:
            sound.append(each)
    if problems:
        raw["problem"] = f"is invalid: {problems[0]}"
    return raw, rows, sound, bool(problems)


def read_round(file: Path, references: Sequence[Reference] = ()) -> Round:
    """Read a round from its JSON file."""
    raw, rows, cases, invalid = _opened(file, "cases", references, _case_problem)
    return Round(
        killed=raw["killed"],
        measurements=tuple(_measurement(each, raw, rows) for each in cases),
        **_launch(raw, rows, [each["window"] for each in cases], file, invalid=invalid),
    )


def _launch(
    raw: Mapping[str, Any],
    rows: Sequence[tuple[float, Sample]],
    windows: Sequence[Mapping[str, Any]],
    file: Path,
    *,
    invalid: bool,
) -> dict[str, Any]:
    """Fields of a launch, whatever ran; `windows` have start, end and the arm's seconds of processors."""
    report, spans = raw["report"], [(each["start"], each["end"]) for each in windows]
    passed = sum(end - start for start, end in spans)
    own = sum(each["cpu_seconds"] for each in windows) / passed if passed else None
    return {
        "slot": Slot(**raw["slot"]),
        **{name: raw[name] for name in ("launch", "started", "seconds", "problem")},
        "invalid": invalid,
        "checks": tuple(Check(**each) for each in report.get("checks", [])),
        "telemetry": summarise(rows, spans, own),
        "environment": {name: report[name] for name in ENVIRONMENT if name in report},
        "samples": tuple((round(when - rows[0][0], 3), sample) for when, sample in rows),
        "file": str(file),
    }


def _case_problem(
    case: Mapping[str, Any], raw: Mapping[str, Any], within: tuple[float, float], known: Reference | None
) -> str:
    """Say why a case of a burn-in cannot be as it is told."""
    window, name = case["window"], Case(dtype=case["dtype"], size=case["size"], layout=case["layout"])
    problem = window_problem(case["warmup"]["start"], window["start"], window["end"], window["ticks"], within)
    problem = problem or number_problem(*(value for tick in case["warmup"]["ticks"] for value in tick))
    problem = problem or number_problem(window["cpu_seconds"], least=-1e-9)
    if not problem:
        seconds, calls = (math.fsum(values) for values in zip(*window["ticks"], strict=True))
        rate = case["flops"] * calls / seconds
        problem = rate_problem(case["dtype"], rate, raw["device"], raw["report"], known)
    return problem and f"{name}: {problem}"


def _figure_problem(
    figure: Mapping[str, Any], raw: Mapping[str, Any], within: tuple[float, float], known: Reference | None
) -> str:
    """Say why a figure of the suite cannot be as it is told."""
    work = Work(**{each["name"]: each for each in raw["report"]["works"]}[figure["work"]])
    own = [(figure["seconds"], figure["count"])]
    times = figure["warmup"], figure["start"], figure["end"]
    problem = window_problem(*times, own, within, waits=work.operation in LINKS)
    problem = problem or number_problem(*figure["calls"])
    problem = problem or number_problem(figure["cpu_seconds"], *figure["peak"].values(), least=-1e-9)
    if not problem and not math.isclose(figure["rate"], work.amount * figure["count"] / figure["seconds"]):
        problem = f"a rate of {figure['rate']:.4g} {work.unit} is not what was done in the time it took"
    if not problem and work.flops:
        faster = WINOGRAD if work.operation in ("convolution", "model") else 1.0
        rate = work.flops * figure["rate"] / work.amount / faster
        problem = rate_problem(work.dtype, rate, raw["device"], raw["report"], known)
    return problem and f"{work.name}: {problem}"


def _measurement(
    case: Mapping[str, Any], raw: Mapping[str, Any], rows: Sequence[tuple[float, Sample]]
) -> Measurement:
    flops, window = case["flops"], case["window"]
    begin = case["warmup"]["start"]
    seconds = sum(took for took, _ in window["ticks"])
    timed = _series(window["ticks"], flops, window["start"] - begin)
    rates = [rate for _, rate in timed]
    clocks = between(rows, "clock_mhz", window["start"], window["end"])
    share = window["cpu_seconds"] / ((window["end"] - window["start"]) * raw["threads"])
    return Measurement(
        case=Case(dtype=case["dtype"], size=case["size"], layout=case["layout"]),
        rate=flops * sum(calls for _, calls in window["ticks"]) / seconds,
        cv=variation(rates),
        drop=drop(rates),
        steady=case["warmup"]["steady"] and _clock_still(case, raw["device"], rows),
        busy=share if raw["device"] == "cpu" else None,
        clock_mhz=mean_of(rows, "clock_mhz", window["start"], window["end"]),
        clock_cv=variation(clocks) if len(clocks) > 2 else None,
        watts=mean_of(rows, "watts", window["start"], window["end"]),
        span=(begin - rows[0][0], window["end"] - rows[0][0]),
        warmup=_series(case["warmup"]["ticks"], flops, 0.0),
        window=timed,
    )


def _clock_still(case: Mapping[str, Any], device: str, rows: Sequence[tuple[float, Sample]]) -> bool:
    """Return whether the GPU's clock moved by at most CLOCK_STILL MHz in warm-up's last three ticks."""
    if device != "cuda":
        return True
    end = case["window"]["start"]
    begin = end - sum(seconds for seconds, _ in case["warmup"]["ticks"][-3:])
    clocks = between(rows, "clock_mhz", begin, end)
    return not clocks or max(clocks) - min(clocks) <= CLOCK_STILL


def _series(ticks: Sequence[tuple[float, int]], flops: float, begin: float) -> tuple[Tick, ...]:
    now, found = begin, []
    for seconds, calls in ticks:
        now += seconds
        found.append((now, flops * calls / seconds))
    return tuple(found)


def read_suite_round(file: Path, references: Sequence[Reference] = ()) -> BenchRound:
    """Read a round from its JSON file."""
    raw, rows, figures, invalid = _opened(file, "figures", references, _figure_problem)
    return BenchRound(
        figures=tuple(_figure(each, rows) for each in figures),
        **_launch(raw, rows, figures, file, invalid=invalid),
    )


def _figure(raw: Mapping[str, Any], rows: Sequence[tuple[float, Sample]]) -> Figure:
    begin, watts = rows[0][0], mean_of(rows, "watts", raw["start"], raw["end"])
    energy = {} if watts is None else {JOULES: watts / raw["rate"]}
    return Figure(
        work=raw["work"],
        rate=raw["rate"],
        calls=tuple(raw["calls"]),
        span=(raw["warmup"] - begin, raw["end"] - begin),
        steady=raw["steady"],
        peak=raw["peak"],
        facts={**raw["facts"], **energy},
    )


def works_of(files: Iterable[str]) -> tuple[Work, ...]:
    """Return all cases that the rounds in `files` tell of, each once, in their order."""
    found: dict[str, Work] = {}
    for file in files:
        for raw in json.loads(Path(file).read_text())["report"].get("works", []):
            found.setdefault(raw["name"], Work(**raw))
    return tuple(found.values())
