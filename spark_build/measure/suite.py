"""The wider suite from what was asked for to bench.json."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import secrets
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from spark_build.errors import RecipeError, UsageError
from spark_build.events import Emit, Note
from spark_build.files import locked, write_atomically
from spark_build.journal import new_run
from spark_build.measure import bench_report, session
from spark_build.measure.armspec import ArmWish
from spark_build.measure.bench import Bench, BenchRound, BenchSettings
from spark_build.measure.cooling import cool_down, thermometer
from spark_build.measure.model import Arm, Device, Mode
from spark_build.measure.order import block_order
from spark_build.measure.reference import reference_for
from spark_build.measure.rounds import Program, run_rounds
from spark_build.measure.suite_reading import read_round, works_of
from spark_build.measure.telemetry import prepare_memory, probes_for
from spark_build.paths import Home
from spark_build.wheelhouse.generations import Generation

ROUNDS = {"quick": 1, "full": 3}  # of each arm; with several arms a quick run has two
# warm-up and window of one case, in seconds
PROTOCOL: dict[tuple[Device, Mode], tuple[float, float]] = {
    ("cpu", "quick"): (0.2, 0.4),
    ("cpu", "full"): (5.0, 30.0),
    ("cuda", "quick"): (0.5, 1.0),
    ("cuda", "full"): (5.0, 30.0),
}
START = 120.0  # seconds until the first case of a workload, or for a model to be compiled
MOST_CASES = 60  # of one workload, for the last resort against a script that hangs
PRELUDE = "prelude.run"  # of the script: that the device can be used at all
SCRIPTS = ("*.py", "workloads/*.py")


@dataclass(frozen=True, kw_only=True, slots=True)
class Wish:
    """What the command line asks for; empty or None: what the mode and device usually have."""

    device: Device
    mode: Mode
    workloads: tuple[str, ...] = ()
    arms: tuple[ArmWish, ...] = ()
    seed: int | None = None
    pairs: int | None = None
    window: float | None = None
    cool: float | None = None
    patience: float | None = None
    inject: str = ""


def script_of(home: Home) -> Path:
    """What runs inside the arms. Raises RecipeError when the installation is damaged."""
    script = home.find("bench/suite.py")
    if script is None:
        raise RecipeError("there is no bench/suite.py", hint="reinstall spark-build")
    return script


def workloads_of(script: Path) -> dict[str, str]:
    """Name -> what it is, as its file says it; read, not imported: torch is not here."""
    files = sorted((script.parent / "workloads").glob("[!_]*.py"))
    return {file.stem: (ast.get_docstring(ast.parse(file.read_text())) or "") for file in files}


def plan(wish: Wish, script: Path) -> BenchSettings:
    """Settings of a run. Raises UsageError for a workload that does not exist."""
    known = workloads_of(script)
    if unknown := [name for name in wish.workloads if name not in known]:
        raise UsageError(f"no workload {unknown[0]!r}", hint=f"there are {', '.join(known)}")
    warmup, window = PROTOCOL[wish.device, wish.mode]
    window = wish.window or window
    several = 2 if len(wish.arms) > 1 else 1
    return BenchSettings(
        mode=wish.mode,
        device=wish.device,
        workloads=tuple(dict.fromkeys(wish.workloads)) or tuple(known),
        pairs=wish.pairs or max(several, ROUNDS[wish.mode]),
        seed=secrets.randbelow(2**31) if wish.seed is None else wish.seed,
        threads=len(os.sched_getaffinity(0)),
        warmup=min(warmup, window),
        window=window,
        cool=wish.cool,
        script=str(script.absolute()),
        patience=wish.patience,
        inject=wish.inject,
    )


def arms_of(
    home: Home, train: str, generation: Generation | None, folder: Path, emit: Emit, wish: Wish
) -> list[Arm]:
    """The arms that were asked for; without any, the wheelhouse's environment or else the public one."""
    own = session.WHEELHOUSE if session.has_torch(generation) else session.PUBLIC
    return session.arms_of(home, train, generation, folder, emit, wish.device, wish.arms or (own,))


