"""What a stage gets to work with, and what it has to offer."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from spark_build.build.provide import Provided
from spark_build.events import Emit, Expected
from spark_build.paths import Home
from spark_build.recipes.model import Step, Target
from spark_build.resources.governor import Governor

Outputs = Mapping[str, Any]  # JSON values that a stage leaves for later ones, kept in its stamp


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """One recipe being built: what, where, with how much of the machine."""

    step: Step
    target: Target
    train: str  # its name, for the papers: no key depends on it
    home: Home
    work: Path  # build/<recipe>/<plan key>
    log: BinaryIO
    governor: Governor  # shares processors and memory among all recipes
    expected: Expected
    offline: bool
    cached: bool  # whether the compiler cache may be used
    key: str  # build key
    inputs: Mapping[str, Any]  # what the build key was made of
    emit: Emit
    provided: tuple[Provided, ...]  # the needs
    keep: tuple[int, ...]  # lock descriptors that children inherit
    places: Mapping[Path, Path]  # folders of ours -> where the build's commands see them

    @property
    def source(self) -> Path:
        """The unpacked, patched tree."""
        return self.work / "src"

    @property
    def environment(self) -> Path:
        """The build environment."""
        return self.work / "env"

    @property
    def build_started(self) -> Path:
        """Mark that a build began in the tree: not every tree can be built on after a kill."""
        return self.work / "build-started"

    @property
    def dist(self) -> Path:
        """What the build backend made."""
        return self.work / "dist"

    @property
    def prefix(self) -> Path:
        """What is installed for others to build against."""
        return self.work / "prefix"

    def seen(self, text: str) -> str:
        """A word or path of a command as the build must write it to find our folders."""
        for real, place in self.places.items():
            # Not within a longer name: /usr/local/cuda-13.0 is not below /usr/local/cuda.
            pattern, shown = rf"{re.escape(str(real))}(?![\w.-])", str(place).replace("\\", r"\\")
            text = re.sub(pattern, shown, text)
        return text

    def unseen(self, text: str) -> str:
        """What a command of the build said, with our own paths."""
        for real, place in self.places.items():
            text = text.replace(str(place), str(real))
        return text

    @property
    def out(self) -> Path:
        """What may be published."""
        return self.work / "out"


@dataclass(frozen=True, kw_only=True, slots=True)
class Shell:
    """A command that gives the user a shell in a build's tree."""

    args: tuple[str, ...]
    cwd: Path
    env: Mapping[str, str]
    keep: tuple[int, ...]  # lock descriptors that it inherits
    told: str  # what one should know inside


class Stage(Protocol):
    """A module under stages/: six of them make a build."""

    NAME: str

    def inputs(self, job: Job) -> Any:
        """What decides this stage's result, beyond the stages before it (JSON)."""
        ...

    def intact(self, job: Job, outputs: Outputs) -> bool:
        """Whether what an earlier run left is still there and usable."""
        ...

    def run(self, job: Job, earlier: Mapping[str, Outputs]) -> Outputs:
        """Do the work; raise a SparkBuildError when it cannot be done."""
        ...
