"""Help: short enough to read, the same for every command, with examples that can be typed."""

from __future__ import annotations

import pytest

from spark_build.cli.lazy_group import EXAMPLES
from tests.contract.harness import commands, help_of

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
