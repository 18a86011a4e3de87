"""What a run of the suite leaves behind: report.html, report.md, samples.csv, bench.json."""

from __future__ import annotations

import json
from pathlib import Path

from spark_build.core.bench.longform import csv_of
from spark_build.host.files import write_atomically
from spark_build.model.bench import Bench, bench_json
from spark_build.verify.suite import markdown, page
from spark_build.verify.suite.view import view_of


def write(result: Bench, folder: Path) -> Path:
    """Write the pages, the raw samples and bench.json into `folder`; returns the page that people open."""
    folder.mkdir(parents=True, exist_ok=True)
    view = view_of(result)
    kinds = {name: place.kind for name, place in view.places[view.arms[0]].items()}
    write_atomically(folder / "bench.json", json.dumps(bench_json(result)))
    write_atomically(folder / "samples.csv", csv_of(result, kinds))
    write_atomically(folder / "report.md", markdown.render(view))
    write_atomically(folder / "report.html", page.render(view))
    return folder / "report.html"
