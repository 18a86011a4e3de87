"""The next thing to type, so that it works as it stands."""

from __future__ import annotations

import re
from shlex import quote

import click

from spark_build.cli.options import Options


def typeable(text: str, options: Options | None = None) -> str:
    """Repeat what was given of --root, --target and --train in each `spark-build COMMAND` of a text.

    Without them the line would work on something else. `options` are those of the running command.
    """
    from spark_build.cli.main import COMMANDS

    options = options or click.get_current_context().ensure_object(Options)
    said = {"--root": options.root, "--target": options.target, "--train": options.train}
    again = [
        f"{name} {quote(value)}"
        for name, value in said.items()
        if value not in (None, "auto") and value and name not in text
    ]
    line = rf"(?<![\w./-])spark-build(?= (?:--\w|(?:{'|'.join(COMMANDS)})\b))"
    return re.sub(line, lambda _: " ".join(["spark-build", *again]), text)
