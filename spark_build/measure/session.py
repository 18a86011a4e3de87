"""Run a burn-in."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import math
import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from spark_build.environments.create import install
from spark_build.errors import HostError, RecipeError, UsageError, ours, pip_install
from spark_build.events import BurnInFinished, BurnInStarted, Emit, Gate, Note
from spark_build.files import locked, remove_tree, write_atomically
from spark_build.journal import new_run
from spark_build.measure.arms import (
    baseline_arm,
    container_arm,
    control_of,
    derived_arm,
    environment_arm,
    toml_of,
)
from spark_build.measure.checks import check_recipes
from spark_build.measure.gates import judge
from spark_build.measure.model import (
    SCALED,
    Arm,
    BurnIn,
    Case,
    Check,
    CommonSettings,
    Device,
    Launch,
    Mode,
    Reference,
    Role,
    Round,
    Settings,
    burn_in_json,
)
from spark_build.measure.request import LAYOUTS, ArmWish, BurnInRequest, MeasureRequest
from spark_build.measure.rounds import Program, burn_in_program, name_kernels, run_rounds
from spark_build.measure.statistics import balanced_order
from spark_build.measure.telemetry import ArmMonitor, prepare_memory, probes_for
from spark_build.measure.verdict import (
    LEAST_PAIRS,
    NARROW,
    assess,
    compare_cases,
    name_headline,
    narrow_enough,
    parse_reference,
    reference_for,
)
from spark_build.paths import Home, path_given
from spark_build.recipes.model import Recipe
from spark_build.text import digest
from spark_build.venv import compile_packages
from spark_build.wheelhouse.generations import Generation

PUBLIC, WHEELHOUSE = ArmWish(name="public", what="public"), ArmWish(name="wheelhouse", what="wheelhouse")


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasureSite:
    """The place of a measurement: the wheelhouse's current generation, if there is one, and its train."""

    home: Home
    train: str
    generation: Generation | None
    emit: Emit


def measure_burn_in(
    site: MeasureSite, wish: BurnInRequest, recipes: Mapping[str, Recipe], checks: Sequence[Check]
) -> BurnIn:
    """Burn in the arms; without any named, the generation against the train's public wheels.

    Without torch in the wheelhouse there is nothing to compare: the A/A control then says how small
    a difference this machine could tell. An unfinished run of the same wish is taken up again.
    """
    script, references = script_of(site.home, "gemm"), references_of(site.home)
    with resumed(site, wish, "burn-in") as (folder, seed, begun):
        settings = plan_burn_in(replace(wish, seed=seed), script)
        arms = _arms(site, folder, wish)
        lock = begun(settings.seed)
        battery = _battery(site, recipes, arms, folder, wish.mode) if wish.arm else ()
        everything = (*checks, *battery)
        return burn_in(
            settings, arms, folder, site.emit, checks=everything, references=references, keep=(lock,)
        )


def script_of(home: Home, name: str) -> Path:
    """Return the script that runs inside the arms. Raises RecipeError for a damaged installation."""
    script = home.find(f"bench/{name}.py")
    if script is None:
        raise RecipeError(f"there is no bench/{name}.py", hint="reinstall spark-build")
    return script


def _arms(site: MeasureSite, folder: Path, wish: BurnInRequest) -> list[Arm]:
    """Return the arms: the baseline, the candidate, then the others."""
    usual = (PUBLIC, *((WHEELHOUSE,) if has_torch(site.generation) else ()))
    found = arms_of(site, folder, wish, usual)
    if not wish.swap:
        return found
    if len(found) != 2:
        raise UsageError("--swap needs a baseline and a candidate", hint="name two arms with --arm")
    first, second = found
    return [first, second, derived_arm(first, second, wish.swap), derived_arm(second, first, wish.swap)]


def arms_of(site: MeasureSite, folder: Path, wish: MeasureRequest, usual: Sequence[ArmWish]) -> list[Arm]:
    """Return the environments asked for, made where they are missing. Raises UsageError."""
    roles: tuple[Role, ...] = ("baseline", "candidate", "variant")
    found: list[Arm] = []
    for each in wish.arms or usual:
        arm = _arm(site, folder, wish.computes, each)
        given = {**({"threads": each.threads} if each.threads else {}), **each.env}
        origin = arm.origin + "".join(f", {name}={value}" for name, value in given.items())
        role, env = roles[min(len(found), 2)], {**arm.env, **each.env}
        found.append(replace(arm, name=each.name, role=role, threads=each.threads, env=env, origin=origin))
    return found


