"""What happened: results of stages and of recipes. A failure is a value, not an exception."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from spark_build.errors import SparkBuildError

StageStatus = Literal["done", "kept", "failed"]
Status = Literal["built", "reused", "failed", "blocked", "skipped", "stopped"]


@dataclass(frozen=True, kw_only=True, slots=True)
class StageResult:
    """Outcome of one stage; `kept` means an earlier run had finished it with these inputs."""

    stage: str
    status: StageStatus
    seconds: float
    error: SparkBuildError | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """What the compiling took. 0 and "" where it was not measured (nothing was compiled)."""

    peak_mib: int = 0  # of all its processes together
    peak_mib_per_job: int = 0
    jobs: int = 0  # at most at once
    cache: str = ""  # what came out of the compiler cache, in words


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """A file that differs between two builds of the same, and in what."""

    file: str
    what: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Repetition:
    """A recipe that was built once more, and how that differs from what is in the store."""

    recipe: str
    product: str  # the wheel's file name, or "prefix"
    sha256: str  # of the wheel in the store; of a prefix its content digest
    differences: tuple[Difference, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class LogDiagnosis:
    """The first real error of a failed build; without `problem` it is none of the known ones."""

    problem: str  # "out-of-memory"; "" for an unknown one
    error: str  # what the tool said
    place: str = ""  # "native.c:3", when the tool names it
    explanation: str = ""
    fix: str = ""  # the command or edit that mends it
