"""How durations, sizes and events read."""

from __future__ import annotations

import io
import os
import re
import sys

import pytest
from rich.cells import cell_len
from rich.console import Console

from spark_build.cli.burn_in_progress import follow
from spark_build.cli.live import SAID, LivePage, StageRow, Stages, stage_lines
from spark_build.cli.render import Lines, Live, RunView, describe, open_view, print_table
from spark_build.events import (
    BurnInStarted,
    ExpectedUsage,
    Note,
    Progress,
    StageFinished,
    StageResult,
    StageStarted,
    Usage,
)
from spark_build.text import format_duration, format_size


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0 s"), (9.94, "9.9 s"), (48.2, "48 s"), (59.7, "1 min 00 s"), (192, "3 min 12 s"), (7500, "2 h 05 min")],
)  # fmt: skip
def test_durations_as_people_say_them(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (18_245_223, "17.4 MiB"), (3 << 30, "3.0 GiB")]
)  # fmt: skip
def test_sizes_as_people_say_them(count: int, text: str) -> None:
    assert format_size(count) == text


def test_a_table_takes_cells_of_blanks(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "110")
    print_table(["NAME", "SUMMARY"], [["demo", " " * 150]])
    assert capsys.readouterr().out == "NAME  SUMMARY\ndemo\n"


