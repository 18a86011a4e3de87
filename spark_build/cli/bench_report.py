"""`bench report`: the pages of a run, from its JSON."""

from __future__ import annotations

from pathlib import Path

import click

from spark_build.cli import render
from spark_build.cli.options import Options, shared

FILE = click.Path(path_type=Path)


@click.command()
@click.argument("file", type=FILE, metavar="BENCH.json")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), metavar="DIR",
              help="Where to write (default: beside BENCH.json).")  # fmt: skip
@shared
def report(options: Options, file: Path, out: Path | None) -> int:
    """Write report.html, report.md and samples.csv from BENCH.json."""
    from spark_build.cli.json_input import json_of, text_of
    from spark_build.measure.suite import HINT, bench_from_json, write

    raw = json_of(text_of(file, HINT), str(file), HINT)
    folder = out or file.parent
    page = write(bench_from_json(raw, str(file)), folder)
    if options.json:
        render.print_json({"report": str(page), "folder": str(folder), "exit_code": 0})
    else:
        print(page)
    return 0