def _arm(site: MeasureSite, folder: Path, device: Device, wish: ArmWish) -> Arm:
    if wish.image:
        return container_arm(wish.name, wish.image)
    if wish.what == "public":
        place = site.home.runs / "arms" / f"public-{site.train}-{device}"
        return baseline_arm(site.home, site.train, place, site.emit, device=device)
    if wish.what != "wheelhouse":
        return environment_arm(wish.name, path_given(wish.what, f"--arm {wish.name}"))
    if site.generation is None or not has_torch(site.generation):
        raise UsageError("the wheelhouse holds no torch to measure", hint=ours("build torch"))
    environment = folder / "wheelhouse-env"
    remove_tree(environment)
    install(site.generation, environment, ["torch"], with_pip=False)
    compile_packages(environment)
    return environment_arm(wish.name, environment, origin=f"wheelhouse generation {site.generation.number}")


def has_torch(generation: Generation | None) -> bool:
    """Return whether there is a torch of ours to measure."""
    return generation is not None and any(wheel.name == "torch" for wheel in generation.built())


def _battery(
    site: MeasureSite, recipes: Mapping[str, Recipe], arms: Sequence[Arm], folder: Path, mode: Mode
) -> tuple[Check, ...]:
    """Return operator checks of what the candidate holds; the wheelhouse's own were run by `verify`.

    A quick burn-in runs only the first script of each package, which take seconds.
    """
    arm = next((each for each in arms if each.role == "candidate"), arms[0])
    if arm.image or arm.origin.startswith("wheelhouse"):
        return ()
    site.emit(Note(message=f"checking the operators of {arm.name}"))
    held = {name: recipe for name, recipe in recipes.items() if recipe.distribution in arm.versions}
    most = 1 if mode == "quick" else None
    return check_recipes(site.home, held, Path(arm.python), folder / "battery", most)


def references_of(home: Home) -> list[Reference]:
    """One's own first (wheelhouse/reference/), then the shipped ones. Raises UsageError."""
    folders = [home.wheelhouse / "reference", *(base / "bench" / "reference" for base in home.data)]
    files = [file for folder in folders for file in sorted(folder.glob("*.toml"))]
    return [parse_reference(toml_of(file), str(file)) for file in files]


@contextlib.contextmanager
def resumed(
    site: MeasureSite, wish: MeasureRequest, what: str
) -> Iterator[tuple[Path, int | None, Callable[[int], int]]]:
    """Yield folder and seed of the run of this wish that was interrupted, else of a new one.

    The third keeps the seed: from then on until the block ends well, the same wish is taken up again. It
    returns the descriptor of the folder's lock. A run that is still measuring is waited for.
    """
    number = None if site.generation is None else str(site.generation.folder)
    named = digest([site.train, number, asdict(replace(wish, seed=None))])[:12]
    unfinished = site.home.runs / f"unfinished-{what}-{named}.json"
    with contextlib.ExitStack() as held:

        def hold(folder: Path) -> int:
            return held.enter_context(locked(folder / ".lock", purpose=f"the {what} of {folder.name}"))

        lock: int | None = None
        while found := _unfinished(unfinished, wish.seed):
            lock = hold(found[0])
            if _unfinished(unfinished, wish.seed) == found:
                site.emit(Note(message=f"going on with the {what} of {found[0].name}"))
                break
            held.close()  # it ended while we waited
            lock = None
        place, seed = found or (new_run(site.home.runs), wish.seed)

        def begun(kept: int) -> int:
            # Nobody else knows a new folder before: what is refused until then leaves none.
            own = hold(place) if lock is None else lock
            write_atomically(unfinished, json.dumps({"folder": str(place), "seed": kept}))
            return own

        yield place, seed, begun
        unfinished.unlink(missing_ok=True)


def _unfinished(file: Path, seed: int | None) -> tuple[Path, int] | None:
    """Return folder and seed of the unfinished run in a file; None where another seed is asked for."""
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
        known = json.loads(file.read_text())
        if Path(known["folder"]).is_dir() and seed in (None, int(known["seed"])):
            return Path(known["folder"]), int(known["seed"])
    return None


