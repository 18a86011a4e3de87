"""What a recipe can ask of repair besides bundling: strip, clean_rpath, platform. Each only where asked."""

from __future__ import annotations

import ctypes
import io
import json
import os
import struct
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from elftools.elf.elffile import ELFFile

from spark_build import venv
from spark_build.errors import AuditError, HostError
from spark_build.recipes.model import Repair
from spark_build.wheels.audit import audit
from spark_build.wheels.device_code import read_library
from spark_build.wheels.reader import read_facts
from spark_build.wheels.repair import (
    ElfTools,
    Repaired,
    clean_rpath,
    repair,
    strip,
    symbol_policies,
    system_libraries,
)
from spark_build.wheels.rules import AuditExpectation
from tests.conftest import PROJECT, RECIPE, Root, make_root
from tests.helpers.commands import hint_text
from tests.helpers.devicewheels import DATA
from tests.helpers.wheels import PURE, compiled, entries_of, write_wheel, write_zip

MACHINE = os.uname().machine
TAG = f"py3-none-linux_{MACHINE}"
FOREIGN = "/home/somebody/python/lib"
# As nvcc and nvlink leave it: device code in two sections of a host library.
SOURCE = f"""
__asm__(".section .nv_fatbin,\\"a\\"\\n.balign 8\\n.incbin \\"{DATA}/zstd.fatbin\\"\\n"
        ".section __nv_relfatbin,\\"a\\"\\n.balign 8\\n.incbin \\"{DATA}/plain.fatbin\\"\\n.text\\n");
#include <math.h>
static double hidden(double x) {{ return pow(2, x - 1); }}
double half(double x) {{ return hidden(x); }}
"""
SECTIONS = (".nv_fatbin", "__nv_relfatbin")


def linked(folder: Path, *flags: str, name: str = "lib.so") -> bytes:
    """A library with symbols, debug sections and device code."""
    flags = ("-g", "-Wl,--no-as-needed", "-lm", *flags)
    return compiled(folder / "c", name, SOURCE, *flags).read_bytes()


def repaired(wheel: Path, out: Path, asked: Repair, **options: Any) -> Repaired:
    return repair(wheel, out, repair=asked, build_tag="1", epoch=1_750_000_000, **options)


def inside(wheel: Path, name: str = "demo/lib.so") -> bytes:
    return dict(entries_of(wheel))[name]


def sections(data: bytes) -> dict[str, bytes]:
    return {one.name: one.data() for one in ELFFile(io.BytesIO(data)).iter_sections()}


def loader_path(data: bytes) -> dict[str, str]:
    """RPATH and RUNPATH as pyelftools reads them."""
    elf: Any = ELFFile(io.BytesIO(data))
    tags = [tag for table in elf.iter_segments("PT_DYNAMIC") for tag in table.iter_tags()]
    return {
        tag.entry.d_tag: getattr(tag, tag.entry.d_tag[3:].lower())
        for tag in tags
        if tag.entry.d_tag in ("DT_RPATH", "DT_RUNPATH")
    }


def works(data: bytes, folder: Path) -> bool:
    """Whether the loader takes the library and finds its function."""
    file = folder / "loaded.so"
    file.write_bytes(data)
    half = ctypes.CDLL(str(file)).half
    half.restype, half.argtypes = ctypes.c_double, [ctypes.c_double]
    return bool(half(0.0) == 0.5)


# --- strip --------------------------------------------------------------------------------------------


def test_strip_takes_symbols_and_leaves_device_code(tmp_path: Path) -> None:
    data = linked(tmp_path)
    before = sections(data)
    assert {".symtab", ".debug_info", *SECTIONS} <= before.keys()
    done = repaired(
        write_wheel(tmp_path, {**PURE, "demo/lib.so": data}, tag=TAG), tmp_path / "out", Repair(strip=True)
    )
    lean = inside(done.path)
    after = sections(lean)
    assert not [name for name in after if name == ".symtab" or name.startswith(".debug")]
    assert all(after[name] == before[name] for name in SECTIONS)
    (tmp_path / "fat.so").write_bytes(data)
    (tmp_path / "lean.so").write_bytes(lean)
    fat_code, lean_code = (read_library(tmp_path / f"{name}.so") for name in ("fat", "lean"))
    assert fat_code.loaded.sass == {"sm_120f": 1, "sm_121": 1, "sm_121a": 1, "sm_90a": 1}
    assert fat_code.relocatable.ptx == {"compute_80": 1}
    assert (lean_code.loaded, lean_code.relocatable) == (fat_code.loaded, fat_code.relocatable)
    assert works(lean, tmp_path)
    assert done.changes == {"stripped": {"demo/lib.so": {"before": len(data), "after": len(lean)}}}
    facts = read_facts(done.path)
    assert facts.record_problems == ()
    assert facts.device_code[0].loaded == fat_code.loaded


