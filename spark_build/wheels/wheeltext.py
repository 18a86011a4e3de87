"""The texts of a wheel that say what it is: its file name, its tags, its RECORD."""

from __future__ import annotations

import csv
import math

from installer.records import InvalidRecordEntry, RecordEntry, parse_record_file
from packaging.tags import parse_tag
from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from spark_build.errors import AuditError

MAX_TAGS = 1000  # a compressed tag is a product of three lists
# What the readers take is linear in one and quadratic in the other.
MAX_LINES, MAX_HEADERS = 20_000, 200
MAX_ROWS = 400_000  # of RECORD: torch has 12 000


def filename_parts(filename: str) -> tuple[tuple[str, ...], str]:
    """Expanded tags and the build tag, as written in the file name."""
    try:
        if _product("-".join(filename.split("-")[-3:])) > MAX_TAGS:
            raise InvalidWheelFilename(f"it stands for more than {MAX_TAGS} tags")
        _, _, build, tags = parse_wheel_filename(filename)
    except InvalidWheelFilename as error:
        raise AuditError(
            f"{filename} is no wheel name: {error}", hint="a wheel is called name-version[-build]-tags.whl"
        ) from error
    return tuple(sorted(str(tag) for tag in tags)), filename.split("-")[2] if build else ""


def sane(headers: bytes) -> bytes:
    """METADATA or WHEEL as it is; ValueError where its headers would keep a parser busy for hours."""
    lines = headers.partition(b"\n\n")[0].splitlines()
    names = {line.partition(b":")[0].lower() for line in lines if line[:1] not in (b" ", b"\t")}
    if len(lines) > MAX_LINES or len(names) > MAX_HEADERS:
        raise ValueError(f"{len(lines):,} lines of metadata with {len(names):,} different names")
    return headers


def expanded(tags: list[str]) -> tuple[str, ...]:
    """Every single tag behind compressed ones; one that is no tag is kept as it is."""
    found: set[str] = set()
    if sum(map(_product, tags)) > MAX_TAGS:
        raise ValueError(f"WHEEL stands for more than {MAX_TAGS} tags")
    for tag in tags:
        try:
            found.update(str(single) for single in parse_tag(tag.strip()))
        except ValueError:
            found.add(tag.strip())
    return tuple(sorted(found))


def _product(tag: str) -> int:
    """How many tags a compressed one stands for."""
    return math.prod(part.count(".") + 1 for part in tag.split("-"))


def record_rows(text: str) -> tuple[dict[str, RecordEntry], list[str]]:
    """The rows by file, and what is wrong with them alone."""
    rows: dict[str, RecordEntry] = {}
    problems = []
    if text.count("\n") > MAX_ROWS:
        raise ValueError(f"RECORD has more than {MAX_ROWS:,} rows")
    try:
        for elements in parse_record_file(text.splitlines()):
            name = elements[0]
            if name in rows:
                problems.append(f"{name}: listed more than once in RECORD")
            try:
                rows[name] = RecordEntry.from_elements(*elements)
            except InvalidRecordEntry as error:
                problems.append(f"{name}: {error}")
    except (InvalidRecordEntry, ValueError, csv.Error) as error:
        problems.append(f"RECORD: {error}")
    return rows, problems
