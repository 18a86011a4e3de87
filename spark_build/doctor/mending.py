"""Runs the commands that mend what the doctor found, after the user said yes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from spark_build.build import sandbox
from spark_build.machine import Diagnosis
from spark_build.process import interactive

# Where we are root already and there is no sudo, as in a container.
AS_ROOT = 'command -v sudo >/dev/null || sudo() { "$@"; }; '


def remedies(findings: Iterable[Diagnosis]) -> dict[str, list[Diagnosis]]:
    """Safe commands -> what each of them mends; one command mends several findings only once."""
    found: dict[str, list[Diagnosis]] = {}
    for one in findings:
        if one.safe and one.fix and one.status != "ok":
            found.setdefault(one.fix, []).append(one)
    return found


def mend(
    findings: Iterable[Diagnosis], agree: Callable[[str, list[Diagnosis]], bool]
) -> list[tuple[str, int]]:
    """Run every remedy that `agree` agrees to; the commands with their exit codes."""
    done = []
    for command, mended in remedies(findings).items():
        if not agree(command, mended):
            continue
        # What it prints is progress; stdout is for our result. sudo asks on the terminal.
        script = f"exec 1>&2; {AS_ROOT if os.geteuid() == 0 else ''}{command}"
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        sys.stdout.flush()
        done.append((command, interactive(["sh", "-c", script], cwd=Path.cwd(), env=environment)))
    sandbox.choose.cache_clear()  # what was installed may be what it was missing
    return done
