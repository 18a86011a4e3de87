"""A check that looked at nothing says so, with a code of its own; --json stays one document."""

from __future__ import annotations

import dataclasses
import json
import os
import venv
from pathlib import Path
from typing import Any

import pytest

from spark_build.cli.main import main
from spark_build.cli.options import Options
from spark_build.environments import installed
from spark_build.environments.installed import State
from spark_build.errors import NothingCheckedError
from spark_build.measure import checks as functional
from spark_build.measure import suite
from spark_build.measure.model import Check
from tests.conftest import make_root
from tests.helpers.benches import bench
from tests.helpers.wheelhouse import home_in, make_wheel, publish, put_built, put_public
from tests.helpers.wheels import PYTHON

CODE = NothingCheckedError.exit_code


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_root(tmp_path).folder


def unchecked(capsys: pytest.CaptureFixture[str], root: Path, *arguments: str) -> tuple[str, Any]:
    """Run it for people and as JSON; returns why nothing was checked, and the document."""
    line = ["--root", str(root), "--train", "t", *arguments]
    capsys.readouterr()
    assert main(line, Options()) == CODE
    plain = capsys.readouterr()
    assert main(["--json", *line], Options()) == CODE
    document = capsys.readouterr()
    (why, following) = [one for one in plain.err.splitlines() if one.startswith(("error: ", "  next: "))]
    assert why.startswith("error: nothing was checked: ")
    assert len(following) > len("  next: ")
    assert why in document.err
    return why, json.loads(document.out)


def test_the_code() -> None:
    assert CODE == 12


def test_verify_another_platforms_view(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wheel = make_wheel(root / "dist", tag="py3-none-manylinux_2_28_aarch64")
    home = home_in(root)
    publish(home, [put_built(home.store, wheel)], view="gb10-t-cp312")
    why, document = unchecked(capsys, root, "--target", "gb10", "verify")
    assert "target gb10 is linux-aarch64, cp312" in why
    assert (document["checks"], document["exit_code"]) == ([], CODE)


def test_verify_a_view_without_a_built_wheel(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home, view = home_in(root), f"host-cpu-t-{PYTHON}"
    publish(home, [put_public(home.store, make_wheel(root / "dist"))], view=view)
    why, _ = unchecked(capsys, root, "--target", "host-cpu", "verify")
    assert "no wheel here was built" in why


def test_check_an_empty_wheelhouse(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    why, document = unchecked(capsys, root, "wheelhouse", "check")
    assert str(root / "wheelhouse") in why
    assert document == {"faults": [], "mended": 0, "left": 0}
    assert not (root / "wheelhouse").exists()
    home = home_in(root)
    publish(home, [put_public(home.store, make_wheel(root / "dist"))])
    assert main(["--root", str(root), "wheelhouse", "check", "--no-resolve"], Options()) == 0


def test_check_pins_that_nobody_answers_for(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nothing listens on the discard port.
    for name, value in {"INDEX_URL": "http://127.0.0.1:9/simple", "EXTRA_INDEX_URL": "", "RETRIES": "0",
                        "CONFIG_FILE": os.devnull, "FIND_LINKS": ""}.items():  # fmt: skip
        monkeypatch.setenv(f"PIP_{name}", value)
    why, document = unchecked(capsys, root, "recipes", "outdated")
    assert "no index or repository answers for any pin of train t: " in why
    assert [one["recipe"] for one in document["components"]].count("tiny") == 1
    why, document = unchecked(capsys, root, "recipes", "pin", "--check")
    assert "127.0.0.1:9" in why
    assert [one["recipe"] for one in document["pins"]].count("tiny") == 1


def test_check_an_environment_without_our_packages(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "env"
    venv.create(folder)
    state = State(
        view=f"host-cpu-t-{PYTHON}", generation=1, python=PYTHON, asked=(), everything=True, packages=()
    )
    installed.write(folder, state)
    why, document = unchecked(capsys, root, "env", "check", str(folder))
    assert "holds no wheel of the wheelhouse" in why
    assert document["packages"] == []


def test_cross_check_without_device_code(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "bin" / "cuobjdump"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    wheel = make_wheel(tmp_path)
    why, document = unchecked(capsys, root, "wheelhouse", "inspect", str(wheel), "--cross-check")
    assert "no device code" in why
    assert document["filename"] == wheel.name


def test_bench_without_a_finished_case(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = bench({"one": {}})
    rounds = tuple(dataclasses.replace(each, figures=()) for each in whole.rounds)
    empty = dataclasses.replace(whole, rounds=rounds, works=(), folder=str(tmp_path))
    monkeypatch.setattr(suite, "measure_suite", lambda *_: empty)
    why, document = unchecked(capsys, root, "bench", "run")
    assert "not one case was finished" in why
    assert document["exit_code"] == CODE
    monkeypatch.setattr(suite, "measure_suite", lambda *_: whole)
    assert main(["--root", str(root), "--train", "t", "bench", "run"], Options()) == 0


def test_verify_where_every_check_is_skipped(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    home, view = home_in(root), f"host-cpu-t-{PYTHON}"
    publish(home, [put_built(home.store, make_wheel(root / "dist"))], view=view)
    skipped = Check(name="speed", status="skipped", evidence="no GPU here")
    monkeypatch.setattr(functional, "verify", lambda *_, again: ((skipped,), True))
    why, document = unchecked(capsys, root, "--target", "host-cpu", "verify")
    assert "every check was skipped (no GPU here)" in why
    assert (len(document["checks"]), document["exit_code"]) == (1, CODE)


def test_a_history_of_nothing(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    why, document = unchecked(capsys, root, "verify", "history")
    assert str(root / "runs") in why
    assert document == {"arms": [], "exit_code": CODE}


def test_a_file_that_names_no_project(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "requirements.txt").write_text("# later\n")
    why, document = unchecked(capsys, root, "recipes", "new", "-r", str(tmp_path / "requirements.txt"))
    assert "requirements.txt names no project" in why
    assert (document["recipes"], document["failed"]) == ([], {})


def test_all_says_that_nothing_was_verified(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / "recipes/trains/t.toml").write_text(
        'name = "t"\nsummary = "a train"\n[components.tiny]\nversion = "1"\nsources = []\n'
        'unestablished = ["where it is"]\n'
    )
    why, document = unchecked(capsys, root, "--target", "host-cpu", "all")
    assert "no wheel here was built" in why
    assert document["exit_code"] == CODE
