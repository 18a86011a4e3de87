"""[repair] rpath and requires: libraries are found in the folders of distributions that the wheel requires."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from spark_build.errors import AuditError
from spark_build.recipes.model import Build, External, Recipe, Repair, Required, Target
from spark_build.wheels.reader import read_facts
from spark_build.wheels.repair import Repaired, findings_of, repair
from spark_build.wheels.writer import _requiring
from tests.helpers.wheels import PURE, compiled, entries_of, write_wheel
from tests.wheels.test_repair_options import loader_path

MACHINE = os.uname().machine
TARGET = Target(name="here", summary="", platform=f"linux-{MACHINE}", python="cp311")
DEEP = External(distribution="nvidia-deep", folder="nvidia/deep/lib", libraries=("libdeep.so.*",))
REQUIRED = Required(requirement="nvidia-deep==1.0; platform_system == 'Linux'", why="loaded")
ASKED = Repair(
    bundle=True,
    clean_rpath=True,
    external=(DEEP,),
    rpath=("demo/lib/*.so*", "demo/_c.so"),
    requires=(REQUIRED,),
)
SOURCE = "int deep(void); int flat(void); int sum(void) { return deep() + flat(); }"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with two libraries: one of another distribution's, one to be bundled."""
    for name, value in (("deep", 40), ("flat", 2)):
        soname = f"lib{name}.so.1"
        compiled(
            tmp_path / "need", soname, f"int {name}(void) {{ return {value}; }}", f"-Wl,-soname,{soname}"
        )
        (tmp_path / "need" / f"lib{name}.so").symlink_to(soname)
    return tmp_path


def built(folder: Path, *flags: str, requires: Sequence[str] = ()) -> Path:
    """The wheel as its build leaves it: RPATHs with the folder that it was linked in."""
    need = folder / "need"
    link = ("-Wl,--no-as-needed", f"-Wl,-rpath,$ORIGIN:{need}", f"-L{need}", "-ldeep", "-lflat", *flags)
    inner = compiled(folder / "c", "libinner.so", SOURCE, *link).read_bytes()
    outer = compiled(folder / "c", "_c.so", SOURCE, *link).read_bytes()
    data = compiled(folder / "c", "plain.so", "int f(void) { return 1; }", f"-Wl,-rpath,{need}").read_bytes()
    files = {"demo/lib/libinner.so": inner, "demo/_c.so": outer, "demo/plain.so": data}
    return write_wheel(folder, {**PURE, **files}, tag=f"cp311-cp311-linux_{MACHINE}", requires=requires)


def repaired(folder: Path, asked: Repair, *flags: str, requires: Sequence[str] = ()) -> Repaired:
    wheel = built(folder, *flags, requires=requires)
    return repair(wheel, folder / "out", repair=asked, build_tag="1", epoch=1_750_000_000)


def said(wheel: Path, asked: Repair) -> list[str]:
    recipe = Recipe(name="demo", distribution="demo", summary="", kind="pep517", build=Build(), repair=asked)
    found = findings_of(read_facts(wheel), recipe, "1.0", TARGET)
    return [f"{one.rule}: {one.message}" for one in found if one.severity == "error"]


@pytest.mark.parametrize("tags", ["--enable-new-dtags", "--disable-new-dtags"])
def test_libraries_look_where_the_other_distribution_is(tags: str, folder: Path) -> None:
    done = repaired(folder, ASKED, f"-Wl,{tags}")
    files = dict(entries_of(done.path))
    inner = loader_path(files["demo/lib/libinner.so"])
    assert inner == {"DT_RPATH": "$ORIGIN/../../nvidia/deep/lib:$ORIGIN:$ORIGIN/../../demo.libs"}
    outer = loader_path(files["demo/_c.so"])
    assert outer == {"DT_RPATH": "$ORIGIN/../nvidia/deep/lib:$ORIGIN:$ORIGIN/../demo.libs"}
    assert loader_path(files["demo/plain.so"]) == {}
    assert done.changes["rpath"]["demo/lib/libinner.so"] == inner["DT_RPATH"]
    assert [name for name in files if "libdeep" in name] == []
    assert said(done.path, ASKED) == []


