"""Builds that go on without their terminal: real processes, terminals and signals."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from spark_build.build import background
from spark_build.errors import HostError
from spark_build.events import Note, encode
from tests.conftest import CLI, PROJECT, RECIPE, TRAIN, Root, make_root
from tests.helpers import processes

# Steps as ninja prints them, then nothing until the test says so.
HANGING = """
import os, time
for step in range(1, 4):
    print(f"[{step}/8] compiling", flush=True)
while not os.path.exists("../go-on"):
    time.sleep(0.1)
"""


def wait_for(what: Callable[[], object], seconds: float = 60) -> None:
    """Until it is true; a test that waits in vain fails."""
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


@pytest.fixture
def held(tmp_path: Path) -> Iterator[Root]:
    """A root whose build goes on when `let_go` says so; what it leaves running is ended."""
    root = make_root(tmp_path, {**PROJECT, "setup.py": HANGING + PROJECT["setup.py"]})
    yield root
    for run in background.find_all(root.folder / "runs"):
        if run.alive:
            os.kill(run.pid, signal.SIGKILL)
    wait_for(lambda: not processes_of(root), 10)


def processes_of(root: Root) -> str:
    """Processes that a build of this root started."""
    found = subprocess.run(
        ["pgrep", "-f", str(root.folder / "build")], capture_output=True, text=True, check=False
    )
    return found.stdout


def let_go(root: Root) -> None:
    """Let the build end."""
    (work,) = root.folder.glob("build/tiny/*/")
    (work / "go-on").touch()


@dataclass(frozen=True, kw_only=True)
class Started:
    """A detached build."""

    run: str
    pid: int
    folder: Path

    @property
    def alive(self) -> bool:
        """Whether the process is there, as the kernel says."""
        with contextlib.suppress(OSError):
            return ") Z " not in Path(f"/proc/{self.pid}/stat").read_text()
        return False


def detach(root: Root, *arguments: str) -> Started:
    """Start `build tiny --detach`; it has got to the point where it hangs."""
    document = root.json("build", "tiny", "--detach", *arguments)
    started = Started(run=document["run"], pid=document["pid"], folder=Path(document["folder"]))
    wait_for(lambda: '"build", "done": 3' in read(started.folder / "events.jsonl"))
    return started


def read(path: Path) -> str:
    """A file's text; empty as long as there is none."""
    return path.read_text() if path.exists() else ""


@dataclass(frozen=True, kw_only=True)
class Terminal:
    """A command that leads the session of a terminal, as a login shell does."""

    process: subprocess.Popen[bytes]
    master: int

    def read(self) -> str:
        """What the terminal shows until the command ends."""
        output = b""
        with contextlib.suppress(OSError):  # the terminal closes with its last process
            while chunk := os.read(self.master, 4096):
                output += chunk
        return output.decode()

    def read_until(self, wanted: str) -> str:
        """What the terminal shows up to some text."""
        output, deadline = b"", time.monotonic() + 60
        while wanted not in output.decode(errors="replace"):
            ready, _, _ = select.select([self.master], [], [], max(0, deadline - time.monotonic()))
            assert ready, output
            output += os.read(self.master, 4096)
        return output.decode(errors="replace")


@contextlib.contextmanager
def terminal(root: Root, *command: str, columns: int = 150) -> Iterator[Terminal]:
    """Run a command on a terminal of its own."""
    master, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    env = {**root.environment(), "TERM": "xterm"}
    for told in ("NO_COLOR", "COLUMNS", "LINES"):
        env.pop(told, None)
    process = processes.start(
        ["setsid", "--ctty", *command],
        env=env,
        stdin=child,
        stdout=child,
        stderr=child,
        # A suite under nohup would hand it on as ignored.
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
    )
    os.close(child)
    try:
        yield Terminal(process=process, master=master)
    finally:
        with contextlib.suppress(OSError):
            os.close(master)
        process.kill()
        process.wait()


