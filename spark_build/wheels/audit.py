"""Decide whether a wheel may be published: all rules, with or without its recipe."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from itertools import chain, product

from packaging.tags import compatible_tags, cpython_tags
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import Version

from spark_build.errors import Finding, Severity
from spark_build.recipes.toml_positions import version_of
from spark_build.text import printable
from spark_build.wheels.elf import library_origin
from spark_build.wheels.model import DEVICE_MACHINES, UNREADABLE, WheelFacts
from spark_build.wheels.rules import (
    HOST_RULES,
    PACKAGING_RULES,
    AuditExpectation,
    Observation,
    Policies,
    Rule,
    external_libraries,
    host_libraries,
    stable_abi,
)
from spark_build.wheels.rules_device import DeviceDemand, device_findings

# auditwheel puts eight hex digits of the content between name and suffix.
_BUNDLED_HASH = r"(-[0-9a-f]{8})?"
_SYSTEM_ONLY = (
    (re.compile(r"ld(64|-linux)[^/]*\.so(\.\d+)*"), "the loader"),
    (
        re.compile(rf"lib(c|m|dl|rt|pthread|resolv)({_BUNDLED_HASH}|-2\.\d+)\.so(\.\d+)*"),
        "a part of the C library",
    ),
    (re.compile(rf"libcuda{_BUNDLED_HASH}\.so(\.[\d.]+)?"), "a part of the GPU driver"),
    (re.compile(r"libnvidia-[^/]*\.so(\.[\d.]+)?"), "a part of the GPU driver"),
)


def audit(facts: WheelFacts, expected: AuditExpectation) -> tuple[Finding, ...]:
    """Return all findings in the order of the rules; () for a wheel without faults."""
    return tuple(
        Finding(name, severity, printable(message), hint=ADVICE.get(name, ""))
        for name, rule in RULES
        for severity, message in rule(facts, expected)
    )


def _name_version(facts: WheelFacts, expected: AuditExpectation) -> Iterator[Observation]:
    wanted = canonicalize_name(expected.distribution)
    if facts.name != wanted:
        yield "error", f"METADATA names {facts.name}, expected {wanted}"
    if not _satisfies(facts.version, expected.version):
        yield "error", f"METADATA says version {facts.version}, expected {expected.version}"
    try:
        name, version, _, _ = parse_wheel_filename(facts.filename)
    except InvalidWheelFilename as error:
        yield "error", str(error)
        return
    if name != facts.name or version != version_of(facts.version):
        yield "error", f"the file name says {name} {version}, METADATA says {facts.name} {facts.version}"


def _satisfies(version: str, wanted: str) -> bool:
    """Return whether versions are equal, or equal with a local label on top."""
    have, want = version_of(version), version_of(wanted)
    if have is None or want is None:
        return False
    return Version(have.public) == Version(want.public) and want.local in (None, have.local)


def _tags(facts: WheelFacts, expected: AuditExpectation) -> Iterator[Observation]:
    if set(facts.filename_tags) != set(facts.wheel_tags):
        said, inside = " ".join(facts.filename_tags), " ".join(facts.wheel_tags) or "none"
        yield "error", f"the file name's tags ({said}) are not those of WHEEL ({inside})"
    usable = _usable_by(expected.python)
    if not any(tuple(tag.split("-")[:2]) in usable for tag in facts.filename_tags):
        yield "error", f"{_without_platform(facts)} cannot be installed on {expected.python}"
    platforms = _platform_tags(facts)
    if "any" in platforms and host_libraries(facts):
        yield "error", "the platform tag is any, but there is machine code inside"
    # Static programs are tagged for other C libraries too: one fitting tag is enough there.
    fitting = {tag for tag in platforms if tag == "any" or _agrees(tag, expected.platform)}
    for tag in sorted(platforms - fitting):
        if not fitting or not tag.endswith(f"_{expected.machine}"):
            yield "error", f"platform tag {tag} is not for {expected.platform}"


def fits(tags: Sequence[str], *, platform: str, python: str) -> bool:
    """Return whether one of a wheel's tags ("cp312-cp312-linux_aarch64") is for this platform and Python."""
    usable = _usable_by(python)
    for tag in tags:
        interpreter, abi, where = tag.split("-")
        if (interpreter, abi) in usable and (where == "any" or _agrees(where, platform)):
            return True
    return False


