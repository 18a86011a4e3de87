"""Settings of files and of the environment, and what shells complete."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from spark_build.cli.config import apply, settings
from spark_build.cli.main import cli, main
from spark_build.cli.options import COMPLETE, Options
from spark_build.journal import write_crash_report


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory, and an environment without settings."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("SPARK_BUILD_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, tuple[str, str]]:
    capsys.readouterr()
    assert main(["--json", *arguments, "config", "show"], Options()) == 0
    rows: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["settings"]
    return {row["name"]: (row["value"], row["from"]) for row in rows}


def test_what_counts_most(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert {origin for _, origin in shown(capsys).values()} == {"default"}
    project = place / "pyproject.toml"
    project.write_text('[tool.spark-build]\ntarget = "thor"\n')
    assert shown(capsys)["target"] == ("thor", str(project))
    file = place / "spark-build.toml"
    file.write_text('target = "gb10"\ntrain = "2.13"\nroot = "here"\njobs = 3\n')
    found = shown(capsys)
    assert found["target"] == ("gb10", str(file))
    assert found["jobs"] == ("3", str(file))
    assert found["root"] == (str(place / "here"), str(file))
    monkeypatch.setenv("SPARK_BUILD_TRAIN", "2.11")
    monkeypatch.setenv("SPARK_BUILD_JOBS", "5")
    found = shown(capsys, "--train", "2.9")
    assert found["train"] == ("2.9", "command line")
    assert found["jobs"] == ("5", "SPARK_BUILD_JOBS")
    assert found["target"] == ("gb10", str(file))


def test_a_root_that_a_folder_names_is_not_the_users_choice(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that its recipes share no objects with others: `Home.is_strange`."""
    (place / "spark-build.toml").write_text('root = "here"\n')

    def strange(*words: str) -> bool:
        options = Options()
        assert main([*words, "config", "show"], options) == 0
        capsys.readouterr()
        return options.home().is_strange

    assert strange()
    assert not strange("--root", str(place / "here"))
    monkeypatch.setenv("SPARK_BUILD_ROOT", str(place / "here"))
    assert not strange()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
@pytest.mark.parametrize("name", ["spark-build.toml", "pyproject.toml"])
def test_a_file_that_another_user_put_where_everybody_may(
    place: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """As in /tmp, where somebody comes by."""
    (place / name).write_text('root = "evil"\n' if name == "spark-build.toml" else "[tool.spark-build]\n")
    os.chown(place / name, 65534, 65534)
    shown(capsys)
    place.chmod(0o1777)
    assert main(["config", "show"], Options()) == 2
    assert f"{place / name} is another user's" in capsys.readouterr().err


def test_they_reach_the_commands(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What each command gets: root, target and train in its Options, the others as its own options."""
    (place / "spark-build.toml").write_text('target = "gb10"\njobs = 3\nsandbox = "require"\n')
    monkeypatch.setenv("SPARK_BUILD_MEMORY", "2G")
    monkeypatch.setenv("SPARK_BUILD_REMOTE", "ssh://node/wheels")
    options = Options()
    defaults = apply(options, settings())
    assert options.target == "gb10"

    def parsed(*words: str) -> dict[str, Any]:
        context = cli.make_context("spark-build", [words[0]], obj=options, default_map=defaults)
        group: click.Group = cli
        while True:
            command = group.get_command(context, words[0])
            assert command is not None
            rest = [words[1]] if isinstance(command, click.Group) else [*words[1:]]
            context = command.make_context(words[0], rest, parent=context)
            if not isinstance(command, click.Group):
                return context.params
            group, words = command, words[1:]

    found = parsed("all")
    assert (found["jobs"], found["memory"], found["require_sandbox"]) == (3, 2048, True)
    assert parsed("all", "--jobs", "7")["jobs"] == 7
    assert parsed("build", "tiny")["jobs"] == 3
    # Where the command line says neither a file nor --to, it is taken there.
    assert parsed("wheelhouse", "export", "--sign", "key")["to"] is None
    assert options.settings["remote"].value == "ssh://node/wheels"


@pytest.mark.parametrize(
    ("words", "place", "packages"),
    [
        ([], "ssh://node/wheels", ()),
        (["wheels.tar", "torch"], "wheels.tar", ("torch",)),
        (["--to", "ssh://other/x", "torch"], "ssh://other/x", ("torch",)),
    ],
)
def test_the_remote_is_for_exports_that_name_no_place(
    words: list[str], place: str, packages: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    def packed(_options: Options, packages: tuple[str, ...], *_: Any, **__: Any) -> Any:
        seen.append(packages)
        return None, None

    def send(_parcel: Any, place: str, *_: Any, **__: Any) -> int:
        seen.append(place)
        raise click.UsageError("seen")

    monkeypatch.setattr("spark_build.cli.transfer._packed", packed)
    monkeypatch.setattr("spark_build.cli.transfer._send", send)
    monkeypatch.setenv("SPARK_BUILD_REMOTE", "ssh://node/wheels")
    assert main(["wheelhouse", "export", *words], Options()) == 2
    assert seen == [packages, place]


def test_the_environments_home_counts_more_than_a_files_root(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "spark-build.toml").write_text('root = "here"\n')
    monkeypatch.setenv("SPARK_BUILD_HOME", str(place / "home"))
    assert shown(capsys)["root"] == (str(place / "home"), "SPARK_BUILD_HOME")
    monkeypatch.setenv("SPARK_BUILD_ROOT", str(place / "root"))
    assert shown(capsys)["root"] == (str(place / "root"), "SPARK_BUILD_ROOT")


@pytest.mark.parametrize(
    ("root", "said"), [("~nosuchuser/x", "no such user"), ("a\\u0000b", "has control characters")]
)
def test_a_root_that_can_be_none(
    root: str, said: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "spark-build.toml").write_text(f'root = "{root}"\n')
    assert main(["config", "show"], Options()) == 2
    assert said in capsys.readouterr().err
    (place / "spark-build.toml").unlink()
    assert main(["--root", root.replace("\\u0000", "\0"), "wheelhouse", "list"], Options()) == 2
    assert said in capsys.readouterr().err


def test_a_bug_is_reported_whatever_the_root(place: Path) -> None:
    report = write_crash_report("a\0b", ValueError("x"))
    assert report is not None
    report.unlink()


def test_each_bug_has_a_report_of_its_own(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes of a script crash in the same second; an argument may be no text."""
    monkeypatch.setattr(sys, "argv", ["spark-build", "caf\udce9"])
    reports = []
    for number in range(4):
        monkeypatch.setattr(os, "getpid", lambda number=number: 100_000 + number)
        reports.append(write_crash_report(str(place), ValueError(str(number))))
    texts = [report.read_text() for report in reports if report]
    assert len(set(reports)) == len(texts) == 4
    assert all(f"ValueError: {number}" in text and "caf\\udce9" in text for number, text in enumerate(texts))


@pytest.mark.parametrize(
    "text",
    [
        '[tool]\nspark-build.target = "gb10"\n',
        '[tool."spark-build"]\ntarget = "gb10"\n',
        "[tool . 'spark-build' ]\ntarget = 'gb10'\n",
        'tool.spark-build . "target" = "gb10"\n',
        '[tool]\nspark-build = { target = "gb10" }\n',
    ],
)
def test_every_way_to_write_the_table(text: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "pyproject.toml").write_text(text)
    assert shown(capsys)["target"] == ("gb10", str(place / "pyproject.toml"))


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["all", "-h"]])
def test_help_comes_whatever_is_in_the_file(words: list[str], place: Path) -> None:
    (place / "spark-build.toml").write_text("target = ")
    assert main(words, Options()) == 0


