import struct
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_build.wheels.fatbin import (
    Cubin,
    FatbinError,
    FatbinProblem,
    Part,
    Region,
    kind_of,
    parts,
)
from tests.helpers.fatbins import Made, container, elf

LOADED, RELOCATABLE = ".nv_fatbin", "__nv_relfatbin"
CUDA = 190
BOX = container(Made())


def look(data: bytes) -> list[Part]:
    return list(parts(lambda offset, size: data[offset : offset + size], len(data)))


def regions(data: bytes) -> list[tuple[str, bytes]]:
    return [(part.role, data[part.start : part.end]) for part in look(data) if isinstance(part, Region)]


def problems(data: bytes) -> list[str]:
    return [part.message for part in look(data) if isinstance(part, FatbinProblem)]


def patched(data: bytes, at: int, form: str, value: int) -> bytes:
    copy = bytearray(data)
    struct.pack_into(form, copy, at, value)
    return bytes(copy)


def cubin(flags: int, *, abi: int = 8, compat: bytes = b"", command: bytes = b"") -> bytes:
    named = [(".note.nv.tkinfo", command), (".nv.compat", compat)]
    return elf([one for one in named if one[1]], machine=CUDA, flags=flags, abi=abi)


def test_only_two_sections_are_read_by_the_runtime_and_the_linker() -> None:
    data = elf([(".text", b"x" * 9), (LOADED, BOX), (".cask_resource", BOX), (RELOCATABLE, BOX * 2)])
    assert regions(data) == [("loaded", BOX), ("relocatable", BOX * 2)]
    assert problems(data) == []


def test_a_fat_binary_is_a_region() -> None:
    assert regions(BOX) == [("loaded", BOX)]


@pytest.mark.parametrize(
    ("data", "wanted"),
    [
        (cubin(0x6007902), "sm_121"),
        (cubin(0x6005A04), "sm_90"),
        (cubin(0x600640A), "sm_100a"),  # ptxas 12.9
        (cubin(0x6007902, compat=bytes.fromhex("0209010002020100")), "sm_121a"),  # ptxas 13.0
        (cubin(0x6007902, compat=bytes.fromhex("0202010002090100")), "sm_121a"),
        (cubin(0x6007902, compat=bytes.fromhex("0209000002020100")), "sm_121"),
        (cubin(0x6007802, command=b"\0-arch sm_120f -m 64 \0"), "sm_120f"),
        (cubin(0x6007802, command=b"\0-arch sm_121f -m 64 \0"), "sm_120"),
        (cubin(0x5A055A, abi=7), "sm_90"),
        (cubin(0x5A0D5A, abi=7), "sm_90a"),
    ],
)
def test_the_architecture_of_a_cubin(data: bytes, wanted: str) -> None:
    assert kind_of(data[:64]) == "cubin"
    assert [(part.target, part.role) for part in look(data) if isinstance(part, Cubin)] == [
        (wanted, "loaded")
    ]
    (relocatable,) = look(patched(data, 16, "<H", 1))
    assert isinstance(relocatable, Cubin)
    assert relocatable.role == "relocatable"


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        (elf([]), "elf"),
        (b"\x7fELF", "elf"),
        (BOX, "fatbin"),
        (b"PK\x03\x04", "other"),
        (b"", "other"),
    ],
)
def test_the_kind_of_a_file(head: bytes, kind: str) -> None:
    assert kind_of(head[:64]) == kind


def table_of(data: bytes) -> int:
    return int.from_bytes(data[40:48], "little")


WHOLE = elf([(LOADED, BOX)])
TABLE = table_of(WHOLE)


@pytest.mark.parametrize(
    ("data", "wanted"),
    [
        (WHOLE[:40], "an ELF header that is cut"),
        (WHOLE[:-1], "a table of 3 sections that is not in the file"),
        (patched(WHOLE, 40, "<Q", 2**64 - 1), "a section table that is not in the file"),
        (patched(WHOLE, 58, "<H", 40), "a section table that is not in the file"),
        (patched(WHOLE, 60, "<H", 0), "a table of 0 sections that is not in the file"),
        (patched(WHOLE, 60, "<H", 9999), "a table of 9999 sections that is not in the file"),
        (patched(patched(WHOLE, 60, "<H", 0), TABLE + 32, "<Q", 2**63), f"a table of {2**63} sections"),
        (patched(WHOLE, 62, "<H", 7), "a table of 3 sections that is not in the file"),
        (patched(WHOLE, TABLE + 2 * 64 + 32, "<Q", 2**63), f"a table of section names of {2**63} bytes"),
        (patched(WHOLE, TABLE + 64 + 24, "<Q", 2**64 - 1), "section .nv_fatbin is not in the file"),
    ],
)
def test_a_wrong_table_is_a_problem(data: bytes, wanted: str) -> None:
    (message,) = problems(data)
    assert wanted in message
    assert regions(data) == []


def test_without_a_section_table_nothing_is_wrong() -> None:
    assert look(patched(WHOLE, 40, "<Q", 0)) == []


def test_many_sections_count_in_the_first_ones_fields() -> None:
    data = patched(patched(WHOLE, 60, "<H", 0), TABLE + 32, "<Q", 3)
    data = patched(patched(data, 62, "<H", 0xFFFF), TABLE + 40, "<I", 2)
    assert regions(data) == [("loaded", BOX)]


def test_a_section_without_bytes_in_the_file() -> None:
    assert look(patched(WHOLE, TABLE + 64 + 4, "<I", 8)) == []


def test_floods_are_given_up() -> None:
    many = elf([(LOADED, b"x")])
    row = many[table_of(many) + 64 : table_of(many) + 128]
    names = many[table_of(many) + 128 :]
    flood = many[: table_of(many)] + bytes(64) + names + row * ((1 << 16) + 9)
    flood = patched(patched(flood, 60, "<H", 0), table_of(many) + 32, "<Q", (1 << 16) + 10)
    flood = patched(flood, 62, "<H", 1)
    with pytest.raises(FatbinError, match="sections with device code"):
        look(flood)
    sections = patched(patched(many, 60, "<H", 0), table_of(many) + 32, "<Q", (1 << 21) + 1)
    with pytest.raises(FatbinError, match="ELF sections"):
        list(parts(_endless(sections), 1 << 40))


def _endless(data: bytes) -> Callable[[int, int], bytes]:
    """A file whose end was never written: zeros up to any size."""
    return lambda offset, size: data[offset : offset + size].ljust(size, b"\0")


@settings(max_examples=400)
@given(
    st.sampled_from([WHOLE, cubin(0x7902, compat=b"\x02\x09\x01\0")]),
    st.lists(st.tuples(st.integers(0), st.integers(1, 255)), max_size=6),
    st.integers(0, 2000),
)
def test_flipped_and_cut_bytes_are_survived(whole: bytes, flips: list[tuple[int, int]], end: int) -> None:
    data = bytearray(whole)
    for place, change in flips:
        data[place % len(data)] ^= change
    cut = bytes(data[:end])
    for part in look(cut):
        if isinstance(part, Region):
            assert 0 <= part.start < part.end <= len(cut)


@given(st.sampled_from([b"", b"\x7fELF\x02\x01\x01", b"!<arch>\n"]), st.binary(max_size=400))
def test_any_bytes_are_survived(head: bytes, tail: bytes) -> None:
    look(head + tail)
