"""runs/<id>/events.jsonl: what happened in a run, kept for later."""

from __future__ import annotations

import dataclasses
import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from spark_build.errors import SparkBuildError
from spark_build.model.event import Event, Progress


def new_run(runs: Path) -> Path:
    """A folder name for a run; it is made when something is written into it."""
    return runs / f"{datetime.now(UTC).strftime('%Y%m%dT%H%M%S')}-{os.getpid()}"


class Journal:
    """Writes events as lines of JSON; a run in which nothing happens leaves no file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def emit(self, event: Event) -> None:
        """Append one event. Progress is left out: the log has the same steps."""
        if isinstance(event, Progress):
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        row = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "event": type(event).__name__,
            **dataclasses.asdict(event),
        }
        with (self.folder / "events.jsonl").open("a") as file:
            file.write(json.dumps(row, default=_plain) + "\n")


def _plain(value: Any) -> Any:
    if isinstance(value, SparkBuildError):
        return {"message": value.message, "where": value.where, "hint": value.hint}
    return str(value)
