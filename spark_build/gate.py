"""Validity gates as values; apart from verification, because every command's events know them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

GateStatus = Literal["ok", "warn", "fail", "unknown"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Gate:
    """A condition under which a number means something; `fail` makes a run INCONCLUSIVE."""

    name: str
    status: GateStatus
    evidence: str
