"""Values that commands and stages work with."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from spark_build import probe
from spark_build.build import plan
from spark_build.errors import UsageError
from spark_build.events import Emit, ExpectedUsage
from spark_build.machine import Limits, Machine
from spark_build.paths import Home, path_given
from spark_build.recipes import evaluation
from spark_build.recipes.loader import Catalogue
from spark_build.recipes.model import Provision, Source, Step, Target, Train
from spark_build.recipes.parse import Lock
from spark_build.resources.governor import Governor
from spark_build.transfer.remote import Remotes
from spark_build.wheelhouse.store import tree_digest
from spark_build.wheels import model as wheels_model


@dataclass(frozen=True, kw_only=True, slots=True)
class Context:
    """Everything a command works on: folders, recipes, machine, target, train."""

    home: Home
    catalogue: Catalogue
    machine: Machine
    target: Target
    train: Train
    provide: Mapping[str, str]  # need -> store, public or a path
    limits: Limits
    remotes: Remotes

    @property
    def is_here(self) -> bool:
        """True when what is built for the target runs on this machine's interpreter."""
        here = (self.machine.platform, self.machine.python)
        return here == (self.target.platform, self.target.python)

    @property
    def markers(self) -> dict[str, str]:
        """Environment markers (PEP 508) of the target's interpreter."""
        from packaging.markers import default_environment

        if self.is_here:
            return {name: str(value) for name, value in default_environment().items()}
        return wheels_model.markers(self.target)

    @property
    def view(self) -> Path:
        """View of this target, train and ABI."""
        return self.home.views / evaluation.view_name(self.target, self.train.name)


def resolve_context(
    home: Home, catalogue: Catalogue, target: str, train: str | None, provide: Mapping[str, str]
) -> Context:
    """Resolve target and train names on this machine."""
    machine = probe.probe()
    chosen = (
        evaluation.detect_target(catalogue.targets, machine)
        if target == "auto"
        else evaluation.resolve_target(catalogue.target(target), machine)
    )
    return Context(
        home=home,
        catalogue=catalogue,
        machine=machine,
        target=chosen,
        train=catalogue.train(train),
        provide=provide,
        limits=plan.limits_of(machine, chosen, jobs=None, memory_mib=None),
        remotes=Remotes(home),
    )


def with_limits(setting: Context, jobs: int | None, memory_mib: int | None) -> Context:
    """Return the context with limits on jobs and memory of all builds together."""
    limits = plan.limits_of(setting.machine, setting.target, jobs=jobs, memory_mib=memory_mib)
    return replace(setting, limits=limits)


def with_local_sources(setting: Context, folders: Mapping[str, str]) -> Context:
    """Return the context in which these recipes are built from folders instead of their pins.

    The content of a folder becomes part of the keys. Raises UsageError.
    """
    components = dict(setting.train.components)
    for name, where in folders.items():
        setting.catalogue.recipe(name)
        folder = path_given(where, f"--source {name}").absolute()
        if not folder.is_dir():
            raise UsageError(f"--source {name}={where}: there is no such folder")
        if name not in components:
            raise UsageError(f"train {setting.train.name} has no version of {name}", hint="--train NAME")
        local = Source(kind="local", url=str(folder), sha256=tree_digest(folder))
        components[name] = replace(components[name], sources=(local,))
    return replace(setting, train=replace(setting.train, components=components))


Outputs = Mapping[str, Any]  # JSON values that a stage leaves for later ones, kept in its stamp


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """One recipe being built: its step, folders and limits."""

    step: Step
    target: Target
    train: str  # its name, for the papers: no key depends on it
    home: Home
    work: Path  # build/<recipe>/<plan key>
    log: BinaryIO
    governor: Governor  # shares processors and memory among all recipes
    expected: ExpectedUsage
    offline: bool
    cached: bool  # whether the compiler cache may be used
    key: str  # build key
    inputs: Mapping[str, Any]  # what the build key was made of
    emit: Emit
    provided: tuple[Provided, ...]  # the needs
    keep: tuple[int, ...]  # lock descriptors that children inherit
    locks: tuple[Lock, ...]  # of the public wheels that a need may be taken from
    places: Mapping[Path, Path]  # folders of ours -> where the build's commands see them

    @property
    def source(self) -> Path:
        """Folder of the unpacked, patched tree."""
        return self.work / "src"

    @property
    def environment(self) -> Path:
        """Folder of the build environment."""
        return self.work / "env"

    @property
    def writable(self) -> tuple[Path, ...]:
        """Folders that the build's commands may write to; the rest of the work tree is ours alone."""
        names = ("dist", "env", "extra", "home", "preflight", "src", "staging", "tmp")
        return (*(self.work / name for name in names), self.compiler_cache)

    @property
    def compiler_cache(self) -> Path:
        """The recipe's own: another recipe's build must not meet objects that this one's could put there."""
        return self.home.cache / "compilers" / self.step.recipe.name

    @property
    def build_started(self) -> Path:
        """Mark that a build began in the tree: not every tree can be built on after a kill."""
        return self.work / "build-started"

    @property
    def configured(self) -> Path:
        """Mark that the last run in the tree configured it and ended there."""
        return self.work / "configured"

    @property
    def dist(self) -> Path:
        """Folder for what the build backend makes."""
        return self.work / "dist"

    @property
    def prefix(self) -> Path:
        """Folder with what is installed for others to build against."""
        return self.work / "prefix"

    def seen(self, text: str) -> str:
        """Return a word or path of a command as it must be written inside the sandbox."""
        for real, place in self.places.items():
            # Not within a longer name: /usr/local/cuda-13.0 is not below /usr/local/cuda.
            pattern, shown = rf"{re.escape(str(real))}(?![\w.-])", str(place).replace("\\", r"\\")
            text = re.sub(pattern, shown, text)
        return text

    def unseen(self, text: str) -> str:
        """Return a build command's output with the paths outside the sandbox."""
        for real, place in self.places.items():
            text = text.replace(str(place), str(real))
        return text

    @property
    def out(self) -> Path:
        """Folder with what may be published."""
        return self.work / "out"


@dataclass(frozen=True, kw_only=True, slots=True)
class Shell:
    """A command that gives the user a shell in a build's tree."""

    args: tuple[str, ...]
    cwd: Path
    keep: tuple[int, ...]  # lock descriptors that it inherits
    told: str  # what one should know inside


class Stage(Protocol):
    """A module under stages/: six of them make a build."""

    NAME: str

    def inputs(self, job: Job) -> Any:
        """Return the inputs that decide this stage's result, beyond the stages before it (JSON)."""
        ...

    def intact(self, job: Job, outputs: Outputs) -> bool:
        """Return whether an earlier run's result is still there and usable."""
        ...

    def run(self, job: Job, earlier: Mapping[str, Outputs]) -> Outputs:
        """Do the work. Raises SparkBuildError when it fails."""
        ...


# Prefixes are installed under a fixed place that does not exist: the same bytes wherever the store lies.
NOWHERE = "/opt/spark-build"


@dataclass(frozen=True, kw_only=True, slots=True)
class Provided:
    """A need that was found; `identity`: what of it goes into the build key."""

    provision: Provision
    identity: str
    wheel: Path | None = None  # to be installed into the build environment
    prefix: Path | None = None  # what {need:NAME} stands for
    site: Path | None = None  # site-packages of an existing environment
