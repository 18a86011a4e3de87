"""Work in a forked process that may fail in every way without taking us along."""

from __future__ import annotations

import faulthandler
import json
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

from findings import first_line

GRACE = 10.0  # seconds between SIGABRT, which lets Python say where it stood, and SIGKILL
Tell = Callable[[dict[str, Any]], object]


class Apart:
    """`patience`: seconds without a word after which the process counts as hung."""

    def __init__(self, patience: float) -> None:
        self.patience = patience

    def call(self, body: Callable[[Tell], object]) -> tuple[list[dict[str, Any]], str]:
        """All that `body` told, and why it did not come to its end ("" when it did).

        Nothing may have used a device or a pool of threads here before: they do not survive a fork.
        """
        sys.stdout.flush()
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            _be_child(body, writing)
        os.close(writing)
        told, hung = self._listen(reading, child)
        _, status = os.waitpid(child, 0)
        _end_group(child)  # what it started must not go on computing beside the next
        why = next((part["error"] for part in told if "error" in part), "")
        return [part for part in told if "error" not in part], hung or why or _problem(status)

    def _listen(self, reading: int, child: int) -> tuple[list[dict[str, Any]], str]:
        told: list[dict[str, Any]] = []
        rest, hung = b"", ""
        with os.fdopen(reading, "rb", buffering=0) as pipe:
            while True:
                if not select.select([pipe], [], [], GRACE if hung else self.patience)[0]:
                    os.kill(child, signal.SIGKILL if hung else signal.SIGABRT)
                    if hung:
                        break
                    hung = f"hung: not a word for {self.patience:g} s"
                    continue
                part = pipe.read(1 << 16)
                if not part:
                    break
                *lines, rest = (rest + part).split(b"\n")
                told += [json.loads(line) for line in lines]
        return told, hung


def _be_child(body: Callable[[Tell], object], writing: int) -> None:
    """Never returns: what stands behind the fork is the parent's."""
    code = 1

    def tell(part: dict[str, Any]) -> None:
        left = json.dumps(part).encode() + b"\n"
        while left:
            left = left[os.write(writing, left) :]

    try:
        os.setsid()
        faulthandler.enable()
        body(tell)
        code = 0
    except BaseException as error:  # whatever it is, the log must have it
        traceback.print_exc()
        tell({"error": first_line(error)})
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _end_group(leader: int) -> None:
    for _ in range(50):
        try:
            os.killpg(leader, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            return
        time.sleep(0.1)


def _problem(status: int) -> str:
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        name = signal.Signals(number).name
        return f"was killed ({name})" + (": out of memory?" if number == signal.SIGKILL else "")
    code = os.WEXITSTATUS(status)
    return f"ended with exit status {code}, see the log" if code else ""
