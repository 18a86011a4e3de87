"""Device code in files that nvcc made (tests/data/fatbin) and in the vendor's wheels."""

from __future__ import annotations

import stat
import struct
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spark_build.errors import AuditError, HostError
from spark_build.wheels import fatbin
from spark_build.wheels.device_code import DeviceCodeDifference, cross_check, read_library
from spark_build.wheels.fatbin import FatbinError
from spark_build.wheels.model import Code
from spark_build.wheels.reader import read_facts
from tests.helpers.fatbins import Made, container, elf
from tests.helpers.publicwheels import public_cuobjdump, public_wheel
from tests.helpers.wheels import write_wheel

DATA = Path(__file__).parents[1] / "data/fatbin"
NONE = Code()
FILES = sorted(path.name for path in DATA.iterdir() if path.suffix in (".fatbin", ".o", ".cubin"))
# All that nvcc 13.0 offers (--list-gpu-code), and what only some of them have.
EVERY = (75, 80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121)
SPECIFIC, FAMILIES = EVERY[6:], EVERY[7:]
ALL = Code(
    containers=1,
    sass={f"sm_{arch}": 1 for arch in EVERY} | {f"sm_{arch}a": 1 for arch in SPECIFIC},
    ptx={f"compute_{arch}": 1 for arch in EVERY},
)
# What cuobjdump 13.1.80 lists of these files; LTO code it does not know, sm_120f it writes sm_120.
WANTED = {
    "zstd.fatbin": Code(
        containers=1,
        sass={"sm_120f": 1, "sm_121": 1, "sm_121a": 1, "sm_90a": 1},
        ptx={"compute_80": 1},
    ),
    "ptx-lz4.fatbin": Code(containers=1, ptx={"compute_120f": 1, "compute_121a": 1}),
    "plain.fatbin": Code(containers=1, sass={"sm_80": 1}, ptx={"compute_80": 1}),
    "every.o": ALL,
    "relocatable-every.o": ALL,
    "families.o": Code(
        containers=1,
        sass={f"sm_{arch}f": 1 for arch in FAMILIES},
        ptx={f"compute_{arch}f": 1 for arch in FAMILIES},
    ),
    "lto.fatbin": Code(containers=1, lto={"lto_121": 1, "lto_90a": 1}),
    "relocatable.o": Code(containers=1, sass={"sm_120f": 1, "sm_121": 1}, ptx={"compute_121": 1}),
    "loaded.o": Code(containers=1, sass={"sm_121a": 1}, ptx={"compute_80": 1}),
    "sm_121a.cubin": Code(sass={"sm_121a": 1}),
    "sm_120f.cubin": Code(sass={"sm_120f": 1}),
    "sm_90.cubin": Code(sass={"sm_90": 1}),
    "relocatable.cubin": Code(sass={"sm_121": 1}),
    "abi7-sm_90a.cubin": Code(sass={"sm_90a": 1}),
}


@pytest.mark.parametrize("name", FILES)
def test_what_nvcc_made(name: str) -> None:
    code = read_library(DATA / name)
    loaded, relocatable = (NONE, WANTED[name]) if "relocatable" in name else (WANTED[name], NONE)
    assert (code.loaded, code.relocatable, code.elsewhere, code.problems) == (loaded, relocatable, NONE, ())
    assert code.kind == {".o": "elf"}.get(Path(name).suffix, Path(name).suffix[1:])
    assert not code.empty


def test_a_wheel_is_looked_through(tmp_path: Path) -> None:
    library = elf(
        [
            (".nv_fatbin", container(Made(variant="a"), Made(kind=1, arch=80))),
            (".cask_resource", container(Made(arch=120), Made(kind=1, arch=75), Made(kind=16))),
        ]
    )
    files = {
        "demo/kernel.cubin": (DATA / "sm_121a.cubin").read_bytes(),
        "demo/lib.so": library,
        "demo/host.so": elf([(".text", b"nothing for a GPU")]),
        "demo/data.bin": b"data" + container(Made()),  # no file that anybody loads code from
        "demo/cut.so": library[:-1],
        "demo/bad.so": b"\x7fELF",
    }
    facts = read_facts(write_wheel(tmp_path, files))
    codes = facts.device_code
    found = {code.path: code for code in codes}
    assert [code.path for code in codes] == [
        "demo/bad.so",
        "demo/cut.so",
        "demo/kernel.cubin",
        "demo/lib.so",
    ]
    assert found["demo/bad.so"].problems == ("at byte 0: an ELF header that is cut",)
    libraries = {library.path: library for library in facts.libraries}
    assert (libraries["demo/lib.so"].sass, libraries["demo/lib.so"].ptx) == (
        {"sm_121a": 1},
        {"compute_80": 1},
    )
    shared = found["demo/lib.so"]
    assert (shared.sass, shared.ptx) == ({"sm_121a": 1}, {"compute_80": 1})
    assert (shared.elsewhere.sass, shared.elsewhere.ptx) == ({"sm_120": 1}, {"compute_75": 1})
    assert shared.elsewhere.other == {"kind16_121": 1}
    assert found["demo/cut.so"].problems == ("at byte 0: a table of 4 sections that is not in the file",)
    assert found["demo/cut.so"].elsewhere.sass == {"sm_120": 1, "sm_121a": 1}


