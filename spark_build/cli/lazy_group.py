"""Groups that import a command when it is called, so that --help stays fast; their table and examples."""

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
    "plan": ("spark_build.cli.build", "plan", "Show what would be built, reused or skipped, and why."),
    "build": ("spark_build.cli.build", "build", "Build and publish recipes."),
    "attach": ("spark_build.cli.history", "attach", "Watch or stop a detached build."),
    "why": ("spark_build.cli.history", "why", "Show which inputs changed since the last build."),
    "log": ("spark_build.cli.history", "log", "Show the last log of a recipe; --diagnosis explains it."),
    "recipes": ("spark_build.cli.recipes", "recipes", "List, show, check, write and pin recipes."),
    "patches": ("spark_build.cli.patches", "patches", "Check the patches against their sources."),
    "wheelhouse": ("spark_build.cli.wheelhouse", "wheelhouse", "List, inspect, export and import wheels."),
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

# Command: what is typed, for its help and the manual page.
EXAMPLES = {
    "": ("spark-build all", "spark-build --target gb10 plan", "spark-build build --help"),
    "all": ("spark-build all", "spark-build --target gb10 all --detach", "spark-build all torch --burn-in"),
    "doctor": ("spark-build doctor torch", "spark-build doctor --fix"),
    "plan": ("spark-build --target gb10 plan", "spark-build --provide torch=public plan onnx"),
    "build": (
        "spark-build build torch --jobs 8 --memory 64G --detach",
        "spark-build build triton --stop-after configure",
        "spark-build build onnx --source onnx=../onnx",
    ),
    "attach": ("spark-build attach", "spark-build attach --stop"),
    "why": ("spark-build why torch",),
    "log": ("spark-build log torch --diagnosis",),
    "recipes": ("spark-build recipes show torch", "spark-build recipes new -r requirements.txt"),
    "recipes list": ("spark-build --train 2.11 recipes list", "spark-build recipes list --catalogue"),
    "recipes show": ("spark-build --target gb10 recipes show torch", "spark-build recipes show onnx --env"),
    "recipes lint": ("spark-build recipes lint torch",),
    "recipes schema": ("spark-build recipes schema recipe > recipe.schema.json",),
    "recipes new": (
        "spark-build recipes new regex --sdist regex==2024.11.6",
        "spark-build recipes new mylib --git https://github.com/me/mylib@v1.2",
        "spark-build recipes new -r requirements.txt",
    ),
    "recipes pin": ("spark-build recipes pin --check", "spark-build recipes pin --version onnx=1.20.0"),
    "recipes outdated": ("spark-build --train 2.13 recipes outdated",),
    "patches": ("spark-build patches check torch",),
    "patches check": ("spark-build patches check --source torch=../pytorch",),
    "wheelhouse": (
        "spark-build wheelhouse list",
        "spark-build wheelhouse inspect torch",
        "spark-build wheelhouse export stack.tar.zst",
    ),
    "wheelhouse list": ("spark-build --target gb10 wheelhouse list",),
    "wheelhouse inspect": (
        "spark-build wheelhouse inspect torch",
        "spark-build wheelhouse inspect OLD.whl NEW.whl",
    ),
    "wheelhouse path": ('pip install --no-index --find-links "$(spark-build wheelhouse path)" torch',),
    "wheelhouse generations": ("spark-build wheelhouse generations",),
    "wheelhouse rollback": ("spark-build wheelhouse rollback", "spark-build wheelhouse rollback 3"),
    "wheelhouse remove": ("spark-build wheelhouse remove onnx==1.19.0",),
    "wheelhouse pin": ("spark-build wheelhouse pin 3",),
    "wheelhouse unpin": ("spark-build wheelhouse unpin 3",),
    "wheelhouse gc": ("spark-build wheelhouse gc --dry-run", "spark-build wheelhouse gc --keep 1"),
    "wheelhouse check": ("spark-build wheelhouse check --deep", "spark-build wheelhouse check --repair"),
    "wheelhouse export": (
        "spark-build wheelhouse export stack.tar.zst torch",
        "spark-build wheelhouse export --to ssh://spark-2/srv/wheels",
        "spark-build wheelhouse export stack.tar --sign ~/.ssh/id_ed25519",
    ),
    "wheelhouse import": ("spark-build wheelhouse import stack.tar.zst",),
    "wheelhouse trust": ("spark-build wheelhouse trust add ci ci.pub",),
    "wheelhouse trust add": ("spark-build wheelhouse trust add ci ci.pub",),
    "wheelhouse trust list": ("spark-build wheelhouse trust list",),
    "wheelhouse trust remove": ("spark-build wheelhouse trust remove ci",),
    "wheelhouse serve": (
        "spark-build wheelhouse serve",
        "spark-build wheelhouse serve --host 0.0.0.0 --certificate node.pem",
    ),
    "env": ("spark-build env create ~/torch", "spark-build env update ~/torch"),
    "env create": (
        "spark-build env create ~/torch torch torchvision",
        "spark-build env create ~/lab --jupyter --python 3.12",
    ),
    "env update": ("spark-build env update ~/torch --dry-run",),
    "env check": ("spark-build env check ~/torch",),
    "verify": ("spark-build verify", "spark-build verify --burn-in --full --dtype bf16"),
    "verify compare": ("spark-build verify compare OLD.json NEW.json",),
    "verify gate": ("spark-build verify gate --min-ratio 1.0",),
    "verify history": ("spark-build verify history",),
    "bench": ("spark-build bench run --quick", "spark-build bench compare OLD.json NEW.json"),
    "bench run": (
        "spark-build bench run --list",
        "spark-build bench run --arm public=public --arm ours=wheelhouse",
    ),
    "bench compare": ("spark-build bench compare OLD.json NEW.json --fail-above 5",),
    "bench report": ("spark-build bench report runs/RUN/bench.json",),
    "config": ("spark-build config show",),
    "config show": ("SPARK_BUILD_TARGET=gb10 spark-build config show",),
    "completion": ("spark-build completion fish > ~/.config/fish/completions/spark-build.fish",),
}
