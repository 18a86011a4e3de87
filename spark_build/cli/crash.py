"""Crash reports: facts for fixing a bug, without secrets."""

from __future__ import annotations

import platform
import sys
import tempfile
import traceback
from datetime import UTC, datetime
from pathlib import Path

from spark_build import __version__
from spark_build.text import scrub


def write_report(root: str | None, error: BaseException) -> Path | None:
    """Write the report into runs/, else the temporary folder; returns None when neither works."""
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
            path = folder / f"crash-{stamp}.txt"
            path.write_text(text)
        except OSError:
            continue
        return path
    return None


def _runs(root: str | None) -> Path:
    from spark_build.errors import SparkBuildError
    from spark_build.paths import locate

    try:
        return locate(root).runs
    except SparkBuildError:
        return Path(tempfile.gettempdir())
