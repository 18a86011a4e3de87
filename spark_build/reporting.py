"""Destination of messages, progress and waits: set once for a block and the threads with its context."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from spark_build.text import printable


class Reporter:
    """Functions that take a message, and progress in bytes or git's objects (done, total; 0: unknown)."""

    def __init__(
        self,
        message: Callable[[str], None] = lambda _text: None,
        progress: Callable[[int, int], None] = lambda _done, _total: None,
    ) -> None:
        self.message = message
        self.progress = progress

    def waiting(self, holder: str) -> None:
        """Take who holds the lock that is waited for, once for each wait."""
        self.message(f"waiting for another spark-build: {printable(holder)}")


_current: ContextVar[Reporter] = ContextVar("reporter", default=Reporter())  # noqa: B039 - it has no state


def reporter() -> Reporter:
    """Return the reporter of this context."""
    return _current.get()


@contextmanager
def reporting(to: Reporter) -> Iterator[None]:
    """Report to another one during the block; a thread does if its target runs in `copy_context()`."""
    token = _current.set(to)
    try:
        yield
    finally:
        _current.reset(token)
