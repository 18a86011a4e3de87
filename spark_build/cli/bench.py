"""`bench`: the wider suite; its commands."""

from __future__ import annotations

import click

from spark_build.cli.lazy_group import LazyGroup

COMMANDS = {
    "run": ("spark_build.cli.bench_run", "run", "Run the workloads in one environment or more."),
    "compare": ("spark_build.cli.bench_compare", "compare", "Compare arms, two runs, or a CSV of others."),
    "report": ("spark_build.cli.bench_report", "report", "Write the pages of a run again."),
}


@click.group(cls=LazyGroup, table=COMMANDS)
def bench() -> None:
    """Which workloads gain, what a container costs, where the memory goes."""
