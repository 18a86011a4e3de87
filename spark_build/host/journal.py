"""runs/<id>/events.jsonl: what happened in a run, kept for later."""

from __future__ import annotations

import json
import os
import time
from datetime import UTC, datetime
from pathlib import Path

from spark_build.core.events import encode
from spark_build.model.event import Event, Progress, StageFinished, Usage

USAGE_EVERY = 2.0  # seconds between two records of jobs and memory
EVENTS = "events.jsonl"


def new_run(runs: Path) -> Path:
    """A folder name for a run; it is made when something is written into it."""
    return runs / f"{datetime.now(UTC).strftime('%Y%m%dT%H%M%S')}-{os.getpid()}"


class Journal:
    """Writes events as lines of JSON, from the first stage on that got something done.

    So a run that does nothing, or fails on bad input, leaves nothing behind. whole: all events from the
    first on, for those who watch a run while it goes on.
    """

    def __init__(self, folder: Path, *, whole: bool = False) -> None:
        self.folder = folder
        self._whole = whole
        self._held: list[str] = []
        self._begun = whole
        self._usage = 0.0

    def emit(self, event: Event) -> None:
        """Append one event. Progress is left out: the log has the same steps."""
        if isinstance(event, Progress) and not self._whole:
            return
        if isinstance(event, Usage):
            if time.monotonic() - self._usage < USAGE_EVERY:
                return
            self._usage = time.monotonic()
        row = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), **encode(event)}
        self._held.append(json.dumps(row) + "\n")
        self._begun = self._begun or (isinstance(event, StageFinished) and event.result.status != "failed")
        if self._begun:
            self.folder.mkdir(parents=True, exist_ok=True)
            with (self.folder / EVENTS).open("a") as file:
                file.writelines(self._held)
            self._held.clear()
