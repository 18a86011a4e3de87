"""Options common to all commands, before or after the command's name."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import fields
from functools import partial, update_wrapper
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from spark_build.errors import UsageError

if TYPE_CHECKING:  # imported lazily: commands that need no recipes must start fast
    from pathlib import Path

    from spark_build.build.context import Context
    from spark_build.paths import Home

COMMAND_LINE = "command line"
COMPLETE = "_SPARK_BUILD_COMPLETE"  # what a shell's completion asks, as click calls it
CALLED = "SPARK_BUILD_CALLED"  # how the launcher of a checkout was called
DETACHED = "SPARK_BUILD_DETACHED"  # tells the process that --detach starts which folder is its own


class Options:
    """Values of the common options, and what follows from them."""

    def __init__(self) -> None:
        self.root: str | None = None
        self.root_of_folder = False  # whether a file of the working directory says it
        self.target = "auto"
        self.train: str | None = None
        self.json = False
        self.verbosity = 0
        self.provide: dict[str, str] = {}
        self.source: dict[str, str] = {}
        self.choices: dict[tuple[str, str], str] = {}  # (recipe, option): value
        self.background: Path | None = None  # the run's folder, in a process that --detach started
        self.program = "spark-build"  # as it was called: what hints begin with
        self.is_root = False  # whose hints need no sudo
        self.settings: dict[str, Any] = {}  # of environment and files, with where they come from
        self.typed: set[str] = set()  # what the command line says

    def home(self) -> Home:
        """Folders to work with."""
        from spark_build.paths import locate

        return locate(self.root, is_named="root" in self.typed or not self.root_of_folder)

    def setting(self) -> Context:
        """Recipes, machine, target and train."""
        from spark_build.build.context import resolve_context
        from spark_build.recipes.loader import load

        home = self.home()
        catalogue = load(home.data).with_options(self.choices)
        return resolve_context(home, catalogue, self.target, self.train, self.provide)


def _store(context: click.Context, parameter: click.Parameter, value: Any) -> Any:
    """Store an option from either place; the last one wins."""
    if value is not None and value is not False:
        name = str(parameter.name)
        options = context.ensure_object(Options)
        if name == "provide":
            options.provide |= dict(_provider(text) for text in value)
        elif name == "option":
            options.choices |= dict(_choice(text) for text in value)
        elif name in ("verbose", "quiet"):
            options.verbosity = int(value) if name == "verbose" else -1
        else:
            setattr(options, "json" if name == "as_json" else name, value)
            options.typed.add(name)
    return value


class _Size(click.ParamType[int]):
    """Parameter type for memory in MiB: 64G, 64GiB, 65536M; a bare number is MiB."""

    name = "size"

    def convert(self, value: Any, _param: click.Parameter | None, _ctx: click.Context | None) -> int:
        text = str(value).strip().lower().removesuffix("b").removesuffix("i")
        number, unit = (text[:-1], text[-1]) if text[-1:] in UNITS else (text, "m")
        try:
            mib = int(float(number) * UNITS[unit])
        except (ValueError, OverflowError):  # inf
            mib = 0
        if mib < 1:
            self.fail(f"{value!r} is no size: write 64G or 65536M")
        return mib


UNITS = {"k": 1 / 1024, "m": 1, "g": 1024, "t": 1024 * 1024}
SIZE = _Size()


class _Finite(click.FloatRange):
    """Parameter type for a number from 0 on. A NaN is in every range of click's, and passes every gate."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is no number to compare with", param, ctx)
        return number


NOT_NEGATIVE, POSITIVE = _Finite(min=0), _Finite(min=0, min_open=True)


