"""Hints that work as printed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from shlex import quote

import click

from spark_build.cli.options import Options

VIEW = ("--root", "--target", "--train")
BUILDING = ("all", "build", "plan")  # what they do depends on --provide and --source, too
OURS = r"(?<![\w./-])spark-build"
OPTIONS = r"(?: --\w[\w-]*(?:[ =](?:'[^']*'|[^\s'])+)?)*"
ELSEWHERE = re.compile(r"\bmachine\b[^:]*: $")  # "on that machine: spark-build ..."


def typeable(text: str, options: Options | None = None, repeat: tuple[str, ...] = VIEW) -> str:
    """Add the --root, --target and --train given now to each `spark-build COMMAND` in a text.

    Without them the line would work on something else. Those that plan repeat --provide, those
    that build --source, too; those for another machine nothing. The program is called as it was now, and
    root needs no sudo: not so on another machine, which is meant where nothing is to be repeated.
    `options` are those of the running command.
    """
    from spark_build.cli.lazy_group import COMMANDS

    context = click.get_current_context(silent=True)
    options = options or (context.ensure_object(Options) if context else Options())
    given = {"--root": options.root, "--target": options.target, "--train": options.train}
    again = {name: given[name] for name in repeat if given[name] not in (None, "", "auto")}
    provided = {f"--provide {need}": where for need, where in options.provide.items()}
    sources = {f"--source {name}": where for name, where in options.source.items()}

    def completed(match: re.Match[str]) -> str:
        if ELSEWHERE.search(text[: match.start()]):
            return match[0]
        line = match[0] + re.split(rf", then\b|{OURS} ", text[match.end() :])[0]
        builds = match["command"] in BUILDING
        plans = builds or match["command"] == "doctor"
        first = _typed({**again, **(provided if plans else {})}, line)
        last = _typed(sources if builds else {}, line)  # only commands that build know it
        return (
            f"{options.program if repeat else 'spark-build'}{first}{match['said']} {match['command']}{last}"
        )

    def bare(match: re.Match[str]) -> str:
        return match[0] if ELSEWHERE.search(text[: match.start()]) else ""

    if options.is_root and repeat:
        text = re.sub(r"\bsudo (?=[a-z])", bare, text)
    return re.sub(rf"{OURS}(?P<said>{OPTIONS}) (?P<command>{'|'.join(COMMANDS)})\b", completed, text)


def nothing_checked(why: str, following: str) -> int:
    """Report on stderr that nothing was checked, why, and what to do; returns the exit code.

    The document of --json is printed as always: it says what was looked at, which is nothing.
    """
    from spark_build.errors import NothingCheckedError

    click.echo(f"error: nothing was checked: {why}", err=True)
    click.echo(f"  next: {typeable(following)}", err=True)
    return NothingCheckedError.exit_code


def _typed(options: Mapping[str, str | None], line: str) -> str:
    """Return the options given now that a line lacks, by their beginning: --root, --provide torch."""
    typed = ""
    for start, value in options.items():
        name, _, key = start.partition(" ")
        told = rf"'?{re.escape(key)}=" if key else ""
        if not re.search(rf"(?<!\S){name}[ =]{told}", line):
            typed += f" {name} {quote(f'{key}={value}' if key else str(value))}"
    return typed
