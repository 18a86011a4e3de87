"""A plan: what would be done to each recipe, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from spark_build.recipes.model import (
    Coupling,
    Feature,
    Patch,
    Pin,
    Provider,
    Recipe,
    Source,
    Target,
    Train,
    Variable,
)

Decision = Literal["BUILD", "REUSE", "SKIP", "BLOCKED"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """Expected cost of a step on this machine."""

    seconds: float
    memory_mib: int
    memory_per_job_mib: int
    disk_mib: int
    jobs: int
    measured: bool = False  # seconds are those of an earlier build here


@dataclass(frozen=True, kw_only=True, slots=True)
class BuildOptions:
    """How to go about a build."""

    offline: bool = False
    keep_going: bool = False  # start independent recipes after a failure, too
    stop_after: str = ""  # the last stage to run; empty: all of them
    cached: bool = True  # whether the compiler cache may be used


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluated:
    """What is left of a recipe when target and train are known; placeholders are still in it."""

    requires: tuple[str, ...]
    env: dict[str, Variable]
    apt: tuple[str, ...]
    dnf: tuple[str, ...]
    compile_flags: tuple[str, ...]
    features: tuple[Feature, ...]
    extra_sources: dict[str, Source]  # those that a variable refers to; others are not fetched
    label: str  # local version label of our builds: cu130.spark1
    wheel_version: str  # "2.13.0+cu130.spark1"
    locked: str = ""  # sha256 of the locked build requirements; empty: they are pinned by version only


@dataclass(frozen=True, kw_only=True, slots=True)
class Provision:
    """Where a need comes from; `path` is an environment or a prefix that is there already."""

    need: str
    distribution: str
    provider: Provider
    coupling: Coupling
    version: str  # of the need in this train
    path: str = ""

    def __str__(self) -> str:
        if self.provider == "path":
            return f"{self.need} from {self.path}"
        return (
            f"{self.need} {self.version} {'as public wheel' if self.provider == 'public' else 'built here'}"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One recipe in a plan. `key` is the plan key; `source` the one that would be used."""

    recipe: Recipe
    pin: Pin
    evaluated: Evaluated
    decision: Decision
    reasons: tuple[str, ...]
    key: str
    declared: Mapping[str, Any]  # what the plan key was made of
    provisions: tuple[Provision, ...] = ()
    source: Source | None = None
    patches: tuple[Patch, ...] = ()
    estimate: Estimate | None = None
    build_key: str = ""  # known once every need is in the store
    stale: tuple[str, ...] = ()  # why what the store has is to be audited again before it is reused
    stored_as: str = ""  # the key under which the store has it: an older one before it is taken over
    warnings: tuple[str, ...] = ()

    @property
    def needs(self) -> tuple[str, ...]:
        """Names of what must be there first."""
        return tuple(one.need for one in self.provisions)

    @property
    def from_store(self) -> tuple[str, ...]:
        """Names of the needs that are built here."""
        return tuple(one.need for one in self.provisions if one.provider == "store")


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """Steps in build order for one target and train."""

    target: Target
    train: Train
    steps: tuple[Step, ...]
