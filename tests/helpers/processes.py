"""Processes that a test starts and that end, with their pipes, no later than the test."""

from __future__ import annotations

import contextlib
import subprocess
from typing import Any

_started: list[subprocess.Popen[Any]] = []


def start(command: Any, **options: Any) -> subprocess.Popen[Any]:
    """Start a process as subprocess.Popen does; `end_all` ends it."""
    process = subprocess.Popen(command, **options)
    _started.append(process)
    return process


def end_all() -> None:
    """Kill what still runs, wait for it and close the pipes."""
    while _started:
        process = _started.pop()
        process.kill()  # does nothing to one that was waited for
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                # What was written may never have arrived: its reader was killed.
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        process.wait()
