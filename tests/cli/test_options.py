"""--option, --with and recipes that are not built by default, as a user meets them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import pytest

from spark_build.cli import main
from spark_build.cli.options import SIZE
from tests.conftest import NATIVE, PROJECT, RECIPE, Root, make_root
from tests.contract.harness import commands

OPTION = """
compile_flags = ["-DANSWER={option:answer}"]
[options.answer]
value = ""
choices = ["", "7"]
why = "native.c: what it answers"
"""
ON_DEMAND = """
[[build.variants]]
when = { cuda = false }
default = false
"""


def run(root: Root, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, Any]:
    """Run the command line in this process: its exit code and its JSON document."""
    code = main.main([*root.command("--json", *arguments)[3:]])
    return code, json.loads(capsys.readouterr().out)


def test_what_is_not_built_by_default_is_built_when_named(
    root: Root, capsys: pytest.CaptureFixture[str]
) -> None:
    root.recipe(RECIPE.format(disk=50) + ON_DEMAND)

    def decision(*arguments: str) -> tuple[str, list[str]]:
        code, document = run(root, capsys, "plan", *arguments)
        assert code == 0
        (step,) = [one for one in document["steps"] if one["recipe"] == "tiny"]
        return step["decision"], step["reasons"]

    assert decision() == ("SKIP", ["not built for host-cpu unless named (--with tiny)"])
    assert decision("tiny")[0] == "BUILD"
    assert decision("--with", "tiny")[0] == "BUILD"
    assert run(root, capsys, "plan", "--with", "tyny")[0] == 2


def test_the_catalogue_is_planned_and_listed_only_when_asked_for(
    root: Root, capsys: pytest.CaptureFixture[str]
) -> None:
    pin = (
        '\n[pin]\nversion = "1.0"\nsources = [{ kind = "git", url = "https://a.b/c", tag = "v1", commit = "%s" }]\n'
        % ("a" * 40)
    )
    for name in ("more", "most"):
        text = (
            RECIPE.format(disk=50).replace('"tiny"', f'"{name}"').replace("kind", "default = false\nkind", 1)
        )
        (root.folder / f"recipes/{name}.toml").write_text(text + pin)

    def added(command: str, *arguments: str) -> set[str]:
        """Return which of the three recipes of this test are in the command's document."""
        _, document = run(root, capsys, *command.split(), *arguments)
        return {row["recipe"] for row in document.get("steps") or document["recipes"]} & {
            "more",
            "most",
            "tiny",
        }

    assert added("plan") == added("recipes list") == {"tiny"}
    assert added("recipes list", "--catalogue") == {"more", "most"}
    assert added("plan", "--with", "most") == {"most", "tiny"}
    both = added("plan", "--with", "more,most")
    assert both == added("plan", "--with", "more", "--with", "most") == {"more", "most", "tiny"}


def test_an_option_changes_the_key_and_must_be_known(root: Root, capsys: pytest.CaptureFixture[str]) -> None:
    root.recipe(RECIPE.format(disk=50) + OPTION)
    keys = set()
    for arguments in ((), ("--option", "tiny.answer=7"), ("--option", "tiny.answer=")):
        code, document = run(root, capsys, "plan", "tiny", *arguments)
        assert code == 0
        keys.add(document["steps"][0]["key"])
    assert len(keys) == 2
    for wrong in ("tiny.answer=8", "tiny.other=7", "answer=7", "tiny.answer"):
        code, document = run(root, capsys, "plan", "tiny", "--option", wrong)
        assert (code, wrong.split("=")[0] in document["error"]["message"] or "other" in wrong) == (2, True)


def test_an_option_reaches_the_compiler(tmp_path: Path) -> None:
    native = "#ifndef ANSWER\n#define ANSWER 42\n#endif\n" + NATIVE.replace("(42)", "(ANSWER)")
    root = make_root(tmp_path, {**PROJECT, "native.c": native})
    root.recipe(RECIPE.format(disk=50) + OPTION)
    done = root.run("build", "tiny", "--no-closure", "--option", "tiny.answer=7")
    assert done.returncode == 0, done.stderr
    (log,) = root.folder.glob("wheelhouse/store/*/*/build.log")
    assert "-DANSWER=7" in log.read_text(errors="replace")


@pytest.mark.parametrize("text", ["nan", "inf", "1e999"])
def test_no_option_takes_a_number_that_compares_with_nothing(text: str) -> None:
    """A gate would let everything pass."""
    found = 0
    for words in commands():
        command: click.Command = main.cli
        for word in words:
            assert isinstance(command, click.Group)
            inner = command.get_command(click.Context(command), word)
            assert inner is not None
            command = inner
        for one in command.params:
            if isinstance(one.type, click.types.FloatParamType) or one.type is SIZE:
                found += 1
                with pytest.raises(click.BadParameter):
                    one.type(text, one)
    assert found > 8
