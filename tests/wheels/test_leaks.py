from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_build.wheels.elf import LONGEST, MAX_FOUND, MAX_LOOKED_AT, Leaks


def found(data: bytes, *cuts: int, own: tuple[str, ...] = ()) -> tuple[str, ...]:
    """What is found when the data comes in these pieces."""
    leaks = Leaks(own)
    edges = [0, *sorted(cuts), len(data)]
    for start, end in pairwise(edges):
        leaks.feed(data[start:end])
    leaks.close()
    return leaks.found


@pytest.mark.parametrize(
    ("text", "paths"),
    [
        (b"\0/home/me/src/a.c\0", ("/home/me/src/a.c",)),
        (b"-I/home/me/include -L/root/x", ("/home/me/include", "/root/x")),
        (b"at '/home/me/a.c', line 3", ("/home/me/a.c",)),
        (b"\0/run/spark-build/work/src/a.cc:12", ("/run/spark-build/work/src/a.cc",)),
        (b"--prefix=/home/me/x", ("/home/me/x",)),
        (b"\0/mnt/disk/build/onnx/ab12/src/x.c\0", ("/mnt/disk/build/onnx/ab12/src/x.c",)),
        (b"\0/home/%s/.cache\0", ()),
        (b"\0/home/\0", ()),
        (b"\0/home/me\0", ()),
        (b"https://example.org/home/me/x", ()),
        (b"\0/srv/home/me/x\0", ()),
        (b"\0/root/\0", ()),
        (b"$HOME/root/x ${A}/root/x", ()),
    ],
)
def test_what_is_a_path_of_the_build_machine(text: bytes, paths: tuple[str, ...]) -> None:
    assert found(b"\x7fELF" + text, own=("/mnt/disk/build/onnx/ab12/",)) == paths


def test_a_path_cut_within_a_letter_is_shown() -> None:
    own = "/" + "a" * (LONGEST - 2) + "\u00e9/"
    assert found(b"\0" + own.encode() + b"x", own=(own,)) == ("/" + "a" * (LONGEST - 2) + "\ufffd",)


@given(cuts=st.lists(st.integers(0, 900), max_size=6), where=st.integers(4, 600))
def test_chunks_do_not_matter(cuts: list[int], where: int) -> None:
    path = b"/home/somebody/with/a/long/path/to/a/source/file.cc"
    data = bytearray(b"\0" * 900)
    data[where : where + len(path)] = path
    assert found(bytes(data), *cuts) == (path.decode(),)


def test_a_file_of_nothing_but_beginnings_is_soon_done() -> None:
    assert found(b"\0/home/" * 500_000) == ()
    often = b"\0/root/a" * MAX_LOOKED_AT
    assert (found(often[8:] + b"\0/root/b"), found(often + b"\0/root/b")) == (
        ("/root/a", "/root/b"),
        ("/root/a",),
    )
    assert len(found(b"".join(b"\0/root/%d" % number for number in range(1000)))) == MAX_FOUND
