"""Hints work as they are printed: what was said of root, target and train is repeated."""

from __future__ import annotations

import pytest

from spark_build.cli.hints import typeable
from spark_build.cli.main import COMMANDS
from spark_build.cli.options import Options


def said(root: str | None = None, target: str = "auto", train: str | None = None) -> Options:
    options = Options()
    options.root, options.target, options.train = root, target, train
    return options


ALL = said("my wheels", "gb10", "2.13")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command(command: str) -> None:
    line = f"rm x, then: spark-build {command} demo"
    repeated = f"rm x, then: spark-build --root 'my wheels' --target gb10 --train 2.13 {command} demo"
    assert typeable(line, ALL) == repeated
    assert typeable(line, said()) == line


def test_what_the_hint_says_itself_stays() -> None:
    line = typeable("spark-build --target h200 all", ALL)
    assert line == "spark-build --root 'my wheels' --train 2.13 --target h200 all"


@pytest.mark.parametrize(
    "text",
    [
        *("pip install 'spark-build[remote]'", "spark-build itself is no wheel", "spark-build allows it"),
        *("run ~/x/spark-build build", "my-spark-build build", "set SPARK_BUILD_HOME=DIR"),
    ],
)
def test_what_is_no_line_of_ours_stays(text: str) -> None:
    assert typeable(text, ALL) == text
