"""Broken wheels: the libraries in them."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

from tests.helpers.corpus import ABSOLUTE, MACHINE, TAG, case, library, with_files
from tests.helpers.wheels import PURE, PYTHON, VERSION, write_wheel


def _elf(name: str, say: str, change: Callable[[bytearray], bytes | bytearray]) -> None:
    def make(folder: Path, workshop: Path) -> Path:
        data = bytes(change(bytearray(library(workshop))))
        return write_wheel(folder, {**PURE, "demo/_c.so": data}, tag=TAG)

    case(name, say)(make)


def _machine(raw: bytearray) -> bytearray:
    raw[18:20] = struct.pack("<H", 183 if MACHINE == "x86_64" else 62)
    return raw


def _segments(raw: bytearray) -> bytearray:
    """All of them empty, and all in the file."""
    raw[32:40] = struct.pack("<Q", len(raw))
    raw[56:58] = b"\xff\xff"
    return raw + bytes(0xFFFF * 56)


_elf("a foreign library", "elf-machine: demo/_c.so is for", _machine)
_elf("a cut library", "elf-damage: demo/_c.so begins like an ELF file", lambda raw: raw[:3000])
_elf(
    "a library without its last bytes",
    "elf-damage: demo/_c.so begins like an ELF file",
    lambda raw: raw[:-64],
)
_elf("a library with 65535 segments", "elf-damage: demo/_c.so begins like an ELF file", _segments)
with_files(
    "a writable and executable segment",
    "executable-memory: demo/x.so has a segment",
    {"demo/x.so": ("-nostdlib", "-Wl,--omagic")},
)
with_files(
    "an executable stack",
    "executable-memory: demo/x.so wants an executable stack",
    {"demo/x.so": ("-Wl,-z,execstack",)},
)
with_files(
    "an RPATH of the build",
    "rpath: the RPATH of demo/x.so names /run/spark-build/work/lib",
    {"demo/x.so": ("-Wl,-rpath,/run/spark-build/work/lib",)},
)
with_files("a relative RPATH", "rpath: the RPATH of demo/x.so names lib,", {"demo/x.so": ("-Wl,-rpath,lib",)})
for title, soname in (
    ("driver", "libcuda.so.1"),
    ("loader", "ld-linux-x86-64.so.2"),
    ("C library", "libc.so.6"),
):
    with_files(
        f"the {title} bundled",
        f"bundled-system: demo.libs/{soname} is",
        {f"demo.libs/{soname}": (f"-Wl,-soname,{soname}",)},
    )


@case("text relocations", "text-relocations: demo/x.so has text relocations")
def _(folder: Path, workshop: Path) -> Path:
    data = library(workshop, "x.so", "-fno-pic", "-mcmodel=large", "-Wl,-z,notext", source=ABSOLUTE)
    return write_wheel(folder, {**PURE, "demo/x.so": data}, tag=TAG)


@case("symbols newer than the tag", "symbol-versions: demo/x.so needs GLIBC_2.34")
def _(folder: Path, workshop: Path) -> Path:
    source = "void *dlopen(const char *, int); void *get(void) { return dlopen(0, 1); }"
    files = {**PURE, "demo/x.so": library(workshop, "x.so", source=source)}
    return write_wheel(folder, files, tag=f"{PYTHON}-{PYTHON}-manylinux_2_17_{MACHINE}")


for title, soname, say in (
    (
        "a library that nobody has",
        "libgone.so.1",
        "libraries: demo/x.so needs libgone.so.1, which no wheel provides",
    ),
    (
        "linked with libpython",
        f"libpython{VERSION}.so.1.0",
        f"libraries: demo/x.so links with libpython{VERSION}.so.1.0",
    ),
):

    def _needing(folder: Path, workshop: Path, soname: str = soname) -> Path:
        library(workshop, soname, f"-Wl,-soname,{soname}")
        where = next(workshop.glob(f"*/{soname}"))
        data = library(workshop, "x.so", str(where))
        return write_wheel(folder, {**PURE, "demo/x.so": data}, tag=TAG)

    case(title, say)(_needing)
