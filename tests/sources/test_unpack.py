"""Unpacking real archives: content, links, permissions, times."""

from __future__ import annotations

import bz2
import gzip
import lzma
import stat
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_build.errors import HostError
from spark_build.sources.archives import unpack
from tests.helpers.archives import GOOD, NOON, Entry, archive_of, entry, link, packed, zipped


@pytest.fixture
def box(tmp_path: Path) -> Path:
    """A folder with nothing in it but what unpack leaves."""
    (tmp_path / "box").mkdir()
    return tmp_path / "box"


@pytest.mark.parametrize("pack", [bytes, gzip.compress, bz2.compress, lzma.compress])
@pytest.mark.parametrize("format", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_every_kind_of_tar(pack: Callable[[bytes], bytes], format: int, box: Path) -> None:  # noqa: A002 - tarfile's
    top = unpack(archive_of(pack(packed(GOOD, format)), box), box / "out")
    assert top == box / "out" / "demo-1.0"
    assert sorted(path.name for path in top.iterdir()) == [
        "configure",
        "copy.py",
        "include",
        "setup.py",
        "src",
    ]
    assert (top / "copy.py").samefile(top / "setup.py")
    assert (top / "include").readlink() == Path("src/../src")
    (source,) = (top / "src").rglob("a.c")
    assert source.read_bytes() == b"int a;\n" * 9999
    modes = [stat.S_IMODE((top / name).stat().st_mode) for name in ("setup.py", "configure", "src", ".")]
    assert modes == [0o644, 0o755, 0o755, 0o755]
    assert stat.S_IMODE((box / "out").stat().st_mode) == 0o755
    assert list(box.iterdir()) == [box / "out"]


def test_the_archives_times_everywhere_and_never_now(box: Path) -> None:
    top = unpack(archive_of(packed(GOOD), box), box / "out")
    (source,) = (top / "src").rglob("a.c")
    assert source.stat().st_mtime == NOON - 5.5
    # No entry of its own: as old as what is in it.
    assert (top / "src").stat().st_mtime == source.parent.stat().st_mtime == NOON - 5.5
    assert {path.lstat().st_mtime for path in (top, top / "include", top / "setup.py")} == {NOON}


def test_a_real_tar_by_the_real_tool(box: Path) -> None:
    tree = box.parent / "tree" / "proj-2"
    (tree / "sub").mkdir(parents=True)
    (tree / "sub" / "ünï \n code").write_text("x")
    (tree / "empty").mkdir()
    with (tree / "sparse").open("wb") as file:
        file.truncate(5_000_000)
        file.seek(2_000_000)
        file.write(b"island")
    for options in (["--format=gnu", "-S"], ["--format=posix", "-S"], ["--format=v7"]):
        path = box.parent / "real.tar.xz"
        subprocess.run(["tar", *options, "-C", tree.parent, "-cJf", path, "./"], check=True)
        out = box / options[0]
        assert unpack(path, out) == out / "proj-2"
        assert subprocess.run(["diff", "-r", tree.parent, out], check=False).returncode == 0


def test_zips_keep_links_modes_and_times(box: Path) -> None:
    data = zipped([
        ("z-1/run.sh", b"#!/bin/sh\n", stat.S_IFREG | 0o6755),
        ("z-1/plain", b"text", 0),
        ("z-1/folder/", b"", stat.S_IFDIR | 0o755),
        ("z-1/link", b"folder/../plain", stat.S_IFLNK | 0o777),
    ])  # fmt: skip
    top = unpack(archive_of(data, box), box / "out")
    assert top == box / "out" / "z-1"
    assert [stat.S_IMODE((top / name).stat().st_mode) for name in ("run.sh", "plain")] == [0o755, 0o644]
    assert (top / "link").read_text() == "text"
    assert (top / "run.sh").stat().st_mtime == 1_714_979_290  # 2024-05-06 07:08:10 UTC


@pytest.mark.parametrize(
    "entries",
    [[entry("a", b"1"), entry("b/c", b"2")], [entry("only", b"1")], [link("only", "."), entry("x/y")]],
)
def test_several_entries_at_the_top_give_the_folder_itself(entries: list[Entry], box: Path) -> None:
    assert unpack(archive_of(packed(entries), box), box / "out") == box / "out"


def test_names_that_differ_in_case_and_repeated_ones(box: Path) -> None:
    entries = [
        entry("d/A", b"1"),
        entry("d/a", b"2"),
        entry("d/A", b"3"),
        link("d/l", "a"),
        entry("d/l", b"4"),
    ]
    top = unpack(archive_of(packed(entries), box), box / "out")
    assert {path.name: path.read_bytes() for path in top.iterdir()} == {"A": b"3", "a": b"2", "l": b"4"}
    assert not (top / "l").is_symlink()


def test_senseless_times_do_not_stop_it(box: Path) -> None:
    times = {"nan": "nan", "inf": "inf", "negative": "-5", "distant": "1e300"}
    entries = [entry(f"d/{name}", pax_headers={"mtime": value}) for name, value in times.items()]
    zeroed = bytearray(zipped([("z/f", b"x", 0)]))
    for signature, offset in ((b"PK\x03\x04", 10), (b"PK\x01\x02", 12)):
        at = zeroed.index(signature) + offset
        zeroed[at : at + 4] = bytes(4)
    top = unpack(archive_of(packed(entries), box), box / "tar")
    assert {path.stat().st_mtime for path in top.iterdir()} == {0.0}
    assert (unpack(archive_of(bytes(zeroed), box), box / "zip") / "f").stat().st_mtime == 0.0


def test_a_place_in_use_is_left_alone(box: Path) -> None:
    archive = archive_of(packed(GOOD), box)
    (box / "used").mkdir()
    (box / "used" / "mine").write_text("precious")
    (box / "file").write_text("precious")
    (box / "dangling").symlink_to("nowhere")
    for name in ("used", "file", "dangling"):
        with pytest.raises(HostError, match="in the way"):
            unpack(archive, box / name)
    assert (box / "used" / "mine").read_text() == "precious"
    (box / "empty").mkdir()
    assert unpack(archive, box / "empty").name == "demo-1.0"
