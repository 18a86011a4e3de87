"""Graphs worked on side by side, in threads of this process."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_build import process as runner
from spark_build.build.scheduler import in_order
from spark_build.process import Cancelled


@pytest.fixture(autouse=True)
def _nothing_cancelled() -> Iterator[None]:
    yield
    runner._cancelled.clear()


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 12), st.integers(1, 4), st.data())
def test_each_once_after_what_it_needs_and_not_too_many(
    count: int, workers: int, data: st.DataObject
) -> None:
    graph = {
        str(n): data.draw(st.sets(st.integers(0, n - 1).map(str), max_size=3)) if n else set()
        for n in range(count)
    }
    changing, running, most = threading.Lock(), 0, 0
    done: set[str] = set()

    def work(name: str) -> str:
        nonlocal running, most
        with changing:
            running += 1
            most = max(most, running)
            assert graph[name] <= done
        time.sleep(0.0005)
        with changing:
            running -= 1
        return name * 2

    for name, result in in_order(graph, work, workers=lambda: workers):
        assert result == name * 2
        assert name not in done
        done.add(name)
    assert done == set(graph)
    assert most <= workers


def test_an_error_ends_the_commands_of_the_others(tmp_path: Path) -> None:
    def work(name: str) -> None:
        if name == "bad":
            while not (tmp_path / "started").exists():
                time.sleep(0.01)
            raise ValueError(name)
        with contextlib.suppress(Cancelled):
            runner.run(["sh", "-c", f"touch '{tmp_path}/started'; sleep 600"])
            (tmp_path / "went on").touch()

    begin = time.monotonic()
    with pytest.raises(ValueError, match="bad"):
        list(in_order({"good": [], "bad": []}, work, workers=lambda: 2))
    assert time.monotonic() - begin < 60
    assert not (tmp_path / "went on").exists()


def test_a_reader_that_gives_up_ends_the_commands(tmp_path: Path) -> None:
    ended = threading.Event()

    def work(name: str) -> None:
        if name == "long":
            try:
                runner.run(["sleep", "600"])
            except Cancelled:
                ended.set()
                raise

    def give_up() -> None:
        with closing(in_order({"short": [], "long": []}, work, workers=lambda: 2)) as results:
            for _ in results:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        give_up()
    assert ended.wait(1)
