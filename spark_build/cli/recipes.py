"""`recipes`: what there is to build, whether it is sound, and recipes of one's own."""

from __future__ import annotations

import importlib
import importlib.util

import click

from spark_build.cli import render
from spark_build.cli.options import Options, shared

# name: (module, function, what `--help` says); modules load only when their command runs.
COMMANDS = {
    "list": ("spark_build.cli.recipes", "list_", "Show all recipes with their versions in the train."),
    "show": ("spark_build.cli.recipes_show", "show", "One recipe for a target and train, with reasons."),
    "lint": ("spark_build.cli.recipes_lint", "lint", "Check recipes, trains and targets without building."),
    "schema": ("spark_build.cli.recipes_lint", "schema", "Print the JSON Schema of the files, for editors."),
    "new": ("spark_build.cli.recipes_new", "new", "Write a pinned recipe for any sdist or git tag."),
    "pin": ("spark_build.cli.recipes_new", "pin", "Write missing hashes, or move to another version."),
    "outdated": ("spark_build.cli.recipes_new", "outdated", "Compare pins with the newest versions."),
}


class RecipesGroup(click.Group):
    """Commands are imported when they are called; those whose module is absent are not offered."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the order of the table."""
        del ctx
        return [name for name, (module, _, _) in COMMANDS.items() if importlib.util.find_spec(module)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command's module."""
        if cmd_name not in self.list_commands(ctx):
            return None
        module, function, _ = COMMANDS[cmd_name]
        command: click.Command = getattr(importlib.import_module(module), function)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, with a suggestion for a mistyped name."""
        known = self.list_commands(ctx)
        if args and args[0] not in known and not args[0].startswith("-"):
            from difflib import get_close_matches

            near = get_close_matches(args[0], known, n=1)
            mean = f" did you mean {near[0]}?" if near else f" there are {', '.join(known)}"
            raise click.UsageError(f"no command 'recipes {args[0]}';{mean}", ctx=ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The table above, without importing anything."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][2]) for name in self.list_commands(ctx)])


@click.group(cls=RecipesGroup)
@shared
def recipes(_options: Options) -> None:
    """The recipes: what there is to build, whether it is sound, and your own."""


@click.command("list")
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
