from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_build.errors import HostError
from spark_build.process import LONGEST_LINE, TAIL_LINES, capture, run
from tests.helpers.wheelhouse import eventually, hear, start

# A whole command line below `run`, told what to run by its arguments.
RUNNER = """
import signal, sys
from spark_build.process import run
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # a suite under nohup hands it on as ignored
run(sys.argv[1:], on_line=lambda line: print(line, flush=True))
"""
# Descendants in sessions of their own, one that a dead parent left behind, one that ignores SIGTERM.
# The argument names them all, so that the test finds them in /proc.
FAMILY = """
setsid sleep "$1" &
setsid sh -c 'setsid sleep "$1" & echo daemon; wait' family "$1" &
(setsid setsid sleep "$1" &)
setsid sh -c 'trap "" TERM HUP INT; while :; do sleep "$1" & wait; done' family "$1" &
sleep 0.3
echo ready
wait
"""


def alive(mark: str) -> list[int]:
    """Living processes with that argument; zombies have none."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark.encode() in (path / "cmdline").read_bytes().split(b"\0"):
                found.append(int(path.name))
    return found


def open_descriptors() -> set[str]:
    return {path.name for path in Path("/proc/self/fd").iterdir()}


@pytest.fixture
def mark() -> Iterator[str]:
    """A sleeping time that no other process has; whatever still sleeps so at the end is ended."""
    value = f"3600.{secrets.randbelow(10**9):09d}"
    yield value
    for pid in alive(value):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def family(mark: str) -> subprocess.Popen[str]:
    """A process that waits in `run` for a command with many descendants."""
    process = start(RUNNER, "sh", "-c", FAMILY, "family", mark)
    while (line := hear(process)) != "ready":
        assert line == "daemon"
    assert len(alive(mark)) >= 7, "runner, supervisor, shell, and the descendants"
    return process


# --- output and results -----------------------------------------------------------------------------


def test_output_comes_in_order_line_by_line(tmp_path: Path) -> None:
    lines: list[str] = []
    with (tmp_path / "log").open("wb") as log:
        command = ["sh", "-c", "echo one; echo two >&2; echo 'a  b'; printf half"]
        done = run(command, log=log, on_line=lines.append)
    assert lines == ["one", "two", "a  b", "half"]
    assert done.output == "one\ntwo\na  b\nhalf"
    assert done.args == tuple(command)
    text = (tmp_path / "log").read_text()
    shown, _, rest = text.partition("\n")
    assert rest == "one\ntwo\na  b\nhalf"
    # What is logged can be pasted into a shell.
    pasted = subprocess.run(
        ["sh", "-c", shown.removeprefix("$ ")], capture_output=True, check=True, timeout=60
    )
    assert pasted.stdout + pasted.stderr == b"one\na  b\nhalftwo\n"


def test_lines_come_while_the_command_runs() -> None:
    """A progress bar that moves only at the end is none."""
    seen: list[float] = []
    start_time = time.monotonic()
    done = run(["sh", "-c", "echo one; sleep 1; echo two"], on_line=lambda _: seen.append(time.monotonic()))
    assert seen[1] - seen[0] > 0.8
    assert done.seconds == pytest.approx(time.monotonic() - start_time, abs=0.2)


def test_only_the_tail_is_kept_and_the_log_has_all(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as log:
        done = run(["seq", "1000"], log=log)
    assert done.output.splitlines() == [str(number) for number in range(1001 - TAIL_LINES, 1001)]
    assert len((tmp_path / "log").read_text().splitlines()) == 1001


def test_output_that_is_no_text(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as log:
        done = run(["printf", r"a\377b\n"], log=log)
    assert done.output == "a\ufffdb"
    assert (tmp_path / "log").read_bytes().endswith(b"a\xffb\n")


@pytest.mark.parametrize(
    ("script", "code"),
    [("true", 0), ("exit 3", 3), ("exit 127", 127), ("kill -KILL $$", 137), ("kill -TERM $$", 143)],
)
def test_exit_codes_are_those_of_a_shell(script: str, code: int) -> None:
    assert run(["sh", "-c", script]).returncode == code


def test_a_missing_program() -> None:
    with pytest.raises(HostError) as caught:
        run(["no-such-program-here", "--version"])
    assert caught.value.message == "cannot run no-such-program-here: it is not installed"
    assert caught.value.hint


def test_a_program_that_cannot_be_run(tmp_path: Path) -> None:
    """It is there: saying that it is not installed would send the user the wrong way."""
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\n")
    with pytest.raises(HostError, match=r"cannot run .*: Permission denied"):
        run([str(program)])
    program.write_bytes(b"\x7fELF, but not really")
    program.chmod(0o755)
    with pytest.raises(HostError, match=r"cannot run .*: Exec format error"):
        run([str(program)])


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_a_shell_that_misses_a_program_is_itself_installed(shell: str) -> None:
    done = run([shell, "-c", "no-such-program-here"])
    assert done.returncode == 127
    assert "no-such-program-here" in done.output


def test_folder_and_environment(tmp_path: Path) -> None:
    done = run(["sh", "-c", 'pwd; echo "$ONLY"; env | grep -c ^HOME='], cwd=tmp_path, env={"ONLY": "this"})
    assert done.output.splitlines() == [str(tmp_path.resolve()), "this", "0"]


def test_a_command_reads_nothing_from_us() -> None:
    """A tool that asks a question gets no answer, instead of waiting for ever."""
    assert run(["sh", "-c", "read line || echo nothing"]).output == "nothing"


def test_a_broken_pipe_ends_a_command_quietly() -> None:
    """Python ignores SIGPIPE; a build that inherits that gets write errors in `... | head -1`."""
    script = "yes | head -1; echo ${PIPESTATUS[0]}"
    assert run(["bash", "-c", script]).output.splitlines() == ["y", "141"]


def test_descriptors_that_are_not_kept_are_not_inherited(tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb") as file:
        os.set_inheritable(file.fileno(), True)
        listed = run(["sh", "-c", f"test -e /proc/self/fd/{file.fileno()} && echo there; true"]).output
        kept = run(
            ["sh", "-c", f"test -e /proc/self/fd/{file.fileno()} && echo there; true"],
            pass_fds=(file.fileno(),),
        ).output
    assert (listed, kept) == ("", "there")


# --- nothing outlives -------------------------------------------------------------------------------


def test_what_a_finished_command_left_behind_is_ended(mark: str) -> None:
    start_time = time.monotonic()
    done = run(["sh", "-c", 'setsid sleep "$1" & echo done; exit 5', "sh", mark])
    assert (done.returncode, done.output) == (5, "done")
    assert alive(mark) == []
    assert time.monotonic() - start_time < 5


def test_a_daemon_that_ignores_requests_is_ended_too(mark: str) -> None:
    script = """setsid sh -c 'trap "" TERM; while :; do sleep "$1"; done' sh "$1" & sleep 0.2; exit 0"""
    start_time = time.monotonic()
    assert run(["sh", "-c", script, "sh", mark]).returncode == 0
    assert alive(mark) == []
    assert time.monotonic() - start_time < 5


def test_an_exception_ends_all(mark: str) -> None:
    def stop(line: str) -> None:
        if line == "ready":
            raise KeyboardInterrupt

    start_time = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run(["sh", "-c", FAMILY, "family", mark], on_line=stop)
    assert alive(mark) == [], "all are gone when the exception arrives"
    assert time.monotonic() - start_time < 5


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_when_the_asking_process_ends_so_do_all(mark: str, number: signal.Signals) -> None:
    process = family(mark)
    process.send_signal(number)
    process.wait(timeout=60)
    assert process.returncode == -number
    assert eventually(lambda: not alive(mark), seconds=30), alive(mark)


def test_the_compilers_own_session_does_not_hear_the_terminal(mark: str) -> None:
    """Ctrl-C goes to the whole foreground group; the command must hear it from us, in order."""
    process = family(mark)
    ours = os.getpgid(process.pid)
    others = [os.getpgid(pid) for pid in alive(mark) if pid != process.pid]
    assert others
    assert ours not in others
    process.kill()
    process.wait()


def test_two_commands_at_once_end_each_with_its_own_asker(mark: str) -> None:
    first, second = family(mark), family(mark + "1")
    first.kill()
    first.wait()
    assert eventually(lambda: not alive(mark), seconds=30)
    assert len(alive(mark + "1")) >= 7
    second.kill()
    second.wait()
    assert eventually(lambda: not alive(mark + "1"), seconds=30)


# --- locks ------------------------------------------------------------------------------------------


LOCKED = """
import fcntl, os, sys
from spark_build.process import run
descriptor = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
fcntl.flock(descriptor, fcntl.LOCK_EX)
run(["sh", "-c", 'trap "" TERM; echo ready; while :; do sleep "$1"; done', "sh", sys.argv[2]],
    on_line=lambda line: print(line, flush=True), pass_fds=(descriptor,))
