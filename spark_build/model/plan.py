"""A plan: what would be done to each recipe, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from spark_build.model.recipe import Patch, Pin, Recipe, Source, Target, Train

Decision = Literal["BUILD", "REUSE", "SKIP", "BLOCKED"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """Expected cost of a step on this machine."""

    seconds: float
    memory_mib: int
    disk_mib: int
    jobs: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One recipe in a plan. `key` is the plan key; `source` the one that would be used."""

    recipe: Recipe
    pin: Pin
    decision: Decision
    reasons: tuple[str, ...]
    key: str
    declared: Mapping[str, Any]  # what the plan key was made of
    needs: tuple[str, ...] = ()
    source: Source | None = None
    patches: tuple[Patch, ...] = ()
    estimate: Estimate | None = None
    build_key: str = ""  # known once every need is in the store
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """Steps in build order for one target and train."""

    target: Target
    train: Train
    steps: tuple[Step, ...]
