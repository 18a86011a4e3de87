"""`build NAME --check-reproducible`: build twice, and say what differs."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path

from spark_build.build.reproducibility import folders, wheels
from spark_build.events import FileDifference
from tests.conftest import NATIVE, PROJECT, SETUP, Root, make_root
from tests.helpers.recipe_roots import make
from tests.helpers.wheels import PURE, compiled, entries_of, write_wheel, write_zip

CHECK = ("build", "--no-closure", "--check-reproducible")
CLOCK = "import time\nMODULE = lambda: f'VALUE = {time.time_ns()}\\n'\n"
STAMP = 'define_macros=[("STAMP", str(__import__("time").time_ns()))]'


def left(root: Root) -> list[Path]:
    """Trees, locks and the folder of repetitions in the build folder; .trash is being deleted."""
    build = root.folder / "build"
    trees = [path for path in build.glob("[!.]*/*") if path.parent.name != "again"]
    return [*trees, *build.glob("again/*/*")]


def test_the_same_bytes_in_another_folder(root: Root) -> None:
    done = root.run(*CHECK, "tiny")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "reproducible: tiny-1.0-1_" in done.stdout
    (wheel,) = root.folder.glob("wheelhouse/store/??/*/*.whl")
    assert list(root.folder.glob(f"wheelhouse/views/*/current/{wheel.name}"))
    assert not left(root)
    assert not (root.folder / "cache").exists()  # of the compilers: it could hide a difference
    (again,) = root.json(*CHECK, "tiny")["repetitions"]  # what is in the store is compared, too
    assert again["identical"]
    assert again["product"] == wheel.name


def test_a_wheel_with_the_time_in_it(tmp_path: Path) -> None:
    root = make(tmp_path, {"aa": CLOCK, "bb": ""})
    done = root.run("--json", *CHECK, "aa", "bb")
    assert done.returncode == 8, done.stderr
    assert '"identical": true' in done.stdout
    told = root.run(*CHECK, "aa")
    assert told.returncode == 8
    assert "not reproducible: aa-1.0-1_" in told.stdout
    # What is made from the content says so, too.
    assert [
        line.split(":")[0].strip() for line in told.stdout.splitlines() if ": another content" in line
    ] == [
        "aa-1.0.dist-info/RECORD",
        "aa-1.0.dist-info/spark-build.provenance.json",
        "aa.py",
    ]
    assert list(root.folder.glob("wheelhouse/views/*/current/aa-1.0-*.whl"))  # it stays published
    assert not left(root)


def test_a_library_with_the_time_in_it(tmp_path: Path) -> None:
    setup = SETUP.replace('["native.c"]', f'["native.c"], {STAMP}')
    native = NATIVE.replace("PyLong_FromLong(42)", "PyLong_FromLongLong(STAMP)")
    root = make_root(tmp_path, {**PROJECT, "setup.py": setup, "native.c": native})
    done = root.run(*CHECK, "tiny")
    assert done.returncode == 8, done.stdout + done.stderr
    assert [line for line in done.stdout.splitlines() if "_native" in line and "another content" in line]


def test_a_repetition_that_fails_is_told_and_leaves_nothing(root: Root) -> None:
    assert root.run("build", "--no-closure", "tiny").returncode == 0
    shutil.rmtree(root.folder / "sources")
    shutil.rmtree(root.links)
    done = root.run(*CHECK, "tiny")
    assert done.returncode == 5, done.stdout + done.stderr
    assert "tiny-1.0.tar.gz" in done.stderr
    assert not left(root)
    assert list(root.folder.glob("wheelhouse/views/*/current/tiny-1.0-*.whl"))


def test_only_whole_builds_are_repeated(root: Root) -> None:
    assert root.run(*CHECK, "tiny", "--shell").returncode == 2
    assert root.run(*CHECK, "tiny", "--stop-after", "build").returncode == 2


def test_what_differs_between_wheels(tmp_path: Path) -> None:
    library = compiled(tmp_path, "liba.so", "int a(void) { return 1; }").read_bytes()
    other = compiled(tmp_path, "libb.so", "int a(void) { return 2; }").read_bytes()
    first = write_wheel(tmp_path / "a", {**PURE, "demo/liba.so": library, "demo/gone.py": b""})
    second = write_wheel(tmp_path / "b", {**PURE, "demo/liba.so": other, "demo/new.py": b""})
    found = {one.file: one.what for one in wheels(first, second)}
    assert found["demo/gone.py"] == "only in the first build"
    assert found["demo/new.py"] == "only in the second build"
    assert found["demo/liba.so"] == "another content"
    assert "demo/data.bin" not in found
    assert wheels(first, first) == ()
    (tmp_path / "c").mkdir()
    shuffled = write_zip(tmp_path / "c" / first.name, entries_of(first)[::-1])
    (only,) = wheels(first, shuffled)
    assert only.what == "only times, modes, order or packing of its files"
    with zipfile.ZipFile(shuffled) as archive:
        assert archive.testzip() is None


def test_what_differs_between_prefixes(tmp_path: Path) -> None:
    for name, text, link in (("a", "same", "x"), ("b", "sane", "y")):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "file").write_text(text)
        (folder / "tool").write_text("#!/bin/sh\n")
        (folder / "link").symlink_to(link)
    (tmp_path / "b" / "tool").chmod(0o755)
    (tmp_path / "a" / "tool").chmod(0o644)
    assert folders(tmp_path / "a", tmp_path / "b") == (
        FileDifference(file="file", what="another content"),
        FileDifference(file="link", what="link to x, then link to y"),
        FileDifference(file="tool", what="plain file, then executable"),
    )
