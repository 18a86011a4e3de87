"""Device code in libraries: exact architectures, without CUDA, in bounded memory."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from spark_build.errors import HostError
from spark_build.process import run
from spark_build.text import printable
from spark_build.wheels.fatbin import (
    ELF,
    LTO,
    PTX,
    Container,
    Cubin,
    FatbinEntry,
    FatbinError,
    FatbinProblem,
    Item,
    Region,
    Stray,
    kind_of,
    parts,
    scan,
)
from spark_build.wheels.model import Code, DeviceCode

HEAD = 64
MAX_PROBLEMS = 50

LIST_ELF, LIST_PTX = "--list-elf", "--list-ptx"
_LISTED = re.compile(r"(?:ELF|PTX) file +\d+: .*\.(sm_\d+[af]?)\.(?:cubin|ptx)")
_NOTHING = "does not contain device code"


def read_library(path: Path) -> DeviceCode:
    """Return the device code of a library, object, .cubin or .fatbin. Raises FatbinError."""
    with path.open("rb", buffering=0) as file:
        return read(file, str(path))


def read(file: IO[bytes], path: str) -> DeviceCode:
    """Return the device code of an open seekable file, read once, a MiB at a time."""
    size = file.seek(0, 2)

    def read_at(offset: int, length: int) -> bytes:
        file.seek(offset)
        data = file.read(length)
        if len(data) < min(length, size - offset):
            raise FatbinError("the file got shorter while it was read")
        return data

    found = _Found()
    try:
        found.take_parts(parts(read_at, size))
        found.take(scan(read_at, size))
        kind = kind_of(read_at(0, HEAD))
    except FatbinError as error:
        raise FatbinError(f"{printable(path)}: {error.message}") from error
    return DeviceCode(
        path=path,
        kind=kind,
        loaded=found.code("loaded"),
        relocatable=found.code("relocatable"),
        elsewhere=found.code("elsewhere"),
        problems=found.all_problems(),
    )


def read_or_tell(file: IO[bytes], path: str) -> DeviceCode:
    """Read like `read`, but return FatbinError as a problem of a file without code."""
    try:
        return read(file, path)
    except FatbinError as error:
        said = error.message.removeprefix(f"{printable(path)}: ")
        return DeviceCode(
            path=path,
            kind="other",
            loaded=Code(),
            relocatable=Code(),
            elsewhere=Code(),
            problems=(f"given up: {said}",),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceCodeDifference:
    """An architecture for which our count differs from cuobjdump's."""

    listing: str  # "--list-elf", "--all-fatbin --list-ptx"
    target: str  # as cuobjdump writes it: sm_120, never sm_120f for machine code
    ours: int
    theirs: int


def cross_check(
    library: Path, cuobjdump: Path, *, code: DeviceCode | None = None
) -> tuple[DeviceCodeDifference, ...]:
    """Return cuobjdump's differences in the sections that it reads. Raises HostError when it fails.

    By itself it lists relocatable code only where there is no other; with --all-fatbin both.
    """
    code = code or read_library(library)
    shown = code.loaded if code.loaded.containers or code.loaded.sass else code.relocatable
    both = code.loaded.containers and code.relocatable.containers
    rounds: list[tuple[tuple[str, ...], Sequence[Code]]] = [((), [shown])]
    if both:
        rounds.append((("--all-fatbin",), [code.loaded, code.relocatable]))
    differences: list[DeviceCodeDifference] = []
    for options, codes in rounds:
        elf, ptx = Counter[str](), Counter[str]()
        for one in codes:  # cuobjdump prints sm_120f as sm_120, and compute_80 as sm_80
            for target, number in one.sass.items():
                elf[target.removesuffix("f")] += number
            for target, number in one.ptx.items():
                ptx[target.replace("compute_", "sm_")] += number
        for listing, ours in ((LIST_ELF, elf), (LIST_PTX, ptx)):
            command = (*options, listing)
            theirs = _listed(cuobjdump, command, library)
            differences += [
                DeviceCodeDifference(
                    listing=" ".join(command), target=target, ours=ours[target], theirs=theirs[target]
                )
                for target in sorted({*ours, *theirs})
                if ours[target] != theirs[target]
            ]
    return tuple(differences)


@dataclass(slots=True)
class _Found:
    """Entries of one file, counted by section."""

    starts: list[int] = field(default_factory=list)
    regions: list[Region] = field(default_factory=list)
    counts: dict[str, Counter[tuple[int, str]]] = field(default_factory=dict)
    containers: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    unsaid: int = 0

    def take_parts(self, found: Iterable[Region | Cubin | FatbinProblem]) -> None:
        regions: list[Region] = []
        for part in found:
            if isinstance(part, Region):
                regions.append(part)
            elif isinstance(part, Cubin):
                self._count(part.role, ELF, part.target)
            else:
                self._problem(part.offset, part.message)
        for region in sorted(regions, key=lambda region: (region.start, region.end)):
            if self.regions and region.start < self.regions[-1].end:
                self._problem(region.start, "a section that overlaps another")
            else:
                self.regions.append(region)
                self.starts.append(region.start)

    def take(self, items: Iterable[Item]) -> None:
        for item in items:
            if isinstance(item, FatbinEntry):
                region = self._at(item.container)
                self._count(region.role if region else "elsewhere", item.kind, item.target)
            elif isinstance(item, Container):
                region = self._at(item.offset)
                self.containers[region.role if region else "elsewhere"] += 1
                if region and item.offset + item.size > region.end:
                    self._problem(item.offset, "a container that runs over the end of its section")
            elif isinstance(item, FatbinProblem):
                self._problem(item.offset, item.message)
            elif self._is_damage(item):
                self._problem(item.offset, "no container behind the magic number")

    def code(self, role: str) -> Code:
        counts = self.counts.get(role, Counter())
        sass, ptx, lto = (
            {target: number for (kind, target), number in sorted(counts.items()) if kind == wanted}
            for wanted in (ELF, PTX, LTO)
        )
        other = {target: n for (kind, target), n in sorted(counts.items()) if kind not in (ELF, PTX, LTO)}
        return Code(containers=self.containers[role], sass=sass, ptx=ptx, lto=lto, other=other)

    def all_problems(self) -> tuple[str, ...]:
        more = [f"and {self.unsaid} more problems"] if self.unsaid else []
        return (*self.problems, *more)

    def _at(self, offset: int) -> Region | None:
        """Return the region that contains this byte."""
        before = bisect_right(self.starts, offset) - 1
        region = self.regions[before] if before >= 0 else None
        return region if region and offset < region.end else None

    def _is_damage(self, stray: Stray) -> bool:
        """Return whether a stray magic number is damage: elsewhere host code compares with it."""
        region = self._at(stray.offset)
        return region is not None and (stray.offset - region.start) % 8 == 0

    def _count(self, role: str, kind: int, target: str) -> None:
        self.counts.setdefault(role, Counter())[kind, target] += 1

    def _problem(self, offset: int, message: str) -> None:
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(f"at byte {offset}: {message}")
        else:
            self.unsaid += 1


def _listed(cuobjdump: Path, options: Sequence[str], library: Path) -> Counter[str]:
    found: Counter[str] = Counter()

    def count(line: str) -> None:
        if match := _LISTED.match(line):
            found[match[1]] += 1

    done = run([str(cuobjdump), *options, str(library.absolute())], on_line=count)
    if done.returncode and _NOTHING not in done.output:
        raise HostError(f"{cuobjdump} fails on {library}: {printable(done.output[-300:])}")
    return found
