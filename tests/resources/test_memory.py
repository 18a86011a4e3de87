"""What a process holds by itself."""

from __future__ import annotations

import dataclasses
import mmap
import os
from pathlib import Path

from spark_build.resources.memory import own_kib, process_of

KIB = 64 << 10


def test_what_it_took_counts_and_what_it_mapped_of_a_file_does_not(tmp_path: Path) -> None:
    file = tmp_path / "mapped"
    file.write_bytes(b"x" * (2 * KIB << 10))
    me = process_of(os.getpid())
    assert me is not None
    before = own_kib(me)
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        assert sum(mapped[at] for at in range(0, len(mapped), mmap.PAGESIZE))
        held = bytearray(os.urandom(1)) * (KIB << 10)
        mapping = process_of(os.getpid())
        assert mapping is not None
        assert mapping.resident_kib - me.resident_kib >= 2.9 * KIB
        assert KIB <= own_kib(me) - before < 1.2 * KIB
    del held


def test_a_process_that_is_gone_holds_nothing() -> None:
    me = process_of(os.getpid())
    assert me is not None
    assert own_kib(dataclasses.replace(me, pid=1 << 30)) == 0
