"""Make a site of the pages in this folder: `sphinx-build -W docs site`, with the extra `docs`."""

import re

import click
from sphinx.application import Sphinx

from spark_build import __version__
from spark_build.cli.main import cli

project = "spark-build"
version = release = __version__
extensions = ["myst_parser", "sphinx_click"]
html_theme = "furo"
html_title = f"{project} {version}"
html_show_copyright = False
html_copy_source = False
highlight_language = "none"  # most blocks are what a terminal shows
default_role = "literal"  # help texts write `words` so
smartquotes = False  # would make a dash of --json
nitpicky = True
myst_heading_anchors = 3

COMMON = {parameter.name for parameter in cli.params}


def _prose(_app: Sphinx, _context: click.Context, lines: list[str]) -> None:
    r"""Escape what reStructuredText would read as marks; lines behind a \b stay as they are."""
    text = re.sub(r"([*_\\])", r"\\\1", "\n".join(lines))
    lines[:] = re.sub(
        r"(?m)(?:^\| .*\n?)+",
        lambda kept: "::\n\n" + re.sub(r"(?m)^\| ", "   ", kept[0].replace("\\", "")) + "\n",
        text,
    ).split("\n")


def _options(_app: Sphinx, context: click.Context, lines: list[str]) -> None:
    """Give each option as its help text does, the ones that all commands have only once."""
    lines.clear()
    for option in context.command.params:
        record = option.get_help_record(context) if isinstance(option, click.Option) else None
        if record and (context.parent is None or option.name not in COMMON):
            text = [record[1]]
            _prose(_app, context, text)
            lines += [f".. option:: {record[0].replace(' / ', ', ')}", "", f"   {text[0]}", ""]


def _arguments(_app: Sphinx, _context: click.Context, lines: list[str]) -> None:
    """Leave arguments to the usage line, which says what is needed and what may be repeated."""
    lines.clear()


def setup(app: Sphinx) -> None:
    """Connect what makes the command reference read as the help texts do."""
    app.connect("sphinx-click-process-description", _prose)
    app.connect("sphinx-click-process-epilog", _prose)
    app.connect("sphinx-click-process-options", _options)
    app.connect("sphinx-click-process-arguments", _arguments)
