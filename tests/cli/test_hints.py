"""Hints work as they are printed: what was said of root, target and train is repeated."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_build.cli.hints import typeable
from spark_build.cli.lazy_group import COMMANDS
from spark_build.cli.main import _program
from spark_build.cli.options import CALLED, Options
from spark_build.cli.recipes import _to_build


def said(root: str | None = None, target: str = "auto", train: str | None = None) -> Options:
    options = Options()
    options.root, options.target, options.train = root, target, train
    return options


def building() -> Options:
    options = said(train="2.13")
    options.provide, options.source = {"torch": "my torch", "llvm": "public"}, {"demo": "my/demo"}
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


AGAIN = "spark-build --root 'my wheels' --target gb10 --train 2.13"
SAID = "spark-build --root 'a b' verify --target=x --train=y"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "spark-build verify --target h200, then: spark-build doctor",
            f"spark-build --root 'my wheels' --train 2.13 verify --target h200, then: {AGAIN} doctor",
        ),
        ("spark-build verify, then: rm --target y", f"{AGAIN} verify, then: rm --target y"),
        (
            "rm --train b, then: spark-build verify /a--root/x",
            f"rm --train b, then: {AGAIN} verify /a--root/x",
        ),
        (f"{SAID} or spark-build verify", f"{SAID} or {AGAIN} verify"),
    ],
)
def test_each_command_of_a_text_is_one_of_its_own(text: str, expected: str) -> None:
    assert typeable(text, ALL) == expected
    assert typeable(expected, ALL) == expected


@pytest.mark.parametrize("words", ["on that machine: ", "on a machine of that platform: "])
def test_a_line_for_another_machine_has_none_of_ours(words: str) -> None:
    """Neither the folder nor the target of this one means anything there."""
    there = f"then {words}spark-build wheelhouse import F.tar"
    line = typeable(f"spark-build wheelhouse export F.tar, {there}", ALL)
    assert line == f"{AGAIN} wheelhouse export F.tar, {there}"


def test_another_machine_has_its_own_program_and_users() -> None:
    options = said("my wheels")
    options.program, options.is_root = "/here/spark-build", True
    assert typeable("sudo x; spark-build all", options, repeat=()) == "sudo x; spark-build all"
    line = "on that machine: sudo apt-get install git"
    assert typeable(f"sudo x; {line}", options) == f"x; {line}"


@pytest.mark.parametrize("command", ["all", "build demo --shell", "plan"])
def test_what_builds_is_told_all_that_is_in_the_keys(command: str) -> None:
    name, _, rest = command.partition(" ")
    line = typeable(f"spark-build {command}  (goes on)", building())
    given = "--train 2.13 --provide 'torch=my torch' --provide llvm=public"
    wanted = f"spark-build {given} {name} --source demo=my/demo{rest and ' '}{rest}  (goes on)"
    assert line == wanted
    assert typeable(line, building()) == line
    chosen = typeable(f"spark-build {name} --provide torch=public", building())
    first = "spark-build --train 2.13 --provide llvm=public"
    assert chosen == f"{first} {name} --source demo=my/demo --provide torch=public"


def test_the_program_as_it_was_called_and_no_sudo_for_root() -> None:
    options = said(train="2.13")
    options.program = "./spark-build"
    text = "sudo apt-get install -y g++ && printf x | sudo tee f; spark-build doctor"
    line = typeable(text, options)
    assert line.endswith("; ./spark-build --train 2.13 doctor")
    assert typeable(line, options) == line
    assert line.count("sudo ") == 2
    options.is_root = True
    assert "sudo" not in typeable(text, options)


@pytest.mark.parametrize(
    ("called", "on_path", "program"),
    [
        ("bin/spark-build", False, "bin/spark-build"),
        ("bin/spark-build", True, "spark-build"),
        ("a b/spark-build", False, "'a b/spark-build'"),
        ("tests/__main__.py", False, "spark-build"),
    ],
)
def test_how_it_was_called(
    called: str, on_path: bool, program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / called
    file.parent.mkdir()
    file.touch(mode=0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(CALLED, called)
    monkeypatch.setenv("PATH", str(file.parent) if on_path else "")
    assert _program() == program


def test_what_does_not_build_is_not_told_it() -> None:
    assert typeable("spark-build verify", building()) == "spark-build --train 2.13 verify"


def test_a_line_may_repeat_the_folder_only() -> None:
    assert typeable("spark-build attach", ALL, ("--root",)) == "spark-build --root 'my wheels' attach"


def test_what_recipes_new_and_list_say_next_is_called_as_they_were(tmp_path: Path) -> None:
    options = Options()
    options.program = "./spark-build"
    said = _to_build(options, tmp_path, ["tiny"])
    assert said == f"./spark-build --root {tmp_path} build tiny"
