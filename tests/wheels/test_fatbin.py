import struct
import tracemalloc
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_build.errors import AuditError
from spark_build.wheels import fatbin
from spark_build.wheels.fatbin import (
    Container,
    FatbinEntry,
    FatbinError,
    FatbinProblem,
    Item,
    Stray,
)
from tests.helpers.fatbins import MAGIC, Made, container


def scan(data: bytes, window: int = 1 << 20) -> list[Item]:
    """Everything found when so many bytes are read at once."""
    with pytest.MonkeyPatch.context() as changed:
        changed.setattr(fatbin, "_WINDOW", window)
        return list(fatbin.scan(lambda at, length: data[at : at + length], len(data)))


def targets(items: Sequence[Item]) -> list[str]:
    return [item.target for item in items if isinstance(item, FatbinEntry)]


def problems(items: Sequence[Item]) -> list[str]:
    return [item.message for item in items if isinstance(item, FatbinProblem)]


def without_magic(least: int = 0) -> st.SearchStrategy[bytes]:
    return st.binary(min_size=least, max_size=200).map(lambda data: data.replace(b"\xba", b"\xbb"))


entries = st.builds(
    Made,
    kind=st.sampled_from([1, 2, 8, 16, 64]),
    arch=st.sampled_from([75, 80, 90, 100, 107, 120, 121, 9999]),
    variant=st.sampled_from(["", "a", "f"]),
    compression=st.sampled_from(["", "lz4", "zstd"]),
    payload=st.binary(min_size=1, max_size=150),  # may hold the magic number: it is not looked at
    padding=st.integers(0, 7),
    options=st.binary(max_size=80),
)
windows = st.integers(64, 500)


@given(st.lists(st.tuples(without_magic(), st.lists(entries, max_size=5)), max_size=5), windows)
def test_what_was_made_is_found(made: list[tuple[bytes, list[Made]]], window: int) -> None:
    data, wanted_containers, wanted = b"", [], []
    for gap, inside in made:
        data += gap
        wanted_containers.append((len(data), len(container(*inside))))
        wanted += [(len(data), one.target, one.size) for one in inside]
        data += container(*inside)
    items = scan(data, window)
    assert [(one.offset, one.size) for one in items if isinstance(one, Container)] == wanted_containers
    found = [one for one in items if isinstance(one, FatbinEntry)]
    assert [(one.container, one.target, one.size) for one in found] == wanted
    assert problems(items) == []


def test_one_by_hand() -> None:
    """The first bytes of a real file: nvcc 13.0 --fatbin, code=sm_121a, --compress-mode=size."""
    head = "50ed55ba0100100038050000000000000200010170000000c804000000000000"
    head += "c104000040000000080001007900000000000000000000001180100100000000"
    head += "0000000000000000c814000000000000"
    box, entry, *_ = scan(bytes.fromhex(head).ljust(0x538 + 16, b"\0"))
    assert box == Container(offset=0, size=0x538 + 16)
    assert isinstance(entry, FatbinEntry)
    assert (entry.target, entry.size, entry.offset) == ("sm_121a", 0x4C1, 16)


pieces = st.one_of(
    st.binary(max_size=60),
    entries.map(container),
    st.just(MAGIC),
    st.builds(lambda size: container(Made(), size=size), st.integers(0, 2**64 - 1)),
    st.builds(
        struct.Struct("<HHIQ").pack, *[st.integers(0, 9)] * 2, st.integers(0, 200), st.integers(0, 9999)
    ),
)


@settings(max_examples=400)
@given(st.lists(pieces, max_size=8).map(b"".join), windows)
def test_any_bytes_give_the_same_however_they_are_read(data: bytes, window: int) -> None:
    items = scan(data, window)
    assert items == scan(data)
    assert len(items) <= len(data)
    assert all(0 <= item.offset <= len(data) for item in items)


@settings(max_examples=400)
@given(st.lists(entries, min_size=1, max_size=4), st.lists(st.tuples(st.integers(0), st.integers(1, 255))))
def test_flipped_bytes_are_survived(made: list[Made], flips: list[tuple[int, int]]) -> None:
    data = bytearray(container(*made) + container(Made(arch=77)))
    for place, change in flips:
        data[place % len(data)] ^= change
    scan(bytes(data))


GOOD = container(Made(arch=90))
BEYOND = "a container of {} bytes where the file has {}"


