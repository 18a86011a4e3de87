"""What a terminal shows while a real burn-in runs, and what is there instead without one."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import struct
import termios
from collections.abc import Mapping
from pathlib import Path

import pytest

from spark_build.events import BurnInStarted, MachineSeen, RateSeen, RoundFinished
from spark_build.journal import EVENTS, Journal
from spark_build.measure.model import Arm
from spark_build.measure.telemetry import parse_tick
from tests.helpers import processes
from tests.helpers.faulty_bench import AS_IF_CUDA, command_of, fake_nvml, faulty, verify

CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"
ROUND = re.compile(r"round \d of 4: (a|a-again), \d+\.\d GFLOP/s \(FP32 128\^3 a@b\); .*")


class Terminal:
    """A command on a terminal of its own, of which it is in charge."""

    def __init__(self, command: list[str], env: Mapping[str, str], columns: int = 80) -> None:
        self.parent, child = pty.openpty()
        fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        # pytest's workers are told a width, which would count for more than the terminal's.
        own = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
        variables = {**own, "TERM": "xterm-256color", **env}
        # util-linux: the terminal then sends Ctrl-C to the command, as it does to a user's
        self.process = processes.start(
            ["setsid", "--ctty", "--wait", *command], stdin=child, stdout=child, stderr=child, env=variables
        )
        os.close(child)
        self.output = ""

    def read(self, until: str = "\0") -> str:
        """What appears up to `until`, else to the end."""
        while until not in CODES.sub("", self.output):
            try:
                chunk = os.read(self.parent, 65536)
            except OSError:  # the terminal closes with its last process
                break
            self.output += chunk.decode(errors="replace")
        return self.output

    def end(self) -> tuple[int, str]:
        """Exit code, and all that was shown."""
        text = self.read()
        os.close(self.parent)
        return self.process.wait(timeout=60), text


def on_terminal(root: Path, *arguments: str) -> list[str]:
    """Without --json: for people."""
    return [word for word in command_of(root, *arguments) if word != "--json"]


def test_a_page_on_a_terminal(baseline: Arm, tmp_path: Path) -> None:
    """The driver is made up, the rates are real."""
    env = fake_nvml(tmp_path / "driver", reasons=4, counters={"269": 0.0, "74": 0.9})
    arm = faulty(tmp_path / "env", baseline, AS_IF_CUDA)
    wished = ("--arm", f"a={arm}", "--device", "cuda", "--rounds", "2", "--duration", "1")
    terminal = Terminal(on_terminal(tmp_path / "root", *wished), {**env, "NO_COLOR": ""})
    code, text = terminal.end()
    plain = CODES.sub("", text)
    assert code == 0, plain
    for shown in (
        r"burn-in  round 1 of 4, about \d+ s left",
        r"a(-again)?: FP32 128\^3 a@b, window \d of 1 s",
        r"\d+\.\d GFLOP/s  [▁▂▃▄▅▆▇█]+",
        r"1500 MHz   690 W of 700 W   55 °C",
        r"held down by: SW power cap",
        r"ARM +ROUNDS +FP32 128\^3 a@b",
        r"a(-again)? +1 +\d+\.\d GFLOP/s",
        r"warn +throttling: no thermal event; clocks held down for",
        r"Ctrl-C is safe",
    ):
        assert re.search(shown, plain), (shown, plain[-3000:])
    assert text.count(HIDE) == text.count(SHOW) >= 1
    assert text.rfind(SHOW) > text.rfind(HIDE)
    assert "burn-in: " in plain.rpartition("Ctrl-C is safe")[2]  # the result comes after the page


def test_ctrl_c_gives_the_terminal_back(baseline: Arm, tmp_path: Path) -> None:
    wished = ("--arm", f"a={Path(baseline.python).parents[1]}", "--rounds", "2", "--duration", "1")
    terminal = Terminal(on_terminal(tmp_path / "root", *wished), {"NO_COLOR": ""}, columns=44)
    before = termios.tcgetattr(terminal.parent)
    terminal.read(until="round 2 of 4")
    os.write(terminal.parent, b"\x03")
    terminal.read(until="goes on where it stopped")
    assert termios.tcgetattr(terminal.parent) == before
    code, text = terminal.end()
    assert code == 130
    assert text.rfind(SHOW) > text.rfind(HIDE)
    after = CODES.sub("", text[text.rfind(SHOW) :])
    assert "1 of 4 rounds are measured and kept" in after
    assert "error: interrupted; the same command goes on where it stopped" in after
    page = CODES.sub("", text[text.find(HIDE) : text.rfind(SHOW)])
    assert max(len(line) for line in re.split(r"[\r\n]+", page)) <= 44


def test_ticks_and_plain_lines(baseline: Arm, tmp_path: Path) -> None:
    """An arm tells all ticks; other lines of it do no harm. Without a terminal there is a line for each round."""
    noisy = 'print("@tick {", flush=True); print("\\x1b[2J@tick 7", flush=True)'
    arm = faulty(tmp_path / "env", baseline, f"import sys\n{noisy}\n")
    _, document, said = verify(tmp_path / "root", "--arm", f"a={arm}", "--rounds", "2")
    (folder,) = (tmp_path / "root" / "runs").glob("*/rounds-*")
    assert "\x1b" not in said
    assert "Ctrl-C" not in said
    rounds = [line for line in said.splitlines() if line.startswith("round")]
    assert len(rounds) == 4
    assert all(ROUND.fullmatch(line) for line in rounds), rounds
    assert "power unknown, temperature unknown" in rounds[0]
    raw = json.loads((folder.parent / "burn-in.json").read_text())
    for each in raw["round_results"]:
        log = next(folder.glob(f"{each['slot']['index']:03d}-*.log")).read_text()
        ticks = [tick for line in log.splitlines() if (tick := parse_tick(line))]
        (measured,) = each["measurements"]
        expected = [rate for _, rate in (*measured["warmup"], *measured["window"])]
        assert [tick.rate for tick in ticks] == pytest.approx(expected)
    assert document["burn_in"]["rounds"] == 4


def test_a_crash_is_told_by_its_own_last_words(baseline: Arm, tmp_path: Path) -> None:
    fault = """