NO_FP16 = "FP16 is left out: a CPU computes it at 1 GFLOP/s or less, which says nothing about a build"
QUICK_PAIRS, MOST_PAIRS = 6, 20
SWEEP = {"cpu": (256, 512, 1024, 2048), "cuda": (1024, 2048, 4096, 8192, 16384)}
START = 6.0  # seconds of a round before its first warm-up: Python, torch, the checks
# warm-up, window, tick in seconds; sizes
PROTOCOL: dict[tuple[Device, Mode], tuple[float, float, float, tuple[int, ...]]] = {
    ("cpu", "quick"): (1.0, 2.5, 0.25, (1024,)),
    ("cpu", "full"): (5.0, 15.0, 1.0, (2048,)),
    ("cuda", "quick"): (5.0, 10.0, 0.5, (8192,)),
    ("cuda", "full"): (20.0, 60.0, 1.0, (8192,)),
}


def plan_burn_in(wish: BurnInRequest, script: Path) -> Settings:
    """Return a run's settings with its headline case; a random seed unless one is given.

    Raises UsageError for FP16 on a CPU, or for a full run of fewer than ten pairs.
    """
    mode, device = wish.mode, wish.computes
    if device == "cpu" and {"fp16", "tf32", "fp4"} & set(wish.dtype):
        raise UsageError(NO_FP16, hint="burn in fp32 and bf16 here")
    warmup, window, tick, usual = PROTOCOL[device, mode]
    chosen = wish.dtype or (("fp32", "bf16") if device == "cpu" else ("fp16", "bf16"))
    cases = tuple(
        Case(dtype=dtype, size=size, layout=layout)
        for dtype in dict.fromkeys(chosen)
        for size in dict.fromkeys(SWEEP[device] if wish.sweep else wish.size or usual)
        for layout in (("scaled",) if dtype in SCALED else LAYOUTS[wish.layout or "ab"])
    )
    return Settings(
        **common_settings(wish, script, warmup, window),
        cases=cases,
        headline=name_headline(device, cases),
        pairs=_enough(mode, wish.rounds),
        most=0 if wish.rounds or mode == "quick" else MOST_PAIRS,
        tick=min(tick, (wish.duration or window) / 5),
        notes=(NO_FP16,) if device == "cpu" else (),
    )


def common_settings(wish: MeasureRequest, script: Path, warmup: float, window: float) -> dict[str, Any]:
    """Return the settings of any program; a random seed unless one is given."""
    window = wish.duration or window
    return {
        "mode": wish.mode,
        "device": wish.computes,
        "seed": secrets.randbelow(2**31) if wish.seed is None else wish.seed,
        "threads": len(os.sched_getaffinity(0)),
        "warmup": min(warmup, window),
        "window": window,
        "script": str(script.absolute()),
        "patience": wish.patience,
    }


def _enough(mode: Mode, pairs: int | None) -> int:
    least = 2 if mode == "quick" else LEAST_PAIRS
    count = pairs or (QUICK_PAIRS if mode == "quick" else LEAST_PAIRS)
    if count < least:
        raise UsageError(f"{count} pairs are too few for a {mode} run", hint=f"take {least} or more")
    return count


def burn_in(
    settings: Settings,
    arms: Sequence[Arm],
    folder: Path,
    emit: Emit,
    *,
    checks: Sequence[Check] = (),
    references: Sequence[Reference] = (),
    keep: Sequence[int] = (),
) -> BurnIn:
    """Measure the arms (a baseline, perhaps a candidate; the A/A control is added) and judge.

    Leaves rounds, burn-in.json and report.html in `folder`; run again with the same settings it
    goes on where it stopped. `checks` of the operator battery count in the verdict; `keep`: descriptors of
    locks, which last as long as what runs.
    """
    require_packages("a burn-in")
    everyone = _with_control(arms)
    order = balanced_order([arm.name for arm in everyone], settings.pairs, settings.seed, settings.most)
    told = (*settings.notes, *prepare_memory(settings.device))
    for note in (*told, *_expected(settings, len(everyone))):
        emit(Note(message=note))
    if any(check.status == "fail" for check in checks):
        emit(Note(message="an operator check failed: no round is measured, speed would not matter"))
        order = ()
    program = _program(settings, everyone, len(order), references, emit)
    rounds, breaks = run_rounds(program, everyone, order, folder, emit, keep=keep)
    emit(BurnInFinished())
    planned = len(rounds) if rounds and narrow_enough(settings, everyone, rounds) else len(order)
    kernels = {}
    if settings.device == "cuda" and rounds and len(rounds) == planned:
        kernels = name_kernels(settings, everyone, folder, keep=keep)
    result = replace(
        _judged(settings, everyone, planned, rounds, breaks, checks, references),
        notes=told,
        kernels=kernels,
        folder=str(folder),
        report=str(folder / "report.html"),
    )
    from spark_build.measure.report.burn_in_report import burn_in_report

    write_atomically(folder / "burn-in.json", json.dumps(burn_in_json(result, raw=True)))
    report = burn_in_report(result)
    write_atomically(folder / "report.md", report.markdown())
    write_atomically(folder / "report.html", report.html())
    return result