@pytest.mark.parametrize("plain", [True, False], ids=["elsewhere", "terminal"])
@pytest.mark.parametrize(
    ("width", "lines"),
    [
        (70, ["TRAIN  TARGET    BUILD  ESTIMATE     LEFT OUT",
              "2.13   host-cpu  1",
              "2.15   gb10             about 4 min  xformers has no use for a machine",
              "                                     without a GPU"]),
        (44, ["TRAIN  TARGET    BUILD  ESTIMATE",
              "    LEFT OUT",
              "2.13   host-cpu  1",
              "2.15   gb10             about 4 min",
              "    xformers has no use for a machine",
              "    without a GPU"]),
        (25, ["TRAIN  TARGET    BUILD",
              "    LEFT OUT",
              "2.13   host-cpu  1",
              "2.15   gb10",
              "    estimate about 4 min;",
              "    xformers has no use",
              "    for a machine without",
              "    a GPU"]),
    ],
)  # fmt: skip
def test_a_table_keeps_its_words_whole_on_any_terminal(
    width: int,
    lines: list[str],
    plain: bool,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr("spark_build.cli.render.is_plain", lambda _: plain)
    long = "xformers has no use for a machine without a GPU"
    print_table(
        ["TRAIN", "TARGET", "BUILD", "ESTIMATE", "LEFT OUT"],
        [["2.13", "host-cpu", "1", "", ""], ["2.15", "gb10", "", "about 4 min", long]],
    )
    assert capsys.readouterr().out.splitlines() == lines


def test_events_as_lines() -> None:
    done = StageResult(stage="build", status="done", seconds=3.21)
    assert describe(StageFinished(recipe="onnx", result=done)) == "onnx: build done in 3.2 s"
    assert describe(Note(message="hello")) == "hello"


def test_progress_lines_say_how_long_and_how_much(capsys: pytest.CaptureFixture[str]) -> None:
    """Time left comes from an earlier build, which knew that the end takes as long as all before."""
    now = 0.0
    lines = Lines(lambda: now)
    slow_end = ExpectedUsage(
        memory_per_job_mib=900, seconds=180.0, steps=100, curve=(*(10.0 * n for n in range(1, 10)), 180.0)
    )
    lines.emit(StageStarted(recipe="onnx", stage="build", expected=slow_end))
    lines.emit(Usage(jobs=3, allowed=20, memory_mib=10_240, budget_mib=98_304))
    for done in range(1, 91):
        now = float(done)
        lines.emit(Progress(recipe="onnx", stage="build", done=done, total=100))
    shown = capsys.readouterr().err.splitlines()
    assert shown[-1] == "onnx: build 90/100, about 1 min 30 s left (3 of 20 jobs, 10.0 GiB of 96.0 GiB)"
    assert len(shown) == 9


def test_without_an_earlier_build_the_pace_counts(capsys: pytest.CaptureFixture[str]) -> None:
    now = 0.0
    lines = Lines(lambda: now)
    lines.emit(StageStarted(recipe="onnx", stage="build", expected=ExpectedUsage(memory_per_job_mib=900)))
    for done in range(1, 51):
        now = 2.0 * done
        lines.emit(Progress(recipe="onnx", stage="build", done=done, total=100))
    assert capsys.readouterr().err.splitlines()[-1] == "onnx: build 50/100, about 1 min 40 s left"
    for done in range(51, 101):
        now = 2.0 * done
        lines.emit(Progress(recipe="onnx", stage="build", done=done, total=100))
    # Steps are over, the stage is not.
    assert capsys.readouterr().err.splitlines()[-1] == "onnx: build 100/100, then linking and packing"


def test_a_first_build_begins_with_a_guess_that_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    now = 0.0
    lines = Lines(lambda: now)
    guess = ExpectedUsage(memory_per_job_mib=900, guess=900.0)
    lines.emit(StageStarted(recipe="onnx", stage="build", expected=guess))
    for done in range(1, 31):
        now = 8.0 * done
        lines.emit(Progress(recipe="onnx", stage="build", done=done, total=100))
    shown = capsys.readouterr().err.splitlines()
    assert shown[0] == "onnx: build 9/100, at a guess 13 min 20 s left"
    assert shown[-1] == "onnx: build 30/100, about 9 min 43 s left"


def test_what_follows_the_last_step_is_known_from_an_earlier_build(
    capsys: pytest.CaptureFixture[str],
) -> None:
    now = 0.0
    lines = Lines(lambda: now)
    earlier = ExpectedUsage(
        memory_per_job_mib=9, seconds=90.0, steps=10, curve=(*map(float, range(5, 50, 5)), 90.0)
    )
    lines.emit(StageStarted(recipe="onnx", stage="build", expected=earlier))
    lines.emit(Progress(recipe="onnx", stage="build", done=1, total=10))
    now = 50.0
    lines.emit(Progress(recipe="onnx", stage="build", done=10, total=10))
    assert capsys.readouterr().err.splitlines()[-1] == "onnx: build 10/10, about 40 s left"


@pytest.mark.parametrize("width", [79, 43])
@pytest.mark.parametrize("total", [0, 7200])
def test_a_stage_fits_with_its_times_whole(width: int, total: int) -> None:
    row = StageRow(
        name="flash-attn build",
        since=0.0,
        done=54,
        total=total,
        amount="54/7200",
        left="about 15 min 05 s left",
    )
    shown = stage_lines(row, 3723.0, width)
    assert max(line.cell_len for line in shown) <= width
    words = "  ".join(line.plain.strip() for line in shown)
    assert "flash-attn build" in words
    assert "54/7200  1:02:03  about 15 min 05 s left" in words
    assert ("─" in words) is (width == 79 and total > 0)


def test_thousands_of_steps_say_every_minute_how_far_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    """A tenth of LLVM's 5,018 steps takes a quarter of an hour on two processors."""
    now = 0.0
    lines = Lines(lambda: now)
    lines.emit(StageStarted(recipe="llvm", stage="build", expected=None))
    for done in range(1, 301):
        now = float(done)
        lines.emit(Progress(recipe="llvm", stage="build", done=done, total=5018))
    shown = [line.split(",")[0] for line in capsys.readouterr().err.splitlines()]
    assert shown == [f"llvm: build {done}/5018" for done in (61, 121, 181, 241)]


@pytest.mark.parametrize(
    ("options", "variables", "expected"),
    [
        ({}, {}, Live),
        ({"plain": True}, {}, Lines),  # --json
        ({}, {"NO_COLOR": "1"}, Lines),
        ({}, {"TERM": "dumb"}, Lines),
        ({"verbosity": -1}, {}, RunView),  # -q
    ],
)
def test_which_view_a_terminal_gets(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, int], variables: dict[str, str], expected: type
) -> None:
    for name, value in {"TERM": "xterm", "NO_COLOR": "", **variables}.items():
        monkeypatch.setenv(name, value)
    parent, child = os.openpty()
    with os.fdopen(parent), os.fdopen(child, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        with open_view(options.get("verbosity", 0), plain=bool(options.get("plain"))) as chosen:
            pass
    assert type(chosen) is expected


def test_what_a_narrower_terminal_folded_is_erased_once() -> None:
    written = io.StringIO()
    console = Console(file=written, force_terminal=True, width=80, color_system=None)
    stages = Stages(console, lambda: 0.0)
    row = stages.row("onnx", "build")
    row.done, row.total, row.amount, row.left = 10, 100, "10/100", "about 15 min 05 s left"
    page = LivePage(console, lambda: 0.0)
    page.burn = follow(
        None, BurnInStarted(arms=("a",), headline="x", rounds=9, warmup=1, window=1, round_seconds=9), 0
    )
    for drawing, wide, folds in ((stages._drawing, "─", 1), (page._drawing, SAID, 2)):
        console.width = 80
        console.print(drawing._draw())
        assert wide in written.getvalue()
        console.width = 44
        frame = drawing._draw()
        for erased in (folds, 0):  # the same frame is printed again below a line that scrolls up
            written.seek(0)
            written.truncate()
            console.print(frame)
            assert written.getvalue().count("\x1b[1A\x1b[2K") == erased
        assert max(map(cell_len, re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", written.getvalue()).splitlines())) < 44


def test_a_word_that_no_column_has_room_for_stands_below(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    wheel = "onnx-1.19.1-1_dfe07525-cp311-cp311-manylinux_2_34_x86_64.whl"
    print_table(["NAME", "ORIGIN" + " " * 30, "FILE"], [["onnx", "built", wheel]])
    assert capsys.readouterr().out.splitlines()[2:] == ["onnx  built", f"    {wheel}"]
