"""Hints work as they are printed: what was said of root, target and train is repeated."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from spark_build.cli.hints import carry_over, typeable
from spark_build.cli.lazy_group import COMMANDS
from spark_build.cli.main import _program, main
from spark_build.cli.options import CALLED, Options
from spark_build.cli.recipes import _to_build
from spark_build.errors import AGAIN, GOES_ON, Hint, as_hint, ours, rm, shell


def said(root: str | None = None, target: str = "auto", train: str | None = None) -> Options:
    options = Options()
    options.root, options.target, options.train = root, target, train
    return options


def building() -> Options:
    options = said(train="2.13")
    options.provide, options.source = {"torch": "my torch", "llvm": "public"}, {"demo": "my/demo"}
    options.choices = {("torch", "blas"): "MKL", ("torch", "march"): ""}
    return options


CHOSEN = "--option torch.blas=MKL --option torch.march="


ALL = said("my wheels", "gb10", "2.13")
AGAIN_HERE = "spark-build --root 'my wheels' --target gb10 --train 2.13"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command(command: str) -> None:
    hint = Hint(rm("a b"), ours(command, "demo"))
    assert typeable(hint, ALL) == f"rm -r 'a b', then: {AGAIN_HERE} {command} demo"
    assert typeable(hint, said()) == f"rm -r 'a b', then: spark-build {command} demo"


@pytest.mark.parametrize(
    ("hint", "text"),
    [
        (as_hint("pip install 'spark-build[verify]'"), "pip install 'spark-build[verify]'"),
        (Hint("x, then ", GOES_ON), "x, then run the same command again: it goes on where it stopped"),
        (Hint(ours("verify"), AGAIN), f"{AGAIN_HERE} verify, then run the same command again"),
        (Hint("delete it, then: ", ours("recipes pin", "demo"), "  (writes it)"),
         f"delete it, then: {AGAIN_HERE} recipes pin demo  (writes it)"),
        (Hint(shell("df . | cat"), shell("ls", "a b")), "df . | cat, then: ls 'a b'"),
    ],
)  # fmt: skip
def test_notes_and_steps_stand_in_their_order(hint: Hint, text: str) -> None:
    assert typeable(hint, ALL) == text


def test_what_a_step_says_itself_is_not_repeated() -> None:
    step = ours("all", options=("--target", "h200"))
    assert typeable(step, ALL) == "spark-build --root 'my wheels' --train 2.13 --target h200 all"
    assert typeable(ours("verify", "--train", "2.9"), said(train="2.13")) == "spark-build verify --train 2.9"


def test_a_line_for_another_machine_has_none_of_ours() -> None:
    """Neither the folder nor the target nor the program of this one means anything there."""
    options = said("my wheels", "gb10", "2.13")
    options.program = "./spark-build"
    there = "then on that machine: spark-build wheelhouse import --unsigned FILE.tar, and look"
    here = "./spark-build --root 'my wheels' --target gb10 --train 2.13 wheelhouse export FILE.tar"
    assert typeable(carry_over("look"), options) == f"{here}, {there}"


@pytest.mark.parametrize("command", ["all", "build", "plan"])
def test_what_builds_is_told_all_that_is_in_the_keys(command: str) -> None:
    given = f"--train 2.13 --provide 'torch=my torch' --provide llvm=public {CHOSEN}"
    wanted = f"spark-build {given} {command} --source demo=my/demo x --shell"
    assert typeable(ours(command, "x", "--shell"), building()) == wanted
    chosen = typeable(ours(command, "--source", "demo=y", options=("--provide", "torch=public")), building())
    first = f"spark-build --train 2.13 --provide llvm=public {CHOSEN} --provide torch=public"
    assert chosen == f"{first} {command} --source demo=y"
    other = typeable(ours(command, options=("--provide", "demo=/x")), building())
    assert other.endswith(f"--provide demo=/x {command} --source demo=my/demo")
    there = typeable(ours(command, elsewhere=True), building())
    assert there.startswith("spark-build --provide 'torch=my torch'")
    assert f" {CHOSEN} {command} " in there


def test_doctor_is_told_what_a_plan_depends_on() -> None:
    given = f"--provide 'torch=my torch' --provide llvm=public {CHOSEN}"
    assert typeable(ours("doctor"), building()) == f"spark-build --train 2.13 {given} doctor"


def test_the_program_as_it_was_called_and_no_sudo_for_root() -> None:
    options = said(train="2.13")
    options.program = "'a b/spark-build'"
    hint = Hint(shell("sudo apt-get install -y g++ && printf x | sudo tee f"), ours("doctor"))
    line = typeable(hint, options)
    assert line.endswith("f, then: 'a b/spark-build' --train 2.13 doctor")
    assert line.count("sudo ") == 2
    options.is_root = True
    assert typeable(hint, options) == line.replace("sudo ", "")
    assert typeable(rm("my sudo folder"), options) == "rm -r 'my sudo folder'"


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
    assert typeable(ours("verify"), building()) == "spark-build --train 2.13 verify"


def test_a_line_may_repeat_the_folder_only() -> None:
    assert typeable(ours("attach"), ALL, ("--root",)) == "spark-build --root 'my wheels' attach"


def test_what_is_missing_is_installed_beside_this_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The pip on PATH is another Python's, in a checkout most of all."""
    monkeypatch.setitem(sys.modules, "distributed", None)
    assert main(["farm", "init", str(tmp_path)]) == 4
    line = shlex.join([sys.executable, "-m", "pip", "install", "spark-build[farm]"])
    assert capsys.readouterr().err.endswith(f"  next: {line}\n")


def test_what_recipes_new_and_list_say_next_is_called_as_they_were(tmp_path: Path) -> None:
    options = Options()
    options.program = "./spark-build"
    said = _to_build(options, tmp_path, ["tiny"])
    assert said == f"./spark-build --root {tmp_path} build tiny"