def _judged(
    settings: Settings,
    arms: tuple[Arm, ...],
    planned: int,
    rounds: tuple[Round, ...],
    breaks: tuple[str, ...],
    checks: Sequence[Check],
    references: Sequence[Reference],
) -> BurnIn:
    scope = _scope(settings, rounds)
    known = reference_for(references, scope.get("device", ""))
    verdict, cases, gates = assess(settings, arms, planned, rounds, breaks, checks, known)
    return BurnIn(
        settings=settings,
        arms=arms,
        verdict=verdict,
        cases=cases,
        gates=gates,
        rounds=rounds,
        breaks=breaks,
        reference=known,
        checks=tuple(checks),
        scope=scope,
    )


def _round_seconds(settings: Settings) -> float:
    """Return the least seconds of a round."""
    return len(settings.cases) * (settings.warmup + settings.window) + START


def _expected(settings: Settings, arms: int) -> list[str]:
    """Return what is going to be measured and what ends it, stated before so that no result decides it."""
    each, rounds = _round_seconds(settings), settings.pairs * arms
    said = [f"{rounds} rounds of about {each:.0f} s: {rounds * each / 60:.0f} min or more"]
    if settings.most > settings.pairs:
        width = math.expm1(NARROW)
        said.append(
            f"then more, until the headline's 95% interval is within {width:.1%} of its ratio, "
            f"or {settings.most} rounds of each arm are measured"
        )
    return said


def _program(
    settings: Settings, arms: Sequence[Arm], rounds: int, references: Sequence[Reference], emit: Emit
) -> Program[Round]:
    """Announce the rounds; the gates are judged as if those that are there were all."""

    def stand(done: Sequence[Round]) -> tuple[Gate, ...]:
        known = reference_for(references, _scope(settings, done).get("device", ""))
        return judge(settings, len(done), done, compare_cases(settings, arms, done), (), known, arms)

    emit(
        BurnInStarted(
            arms=tuple(arm.name for arm in arms),
            headline=str(settings.headline),
            rounds=rounds,
            warmup=settings.warmup,
            window=settings.window,
            round_seconds=_round_seconds(settings),
        )
    )
    return replace(
        burn_in_program(settings, references),
        enough=lambda done: narrow_enough(settings, arms, done),
        watch=ArmMonitor({f"{c.dtype}:{c.size}:{c.layout}": str(c) for c in settings.cases}, stand, emit),
    )


def require_packages(what: str) -> None:
    """Raise HostError where the extra `verify` is not installed: now, not after minutes of measuring."""
    missing = [name for name in ("scipy", "matplotlib") if importlib.util.find_spec(name) is None]
    if missing:
        raise HostError(f"{what} needs {' and '.join(missing)}", hint=pip_install("spark-build[verify]"))


def _with_control(arms: Sequence[Arm]) -> tuple[Arm, ...]:
    (base,) = (arm for arm in arms if arm.role == "baseline")
    control = () if any(arm.role == "control" for arm in arms) else (control_of(base),)
    everyone = (*arms, *control)
    if len({arm.name for arm in everyone}) != len(everyone):
        raise UsageError(f"arms need different names: {', '.join(arm.name for arm in everyone)}")
    return everyone


def scope_of(settings: CommonSettings, rounds: Sequence[Launch]) -> dict[str, str]:
    """Return what figures hold for: device, driver or kernel, threads."""
    scope: dict[str, str] = {}
    for probe in probes_for(settings.device):
        scope |= probe.scope()
    told = [each.environment["device"] for each in rounds if "device" in each.environment]
    # Without NVML torch must say what it computes on.
    if settings.device == "cuda" and "driver" not in scope and told:
        scope["device"] = str(told[0].get("name", scope["device"]))
    return {**scope, "threads": str(settings.threads)}


def _scope(settings: Settings, rounds: Sequence[Round]) -> dict[str, str]:
    """Return what a verdict holds for: also dtype, shape, layout."""
    case = settings.headline
    own = {"dtype": case.dtype, "shape": f"{case.size}^3", "layout": case.product}
    return scope_of(settings, rounds) | own