def local_sources(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add --source NAME=DIR, passed on as a dictionary."""

    def parse(context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
        pairs = [text.partition("=") for text in values]
        if not all(name and where for name, _, where in pairs):
            raise click.BadParameter("write --source NAME=DIR")
        found = {name: where for name, _, where in pairs}
        context.ensure_object(Options).source = found
        return found

    text = "Build a recipe from the sources in DIR, unpatched."
    return click.option("--source", "source", metavar="NAME=DIR", multiple=True, callback=parse, help=text)(
        function
    )


def _provider(text: str) -> tuple[str, str]:
    """Parse NAME=store, NAME=public or NAME=PATH."""
    need, _, where = text.partition("=")
    if not need or not where:
        raise click.BadParameter(f"--provide {text}: write NAME=store, NAME=public or NAME=PATH")
    return need, where


def _choice(text: str) -> tuple[tuple[str, str], str]:
    """Parse RECIPE.OPTION=VALUE; the value may be empty."""
    name, equals, value = text.partition("=")
    recipe, _, option = name.partition(".")
    if not recipe or not option or not equals:
        raise click.BadParameter(f"--option {text}: write RECIPE.OPTION=VALUE, such as torch.blas=OpenBLAS")
    return (recipe, option), value


def shared(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the common options to a command and pass it the collected Options first."""

    @click.pass_context
    def command(context: click.Context, *arguments: Any, **named: Any) -> Any:
        return function(context.ensure_object(Options), *arguments, **named)

    decorated = update_wrapper(command, function)
    for declare in reversed(COMMON):
        decorated = declare(decorated)
    return decorated


def as_one(kind: type[Any], name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that hands on the options named as the fields of `kind` as one value."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        def command(*arguments: Any, **named: Any) -> Any:
            own = [each.name for each in fields(kind) if each.name in named]
            one = kind(**{each: named.pop(each) for each in own})
            return function(*arguments, **{name: one}, **named)

        return update_wrapper(command, function)

    return decorate


class Renamed(click.Option):
    """An option with former names, which still work and are not shown."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Return the option's names and its help text."""
        names, self.opts = self.opts, self.opts[:1]
        try:
            return super().get_help_record(ctx)
        finally:
            self.opts = names


class CommonOption(click.Option):
    """An option that all commands take; the help of the program explains it, that of a command names it."""


class Helpful(click.Command):
    """A command whose help has its own options, and examples."""

    def own_options(self, ctx: click.Context) -> list[tuple[str, str]]:
        """Return names and text of its options; of the common ones only where this is the program."""
        options = [one for one in self.get_params(ctx) if isinstance(one, click.Option)]
        shown = [one for one in options if ctx.parent is None or not isinstance(one, CommonOption)]
        records = filter(None, (one.get_help_record(ctx) for one in shown))
        return [(NUMBER.sub(" N", names), BOUND.sub("N", UNSAID.sub("", text))) for names, text in records]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the command's own options in full; the common ones too where this is the program."""
        rows = self.own_options(ctx)
        common = [one.opts[0] for one in self.get_params(ctx) if isinstance(one, CommonOption)]
        with formatter.section("Options"):
            formatter.write_dl(rows)
        if common and ctx.parent is not None:
            formatter.write_paragraph()
            formatter.write_text(f"Also {' '.join(common)} (spark-build -h).")

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples, each on a line of its own."""
        with formatter.section("Examples"):
            for line in examples_of(ctx.command_path.partition(" ")[2]):
                formatter.write(f"{'':{formatter.current_indent}}{line}\n")


class Group(Helpful, click.Group):
    """A group whose help has examples, and whose commands are such, too."""

    command_class = Helpful

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write options, then commands."""
        Helpful.format_options(self, ctx, formatter)
        self.format_commands(ctx, formatter)


NUMBER = re.compile(r" (INTEGER|FLOAT)( RANGE)?\b")
UNSAID = re.compile(r"; x>=?[01](?=\])|  \[x>=?[01]\]")  # a bound that goes without saying
BOUND = re.compile(r"\bx\b(?=[<>])|(?<=<=)x\b")
command = partial(click.command, cls=Helpful)


def group() -> Callable[[Callable[..., Any]], Group]:
    """Return the decorator that makes a function such a group."""
    return click.group(cls=Group)


def _option(*names: str, **named: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return click.option(*names, cls=CommonOption, expose_value=False, callback=_store, **named)


COMMON = (
    _option("--root", metavar="DIR", help="Folder with recipes/, wheelhouse/, build/, sources/, runs/."),
    _option("--target", metavar="NAME", help="Machine to build for (default: this one)."),
    _option("--train", metavar="NAME", help="Set of versions to build, such as 2.13."),
    _option(
        "--provide",
        metavar="NAME=WHERE",
        multiple=True,
        help="Where a dependency comes from: store, public (a wheel of the index), or a path.",
    ),
    _option(
        "--option",
        metavar="RECIPE.OPTION=VALUE",
        multiple=True,
        help="Set an option of a recipe; `recipes show RECIPE` lists them.",
    ),
    _option("--json", "as_json", is_flag=True, help="Print one JSON document, and nothing else, on stdout."),
    _option("-v", "--verbose", is_flag=True, help="Print more."),
    _option("-q", "--quiet", is_flag=True, help="Print errors, and the result on one line."),
)


def json_of(text: str, where: str, hint: str) -> Any:
    """Return a JSON file's value. Raises UsageError, also for one nested too deeply."""
    import json

    try:
        return json.loads(text)
    except ValueError as error:
        raise UsageError(f"not JSON: {error}", where=where, hint=hint) from error
    except RecursionError as error:
        raise UsageError("not JSON of ours: nested too deeply", where=where, hint=hint) from error


# Command: what is typed, for its help and the manual page.
EXAMPLES = {
    "": ("spark-build all", "spark-build --target gb10 plan", "spark-build build --help"),
    "all": ("spark-build all", "spark-build --target gb10 all --detach", "spark-build all torch --burn-in"),
    "doctor": (
        "spark-build doctor torch",
        "spark-build doctor --fix",
        "spark-build doctor --farm ssh:spark1,spark2",
    ),
    "plan": ("spark-build --target gb10 plan", "spark-build --provide torch=public plan onnx"),
    "build": (
        "spark-build build torch --jobs 8 --memory 64G --detach",
        "spark-build build triton --stop-after configure",
        "spark-build build onnx --source onnx=../onnx",
        "spark-build build torch onnx --farm tls://head:8786",
    ),
    "matrix": (
        "spark-build matrix --trains 2.11,2.13 --targets gb10,host-cpu",
        "spark-build matrix onnx --pythons 3.11,3.12 --farm tls://head:8786",
        "spark-build matrix --trains 2.13,2.15 --dry-run",
    ),
    "attach": ("spark-build attach", "spark-build attach --stop"),
    "why": ("spark-build why torch",),
    "log": ("spark-build log torch --diagnosis",),
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
    "patches check": ("spark-build patches check --source torch=../pytorch",),
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
    "wheelhouse trust add": ("spark-build wheelhouse trust add ci ci.pub",),
    "wheelhouse trust list": ("spark-build wheelhouse trust list",),
    "wheelhouse trust remove": ("spark-build wheelhouse trust remove ci",),
    "wheelhouse serve": (
        "spark-build wheelhouse serve",
        "spark-build wheelhouse serve --host 0.0.0.0 --certificate node.pem",
    ),
    "remotes add": (
        "spark-build remotes add lab /mnt/lab --trust alice=alice.pub",
        "spark-build remotes add lab s3://bucket/lab --push --sign ~/.ssh/wheels",
    ),
    "remotes list": ("spark-build remotes list",),
    "remotes remove": ("spark-build remotes remove lab",),
    "remotes push": ("spark-build remotes push lab",),
    "remotes gc": ("spark-build remotes gc lab --older-than 30d --dry-run",),
    "farm init": ("spark-build farm init ~/farm",),
    "farm scheduler": ("spark-build farm scheduler --certificates ~/farm",),
    "farm worker": ("spark-build farm worker tls://head:8786 --certificates ~/farm",),
    "env create": (
        "spark-build env create ~/torch torch torchvision",
        "spark-build env create ~/lab --jupyter --python 3.12",
    ),
    "env update": ("spark-build env update ~/torch --dry-run",),
    "env check": ("spark-build env check ~/torch",),
    "verify": (
        "spark-build verify",
        "spark-build verify --burn-in --full --dtype bf16",
        "spark-build verify --burn-in --nodes spark1,spark2",
    ),
    "verify compare": ("spark-build verify compare OLD.json NEW.json",),
    "verify gate": ("spark-build verify gate --min-ratio 1.0",),
    "verify history": ("spark-build verify history",),
    "bench run": (
        "spark-build bench run --list",
        "spark-build bench run --arm public=public --arm ours=wheelhouse",
    ),
    "bench compare": ("spark-build bench compare OLD.json NEW.json --fail-above 5",),
    "bench report": ("spark-build bench report runs/RUN/bench.json",),
    "config show": ("SPARK_BUILD_TARGET=gb10 spark-build config show",),
    "completion": ("spark-build completion fish > ~/.config/fish/completions/spark-build.fish",),
}


def examples_of(name: str) -> tuple[str, ...]:
    """Return what is typed for a command; for a group the first of its first commands."""
    first = (lines[0] for command, lines in EXAMPLES.items() if command.startswith(f"{name} "))
    return EXAMPLES.get(name) or tuple(islice(first, 3))
