"""How a build ended: the table, the document, the failures and what to type next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import click

from spark_build.cli import render
from spark_build.cli.hints import typeable
from spark_build.cli.options import Options
from spark_build.text import duration, size

if TYPE_CHECKING:
    from spark_build.events import RecipeResult, Repetition
    from spark_build.wheelhouse.generations import Generation


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What came of more than building: for the document, for people, for the shell."""

    document: dict[str, Any] = field(default_factory=dict)
    lines: tuple[str, ...] = ()
    code: int = 0


def compared(repetitions: Sequence[Repetition]) -> Outcome:
    """What building twice showed; differences count as a failed audit."""
    from spark_build.errors import AuditError

    lines: list[str] = []
    for one in repetitions:
        if not one.differences:
            lines.append(f"\nreproducible: {one.product}, built twice, has the same bytes ({one.sha256})")
            continue
        count = len(one.differences)
        lines.append(f"\nnot reproducible: {one.product}, built twice, has {count} differences")
        lines += [f"  {each.file}: {each.what}" for each in one.differences]
    rows = [{**asdict(one), "identical": not one.differences} for one in repetitions]
    differs = any(one.differences for one in repetitions)
    code = AuditError.exit_code if differs else 0
    return Outcome(document={"repetitions": rows}, lines=tuple(lines), code=code)


def document(results: Sequence[RecipeResult], generation: Generation | None) -> dict[str, Any]:
    """The JSON document of a build."""
    return {
        "results": [
            {
                "recipe": result.recipe,
                "version": result.version,
                "status": result.status,
                "seconds": round(result.seconds, 3),
                "wheels": list(result.wheels),
                "log": result.log,
                "peak_memory_mib": result.cost.peak_mib or None,
                "cache": result.cost.cache or None,
                "reasons": list(result.reasons),
                "error": result.error.message if result.error else None,
            }
            for result in results
        ],
        "generation": generation.number if generation else None,
        "path": str(generation.folder) if generation else None,
    }


def conclude(
    options: Options,
    results: Sequence[RecipeResult],
    generation: Generation | None,
    document: dict[str, Any],
    lines: Sequence[str],
    code: int,
) -> int:
    """Say how it ended; returns the exit code."""
    from spark_build.cli.wheelhouse import print_wheels
    from spark_build.errors import joint_exit_code

    errors = [result.error for result in results if result.error]
    exit_code = joint_exit_code(errors) or code
    if options.json:
        render.print_json({**document, "exit_code": exit_code})
    else:
        print()
        print_results(results)
        if generation is not None:
            print(f"\nwheels of generation {generation.number} in {generation.folder}")
            print_wheels(generation)
        for line in lines:
            print(line)
    for result in results:
        if result.error is not None:
            _print_failure(result)
    return exit_code


def print_results(results: Sequence[RecipeResult]) -> None:
    """What became of each recipe."""
    rows = [
        [
            result.recipe,
            result.version,
            result.status,
            duration(result.seconds) if result.seconds else "",
            size(result.cost.peak_mib << 20) if result.cost.peak_mib else "",
            result.cost.cache,
            "; ".join(result.reasons),
        ]
        for result in results
    ]
    headers = ["RECIPE", "VERSION", "RESULT", "TIME", "PEAK MEMORY", "CACHE", "WHY"]
    kept = [place for place in range(len(headers)) if place < 3 or any(row[place] for row in rows)]
    render.print_table([headers[place] for place in kept], [[row[place] for place in kept] for row in rows])


def _print_failure(result: RecipeResult) -> None:
    error = result.error
    if error is None:
        return
    place = f"{error.where}: " if error.where else ""
    click.echo(f"error: {result.recipe}: {place}{error.message}", err=True)
    if error.log:
        click.echo(f"  log:  {error.log}", err=True)
        click.echo(typeable(f"  look: spark-build build {result.recipe} --shell"), err=True)
    following = error.hint or f"spark-build build {result.recipe}  (goes on where it stopped)"
    click.echo(typeable(f"  next: {following}"), err=True)
