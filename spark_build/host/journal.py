"""runs/<id>/events.jsonl: what happened in a run, kept for later."""

from __future__ import annotations

import dataclasses
import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from spark_build.errors import SparkBuildError
from spark_build.model.event import Event, Progress, StageFinished


def new_run(runs: Path) -> Path:
    """A folder name for a run; it is made when something is written into it."""
    return runs / f"{datetime.now(UTC).strftime('%Y%m%dT%H%M%S')}-{os.getpid()}"


class Journal:
    """Writes events as lines of JSON, from the first stage on that got something done.

    So a run that does nothing, or fails on bad input, leaves nothing behind.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._held: list[str] = []
        self._begun = False

    def emit(self, event: Event) -> None:
        """Append one event. Progress is left out: the log has the same steps."""
        if isinstance(event, Progress):
            return
        row = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "event": type(event).__name__,
            **dataclasses.asdict(event),
        }
        self._held.append(json.dumps(row, default=_plain) + "\n")
        self._begun = self._begun or (isinstance(event, StageFinished) and event.result.status != "failed")
        if self._begun:
            self.folder.mkdir(parents=True, exist_ok=True)
            with (self.folder / "events.jsonl").open("a") as file:
                file.writelines(self._held)
            self._held.clear()


def _plain(value: Any) -> Any:
    if isinstance(value, SparkBuildError):
        return {"message": value.message, "where": value.where, "hint": value.hint}
    return str(value)