def _usable_by(python: str) -> set[tuple[str, str]]:
    """Return the (interpreter, ABI) pairs that `python` ("cp312", "cp313t") installs."""
    match = re.fullmatch(r"cp(\d)(\d+)t?", python)
    if match is None:
        return set()
    version = (int(match[1]), int(match[2]))
    tags = chain(
        cpython_tags(version, [python], ["any"]),
        compatible_tags(version, f"cp{match[1]}{match[2]}", ["any"]),
    )
    return {(tag.interpreter, tag.abi) for tag in tags}


def _without_platform(facts: WheelFacts) -> str:
    return " ".join(sorted({tag.rpartition("-")[0] for tag in facts.filename_tags}))


def _platform_tags(facts: WheelFacts) -> set[str]:
    return {tag.rpartition("-")[2] for tag in facts.filename_tags}


def _agrees(tag: str, platform: str) -> bool:
    system, _, machine = platform.partition("-")
    families = (f"{system}_", "manylinux") if system == "linux" else (f"{system}_",)
    return tag.startswith(families) and tag.endswith(f"_{machine}")


def _manylinux(facts: WheelFacts, _: AuditExpectation) -> Iterator[Observation]:
    for tag in sorted(_platform_tags(facts)):
        if tag.startswith("linux_"):
            yield (
                "warning",
                f"{tag} is no manylinux tag: nothing says how new a system this wheel needs",
            )


def _record(facts: WheelFacts, _: AuditExpectation) -> Iterator[Observation]:
    for problem in facts.record_problems:
        yield "error", problem


def _build_tag(facts: WheelFacts, _: AuditExpectation) -> Iterator[Observation]:
    if facts.wheel_build and facts.wheel_build != facts.build:
        yield (
            "error",
            f"the file name's build tag is {facts.build or 'missing'}, WHEEL says {facts.wheel_build}",
        )
    elif facts.build and not facts.wheel_build:
        yield "warning", f"WHEEL does not mention the build tag {facts.build}"


def _purelib(facts: WheelFacts, _: AuditExpectation) -> Iterator[Observation]:
    compiled = host_libraries(facts)
    if facts.root_is_purelib and compiled:
        yield "error", f"WHEEL says Root-Is-Purelib: true, but {compiled[0].path} is machine code"


def _elf_machine(facts: WheelFacts, expected: AuditExpectation) -> Iterator[Observation]:
    for library in facts.libraries:
        if library.machine not in {*DEVICE_MACHINES, UNREADABLE, expected.machine}:
            yield "error", f"{library.path} is for {library.machine}, not {expected.machine}"


def _elf_damage(facts: WheelFacts, _: AuditExpectation) -> Iterator[Observation]:
    for library in facts.libraries:
        if library.machine == UNREADABLE:
            # Without .so in its name it may be somebody's test data.
            severity: Severity = "error" if ".so" in _base(library.path) else "warning"
            yield severity, f"{library.path} begins like an ELF file and cannot be read as one"


def _libraries(facts: WheelFacts, expected: AuditExpectation) -> Iterator[Observation]:
    inside = {_base(library.path) for library in facts.libraries}
    for library in host_libraries(facts):
        for soname in library.needed:
            if re.match(r"libpython\d", soname):
                yield "error", f"{library.path} links with {soname}: an extension module must not"
            elif not (
                soname in inside
                or soname in expected.system_libraries
                or any(fnmatchcase(soname, pattern) for pattern in expected.provided)
            ):
                yield (
                    "error",
                    f"{library.path} needs {soname}, which no wheel provides: {_advice(soname)}",
                )


def _advice(soname: str) -> str:
    known = library_origin(soname)
    return f"{known[1]}: list it in repair.exclude" if known else "repair should bundle it"


def _bundled_system(facts: WheelFacts, _: AuditExpectation) -> Iterator[Observation]:
    for library in host_libraries(facts):
        for pattern, what in _SYSTEM_ONLY:
            if pattern.fullmatch(_base(library.path)):
                advice = "list it in repair.exclude if repair bundled it, else keep the build from copying it"
                yield "error", f"{library.path} is {what}, which must be the machine's own: {advice}"


def _base(path: str) -> str:
    return path.rpartition("/")[2]


