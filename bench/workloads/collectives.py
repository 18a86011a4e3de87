"""Bus bandwidth of all_reduce and all_gather: NCCL over the GPUs present, else gloo between two processes."""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import tempfile
import time
import traceback
from collections.abc import Iterator
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch
from findings import Finding, first_line, verdict
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
SHARES = {"nccl": (0.3, 1.6), "gloo": (0.05, 4.0)}
LINK = 1 << 24  # bytes of a plain transfer, at least; a collective of less mostly waits
LATE = 0.01  # of a plain transfer that such a collective reaches at least
PLAIN_SECONDS = 0.005  # so long plain transfers go on, as one is too short to time
ENDED = "ended with exit status"
GRACE = 2.0  # seconds in which the other ranks say what they saw of a failure


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
    held = size // 4 // ranks * ranks * 4  # equal parts for all
    bus = held * (ranks - 1) / ranks * (2 if operation == "all_reduce" else 1)
    work = Work(name=f"collectives.{operation}.{size >> 20}MiB", unit="B/s", amount=bus, dtype="fp32",
                size=size, mode=f"{backend} x{ranks}", operation="collective", moved=bus)  # fmt: skip
    return Case(work=work, prepare=lambda: _run(work, operation, backend, ranks, held, spoil))


def _run(work: Work, operation: str, backend: str, ranks: int, held: int, spoil: bool) -> Run:
    world = World(operation, backend, ranks, held)
    least, most = SHARES[backend]
    least = least if int(work.size or 0) >= LINK else LATE

    def right() -> list[Finding]:
        wrong = sum(world.ask("check", spoil))
        found = f"{wrong} of {ranks * held // 4} elements wrong, {backend} between {ranks} "
        why = "GPUs" if backend == "nccl" else "processes: fewer than two GPUs are measured"
        return [verdict(f"{work.name}.result", wrong == 0, found + why)]

    facts = {name: os.environ[name] for name in SETTINGS}
    if backend == "nccl" and torch.distributed.is_nccl_available():
        facts["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    return Run(step=lambda: world.ask("run", 1), batches=world.batches, countable=False,
               plain=lambda: max(held, LINK) / world.plain(), share=(least, most),
               cpu=lambda: time.process_time() + sum(world.ask("cpu")), after=right, facts=facts,
               close=world.close)  # fmt: skip


class World:
    """Processes, one for each rank, that do what they are told together."""

    def __init__(self, operation: str, backend: str, ranks: int, size: int) -> None:
        for name, value in SETTINGS.items():
            os.environ.setdefault(name, value)
        context = torch.multiprocessing.get_context("spawn")
        self.folder = tempfile.TemporaryDirectory()
        self.broken = False
        self.plain_calls = 0
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

    def ask(self, what: str, number: int = 0) -> list[float]:
        """What every rank answers; raises RuntimeError where one failed."""
        for pipe in self.pipes:
            with contextlib.suppress(OSError):  # it ended, and what it left to be read says why
                pipe.send((what, number))
        answers: dict[int, float] = {}
        rest = dict(zip(self.pipes, range(len(self.pipes)), strict=True))
        failures: list[str] = []
        while rest and (ready := wait(list(rest), GRACE if failures else None)):
            for pipe in ready:
                rank = rest.pop(pipe)
                answer = self._answer(rank)
                if isinstance(answer, str):
                    failures.append(f"rank {rank} {answer}")
                else:
                    answers[rank] = answer
        if failures:
            self.broken = True
            # A rank that ended without a word is why the others failed.
            raise RuntimeError("; ".join(sorted(failures, key=lambda each: ENDED not in each)))
        return [answers[rank] for rank in sorted(answers)]

    def _answer(self, rank: int) -> float | str:
        """A number, or why there is none."""
        try:
            answer: float | str = self.pipes[rank].recv()
        except (EOFError, OSError):
            self.processes[rank].join(GRACE)
            return f"{ENDED} {self.processes[rank].exitcode}, see the log"
        return answer

    def batches(self) -> Batches:
        """Of all ranks the slowest counts."""
        self.ask("run", 1)  # the first one connects
        seconds = max(self.ask("run", 3)) / 3
        calls = max(1, round(BATCH_SECONDS / seconds))
        while True:
            yield max(self.ask("run", calls)), calls

    def plain(self) -> float:
        """Seconds of one plain transfer, as a mean of as many as can be timed."""
        if not self.plain_calls:
            self.ask("plain", 1)
            seconds = max(self.ask("plain", 3)) / 3
            self.plain_calls = max(1, round(PLAIN_SECONDS / seconds))
        return max(self.ask("plain", self.plain_calls)) / self.plain_calls

    def close(self) -> None:
        for pipe in self.pipes:
            with contextlib.suppress(OSError):
                pipe.send(("end", 0))
        for process in self.processes:
            if not self.broken:
                process.join(20)
            process.kill()  # where one failed the others may wait for it for ever
            process.join()
        self.folder.cleanup()


def be_rank(
    rank: int, ranks: int, backend: str, operation: str, size: int, folder: str, pipe: Connection
) -> None:
    """One rank, in a process of its own. It answers with numbers, or says in words why it ends."""
    try:
        _serve(rank, ranks, backend, operation, size, folder, pipe)
    except Exception as error:  # of many kinds, and whoever asks must hear which
        traceback.print_exc()
        pipe.send(f"failed: {first_line(error)}")
        raise SystemExit(1) from error


def _serve(
    rank: int, ranks: int, backend: str, operation: str, size: int, folder: str, pipe: Connection
) -> None:
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
        if what == "cpu":
            pipe.send(time.process_time())
        else:
            pipe.send(part.check(bool(number)) if what == "check" else part.timed(what, number))
    dist.destroy_process_group()


class Part:
    """The buffers of one rank. `size` bytes are what a rank has in the end."""

    def __init__(self, rank: int, ranks: int, operation: str, size: int, place: str) -> None:
        self.rank, self.ranks, self.operation, self.place = rank, ranks, operation, place
        self.count = size // 4
        self.whole = torch.zeros(self.count, device=place)
        self.own = torch.zeros(self.count // ranks, device=place)
        self.link = self.whole if size >= LINK else torch.zeros(LINK // 4, device=place)

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
            dist.send(self.link, 1)
        elif self.rank == 1:
            dist.recv(self.link, 0)

    def timed(self, what: str, calls: int) -> float:
        """Seconds of `calls` calls."""
        import torch.distributed as dist

        self.whole.zero_()  # sums would grow without end
        step = self.plain if what == "plain" else self.run
        self.wait()
        dist.barrier()
        self.wait()
        start = time.perf_counter()
        for _ in range(calls):
            step()
        self.wait()
        return time.perf_counter() - start

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
