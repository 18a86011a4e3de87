"""What a command works on: folders, recipes, machine, target, train."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from spark_build import probe
from spark_build.build import plan
from spark_build.errors import UsageError
from spark_build.machine import Limits, Machine
from spark_build.paths import Home
from spark_build.recipes import evaluation
from spark_build.recipes.loader import Catalogue
from spark_build.recipes.model import Source, Target, Train
from spark_build.wheelhouse import resolve
from spark_build.wheelhouse.store import tree_digest


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """What a command works on: the folders, the recipes, the machine, the target and the train."""

    home: Home
    catalogue: Catalogue
    machine: Machine
    target: Target
    train: Train
    provide: Mapping[str, str]  # need -> store, public or a path
    limits: Limits

    @property
    def is_here(self) -> bool:
        """Whether what is built for the target also runs on this machine's interpreter."""
        here = (self.machine.platform, self.machine.python)
        return here == (self.target.platform, self.target.python)

    @property
    def markers(self) -> dict[str, str]:
        """The environment markers (PEP 508) of the target's interpreter."""
        from packaging.markers import default_environment

        if self.is_here:
            return {name: str(value) for name, value in default_environment().items()}
        return resolve.markers(self.target)

    @property
    def view(self) -> Path:
        """The view of this target, train and ABI."""
        return self.home.views / evaluation.view_name(self.target, self.train.name)


def settle(
    home: Home, catalogue: Catalogue, target: str, train: str | None, provide: Mapping[str, str]
) -> Setting:
    """Resolve target and train names on this machine."""
    machine = probe.probe()
    chosen = (
        evaluation.detect(catalogue.targets, machine)
        if target == "auto"
        else evaluation.resolve(catalogue.target(target), machine)
    )
    return Setting(
        home=home,
        catalogue=catalogue,
        machine=machine,
        target=chosen,
        train=catalogue.train(train),
        provide=provide,
        limits=plan.limits_of(machine, chosen, jobs=None, memory_mib=None),
    )


def with_limits(setting: Setting, jobs: int | None, memory_mib: int | None) -> Setting:
    """The setting in which builds use at most so many jobs and so much memory together."""
    limits = plan.limits_of(setting.machine, setting.target, jobs=jobs, memory_mib=memory_mib)
    return replace(setting, limits=limits)


def with_local_sources(setting: Setting, folders: Mapping[str, str]) -> Setting:
    """The setting in which these recipes are built from folders, as they are, instead of their pins.

    The content of a folder becomes part of the keys. Raises UsageError.
    """
    components = dict(setting.train.components)
    for name, where in folders.items():
        setting.catalogue.recipe(name)
        folder = Path(where).expanduser().absolute()
        if not folder.is_dir():
            raise UsageError(f"--source {name}={where}: there is no such folder")
        if name not in components:
            raise UsageError(f"train {setting.train.name} has no version of {name}", hint="--train NAME")
        local = Source(kind="local", url=str(folder), sha256=tree_digest(folder))
        components[name] = replace(components[name], sources=(local,))
    return replace(setting, train=replace(setting.train, components=components))
