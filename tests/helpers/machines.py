"""Machines made of files: tests/data/machines says what is documented of them and what is made up.

`python -m tests.helpers.machines spark [RECIPE...]` prints what doctor says there.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from spark_build.build import plan
from spark_build.build.compiler_cache import Cache
from spark_build.build.context import Context, resolve_context
from spark_build.build.sandbox import Sandbox
from spark_build.cli.doctor import Scope, examine, print_findings
from spark_build.doctor.model import Facts, IndexAnswer, IndexFacts
from spark_build.doctor.probe import MachineAccess
from spark_build.errors import Finding
from spark_build.machine import Gpu, Machine
from spark_build.paths import Home, locate
from spark_build.recipes import evaluation
from spark_build.recipes.loader import load

# Their toolkits are NVIDIA's packages, and are what is to be looked at.
PROVIDED = {"cuda": "/usr/local/cuda"}
MACHINES = Path(__file__).parents[1] / "data" / "machines"


class Simulated(MachineAccess):
    """One of these machines; `changes` replace entries of its machine.json."""

    def __init__(self, name: str, **changes: Any) -> None:
        super().__init__()
        self.folder = MACHINES / name
        self.data: dict[str, Any] = {**json.loads((self.folder / "machine.json").read_text()), **changes}
        self.root = self.folder / "root"
        self.environ = self.data["environ"]
        self.uid = self.data["uid"]
        self.python = self.data["python_version"]
        self.locale_usable = self.data["locale_usable"]

    def ask(self, args: Sequence[str], *, check: bool = True) -> str | None:
        line = " ".join(args)
        recorded = self.folder / "nvidia-smi.xml"
        if line == "nvidia-smi -q -x" and line not in self.data["commands"]:
            return recorded.read_text() if recorded.exists() else None
        found = self.data["commands"].get(line)
        return None if found is None else str(found)

    def sandbox(self) -> Sandbox:
        return Sandbox(kind=self.data["sandbox"], reason=self.data["sandbox_reason"])

    def cache(self, _home: Home) -> Cache:
        kind, _, version = self.data["cache"].partition(" ")
        if kind != "ccache":
            return Cache(kind="none", reason="ccache is not installed")
        return Cache(kind="ccache", version=version)

    def missing_packages(self, names: Sequence[str]) -> tuple[str, ...]:
        return tuple(name for name in self.data["missing_packages"] if name in names)

    def python_headers(self) -> bool:
        return bool(self.data["python_headers"])

    def free_mib(self, folder: Path) -> int:
        return int(self.data["disk_free_mib"])

    def now(self) -> float:
        return float(self.data["now"])

    def installed(self) -> float:
        return float(self.data["installed"])

    def encoding(self) -> str:
        return str(self.data["encoding"])

    def largest_users(self) -> tuple[tuple[str, int], ...]:
        return (("cicc 4711", 8192),)

    def rdma(self) -> bool | None:
        found: bool | None = self.data["rdma"]
        return found

    def indexes(self) -> IndexFacts:
        """What the machine's indexes answer."""
        asked = tuple(IndexAnswer(**one) for one in self.data["indexes"])
        return IndexFacts(asked=asked, lacking=self.data.get("lacking"))

    def machine(self) -> Machine:
        """As the probe would measure it."""
        data = self.data
        return Machine(
            platform=data["platform"],
            python=data["python"],
            cores=data["cores"],
            memory_mib=data["memory_mib"],
            available_mib=data["available_mib"],
            gpus=tuple(Gpu(name=name, capability=capability) for name, capability in data["gpus"]),
        )

    def setting(self, root: Path, target: str = "auto") -> Context:
        """What a command would work on there, with the recipes of this checkout and an empty store."""
        home = locate(str(root))
        settled = resolve_context(home, load(home.data), "host-cpu", None, {})
        machine, catalogue = self.machine(), settled.catalogue
        goal = (
            evaluation.detect_target(catalogue.targets, machine)
            if target == "auto"
            else evaluation.resolve_target(catalogue.target(target), machine)
        )
        limits = plan.limits_of(machine, goal, jobs=None, memory_mib=None)
        return dataclasses.replace(
            settled, machine=machine, target=goal, limits=limits, provide=self.data.get("provide", PROVIDED)
        )


def diagnose(
    machine: Simulated, root: Path, *recipes: str, target: str = "auto", cluster: bool = True
) -> tuple[Facts, dict[str, Finding]]:
    """Facts and findings by check; of several with one name the worst."""
    facts, findings = examine(
        machine,
        machine.setting(root, target),
        Scope(recipes=tuple(recipes), cluster=cluster),
        indexes=machine.indexes,
    )
    order = ("ok", "warning", "error")
    return facts, {one.rule: one for one in sorted(findings, key=lambda one: order.index(one.severity))}


if __name__ == "__main__":
    access = Simulated(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        _, said = examine(
            access,
            access.setting(Path(folder)),
            Scope(
                recipes=tuple(name for name in sys.argv[2:] if name != "--cluster"),
                cluster="--cluster" in sys.argv,
            ),
            indexes=access.indexes,
        )
    print_findings(said)