"""


def is_free(path: Path) -> bool:
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def test_a_command_holds_the_lock_until_its_end(tmp_path: Path, mark: str) -> None:
    lock = tmp_path / "lock"
    process = start(LOCKED, lock, mark)
    assert hear(process) == "ready"
    process.kill()
    process.wait()
    # It ignores SIGTERM: for two seconds it lives on, and the lock must say so.
    free_too_early = [1 for _ in range(20) if is_free(lock) and alive(mark)]
    assert not free_too_early
    assert eventually(lambda: not alive(mark), seconds=30)
    assert eventually(lambda: is_free(lock), seconds=30)


# --- short commands ---------------------------------------------------------------------------------


def test_capture() -> None:
    assert capture(["echo", "hello"]) == "hello\n"
    assert capture(["no-such-program-here"]) is None
    assert capture(["sh", "-c", "echo partly; exit 1"]) is None
    assert capture(["sh", "-c", "echo partly; exit 1"], check=False) == "partly\n"
    assert capture(["sleep", "60"], timeout=0.2) is None
    assert capture([sys.executable, "-c", "import sys; sys.stdout.buffer.write(b'\\xff')"]) == "\ufffd"


def test_capture_does_not_wait_for_what_a_command_left_behind(mark: str) -> None:
    start_time = time.monotonic()
    capture(["sh", "-c", 'sleep "$1" & wait', "sh", mark], timeout=0.5)
    assert time.monotonic() - start_time < 5


def test_what_fails_at_the_start_leaves_nothing_open(mark: str) -> None:
    def refuse(_process_id: int) -> None:
        raise RuntimeError("no room for it")

    before = open_descriptors()
    with pytest.raises(RuntimeError) as caught:  # keeps the frames, and with them what they left open
        run(["sleep", mark], on_start=refuse)
    assert "no room" in str(caught.value)
    assert open_descriptors() == before
    assert alive(mark) == []


def test_output_without_ends_of_lines_is_not_kept_whole(tmp_path: Path) -> None:
    lines: list[int] = []
    with (tmp_path / "log").open("wb") as log:
        done = run(
            ["head", "-c", "5000000", "/dev/zero"], log=log, on_line=lambda one: lines.append(len(one))
        )
    assert max(lines) <= LONGEST_LINE
    assert sum(lines) == 5_000_000
    assert (tmp_path / "log").read_bytes().endswith(b"\0" * 5_000_000)
    assert done.returncode == 0
