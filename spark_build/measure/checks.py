"""Verify a generation by the recipes' checks."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

from spark_build import __version__
from spark_build.environments.create import install
from spark_build.errors import RecipeError
from spark_build.events import Emit, StageFinished, StageResult, StageStarted
from spark_build.files import remove_tree
from spark_build.measure.model import Check
from spark_build.measure.telemetry import MARK
from spark_build.paths import Home
from spark_build.process import Completed, run
from spark_build.recipes.model import Recipe
from spark_build.venv import clean_environment, python_of
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
    """Return the checks and whether they ran now; a verified generation keeps its result unless `again`."""
    with generations.verifying(generation):
        known = None if again else generations.checks_of(generation)
        if known is not None:
            return tuple(Check(**row) for row in known), False
        start = time.monotonic()
        emit(StageStarted(recipe="", stage=STAGE))
        checks = _run(home, recipes, generation, folder)
        failed = any(check.status == "fail" for check in checks)
        result = StageResult(
            stage=STAGE, status="failed" if failed else "done", seconds=time.monotonic() - start
        )
        emit(StageFinished(recipe=f"generation {generation.number}", result=result))
        verdict = {
            "schema": 1,
            "spark_build": __version__,
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "checks": [asdict(one) for one in checks],
        }
        generations.write_verdict(generation, verdict)
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
    entries = (read_entry(home.store, wheel.key) for wheel in generation.built())
    names = sorted({entry.recipe for entry in entries if entry is not None} & recipes.keys())
    built = {name: recipes[name] for name in names}
    checks = check_recipes(home, built, python_of(environment), folder)
    remove_tree(environment)
    return (origin, *checks)


def check_recipes(
    home: Home, recipes: Mapping[str, Recipe], python: Path, work: Path, most: int | None = None
) -> tuple[Check, ...]:
    """Run the check scripts of these recipes, `most` of each. Raises RecipeError for a missing one."""
    scripts = {name: _scripts_of(home, name, recipe)[:most] for name, recipe in recipes.items()}
    return tuple(
        check
        for name, own in scripts.items()
        for check in run_checks(python=python, scripts=own, work=work, package=name)
    )


def _scripts_of(home: Home, name: str, recipe: Recipe) -> list[Path]:
    found = []
    for check in recipe.verify.checks:
        script = home.find(f"bench/checks/{check}.py")
        if script is None:
            raise RecipeError(f"there is no bench/checks/{check}.py", where=f"recipes/{name}.toml")
        found.append(script)
    return found


LIMIT = 900  # seconds for one script
TIMED_OUT, KILLED = 124, 137  # exit statuses of coreutils' timeout; 137 also for SIGKILL from outside
FATAL = "FATAL: kernel"  # what a CUDA kernel prints that was not built for this GPU, and writes nothing


def run_checks(*, python: Path, scripts: Sequence[Path], work: Path, package: str = "") -> tuple[Check, ...]:
    """Run each script with `python` in folder `work`; names get the script's name in front.

    A crash, a hang, a missing or malformed report and "FATAL: kernel" in the output are failures.
    """
    work.mkdir(parents=True, exist_ok=True)
    return tuple(
        replace(check, package=package) for script in scripts for check in _run_script(python, script, work)
    )


def _run_script(python: Path, script: Path, work: Path) -> list[Check]:
    name = script.stem
    out = work / f"{name}.checks.json"
    out.unlink(missing_ok=True)
    fatal: list[str] = []

    def watch(line: str) -> None:
        if FATAL in line:
            fatal.append(line)

    # Isolated: neither the script's folder nor the user's packages may stand in for what is tested.
    command = [str(python), "-I", "-B", "-X", "faulthandler", str(script), "--out", str(out)]
    with (work / f"{name}.log").open("wb") as log:
        done = run(guarded(command, LIMIT), cwd=work, env=clean_environment(), log=log, on_line=watch)
        fatal += _left(out.with_name(f"{out.name}.said"), log)
    checks = _report(name, out)
    if problem := problem_of(done, LIMIT, is_reported=bool(checks)):
        checks.append(Check(name=f"{name}.run", status="fail", evidence=problem))
    if fatal and not any(FATAL in check.evidence for check in checks):
        evidence = f"{len(fatal)} times: {fatal[0].strip()[:200]}"
        checks.append(Check(name=f"{name}.kernels", status="fail", evidence=evidence))
    return checks


def _left(said: Path, log: BinaryIO) -> list[str]:
    """Write the output of the check that ended the process to the log; returns its lines with FATAL."""
    try:
        text = said.read_bytes()
        said.unlink()
    except FileNotFoundError:
        return []
    log.write(text)
    return [line for line in text.decode(errors="replace").splitlines() if FATAL in line]


def guarded(command: Sequence[str], limit: float) -> list[str]:
    """Return a command that is ended after `limit` seconds: by SIGABRT, so that Python says where it was."""
    return ["timeout", "--signal=ABRT", "--kill-after=10", f"{limit:.0f}", *command]


def problem_of(done: Completed, limit: float, *, is_reported: bool) -> str:
    """Return why a guarded command left nothing that counts; "" where it did."""
    said = [line for line in done.output.strip().split("\n") if MARK not in line]
    last = said[-1][:300] if said else ""
    if done.returncode == TIMED_OUT or (done.returncode == KILLED and done.seconds >= limit):
        return f"hung: no end after {limit:.0f} s"
    if done.returncode == KILLED:
        return "was killed (SIGKILL)"
    if done.returncode != 0:
        return f"crashed with exit status {done.returncode}: {last}"
    return "" if is_reported else f"left no report: {last}".removesuffix(": ")


def _report(name: str, out: Path) -> list[Check]:
    found: list[Check] = []
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        document: Any = json.loads(out.read_text())
        for each in document["checks"]:
            status = each["status"]
            if status not in ("ok", "fail", "skipped"):
                raise ValueError(status)
            found.append(Check(name=f"{name}.{each['name']}", status=status, evidence=str(each["evidence"])))
        return found
    return []
