"""`recipes`: what there is to build."""

from __future__ import annotations

import click

from spark_build.cli import render
from spark_build.cli.options import Options, shared


@click.group()
@shared
def recipes(_options: Options) -> None:
    """The recipes."""


@recipes.command("list")
@shared
def list_(options: Options) -> None:
    """Show all recipes with their versions in the selected train."""
    setting = options.setting()
    pins = setting.train.components
    found = [
        {
            "recipe": name,
            "version": pins[name].version if name in pins else "",
            "kind": recipe.kind,
            "cuda": recipe.requires.cuda,
            "summary": recipe.summary,
        }
        for name, recipe in sorted(setting.catalogue.recipes.items())
    ]
    if options.json:
        render.print_json({"train": setting.train.name, "recipes": found})
        return
    rows = [
        [
            str(row["recipe"]),
            str(row["version"]),
            str(row["kind"]),
            "yes" if row["cuda"] else "no",
            str(row["summary"]),
        ]
        for row in found
    ]
    render.print_table(["RECIPE", f"IN {setting.train.name}", "KIND", "CUDA", "WHAT"], rows)
