"""Settings from the environment and from files, and the commands config and completion."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from spark_build.cli.options import COMMAND_LINE, COMPLETE, Options, command, group, shared
from spark_build.errors import HostError, UsageError
from spark_build.text import nearest

if TYPE_CHECKING:  # --help is to start fast
    from pathlib import Path

FILE, PROJECT = "spark-build.toml", "pyproject.toml"
PREFIX = "SPARK_BUILD_"
HINT = "docs/settings.md lists the keys"
BUILDING = ("all", "build")
OF_GC = {"keep_runs": "runs_keep", "runs_older_than": "runs_age"}  # option of `wheelhouse gc`: our name


class Setting(NamedTuple):
    """A value, and where it comes from."""

    value: str
    origin: str


# Name: what is done without it.
KNOWN = {
    "root": "the checkout, else the user's data folder",
    "target": "auto",
    "train": "the default one",
    "remote": "none: `wheelhouse export` needs a FILE or --to",
    "jobs": "as many as fit into memory",
    "memory": "what is free, less a reserve",
    "sandbox": "auto",
    "runs_keep": "50 run folders",
    "runs_age": "30d",
}


def settings() -> dict[str, Setting]:
    """Return what the environment says, else the file of the working directory, else the user's own.

    The working directory may be somebody else's: its file neither says where wheels are sent nor takes a
    sandbox back that the user requires. Raises UsageError for a file that is none of ours, or a value that
    means nothing.
    """
    base = os.environ.get("XDG_CONFIG_HOME") or os.environ.get("HOME", "/") + "/.config"
    home, working = os.path.normpath(f"{base}/spark-build"), _working()
    own = _of_file(home, ((FILE, ""),))
    here = _of_file(working, ((FILE, ""), (PROJECT, "spark-build"))) if working != home else {}
    if "remote" in here:
        hint = f"write it into {home}/{FILE}, or set SPARK_BUILD_REMOTE"
        raise UsageError("remote is yours to say, not a folder's", where=here["remote"].origin, hint=hint)
    found = {**own, **here}
    if "sandbox" in own and own["sandbox"].value == "require":
        found["sandbox"] = own["sandbox"]
    if os.environ.get("SPARK_BUILD_HOME"):  # the environment counts more
        found.pop("root", None)
    for name in KNOWN:
        variable = PREFIX + name.upper()
        if os.environ.get(variable):
            found[name] = Setting(os.environ[variable], variable)
    said = found.get("sandbox")
    if said and said.value not in ("auto", "require"):
        raise UsageError(f"sandbox is {said.value!r}", where=said.origin, hint="write auto or require")
    return found


def _working() -> str:
    try:
        return os.getcwd()  # noqa: PTH109 - --help is to start fast
    except FileNotFoundError as error:
        raise HostError("the folder that you are in was removed", hint="cd to another one") from error


def _of_file(folder: str, files: Sequence[tuple[str, str]]) -> dict[str, Setting]:
    """Return what the first of the files says, in its table."""
    for name, table in files:
        path = f"{folder}/{name}"
        # Strings: --help is to start fast. One that is no file is told; of pyproject.toml others do that.
        if not (os.path.isfile(path) and _mentioned(path) if table else os.path.lexists(path)):  # noqa: PTH113
            continue
        from pathlib import Path

        from spark_build.files import text_of
        from spark_build.paths import refuse_planted

        file = Path(path)
        refuse_planted(file)
        if file.exists() and not file.is_file():  # a pipe or a device would be read for ever
            raise UsageError("is no file", where=path, hint=HINT)
        return _checked(file, _parsed(file, text_of(file, HINT), table))
    return {}


def _mentioned(path: str) -> bool:
    """Return whether a pyproject.toml may have our table; reading TOML takes longer than most help."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - --help is to start fast
            return bool(re.search(rb"""spark-build["']?\s*(\]|\.\s*["'a-z]|=\s*[^"'\s])""", file.read()))
    except OSError:  # told where it is read
        return True


