"""Groups that import a command when it is called, so that --help stays fast; their table."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from spark_build.cli.options import Group

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

# name: (module, function, what `--help` says)
Table = Mapping[str, tuple[str, str, str]]


class LazyGroup(Group):
    """A group made from a table, in the table's order; `sections`: title and first command of each."""

    def __init__(
        self, *arguments: Any, table: Table, sections: Mapping[str, str] | None = None, **named: Any
    ) -> None:
        super().__init__(*arguments, **named)
        self.table = table
        self.sections = {first: title for title, first in (sections or {}).items()}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the table's order."""
        del ctx
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command."""
        del ctx
        if cmd_name not in self.table:
            return None
        module, function, _ = self.table[cmd_name]
        command: click.Command = getattr(importlib.import_module(module), function)
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return commands and options that begin like this, without importing any command."""
        from click.shell_completion import CompletionItem

        found = [(name, text) for name, (_, _, text) in self.table.items() if name.startswith(incomplete)]
        items = [CompletionItem(name, help=text) for name, text in found]
        return [*items, *click.Command.shell_complete(self, ctx, incomplete)]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve as click does, with a suggestion for a mistyped name."""
        if args and args[0] not in self.table and not args[0].startswith("-"):
            from difflib import get_close_matches

            near = get_close_matches(args[0], self.table, n=1)
            mean = f"did you mean {near[0]}?" if near else f"there are {', '.join(self.table)}"
            said = args[0] if ctx.parent is None else f"{ctx.info_name} {args[0]}"
            raise click.UsageError(f"no command {said!r}; {mean}", ctx=ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the table, by sections, without importing any command."""
        del ctx
        rows: dict[str, list[tuple[str, str]]] = {}
        title, width = "Commands", max(map(len, self.table))
        for name, (_, _, text) in self.table.items():
            title = self.sections.get(name, title)
            rows.setdefault(title, []).append((name.ljust(width), text))
        for title, some in rows.items():
            with formatter.section(title):
                formatter.write_dl(some)


# name: (module, function, what `--help` says); modules load only when their command runs.
COMMANDS = {
    "all": ("spark_build.cli.build", "all_", "Check, plan, build, publish and verify: everything."),
    "doctor": ("spark_build.cli.doctor", "doctor", "Check this machine for what the builds need."),
    "plan": ("spark_build.cli.plan", "plan", "Show what would be built, reused or skipped, and why."),
    "build": ("spark_build.cli.build", "build", "Build and publish recipes."),
    "matrix": ("spark_build.cli.matrix", "matrix", "Build trains x targets x Pythons."),
    "attach": ("spark_build.cli.history", "attach", "Watch or stop a detached build."),
    "why": ("spark_build.cli.history", "why", "Show which inputs changed since the last build."),
    "log": ("spark_build.cli.history", "log", "Show the last log of a recipe; --diagnosis explains it."),
    "recipes": ("spark_build.cli.recipes", "recipes", "List, show, check, write and pin recipes."),
    "patches": ("spark_build.cli.patches", "patches", "Check the patches against their sources."),
    "wheelhouse": ("spark_build.cli.wheelhouse", "wheelhouse", "List, inspect, export and import wheels."),
    "remotes": ("spark_build.cli.remotes", "remotes", "Share built wheels with other machines."),
    "farm": ("spark_build.cli.farm", "farm", "Build on many machines: scheduler and workers."),
    "env": ("spark_build.cli.env", "env", "Make virtual environments from the wheelhouse only."),
    "verify": ("spark_build.cli.verify", "verify", "Check the wheels; --burn-in measures them."),
    "bench": ("spark_build.cli.bench", "bench", "Run the wider suite, compare runs, report."),
    "config": ("spark_build.cli.config", "config", "Show the settings and where they come from."),
    "completion": ("spark_build.cli.config", "completion", "Print the completion script of a shell."),
}
SECTIONS = {
    "Build": "all",
    "Recipes": "recipes",
    "Wheels": "wheelhouse",
    "Measure": "verify",
    "This program": "config",
}
