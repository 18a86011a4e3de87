"""Look into wheels side by side, while the next ones are still arriving."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from spark_build.wheels.model import WheelFacts
from spark_build.wheels.reader import facts_and_digest

WORKERS = 4  # each may hold a library of some MiB in memory


class Proofs:
    """What is in each wheel of a folder: begun when it lies there, asked for when all do."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self._pool = pool
        self._begun: dict[Path, Future[tuple[WheelFacts, str]]] = {}

    def begin(self, wheel: Path) -> None:
        """It is whole: hashing and unpacking it leave Python's lock to who reads the next one."""
        self._begun[wheel] = self._pool.submit(facts_and_digest, wheel)

    def of(self, wheel: Path) -> tuple[WheelFacts, str]:
        """As `facts_and_digest`, which may raise AuditError."""
        return self._begun[wheel].result()


@contextlib.contextmanager
def proofs() -> Iterator[Proofs]:
    """At the end nothing goes on; after a failure nothing new is begun."""
    pool = ThreadPoolExecutor(WORKERS)
    try:
        yield Proofs(pool)
    finally:
        pool.shutdown(cancel_futures=True)
