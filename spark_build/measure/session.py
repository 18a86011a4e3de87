"""A burn-in from what was asked for: its arms, its folder, and going on after an interruption."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from spark_build.environments.create import install
from spark_build.errors import RecipeError, UsageError
from spark_build.events import Emit, Note
from spark_build.files import remove_tree, write_atomically
from spark_build.journal import new_run
from spark_build.measure import burnin
from spark_build.measure.arms import baseline_arm, derived_arm, environment_arm, in_role
from spark_build.measure.armspec import ArmWish
from spark_build.measure.battery import run_checks
from spark_build.measure.checks import scripts_of
from spark_build.measure.containers import container_arm
from spark_build.measure.model import Arm, BurnIn, Check, Device, Mode, Reference, Role
from spark_build.measure.reference import parse_reference
from spark_build.paths import Home
from spark_build.recipes.model import Recipe
from spark_build.wheelhouse.generations import Generation

PUBLIC, WHEELHOUSE = ArmWish(name="public", what="public"), ArmWish(name="wheelhouse", what="wheelhouse")


@dataclass(frozen=True, kw_only=True, slots=True)
class Wish:
    """What the command line asks for; empty or None: what the mode and device usually have."""

    device: Device
    mode: Mode
    arms: tuple[ArmWish, ...] = ()
    swap: str = ""  # a library to swap between the first two arms
    seed: int | None = None
    dtypes: tuple[str, ...] = ()
    sizes: tuple[int, ...] = ()
    layouts: tuple[str, ...] = ("ab",)
    pairs: int | None = None
    window: float | None = None
    patience: float | None = None


def measure(
    home: Home,
    train: str,
    generation: Generation | None,
    emit: Emit,
    *,
    recipes: Mapping[str, Recipe],
    checks: Sequence[Check],
    wish: Wish,
) -> BurnIn:
    """Burn in the arms; without any named, the generation against the train's public wheels.

    Without torch in the wheelhouse there is nothing to compare: the A/A control then says how small
    a difference this machine could tell. An unfinished run of the same wish is taken up again.
    """
    script = home.find("bench/gemm.py")
    if script is None:
        raise RecipeError("there is no bench/gemm.py", hint="reinstall spark-build")
    references = references_of(home)
    unfinished = home.runs / f"unfinished-{_digest(train, generation, wish)}.json"
    folder, seed = resume(unfinished, wish.seed)
    if folder is not None:
        emit(Note(message=f"going on with the burn-in of {folder.name}"))
    folder = folder or new_run(home.runs)
    settings = burnin.plan(
        wish.mode, wish.device, script, seed=seed, dtypes=wish.dtypes, sizes=wish.sizes,
        layouts=wish.layouts, pairs=wish.pairs, window=wish.window, patience=wish.patience,
    )  # fmt: skip
    arms = _arms(home, train, generation, folder, emit, wish)
    write_atomically(unfinished, json.dumps({"folder": str(folder), "seed": settings.seed}))
    everything = (
        (*checks, *_battery(home, recipes, arms, folder, emit, wish.mode)) if wish.arms else tuple(checks)
    )
    result = burnin.burn_in(settings, arms, folder, emit, checks=everything, references=references)
    unfinished.unlink(missing_ok=True)
    return result


def _arms(
    home: Home, train: str, generation: Generation | None, folder: Path, emit: Emit, wish: Wish
) -> list[Arm]:
    """The baseline first, then the candidate, then whatever else is measured beside them."""
    wishes = wish.arms or (PUBLIC, *((WHEELHOUSE,) if has_torch(generation) else ()))
    found = arms_of(home, train, generation, folder, emit, wish.device, wishes)
    if not wish.swap:
        return found
    if len(found) != 2:
        raise UsageError("--swap needs a baseline and a candidate", hint="name two arms with --arm")
    first, second = found
    return [first, second, derived_arm(first, second, wish.swap), derived_arm(second, first, wish.swap)]


def arms_of(
    home: Home,
    train: str,
    generation: Generation | None,
    folder: Path,
    emit: Emit,
    device: Device,
    wishes: Sequence[ArmWish],
) -> list[Arm]:
    """The environments that were wished for, made where they are not there. Raises UsageError."""
    roles: tuple[Role, ...] = ("baseline", "candidate", "variant")
    found: list[Arm] = []
    for each in wishes:
        arm = _arm(home, train, generation, folder, emit, device, each)
        given = {**({"threads": each.threads} if each.threads else {}), **each.env}
        origin = arm.origin + "".join(f", {name}={value}" for name, value in given.items())
        named = replace(arm, name=each.name, threads=each.threads, env={**arm.env, **each.env}, origin=origin)
        found.append(in_role(named, roles[min(len(found), 2)]))
    return found


def _arm(
    home: Home,
    train: str,
    generation: Generation | None,
    folder: Path,
    emit: Emit,
    device: Device,
    wish: ArmWish,
) -> Arm:
    if wish.image:
        return container_arm(wish.name, wish.image)
    if wish.what == "public":
        return baseline_arm(home, train, home.runs / "arms" / f"public-{train}-{device}", emit, device=device)
    if wish.what != "wheelhouse":
        return environment_arm(wish.name, Path(wish.what).expanduser())
    if generation is None or not has_torch(generation):
        raise UsageError("the wheelhouse holds no torch to measure", hint="spark-build build torch")
    environment = folder / "wheelhouse-env"
    remove_tree(environment)
    install(generation, environment, ["torch"], with_pip=False)
    return environment_arm(wish.name, environment, origin=f"wheelhouse generation {generation.number}")


def has_torch(generation: Generation | None) -> bool:
    """Whether there is a torch of ours to measure."""
    return generation is not None and any(wheel.name == "torch" for wheel in generation.built())


def _battery(
    home: Home, recipes: Mapping[str, Recipe], arms: Sequence[Arm], folder: Path, emit: Emit, mode: Mode
) -> tuple[Check, ...]:
    """Operator checks of what the candidate holds; the wheelhouse's own were run by `verify`.

    A quick burn-in runs only the first script of each package, which take seconds.
    """
    arm = next((each for each in arms if each.role == "candidate"), arms[0])
    if arm.image or arm.origin.startswith("wheelhouse"):
        return ()
    emit(Note(message=f"checking the operators of {arm.name}"))
    python, work = Path(arm.python), folder / "battery"
    found: list[Check] = []
    for name, recipe in recipes.items():
        if recipe.distribution in arm.versions:
            scripts = scripts_of(home, recipes, name)
            chosen = scripts[:1] if mode == "quick" else scripts
            found += run_checks(python=python, scripts=chosen, work=work, package=name)
    return tuple(found)


def references_of(home: Home) -> list[Reference]:
    """One's own first (wheelhouse/reference/), then the shipped ones. Raises UsageError."""
    folders = [home.wheelhouse / "reference", *(base / "bench" / "reference" for base in home.data)]
    files = [file for folder in folders for file in sorted(folder.glob("*.toml"))]
    found = []
    for file in files:
        try:
            raw = tomllib.loads(file.read_text())
        except (OSError, ValueError) as error:
            raise UsageError(f"not TOML: {error}", where=str(file)) from error
        found.append(parse_reference(raw, str(file)))
    return found


def _digest(train: str, generation: Generation | None, wish: Wish) -> str:
    """Names one wish about one generation, whatever its seed."""
    number = None if generation is None else str(generation.folder)
    facts = [train, number, asdict(replace(wish, seed=None))]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:12]


def resume(unfinished: Path, seed: int | None) -> tuple[Path | None, int | None]:
    """(folder, seed) of a run that was interrupted; (None, `seed`) to begin a new one."""
    try:
        known = json.loads(unfinished.read_text())
        folder, known_seed = Path(known["folder"]), int(known["seed"])
    except (OSError, ValueError, KeyError):
        return None, seed
    if not folder.is_dir() or seed not in (None, known_seed):
        return None, seed
    return folder, known_seed
