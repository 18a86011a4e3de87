"""A fault in the wheelhouse together with what mends it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from spark_build.files import remove_any
from spark_build.wheelhouse.model import Fault, FaultKind

REPAIR = "spark-build wheelhouse check --repair"


@dataclass(frozen=True, kw_only=True, slots=True)
class Suspect:
    """mend: tries, and says whether it worked; None where there is nothing to try."""

    fault: Fault
    mend: Callable[[], bool] | None = None

    def mended(self) -> Fault:
        """The fault after an attempt to mend it."""
        return replace(self.fault, mended=self.mend is not None and self.mend())


def suspect(
    kind: FaultKind, path: Path, message: str, fix: str = REPAIR, mend: Callable[[], bool] | None = None
) -> Suspect:
    """A suspect in one line."""
    return Suspect(fault=Fault(kind=kind, path=str(path), message=message, fix=fix), mend=mend)


def leftovers(paths: Sequence[Path]) -> Suspect:
    """What one killed process left; only meaningful while nobody works on it."""

    def mend() -> bool:
        for path in paths:
            remove_any(path)
        return True

    more = f" (and {len(paths) - 1} more)" if len(paths) > 1 else ""
    told = f"left by a process that was killed{more}; nothing needs it, and the next one removes it"
    return suspect("unfinished", paths[0], told, mend=mend)