def test_strip_leaves_what_a_linker_or_another_machine_needs(tmp_path: Path) -> None:
    data = linked(tmp_path)
    foreign = bytearray(data)
    foreign[18:20] = (0x14).to_bytes(2, "little")  # e_machine: PowerPC
    subprocess.run(["gcc", "-g", "-c", "-o", tmp_path / "x.o", tmp_path / "c/lib.so.c"], check=True)
    files = {
        "demo/foreign.so": bytes(foreign),
        "demo/x.o": (tmp_path / "x.o").read_bytes(),
        "demo/kernel.cubin": (DATA / "sm_90.cubin").read_bytes(),
        "demo/text.so": b"INPUT(-lm)\n",
    }
    wheel = write_wheel(tmp_path, {**PURE, **files}, tag=TAG)
    done = repaired(wheel, tmp_path / "out", Repair(strip=True))
    assert {name: inside(done.path, name) for name in files} == files
    assert done.changes == {}


def test_a_strip_that_touches_device_code_is_refused(tmp_path: Path) -> None:
    fake = tmp_path / "bin/strip"
    fake.parent.mkdir()
    fake.write_text('#!/bin/sh\n/usr/bin/env PATH=/usr/bin:/bin objcopy --remove-section=.nv_fatbin "$2"\n')
    fake.chmod(0o755)
    file = tmp_path / "lib.so"
    file.write_bytes(linked(tmp_path))
    with pytest.raises(AuditError, match=r"strip would change more of demo/lib\.so than it should"):
        strip(file, "demo/lib.so", ElfTools(env={"PATH": str(fake.parent)}))


def test_no_strip_or_a_failing_one(tmp_path: Path) -> None:
    file = tmp_path / "lib.so"
    file.write_bytes(linked(tmp_path))
    with pytest.raises(HostError, match="strip"):
        strip(file, "demo/lib.so", ElfTools(env={"PATH": str(tmp_path)}))
    fake = tmp_path / "strip"
    fake.write_text("#!/bin/sh\necho no room >&2\nexit 3\n")
    fake.chmod(0o755)
    with pytest.raises(AuditError, match=r"strip fails on demo/lib\.so: no room"):
        strip(file, "demo/lib.so", ElfTools(env={"PATH": str(tmp_path)}))


# --- RPATH --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tags", ["--enable-new-dtags", "--disable-new-dtags"])
@pytest.mark.parametrize(
    ("written", "kept", "gone"),
    [
        (f"{FOREIGN}:$ORIGIN/../lib:/usr/local/cuda/lib64:", "$ORIGIN/../lib", 3),
        ("${ORIGIN}:$ORIGIN/x", "${ORIGIN}:$ORIGIN/x", 0),
        (FOREIGN, None, 1),
        ("relative:$ORIGINAL", None, 2),
    ],
)
def test_only_origin_stays_in_an_rpath(
    tags: str, written: str, kept: str | None, gone: int, tmp_path: Path
) -> None:
    kind = "DT_RUNPATH" if "enable" in tags else "DT_RPATH"
    data = linked(tmp_path, f"-Wl,{tags},-rpath,{written}")
    assert loader_path(data) == {kind: written}
    wheel = write_wheel(tmp_path, {**PURE, "demo/lib.so": data}, tag=TAG)
    done = repaired(wheel, tmp_path / "out", Repair(clean_rpath=True))
    clean = inside(done.path)
    assert loader_path(clean) == ({kind: kept} if kept else {})
    assert works(clean, tmp_path)
    assert [sections(clean)[name] for name in SECTIONS] == [sections(data)[name] for name in SECTIONS]
    assert done.changes == ({"rpath_entries_removed": {"demo/lib.so": gone}} if gone else {})
    assert FOREIGN not in json.dumps(done.changes)
    assert (clean == data) is not bool(gone)


