"""Wheels that somebody else built: a folder or a tar of them, audited, marked, published."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spark_build.errors import AuditError, SparkBuildError, StoreError
from spark_build.paths import Home, locate
from spark_build.recipes.loader import load
from spark_build.transfer.bundle import pack
from spark_build.transfer.bundle_import import Allowed, ImportResult, import_bundle
from spark_build.transfer.bundle_write import write_archive
from spark_build.wheelhouse import store as stores
from spark_build.wheels.audit import as_installer, findings_alone, fits
from spark_build.wheels.model import HostCode, Library, Payload
from tests.conftest import make_root
from tests.helpers.commands import hint_text
from tests.helpers.devicefacts import code
from tests.helpers.devicefacts import wheel as a_wheel
from tests.helpers.exports import import_unsigned, told_apart
from tests.helpers.wheelhouse import (
    VIEW,
    home_in,
    make_wheel,
    publish,
    put_built,
    put_public,
    snapshot,
    verify_wheel,
)

TARGET = load(locate(None).data).target("gb10")
AARCH64 = "cp312-cp312-manylinux_2_34_aarch64"
ABI3 = ("cp38-abi3-manylinux_2_34_aarch64",)
LIBRARY = Library(path="demo/_c.so", machine="aarch64", needed=())
SOUND = replace(
    a_wheel(), filename=f"demo-1.0-{ABI3[0]}.whl", filename_tags=ABI3, wheel_tags=ABI3, libraries=(LIBRARY,)
)


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    folder = tmp_path / "wheels"
    make_wheel(folder, "torchy", "2.9.0", requires=["helper"])
    make_wheel(folder / "more", "helper", "1.5")
    (folder / "README.txt").write_text("prebuilt release wheels\n")
    return folder


def taken(home: Home, path: Path, *, strict: bool = False) -> ImportResult:
    return import_bundle(home, path, lambda: ("gb10-2.13-cp312", TARGET), allowed=Allowed(strict=strict))


def packed(folder: Path, kind: str) -> Path:
    """The folder as people pack it: with its folders in it, and names that begin with ./"""
    file = folder.with_name(f"release.{kind}")
    flags = {"tar": "-cf", "tar.gz": "-czf", "tar.xz": "-cJf", "tar.bz2": "-cjf", "tar.zst": "--zstd -cf"}[
        kind
    ]
    subprocess.run(["tar", *flags.split(), str(file), "-C", str(folder), "."], check=True, timeout=60)
    return file


@pytest.mark.parametrize("kind", ["folder", "tar", "tar.gz", "tar.xz", "tar.bz2", "tar.zst"])
def test_a_folder_or_a_tar_of_wheels(wheels: Path, tmp_path: Path, kind: str) -> None:
    home = home_in(tmp_path)
    own = publish(home, [put_built(home.store, make_wheel(tmp_path / "d", "own"))], view="gb10-2.13-cp312")
    result = taken(home, wheels if kind == "folder" else packed(wheels, kind))
    assert result.new
    assert [(wheel.name, wheel.origin) for wheel in result.generation.wheels] == [
        *(("helper", "foreign"), ("own", "built"), ("torchy", "foreign")),
    ]
    assert [one.taken for one in result.judgements] == [True, True]
    for wheel in result.generation.wheels:
        entry = stores.read(home.store, wheel.key)
        assert entry is not None
        verify_wheel(entry)
    assert own.number == 1
    assert not taken(home, wheels).new


def test_whose_place_they_took_is_told(wheels: Path, tmp_path: Path) -> None:
    """Nobody loses a build of days to an import without a word."""
    home = home_in(tmp_path)
    mine = put_built(home.store, make_wheel(tmp_path / "d", "torchy", "2.9.0"))
    helper = put_public(home.store, make_wheel(tmp_path / "d", "helper", "1.4"))
    publish(home, [mine, helper], view="gb10-2.13-cp312")
    assert taken(home, wheels).replaced == (mine,)  # public ones come and go
    assert taken(home, wheels).replaced == ()


def test_they_can_be_sent_on(wheels: Path, tmp_path: Path) -> None:
    home, there = home_in(tmp_path / "here"), home_in(tmp_path / "there")
    generation = taken(home, wheels).generation
    write_archive(pack(generation, home.store), tmp_path / "again.tar")
    arrived = import_unsigned(there, tmp_path / "again.tar").generation
    assert told_apart(arrived.wheels) == told_apart(generation.wheels)
    assert {wheel.shown_origin for wheel in arrived.wheels} == {"third-party, imported (unsigned)"}


def test_they_are_shown_and_stay_when_something_is_built(tmp_path: Path) -> None:
    root = make_root(tmp_path)
    make_wheel(tmp_path / "wheels", "torchy", "2.9.0")
    imported = root.json("wheelhouse", "import", str(tmp_path / "wheels"))
    assert [row["origin"] for row in imported["wheels"]] == ["foreign"]
    assert [(row["filename"], row["taken"]) for row in imported["foreign"]] == [
        ("torchy-2.9.0-py3-none-any.whl", True),
    ]
    assert " third-party " in root.run("wheelhouse", "list").stdout
    done = root.run("build", "tiny")
    assert done.returncode == 0, done.stderr
    rows = root.json("wheelhouse", "list")["wheels"]
    assert {row["name"]: row["origin"] for row in rows} == {"tiny": "built", "torchy": "foreign"}
    make_wheel(tmp_path / "other", "tiny", "99.0")
    said = root.run("wheelhouse", "import", str(tmp_path / "other")).stdout
    assert ", built here\nback: spark-build " in said
    back = shlex.split(said.rpartition("back: spark-build ")[2])
    assert root.run(*back).returncode == 0
    assert root.json("wheelhouse", "list")["wheels"] == rows


def refused(home: Home, path: Path, kind: type[SparkBuildError], *, strict: bool = False) -> SparkBuildError:
    before = snapshot(home.wheelhouse)
    with pytest.raises(kind) as caught:
        taken(home, path, strict=strict)
    assert snapshot(home.wheelhouse) == before
    assert caught.value.message.startswith(f"{path} is refused: ")
    assert caught.value.hint
    return caught.value


def test_all_that_are_unsound_are_named_and_the_others_taken(wheels: Path, tmp_path: Path) -> None:
    home = home_in(tmp_path)
    home.store.mkdir(parents=True)
    for name in ("bada", "badb"):
        wheel = make_wheel(wheels, name)
        data = wheel.read_bytes()
        wheel.write_bytes(data[: len(data) // 2])
    make_wheel(wheels, "liar", files={"liar/__init__.py": b""}).rename(wheels / "other-1.0-py3-none-any.whl")
    (wheels / "none.whl").write_bytes(b"")
    error = refused(home, wheels, AuditError, strict=True)
    result = taken(home, wheels)
    assert [wheel.name for wheel in result.generation.wheels] == ["helper", "torchy"]
    said = {one.filename: one.refused for one in result.judgements if not one.taken}
    assert list(said) == [
        *("none.whl", "bada-1.0-py3-none-any.whl", "badb-1.0-py3-none-any.whl", "other-1.0-py3-none-any.whl"),
    ]
    assert "METADATA says liar 1.0" in said["other-1.0-py3-none-any.whl"][0]
    assert all(name in error.message and why and why[0] in error.message for name, why in said.items())
    for path in wheels.rglob("*.whl"):
        if path.name not in said:
            path.unlink()
    assert "bada" in refused(home, wheels, AuditError).message


def test_of_many_that_are_unsound_a_few_are_named(wheels: Path, tmp_path: Path) -> None:
    home = home_in(tmp_path)
    home.store.mkdir(parents=True)
    for number in range(30):
        (wheels / f"bad{number:02}-1.0-py3-none-any.whl").write_bytes(b"PK")
    error = refused(home, wheels, AuditError, strict=True)
    assert error.message.count("bad0") == 5
    assert error.message.endswith("; and 25 more wheels")
    assert "without --strict" in hint_text(error.hint)
    (said,) = {one.refused for one in taken(home, wheels).judgements if one.refused}
    assert said[0].startswith("no readable wheel: ")  # the name stands before it already


def test_the_command_takes_the_sound_ones_and_says_no(wheels: Path, tmp_path: Path) -> None:
    root = make_root(tmp_path)
    (wheels / "whole-1.0-py3-none-any.whl").write_bytes(b"PK")
    done = root.run("wheelhouse", "import", "--strict", str(wheels))
    assert (done.returncode, done.stdout) == (8, "")
    done = root.run("wheelhouse", "import", str(wheels))
    assert done.returncode == 8
    assert "torchy" in done.stdout
    assert "error: refused: whole-1.0-py3-none-any.whl: " in done.stderr
    done = root.run("wheelhouse", "import", "--json", str(wheels))
    assert done.returncode == 8
    rows = {row["filename"]: row["refused"] for row in json.loads(done.stdout)["foreign"]}
    assert [len(rows[name]) for name in sorted(rows)] == [0, 0, 1]


@pytest.mark.parametrize(
    ("rule", "change"),
    [
        ("purelib", {"libraries": (LIBRARY,), "root_is_purelib": True}),
        ("tags", {"libraries": (LIBRARY,), "filename_tags": ("py3-none-any",)}),
        ("tags", {"wheel_tags": ("py3-none-manylinux2014_sbsa",)}),
        ("elf-machine", {"libraries": (replace(LIBRARY, machine="x86_64"),)}),
        ("rpath", {"libraries": (replace(LIBRARY, host=HostCode(rpaths=("",))),)}),
        ("names", {"payload": Payload(collisions=(("demo/a.py", "demo/A.py"),))}),
        ("stable-abi", {"libraries": (replace(LIBRARY, host=HostCode(python_symbols=("_PyNo",))),)}),
    ],
)
def test_what_installers_do_not_look_at_is_a_warning(rule: str, change: dict[str, Any]) -> None:
    facts = replace(SOUND, **change)
    alone = findings_alone(facts, system_libraries=lambda _: frozenset(), policies=lambda _: {})
    assert {one.rule for one in alone if one.severity == "error"} == {rule}
    assert {one.rule: one.severity for one in as_installer(alone)}[rule] == "warning"


@pytest.mark.parametrize(
    ("rule", "change"),
    [
        ("record", {"record_problems": ("demo/a.py: content is not what RECORD says",)}),
        ("elf-damage", {"libraries": (replace(LIBRARY, machine="unreadable"),)}),
        ("device-damage", {"device_code": (code("demo/_c.so", {"sm_121": 1}, problems=("at byte 3: a",)),)}),
        ("places", {"payload": Payload(collisions=(("demo", "demo/"),))}),
        ("entries", {"payload": Payload(special=(("demo/a", "a symbolic link"),))}),
        ("environment", {"payload": Payload(intrusive=(("demo", "would replace bin/python"),))}),
        ("requirements", {"requires": ("no requirement at all",)}),
        ("dist-info", {"payload": Payload(dist_info="other-1.0.dist-info")}),
        ("site-packages", {"payload": Payload(schemes=("demo-1.0.data/nowhere/a",))}),
    ],
)
def test_what_they_refuse_and_what_harms_stays_an_error(rule: str, change: dict[str, Any]) -> None:
    facts = replace(SOUND, **change)
    alone = findings_alone(facts, system_libraries=lambda _: frozenset(), policies=lambda _: {})
    assert {one.rule for one in as_installer(alone) if one.severity == "error"} == {rule}


@pytest.mark.parametrize("name", ["torchy.pth", "torchy-2.9.0.data/data/lib/python3/site-packages/x.pth"])
def test_what_runs_at_every_start_is_named(tmp_path: Path, name: str) -> None:
    make_wheel(tmp_path / "in", "torchy", "2.9.0", files={name: b"import os"})
    (one,) = taken(home_in(tmp_path), tmp_path / "in").judgements
    said = [(finding.severity, finding.message) for finding in one.findings if finding.rule == "startup-code"]
    assert said == [("warning", f"{name} runs code at every start of Python: leave it out")]


@pytest.mark.parametrize("name", ["scripts/activate", "data/pyvenv.cfg", "scripts/python3"])
def test_what_would_harm_an_environment_is_refused(tmp_path: Path, name: str) -> None:
    home = home_in(tmp_path)
    wheel = make_wheel(tmp_path / "in", "torchy", "2.9.0", files={f"torchy-2.9.0.data/{name}": b"evil"})
    with pytest.raises(AuditError, match="would replace"):
        taken(home, tmp_path / "in")
    other = home_in(tmp_path / "other")
    export = tmp_path / "export.tar"
    write_archive(pack(publish(other, [put_built(other.store, wheel)]), other.store), export)
    with pytest.raises(AuditError, match=r"is not taken in: .* would replace"):
        import_unsigned(home, export)
    assert [path.name for path in home.store.iterdir()] in ([], ["lock"])


def test_a_name_too_long_for_an_index_is_refused(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "in", "torchy", "2.9.0", tag=f"{'.'.join(['py3'] * 52)}-none-any")
    assert len(wheel.name) > 230
    with pytest.raises(AuditError, match="longer than 230 bytes"):
        taken(home_in(tmp_path), tmp_path / "in")


def test_a_name_of_too_many_tags_is_told_with_the_others(wheels: Path, tmp_path: Path) -> None:
    home = home_in(tmp_path)
    home.store.mkdir(parents=True)
    tags = "-".join(".".join([one] * 11) for one in ("py3", "none", "any"))  # 1331 of them
    make_wheel(wheels, "tagged").rename(wheels / f"tagged-1.0-{tags}.whl")
    (wheels / "whole-1.0-py3-none-any.whl").write_bytes(b"PK")
    error = refused(home, wheels, AuditError, strict=True)
    assert "more than 1000 tags" in error.message
    assert "whole-1.0" in error.message


def test_those_of_another_platform_are_left_out(wheels: Path, tmp_path: Path) -> None:
    """Releases hold wheels for several machines: those that fit are wanted."""
    home = home_in(tmp_path)
    make_wheel(wheels, "windy").rename(wheels / "windy-1.0-cp312-cp312-win_amd64.whl")
    make_wheel(wheels, "older").rename(wheels / "older-1.0-cp39-cp39-manylinux_2_34_aarch64.whl")
    result = taken(home, wheels)
    assert {one.filename: one.taken for one in result.judgements} == {
        "helper-1.5-py3-none-any.whl": True,
        "older-1.0-cp39-cp39-manylinux_2_34_aarch64.whl": False,
        "torchy-2.9.0-py3-none-any.whl": True,
        "windy-1.0-cp312-cp312-win_amd64.whl": False,
    }
    assert [wheel.name for wheel in result.generation.wheels] == ["helper", "torchy"]


def test_a_folder_in_which_nothing_fits(tmp_path: Path) -> None:
    home = home_in(tmp_path)
    home.store.mkdir(parents=True)
    make_wheel(tmp_path / "w", "windy").rename(tmp_path / "w" / "windy-1.0-cp312-cp312-win_amd64.whl")
    assert "linux-aarch64 and cp312" in refused(home, tmp_path / "w", StoreError).message


@pytest.mark.parametrize(
    ("tag", "fit"),
    [
        ("py3-none-any", True),
        (AARCH64, True),
        ("cp38-abi3-manylinux2014_aarch64", True),
        ("cp312-cp312-linux_aarch64", True),
        ("cp312-cp312-manylinux_2_34_x86_64", False),
        ("cp311-cp311-manylinux_2_34_aarch64", False),
        ("cp313-abi3-manylinux_2_34_aarch64", False),
        ("cp312-cp312t-manylinux_2_34_aarch64", False),
        ("cp312-cp312-win_arm64", False),
        ("cp312-cp312-musllinux_1_2_aarch64", False),
        ("py2-none-any", False),
    ],
)
def test_what_fits(tag: str, fit: bool) -> None:
    assert fits([tag], platform="linux-aarch64", python="cp312") is fit


def test_two_versions_of_one_name(wheels: Path, tmp_path: Path) -> None:
    home = home_in(tmp_path)
    home.store.mkdir(parents=True)
    make_wheel(wheels, "torchy", "2.10.0")
    assert "several wheels of one name" in refused(home, wheels, StoreError).message


def test_the_same_file_name_twice(wheels: Path, tmp_path: Path) -> None:
    home = home_in(tmp_path)
    home.store.mkdir(parents=True)
    make_wheel(wheels / "again", "torchy", "2.9.0")
    assert "torchy-2.9.0-py3-none-any.whl twice" in refused(home, wheels, StoreError).message


def test_a_link_in_a_folder(wheels: Path, tmp_path: Path) -> None:
    home = home_in(tmp_path)
    home.store.mkdir(parents=True)
    (wheels / "linked.whl").symlink_to("/etc/passwd")
    error = refused(home, wheels, StoreError)
    assert "a link" in error.message
    assert "cp -rL" in hint_text(error.hint)


def test_a_pipe_in_a_folder(wheels: Path, tmp_path: Path) -> None:
    home = home_in(tmp_path)
    home.store.mkdir(parents=True)
    os.mkfifo(wheels / "pipe-1.0-py3-none-any.whl")
    assert "no plain file" in refused(home, wheels, StoreError).message


def test_a_generation_is_no_export(tmp_path: Path) -> None:
    home = home_in(tmp_path)
    generation = publish(home, [put_public(home.store, make_wheel(tmp_path / "d"))])
    assert "a link" in refused(home, generation.folder, StoreError).message


def test_an_export_that_was_packed_anew_keeps_its_provenance(tmp_path: Path) -> None:
    """tar of the unpacked folder: the wheels would pass for foreign ones."""
    home = home_in(tmp_path)
    generation = publish(home, [put_built(home.store, make_wheel(tmp_path / "d"))])
    write_archive(pack(generation, home.store), tmp_path / "out.tar")
    with tarfile.open(tmp_path / "out.tar") as tar:
        tar.extractall(tmp_path, filter="data")
    top = tmp_path / f"{VIEW}-1"
    (top / "manifest.json").rename(top / "zz")
    (top / "zz").rename(top / "manifest.json")
    names = sorted((path.name for path in top.iterdir()), reverse=True)
    subprocess.run(["tar", "-cf", str(tmp_path / "anew.tar"), "-C", str(top), *names], check=True, timeout=60)
    error = refused(home, tmp_path / "anew.tar", StoreError)
    assert "packed anew" in hint_text(error.hint)
    assert [wheel.origin for wheel in import_unsigned(home, top).generation.wheels] == ["built"], "here"


def test_a_folder_without_end(tmp_path: Path) -> None:
    """Deeper than Python's recursion and than any path may be long."""
    inner = os.open(tmp_path, os.O_RDONLY)
    for name in ["in"] + ["a"] * 3000:
        os.mkdir(name, dir_fd=inner)
        outer, inner = inner, os.open(name, os.O_RDONLY, dir_fd=inner)
        os.close(outer)
    os.close(inner)
    try:
        with pytest.raises(StoreError, match="nested deeper than 64"):
            taken(home_in(tmp_path), tmp_path / "in")
    finally:
        subprocess.run(["rm", "-rf", tmp_path / "in"], check=True)


def test_an_empty_folder(tmp_path: Path) -> None:
    home = home_in(tmp_path)
    home.store.mkdir(parents=True)
    (tmp_path / "empty").mkdir()
    assert "nothing in it" in refused(home, tmp_path / "empty", StoreError).message
    (tmp_path / "empty" / "README").write_text("x")
    assert "no wheel in it" in refused(home, tmp_path / "empty", StoreError).message


def test_a_refused_folder_leaves_no_file_open(tmp_path: Path) -> None:
    (tmp_path / "in" / "store").mkdir(parents=True)
    make_wheel(tmp_path / "in")
    (tmp_path / "in" / "manifest.json").write_text("{}")
    with pytest.raises(StoreError) as caught:
        taken(home_in(tmp_path), tmp_path / "in")
    links = [
        one for one in Path("/proc/self/fd").iterdir() if one.is_symlink()
    ]  # not the one that lists them
    assert [str(one.readlink()) for one in links if str(tmp_path) in str(one.readlink())] == []
    assert caught.traceback  # which keeps the frames, and the generators in them
