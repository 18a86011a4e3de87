"""Which target is meant: a file's, one made from the GPU's capability, or this machine's CPU."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from spark_build.machine import Gpu, Machine
from spark_build.recipes.model import Target

HOST_CPU = "host-cpu"


def resolve(target: Target, machine: Machine) -> Target:
    """Replace "host" by what this machine is."""
    return replace(
        target,
        platform=machine.platform if target.platform == "host" else target.platform,
        python=machine.python if target.python == "host" else target.python,
    )


def detect(targets: Mapping[str, Target], machine: Machine) -> Target:
    """The target that fits this machine: by GPU name, else by capability, else the CPU."""
    if not machine.gpus:
        return resolve(targets[HOST_CPU], machine)
    gpu = machine.gpus[0]
    found = _by_gpu([resolve(target, machine) for target in targets.values()], gpu, machine.platform)
    # The wheels are for the Python that runs here, whatever the file's usual one is.
    return replace(found, python=machine.python)


def _by_gpu(targets: Iterable[Target], gpu: Gpu, platform: str) -> Target:
    local = [target for target in targets if target.platform == platform]
    for target in local:
        # Whole words: GB10 is not GB100.
        if any(re.search(rf"\b{re.escape(name)}\b", gpu.name) for name in target.gpu_names):
            return target
    for target in local:
        if gpu.capability in target.cuda_architectures:
            return target
    return Target(
        name="cuda-sm" + gpu.capability.replace(".", ""),
        summary=f"this machine's {gpu.name}",
        platform=platform,
        python="host",
        cuda_architectures=(gpu.capability,),
    )


def view_name(target: Target, train: str) -> str:
    """Name of the view folder: what one target, train and ABI sees."""
    return f"{target.name}-{train}-{target.python}"