def test_bundling_finds_libraries_by_the_rpath_that_then_goes(tmp_path: Path) -> None:
    compiled(tmp_path, "libdeep.so.1", "int deep(void) { return 7; }", "-Wl,-soname,libdeep.so.1")
    (tmp_path / "libdeep.so").symlink_to("libdeep.so.1")
    here = f"-Wl,--no-as-needed,-rpath,{tmp_path}"
    source = "int deep(void); double half(double x) { return deep() == 7 ? 0.5 : x; }"
    data = compiled(tmp_path / "c", "lib.so", source, f"-L{tmp_path}", "-ldeep", here).read_bytes()
    unused = linked(tmp_path / "unused", here)  # auditwheel has nothing to bundle for this one
    files = {**PURE, "demo/lib.so": data, "demo/unused.so": unused}
    wheel = write_wheel(tmp_path, files, tag=TAG)
    done = repaired(wheel, tmp_path / "out", Repair(bundle=True, clean_rpath=True, strip=True))
    (deep,) = done.changes["bundled"]
    assert deep.startswith("demo.libs/libdeep-")
    assert "demo/unused.so" in done.changes["rpath_entries_removed"]
    for name in ("demo/lib.so", "demo/unused.so", deep):
        assert str(tmp_path) not in "".join(loader_path(inside(done.path, name)).values())
    installed = tmp_path / "installed"
    with zipfile.ZipFile(done.path) as archive:
        archive.extractall(installed)
    (tmp_path / "libdeep.so.1").unlink()
    assert works((installed / "demo/unused.so").read_bytes(), tmp_path)
    code = "import ctypes, sys; h = ctypes.CDLL(sys.argv[1]).half; h.restype = ctypes.c_double; print(h())"
    command = [sys.executable, "-c", code, str(installed / "demo/lib.so")]
    assert subprocess.check_output(command, text=True) == "0.5\n"


# --- platform -----------------------------------------------------------------------------------------


def rules(wheel: Path) -> list[str]:
    platform = f"linux-{MACHINE}"
    found = audit(
        read_facts(wheel),
        AuditExpectation(
            distribution="demo",
            version="1.0",
            platform=platform,
            python="cp311",
            provided=(),
            system_libraries=system_libraries(platform),
            policies=symbol_policies(platform),
        ),
    )
    return [one.rule for one in found if one.rule != "build-paths"]


def test_a_platform_is_written_as_asked_and_judged(tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path, {**PURE, "demo/lib.so": linked(tmp_path)}, tag=TAG)
    new, old = (
        repaired(wheel, tmp_path / name, Repair(platform=name))
        for name in ("manylinux_2_39", "manylinux_2_17")
    )
    assert new.path.name == f"demo-1.0-1-py3-none-manylinux_2_39_{MACHINE}.whl"
    assert read_facts(new.path).wheel_tags == (f"py3-none-manylinux_2_39_{MACHINE}",)
    assert new.changes == {"tag": {"before": TAG, "after": f"py3-none-manylinux_2_39_{MACHINE}"}}
    assert rules(new.path) == []
    assert "manylinux" in rules(wheel)
    assert rules(old.path) == ["symbol-versions"]  # pow: GLIBC_2.29


def test_a_platform_while_bundling_is_auditwheels_business(tmp_path: Path) -> None:
    source = "int main(void) { return 0; }"
    needs_new = compiled(tmp_path / "c", "prog", source, program=True).read_bytes()  # __libc_start_main: 2.34
    wheel = write_wheel(tmp_path, {**PURE, "demo/prog": needs_new}, tag=TAG)
    done = repaired(wheel, tmp_path / "out", Repair(bundle=True, platform="manylinux_2_39"))
    assert done.path.name == f"demo-1.0-1-py3-none-manylinux_2_39_{MACHINE}.whl"
    with pytest.raises(AuditError, match="too-recent versioned symbols") as caught:
        repaired(wheel, tmp_path / "out", Repair(bundle=True, platform="manylinux_2_17"))
    assert "repair.platform" in hint_text(caught.value.hint)


@pytest.mark.parametrize("bundle", [False, True])
def test_a_platform_that_nobody_can_judge(bundle: bool, tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path, {**PURE, "demo/lib.so": linked(tmp_path)}, tag=TAG)
    with pytest.raises(AuditError, match="manylinux_2_999"):
        repaired(wheel, tmp_path / "out", Repair(platform="manylinux_2_999", bundle=bundle))
    assert list((tmp_path / "out").iterdir()) == []


def test_what_runs_anywhere_keeps_its_tag(tmp_path: Path) -> None:
    asked = Repair(bundle=True, platform="manylinux_2_34", strip=True, clean_rpath=True)
    done = repaired(write_wheel(tmp_path), tmp_path / "out", asked)
    assert (done.path.name, done.changes) == ("demo-1.0-1-py3-none-any.whl", {})


# --- all of it ----------------------------------------------------------------------------------------


