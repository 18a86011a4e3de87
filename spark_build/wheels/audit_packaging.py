"""Rules about names, files and metadata: what breaks an installation, or lets another wheel in its place."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from spark_build.wheels.contents import Payload
from spark_build.wheels.linkage import origin
from spark_build.wheels.model import WheelFacts
from spark_build.wheels.rules import error, few, first, host_libraries, inside, warning

if TYPE_CHECKING:
    from spark_build.wheels.audit import Expected, Observation, Rule

# Folders in site-packages that every second project would like to call its own.
_COMMON = re.compile(
    "benchmarks?|bin|build|data|docs?|etc|examples?|include|lib(64)?|scripts|share|src|tests?|tools|utils?"
)
_MIB = 1 << 20


def _dist_info(facts: WheelFacts, _: Expected) -> Iterator[Observation]:
    """pip takes the name from the folder and refuses a wheel whose file name says another one."""
    folder = facts.payload.dist_info
    name, version = folder.removesuffix(".dist-info").rpartition("-")[::2]
    if folder and (canonicalize_name(name) != facts.name or not _same(version, facts.version)):
        yield error(
            f"the folder {folder} is not that of {facts.name} {facts.version}, whose METADATA it holds: "
            "build again in a clean tree"
        )


def _same(one: str, other: str) -> bool:
    try:
        return Version(one) == Version(other)
    except InvalidVersion:
        return one == other


def _file_name(facts: WheelFacts, _: Expected) -> Iterator[Observation]:
    written = facts.filename.partition("-")[0]
    wanted = facts.name.replace("-", "_")
    if written != wanted and canonicalize_name(written) == facts.name:
        yield warning(f"the file name begins with {written}, not the normalised {wanted}: rename the wheel")


def _entries(facts: WheelFacts, _: Expected) -> Iterator[Observation]:
    payload = facts.payload
    for name, kind in payload.special:
        yield error(f"{name} is {kind}, which no wheel may hold: put a file there")
    for name in payload.privileged:
        yield error(f"{name} would run with another user's rights (set-user-ID): chmod ug-s before packing")
    if payload.writable:
        yield warning(
            f"{first(payload.writable)} may be written by everybody where modes are kept: "
            "chmod o-w before packing"
        )


def _names(facts: WheelFacts, _: Expected) -> Iterator[Observation]:
    for group in facts.payload.collisions:
        yield error(
            f"{few(group)} are one name where case or Unicode form do not count, or on any system: rename"
        )
    for name in facts.payload.denormal:
        yield warning(f"{name} is not in Unicode's normal form C, and some systems change that: rename it")


def _site_packages(facts: WheelFacts, _: Expected) -> Iterator[Observation]:
    payload = facts.payload
    for name in payload.schemes:
        yield error(f"{name} lies below .data where no installer knows a place: use purelib, data, ...")
    for top in payload.tops:
        if _COMMON.fullmatch(_module(top)):
            yield warning(
                f"{top} lands in site-packages under a name that others use too: leave it out of the wheel"
            )
        elif (
            payload.declared and _module(top) not in payload.declared and not top.endswith((".libs", ".pth"))
        ):
            yield warning(
                f"{top} lands in site-packages, and top_level.txt does not list it: leave it out or list it"
            )


def _module(top: str) -> str:
    return top.partition(".")[0]


def _startup(facts: WheelFacts, _: Expected) -> Iterator[Observation]:
    for name in facts.payload.startup:
        yield warning(f"{name} runs code at every start of Python: leave it out unless it is meant")


def _requirements(facts: WheelFacts, _: Expected) -> Iterator[Observation]:
    for text in facts.requires:
        try:
            Requirement(text)
        except InvalidRequirement:
            yield error(f"Requires-Dist: {text} is no requirement: write name==version, as PEP 508 says")


def _torch_pin(facts: WheelFacts, _: Expected) -> Iterator[Observation]:
    """What is linked with torch works with the very build it was linked with."""
    own = inside(facts)
    linked = [
        library.path
        for library in host_libraries(facts)
        if any(
            origin(soname) == ("stack", "it comes with torch")
            for soname in library.needed
            if soname not in own
        )
    ]
    pins = [one for one in _parsed(facts.requires) if canonicalize_name(one.name) == "torch"]
    if linked and not pins:
        yield warning(
            f"{linked[0]} is linked with torch, and METADATA requires none: add Requires-Dist: torch"
        )
    for pin in pins:
        if linked and not _names_one_build(pin):
            yield warning(
                f"{linked[0]} is linked with one build of torch, and Requires-Dist: {pin} lets "
                "installers take another, public one: pin torch==VERSION+LABEL"
            )


def _parsed(requires: tuple[str, ...]) -> Iterator[Requirement]:
    """What is always required; broken ones are another rule's business."""
    for text in requires:
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue
        if "extra" not in str(requirement.marker or ""):
            yield requirement


def _names_one_build(requirement: Requirement) -> bool:
    return any(one.operator in ("==", "===") and "+" in one.version for one in requirement.specifier)


def sizes(payload: Payload) -> tuple[str, ...]:
    """The size report: the whole, then the largest files."""
    return (
        f"{payload.files} files, {_mib(payload.unpacked)} unpacked, {_mib(payload.packed)} in the zip",
        *(f"{_mib(one.size)} ({_mib(one.packed)} in the zip)  {one.path}" for one in payload.largest),
    )


def _mib(count: int) -> str:
    return f"{count / _MIB:.1f} MiB"


PACKAGING_RULES: tuple[tuple[str, Rule], ...] = (
    ("dist-info", _dist_info),
    ("file-name", _file_name),
    ("entries", _entries),
    ("names", _names),
    ("site-packages", _site_packages),
    ("startup-code", _startup),
    ("requirements", _requirements),
    ("torch-pin", _torch_pin),
)