def test_damage_is_told_where_it_is(tmp_path: Path) -> None:
    inside = bytearray(container(Made(), Made(arch=120)) + container(Made(arch=90)))
    inside[:4] = bytes(4)
    stray = bytes(8) + b"\x50\xed\x55\xba" + bytes(20)
    library = tmp_path / "lib.so"
    library.write_bytes(elf([(".nv_fatbin", bytes(inside)), ("__nv_relfatbin", stray), (".text", stray)]))
    code = read_library(library)
    assert code.sass == {"sm_90": 1}
    assert len(code.problems) == 1
    assert "no container behind the magic number" in code.problems[0]
    short = container(Made(payload=bytes(64)))
    library.write_bytes(elf([(".nv_fatbin", short[:-32]), ("__nv_relfatbin", b"x" * 64)]))
    assert "runs over the end of its section" in read_library(library).problems[0]
    twice = bytearray(elf([(".nv_fatbin", short), ("__nv_relfatbin", short)]))
    table = struct.unpack_from("<Q", twice, 40)[0]
    twice[table + 128 + 24 : table + 128 + 40] = twice[table + 64 + 24 : table + 64 + 40]
    library.write_bytes(twice)
    assert "overlaps another" in read_library(library).problems[0]


def test_many_problems_are_counted(tmp_path: Path) -> None:
    library = tmp_path / "lib.fatbin"
    library.write_bytes(container(Made(kind=0)) * 80)
    *said, last = read_library(library).problems
    assert (len(said), last) == (50, "and 30 more problems")


def test_an_absurd_file_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fatbin, "MAX_ITEMS", 1000)
    library = tmp_path / "flood.so"
    library.write_bytes(container() * 1001)
    with pytest.raises(FatbinError, match=r"flood\.so: more than"):
        read_library(library)


def test_no_wheel(tmp_path: Path) -> None:
    broken = tmp_path / "demo-1.0-py3-none-any.whl"
    broken.write_bytes(b"PK\x03\x04 not really")
    with pytest.raises(AuditError, match="no readable wheel"):
        read_facts(broken)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(FILES),
    st.lists(st.tuples(st.integers(0, 1 << 14), st.integers(1, 255)), max_size=20),
    st.integers(0, 1 << 14),
)
def test_flipped_bytes_in_real_files(
    tmp_path: Path, name: str, flips: list[tuple[int, int]], end: int
) -> None:
    data = bytearray((DATA / name).read_bytes())
    for place, change in flips:
        data[place % len(data)] ^= change
    changed = tmp_path / name
    changed.write_bytes(data[:end])
    code = read_library(changed)
    assert all(line.isprintable() for line in code.problems)


