"""Help: short enough to read, the same for every command, with examples that can be typed."""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location

import pytest

from spark_build.cli.options import EXAMPLES
from tests.contract.harness import CHECKOUT, commands, help_of

ALL = [" ".join(words) for words in commands()]


@pytest.mark.parametrize("name", ALL)
def test_help_has_examples_on_lines_that_fit_and_the_common_options_once(name: str) -> None:
    text = help_of(name.split())
    assert max(map(len, text.splitlines())) <= 80
    assert "\nExamples:\n  " in text
    assert ("--root DIR" in text) is (name == "")
    if name:
        assert "(spark-build -h)" in text


def test_examples_are_of_commands_that_there_are() -> None:
    assert set(EXAMPLES) == set(ALL)
    # That each line can be typed, test_printed_commands.py shows.
    assert [line for name, lines in EXAMPLES.items() for line in lines if f" {name}" not in line] == []


def test_the_manual_page_says_what_help_says() -> None:
    spec = spec_from_file_location("manpage", CHECKOUT / "tools" / "manpage.py")
    assert spec is not None
    assert spec.loader is not None
    manpage = module_from_spec(spec)
    spec.loader.exec_module(manpage)
    assert manpage.page() == (CHECKOUT / "docs" / "spark-build.1").read_text(), "run tools/manpage.py"
