"""What is known about the generations of a view, what collecting takes, what checking finds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ChangeKind = Literal["added", "removed", "version", "rebuilt"]
FaultKind = Literal[
    "missing", "damaged", "foreign", "dangling", "misplaced", "papers", "unfinished", "incomplete"
]


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerationChange:
    """What became of one name. rebuilt: another build of the same version. before, after: versions."""

    kind: ChangeKind
    name: str
    before: str
    after: str


@dataclass(frozen=True, kw_only=True, slots=True)
class KeptGeneration:
    """A generation as the rule of `gc` sees it."""

    number: int
    current: bool
    pinned: bool
    idle: float  # seconds since it was last current


@dataclass(frozen=True, kw_only=True, slots=True)
class RemovedItem:
    """One thing that collecting took, or would take."""

    kind: Literal["generation", "pages", "entry", "leftover"]
    name: str
    path: str
    size: int  # bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Collected:
    """What a collection took. held: why the store was left alone, "" when it was not."""

    taken: tuple[RemovedItem, ...]
    held: str

    @property
    def freed(self) -> int:
        """Bytes."""
        return sum(one.size for one in self.taken)


@dataclass(frozen=True, kw_only=True, slots=True)
class WheelhouseFault:
    """One thing that is not as it was recorded. fix: what to type."""

    kind: FaultKind
    path: str
    message: str
    fix: str
    mended: bool = False
