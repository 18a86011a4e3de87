"""Events of a run, in the order they happen; `cli/render.py` shows them, runs/<id>/ keeps them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from spark_build.model.history import Expected
from spark_build.model.result import RecipeResult, StageResult


@dataclass(frozen=True, kw_only=True, slots=True)
class Note:
    """Something worth telling: a wait for a lock, a package installed, a choice made."""

    message: str
    recipe: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class StageStarted:
    """A stage of a recipe begins; expected: what earlier builds say about it."""

    recipe: str
    stage: str
    expected: Expected | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """How far the running stage is; steps are compile steps or rounds."""

    recipe: str
    stage: str
    done: int
    total: int
    unit: Literal["steps", "bytes"] = "steps"


@dataclass(frozen=True, kw_only=True, slots=True)
class Usage:
    """What all compile jobs together use now, and may use; memory in MiB."""

    jobs: int
    allowed: int
    memory_mib: int
    budget_mib: int


@dataclass(frozen=True, kw_only=True, slots=True)
class StageFinished:
    """A stage ended, well or not."""

    recipe: str
    result: StageResult


@dataclass(frozen=True, kw_only=True, slots=True)
class RecipeFinished:
    """A recipe is done with."""

    result: RecipeResult


Event = Note | StageStarted | Progress | Usage | StageFinished | RecipeFinished
Emit = Callable[[Event], None]
