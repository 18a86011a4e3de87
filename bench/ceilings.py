"""What the device can do at best, measured: the bounds that no workload's figure may break."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from findings import Unsupported
from operands import Operands
from surroundings import cache_bytes
from timing import batches_of, best_rate, burst

COPY_SECONDS = 0.15
PEAK_SECONDS = 0.2
SIZES = {"cpu": (512, 1024), "cuda": (4096, 8192)}
DTYPES = {"cpu": ("fp32", "bf16"), "cuda": ("fp32", "tf32", "fp16", "bf16")}


def copy_rate(torch: Any, device: str, seconds: float = COPY_SECONDS) -> float:
    """Bytes per second of a copy between buffers that no cache holds, reading and writing counted."""
    length = max(64 << 20, 4 * cache_bytes(torch, device))
    source = torch.ones(length, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return best_rate(batches_of(torch, device, lambda: target.copy_(source)), 2 * length, seconds)


def plain_copy(torch: Any, device: str) -> Callable[[], float]:
    """The same rate whenever it is asked, in a few milliseconds: to be measured in turn with something."""
    length = max(32 << 20, 4 * cache_bytes(torch, device))
    source = torch.ones(length, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)

    def copy() -> object:
        return target.copy_(source)

    copy()
    calls = 1 if device == "cpu" else 10  # a GPU's clock is too coarse for one
    return lambda: 2 * length * calls / burst(torch, device, copy, calls)


def peaks(torch: Any, given: Any) -> dict[str, float]:
    """dtype -> FLOP/s of the fastest batch of products: of either layout, as one may be faster."""
    found: dict[str, float] = {}
    for dtype in DTYPES[given.device]:
        torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
        for size in SIZES[given.device]:
            try:
                operands = Operands(torch, given, dtype, size)
            except Unsupported:
                continue
            for layout in ("ab", "linear"):

                def step(operands: Operands = operands, layout: str = layout) -> None:
                    operands.product(layout, 0)

                rate = best_rate(batches_of(torch, given.device, step), 2 * size**3, PEAK_SECONDS)
                found[dtype] = max(found.get(dtype, 0.0), rate)
    torch.backends.cuda.matmul.allow_tf32 = False
    return found
