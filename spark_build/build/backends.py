"""The ways to build, one small module each: pep517, cmake, repack, assemble."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from spark_build.build.job import Job

# Prefixes are installed under a fixed place that does not exist: the same bytes wherever the store lies.
NOWHERE = "/opt/spark-build"
# Runs a command of the build, with variables on top of the build's own; raises StageError.
Runner = Callable[[Sequence[str], Path, Mapping[str, str]], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Product:
    """What a build made: a wheel's file name in job.dist, a prefix in job.prefix, or both."""

    wheel: str = ""
    prefix: bool = False


class Builder(Protocol):
    """A way to build."""

    def __call__(self, job: Job, runner: Runner, values: Mapping[str, str | Callable[[], str]], /) -> Product:
        """Build in job.source; `values` fill placeholders. Raises StageError."""
        ...


def builder_for(kind: str) -> Builder:
    """Return the function that builds recipes of a kind."""
    from spark_build.build import assemble, cmake, pep517, repack

    known: dict[str, Builder] = {
        "pep517": pep517.build,
        "cmake": cmake.build,
        "repack": repack.build,
        "assemble": assemble.build,
    }
    return known[kind]
