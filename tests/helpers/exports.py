"""Exports of a wheelhouse, member by member, for tests that read, change or forge them."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from spark_build.paths import Home
from spark_build.recipes.model import Target
from spark_build.transfer.bundle import pack
from spark_build.transfer.bundle_import import import_bundle
from spark_build.transfer.bundle_write import write_archive
from spark_build.wheelhouse.generations import Generation
from tests.helpers.wheelhouse import VIEW

TOP = f"{VIEW}-1"
Member = tuple[tarfile.TarInfo, bytes]


def export(generation: Generation, store: Path, file: Path) -> int:
    return write_archive(pack(generation, store), file)


def no_view() -> tuple[str, Target]:
    raise AssertionError("an export knows its view")


def import_archive(home: Home, file: Path) -> tuple[Generation, bool]:
    taken = import_bundle(home, file, no_view)
    return taken.generation, taken.new


def members(file: Path) -> list[Member]:
    with tarfile.open(file, "r:") as tar:
        return [(member, tar.extractfile(member).read()) for member in tar]  # type: ignore[union-attr]


def written(file: Path, content: Sequence[Member]) -> Path:
    with tarfile.open(file, "w:") as tar:
        for member, data in content:
            member.size = len(data) if member.isreg() else 0
            tar.addfile(member, io.BytesIO(data))
    return file


def member(name: str, data: bytes = b"", **fields: Any) -> Member:
    info = tarfile.TarInfo(name)
    for field, value in fields.items():
        setattr(info, field, value)
    return info, data