def test_the_same_input_gives_the_same_bytes_elsewhere(tmp_path: Path) -> None:
    compiled(tmp_path, "libdeep.so.1", "int deep(void) { return 7; }", "-Wl,-soname,libdeep.so.1")
    (tmp_path / "libdeep.so").symlink_to("libdeep.so.1")
    rpath = f"-Wl,-rpath,{FOREIGN}:$ORIGIN"
    deep, flat = linked(tmp_path, f"-L{tmp_path}", "-ldeep", rpath), linked(tmp_path / "flat", rpath)
    one = write_wheel(tmp_path / "one", {**PURE, "demo/lib.so": deep, "demo/flat.so": flat}, tag=TAG)
    (tmp_path / "another place").mkdir()
    two = write_zip(
        tmp_path / "another place" / one.name, entries_of(one)[::-1], moment=(2024, 2, 29, 1, 2, 4)
    )
    asked = Repair(bundle=True, platform="manylinux_2_39", strip=True, clean_rpath=True)
    path = {"LD_LIBRARY_PATH": str(tmp_path)}
    first, second = (
        repaired(wheel, wheel.parent / "out", asked, env=venv.clean_environment({**path, **hostile}))
        for wheel, hostile in [
            (one, {"PYTHONHASHSEED": "1"}),
            (two, {"PYTHONHASHSEED": "2", "TZ": "Asia/Tokyo", "LC_ALL": "tr_TR.UTF-8", "PATCHELF": "x"}),
        ]
    )
    assert first.path.name == second.path.name
    assert first.path.read_bytes() == second.path.read_bytes()
    assert first.changes == second.changes
    assert first.changes.keys() == {"stripped", "bundled", "rpath_entries_removed", "tag"}


def test_nothing_happens_unasked(tmp_path: Path) -> None:
    data = linked(tmp_path, f"-Wl,-rpath,{FOREIGN}")
    done = repaired(write_wheel(tmp_path, {"demo/lib.so": data}, tag=TAG), tmp_path / "out", Repair())
    assert (inside(done.path), done.changes) == (data, {})


ASKED = "\n[repair]\nstrip = true\nclean_rpath = true\nplatform = 'manylinux_2_39'\n"


@pytest.fixture(scope="module")
def lean(tmp_path_factory: pytest.TempPathFactory) -> Root:
    """A root whose recipe asks for everything."""
    extension = f'extra_compile_args=["-g"], extra_link_args=["-Wl,-rpath,{FOREIGN}"])'
    setup = PROJECT["setup.py"].replace('["native.c"])', f'["native.c"], {extension}')
    assert extension in setup
    root = make_root(tmp_path_factory.mktemp("lean"), {**PROJECT, "setup.py": setup})
    root.recipe(RECIPE.format(disk=50) + ASKED)
    done = root.run("build", "--no-closure", "tiny")
    assert done.returncode == 0, done.stderr
    return root


def test_what_a_repair_did_is_in_the_papers(lean: Root) -> None:
    (wheel,) = lean.folder.glob("wheelhouse/store/??/*/tiny-*.whl")
    provenance = json.loads((wheel.parent / "provenance.json").read_text())
    internal = provenance["predicate"]["buildDefinition"]["internalParameters"]
    asked = {"strip": True, "clean_rpath": True, "platform": "manylinux_2_39"}
    assert internal["repair"] == {"bundle": False, "exclude": [], **asked}
    assert internal["toolchain"]["strip"].startswith("GNU strip")
    (library,) = [one for one, _ in entries_of(wheel) if one.endswith(".so")]
    did = internal["repaired"]
    assert (
        did["stripped"][library]["after"] == len(inside(wheel, library)) < did["stripped"][library]["before"]
    )
    assert did["rpath_entries_removed"][library] >= 1
    assert did["tag"]["after"].endswith(f"-manylinux_2_39_{MACHINE}")
    assert did["tag"]["after"] in wheel.name
    facts = json.loads((wheel.parent / "audit.json").read_text())
    assert [one["rule"] for one in facts["findings"] if one["rule"] in ("rpath", "manylinux")] == []
    assert ".debug_info" not in sections(inside(wheel, library))


def test_a_repaired_wheel_is_reproducible(lean: Root) -> None:
    done = lean.json("build", "--no-closure", "tiny", "--check-reproducible")
    assert done["repetitions"][0]["identical"]


def test_an_rpath_is_not_cleaned_where_section_headers_are_damaged(tmp_path: Path) -> None:
    """The loader takes such a library; patchelf and pyelftools do not."""
    library = compiled(tmp_path, "lib.so", "int f(void) { return 0; }", "-Wl,-rpath,/opt/x")
    data = bytearray(library.read_bytes())
    struct.pack_into("<H", data, 62, struct.unpack_from("<H", data, 60)[0] + 500)  # e_shstrndx
    library.write_bytes(data)
    with pytest.raises(AuditError, match=r"demo/lib\.so: patchelf needs sound section headers: "):
        clean_rpath(library, "demo/lib.so", ElfTools(env=dict(os.environ)))
