"""Runs that outlive the terminal: a process in its own session, recorded in runs/<id>/.

detached.json   its process, command and start; there as soon as it has begun
lock            held as long as it lives: the number of a dead process comes back, its lock does not
events.jsonl    everything that happened, Progress too
stdout, stderr  what the command printed
exit-code       there once it has ended in good order
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from spark_build.errors import HostError
from spark_build.events import Event, decode
from spark_build.files import locked, remove_tree, write_atomically
from spark_build.journal import EVENTS
from spark_build.process import start_detached

RECORD = "detached.json"
LOCK = "lock"
EXIT_CODE = "exit-code"
STDOUT = "stdout"
STDERR = "stderr"
PAUSE = 0.2  # seconds between two looks at a run
PATIENCE = 20.0  # seconds that a run gets to end its children and itself


@dataclass(frozen=True, kw_only=True, slots=True)
class Background:
    """A detached run when it was looked at; one neither alive nor with an exit code was killed."""

    folder: Path
    pid: int
    command: tuple[str, ...]  # without the program
    started: datetime
    alive: bool
    exit_code: int | None

    @property
    def name(self) -> str:
        """Name for the user."""
        return self.folder.name


def start(folder: Path, command: Sequence[str], env: Mapping[str, str]) -> int:
    """Start a command that will `hold` this folder; returns its process id once it does."""
    folder.mkdir(parents=True)
    with (folder / STDOUT).open("wb") as out, (folder / STDERR).open("wb") as error:
        process = start_detached(command, env=env, stdout=out, stderr=error)
    while not (folder / RECORD).exists():
        # It may have begun and ended between the two looks.
        if process.poll() is not None and not (folder / RECORD).exists():
            said = (folder / STDERR).read_text(errors="replace").splitlines() or ["it said nothing"]
            remove_tree(folder)
            raise HostError(f"the background process did not begin: {said[-1]}")
        time.sleep(PAUSE / 10)
    return process.pid


@contextlib.contextmanager
def hold(folder: Path, command: Sequence[str]) -> Iterator[None]:
    """Become the background process of this folder: take the lock, then write the record."""
    with locked(folder / LOCK, purpose="running in the background"):
        record = {"pid": os.getpid(), "command": list(command), "started": datetime.now(UTC).isoformat()}
        write_atomically(folder / RECORD, json.dumps(record))
        yield


def finish(folder: Path, code: int) -> None:
    """Record the command's exit code."""
    write_atomically(folder / EXIT_CODE, f"{code}\n")


def find(folder: Path) -> Background | None:
    """Return the detached run of a folder; None when it holds none."""
    try:
        record = json.loads((folder / RECORD).read_text())
        # In this order: the code is written before the lock goes.
        alive = is_alive(folder)
        return Background(
            folder=folder,
            pid=int(record["pid"]),
            command=tuple(record["command"]),
            started=datetime.fromisoformat(record["started"]),
            alive=alive,
            exit_code=None if alive else _exit_code(folder),
        )
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None


def _exit_code(folder: Path) -> int | None:
    path = folder / EXIT_CODE
    return int(path.read_text()) if path.exists() else None


def find_all(runs: Path) -> list[Background]:
    """Return all detached runs, the newest first."""
    found = [run for path in runs.glob(f"*/{RECORD}") if (run := find(path.parent)) is not None]
    return sorted(found, key=lambda run: run.started, reverse=True)


def is_alive(folder: Path) -> bool:
    """Return whether a run's process lives, even one of another user."""
    try:
        descriptor = os.open(folder / LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        # Shared: two that look at the same time do not take each other for the run.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def stop(run: Background) -> None:
    """Ask a run to end cleanly, and wait for it."""
    try:
        handle = os.pidfd_open(run.pid)
    except ProcessLookupError:
        return
    try:
        # Alive even now: so the handle is of the run, not of a later process with its number.
        if not is_alive(run.folder):
            return
        signal.pidfd_send_signal(handle, signal.SIGTERM)
        ended, _, _ = select.select([handle], [], [], PATIENCE)
    finally:
        os.close(handle)
    if not ended:
        raise HostError(f"{run.name} does not end", hint=f"kill -9 {run.pid}")


def follow(
    folder: Path, pause: Callable[[float], object] = time.sleep
) -> Iterator[list[tuple[float, Event]]]:
    """Yield the events of a run with their times (seconds since 1970), in batches, until it ends."""
    path, place, rest = folder / EVENTS, 0, b""
    while True:
        # Asked before reading: what was written until the end is read then.
        alive = is_alive(folder)
        written = b""
        if path.exists():
            with path.open("rb") as file:
                file.seek(place)
                written = file.read()
        place += len(written)
        *lines, rest = (rest + written).split(b"\n")
        yield [event for line in lines if (event := _event(line)) is not None]
        if not alive:
            return
        pause(PAUSE)


def _event(line: bytes) -> tuple[float, Event] | None:
    """Return time and event of a line; None for a torn line or one of a newer version."""
    try:
        row = json.loads(line)
        event = decode(row) if isinstance(row, dict) else None
        return None if event is None else (datetime.fromisoformat(row["time"]).timestamp(), event)
    except (KeyError, TypeError, ValueError):
        return None
