"""The workloads of the wider suite: each a file here, which offers cases; `suite.py` runs them.

Nothing but torch and the standard library. A case says what one call does before any memory is taken;
`prepare` takes it when its turn has come.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

from findings import Finding
from surroundings import cache_bytes, free_bytes
from timing import Batches, Step

# Of a plain copy, for what memory bounds. A CPU reads what it writes before it writes it, unless a copy goes
# around its caches: the kinds differ by what they write, and by how long threads wait for each other.
# On an H200 sums reach 110% of a copy. A wrong count of arrays would be off by half or more.
SHARES = {"cpu": (0.4, 1.6), "cuda": (0.6, 1.2)}
SIZES = {"fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2}
NO_FP16 = "a CPU computes FP16 at 1 GFLOP/s or less, which says nothing about a build"


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What decides the cases."""

    device: str  # cpu or cuda
    quick: bool
    seed: int
    inject: frozenset[str] = frozenset()  # faults to plant, for tests

    def pick(self, **choices: Any) -> Any:
        """The value for this device and mode, named cpu_quick, cpu, ...; _quick may be missing."""
        mode = f"{self.device}_quick" if self.quick else self.device
        return choices.get(mode, choices[self.device])


@dataclass(frozen=True, kw_only=True)
class Work:
    """One case: what one call does, as the report keeps it."""

    name: str
    unit: str
    amount: float  # units of one call
    dtype: str = ""
    size: int | None = None
    mode: str = ""
    operation: str = ""
    flops: float | None = None
    moved: float | None = None


@dataclass(kw_only=True)
class Run:
    """A case that is ready to run, and how its figure is proved."""

    step: Step
    batches: Callable[[], Batches] | None = None  # None: the device's own way to time
    count: Step | None = None  # the call whose FLOPs torch counts; None: `step`
    counted: float | None = None  # what it must count, where that is more than what is done
    parts: int = 1  # of so many the counted call is one
    countable: bool = True  # whether torch can count it at all
    peak: float = 1.0  # how often the peak of plain products a faster algorithm may reach
    plain: Callable[[], float] | None = None  # a rate of the same kind, measured plainly at each call
    share: tuple[float, float] = SHARES["cuda"]  # of it, within which the figure's must lie
    cpu: Callable[[], float] = time.process_time  # seconds of processors that all who work on it have used
    after: Callable[[], list[Finding]] = list
    facts: dict[str, Any] = field(default_factory=dict)
    close: Callable[[], None] = lambda: None


@dataclass(frozen=True, kw_only=True)
class Case:
    """`prepare` raises findings.Unsupported for what cannot be had here."""

    work: Work
    prepare: Callable[[], Run]


def spoiled(call: Callable[..., Any], asked: Asked) -> Callable[..., Any]:
    """`call`, its result wrong where a test asks for that."""
    return (lambda *given: call(*given) + 1) if "result" in asked.inject else call


def difference(found: Any, true: Any) -> float:
    """Largest difference, relative to the largest true value; infinite where a value is not finite."""
    largest = float((found - true).abs().max() / true.abs().max())
    return largest if math.isfinite(largest) else math.inf


class Workload(Protocol):
    """What a file of this folder has."""

    def cases(self, asked: Asked) -> Iterable[Case]: ...


def rotating(torch: Any, device: str, make: Callable[[], Any], size: int) -> list[Any]:
    """Sets of `size` bytes, together more than twice the last cache, so that memory is what is measured."""
    room = max(2, free_bytes(torch, device) // (4 * size))
    return [make() for _ in range(min(room, max(2, math.ceil(2 * cache_bytes(torch, device) / size))))]