def test_it_returns_at_once_and_attach_ends_as_the_build_does(held: Root) -> None:
    # Pipes for stdout and stderr, as `ssh host spark-build ...` has: a background process that kept
    # them open would make this wait for the build, which does not end.
    done = subprocess.run(
        held.command("build", "tiny", "--detach"),
        env=held.environment(), capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    run = re.match(r"(\S+) runs in the background \(process \d+\)\nwatch it: (.+)\n$", done.stdout)
    assert run, done.stdout
    assert run[2] == f"spark-build --root {held.folder} attach"
    wait_for(lambda: list(held.folder.glob("build/tiny/*/build-started")))
    listed = held.run("attach", "--list").stdout.splitlines()[1]
    assert re.match(rf"{run[1]} +running +\S+ \S+ +spark-build .* build tiny --detach$", listed)
    let_go(held)
    watched = held.run("attach")
    assert watched.returncode == 0, watched.stderr
    assert re.search(r"^tiny +1\.0 +built", watched.stdout, re.MULTILINE)
    # From the beginning, though nobody watched then.
    assert "tiny: fetch done" in watched.stderr
    assert "tiny: build done" in watched.stderr
    again = held.run("attach")
    assert (again.returncode, again.stdout) == (0, watched.stdout)
    assert f"nothing runs in the background; the last one was {run[1]}" in again.stderr
    assert "exit code 0" in held.run("attach", "--list").stdout
    quiet = held.run("-q", "attach", run[1])
    assert (quiet.stdout, quiet.stderr) == (watched.stdout, "")
    document = held.json("attach")  # of a run that was not asked for JSON
    assert (document["run"], document["state"], document["exit_code"]) == (run[1], "ended", 0)
    assert document["output"] == watched.stdout


def test_all_and_json(root: Root) -> None:
    started = root.json("all", "--detach")
    assert set(started) == {"run", "pid", "folder"}
    document = root.json("attach", started["run"])
    assert document["exit_code"] == 0
    assert {row["recipe"]: row["status"] for row in document["results"]}["tiny"] == "built"
    assert all(check["status"] == "ok" for check in document["checks"])
    (row,) = root.json("attach", "--list")["runs"]
    assert (row["run"], row["state"], row["exit_code"]) == (started["run"], "ended", 0)


@pytest.mark.parametrize(
    "command",
    [("build", "tinny"), ("build", "tiny", "--jobs", "0"), ("build",), ("build", "tiny", "--shell")],
    ids=" ".join,
)
def test_a_wrong_command_line_fails_at_once(root: Root, command: tuple[str, ...]) -> None:
    before = root.state()
    assert root.run(*command, "--detach").returncode == 2
    assert root.state() == before


def test_what_cannot_be_built_fails_at_once(root: Root) -> None:
    before = root.state()
    root.recipe(RECIPE.format(disk=50).replace('kind = "pep517"', 'kind = "pep518"'))
    assert root.run("all", "--detach").returncode == 3
    root.recipe(RECIPE.format(disk=1 << 30))
    too_big = root.run("build", "tiny", "--detach")
    assert too_big.returncode == 4
    assert "MiB free" in too_big.stderr
    root.recipe(RECIPE.format(disk=50))
    root.train(TRAIN.format(sha256="0" * 64) + '\n[components.onnx]\nversion = "1"\nsources = []\n'
               'unestablished = ["where it is"]\n')  # fmt: skip
    assert root.run("build", "onnx", "--detach").returncode == 4
    assert root.state() == before


def test_a_failed_build_fails_where_it_is_watched(tmp_path: Path) -> None:
    root = make_root(tmp_path, {**PROJECT, "native.c": "int broken(void) { return missing_name; }\n"})
    # By the installed command this time, not by `python -m`.
    script = str(Path(sys.executable).with_name("spark-build"))
    command = [script, *root.command("build", "tiny", "--detach")[len(CLI) :]]
    subprocess.run(command, env=root.environment(), check=True, capture_output=True)
    watched = root.run("attach")
    assert watched.returncode == 7
    assert re.search(r"^tiny +1\.0 +failed", watched.stdout, re.MULTILINE)
    (error,) = [line for line in watched.stderr.splitlines() if line.startswith("error:")]
    assert "missing_name" in error
    assert "exit code 7" in root.run("attach", "--list").stdout


def test_it_survives_terminal_shell_and_signals(held: Root) -> None:
    script = f"{' '.join(held.command('--json', 'build', 'tiny', '--detach'))}; sleep 600"
    with terminal(held, "sh", "-c", script) as shell:
        shown = shell.read_until("}")
        document = json.loads(shown[shown.index("{") :])
        os.close(shell.master)  # the connection drops: the kernel sends SIGHUP
        assert shell.process.wait(timeout=60) == -signal.SIGHUP
    started = Started(run=document["run"], pid=document["pid"], folder=Path(document["folder"]))
    assert os.getsid(started.pid) == started.pid
    with contextlib.suppress(ProcessLookupError):
        os.killpg(shell.process.pid, signal.SIGKILL)
    os.kill(started.pid, signal.SIGHUP)
    wait_for(lambda: list(held.folder.glob("build/tiny/*/build-started")))
    os.kill(started.pid, signal.SIGHUP)
    time.sleep(0.5)
    assert started.alive
    let_go(held)
    assert held.run("attach").returncode == 0


def test_a_terminal_shows_how_far_it_is(held: Root) -> None:
    detach(held)
    time.sleep(5)
    with terminal(held, *held.command("attach")) as watcher:
        # Since the stage began, not since somebody watches.
        shown = watcher.read_until("3/8")
        shown += watcher.read_until("0:00:")
        shown += watcher.read_until("\x1b")
        assert "tiny: environment done" in shown
        assert int(shown.rpartition("0:00:")[2][:2]) >= 5
        assert "Ctrl-C only stops watching" in shown
        let_go(held)
        rest = watcher.read()
        assert "tiny: build done" in rest
        assert "built" in rest
        assert watcher.process.wait() == 0


def test_its_tables_fit_the_terminal_that_it_was_started_on(root: Root) -> None:
    with terminal(root, *root.command("all", "--detach", "--stop-after", "fetch"), columns=50) as started:
        started.read()
    watched = root.run("attach")
    assert watched.returncode == 0, watched.stderr
    assert "    WHY" in watched.stdout.splitlines()
    assert max(map(len, watched.stdout.splitlines())) <= 50


def test_ctrl_c_stops_only_the_watching(held: Root) -> None:
    started = detach(held)
    with terminal(held, *held.command("attach")) as watcher:
        watcher.read_until("3/8")
        os.write(watcher.master, b"\x03")
        said = watcher.read()
        assert watcher.process.wait(timeout=60) == 130
    assert f"{started.run} goes on" in said
    assert f"attach {started.run}" in said
    assert f"attach --stop {started.run}" in said
    assert started.alive
    let_go(held)
    assert held.run("attach", started.run).returncode == 0


def test_a_lost_connection_stops_only_the_watching(held: Root) -> None:
    started = detach(held)
    with terminal(held, *held.command("attach")) as watcher:
        watcher.read_until("3/8")
        os.close(watcher.master)
        assert watcher.process.wait(timeout=60) == -signal.SIGHUP
    assert started.alive
    assert not list(held.folder.glob("runs/crash-*"))


def test_stop_ends_it_in_good_order(held: Root) -> None:
    started = detach(held)
    begun = time.monotonic()
    stopped = held.run("attach", "--stop")
    assert stopped.returncode == 0, stopped.stderr
    assert time.monotonic() - begun < 5 + 1  # a command line takes a moment to start
    assert not started.alive
    assert not processes_of(held)
    assert f"{started.run} is stopped" in stopped.stdout
    watched = held.run("attach")
    assert watched.returncode == 143
    assert "error: stopped; the same command goes on where it stopped" in watched.stderr
    assert "had ended before" in held.run("attach", "--stop").stdout
    let_go(held)
    again = held.run("build", "tiny")
    assert again.returncode == 0, again.stderr
    assert "environment kept from the last run" in again.stderr


def test_killed_while_watched(held: Root) -> None:
    started = detach(held)
    watcher = processes.start(
        held.command("attach"), env=held.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )  # fmt: skip
    assert watcher.stderr is not None
    while "environment done" not in watcher.stderr.readline():
        pass
    os.kill(started.pid, signal.SIGKILL)
    _, error = watcher.communicate(timeout=60)
    assert watcher.returncode == 4
    assert f"error: {started.run} ended without a result" in error
    (command,) = re.findall(r"^  next: spark-build (.+)  \(goes on where it stopped\)$", error, re.MULTILINE)
    wait_for(lambda: not processes_of(held), 60)
    assert "lost" in held.run("attach", "--list").stdout
    let_go(held)
    again = held.run(*command.split())
    assert again.returncode == 0, again.stderr
    assert "environment kept from the last run" in held.run("attach").stderr


def test_another_process_with_its_number_is_not_taken_for_it(held: Root) -> None:
    started = detach(held)
    os.kill(started.pid, signal.SIGKILL)
    # The process may look dead while a thread of it still holds the lock.
    wait_for(lambda: not background.is_alive(started.folder))
    with subprocess.Popen(["sleep", "600"]) as other, contextlib.ExitStack() as stack:
        stack.callback(other.kill)
        path = started.folder / background.RECORD
        path.write_text(json.dumps({**json.loads(path.read_text()), "pid": other.pid}))
        assert [row["state"] for row in held.json("attach", "--list")["runs"]] == ["lost"]
        assert held.run("attach", started.run).returncode == 4
        stopped = held.run("attach", "--stop", started.run)
        assert "had ended before" in stopped.stdout
        # Even when it ended between the look and the signal.
        stale = background.Background(
            folder=started.folder,
            pid=other.pid,
            command=(),
            started=background.find_all(held.folder / "runs")[0].started,
            alive=True,
            exit_code=None,
        )
        background.stop(stale)
        assert other.poll() is None


def test_two_at_once_take_turns(held: Root) -> None:
    first = detach(held)
    second = held.json("build", "tiny", "--detach")
    wait_for(lambda: "waiting for another" in read(Path(second["folder"]) / "events.jsonl"))
    assert [row["state"] for row in held.json("attach", "--list")["runs"]] == ["running", "running"]
    let_go(held)
    assert held.json("attach", first.run)["results"][0]["status"] == "built"
    other = held.run("--json", "attach", second["run"])
    assert json.loads(other.stdout)["results"][0]["status"] == "reused"
    assert "tiny: waiting for another spark-build" in other.stderr


def test_without_a_name_a_running_one_comes_before_a_newer_one_that_ended(held: Root) -> None:
    started = detach(held)
    newer = held.json("build", "tiny", "--detach")
    held.run("attach", "--stop", newer["run"])
    assert [row["state"] for row in held.json("attach", "--list")["runs"]] == ["ended", "running"]
    stopped = held.json("attach", "--stop")
    assert (stopped["run"], stopped["exit_code"]) == (started.run, 143)


def test_nothing_to_attach_to(root: Root) -> None:
    before = root.state()
    for arguments in ((), ("--stop",), ("20260101T000000-1",)):
        done = root.run("attach", *arguments)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith("error: ")
    assert root.run("attach", "--list").stdout == ""
    assert root.json("attach", "--list") == {"runs": []}
    assert root.state() == before


def test_who_looks_is_not_taken_for_the_run(tmp_path: Path) -> None:
    path = tmp_path / background.LOCK
    with path.open("w") as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        assert not background.is_alive(tmp_path)
    with background.hold(tmp_path, []):
        assert background.is_alive(tmp_path)


def test_a_process_that_does_not_begin(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "1"
    with pytest.raises(HostError, match="did not begin: oh no"):
        background.start(folder, ["sh", "-c", "echo oh no >&2; exit 3"], os.environ)
    assert not list(folder.parent.iterdir())


def test_half_lines_are_read_when_they_are_whole(tmp_path: Path) -> None:
    notes = [Note(message=f"näher {number}") for number in range(3)]
    time_of = {"time": "2026-01-01T00:00:00+00:00"}
    lines = [json.dumps(time_of | encode(note), ensure_ascii=False).encode() + b"\n" for note in notes]
    data = lines[0] + b'{"event": "Weather"}\n' + lines[1] + b'\x00\x00\n["no event"]\n' + lines[2]
    cut = data.index("ä".encode()) + 1  # in the middle of a character
    shown: list[object] = []

    def watch() -> None:
        for events in background.follow(tmp_path):
            shown.extend(event for _, event in events)

    with background.hold(tmp_path, []), (tmp_path / "events.jsonl").open("ab", buffering=0) as file:
        watcher = threading.Thread(target=watch)
        watcher.start()
        for part in (data[:cut], data[cut:-5]):
            file.write(part)
            time.sleep(3 * background.PAUSE)
        assert shown == notes[:2]
        file.write(data[-5:] + b'{"event": "Note", "mess')  # a power cut
    watcher.join(timeout=5)
    assert shown == notes
