"""What can be said of a wheel when there is nothing but the wheel: the rules by its own name and tags."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from itertools import product

from spark_build.wheels.audit import DEVICE_MACHINES, UNREADABLE, audit
from spark_build.wheels.model import Finding, WheelFacts
from spark_build.wheels.rules import Policies
from spark_build.wheels.rules_device import Demand, device_findings

# What we want of our own builds, and nobody promised for other wheels.
_OUR_WISHES = frozenset({"torch-pin"})
_MACHINES = "x86_64|aarch64|i686|ppc64le|s390x|riscv64|loongarch64|armv[67]l|amd64|arm64|universal2|intel"
_TAG = re.compile(rf"([a-z]+).*?_({_MACHINES})")

# Rule: what to do, where the message does not say it. The maker of a wheel is meant.
ADVICE: Mapping[str, str] = {
    "name-version": "take or build the version that is expected; installers refuse a file by another name",
    "tags": "build again with the right tags: installers choose by the file's name",
    "manylinux": "let auditwheel repair it, which finds the tag that holds",
    "record": "fetch or build it again; do not install it",
    "build-tag": "write the same build tag into WHEEL (wheel tags --build does)",
    "purelib": "build it as a platform wheel: Root-Is-Purelib: false",
    "elf-machine": "leave the file out, or build for the platform that the tag names",
}


def advice(rule: str) -> str:
    """What to do about a finding whose message does not say it; else empty."""
    return ADVICE.get(rule, "")


def findings_alone(
    facts: WheelFacts,
    *,
    system_libraries: Callable[[str], frozenset[str]],
    policies: Callable[[str], Policies],
    capabilities: tuple[str, ...] = (),
) -> tuple[Finding, ...]:
    """What is wrong on every platform and Python that the wheel's tags name.

    `capabilities`: of the GPUs that somebody wants to use it on, if that is known.
    """
    rounds = [
        audit(
            facts,
            distribution=facts.name,
            version=facts.version,
            platform=platform,
            python=python,
            provided=("*",),  # who brings what it needs is not known here
            system_libraries=system_libraries(platform),
            policies=policies(platform),
        )
        for platform, python in product(platforms(facts), _pythons(facts))
    ]
    common = [one for one in rounds[0] if all(one in others for others in rounds[1:])]
    kept = [one for one in dict.fromkeys(common) if one.rule not in _OUR_WISHES and not _foreign(facts, one)]
    return (*kept, *device_findings(facts, Demand(capabilities=capabilities)))


def _foreign(facts: WheelFacts, finding: Finding) -> bool:
    """Whether it only says that a wheel for PyPy and the like is none for CPython."""
    pythons = [tag.split("-")[0] for tag in facts.filename_tags]
    others = not any(python.startswith(("cp", "py")) for python in pythons)
    return finding.rule == "tags" and others and "cannot be installed on" in finding.message


def platforms(facts: WheelFacts) -> tuple[str, ...]:
    """linux-x86_64 and the like: by the tags, else by the libraries."""
    found = []
    for tag in dict.fromkeys(tag.rpartition("-")[2] for tag in facts.filename_tags):
        match = _TAG.fullmatch(tag)
        if match:
            system = "linux" if match[1] == "manylinux" else match[1]
            found.append(f"{system}-{match[2]}")
    foreign = {*DEVICE_MACHINES, UNREADABLE}
    machines = Counter(one.machine for one in facts.libraries if one.machine not in foreign)
    usual = max(machines, key=lambda machine: machines[machine], default="x86_64")
    return tuple(dict.fromkeys(found)) or (f"linux-{usual}",)


def _pythons(facts: WheelFacts) -> tuple[str, ...]:
    """An interpreter for each that the tags name; a usual one for what any version installs."""
    named = [tag.split("-")[:2] for tag in facts.filename_tags]
    found = [abi if re.fullmatch(r"cp\d+t", abi) else python for python, abi in named]
    usual = "cp27" if found and all(one.startswith("py2") for one in found) else "cp312"
    return tuple(dict.fromkeys(one for one in found if re.fullmatch(r"cp\d{2,}t?", one))) or (usual,)