def measure(home: Home, train: str, generation: Generation | None, emit: Emit, wish: Wish) -> Bench:
    """Run the suite in the arms and leave its pages in a folder of `home.runs`.

    An unfinished run of the same wish is taken up again.
    """
    script = script_of(home)
    references = session.references_of(home)
    unfinished = home.runs / f"unfinished-bench-{_digest(train, generation, wish)}.json"
    folder, seed = session.resume(unfinished, wish.seed)
    if folder is not None:
        emit(Note(message=f"going on with the run of {folder.name}"))
    folder = folder or new_run(home.runs)
    settings = plan(replace(wish, seed=seed), script)
    arms = arms_of(home, train, generation, folder, emit, wish)
    write_atomically(unfinished, json.dumps({"folder": str(folder), "seed": settings.seed}))
    rounds, breaks, notes = run_suite(settings, arms, folder, emit)
    scope = _scope(settings, rounds)
    result = Bench(
        settings=settings,
        arms=tuple(arms),
        works=works_of(each.file for each in rounds),
        rounds=rounds,
        breaks=breaks,
        notes=notes,
        reference=reference_for(references, scope.get("device", "")),
        scope=scope,
        folder=str(folder),
    )
    bench_report.write(result, folder)
    unfinished.unlink(missing_ok=True)
    return result


def run_suite(
    settings: BenchSettings, arms: Sequence[Arm], folder: Path, emit: Emit
) -> tuple[tuple[BenchRound, ...], tuple[str, ...], tuple[str, ...]]:
    """Rounds, what interrupted them, and what is worth knowing about them."""
    order = block_order([arm.name for arm in arms], settings.pairs, settings.seed)
    notes = [*settings.notes, *prepare_memory(settings.device)]
    for note in notes:
        emit(Note(message=note))
    read = thermometer(settings.device)

    def before() -> None:
        if settings.cool is None:
            return
        if (remark := cool_down(read, settings.cool, emit)) and remark not in notes:
            emit(Note(message=remark))
            notes.append(remark)

    waiting = "another run is going on in this folder: waiting for it"
    with locked(folder / ".lock", purpose="bench", waiting=lambda _: emit(Note(message=waiting))) as lock:
        program = program_of(settings, before)
        rounds, breaks = run_rounds(program, arms, order, folder, emit, keep=(lock,))
    return rounds, breaks, tuple(notes)


def program_of(settings: BenchSettings, before: Callable[[], None] = lambda: None) -> Program[BenchRound]:
    """The suite as rounds run it. It ends workloads that hang by itself; the limit is for all of it."""
    patience = settings.patience or START + 5 * (3 * settings.warmup + settings.window)
    options: dict[str, object] = {
        "device": settings.device,
        "workloads": ",".join(settings.workloads),
        "quick": int(settings.mode == "quick"),
        "warmup": settings.warmup,
        "window": settings.window,
        "seed": settings.seed,
        "patience": patience,
    }
    if settings.inject:
        options["inject"] = settings.inject
    return Program(
        name="bench",
        script=Path(settings.script),
        scripts=SCRIPTS,
        options=options,
        device=settings.device,
        threads=settings.threads,
        limit=START + MOST_CASES * len(settings.workloads) * patience,
        read=read_round,
        facts=asdict(settings),
        stops=_useless,
        before=before,
    )


def _useless(done: BenchRound) -> bool:
    """Whether nothing could be measured, and would not be in the next round either."""
    return any(check.name == PRELUDE and check.status == "fail" for check in done.checks)


def _scope(settings: BenchSettings, rounds: Sequence[BenchRound]) -> dict[str, str]:
    """What the figures hold for."""
    scope: dict[str, str] = {}
    for probe in probes_for(settings.device):
        scope |= probe.scope()
    told = [each.environment["device"] for each in rounds if "device" in each.environment]
    if settings.device == "cuda" and "driver" not in scope and told:
        scope["device"] = str(told[0].get("name", scope["device"]))
    return {**scope, "threads": str(settings.threads)}


def _digest(train: str, generation: Generation | None, wish: Wish) -> str:
    """Names one wish about one generation, whatever its seed."""
    number = None if generation is None else str(generation.folder)
    facts = [train, number, asdict(replace(wish, seed=None))]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:12]
