"""Compare two wheels, and inspect one."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from spark_build.files import CHUNK
from spark_build.wheels.device_code import DeviceCodeDifference, cross_check
from spark_build.wheels.model import Code, DeviceCode, WheelFacts
from spark_build.wheels.reader import files_of, opened
from spark_build.wheels.rules_device import order

# auditwheel's digits of the content: libz.b9a71669.so.1, libz-b9a71669.so.1.
_BUNDLED_HASH = re.compile(r"[.-][0-9a-f]{8}(?=\.so(\.|$))")
_PAPERS = re.compile(r"\*\.dist-info/RECORD")  # differs whenever anything does

Member = tuple[int, int]  # size and checksum


@dataclass(frozen=True, kw_only=True, slots=True)
class Side:
    """A wheel to compare; `members`: its files by name."""

    facts: WheelFacts
    members: Mapping[str, Member]


@dataclass(frozen=True, kw_only=True, slots=True)
class WheelChange:
    """A difference; a side that lacks the item is empty."""

    kind: str  # metadata, size, requires, file, library, needed, device code
    subject: str
    first: str
    second: str


def wheel_changes(first: Side, second: Side) -> tuple[WheelChange, ...]:
    """Return all differences, the large ones first."""
    return (
        *_pairs("metadata", _metadata(first.facts), _metadata(second.facts)),
        *_pairs("size", _sizes(first.facts), _sizes(second.facts)),
        *_pairs("requires", *(dict.fromkeys(one.facts.requires, "yes") for one in (first, second))),
        *_pairs("library", _libraries(first.facts), _libraries(second.facts)),
        *_pairs("needed", *(dict.fromkeys(_sonames(one.facts), "yes") for one in (first, second))),
        *_pairs("needed", _needed(first.facts, second.facts), _needed(second.facts, first.facts)),
        *_pairs("device code", _codes(first.facts), _codes(second.facts)),
        *_files(first, second),
    )


def _pairs(kind: str, first: Mapping[str, str], second: Mapping[str, str]) -> Iterator[WheelChange]:
    for subject in [*first, *(one for one in second if one not in first)]:
        one, other = first.get(subject, ""), second.get(subject, "")
        if one != other:
            yield WheelChange(kind=kind, subject=subject, first=one, second=other)


def _metadata(facts: WheelFacts) -> dict[str, str]:
    return {
        "name": facts.name,
        "version": facts.version,
        "build tag": facts.build,
        "tags": " ".join(facts.filename_tags),
    }


def _sizes(facts: WheelFacts) -> dict[str, str]:
    return {
        "wheel": f"{facts.size:,}",
        "unpacked": f"{facts.payload.unpacked:,}",
        "files": f"{facts.payload.files:,}",
    }


def _libraries(facts: WheelFacts) -> dict[str, str]:
    return {_plain(library.path): library.machine for library in facts.libraries}


def _sonames(facts: WheelFacts) -> list[str]:
    """Return the libraries that any library of the wheel needs."""
    return sorted({_plain(soname) for library in facts.libraries for soname in library.needed})


def _needed(facts: WheelFacts, other: WheelFacts) -> dict[str, str]:
    """Return per library the needed ones, of libraries that both wheels have and need alike."""
    both = _libraries(other).keys()
    known = set(_sonames(other)).intersection(_sonames(facts))
    return {
        f"{_plain(library.path)}: {_plain(soname)}": "yes"
        for library in facts.libraries
        for soname in library.needed
        if _plain(library.path) in both and _plain(soname) in known
    }


def _codes(facts: WheelFacts) -> dict[str, str]:
    return {
        f"{_plain(code.path)}{where}: {target}": f"{number}"
        for code in facts.device_code
        for where, part in roles(code)
        for target, number in counts(part)
    }


def roles(code: DeviceCode) -> tuple[tuple[str, Code], ...]:
    """Return the parts of a file's device code with their names."""
    return (("", code.loaded), (" (relocatable)", code.relocatable), (" (elsewhere)", code.elsewhere))


def counts(code: Code) -> list[tuple[str, int]]:
    """Return all entries in the order of architectures."""
    every = {**code.sass, **code.ptx, **code.lto, **code.other}
    return sorted(every.items(), key=lambda pair: order(pair[0]))


def _files(first: Side, second: Side) -> Iterator[WheelChange]:
    one, other = _named(first), _named(second)
    for name in sorted(one.keys() | other.keys()):
        have, has = one.get(name), other.get(name)
        if have == has or (have and has and _PAPERS.fullmatch(name)):
            continue
        sizes = [f"{file[0]:,} bytes" if file else "" for file in (have, has)]
        if sizes[0] == sizes[1]:
            sizes[1] += ", other content"
        yield WheelChange(kind="file", subject=name, first=sizes[0], second=sizes[1])


def _named(side: Side) -> dict[str, Member]:
    folder = f"{side.facts.payload.dist_info}/"
    return {
        f"*.dist-info/{name.removeprefix(folder)}" if name.startswith(folder) else _plain(name): member
        for name, member in side.members.items()
    }


def _plain(path: str) -> str:
    return _BUNDLED_HASH.sub("", path)


def members(path: Path) -> dict[str, Member]:
    """Return size and checksum of every file from the zip's directory, without unpacking."""
    with opened(path) as archive:
        return {info.filename: (info.file_size, info.CRC) for info in files_of(archive)}


def cross_checked(
    path: Path, codes: Sequence[DeviceCode], cuobjdump: Path
) -> dict[str, tuple[DeviceCodeDifference, ...]]:
    """Return cuobjdump's differences for each file with device code. Raises HostError when it fails."""
    found: dict[str, tuple[DeviceCodeDifference, ...]] = {}
    with opened(path) as archive:
        for code in codes:
            if code.kind == "other":  # given up
                continue
            with tempfile.TemporaryDirectory(prefix="spark-build-") as folder:
                copy = Path(folder, "file" + "".join(Path(code.path).suffixes[-1:]))
                with archive.open(code.path) as packed, copy.open("wb") as file:
                    shutil.copyfileobj(packed, file, CHUNK)
                found[code.path] = cross_check(copy, cuobjdump, code=code)
    return found