def saying(folder: Path, answers: Mapping[str, str], code: int = 0) -> Path:
    """A program in the place of cuobjdump that answers so to these options."""
    program = folder / "cuobjdump"
    cases = "\n".join(f"'{options}') echo '{text}' ;;" for options, text in answers.items())
    program.write_text(f'#!/bin/sh\nall="$*"\ncase "${{all% *}}" in\n{cases}\nesac\nexit {code}\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return program


FIRST, SECOND = "ELF file    1: lib.1.sm_120.cubin", "ELF file    2: lib.2.sm_120.cubin"


def test_differences_are_named(tmp_path: Path) -> None:
    answers = {
        "--list-elf": "ELF file    1: loaded.1.sm_121.cubin",
        "--list-ptx": "PTX file    1: a.sm_90.ptx\nPTX file    2: b.1.sm_80.ptx",
    }
    assert cross_check(DATA / "loaded.o", saying(tmp_path, answers)) == (
        DeviceCodeDifference(listing="--list-elf", target="sm_121", ours=0, theirs=1),
        DeviceCodeDifference(listing="--list-elf", target="sm_121a", ours=1, theirs=0),
        DeviceCodeDifference(listing="--list-ptx", target="sm_90", ours=0, theirs=1),
    )


@pytest.mark.parametrize(("listed", "differs"), [(f"{FIRST}\n{SECOND}", False), (FIRST, True)])
def test_what_is_loaded_and_everything_are_two_listings(
    tmp_path: Path, listed: str, *, differs: bool
) -> None:
    """By itself cuobjdump shows relocatable code only where there is no other, and no `f`."""
    library = tmp_path / "lib.so"
    family, relocatable = container(Made(arch=120, variant="f")), container(Made(arch=120))
    library.write_bytes(elf([(".nv_fatbin", family), ("__nv_relfatbin", relocatable)]))
    program = saying(tmp_path, {"--list-elf": FIRST, "--all-fatbin --list-elf": listed})
    wanted = DeviceCodeDifference(listing="--all-fatbin --list-elf", target="sm_120", ours=2, theirs=1)
    assert cross_check(library, program) == ((wanted,) if differs else ())


def test_relocatable_code_alone_is_listed(tmp_path: Path) -> None:
    library = tmp_path / "lib.o"
    library.write_bytes(elf([("__nv_relfatbin", container(Made(arch=120)))]))
    assert cross_check(library, saying(tmp_path, {"--list-elf": FIRST})) == ()


def test_a_cuobjdump_that_fails(tmp_path: Path) -> None:
    said = "cuobjdump info    : File x does not contain device code"
    nothing = saying(tmp_path, {"--list-elf": said, "--list-ptx": said}, 255)
    assert cross_check(DATA / "lto.fatbin", nothing) == ()
    with pytest.raises(HostError, match="cuobjdump fatal: no memory"):
        cross_check(DATA / "lto.fatbin", saying(tmp_path, {"--list-elf": "cuobjdump fatal: no memory"}, 255))


MEASURED = r"""
import re, sys
from pathlib import Path
from spark_build.wheels import device_code
code = device_code.read_library(Path(sys.argv[1]))
peak = re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())
print(code.sass, code.problems, peak[1])
"""


@pytest.mark.slow
def test_a_library_of_gigabytes_in_little_memory(tmp_path: Path) -> None:
    big, payload = tmp_path / "big.fatbin", 2**29
    with big.open("wb") as file:
        for arch in (90, 100, 120, 121):
            head = container(Made(arch=arch, payload=b""), size=64 + payload)
            file.write(head[:24] + struct.pack("<Q", payload) + head[32:])
            file.seek(payload, 1)
        file.truncate()
    assert big.stat().st_size > 2**31
    done = subprocess.run([sys.executable, "-c", MEASURED, big], capture_output=True, text=True, check=True)
    listed, kibibytes = done.stdout.rsplit(" ", 1)
    assert listed == "{'sm_100': 1, 'sm_120': 1, 'sm_121': 1, 'sm_90': 1} ()"
    assert int(kibibytes) < 60 << 10


@pytest.fixture(scope="module")
def cuobjdump() -> Path:
    """NVIDIA's own, which the package triton ships (290 MB)."""
    return public_cuobjdump()


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_cuobjdump_lists_the_same(name: str, cuobjdump: Path) -> None:
    assert cross_check(DATA / name, cuobjdump) == ()


@pytest.mark.slow
def test_cusparselt_as_cuobjdump_lists_it(cuobjdump: Path, tmp_path: Path) -> None:
    wheel = public_wheel("nvidia-cusparselt-cu13==0.8.0", "manylinux2014_aarch64")
    (code,) = read_facts(wheel).device_code
    assert code.path == "nvidia/cusparselt/lib/libcusparseLt.so.0"
    assert (code.loaded.containers, sum(code.sass.values()), sum(code.ptx.values())) == (760, 1649, 52)
    assert (code.elsewhere.containers, sum(code.elsewhere.sass.values())) == (234, 468)
    assert (code.sass["sm_121"], code.sass["sm_120"], code.sass["sm_120f"]) == (20, 88, 58)
    assert code.problems == ()
    with zipfile.ZipFile(wheel) as archived:
        library = Path(archived.extract(code.path, tmp_path))
    again = read_library(library)
    assert replace(again, path=code.path) == code
    assert cross_check(library, cuobjdump, code=again) == ()
