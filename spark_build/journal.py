"""Records in runs/: the journal of a run (runs/<id>/events.jsonl) and crash reports."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from spark_build import __version__
from spark_build.events import Event, MachineSeen, Progress, RateSeen, StageFinished, Usage, encode
from spark_build.text import scrub

OFTEN = (Usage, RateSeen, MachineSeen)
OFTEN_EVERY = 2.0  # seconds between two records of each of them
EVENTS = "events.jsonl"
RESULTS = ("burn-in.json", "bench.json")  # what other runs are compared with
_OURS = re.compile(r"\d{8}T\d{6}-\d+|crash-.+\.txt")


def new_run(runs: Path) -> Path:
    """Return a folder name for a run; the first write makes the folder."""
    return runs / f"{datetime.now(UTC).strftime('%Y%m%dT%H%M%S')}-{os.getpid()}"


def spent_runs(runs: Path, *, keep: int, older_than: float) -> list[Path]:
    """Return run folders and crash reports that may go, oldest first; `older_than`: seconds.

    Never the `keep` newest, one whose process lives, or one with the results of a measurement.
    """
    named = [path for path in runs.glob("*") if _OURS.fullmatch(path.name)]
    oldest_first = sorted(named, key=lambda path: path.name.removeprefix("crash-"))
    unfinished, spent = "", []
    for path in runs.glob("unfinished-*.json"):
        with contextlib.suppress(FileNotFoundError):
            unfinished += path.read_text(errors="replace")
    for path in oldest_first[: max(0, len(named) - keep)]:
        with contextlib.suppress(OSError):  # somebody else removes it meanwhile
            if (
                time.time() - path.lstat().st_mtime >= older_than
                and not any((path / name).exists() for name in RESULTS)
                and not any(Path(f"/proc/{pid}").exists() for pid in _processes(path))
                and path.name not in unfinished
            ):
                spent.append(path)
    return spent


def _processes(run: Path) -> Iterator[str]:
    """Yield the process that made a run's folder, and the detached one that it is of."""
    yield run.stem.rpartition("-")[2]
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        yield str(json.loads((run / "detached.json").read_bytes())["pid"])


class Journal:
    """Writes events as lines of JSON, beginning with the first stage that did some work.

    So a run that does nothing, or fails on bad input, leaves nothing behind. whole: all events from the
    first on, for those who watch a run while it goes on.
    """

    def __init__(self, folder: Path, *, whole: bool = False) -> None:
        self.folder = folder
        self._whole = whole
        self._held: list[str] = []
        self._begun = whole
        self._last: dict[type, float] = {}

    def emit(self, event: Event) -> None:
        """Append one event; skips those that only a live view shows."""
        if isinstance(event, Progress | RateSeen | MachineSeen) and not self._whole:
            return
        if isinstance(event, OFTEN):
            if time.monotonic() - self._last.get(type(event), -OFTEN_EVERY) < OFTEN_EVERY:
                return
            self._last[type(event)] = time.monotonic()
        row = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), **encode(event)}
        self._held.append(json.dumps(row) + "\n")
        self._begun = self._begun or (isinstance(event, StageFinished) and event.result.status != "failed")
        if self._begun:
            self.folder.mkdir(parents=True, exist_ok=True)
            with (self.folder / EVENTS).open("a") as file:
                file.writelines(self._held)
            self._held.clear()


def write_crash_report(root: str | None, error: BaseException) -> Path | None:
    """Write facts for fixing a bug, without secrets, into runs/, else the temporary folder.

    Returns the file, None where neither can be written.
    """
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    text = scrub(
        "\n".join(
            [
                f"spark-build {__version__}, Python {platform.python_version()}, {platform.platform()}",
                "command: " + " ".join(sys.argv[1:]),
                "",
                "".join(traceback.format_exception(error)),
            ]
        )
    )
    for folder in (_runs(root), Path(tempfile.gettempdir())):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / f"crash-{stamp}-{os.getpid()}.txt"
            # No link that somebody put there is followed; a path or an argument may be no text.
            with path.open("x", encoding="utf-8", errors="backslashreplace") as file:
                file.write(text)
        except OSError:
            continue
        return path
    return None


def _runs(root: str | None) -> Path:
    from spark_build.paths import locate

    try:
        return locate(root).runs
    except Exception:  # noqa: BLE001 - whatever is wrong with the root, the report is written
        return Path(tempfile.gettempdir())