@pytest.mark.parametrize(
    ("data", "wanted", "listed"),
    [
        (container(Made(), size=2**64 - 1), BEYOND.format(2**64 + 15, 84 + 84), ["sm_90"]),
        (container(Made(), size=68 + 84), "an entry's header of", ["sm_121", "sm_90"]),  # takes in the next
        (container(Made(), size=67), "an entry of 68 bytes where its container has 67", ["sm_90"]),
        (container(Made(), size=10), "10 bytes after a container's last entry", ["sm_90"]),
        (container(Made(), size=0), None, ["sm_90"]),
        (container(), None, ["sm_90"]),
        (container(Made(), size=2**20), "a container of 1048592 bytes", ["sm_90"]),
        (container(Made(kind=0)), "an entry of kind 0", ["sm_90"]),
        (container(Made(arch=10000)), "for architecture 10000", ["sm_90"]),
        (container(Made(), Made(kind=0), Made(arch=75)), "kind 0", ["sm_121", "sm_90"]),
    ],
)
def test_a_wrong_header_is_a_problem_and_hides_nothing(
    data: bytes, wanted: str | None, listed: list[str]
) -> None:
    items = scan(data + GOOD)
    assert targets(items) == listed
    assert len(problems(items)) == (wanted is not None)
    assert wanted is None or wanted in problems(items)[0]


@pytest.mark.parametrize(
    ("at", "value", "wanted"),
    [
        ("<I4", 0, "an entry's header of 0 bytes"),
        ("<I4", 63, "an entry's header of 63 bytes"),
        ("<I4", 2**32 - 1, "an entry's header of 4294967295 bytes"),
        ("<Q8", 2**64 - 1, f"an entry of {2**64 + 63} bytes where its container has 68 left"),
        ("<Q8", 5, "an entry of 69 bytes where its container has 68 left"),
        ("<I16", 5, "an entry of 4 bytes with 5 compressed bytes"),
    ],
)
def test_a_wrong_entry(at: str, value: int, wanted: str) -> None:
    data = bytearray(container(Made()))
    struct.pack_into(at[:2], data, 16 + int(at[2:]), value)
    assert problems(scan(bytes(data) + GOOD)) == [wanted]
    assert targets(scan(bytes(data) + GOOD)) == ["sm_90"]


def test_every_cut_is_noticed() -> None:
    whole = container(Made(), Made(arch=120, payload=b"x" * 50))
    for end in range(16, len(whole)):
        assert len(problems(scan(whole[:end]))) == 1
    assert problems(scan(whole)) == []


def test_what_lies_in_a_payload_belongs_to_its_entry() -> None:
    inner = container(Made(arch=75))
    items = scan(container(Made(payload=inner), Made(arch=120)) + GOOD)
    assert targets(items) == ["sm_121", "sm_120", "sm_90"]


def test_the_magic_number_alone_is_no_container() -> None:
    items = scan(b"cmp" + MAGIC + b" in host code" + container(Made(), version=2) + GOOD)
    assert [item.offset for item in items if isinstance(item, Stray)] == [3, 20]
    assert targets(items) == ["sm_90"]


@pytest.mark.parametrize(
    ("first", "chunk"),
    [
        (b"", MAGIC * (1 << 14)),
        (container(size=2**63), Made(payload=b"").bytes() * (1 << 12)),
        (b"", container() * (1 << 14)),
    ],
)
def test_a_flood_of_headers_is_given_up(monkeypatch: pytest.MonkeyPatch, first: bytes, chunk: bytes) -> None:
    monkeypatch.setattr(fatbin, "MAX_ITEMS", 1 << 16)
    with pytest.raises(FatbinError, match="65,536 fat-binary headers") as caught:
        list(fatbin.scan(endless(first, chunk), 1 << 64))
    assert isinstance(caught.value, AuditError)


def endless(first: bytes, chunk: bytes) -> Callable[[int, int], bytes]:
    """A file that begins with `first` and goes on with `chunk` for ever."""

    def read(at: int, length: int) -> bytes:
        start = max(0, at - len(first)) % len(chunk)
        return (first[at:] + chunk[start:] + chunk * (length // len(chunk) + 1))[:length]

    return read


def test_nothing_of_the_file_is_kept() -> None:
    head = container(size=2**28) + Made(payload=b"").bytes()[:8]

    def read(at: int, length: int) -> bytes:
        return head[at : at + length].ljust(min(length, 2**28 + 16 - at), b"\0")

    tracemalloc.start()
    assert len(list(fatbin.scan(read, 2**28 + 16))) == 3  # container, entry, and what is none
    assert tracemalloc.get_traced_memory()[1] < 4 << 20
    tracemalloc.stop()
