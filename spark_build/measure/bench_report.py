"""What a run of the suite leaves behind: report.html, report.md, samples.csv, bench.json."""

from __future__ import annotations

import json
from pathlib import Path

from spark_build.files import write_atomically
from spark_build.measure.bench import Bench, bench_json
from spark_build.measure.csv_io import csv_of
from spark_build.measure.report import suite_html, suite_markdown
from spark_build.measure.report.suite_view import view_of


def write(result: Bench, folder: Path) -> Path:
    """Write the pages, the raw samples and bench.json into `folder`; returns the page that people open."""
    folder.mkdir(parents=True, exist_ok=True)
    view = view_of(result)
    kinds = {case.name: case.kind for case in view.trial.cases}
    write_atomically(folder / "bench.json", json.dumps(bench_json(result)))
    write_atomically(folder / "samples.csv", csv_of(result, kinds))
    write_atomically(folder / "report.md", suite_markdown.render(view))
    write_atomically(folder / "report.html", suite_html.render(view))
    return folder / "report.html"