def _parsed(file: Path, text: str, table: str) -> dict[str, Any]:
    from spark_build.recipes.toml_positions import read_toml

    try:
        found = read_toml(text)  # whose time is bounded: the folder may be anybody's
    except ValueError as error:
        raise UsageError(f"not TOML: {error}", where=str(file), hint=HINT) from error
    if not table:
        return found
    tool = found.get("tool")
    own = tool.get("spark-build", {}) if isinstance(tool, dict) else {}  # the name may be in a comment only
    if not isinstance(own, dict):
        raise UsageError("tool.spark-build is no table", where=str(file), hint=HINT)
    return own


def _checked(file: Path, found: dict[str, Any]) -> dict[str, Setting]:
    from spark_build.paths import folder_given

    for name, value in found.items():
        if name not in KNOWN:
            raise UsageError(f"unknown key '{name}'{nearest(name, KNOWN)}", where=str(file), hint=HINT)
        if not isinstance(value, str | int) or isinstance(value, bool):
            raise UsageError(f"{name} must be a text or a number", where=str(file), hint=HINT)
    if "root" in found:
        found["root"] = str(file.parent / folder_given(str(found["root"]), str(file)))
    return {name: Setting(str(value), str(file)) for name, value in found.items()}


def apply(options: Options, found: dict[str, Setting]) -> dict[str, Any]:
    """Put settings into the options; returns click's defaults for the commands that have others of them."""
    for name in ("root", "target", "train"):
        if name in found:
            setattr(options, name, found[name].value)
    options.settings = dict(found)
    files = (f"{_working()}/{FILE}", f"{_working()}/{PROJECT}")
    options.root_of_folder = "root" in found and found["root"].origin in files
    limits: dict[str, str] = {name: found[name].value for name in ("jobs", "memory") if name in found}
    if "sandbox" in found and found["sandbox"].value == "require":
        limits["require_sandbox"] = "true"
    defaults: dict[str, Any] = dict.fromkeys(BUILDING, limits) if limits else {}
    of_gc = {option: found[name].value for option, name in OF_GC.items() if name in found}
    return {**defaults, "wheelhouse": {"gc": of_gc}} if of_gc else defaults


def origin_of(options: Options, error: click.ClickException) -> str:
    """Return "FILE: " or "VARIABLE: " where the value that click refuses is a setting's, else ""."""
    from click.core import ParameterSource

    if not isinstance(error, click.BadParameter) or error.ctx is None or error.param is None:
        return ""
    name = str(error.param.name)
    found = options.settings.get(OF_GC.get(name, name))
    is_set = error.ctx.get_parameter_source(name) is ParameterSource.DEFAULT_MAP
    return f"{found.origin}: " if found and is_set else ""


@group()
@shared
def config(_options: Options) -> None:
    """Show the settings and where they come from.

    The command line comes first, then the environment (SPARK_BUILD_ROOT, _TARGET, _TRAIN, _REMOTE, _JOBS,
    _MEMORY, _SANDBOX, _RUNS_KEEP, _RUNS_AGE), then spark-build.toml or [tool.spark-build] of pyproject.toml
    in the working directory, then ~/.config/spark-build/spark-build.toml.
    """


@config.command()
@shared
def show(options: Options) -> None:
    """Show each setting, its value, and where it comes from."""
    from spark_build.cli import render

    found: dict[str, Setting] = options.settings
    for name in ("root", "target", "train"):
        if name in options.typed:
            found = {**found, name: Setting(str(getattr(options, name)), COMMAND_LINE)}
    if "root" not in found and os.environ.get("SPARK_BUILD_HOME"):
        found = {**found, "root": Setting(os.environ["SPARK_BUILD_HOME"], "SPARK_BUILD_HOME")}
    rows = [(name, *found.get(name, Setting(text, "default"))) for name, text in KNOWN.items()]
    if options.json:
        keys = ("name", "value", "from")
        render.print_json({"settings": [dict(zip(keys, row, strict=True)) for row in rows]})
    else:
        render.print_table(["SETTING", "VALUE", "FROM"], rows)


@command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@shared
def completion(options: Options, shell: str) -> None:
    """Print the script with which a shell completes commands and options.

    Write it to ~/.local/share/bash-completion/completions/spark-build (bash), to _spark-build in a folder
    of fpath (zsh), or to ~/.config/fish/completions/spark-build.fish.
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    script = kind(click.get_current_context().find_root().command, {}, "spark-build", COMPLETE).source()
    if options.json:
        from spark_build.cli import render

        render.print_json({"shell": shell, "script": script})
    else:
        print(script)
