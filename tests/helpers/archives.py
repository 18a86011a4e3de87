"""Archives for tests, made entry by entry, so that they can be as odd as wanted."""

from __future__ import annotations

import io
import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

NOON = 1_700_000_000
Entry = tuple[tarfile.TarInfo, bytes]


def entry(name: str, data: bytes = b"", **fields: object) -> Entry:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    info.mtime = NOON
    for field, value in fields.items():
        setattr(info, field, value)
    return info, data


def link(name: str, target: str) -> Entry:
    return entry(name, type=tarfile.SYMTYPE, linkname=target)


def hard(name: str, target: str) -> Entry:
    return entry(name, type=tarfile.LNKTYPE, linkname=target)


def packed(entries: Sequence[Entry], format: int = tarfile.PAX_FORMAT) -> bytes:  # noqa: A002 - tarfile's name
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=format) as tar:
        for info, data in entries:
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def zipped(entries: Sequence[tuple[str, bytes, int]]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data, mode in entries:
            info = zipfile.ZipInfo(name, (2024, 5, 6, 7, 8, 10))
            info.external_attr = mode << 16
            file.writestr(info, data)
    return buffer.getvalue()


GOOD = (
    entry("demo-1.0", type=tarfile.DIRTYPE, mode=0o755),
    entry("demo-1.0/setup.py", b"print()\n", mode=0o644),
    entry("demo-1.0/configure", b"#!/bin/sh\n", mode=0o4777),
    entry("demo-1.0/src/long" + "g" * 150 + "/a.c", b"int a;\n" * 9999, mode=0o600, mtime=NOON - 5.5),
    link("demo-1.0/include", "src/../src"),
    hard("demo-1.0/copy.py", "demo-1.0/setup.py"),
)


def archive_of(data: bytes, box: Path) -> Path:
    path = box.parent / "demo-1.0.archive"
    path.write_bytes(data)
    return path
