from __future__ import annotations

import threading
from contextvars import copy_context
from pathlib import Path

from spark_build.files import locked
from spark_build.reporting import Reporter, reporter, reporting


def test_a_reporter_holds_for_its_block() -> None:
    outer: list[str] = []
    inner: list[str] = []
    with reporting(Reporter(outer.append)):
        with reporting(Reporter(inner.append)):
            reporter().message("inside")
        reporter().message("outside")
        reporter().progress(1, 2)
    reporter().message("nobody")
    assert (outer, inner) == (["outside"], ["inside"])


def test_threads_report_where_their_context_does() -> None:
    said: list[str] = []
    with reporting(Reporter(said.append)):
        for target in (copy_context().run, lambda function: function()):
            thread = threading.Thread(target=target, args=(lambda: reporter().message("here"),))
            thread.start()
            thread.join()
    assert said == ["here"]


def test_who_waits_for_a_lock_is_told_by_whom(tmp_path: Path) -> None:
    """What stands in a lock's file may have been written by a build."""
    said: list[str] = []
    held = threading.Event()

    def hold() -> None:
        with locked(tmp_path / "lock", purpose="building \x1b[31mx"):
            held.set()
            while not said:
                pass

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    with reporting(Reporter(said.append)), locked(tmp_path / "lock", purpose="second"):
        pass
    thread.join()
    (message,) = said
    assert message.startswith("waiting for another spark-build: building ")
    assert "\x1b" not in message
