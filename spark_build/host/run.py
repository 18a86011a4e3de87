"""The one place that starts processes. Every command is logged as it was run."""

from __future__ import annotations

import errno
import os
import shlex
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from spark_build.errors import HostError

SUPERVISOR = Path(__file__).with_name("supervise.py")
TAIL_LINES = 60


@dataclass(frozen=True, kw_only=True, slots=True)
class Completed:
    """An ended command: `output` is the tail of its stdout and stderr together."""

    args: tuple[str, ...]
    returncode: int
    output: str
    seconds: float


def capture(
    args: Sequence[str],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float = 60,
    check: bool = True,
) -> str | None:
    """Standard output of a short command; None when it is missing, hangs or (`check`) fails."""
    try:
        done = subprocess.run(
            args,
            cwd=cwd,
            env=env,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            text=True,
            errors="replace",
            timeout=timeout,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 or not check else None


def run(
    args: Sequence[str],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    log: BinaryIO | None = None,
    on_line: Callable[[str], None] | None = None,
    keep: Sequence[int] = (),
) -> Completed:
    """Run a long command under supervision: nothing of it outlives this process.

    Output goes line by line to `log` and `on_line`; `keep` are descriptors (locks) the command
    inherits. Raises HostError when the program does not exist.
    """
    start = time.monotonic()
    if log is not None:
        log.write(f"$ {shlex.join(args)}\n".encode())
        log.flush()
    tail: deque[str] = deque(maxlen=TAIL_LINES)
    # The supervisor ends everything when the write end closes, which our death does, too.
    lifeline, held = os.pipe()
    try:
        with os.fdopen(lifeline, "rb"):
            process = _start(args, cwd, env, lifeline, keep)
        try:
            _follow(process, log, on_line, tail)
        except BaseException:
            _end(process)
            raise
    finally:
        os.close(held)
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
    lifeline: int,
    keep: Sequence[int],
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-I", "-S", str(SUPERVISOR), str(lifeline), "--", *args],
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        pass_fds=(lifeline, *keep),
        # Ctrl-C must reach the command through us, in order, not through the terminal.
        start_new_session=True,
    )


def _follow(
    process: subprocess.Popen[bytes],
    log: BinaryIO | None,
    on_line: Callable[[str], None] | None,
    tail: deque[str],
) -> None:
    """Pass the output on until the command has ended."""
    assert process.stdout is not None
    with process.stdout:
        for raw in process.stdout:
            if log is not None:
                log.write(raw)
                log.flush()
            line = raw.decode(errors="replace").rstrip("\n")
            tail.append(line)
            if on_line is not None:
                on_line(line)
    process.wait()


def start_detached(args: Sequence[str]) -> None:
    """Start something small that may outlive this process; nobody waits for it."""
    subprocess.Popen(
        args,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _refuse_unstarted(program: str, line: str) -> None:
    """HostError when `line` is the supervisor's about `program`; a shell's "not found" is not."""
    for number in (errno.ENOENT, errno.EACCES, errno.ENOEXEC, errno.ENOTDIR, errno.E2BIG, errno.ELOOP):
        if line == f"{program}: {os.strerror(number)}":
            why = "it is not installed" if number == errno.ENOENT else os.strerror(number)
            raise HostError(f"cannot run {program}: {why}", hint="spark-build doctor")


def _end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(timeout=4)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