def test_the_repaired_wheel_loads_beside_the_other_distribution(folder: Path) -> None:
    done = repaired(folder, ASKED)
    site, place = folder / "site", folder / "site/nvidia/deep/lib"
    with zipfile.ZipFile(done.path) as archive:
        archive.extractall(site)
    place.mkdir(parents=True)
    load = [sys.executable, "-c", "import ctypes, sys; print(ctypes.CDLL(sys.argv[1]).sum())"]
    (folder / "need").rename(folder / "elsewhere")
    for path in ("demo/lib/libinner.so", "demo/_c.so"):
        alone = subprocess.run([*load, str(site / path)], capture_output=True, text=True, check=False)
        assert "libdeep.so.1: cannot open shared object file" in alone.stderr
    (folder / "elsewhere/libdeep.so.1").rename(place / "libdeep.so.1")
    for path in ("demo/lib/libinner.so", "demo/_c.so"):
        beside = subprocess.run([*load, str(site / path)], capture_output=True, text=True, check=True)
        assert beside.stdout == "42\n"


def test_metadata_requires_what_the_recipe_says(folder: Path) -> None:
    own = ["nvidia_deep<1", "other>=2", "nvidia-deep==9; extra == 'old'"]
    done = repaired(folder, ASKED, requires=own)
    facts = read_facts(done.path)
    assert facts.requires == ("other>=2", "nvidia-deep==9; extra == 'old'", REQUIRED.requirement)
    assert facts.record_problems == ()
    assert done.changes["requires"] == [REQUIRED.requirement]


def test_the_description_of_a_wheel_is_none_of_its_requirements() -> None:
    head = "Metadata-Version: 2.1\nName: demo\nVersion: 1.0\nSummary: in two\n  lines\n"
    body = "\nRequires-Dist: nvidia-deep<1\n\nRequires-Dist: of the text\n"
    wanted = [REQUIRED.requirement]
    added = head + f"Requires-Dist: {REQUIRED.requirement}\n"
    assert _requiring((head + body).encode(), wanted).decode() == added + body
    assert _requiring(head.encode(), wanted).decode() == added
    assert _requiring(added.encode(), wanted).decode() == added
    assert _requiring((head + body).encode(), []).decode() == head + body


@pytest.mark.parametrize("newline", [b"\r\n", b"\r", b"\n"])
def test_metadata_of_other_systems_is_read_as_installers_do(newline: bytes) -> None:
    """Ends of lines of Windows and of old Macs, and bytes that are no UTF-8."""
    head = b"Name: demo\nAuthor: Ren\xe9\nRequires-Dist: nvidia-deep<1\nVersion: 1.0"
    body = b"\n\nRequires-Dist: nvidia-deep<1\n\nof the t\xeaxt\n"
    done = _requiring((head + body).replace(b"\n", newline), [REQUIRED.requirement])
    added = f"Requires-Dist: {REQUIRED.requirement}".encode()
    assert done.partition(b"\n\n")[0] == b"Name: demo\nAuthor: Ren\xe9\nVersion: 1.0\n" + added
    assert done.endswith(body[2:].replace(b"\n", newline))


def test_a_version_that_the_train_does_not_have_is_no_requirement(folder: Path) -> None:
    asked = Repair(requires=(Required(requirement="nvidia-deep=={version:deep}", why="loaded"),))
    with pytest.raises(AuditError, match=r"'nvidia-deep=={version:deep}' is no requirement"):
        repaired(folder, asked)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (
            Repair(bundle=True, clean_rpath=True, external=(DEEP,), rpath=ASKED.rpath),
            "does not require nvidia-deep",
        ),
        (
            Repair(bundle=True, clean_rpath=True, external=(DEEP,), requires=(REQUIRED,)),
            "no RPATH of demo/_c.so, demo/lib/libinner.so leads to nvidia/deep/lib",
        ),
        (
            Repair(
                bundle=True, clean_rpath=True, external=(DEEP,), rpath=("demo/_c.so",), requires=(REQUIRED,)
            ),
            "no RPATH of demo/lib/libinner.so leads to nvidia/deep/lib, where libdeep.so.1 will be",
        ),
    ],
)
def test_a_fault_is_found_by_the_audit(asked: Repair, words: str, folder: Path) -> None:
    (found,) = said(repaired(folder, asked).path, asked)
    assert found.startswith("external: ")
    assert words in found
