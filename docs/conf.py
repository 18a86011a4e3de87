"""Make a site of the pages in this folder: `sphinx-build -W docs site`, with the extra `docs`."""

import re
from typing import cast

import click
from sphinx.application import Sphinx

from spark_build import __version__
from spark_build.cli.options import Helpful, examples_of

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


def _prose(_app: Sphinx, _context: click.Context, lines: list[str]) -> None:
    """Escape what reStructuredText would read as marks."""
    lines[:] = [_escaped(line) for line in lines]


def _escaped(text: str) -> str:
    return re.sub(r"([*_\\])", r"\\\1", text)


def _options(_app: Sphinx, context: click.Context, lines: list[str]) -> None:
    """Give each option as its help text does, the ones that all commands have only once."""
    lines.clear()
    for names, text in cast("Helpful", context.command).own_options(context):
        if names != "--help":
            lines += [f".. option:: {names.replace(' / ', ', ')}", "", f"   {_escaped(text)}", ""]


def _arguments(_app: Sphinx, _context: click.Context, lines: list[str]) -> None:
    """Leave arguments to the usage line, which says what is needed and what may be repeated."""
    lines.clear()


def _examples(_app: Sphinx, context: click.Context, lines: list[str]) -> None:
    """Give the help text's examples."""
    name = context.command_path.partition(" ")[2]
    lines += [".. rubric:: Examples", "", "::", "", *(f"   {line}" for line in examples_of(name)), ""]


def setup(app: Sphinx) -> None:
    """Connect what makes the command reference read as the help texts do."""
    app.connect("sphinx-click-process-description", _prose)
    app.connect("sphinx-click-process-options", _options)
    app.connect("sphinx-click-process-arguments", _arguments)
    app.connect("sphinx-click-process-epilog", _examples)