def test_a_wrong_value_names_its_file(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = place / "spark-build.toml"
    file.write_text('jobs = "many"\nruns_keep = "few"\n')
    for words, option in ((["all"], "--jobs"), (["wheelhouse", "gc"], "--keep-runs")):
        assert main(words, Options()) == 2
        assert f"error: {file}: Invalid value for '{option}'" in capsys.readouterr().err
    assert main(["all", "--jobs", "x"], Options()) == 2
    assert "error: Invalid value for '--jobs'" in capsys.readouterr().err


def test_a_folder_does_not_weaken_what_the_user_says(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    own, here = place / "config" / "spark-build" / "spark-build.toml", place / "spark-build.toml"
    own.parent.mkdir(parents=True)
    own.write_text('sandbox = "require"\nremote = "ssh://node/wheels"\ntarget = "thor"\n')
    here.write_text('sandbox = "auto"\ntarget = "gb10"\n')
    found = shown(capsys)
    assert found["sandbox"] == ("require", str(own))
    assert found["remote"] == ("ssh://node/wheels", str(own))
    assert found["target"] == ("gb10", str(here))
    monkeypatch.setenv("SPARK_BUILD_SANDBOX", "auto")
    assert shown(capsys)["sandbox"] == ("auto", "SPARK_BUILD_SANDBOX")
    here.write_text('remote = "ssh://elsewhere"\n')
    assert main(["plan"], Options()) == 2
    assert f"write it into {own}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('taget = "gb10"', "unknown key 'taget': did you mean 'target'?"),
        ("jobs = [1]", "jobs must be a text or a number"),
        ("jobs = ", "not TOML"),
        (f"{'.'.join('a' * 20_000)} = 1", "a key of more than 32 parts"),
        ('sandbox = "off"', "sandbox is 'off'"),
    ],
)
def test_a_file_with_mistakes(text: str, said: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "spark-build.toml").write_text(text)
    assert main(["config", "show"], Options()) == 2
    assert said in capsys.readouterr().err


def test_a_pyproject_of_somebody_else(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "pyproject.toml").write_text("no TOML at all")
    assert shown(capsys)["target"] == ("auto", "default")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(shell: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["completion", shell], Options()) == 0
    assert COMPLETE in capsys.readouterr().out
    monkeypatch.setenv(COMPLETE, f"{shell}_complete")
    for words, names in (("spark-build wheelhouse in", {"inspect"}), ("spark-build pl", {"plan"})):
        monkeypatch.setenv("COMP_WORDS", words)
        monkeypatch.setenv("COMP_CWORD", words.split()[-1] if shell == "fish" else str(words.count(" ")))
        with pytest.raises(SystemExit):
            cli.main(prog_name="spark-build", complete_var=COMPLETE)
        said = capsys.readouterr().out
        assert {name for name in (*names, "log", "export") if name in said} == names
