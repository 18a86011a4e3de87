"""Work on the nodes of a graph side by side, each as soon as what it needs is done."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Collection, Generator, Mapping
from concurrent.futures import Future
from graphlib import TopologicalSorter
from typing import TypeVar

from spark_build.process import cancel_all

T = TypeVar("T")
JOIN_SECONDS = 6.0  # a supervisor needs up to four to end what does not want to


def in_order(
    graph: Mapping[str, Collection[str]], work: Callable[[str], T], *, workers: int
) -> Generator[tuple[str, T], None, None]:
    """Yield (name, result) as they come; `graph` maps a name to what must have been yielded before.

    At most `workers` at once, in the graph's order where free. When `work` raises, or the reader of this
    does, all running commands are ended before the exception goes on.
    """
    order = {name: place for place, name in enumerate(graph)}
    sorter = TopologicalSorter({name: set(needs) for name, needs in graph.items()})
    sorter.prepare()
    done: queue.SimpleQueue[tuple[str, Future[T]]] = queue.SimpleQueue()
    threads: list[threading.Thread] = []
    waiting: list[str] = []
    running = 0

    def one(name: str) -> None:
        future: Future[T] = Future()
        try:
            future.set_result(work(name))
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that asked for it
            future.set_exception(error)
        done.put((name, future))

    try:
        while sorter.is_active():
            waiting = sorted([*waiting, *sorter.get_ready()], key=order.__getitem__)
            while waiting and running < workers:
                # A daemon: who waits for another process's lock must not keep ours alive.
                thread = threading.Thread(target=one, args=(waiting[0],), name=waiting.pop(0), daemon=True)
                threads.append(thread)
                running += 1
                thread.start()
            name, future = done.get()
            running -= 1
            yield name, future.result()
            sorter.done(name)
    except BaseException:
        _end(threads)
        raise


def _end(threads: list[threading.Thread]) -> None:
    cancel_all()
    deadline = time.monotonic() + JOIN_SECONDS
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
