"""Bring the nodes of a cluster together: each hears what all others say; then time all_reduce between them.

Runs inside an arm under torch.distributed.run, one process on each node. What the nodes say goes through the
store of their rendezvous, so that it arrives also where NCCL or gloo finds no way.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from findings import first_line
from surroundings import write_report

BACKENDS = {"cpu": "gloo", "cuda": "nccl"}
SIZES = {"cpu": (1 << 20, 1 << 24), "cuda": (1 << 20, 1 << 24, 1 << 28)}  # bytes; the last one counts
PARTS = 5  # timed one by one: how much they vary
PART_SECONDS = 0.5


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=tuple(BACKENDS), required=True)
    parser.add_argument("--say", type=Path, required=True, help="JSON that this node tells all others")
    parser.add_argument("--link", action="store_true", help="time all_reduce, too")
    parser.add_argument("--limit", type=float, default=300, help="seconds to wait for another node")
    parser.add_argument("--inject", choices=("element",), help="plant an error, for tests")
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


def said_by_all(store: Any, rank: int, ranks: int, own: str) -> list[Any]:
    """What each node says, in the order of the rendezvous; it waits for the last one."""
    store.set(f"said/{rank}", own)
    return [json.loads(store.get(f"said/{other}")) for other in range(ranks)]


def time_links(torch: Any, given: argparse.Namespace, ranks: int) -> dict[str, Any]:
    """Time all_reduce of several sizes; each part takes as long as on the slowest node."""
    from workloads.collectives import Part

    place = "cuda" if given.device == "cuda" else "cpu"

    def of_all(value: float, operation: Any) -> float:
        told = torch.tensor([value], dtype=torch.float64, device=place)
        torch.distributed.all_reduce(told, operation)
        return float(told.item())

    slowest, total = torch.distributed.ReduceOp.MAX, torch.distributed.ReduceOp.SUM
    found = []
    for size in SIZES[given.device]:
        part = Part(torch.distributed.get_rank(), ranks, "all_reduce", size, place)
        wrong = of_all(part.check(given.inject == "element"), total)
        part.timed("run", 3)
        calls = max(1, round(PART_SECONDS / of_all(part.timed("run", 3) / 3, slowest)))
        parts = [of_all(part.timed("run", calls), slowest) for _ in range(PARTS)]
        moved = 2 * (ranks - 1) / ranks * size
        found.append({"bytes": size, "calls": calls, "seconds": parts, "wrong": int(wrong),
                      "bus": moved * calls * PARTS / sum(parts)})  # fmt: skip
    return {"sizes": found}


def links(torch: Any, given: argparse.Namespace, store: Any, rank: int, ranks: int) -> dict[str, Any]:
    """Bus bandwidth as nccl-tests defines it, or why there is none."""
    backend = BACKENDS[given.device]
    if ranks < 2:
        return {"backend": backend, "problem": "only one node is there", "sizes": []}
    patience = dt.timedelta(seconds=given.limit)
    try:
        if given.device == "cuda":
            torch.cuda.set_device(0)
        torch.distributed.init_process_group(
            backend, store=torch.distributed.PrefixStore("link", store), rank=rank, world_size=ranks,
            timeout=patience,
        )  # fmt: skip
        found = time_links(torch, given, ranks)
        torch.distributed.destroy_process_group()
    except (RuntimeError, ValueError, OSError) as error:
        found = {"problem": first_line(error), "sizes": []}
    version = ".".join(map(str, torch.cuda.nccl.version())) if given.device == "cuda" else ""
    return {"backend": f"{backend} {version}".strip(), "problem": "", **found}


def main() -> int:
    given = arguments()
    import torch
    from torch.distributed.rendezvous import rendezvous

    store, rank, ranks = next(iter(rendezvous("env://", timeout=dt.timedelta(seconds=given.limit))))
    report: dict[str, Any] = {"nodes": said_by_all(store, rank, ranks, given.say.read_text())}
    if given.link:
        report["link"] = links(torch, given, store, rank, ranks)
    write_report(given.out, report)
    if given.link and report["link"]["problem"]:
        os._exit(0)  # a broken communicator may never end in good order
    return 0


if __name__ == "__main__":
    sys.exit(main())
