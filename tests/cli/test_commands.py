"""A command line run in the tests' own process says and returns what a process of its own would."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.conftest import Root
from tests.helpers.commands import CLI, invoke


@pytest.mark.parametrize(
    "words",
    [
        ("--version",),
        (),
        ("biuld",),
        ("recipes", "show", "nothing"),
        ("--json", "wheelhouse", "inspect", "missing.whl"),
    ],
    ids=" ".join,
)
def test_as_a_process(words: tuple[str, ...], tmp_path: Path) -> None:
    env = {**os.environ, "SPARK_BUILD_HOME": "here", "HOME": str(tmp_path)}
    here = invoke([*CLI, *words], env=env, cwd=tmp_path)
    there = subprocess.run([*CLI, *words], env=env, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (here.returncode, here.stdout, here.stderr) == (there.returncode, there.stdout, there.stderr)


@pytest.mark.parametrize(
    "words",
    [
        ("wheelhouse", "inspect", "LONG"),
        ("env", "create", "LONG"),
        ("farm", "init", "BELOW"),
        ("farm", "init", "LONG"),
        ("env", "create", "env", "--python", "LONG"),
    ],
    ids=" ".join,
)
def test_a_name_that_no_file_system_has_is_a_mistake_and_no_bug(
    words: tuple[str, ...], built: Root, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    names = {"LONG": f"{tmp_path}/{'a' * 300}", "BELOW": f"{tmp_path}/file/folder"}
    done = built.run(*(names.get(word, word) for word in words))
    said = "a file stands where" if "BELOW" in words else "a name is too long"
    assert done.returncode == 2, done.stderr
    # To Python 3.14 a file with such a name is one that is not there.
    also = ("does not exist", "is no Python") if "LONG" in words and sys.version_info >= (3, 14) else ()
    assert any(one in done.stderr for one in (said, *also)), done.stderr


def test_everything_is_put_back(tmp_path: Path) -> None:
    def state() -> tuple[object, ...]:
        handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
        streams = sys.stdin, sys.stdout, sys.stderr, *(os.fstat(number).st_ino for number in range(3))
        return dict(os.environ), Path.cwd(), list(sys.argv), *handlers, *streams, threading.active_count()

    before, opened = state(), len([*Path("/proc/self/fd").iterdir()])
    for words in (("recipes", "list"), ("attach", "nothing"), ("plan", "--no-such-option")):
        invoke([*CLI, *words], env={**os.environ, "HOME": str(tmp_path)}, cwd=tmp_path)
    assert state() == before
    assert len([*Path("/proc/self/fd").iterdir()]) == opened


def test_what_it_starts_prints_there_too_and_reads_what_is_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def talk(_arguments: list[str]) -> int:
        print("first")
        sys.stdout.flush()
        return subprocess.run(["sh", "-c", "cat; echo bad >&2; exit 3"], check=False).returncode

    monkeypatch.setattr("spark_build.cli.main.main", talk)
    done = invoke(CLI, input="given\n")
    assert (done.returncode, done.stdout, done.stderr) == (3, "first\ngiven\n", "bad\n")


def test_variables_that_count_at_the_start_of_a_process_get_one(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('started')\n")
    done = invoke([*CLI, "--version"], env={**os.environ, "PYTHONPATH": str(tmp_path)})
    assert done.stdout.splitlines()[0] == "started"
