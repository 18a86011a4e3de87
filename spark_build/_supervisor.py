"""Run one command so that none of its processes outlives the caller.

Started as a script by `process.py`: `python -IS supervise.py LIFELINE_FD NICE -- COMMAND...`.
The lifeline is the read end of a pipe whose write end the asking process holds: when that process
dies, even by kill -9, the pipe closes and every descendant is killed. Being a child subreaper, this
process also finds descendants that made themselves a session of their own.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import sys
import time

PR_SET_CHILD_SUBREAPER = 36
GRACE = 2.0  # seconds between SIGTERM and SIGKILL
STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
IOPRIO_SET = {"x86_64": 251, "aarch64": 30}  # the system call's number; the C library has no name for it
LOWEST_BEST_EFFORT = 2 << 13 | 7


def descendants() -> list[int]:
    """Return the ids of all living descendants, from /proc."""
    parents: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
                if fields[0] != b"Z":
                    parents[int(name)] = int(fields[1])
    me = os.getpid()
    found: list[int] = []
    frontier = {me}
    while frontier:
        frontier = {pid for pid, parent in parents.items() if parent in frontier}
        found.extend(frontier)
    return found


def end_all() -> None:
    """Send SIGTERM to every descendant, then SIGKILL to those that stay."""
    set_session_nice(0)  # the end should come soon, also on a busy machine
    deadline = time.monotonic() + GRACE
    sign = signal.SIGTERM
    foreign: set[int] = set()  # another user's (sudo): not ours to end, nor to wait for
    while alive := set(descendants()) - foreign:
        for pid in alive:
            try:
                os.kill(pid, sign)
            except ProcessLookupError:
                pass
            except PermissionError:
                foreign.add(pid)
        reap()
        time.sleep(0.05)
        if time.monotonic() > deadline:
            sign = signal.SIGKILL


def reap() -> dict[int, int]:
    """Collect ended children and return {pid: exit status as a shell reports it}."""
    ended: dict[int, int] = {}
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            code = os.waitstatus_to_exitcode(status)
            ended[pid] = code if code >= 0 else 128 - code
    return ended


def set_session_nice(nice: int) -> None:
    """Set what the kernel takes for niceness between sessions, where it groups processes by them."""
    with contextlib.suppress(OSError), open("/proc/self/autogroup", "w", encoding="ascii") as file:
        file.write(str(nice))


def step_back(nice: int) -> None:
    """Let everything else on the machine have processor and disk first."""
    os.nice(nice)
    set_session_nice(nice)
    number = IOPRIO_SET.get(os.uname().machine)
    if number is not None:
        ctypes.CDLL(None).syscall(number, 1, 0, LOWEST_BEST_EFFORT)


def main(lifeline: int, nice: int, command: list[str]) -> int:
    """Run `command` until it ends, a signal asks for the end, or the lifeline closes."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write)
    stop = False

    def on_stop(*_: object) -> None:
        nonlocal stop
        stop = True

    for number in STOPPING:
        signal.signal(number, on_stop)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    child = os.fork()
    if child == 0:
        signal.set_wakeup_fd(-1)
        # Python ignores SIGPIPE and SIGXFSZ; a command must not inherit that (`yes | head -1`).
        for number in (*STOPPING, signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        os.close(lifeline)
        if nice:
            step_back(nice)
        try:
            os.execvp(command[0], command)
        except OSError as error:
            os.write(2, f"{command[0]}: {error.strerror}\n".encode())
            os._exit(127)
    code: int | None = None
    while code is None and not stop:
        ready, _, _ = select.select([lifeline, wake_read], [], [])
        if wake_read in ready:
            os.read(wake_read, 512)
        code = reap().get(child)
        if lifeline in ready:
            break
    end_all()
    return 143 if code is None else code


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[4:]))
