"""Values that a run emits: events, results and gates, and their JSON rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Literal, get_args

from spark_build.decoding import decoder
from spark_build.errors import RecipeError, SparkBuildError


@dataclass(frozen=True, kw_only=True, slots=True)
class Note:
    """A message for the user: a wait for a lock, an installed package, a choice."""

    message: str
    recipe: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class StageStarted:
    """A stage of a recipe begins; `expected`: usage as earlier builds suggest."""

    recipe: str
    stage: str
    expected: ExpectedUsage | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """Progress of the running stage; steps are compile steps or rounds."""

    recipe: str
    stage: str
    done: int
    total: int
    unit: Literal["steps", "bytes"] = "steps"


@dataclass(frozen=True, kw_only=True, slots=True)
class Usage:
    """Memory in use by all compile jobs together, and its limit, in MiB."""

    jobs: int
    allowed: int
    memory_mib: int
    budget_mib: int


@dataclass(frozen=True, kw_only=True, slots=True)
class StageFinished:
    """A stage ended, successfully or not."""

    recipe: str
    result: StageResult


@dataclass(frozen=True, kw_only=True, slots=True)
class RecipeFinished:
    """A recipe was completed or failed."""

    result: RecipeResult


@dataclass(frozen=True, kw_only=True, slots=True)
class BurnInStarted:
    """Rounds are about to be measured; times in seconds, `round_seconds` is a lower bound."""

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
    """An arm reported the rate of its last tick in FLOP/s, `seconds` into warm-up or measurement."""

    case: str
    part: Literal["warm-up", "window"]
    seconds: float
    rate: float


@dataclass(frozen=True, kw_only=True, slots=True)
class MachineSeen:
    """State of the device: MHz, W, degrees Celsius; None where it cannot be read."""

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
    """All rounds were measured, or measuring stopped."""


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


StageStatus = Literal["done", "kept", "failed"]
Status = Literal["built", "configured", "reused", "failed", "blocked", "skipped", "stopped"]


@dataclass(frozen=True, kw_only=True, slots=True)
class StageResult:
    """Outcome of one stage; `kept` means an earlier run had finished it with these inputs."""

    stage: str
    status: StageStatus
    seconds: float
    error: SparkBuildError | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """Cost of compiling; 0 and "" where it was not measured (nothing was compiled)."""

    peak_mib: int = 0  # of all its processes together
    peak_mib_per_job: int = 0
    jobs: int = 0  # at most at once
    cache: str = ""  # what came out of the compiler cache, in words


@dataclass(frozen=True, kw_only=True, slots=True)
class JudgedFeature:
    """An expected feature and the configure step's answer; found is None where no line names it."""

    name: str
    expected: str
    found: str | None
    missing: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class RecipeResult:
    """Outcome of one recipe in a run; `wheels` are file names in the published generation."""

    recipe: str
    version: str
    status: Status
    seconds: float
    reasons: tuple[str, ...] = ()
    wheels: tuple[str, ...] = ()
    log: str = ""
    build_key: str = ""
    error: SparkBuildError | None = None
    cost: Cost = Cost()
    features: tuple[JudgedFeature, ...] = ()  # as judged by a run that only configures


@dataclass(frozen=True, kw_only=True, slots=True)
class FileDifference:
    """A file that differs between two builds of one recipe, with the parts that differ."""

    file: str
    what: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Repetition:
    """A recipe built a second time, and its differences from the store."""

    recipe: str
    product: str  # the wheel's file name, or "prefix"
    sha256: str  # of the wheel in the store; of a prefix its content digest
    differences: tuple[FileDifference, ...]


GateStatus = Literal["ok", "warn", "fail", "unknown"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Gate:
    """A condition that a measurement must meet; `fail` makes a run INCONCLUSIVE."""

    name: str
    status: GateStatus
    evidence: str


KINDS: dict[str, type] = {argument.__name__: argument for argument in get_args(Event)}


def encode(event: Event) -> dict[str, Any]:
    """Return an event as a JSON-compatible row."""
    return {"event": type(event).__name__, **_plain(event)}


def decode(row: Mapping[str, Any]) -> Event | None:
    """Return the event of a row; None for an unknown kind or fields that do not fit."""
    kind = KINDS.get(str(row.get("event")))
    try:
        return None if kind is None else decoder(kind, newer=True)(row)
    except (TypeError, ValueError, LookupError):
        return None


def _plain(value: Any) -> Any:
    if isinstance(value, SparkBuildError):
        return _plain_error(value)
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return value if value is None or isinstance(value, str | int | float) else str(value)


def _plain_error(error: SparkBuildError) -> dict[str, Any]:
    row: dict[str, Any] = {"type": type(error).__name__, "message": error.message, "where": error.where}
    row |= {"hint": _plain(error.hint.parts) if error.hint else None, "log": error.log}
    if isinstance(error, RecipeError):
        row["problems"] = [
            {"file": one.place.file, "line": one.place.line, "message": one.message} for one in error.problems
        ]
    return row


@dataclass(frozen=True, kw_only=True, slots=True)
class ExpectedUsage:
    """Expected usage of a build, from the recipe's declaration and earlier builds."""

    memory_per_job_mib: int
    seconds: float | None = None  # None: no earlier build says
    guess: float | None = None  # seconds by the recipe's declaration
    steps: int = 0
    curve: tuple[float, ...] = ()
