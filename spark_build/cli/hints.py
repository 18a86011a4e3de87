"""Hints as lines to type: with the program as it was called and the options in force."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from itertools import chain, pairwise

import click

from spark_build.cli.options import Options
from spark_build.errors import Hint, HintStep, NothingCheckedError, as_hint, ours

VIEW = ("--root", "--target", "--train")
BUILDING = ("all", "build", "plan")  # what they do depends on --provide, --option and --source, too


def typeable(
    hint: Hint | HintStep | str, options: Options | None = None, repeat: tuple[str, ...] = VIEW
) -> str:
    """Return a hint as text; its lines of ours repeat the --root, --target and --train given now.

    Without them a line would work on something else; one for another machine repeats none of the three. Lines
    of `plan`, `build`, `all` and `doctor` also repeat --provide and --option, the first three --source. For
    root sudo is left out.
    `options` are those of the running command.
    """
    context = click.get_current_context(silent=True)
    options = options or (context.ensure_object(Options) if context else Options())
    found = as_hint(hint) or Hint()
    text = ""
    for before, part in pairwise(("", *found.parts)):
        if isinstance(before, HintStep) and isinstance(part, HintStep):
            text += ", then " if part.kind == "again" else ", then: "
        text += _finished(part, options) if isinstance(part, str) else _line(part, options, repeat)
    return text


def _finished(text: str, options: Options) -> str:
    """Return a note or a finished line of the system; for root without sudo."""
    return re.sub(r"(?<![\w'\"/-])sudo (?=[a-z])", "", text) if options.is_root else text


def _line(step: HintStep, options: Options, repeat: tuple[str, ...]) -> str:
    """Return a step as it is typed."""
    if step.kind == "again":
        return "run the same command again"
    if step.kind == "shell":
        if not step.words[1:]:
            return _finished(step.words[0], options)
        as_root = options.is_root and step.words[0] == "sudo"
        return shlex.join(step.words[1:] if as_root else step.words)
    said = (*step.options, *step.words)
    given = {"--root": options.root, "--target": options.target, "--train": options.train}
    first = [
        (name, str(given[name]))
        for name in repeat
        if given[name] not in (None, "", "auto") and name not in said and not step.elsewhere
    ]
    builds = not {*step.words[:1]}.isdisjoint(BUILDING)
    plans = builds or step.words[:1] == ("doctor",)
    if plans:
        chosen = {f"{recipe}.{option}": value for (recipe, option), value in options.choices.items()}
        first += [*_pairs("--provide", options.provide, said), *_pairs("--option", chosen, said)]
    last = _pairs("--source", options.source, said) if builds else []  # only commands that build know it
    words = [*chain(*first), *step.options, *step.words[:1], *chain(*last), *step.words[1:]]
    return f"{'spark-build' if step.elsewhere else options.program} {shlex.join(words)}"


def _pairs(name: str, values: Mapping[str, str], said: Sequence[str]) -> list[tuple[str, str]]:
    """Return an option for each value of NAME=VALUE that a line does not give itself."""
    return [
        (name, f"{key}={value}")
        for key, value in values.items()
        if not any(option == name and word.startswith(f"{key}=") for option, word in pairwise(said))
    ]


def carry_over(rest: str, options: Sequence[str] = ()) -> Hint:
    """Return how wheels get to a machine that they are for; `rest` is what is done there with them."""
    here = ours("wheelhouse export FILE.tar", options=options)
    there = ours("wheelhouse import --unsigned FILE.tar", elsewhere=True)
    return Hint(here, ", then on that machine: ", there, f", and {rest}")


def nothing_checked(why: str, following: Hint | HintStep | str) -> int:
    """Report on stderr that nothing was checked, why, and what to do; returns the exit code.

    The document of --json is printed as always: it says what was looked at, which is nothing.
    """
    click.echo(f"error: nothing was checked: {why}", err=True)
    click.echo(f"  next: {typeable(following)}", err=True)
    return NothingCheckedError.exit_code
