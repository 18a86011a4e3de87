"""Generations as gc sees them, and results of gc and fsck."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ChangeKind = Literal["added", "removed", "version", "rebuilt"]
FaultKind = Literal[
    "missing", "damaged", "foreign", "dangling", "misplaced", "papers", "unfinished", "incomplete"
]


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerationChange:
    """Change of one name; rebuilt: another build of the same version; before, after: versions."""

    kind: ChangeKind
    name: str
    before: str
    after: str


@dataclass(frozen=True, kw_only=True, slots=True)
class KeptGeneration:
    """A generation for gc's rule."""

    number: int
    current: bool
    pinned: bool
    idle: float  # seconds since it was last current


@dataclass(frozen=True, kw_only=True, slots=True)
class RemovedItem:
    """Something that gc removed, or would remove."""

    kind: Literal["generation", "pages", "entry", "leftover", "run"]
    name: str
    path: str
    size: int  # bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Collected:
    """Result of gc; `held`: why the store was left alone, "" when it was not."""

    taken: tuple[RemovedItem, ...]
    held: str

    @property
    def freed(self) -> int:
        """Bytes that were freed."""
        return sum(one.size for one in self.taken)


@dataclass(frozen=True, kw_only=True, slots=True)
class WheelhouseFault:
    """A deviation from what was recorded; `fix`: what to type."""

    kind: FaultKind
    path: str
    message: str
    fix: str
    mended: bool = False