import os, ticks
sound = ticks.tell
def tell(*said):
    sound(*said)
    if said[1] == "window":
        print("the last words", flush=True)
        sound(*said)
        os._exit(3)  # no trace of it on the way out
ticks.tell = tell
"""
    planted = f"sys.path.insert(0, {str(Path(__file__).resolve().parents[2] / 'bench')!r})\n{fault}"
    arm = faulty(tmp_path / "env", baseline, planted)
    code, document, _ = verify(tmp_path / "root", "--arm", f"a={arm}", "--rounds", "2")
    assert (code, document["burn_in"]["verdict"]) == (9, "FUNCTIONAL-FAIL")
    problem = document["burn_in"]["round_results"][0]["problem"]
    assert problem == "crashed with exit status 3: the last words"


@pytest.mark.parametrize(
    ("whole", "kept"),
    [(True, ["BurnInStarted", "RateSeen", "MachineSeen", "RoundFinished"]), (False, [])],
)
def test_what_who_attaches_can_see(tmp_path: Path, whole: bool, kept: list[str]) -> None:
    """Of what happens many times a second a detached run keeps little, one with a terminal nothing."""
    journal = Journal(tmp_path / "run", whole=whole)
    plan = BurnInStarted(arms=("a",), headline="x", rounds=1, warmup=1, window=1, round_seconds=9)
    journal.emit(plan)
    for _ in range(50):
        journal.emit(RateSeen(case="x", part="window", seconds=1, rate=1e12))
        journal.emit(MachineSeen(celsius=60))
    journal.emit(RoundFinished(arm="a", number=1, seconds=9, rates={}, machine=MachineSeen(), gates=()))
    file = tmp_path / "run" / EVENTS
    rows = file.read_text().splitlines() if file.exists() else []
    assert [json.loads(row)["event"] for row in rows] == kept
