"""Hostile and damaged archives: what is refused leaves nothing behind."""

from __future__ import annotations

import bz2
import collections
import gzip
import io
import lzma
import random
import stat
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spark_build.errors import SourceError
from spark_build.sources import archives
from spark_build.sources.archives import Metered, RefusedError, unpack
from tests.helpers.archives import GOOD, Entry, archive_of, entry, hard, link, packed, zipped


@pytest.fixture
def box(tmp_path: Path) -> Path:
    """A folder with nothing in it but what unpack leaves."""
    (tmp_path / "box").mkdir()
    return tmp_path / "box"


def unpack_within(archive: Path, destination: Path, **limits: int) -> Path:
    with pytest.MonkeyPatch.context() as changed:
        for name, value in limits.items():
            changed.setattr(archives, name.upper(), value)
        return unpack(archive, destination)


def refused(data: bytes, box: Path, **limits: int) -> str:
    """The one-line message; checks that nothing was left, in the box or beside it."""
    archive = archive_of(data, box)
    around = sorted(box.parent.iterdir())
    with pytest.raises(SourceError) as caught:
        unpack_within(archive, box / "out", **limits)
    assert list(box.iterdir()) == []
    assert sorted(box.parent.iterdir()) == around
    assert caught.value.hint
    assert "\n" not in caught.value.message
    return caught.value.message


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
        ([link("d", "../.."), hard("g", "d/demo-1.0.archive")], "leads to no file"),
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
    assert unpack_within(archive_of(bomb, box), box / "fits", max_bytes=3_000_000).is_dir()
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


def test_a_header_is_bounded_also_in_pieces() -> None:
    """Python 3.14 reads the first one when it opens the tar, a MiB at a time."""
    metered = Metered(io.BytesIO(bytes(20 << 20)), 1 << 30)
    with pytest.raises(RefusedError, match="enormous header"):
        collections.deque(iter(lambda: metered.read(1 << 20), b""), maxlen=0)


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
        unpack_within(archive, room / "out", max_bytes=1 << 20, max_entries=50)
    except SourceError:
        assert list(room.iterdir()) == []
