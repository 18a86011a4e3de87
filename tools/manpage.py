"""Write docs/spark-build.1, the manual page, from the text of --help: `python tools/manpage.py`."""

from __future__ import annotations

import inspect
from pathlib import Path

import click

from spark_build.cli.main import cli
from spark_build.cli.options import Helpful, examples_of

PAGE = Path(__file__).resolve().parents[1] / "docs" / "spark-build.1"
REST = """.SH FILES
.TP
.I spark-build.toml
settings; see
.BR "spark-build config --help" .
.SH EXIT STATUS
0 all well; 1 failures of different kinds; 2 usage; 3 recipe; 4 machine; 5 source; 6 patch; 7 build stage;
8 audit; 9 verification said no; 10 store; 11 inconclusive; 12 nothing was checked; 70 a bug in spark\\-build;
129, 130, 141, 143 ended by a signal.
"""


def page() -> str:
    """Return the manual page as roff."""
    context = click.Context(cli, info_name="spark-build")
    parts = ['.TH SPARK\\-BUILD 1 "" "" "User Commands"', ".SH NAME"]
    parts += [f"spark\\-build \\- {_text(str(cli.help).partition(',')[0])}"]
    parts += [".SH SYNOPSIS", f".B spark\\-build\n{_text(' '.join(cli.collect_usage_pieces(context)))}"]
    parts += [".SH OPTIONS", "Before or after the command:", *_options(cli, context), ".SH COMMANDS"]
    parts += [text for name in cli.list_commands(context) for text in _command(cli, context, name)]
    return "\n".join(parts) + "\n" + REST


def _command(group: click.Group, parent: click.Context, name: str) -> list[str]:
    command = group.get_command(parent, name)
    assert isinstance(command, Helpful)
    context = click.Context(command, info_name=name, parent=parent)
    usage = " ".join(command.collect_usage_pieces(context))
    parts = [f".SS {_text(f'{context.command_path} {usage}')}"]
    parts += [".PP\n" + _text(each) for each in inspect.cleandoc(str(command.help)).split("\n\n")]
    parts += _options(command, context)
    lines = examples_of(context.command_path.partition(" ")[2])
    parts += [".PP", ".nf", *(f"    {_text(line)}" for line in lines), ".fi"]
    if isinstance(command, click.Group):
        for inner in command.list_commands(context):
            parts += _command(command, context, inner)
    return parts


def _options(command: Helpful, context: click.Context) -> list[str]:
    rows = [(names, text) for names, text in command.own_options(context) if "--help" not in names]
    return [f".TP\n.B {_text(names)}\n{_text(text)}" for names, text in rows]


def _text(text: str) -> str:
    """Return a text as roff: on one line, with hyphens that can be copied."""
    escaped = " ".join(text.split()).replace("\\", "\\e").replace("-", "\\-").replace("`", "'")
    return f"\\&{escaped}" if escaped.startswith((".", "'")) else escaped


if __name__ == "__main__":
    PAGE.write_text(page())
