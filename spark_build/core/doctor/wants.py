"""What a plan needs of a machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from spark_build.model.machine import Limits
from spark_build.model.plan import Plan, Step

# Debian's name of a package -> the library that it brings.
PACKAGES = {"libcudnn": "cuDNN", "libcublas": "cuBLAS", "libcufile": "cuFile", "libnccl": "NCCL"}
Status = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Wants:
    """A plan and how much of the machine it may use, with what follows from them."""

    plan: Plan
    limits: Limits

    @property
    def building(self) -> tuple[Step, ...]:
        """Steps that make something."""
        return tuple(step for step in self.plan.steps if step.decision == "BUILD")

    @property
    def compiled(self) -> tuple[Step, ...]:
        """Steps that compile; a vendor's wheel that is repacked does not."""
        return tuple(step for step in self.building if step.recipe.kind != "repack")

    @property
    def cuda(self) -> bool:
        """Whether CUDA code is compiled."""
        return bool(self.plan.target.cuda_architectures and self.compiled)

    @property
    def is_for_gpu(self) -> bool:
        """Whether the target has a GPU."""
        return bool(self.plan.target.cuda_architectures)

    @property
    def packages(self) -> dict[str, str]:
        """CUDA libraries that what is built needs -> the package that brings them."""
        wanted = {name for step in self.building for name in step.evaluated.apt}
        return {
            library: package
            for package in sorted(wanted)
            for prefix, library in PACKAGES.items()
            if package.startswith(prefix)
        }

    @property
    def torch(self) -> str:
        """Version of the torch that is compiled, or whose headers are; empty without one."""
        pin = self.plan.train.components.get("torch")
        near = any(step.recipe.name == "torch" or "torch" in step.needs for step in self.compiled)
        return pin.version if pin is not None and near else ""

    def severity(self, *, needed: bool) -> Status:
        """Of something that is wrong: a failure where this plan needs it."""
        return "fail" if needed else "warn"


def install_line(packages: tuple[str, ...] | list[str]) -> str:
    """The one line that installs packages on Debian, Ubuntu and DGX OS."""
    return f"sudo apt-get update && sudo apt-get install -y {' '.join(packages)}"


def version(text: str) -> tuple[int, ...]:
    """Leading numbers of a version: 580.65.06 is (580, 65, 6); () when there are none."""
    numbers: list[int] = []
    for part in text.removeprefix("V").replace("-", ".").split("."):
        if not part.isdecimal():
            break
        numbers.append(int(part))
    return tuple(numbers)
