"""What a plan needs of a machine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from spark_build.machine import Limits
from spark_build.recipes.model import Plan, Step

# The library -> the package that brings it for CUDA 13.0 on Debian, Ubuntu and DGX OS.
PACKAGES = {
    "cuBLAS": "libcublas-dev-13-0",
    "cuDNN": "libcudnn9-dev-cuda-13",
    "cuFile": "libcufile-dev-13-0",
    "NCCL": "libnccl-dev",
}
# How packages begin that only NVIDIA's own repository has.
NVIDIA = ("cuda-", "libcublas", "libcudnn", "libcufile", "libnccl", "nvidia-driver")
REPOSITORY = "https://developer.download.nvidia.com/compute/cuda/repos"
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
        return tuple(step for step in self.building if step.recipe.is_compiled)

    @property
    def cuda(self) -> bool:
        """Whether CUDA code is compiled."""
        return bool(self.plan.target.cuda_architectures and self.compiled)

    @property
    def toolkit(self) -> str:
        """The folder of the system's CUDA toolkit that is compiled with; empty where a recipe brings it."""
        given = (one.path for step in self.compiled for one in step.provisions if one.need == "cuda")
        return next(filter(None, given), "")

    @property
    def brings_toolkit(self) -> str:
        """The version of the toolkit that the recipe `cuda` makes for what is compiled; empty without one."""
        brought = any("cuda" in step.from_store for step in self.compiled)
        return next((one.pin.version for one in self.plan.steps if brought and one.recipe.name == "cuda"), "")

    @property
    def lacks_toolkit(self) -> tuple[str, ...]:
        """What cannot be built because neither the train nor the machine has a toolkit."""
        lost = {one.recipe.name for one in self.plan.steps if one.decision in ("SKIP", "BLOCKED")}
        return tuple(
            step.recipe.name
            for step in self.plan.steps
            if step.decision == "BLOCKED" and "cuda" in step.from_store and "cuda" in lost
        )

    @property
    def is_for_gpu(self) -> bool:
        """Whether the target has a GPU."""
        return bool(self.plan.target.cuda_architectures)

    @property
    def packages(self) -> Mapping[str, str]:
        """CUDA libraries that torch wants beside a toolkit by path -> the package that brings them."""
        return PACKAGES if self.toolkit and any(one.recipe.name == "torch" for one in self.compiled) else {}

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
    """The line that installs packages on Debian, Ubuntu and DGX OS; NVIDIA's by a command of their own."""
    theirs = [name for name in packages if name.startswith(NVIDIA)]
    ours = [name for name in packages if name not in theirs and not name.startswith("-")]
    lists = [ours, theirs] if ours and theirs else [list(packages)]
    return " && ".join(
        ["sudo apt-get update", *(f"sudo apt-get install -y {' '.join(one)}" for one in lists)]
    )


def repository_note(packages: Iterable[str]) -> str:
    """What to add to a message that asks for packages which only NVIDIA's repository has."""
    theirs = [name for name in packages if name.startswith(NVIDIA)]
    if not theirs:
        return ""
    return f"; {', '.join(theirs)}: in NVIDIA's apt repository only ({REPOSITORY}; DGX OS has it)"


def version(text: str) -> tuple[int, ...]:
    """Leading numbers of a version: 580.65.06 is (580, 65, 6); () when there are none."""
    numbers: list[int] = []
    for part in text.removeprefix("V").replace("-", ".").split("."):
        if not part.isdecimal():
            break
        numbers.append(int(part))
    return tuple(numbers)
