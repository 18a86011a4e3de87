"""Events of a run, in the order they happen; `cli/render.py` shows them, runs/<id>/ keeps them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from spark_build.gate import Gate
from spark_build.resources.history import Expected
from spark_build.result import RecipeResult, StageResult


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


@dataclass(frozen=True, kw_only=True, slots=True)
class BurnInStarted:
    """Rounds are about to be measured; times in seconds, `round_seconds` as long as one takes at least."""

    arms: tuple[str, ...]
    headline: str
    rounds: int
    warmup: float
    window: float
    round_seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundStarted:
    """A round begins; `number` counts from 1."""

    arm: str
    number: int


@dataclass(frozen=True, kw_only=True, slots=True)
class RateSeen:
    """An arm told the rate of its last tick, in FLOP/s, `seconds` into the warm-up or the window."""

    case: str
    part: Literal["warm-up", "window"]
    seconds: float
    rate: float


@dataclass(frozen=True, kw_only=True, slots=True)
class MachineSeen:
    """The device at one moment, in MHz, W and degrees Celsius; None: cannot be read here."""

    clock_mhz: float | None = None
    watts: float | None = None
    limit_watts: float | None = None
    celsius: float | None = None
    held: tuple[str, ...] | None = None  # why its clocks are held down; (): they are not


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundFinished:
    """A round ended, or was measured by an earlier command (`kept`): means over its windows, in FLOP/s."""

    arm: str
    number: int
    seconds: float
    rates: dict[str, float]  # by case
    machine: MachineSeen
    gates: tuple[Gate, ...]  # as they stand now
    problem: str = ""
    kept: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class BurnInFinished:
    """No round is measured any more."""


Event = (
    Note
    | StageStarted
    | Progress
    | Usage
    | StageFinished
    | RecipeFinished
    | BurnInStarted
    | RoundStarted
    | RateSeen
    | MachineSeen
    | RoundFinished
    | BurnInFinished
)
Emit = Callable[[Event], None]