RULES: tuple[tuple[str, Rule], ...] = (
    ("name-version", _name_version),
    ("tags", _tags),
    ("manylinux", _manylinux),
    ("record", _record),
    ("build-tag", _build_tag),
    ("purelib", _purelib),
    ("elf-machine", _elf_machine),
    ("elf-damage", _elf_damage),
    ("stable-abi", stable_abi),
    ("libraries", _libraries),
    ("external", external_libraries),
    ("bundled-system", _bundled_system),
    *HOST_RULES,
    *PACKAGING_RULES,
)


# What a vendor wrote into the wheel, and we may not change: it is published byte for byte.
_LABELS = frozenset({"tags", "purelib", "manylinux", "build-tag"})
_VENDORS_BUSINESS = _LABELS | {
    *("symbol-versions", "rpath", "stable-abi", "device-code", "device-damage", "startup-code"),
}


def as_vendor(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Return the findings on a repacked wheel: mistakes in its labels are warnings."""
    return tuple(
        replace(one, severity="warning") if one.severity == "error" and one.rule in _VENDORS_BUSINESS else one
        for one in findings
    )


# What installers refuse, what is damaged and what would harm: the rest of a wheel is its maker's business.
# An RPATH into others' folders is only told: installers take it, and public wheels have such.
_REFUSED_OF_OTHERS = frozenset(
    {
        *("name-version", "record", "elf-damage", "device-damage", "entries", "places"),
        *("dist-info", "site-packages", "environment", "requirements"),
    }
)


def as_installer(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Return the findings on a foreign wheel: an error is what pip and uv refuse, damage, or harm."""
    return tuple(
        one if one.rule in _REFUSED_OF_OTHERS or one.severity != "error" else replace(one, severity="warning")
        for one in findings
    )


# What we want of our own builds, and nobody promised for other wheels.
_OUR_WISHES = frozenset({"torch-pin"})
_ONLY_NAMED = frozenset({"startup-code"})  # in wheels of others: whoever installs them decides
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
    "elf-damage": "fetch or build it again; no loader takes this file",
    "stable-abi": "build it for each Python, or with Py_LIMITED_API set to the version that the tag names",
}


def findings_alone(
    facts: WheelFacts,
    *,
    system_libraries: Callable[[str], frozenset[str]],
    policies: Callable[[str], Policies],
    capabilities: tuple[str, ...] = (),
) -> tuple[Finding, ...]:
    """Return the findings on every platform and Python that the wheel's tags name.

    `capabilities`: of the GPUs that somebody wants to use it on, if that is known.
    """
    rounds = [
        audit(
            facts,
            AuditExpectation(
                distribution=facts.name,
                version=facts.version,
                platform=platform,
                python=python,
                provided=("*",),  # who brings what it needs is not known here
                system_libraries=system_libraries(platform),
                policies=policies(platform),
            ),
        )
        for platform, python in product(platforms_of(facts), _pythons(facts))
    ]
    others = [frozenset(found) for found in rounds[1:]]  # a wheel may have hundreds of thousands of findings
    common = [one for one in rounds[0] if all(one in found for found in others)]
    common = [replace(one, severity="warning") if one.rule in _ONLY_NAMED else one for one in common]
    kept = [one for one in dict.fromkeys(common) if one.rule not in _OUR_WISHES and not _foreign(facts, one)]
    return (*kept, *device_findings(facts, DeviceDemand(capabilities=capabilities)))


def _foreign(facts: WheelFacts, finding: Finding) -> bool:
    """Return whether a finding only says that a wheel of another implementation is none for CPython."""
    pythons = [tag.split("-")[0] for tag in facts.filename_tags]
    others = not any(python.startswith(("cp", "py")) for python in pythons)
    return finding.rule == "tags" and others and "cannot be installed on" in finding.message


def platforms_of(facts: WheelFacts) -> tuple[str, ...]:
    """Return platforms such as linux-x86_64 from the tags, else from the libraries."""
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
    """Return an interpreter for each that the tags name; a usual one for tags that fit any version."""
    named = [tag.split("-")[:2] for tag in facts.filename_tags]
    found = [abi if re.fullmatch(r"cp\d+t", abi) else python for python, abi in named]
    usual = "cp27" if found and all(one.startswith("py2") for one in found) else "cp312"
    return tuple(dict.fromkeys(one for one in found if re.fullmatch(r"cp\d{2,}t?", one))) or (usual,)
