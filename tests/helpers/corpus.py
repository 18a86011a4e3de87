"""The corpus of broken wheels, each made from a real small one, with the words that must be said of it."""

from __future__ import annotations

import functools
import os
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.helpers.wheels import PURE, PYTHON, compiled, entries_of, record_of, write_wheel, write_zip

INFO = "demo-1.0.dist-info"
MACHINE = os.uname().machine
TAG = f"{PYTHON}-{PYTHON}-manylinux_2_34_{MACHINE}"
LOCAL, CENTRAL, END = b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06"
RECORD, METADATA, WHEEL = f"{INFO}/RECORD", f"{INFO}/METADATA", f"{INFO}/WHEEL"
VALUE = b"VALUE = 1\n"
HALF = "double cos(double); double half(double x) { return cos(x) / 2; }"
ABSOLUTE = "int here; int *where(void) { return &here; }"


@functools.cache
def library(folder: Path, name: str = "_c.so", *flags: str, source: str = HALF) -> bytes:
    """A real library; the folder outlives the test."""
    where = folder / f"{abs(hash((name, flags, source)))}"
    return compiled(where, name, source, "-Wl,--no-as-needed", "-lm", *flags).read_bytes()


@dataclass(frozen=True, kw_only=True)
class Case:
    """`say`: part of an error finding, "rule: message", or of the one refusal."""

    say: str
    make: Callable[[Path, Path], Path]  # (folder for the wheel, workshop) -> wheel


CASES: dict[str, Case] = {}


def case(name: str, say: str) -> Callable[[Callable[[Path, Path], Path]], None]:
    def add(make: Callable[[Path, Path], Path]) -> None:
        assert name not in CASES
        CASES[name] = Case(say=say, make=make)

    return add


def sound(folder: Path, workshop: Path, **changes: object) -> Path:
    """The wheel that nothing is wrong with."""
    files = {**PURE, "demo/_c.so": library(workshop)}
    return write_wheel(folder, files, tag=TAG, **changes)  # type: ignore[arg-type]


def with_files(name: str, say: str, files: Mapping[str, bytes | tuple[str, ...]], tag: str = TAG) -> None:
    """A case: these files more, truthfully listed; a tuple: a library linked with these flags."""

    def make(folder: Path, workshop: Path) -> Path:
        own = {
            path: library(workshop, "x.so", *data) if isinstance(data, tuple) else data
            for path, data in files.items()
        }
        return write_wheel(folder, {**PURE, "demo/_c.so": library(workshop), **own}, tag=tag)

    case(name, say)(make)


def with_entries(
    name: str, say: str, change: Callable[[dict[str, bytes]], Mapping[str, bytes]], *, listed: bool = True
) -> None:
    """A case: other entries; `listed`: with a RECORD that is true of them."""

    def make(folder: Path, workshop: Path) -> Path:
        wheel = sound(folder, workshop)
        entries = dict(change(dict(entries_of(wheel))))
        if listed:
            record = next((name for name in entries if name.endswith("/RECORD")), f"{INFO}/RECORD")
            entries.pop(record, None)
            entries[record] = record_of(entries, record).encode()
        return write_zip(wheel, list(entries.items()))

    case(name, say)(make)


def with_bytes(name: str, say: str, change: Callable[[bytearray], bytes | bytearray]) -> None:
    """A case: the file's raw bytes changed."""

    def make(folder: Path, workshop: Path) -> Path:
        wheel = sound(folder, workshop)
        wheel.write_bytes(change(bytearray(wheel.read_bytes())))
        return wheel

    case(name, say)(make)


def with_mode(name: str, say: str, mode: int) -> None:
    def make(folder: Path, workshop: Path) -> Path:
        wheel = sound(folder, workshop)
        entries = entries_of(wheel)
        with zipfile.ZipFile(wheel, "w") as archive:
            for entry, data in entries:
                info = zipfile.ZipInfo(entry)
                info.external_attr = (mode if entry == "demo/data.bin" else 0o100644) << 16
                archive.writestr(info, data)
        return wheel

    case(name, say)(make)


def renamed(name: str, say: str, filename: str) -> None:
    case(name, say)(
        lambda folder, workshop: (wheel := sound(folder, workshop)).rename(wheel.with_name(filename))
    )


def everywhere(raw: bytearray, magic: bytes) -> list[int]:
    """Where each header begins."""
    found, at = [], raw.find(magic)
    while at >= 0:
        found.append(at)
        at = raw.find(magic, at + 1)
    return found


def set_field(
    raw: bytearray, local: int | None, central: int | None, value: bytes, *, which: int = 0
) -> bytearray:
    """Overwrite a field of one entry, in its local header and in the directory."""
    if local is not None:
        at = everywhere(raw, LOCAL)[which] + local
        raw[at : at + len(value)] = value
    if central is not None:
        at = everywhere(raw, CENTRAL)[which] + central
        raw[at : at + len(value)] = value
    return raw


def replaced(entries: dict[str, bytes], name: str, old: bytes, new: bytes) -> dict[str, bytes]:
    assert old in entries[name]
    return {**entries, name: entries[name].replace(old, new, 1)}


def without(entries: dict[str, bytes], name: str) -> dict[str, bytes]:
    return {entry: data for entry, data in entries.items() if entry != name}
