"""Unpacking real archives, and hostile ones: what is refused leaves nothing behind."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import random
import stat
import subprocess
import tarfile
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spark_build.errors import HostError, SourceError
from spark_build.host.unpack import unpack

NOON = 1_700_000_000
Entry = tuple[tarfile.TarInfo, bytes]


def entry(name: str, data: bytes = b"", **fields: object) -> Entry:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    info.mtime = NOON
    for field, value in fields.items():
        setattr(info, field, value)
    return info, data


def link(name: str, target: str) -> Entry:
    return entry(name, type=tarfile.SYMTYPE, linkname=target)


def hard(name: str, target: str) -> Entry:
    return entry(name, type=tarfile.LNKTYPE, linkname=target)


def packed(entries: Sequence[Entry], format: int = tarfile.PAX_FORMAT) -> bytes:  # noqa: A002 - tarfile's name
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=format) as tar:
        for info, data in entries:
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def zipped(entries: Sequence[tuple[str, bytes, int]]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data, mode in entries:
            info = zipfile.ZipInfo(name, (2024, 5, 6, 7, 8, 10))
            info.external_attr = mode << 16
            file.writestr(info, data)
    return buffer.getvalue()


GOOD = (
    entry("demo-1.0", type=tarfile.DIRTYPE, mode=0o755),
    entry("demo-1.0/setup.py", b"print()\n", mode=0o644),
    entry("demo-1.0/configure", b"#!/bin/sh\n", mode=0o4777),
    entry("demo-1.0/src/long" + "g" * 150 + "/a.c", b"int a;\n" * 9999, mode=0o600, mtime=NOON - 5.5),
    link("demo-1.0/include", "src/../src"),
    hard("demo-1.0/copy.py", "demo-1.0/setup.py"),
)


@pytest.fixture
def box(tmp_path: Path) -> Path:
    """A folder with nothing in it but what unpack leaves."""
    (tmp_path / "box").mkdir()
    return tmp_path / "box"


def archive_of(data: bytes, box: Path) -> Path:
    path = box.parent / "demo-1.0.archive"
    path.write_bytes(data)
    return path


def refused(data: bytes, box: Path, **limits: int) -> str:
    """The one-line message; checks that nothing was left, in the box or beside it."""
    archive = archive_of(data, box)
    around = sorted(box.parent.iterdir())
    with pytest.raises(SourceError) as caught:
        unpack(archive, box / "out", **limits)
    assert list(box.iterdir()) == []
    assert sorted(box.parent.iterdir()) == around
    assert caught.value.hint
    assert "\n" not in caught.value.message
    return caught.value.message


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


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([entry("/etc/evil", b"x")], "leads out"),
        ([entry("../evil", b"x")], "leads out"),
        ([entry("a/b/../../../evil", b"x")], "leads out"),
        ([entry("..", type=tarfile.DIRTYPE)], "leads out"),
        ([link("l", "/etc/passwd")], "leads out"),
        ([link("l", "../evil")], "leads out"),
        ([link("a/l", "../../evil")], "leads out"),
        ([link("", "x")], "both a folder"),
        # Each link alone looks harmless: through `up`, the second ".." is already outside.
        ([link("a/b/up", "../.."), link("x", "a/b/up/..")], "leads out"),
        ([link("x", "later/.."), entry("later", b""), link("later", ".")], "leads out"),
        ([link("d", "."), entry("d/f", b"x")], "both a folder"),
        ([link("d", ".."), entry("d/evil", b"x")], "both a folder"),
        ([link("f", "../evil"), hard("g", "f")], "leads to no file"),
        ([link("d", ".."), hard("g", "d/demo-1.0.archive")], "leads to no file"),
        ([hard("g", "../demo-1.0.archive")], "leads out"),
        ([hard("g", "/etc/hostname")], "leads out"),
        ([hard("g", "later"), entry("later", b"x")], "leads to no file"),
        ([entry("d/f", b"x"), entry("d", b"y")], "both a folder"),
        ([entry("d", b"y"), entry("d/f", b"x")], "both a folder"),
        ([entry("fifo", type=tarfile.FIFOTYPE)], "neither file"),
        ([entry("null", type=tarfile.CHRTYPE, devmajor=1, devminor=3)], "neither file"),
        ([entry("disk", type=tarfile.BLKTYPE, devmajor=8)], "neither file"),
        ([entry("odd", type=b"Z")], "neither file"),
        ([entry("n" * 300, b"x")], "cannot be written"),
        ([entry("d/" * 3000 + "f", b"x")], "without end"),
        ([link("a/l", "m"), link("a/m", "l")], "back to itself"),
    ],
)
def test_hostile_tars(entries: list[Entry], message: str, box: Path) -> None:
    innocent = entry("demo/first", b"first of all something harmless")
    assert message in refused(gzip.compress(packed([innocent, *entries])), box)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([("../evil", b"x", 0)], "leads out"),
        ([("/evil", b"x", 0)], "leads out"),
        ([("l", b"/etc", stat.S_IFLNK | 0o777)], "leads out"),
        ([("l", b"..", stat.S_IFLNK | 0o777)], "leads out"),
        ([("l", b"x" * 5000, stat.S_IFLNK | 0o777)], "enormous"),
        ([("p", b"", stat.S_IFIFO | 0o644)], "neither file"),
        ([("d", b".", stat.S_IFLNK | 0o777), ("d/f", b"x", 0)], "both a folder"),
    ],
)
def test_hostile_zips(entries: list[tuple[str, bytes, int]], message: str, box: Path) -> None:
    assert message in refused(zipped([("demo/first", b"harmless", 0), *entries]), box)


def test_bombs(box: Path) -> None:
    bomb = gzip.compress(packed([entry("a/zeros", bytes(3_000_000))]))
    assert "too large" in refused(bomb, box, max_bytes=2_999_999)
    assert "too large" in refused(zipped([("a/zeros", bytes(3_000_000), 0)]), box, max_bytes=2_999_999)
    assert unpack(archive_of(bomb, box), box / "fits", max_bytes=3_000_000).is_dir()
    (box / "fits").rename(box.parent / "fits")
    liar, _ = entry("a/huge")
    liar.size = 1 << 40
    assert "too large" in refused(liar.tobuf() + b"not that much", box)
    many = packed([entry(f"a/{number}") for number in range(101)])
    assert "too many" in refused(many, box, max_entries=100)
    # Bytes that are no entry's content count too: zeros after the end, an extended header.
    after = gzip.compress(packed([entry("a/b")]) + bytes(40 << 20))
    assert "too large" in refused(after, box, max_bytes=1000, max_entries=5)
    header = packed([entry("a/b", pax_headers={"comment": "x" * (20 << 20)})])
    assert "enormous header" in refused(gzip.compress(header), box)


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


@pytest.mark.parametrize("pack", [bytes, gzip.compress, bz2.compress, lzma.compress])
def test_truncated_archives(pack: Callable[[bytes], bytes], box: Path) -> None:
    data = pack(packed([entry(f"d/{number}", random.Random(number).randbytes(999)) for number in range(20)]))
    whole = len(data) if pack is not bytes else 20 * 1536  # a bare tar may lack its closing zeros
    for length in (0, 5, 100, whole // 3, whole // 2 + 7, whole - 1200, whole - 5):
        assert "damaged" in refused(data[:length], box)


def test_a_header_broken_in_the_middle_is_no_end(box: Path) -> None:
    data = bytearray(packed([entry("d/a", b"1"), entry("d/b", b"2"), entry("d/c", b"3")]))
    data[1024 + 3] ^= 0xFF
    assert "damaged" in refused(bytes(data), box)


def test_checksums_are_compared_to_the_last_byte(box: Path) -> None:
    for data, at in ((gzip.compress(packed(GOOD)), -6), (zipped([("d/f", b"content" * 99, 0)]), 40)):
        broken = bytearray(data)
        broken[at] ^= 0x55
        assert "damaged" in refused(bytes(broken), box)


def test_what_is_no_archive_at_all(box: Path) -> None:
    for data in (b"<html>Not found</html>", b"PK\x03\x04nonsense", bytes(100), b"\x1f\x8bno", b"PKG-INFO"):
        assert "demo-1.0.archive" in refused(data, box)


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


NAMES = st.sampled_from(["a", "b", "a/b", "a/b/c", "../x", "b/..", "/x", ".", "a/.", "./b", "b/c"])
ENTRIES = st.lists(
    st.one_of(
        st.builds(entry, NAMES, st.binary(max_size=20)),
        st.builds(link, NAMES, NAMES | st.sampled_from(["..", "../..", "a/..", "b/../..", "../a/.."])),
        st.builds(hard, NAMES, NAMES),
        st.builds(lambda name: entry(name, type=tarfile.DIRTYPE), NAMES),
    ),
    max_size=8,
)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(entries=ENTRIES)
def test_whatever_the_entries_nothing_leads_out(entries: list[Entry], tmp_path: Path) -> None:
    room = tmp_path / "room"
    archive = tmp_path / "x.tar"
    archive.write_bytes(packed(entries))
    (tmp_path / "x").write_text("bystander")
    emptied(room)
    try:
        unpack(archive, room / "out")
    except SourceError:
        assert list(room.iterdir()) == []
    else:
        for path in room.rglob("*"):
            assert path.resolve().is_relative_to(room / "out")
    assert (tmp_path / "x").read_text() == "bystander"
    assert (tmp_path / "x").stat().st_nlink == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["room", "x", "x.tar"]


def emptied(room: Path) -> None:
    for path in sorted(room.rglob("*"), key=lambda path: -len(path.parts)):
        if path.is_dir() and not path.is_symlink():
            path.rmdir()
        else:
            path.unlink()
    room.mkdir(exist_ok=True)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    kind=st.sampled_from(["tar", "gz", "zip"]),
    changes=st.lists(
        st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=6
    ),
    cut=st.floats(0, 1),
)
def test_damage_of_any_kind_is_a_source_error(
    kind: str, changes: list[tuple[float, int]], cut: float, tmp_path: Path
) -> None:
    small = [*GOOD[:3], entry("demo-1.0/n" + "n" * 120, b"x"), *GOOD[4:]]
    data = {
        "tar": packed(small),
        "gz": gzip.compress(packed(small), mtime=0),
        "zip": zipped([("d/a", b"1" * 99, 0), ("d/l", b"a", stat.S_IFLNK | 0o777)]),
    }[kind]
    broken = bytearray(data)
    for where, value in changes:
        broken[int(where * len(broken))] = value
    archive = tmp_path / "x"
    archive.write_bytes(bytes(broken[: int(len(broken) * (0.5 + cut))]))
    room = tmp_path / "room"
    emptied(room)
    try:
        unpack(archive, room / "out", max_bytes=1 << 20, max_entries=50)
    except SourceError:
        assert list(room.iterdir()) == []
