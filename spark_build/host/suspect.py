"""A fault in the wheelhouse together with what mends it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from spark_build.host.files import remove_tree
from spark_build.model.keeping import Fault, FaultKind

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


def leftover(path: Path) -> Suspect:
    """What a killed process left; only meaningful while nobody works on it."""

    def mend() -> bool:
        remove_tree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)
        return True

    return suspect(
        "unfinished",
        path,
        "left by a process that was killed; nothing needs it, the next one removes it",
        mend=mend,
    )
