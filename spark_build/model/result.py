"""What happened: results of stages and of recipes. A failure is a value, not an exception."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from spark_build.errors import SparkBuildError

StageStatus = Literal["done", "kept", "failed"]
Status = Literal["built", "reused", "failed", "blocked", "skipped"]


@dataclass(frozen=True, kw_only=True, slots=True)
class StageResult:
    """Outcome of one stage; `kept` means an earlier run had finished it with these inputs."""

    stage: str
    status: StageStatus
    seconds: float
    error: SparkBuildError | None = None


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


@dataclass(frozen=True, kw_only=True, slots=True)
class LogDiagnosis:
    """The first real error of a failed build; without `problem` it is none of the known ones."""

    problem: str  # "out-of-memory"; "" for an unknown one
    error: str  # what the tool said
    place: str = ""  # "native.c:3", when the tool names it
    explanation: str = ""
    fix: str = ""  # the command or edit that mends it
