"""Functional verification of a generation: install it offline, run every recipe's checks in it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from spark_build import __version__
from spark_build.environments.create import install
from spark_build.errors import RecipeError
from spark_build.events import Emit, Note, StageFinished, StageResult, StageStarted
from spark_build.files import locked, remove_tree
from spark_build.measure.battery import run_checks
from spark_build.measure.model import Check
from spark_build.paths import Home
from spark_build.recipes.model import Recipe
from spark_build.venv import python_of
from spark_build.wheelhouse import generations
from spark_build.wheelhouse.generations import Generation
from spark_build.wheelhouse.store import read as read_entry

STAGE = "verify"


def verify(
    home: Home,
    recipes: Mapping[str, Recipe],
    generation: Generation,
    folder: Path,
    emit: Emit,
    *,
    again: bool,
) -> tuple[tuple[Check, ...], bool]:
    """(checks, were they run now?). A generation that was verified keeps its verdict unless `again`."""
    lock = generation.folder.parent.parent / "verify.lock"

    def waiting(holder: str) -> None:
        emit(Note(message=f"waiting for another spark-build: {holder}"))

    with locked(lock, purpose=f"verifying generation {generation.number}", waiting=waiting):
        known = None if again else generations.verdict_of(generation)
        if known is not None:
            return tuple(Check(**row) for row in known["checks"]), False
        start = time.monotonic()
        emit(StageStarted(recipe="", stage=STAGE))
        checks = _run(home, recipes, generation, folder)
        failed = any(check.status == "fail" for check in checks)
        result = StageResult(
            stage=STAGE, status="failed" if failed else "done", seconds=time.monotonic() - start
        )
        emit(StageFinished(recipe=f"generation {generation.number}", result=result))
        generations.write_verdict(generation, _verdict(checks))
        return checks, True


def _run(
    home: Home, recipes: Mapping[str, Recipe], generation: Generation, folder: Path
) -> tuple[Check, ...]:
    """Install into a fresh environment, prove the origin, run the recipes' check scripts."""
    environment = folder / "env"
    remove_tree(environment)
    installed = install(generation, environment, (), with_pip=False)
    origin = Check(
        name="origin",
        status="ok",
        evidence=f"installed offline, every file as in generation {generation.number}: "
        + ", ".join(installed),
    )
    built = {name: scripts_of(home, recipes, name) for name in _built_recipes(home, generation)}
    checks = [
        check
        for name, scripts in built.items()
        for check in run_checks(python=python_of(environment), scripts=scripts, work=folder, package=name)
    ]
    remove_tree(environment)
    return (origin, *checks)


def _built_recipes(home: Home, generation: Generation) -> list[str]:
    entries = (read_entry(home.store, wheel.key) for wheel in generation.built())
    return sorted({entry.recipe for entry in entries if entry is not None})


def scripts_of(home: Home, recipes: Mapping[str, Recipe], name: str) -> list[Path]:
    """The check scripts of a recipe. Raises RecipeError for one that is not there."""
    found = []
    for check in recipes[name].verify.checks if name in recipes else ():
        script = home.find(f"bench/checks/{check}.py")
        if script is None:
            raise RecipeError(f"there is no bench/checks/{check}.py", where=f"recipes/{name}.toml")
        found.append(script)
    return found


def _verdict(checks: tuple[Check, ...]) -> dict[str, Any]:
    return {
        "schema": 1,
        "spark_build": __version__,
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "checks": [asdict(one) for one in checks],
    }
