"""What the device does in each case, by torch's profiler or by nsys; figures come from other runs."""

from __future__ import annotations

import contextlib
import json
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from spark_build.errors import HostError, UsageError
from spark_build.events import Emit, Note
from spark_build.measure.armspec import ArmWish
from spark_build.measure.bench import BenchSettings
from spark_build.measure.model import Arm
from spark_build.measure.rounds import bare, command_of, variables_of
from spark_build.measure.suite import program_of
from spark_build.process import run

Tool = Literal["torch", "nsys"]
NSYS = ("nsys", "profile", "--trace=cuda,nvtx,cublas,cudnn", "--force-overwrite=true")
NSYS_HINT = "install Nsight Systems (developer.nvidia.com/nsight-systems), or take --profile torch"


@dataclass(frozen=True, kw_only=True, slots=True)
class Captured:
    """What one arm left: the command as it was run, its files, and what the cases spent their time on."""

    arm: str
    command: str
    folder: str
    problem: str = ""
    profiles: list[dict[str, Any]] = field(default_factory=list)


def need(tool: Tool, wishes: Sequence[ArmWish]) -> None:
    """Raises HostError without nsys, UsageError for containers."""
    if any(wish.image for wish in wishes):
        raise UsageError("--profile runs in environments, not in containers", hint="name a folder with --arm")
    if tool == "nsys" and shutil.which("nsys") is None:
        raise HostError("nsys is not here", hint=NSYS_HINT)


def capture(
    settings: BenchSettings, arms: Sequence[Arm], tool: Tool, folder: Path, emit: Emit
) -> list[Captured]:
    """Run each arm under `tool`; see `need`."""
    program = program_of(settings)
    program = replace(program, options={**program.options, "profile": tool})
    found = []
    for arm in arms:
        place = folder / f"profile-{arm.name}"
        place.mkdir(parents=True, exist_ok=True)
        report = place / "profiles.json"
        command = command_of(program, arm, arm.threads or settings.threads, report)
        if tool == "nsys":
            command = [*NSYS, f"--output={place / 'suite'}", *command]
        emit(Note(message=f"$ {shlex.join(command)}"))
        with (place / "log").open("wb") as log:
            done = run(command, cwd=place, env=bare(variables_of(arm)), log=log)
        profiles: list[dict[str, Any]] = []
        with contextlib.suppress(OSError, ValueError, KeyError):
            profiles = json.loads(report.read_text())["profiles"]
        problem = "" if done.returncode == 0 else f"ended with {done.returncode}: {done.output[-300:]}"
        found.append(
            Captured(
                arm=arm.name,
                command=shlex.join(command),
                folder=str(place),
                problem=problem,
                profiles=profiles,
            )
        )
    return found
