"""Kill an operation before any chosen one of its steps in the file system, or let the disk fill up there.

The steps are those that Python's audit events name, and fsync, which has none.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

STEPS = {
    f"os.{name}"
    for name in ("chmod", "link", "mkdir", "remove", "rename", "rmdir", "symlink", "truncate", "utime")
}
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
NEVER = 1 << 30


class _Steps:
    """Counts the steps of this process; at the chosen one it dies, or gets an error."""

    def __init__(self, chosen: int, error: int) -> None:
        self.count = 0
        self._chosen = chosen
        self._error = error

    def hook(self, event: str, arguments: tuple[object, ...]) -> None:
        if event in STEPS or (event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITES):
            self.step()

    def step(self) -> None:
        self.count += 1
        if self._error and self.count >= self._chosen:
            raise OSError(self._error, os.strerror(self._error))
        if self.count == self._chosen:
            os.kill(os.getpid(), signal.SIGKILL)


def _child(operation: Callable[[], object], steps: _Steps, answer: int) -> None:

    def fsync(_descriptor: int) -> None:  # a killed process loses nothing that it wrote; this saves minutes
        steps.step()

    os.fsync = fsync  # type: ignore[assignment] # an audit event that Python lacks
    sys.addaudithook(steps.hook)
    try:
        operation()
        told = f"{steps.count} "
    except BaseException:  # noqa: BLE001 - the parent judges
        told = f"{steps.count} {traceback.format_exc()}"
    os.write(answer, told.encode())
    os._exit(0)


def run(operation: Callable[[], object], *, stop_at: int = NEVER, error: int = 0) -> tuple[int, str] | None:
    """Run it in a process of its own: (its steps, how it failed); None when it was killed."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        _child(operation, _Steps(stop_at, error), writing)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        told = pipe.read()
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return None
    count, _, failure = told.partition(" ")
    return int(count), failure


def fill(folder: Path) -> Path:
    """Fill the disk of a folder to the last byte; returns the file to remove again."""
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as out:
        for size in (1 << 20, 1 << 12, 1):
            try:
                while True:
                    out.write(bytes(size))
            except OSError as problem:
                if problem.errno != errno.ENOSPC:
                    raise
    return ballast
