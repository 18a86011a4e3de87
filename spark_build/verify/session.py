"""A burn-in of one generation: its arms, its folder, and going on after an interruption."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from spark_build.errors import RecipeError
from spark_build.host.files import remove_tree, write_atomically
from spark_build.host.home import Home
from spark_build.host.install import install
from spark_build.host.journal import new_run
from spark_build.host.wheelhouse import Generation
from spark_build.model.event import Emit, Note
from spark_build.model.verification import Arm, BurnIn, Check, Device, Mode
from spark_build.verify import burnin
from spark_build.verify.arms import baseline_arm, candidate, environment_arm


def measure(
    home: Home,
    train: str,
    generation: Generation,
    emit: Emit,
    *,
    checks: Sequence[Check],
    device: Device,
    mode: Mode,
    seed: int | None,
) -> BurnIn:
    """Burn in the generation against the train's public wheels.

    Without torch in the wheelhouse there is nothing to compare: the A/A control then says how small
    a difference this machine could tell. An unfinished run of the same mode is taken up again.
    """
    script = home.find("bench/gemm.py")
    if script is None:
        raise RecipeError("there is no bench/gemm.py", hint="reinstall spark-build")
    unfinished = generation.folder.parent.parent / f"burn-in-{generation.number}-{mode}.json"
    folder, known_seed = _resume(unfinished, seed)
    if folder is not None:
        emit(Note(message=f"going on with the burn-in of {folder.name}"))
    folder = folder or new_run(home.runs)
    arms = [baseline_arm(home, train, home.runs / "arms" / f"public-{train}-{device}", emit, device=device)]
    if any(wheel.name == "torch" for wheel in generation.built()):
        arms.append(_wheelhouse_arm(generation, folder))
    settings = burnin.plan(mode, device, script, seed=known_seed)
    write_atomically(unfinished, json.dumps({"folder": str(folder), "seed": settings.seed}))
    result = burnin.burn_in(settings, arms, folder, emit, checks=checks)
    unfinished.unlink(missing_ok=True)
    return result


def _resume(unfinished: Path, seed: int | None) -> tuple[Path | None, int | None]:
    """(folder, seed) of a run that was interrupted; (None, `seed`) to begin a new one."""
    try:
        known = json.loads(unfinished.read_text())
        folder, known_seed = Path(known["folder"]), int(known["seed"])
    except (OSError, ValueError, KeyError):
        return None, seed
    if not folder.is_dir() or seed not in (None, known_seed):
        return None, seed
    return folder, known_seed


def _wheelhouse_arm(generation: Generation, folder: Path) -> Arm:
    """A fresh environment with the wheelhouse's torch."""
    environment = folder / "wheelhouse-env"
    remove_tree(environment)
    install(generation, environment, ["torch"], with_pip=False)
    origin = f"wheelhouse generation {generation.number}"
    return candidate(environment_arm("wheelhouse", environment, origin=origin))
