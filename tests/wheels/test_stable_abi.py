"""The stable ABI: what an extension takes from the interpreter, against what its abi3 tag promises."""

from __future__ import annotations

import io
import struct
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from spark_build.wheels.audit import findings_alone
from spark_build.wheels.elf import MAX_NAME, MAX_NAMES, read_library
from spark_build.wheels.model import UNREADABLE, HostCode, WheelFacts
from spark_build.wheels.reader import read_facts
from spark_build.wheels.rules import best_platform_tag
from tests.helpers.devicefacts import code, wheel
from tests.helpers.wheelhouse import make_wheel

# Private; in the stable ABI since 3.11 (PyType_GetName) and always (PyLong_FromLong); none of the interpreter.
SOURCE = """
__attribute__((weak)) void _PyMaybe(void);
void _PyObject_Dump(void); void PyType_GetName(void); void PyLong_FromLong(void); void puts(void);
static void Py_Inlined(void) { puts(); }
void *PyInit_demo(void) { if (_PyMaybe) _PyMaybe(); _PyObject_Dump(); PyType_GetName(); PyLong_FromLong(); Py_Inlined(); return 0; }
"""
USED = ("PyLong_FromLong", "PyType_GetName", "_PyObject_Dump")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("extension")
    (folder / "demo.c").write_text(SOURCE)
    made = folder / "demo.abi3.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O0", "-o", made, folder / "demo.c"], check=True, timeout=60)
    return made


@pytest.mark.parametrize("style", ["gnu", "sysv"])
def test_what_it_takes_from_the_interpreter(style: str, library: Path, tmp_path: Path) -> None:
    """Both kinds of symbol hash table say how many symbols there are."""
    made = tmp_path / "demo.so"
    source = library.with_name("demo.c")
    flags = [f"-Wl,--hash-style={style}", "-shared", "-fPIC", "-O0"]
    subprocess.run(["cc", *flags, "-o", made, source], check=True, timeout=60)
    with made.open("rb") as file:
        assert read_library("demo.so", file, symbols=True).host.python_symbols == USED
        assert read_library("demo.so", file).host.python_symbols == ()


def made_up(names: bytes, starts: list[int]) -> bytes:
    """An ELF file of undefined symbols whose names begin there in the string table."""
    at = 64 + 56 * 2
    places = {"dynamic": at, "hash": at + 80, "symbols": at + 88, "names": at + 88 + 24 * len(starts)}
    size = places["names"] + len(names)
    tags = ((5, places["names"]), (10, len(names)), (6, places["symbols"]), (4, places["hash"]), (0, 0))
    return b"".join(
        (
            b"\x7fELF\x02\x01\x01".ljust(16, b"\0"),
            struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 64, 0, 0, 64, 56, 2, 0, 0, 0),
            struct.pack("<IIQQQQQQ", 1, 4, 0, 0, 0, size, size, 8),
            struct.pack("<IIQQQQQQ", 2, 4, places["dynamic"], places["dynamic"], 0, 80, 80, 8),
            *(struct.pack("<QQ", *tag) for tag in tags),
            struct.pack("<II", 1, len(starts)),
            *(struct.pack("<IBBHQQ", start, 0x10, 0, 0, 0, 0) for start in starts),
            names,
        )
    )


@pytest.mark.parametrize(
    ("names", "starts", "found"),
    [
        (b"\0Py_A\0_Z" + b"x" * MAX_NAME + b"\0", [1, 1, 6], ("Py_A",)),  # long names are C++'s
        (b"Py" * MAX_NAME + b"\0", [*range(0, 200, 2)], None),
        (b"Py" * MAX_NAME, [0], None),
        (b"Py\0" * (MAX_NAMES + 1), [*range(0, 3 * MAX_NAMES + 3, 3)], None),
    ],
)
def test_names_without_an_end_are_damage(
    names: bytes, starts: list[int], found: tuple[str, ...] | None
) -> None:
    """Each would be copied out of the table again: gigabytes of half a megabyte."""
    read = read_library("demo.so", io.BytesIO(made_up(names, starts)), symbols=True)
    if found is None:
        assert read.machine == UNREADABLE
    else:
        assert read.host.python_symbols == found


def errors(facts: WheelFacts) -> list[str]:
    found = findings_alone(facts, system_libraries=lambda _: frozenset(), policies=lambda _: {})
    return [one.message for one in found if one.rule == "stable-abi"]


def test_a_wheel_is_read_for_it_where_its_tag_says_abi3(library: Path, tmp_path: Path) -> None:
    files = {"demo/demo.abi3.so": library.read_bytes()}
    tagged = make_wheel(tmp_path, "demo", files=files, tag="cp39-abi3-linux_x86_64")
    assert errors(read_facts(tagged)) == [
        "demo/demo.abi3.so uses _PyObject_Dump, not in the stable ABI (1 such symbols), and the tag says abi3",
        "demo/demo.abi3.so uses PyType_GetName, in the stable ABI since Python 3.11, and the tag says 3.9",
    ]
    (private,) = errors(read_facts(make_wheel(tmp_path, "demo", files=files, tag="cp312-abi3-linux_x86_64")))
    assert "_PyObject_Dump" in private
    assert errors(read_facts(make_wheel(tmp_path, "demo", files=files, tag="cp39-cp39-linux_x86_64"))) == []


POLICIES = {
    "manylinux_2_17_x86_64": {"GLIBC": frozenset({"2.17"})},
    "manylinux_2_5_x86_64": {"GLIBC": frozenset({"2.5"})},
    "manylinux_2_28_x86_64": {"GLIBC": frozenset({"2.17", "2.28"})},
    "manylinux2014_x86_64": {"GLIBC": frozenset({"2.17"})},
}


@pytest.mark.parametrize(
    ("needs", "tag"),
    [
        ((), "manylinux_2_5_x86_64"),
        (("GLIBC_2.17",), "manylinux_2_17_x86_64"),
        (("GLIBC_2.17", "GLIBC_2.28"), "manylinux_2_28_x86_64"),
        (("GLIBC_2.99",), ""),
    ],
)
def test_the_best_platform_tag(needs: tuple[str, ...], tag: str) -> None:
    facts = wheel(code(), machine="x86_64")
    versions = tuple(("libc.so.6", version) for version in needs)
    host = replace(facts.libraries[0], host=HostCode(versions=versions))
    assert best_platform_tag(replace(facts, libraries=(host,)), POLICIES) == tag
    assert best_platform_tag(replace(facts, libraries=()), POLICIES) == ""
