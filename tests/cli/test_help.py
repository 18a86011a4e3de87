"""Help: short enough to read, the same for every command, with examples that can be typed."""

from __future__ import annotations

import re
from importlib.util import module_from_spec, spec_from_file_location

import pytest

from spark_build.cli.options import EXAMPLES, examples_of
from tests.contract.harness import CHECKOUT, commands, help_of

ALL = [" ".join(words) for words in commands()]


@pytest.mark.parametrize("name", ALL)
def test_help_has_examples_on_lines_that_fit_and_the_common_options_once(name: str) -> None:
    text = help_of(name.split())
    assert max(map(len, text.splitlines())) <= 80
    assert "\nExamples:\n  " in text
    assert ("--root DIR" in text) is (name == "")
    assert "...\n" not in text.partition("\n\n")[2], "the first sentence is too long for the list of commands"
    if name:
        assert "(spark-build -h)" in text


@pytest.mark.parametrize("name", ALL)
def test_the_tables_of_help_have_one_column_of_texts(name: str) -> None:
    """A row that is too long has its text on the next line, in the column of the others."""
    for section in re.split(r"\n(?=\S)", help_of(name.split())):
        title, _, body = section.partition("\n")
        if not title.endswith(":") or title == "Examples:" or title.startswith("Usage:"):
            continue
        rows = [line for line in body.splitlines() if line.strip()]
        columns = set()
        for row in rows:
            found = re.match(r"  \S.*?  +(?=\S)", row) if row.startswith("  ") and row[2] != " " else None
            alone = found is None and row[2:3] != " "
            if not alone:
                columns.add(found.end() if found else len(row) - len(row.lstrip()))
        assert len(columns) == 1, (title, columns)


def test_examples_are_of_commands_that_there_are() -> None:
    assert set(EXAMPLES) <= set(ALL)
    assert [name for name in ALL if not examples_of(name)] == []
    # That each line can be typed, test_printed_commands.py shows.
    assert [line for name, lines in EXAMPLES.items() for line in lines if f" {name}" not in line] == []


def test_the_manual_page_says_what_help_says() -> None:
    spec = spec_from_file_location("manpage", CHECKOUT / "tools" / "manpage.py")
    assert spec is not None
    assert spec.loader is not None
    manpage = module_from_spec(spec)
    spec.loader.exec_module(manpage)
    assert manpage.page() == (CHECKOUT / "docs" / "spark-build.1").read_text(), "run tools/manpage.py"
