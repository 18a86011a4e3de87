"""Start processes, and log their command lines. No other module starts any."""

from __future__ import annotations

import errno
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO

from spark_build.errors import HostError, UsageError, ours

SUPERVISOR = Path(__file__).with_name("_supervisor.py")
TAIL_LINES = 60
LONGEST_LINE = 1 << 20  # bytes; longer ones come in pieces
NICE = "SPARK_BUILD_NICE"


@dataclass(frozen=True, kw_only=True, slots=True)
class Completed:
    """A command that ended; `output` is the tail of its stdout and stderr together."""

    args: tuple[str, ...]
    returncode: int
    output: str
    seconds: float


class Cancelled(BaseException):
    """Raised in the threads whose commands `cancel_all` ended."""


def niceness(environ: Mapping[str, str]) -> int:
    """Return the niceness of builds: SPARK_BUILD_NICE, else 10, so that the machine stays usable.

    Raises UsageError for anything but 0 to 19.
    """
    wanted = environ.get(NICE) or "10"
    if wanted not in map(str, range(20)):
        raise UsageError(
            f"{NICE}={wanted} is no niceness", hint="0 (as other programs) to 19 (only what they leave)"
        )
    return int(wanted)


_running: set[subprocess.Popen[bytes]] = set()
_cancelled = threading.Event()


def cancel_all() -> None:
    """End all running commands and let only the main thread start new ones."""
    _cancelled.set()
    for process in tuple(_running):
        process.send_signal(signal.SIGTERM)


def refuse_cancelled() -> None:
    """Raise Cancelled in a thread that has to stop."""
    if _cancelled.is_set() and threading.current_thread() is not threading.main_thread():
        raise Cancelled


def capture(
    args: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    timeout: float = 60,
    check: bool = True,
    stdin: BinaryIO | None = None,
) -> str | None:
    """Return a short command's standard output; None when it is missing, hangs or (`check`) fails."""
    try:
        done = subprocess.run(
            args,
            env=env,
            capture_output=True,
            stdin=subprocess.DEVNULL if stdin is None else stdin,
            text=True,
            errors="replace",
            timeout=timeout,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 or not check else None


def by_lines(args: Sequence[str]) -> list[str]:
    """Return a command that runs another and prints its output with carriage returns as ends of lines."""
    script = 'set -o pipefail; "$@" 2>&1 | stdbuf -oL tr "\\r" "\\n"'
    return ["bash", "-c", script, "bash", *args]


def run(  # noqa: PLR0913 - as subprocess has them, by name
    args: Sequence[str],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    log: BinaryIO | None = None,
    on_line: Callable[[str], None] | None = None,
    pass_fds: Sequence[int] = (),
    nice: int = 0,
    on_start: Callable[[int], None] | None = None,
    stdin: int = subprocess.DEVNULL,
) -> Completed:
    """Run a long command under supervision, so that no process of it outlives this one.

    Output goes line by line, of 1 MiB at most, to `log` and `on_line`; `pass_fds` are descriptors (locks)
    the command inherits; `on_start` gets the process id above all that it starts; `stdin` is a descriptor.
    Raises HostError when the program does not exist, Cancelled after `cancel_all`.
    """
    refuse_cancelled()
    start = time.monotonic()
    if log is not None:
        log.write(f"$ {shlex.join(args)}\n".encode())
        log.flush()
    tail: deque[str] = deque(maxlen=TAIL_LINES)
    # The supervisor ends everything when the write end closes, which our death does, too.
    lifeline, held = os.pipe()
    try:
        with os.fdopen(lifeline, "rb"):
            process = _start(args, cwd, env, (lifeline, *pass_fds), nice, stdin)
        with _ended_on_failure(process):
            if on_start is not None:
                on_start(process.pid)
            _follow(process, log, on_line, tail)
    finally:
        os.close(held)
    refuse_cancelled()
    if process.returncode == 127 and tail:
        _refuse_unstarted(args[0], tail[-1])
    return Completed(
        args=tuple(args),
        returncode=process.returncode,
        output="\n".join(tail),
        seconds=time.monotonic() - start,
    )


def _start(
    args: Sequence[str],
    cwd: Path | None,
    env: Mapping[str, str] | None,
    descriptors: tuple[int, ...],
    nice: int,
    stdin: int,
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-I", "-S", str(SUPERVISOR), str(descriptors[0]), str(nice), "--", *args],
        cwd=cwd,
        env=env,
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        pass_fds=descriptors,
        # Ctrl-C must reach the command through us, in order, not through the terminal.
        start_new_session=True,
    )


@contextmanager
def _ended_on_failure(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Let `cancel_all` end the command during the block; end it when the block fails."""
    _running.add(process)
    try:
        refuse_cancelled()  # a `cancel_all` before the line above did not see this command
        yield
    except BaseException:
        _end(process)
        raise
    finally:
        _running.discard(process)


def _follow(
    process: subprocess.Popen[bytes],
    log: BinaryIO | None,
    on_line: Callable[[str], None] | None,
    tail: deque[str],
) -> None:
    """Pass output on until the command ends."""
    assert process.stdout is not None
    with process.stdout:
        for raw in iter(partial(process.stdout.readline, LONGEST_LINE), b""):
            if log is not None:
                log.write(raw)
                log.flush()
            line = raw.decode(errors="replace").rstrip("\n")
            tail.append(line)
            if on_line is not None:
                on_line(line)
    process.wait()


def interactive(
    args: Sequence[str], *, cwd: Path, env: Mapping[str, str] | None = None, pass_fds: Sequence[int] = ()
) -> int:
    """Run a command on our own terminal and return its exit code; Ctrl-C goes to the command."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        process = subprocess.Popen(
            args,
            cwd=cwd,
            env=env,
            pass_fds=tuple(pass_fds),
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509  no thread runs
        )
        code = process.wait()
    finally:
        signal.signal(signal.SIGINT, before)
    return code if code >= 0 else 128 - code


def start_detached(
    args: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    stdout: BinaryIO | int = subprocess.DEVNULL,
    stderr: BinaryIO | int = subprocess.DEVNULL,
) -> subprocess.Popen[bytes]:
    """Start a process that may outlive this one and its terminal."""
    return subprocess.Popen(
        args,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        start_new_session=True,
    )


def leave(args: Sequence[str]) -> None:
    """Start a short process that the system, not this process, waits for."""
    subprocess.run(
        ["sh", "-c", '"$@" &', "sh", *args],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        check=False,
    )


def _refuse_unstarted(program: str, line: str) -> None:
    """Raise HostError when `line` is the supervisor's message that `program` is missing."""
    for number in (errno.ENOENT, errno.EACCES, errno.ENOEXEC, errno.ENOTDIR, errno.E2BIG, errno.ELOOP):
        if line == f"{program}: {os.strerror(number)}":
            why = "it is not installed" if number == errno.ENOENT else os.strerror(number)
            raise HostError(f"cannot run {program}: {why}", hint=ours("doctor"))


def _end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(timeout=4)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    # Cancelled before `_follow`, nobody has closed it.
    if process.stdout is not None:
        process.stdout.close()
