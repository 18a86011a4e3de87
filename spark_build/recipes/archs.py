"""CUDA architectures: how each consumer wants them written, and from which CUDA on they exist.

Sources: torch's cmake/Modules_CUDA_fix/upstream/FindCUDA/select_compute_arch.cmake and cmake/Codegen.cmake,
torch/utils/cpp_extension.py (_get_cuda_arch_flags), flash-attention's setup.py (cuda_archs).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence

from spark_build.errors import UsageError

TORCH = "torch"  # TORCH_CUDA_ARCH_LIST as torch's own CMake reads it
CPP_EXTENSION = "cpp_extension"  # TORCH_CUDA_ARCH_LIST as vision, audio and every other extension read it
FLASH_ATTN = "flash_attn"  # FLASH_ATTN_CUDA_ARCHS
CONSUMERS = (TORCH, CPP_EXTENSION, FLASH_ATTN)

# Capability: the first CUDA whose nvcc knows it.
_MINIMUM = {
    "7.5": "10.0",
    "8.0": "11.0",
    "8.6": "11.1",
    "8.7": "11.4",
    "8.9": "11.8",
    "9.0": "11.8",
    "10.0": "12.8",
    "10.3": "12.9",
    "11.0": "13.0",
    "12.0": "12.8",
    "12.1": "12.9",
}
# Variants that came later than their capability: a is one architecture's own, f a family's.
_LATER = {"9.0a": "12.0", "10.0f": "12.9", "12.0f": "12.9"}
_HAS_VARIANTS = ("9.0", "10.0", "10.3", "11.0", "12.0", "12.1")
_HAS_FAMILY = ("10.0", "10.3", "11.0", "12.0", "12.1")

# flash-attention's setup.py has branches for 80, 90, 100 and 120; 121 is our patch's. Code for a lower
# minor version runs on a higher one. 110 has no branch: alone it adds no flag, so that
# TORCH_CUDA_ARCH_LIST decides.
_FLASH_BRANCH = {
    "8.0": "80",
    "8.6": "80",
    "8.7": "80",
    "8.9": "80",
    "9.0": "90",
    "10.0": "100",
    "10.3": "100",
    "11.0": "110",
    "12.0": "120",
    "12.1": "121",
}

_ENTRY = re.compile(r"(\d{1,2}\.\d)([af]?)(\+PTX)?")


def arch_list(consumer: str, capabilities: Sequence[str]) -> str:
    """The list for these compute capabilities ("12.1"), as this consumer wants it."""
    _known(consumer)
    wanted = set(capabilities)
    if consumer == TORCH and "12.1" in wanted:
        wanted.add("12.0")  # cmake/Codegen.cmake adds 121a only where compute_120 is in the list
    ordered = sorted(wanted, key=_order)
    if consumer == FLASH_ATTN:
        ordered = [_FLASH_BRANCH.get(one, one.replace(".", "")) for one in ordered]
    return ";".join(dict.fromkeys(ordered))


def rejected(consumer: str, text: str) -> tuple[str, ...]:
    """What this consumer would refuse, drop silently or misread in a list; empty when all is well."""
    _known(consumer)
    entries = [entry for entry in re.split(r"[;, ]+", text) if entry]
    if not entries:
        return ("the list is empty: the build machine's own GPU would decide, or none",)
    if consumer == FLASH_ATTN:
        return tuple(_flash_problems(entries))
    problems = [problem for entry in entries for problem in _torch_problems(consumer, entry)]
    plain = {match[1] for match in map(_ENTRY.fullmatch, entries) if match and not match[2]}
    if consumer == TORCH and "12.1" in plain and "12.0" not in plain:
        problems.append(
            "12.1 without 12.0: cmake/Codegen.cmake builds the row-wise FP8 kernels for 121a only when "
            "compute_120 is in the list; write 12.0;12.1"
        )
    return tuple(problems)


def minimum_cuda(capability: str) -> str:
    """The first CUDA that can compile for a capability ("12.1", "12.0f"); empty for an unknown one."""
    plain = capability.removesuffix("+PTX")
    return _LATER.get(plain) or _MINIMUM.get(plain.rstrip("af"), "")


def _torch_problems(consumer: str, entry: str) -> Iterator[str]:
    match = _ENTRY.fullmatch(entry)
    if match is None or match[1] not in _MINIMUM:
        if entry in ("Auto", "All", "Common"):
            yield f"{entry}: detection turns 12.1 into 12.1(2.0), that is compute_20; name the architectures"
        else:
            yield f"'{entry}' is no architecture that is known here{_meant(entry)}"
        return
    capability, variant = match[1], match[2]
    if variant == "f" and consumer == CPP_EXTENSION:
        yield f"'{entry}': torch/utils/cpp_extension.py refuses f, only torch's own CMake takes it"
    elif variant and capability not in (_HAS_FAMILY if variant == "f" else _HAS_VARIANTS):
        yield f"'{entry}': there is no variant {variant} of {capability}"


def _flash_problems(entries: Sequence[str]) -> Iterator[str]:
    branches = set(_FLASH_BRANCH.values())
    for entry in entries:
        if entry == "110" and len(entries) > 1:
            yield "'110' has no branch in setup.py and is dropped silently beside others"
        elif entry not in branches:
            use = _FLASH_BRANCH.get(entry) or _FLASH_BRANCH.get(f"{entry[:-1]}.{entry[-1:]}")
            hint = f": write {use}" if use else f" (known: {', '.join(sorted(branches, key=int))})"
            yield f"'{entry}' has no branch in setup.py and is dropped silently{hint}"


def _meant(entry: str) -> str:
    near = difflib.get_close_matches(entry.removeprefix("sm_"), _MINIMUM, n=1, cutoff=0.6)
    return f": did you mean '{near[0]}'?" if near else ""


def _order(capability: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", capability))


def _known(consumer: str) -> None:
    if consumer not in CONSUMERS:
        raise UsageError(f"no consumer of architecture lists is named '{consumer}': {', '.join(CONSUMERS)}")
