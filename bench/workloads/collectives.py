"""Bus bandwidth of all_reduce and all_gather: NCCL over the GPUs present, else gloo between two processes."""

from __future__ import annotations

import datetime as dt
import os
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from findings import Finding, verdict
from timing import BATCH_SECONDS, Batches

from workloads import Asked, Case, Run, Work

# Unless the arm says otherwise. All ranks are on this host, no other interface need exist. Multicast in the
# switch hides what the links do, and where a guest may not use it, it takes the GPUs out of service.
SETTINGS = {
    "GLOO_SOCKET_IFNAME": "lo",
    "NCCL_SOCKET_IFNAME": "lo",
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
}
PATIENCE = dt.timedelta(seconds=120)
LARGEST = 1 << 30  # bytes; a machine was seen to freeze with 16 GiB
# Of a plain transfer between two ranks. Two directions at once, and more hops, are what makes the difference.
SHARES = {"nccl": (0.3, 1.3), "gloo": (0.05, 4.0)}


def cases(asked: Asked) -> Iterator[Case]:
    gpus = torch.cuda.device_count() if asked.device == "cuda" else 0
    backend, ranks = ("nccl", gpus) if gpus > 1 else ("gloo", 2)
    sizes = (24,) if asked.quick else (20, 24, 26)
    if backend == "nccl":
        sizes = (28,) if asked.quick else (20, 24, 28, 30)
    for operation in ("all_reduce", "all_gather"):
        for size in sizes:
            yield _case(operation, backend, ranks, min(1 << size, LARGEST), "collective" in asked.inject)


def _case(operation: str, backend: str, ranks: int, size: int, spoil: bool) -> Case:
    # What each link carries, however the algorithm goes about it: of each part of the buffer every rank needs
    # the other ranks' (all_gather); a reduction has to bring them together first (all_reduce).
    bus = size * (ranks - 1) / ranks * (2 if operation == "all_reduce" else 1)
    work = Work(name=f"collectives.{operation}.{size >> 20}MiB", unit="B/s", amount=bus, dtype="fp32",
                size=size, mode=f"{backend} x{ranks}", operation="collective", moved=bus)  # fmt: skip
    return Case(work=work, prepare=lambda: _run(work, operation, backend, ranks, spoil))


def _run(work: Work, operation: str, backend: str, ranks: int, spoil: bool) -> Run:
    world = World(operation, backend, ranks, int(work.size or 0))

    def right() -> list[Finding]:
        wrong = sum(world.ask("check", spoil))
        found = f"{wrong} of {ranks * int(work.size or 0) // 4} elements wrong, {backend} between {ranks} "
        why = "GPUs" if backend == "nccl" else "processes: fewer than two GPUs are measured"
        return [verdict(f"{work.name}.result", wrong == 0, found + why)]

    return Run(step=lambda: world.ask("run", 1), batches=world.batches, countable=False,
               plain=lambda: float(work.size or 0) / max(world.ask("plain", 1)), share=SHARES[backend],
               after=right, close=world.close)  # fmt: skip


class World:
    """Processes, one for each rank, that do what they are told together."""

    def __init__(self, operation: str, backend: str, ranks: int, size: int) -> None:
        for name, value in SETTINGS.items():
            os.environ.setdefault(name, value)
        context = torch.multiprocessing.get_context("spawn")
        self.folder = tempfile.TemporaryDirectory()
        self.pipes: list[Connection] = []
        self.processes = []
        for rank in range(ranks):
            ours, theirs = context.Pipe()
            given = (rank, ranks, backend, operation, size, self.folder.name, theirs)
            process = context.Process(target=be_rank, args=given, daemon=True)
            process.start()
            theirs.close()
            self.pipes.append(ours)
            self.processes.append(process)

    def ask(self, what: str, number: int) -> list[float]:
        """What every rank answers; raises RuntimeError where one ended."""
        for pipe in self.pipes:
            pipe.send((what, number))
        try:
            return [pipe.recv() for pipe in self.pipes]
        except EOFError as error:
            codes = [process.exitcode for process in self.processes]
            raise RuntimeError(f"a rank ended; exit codes {codes}, see the log") from error

    def batches(self) -> Batches:
        """Of all ranks the slowest counts."""
        seconds = max(self.ask("run", 3)) / 3
        calls = max(1, round(BATCH_SECONDS / seconds))
        while True:
            yield max(self.ask("run", calls)), calls

    def close(self) -> None:
        for pipe in self.pipes:
            pipe.send(("end", 0))
        for process in self.processes:
            process.join(20)
            if process.is_alive():
                process.kill()
        self.folder.cleanup()


def be_rank(
    rank: int, ranks: int, backend: str, operation: str, size: int, folder: str, pipe: Connection
) -> None:
    """One rank, in a process of its own."""
    import torch.distributed as dist

    place = f"cuda:{rank}" if backend == "nccl" else "cpu"
    if backend == "nccl":
        torch.cuda.set_device(rank)
    else:
        torch.set_num_threads(1)  # two ranks share the processors
    store = f"file://{Path(folder) / 'store'}"
    dist.init_process_group(backend, init_method=store, rank=rank, world_size=ranks, timeout=PATIENCE)
    part = Part(rank, ranks, operation, size, place)
    while (asked := pipe.recv())[0] != "end":
        what, number = asked
        pipe.send(part.check(bool(number)) if what == "check" else part.timed(what, number))
    dist.destroy_process_group()


class Part:
    """The buffers of one rank. `size` bytes are what a rank has in the end."""

    def __init__(self, rank: int, ranks: int, operation: str, size: int, place: str) -> None:
        self.rank, self.ranks, self.operation, self.place = rank, ranks, operation, place
        self.count = size // 4
        self.whole = torch.zeros(self.count, device=place)
        self.own = torch.zeros(self.count // ranks, device=place)

    def wait(self) -> None:
        if self.place != "cpu":
            torch.cuda.synchronize()

    def run(self) -> None:
        import torch.distributed as dist

        if self.operation == "all_reduce":
            dist.all_reduce(self.whole)
        else:
            dist.all_gather_into_tensor(self.whole, self.own)

    def plain(self) -> None:
        """From the first rank to the second, nothing else."""
        import torch.distributed as dist

        if self.rank == 0:
            dist.send(self.whole, 1)
        elif self.rank == 1:
            dist.recv(self.whole, 0)

    def timed(self, what: str, calls: int) -> float:
        """Seconds of `calls` calls; for `plain` the fastest one's."""
        import torch.distributed as dist

        self.whole.zero_()  # sums would grow without end
        step = self.plain if what == "plain" else self.run
        took = []
        for _ in range(calls if what == "plain" else 1):
            self.wait()
            dist.barrier()
            self.wait()
            start = time.perf_counter()
            for _ in range(1 if what == "plain" else calls):
                step()
            self.wait()
            took.append(time.perf_counter() - start)
        return min(took)

    def check(self, spoil: bool) -> int:
        """Elements that are wrong after one call."""
        parts = torch.arange(self.count, device=self.place) % 7
        if self.operation == "all_reduce":
            self.whole.copy_(parts * (self.rank + 1))
            expected: Any = parts * (self.ranks * (self.ranks + 1) // 2)
        else:
            self.own.copy_(parts[: len(self.own)] + self.rank)
            each = [parts[: len(self.own)] + rank for rank in range(self.ranks)]
            expected = torch.cat(each)
        self.run()
        self.wait()
        if spoil:
            self.whole[self.count // 2] += 1
        return int((self.whole[: len(expected)] != expected).sum())
