from __future__ import annotations

import json
import os
import random
import shutil
import signal
import stat
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from spark_build.errors import StoreError
from spark_build.files import sha256_of
from spark_build.wheelhouse.store import (
    LOCK,
    RECORD,
    StoreEntry,
    commit,
    entry_folder,
    index_rows,
    next_serial,
    read,
    shared_lock,
    tree_digest,
)
from spark_build.wheels.model import StoredWheel
from tests.helpers.commands import hint_text
from tests.helpers.wheelhouse import (
    end,
    eventually,
    hear,
    make_wheel,
    put_built,
    put_public,
    start,
    tell,
    verify_wheel,
)

KEY = "ab" * 32
DESCRIBED: dict[str, Any] = {
    "name": "demo",
    "version": "1.0",
    "origin": "built",
    "recipe": "demo",
    "requires": ["helper>=1"],
    "content_digest": "c" * 64,
}
PAPERS = {"key.json": b"{}", "build.log": b"all well\n"}
COMMITTER = """
import json, sys
from pathlib import Path
from spark_build.wheelhouse.store import commit
store, wheel = Path(sys.argv[1]), Path(sys.argv[2])
described, papers = json.loads(sys.argv[3]), {"build.log": b"x" * 4_000_000, "key.json": b"{}"}
print("ready", flush=True)
for key in sys.stdin:
    entry = commit(store, key=key.strip(), wheel=wheel, described=described, papers=papers)
    print(entry.wheel.sha256, flush=True)
"""


def entries(store: Path) -> list[StoreEntry]:
    """All committed entries, in order of key."""
    return [entry for row in index_rows(store) if (entry := read(store, row["key"]))]


def wheel_of(entry: StoreEntry) -> StoredWheel:
    assert entry.wheel is not None
    return entry.wheel


def visible(store: Path) -> list[str]:
    """What a reader may see of a store: no temporary folders."""
    return sorted(
        path.name for path in store.iterdir() if not path.name.startswith(".tmp-") and path.name != LOCK
    )


def temporary(store: Path) -> list[Path]:
    return sorted(store.glob(".tmp-*"))


def test_what_is_committed_can_be_read(tmp_path: Path) -> None:
    store, wheel = tmp_path / "new" / "store", make_wheel(tmp_path)
    content = wheel.read_bytes()
    assert read(store, KEY) is None
    entry = commit(store, key=KEY, wheel=wheel, described=DESCRIBED, papers=PAPERS)
    assert entry == read(store, KEY)
    assert entry.folder == entry_folder(store, KEY) == store / "ab" / KEY
    assert (entry.recipe, entry.content_digest) == ("demo", "c" * 64)
    assert (wheel_of(entry).name, wheel_of(entry).version, wheel_of(entry).origin) == ("demo", "1.0", "built")
    assert (wheel_of(entry).key, wheel_of(entry).requires) == (KEY, ("helper>=1",))
    assert wheel_of(entry).filename == wheel.name
    assert (wheel_of(entry).size, wheel_of(entry).sha256) == (len(content), sha256_of(wheel))
    assert (entry.folder / wheel.name).read_bytes() == content
    assert {path.name for path in entry.folder.iterdir()} == {wheel.name, RECORD, *PAPERS}
    assert (entry.folder / "build.log").read_bytes() == b"all well\n"
    assert visible(store) == ["ab"]
    assert temporary(store) == []
    verify_wheel(entry)


def test_entries_are_for_everyone_to_read_and_for_nobody_to_write(tmp_path: Path) -> None:
    entry = commit(tmp_path / "s", key=KEY, wheel=make_wheel(tmp_path), described=DESCRIBED, papers=PAPERS)
    assert stat.S_IMODE(entry.folder.stat().st_mode) == 0o755
    assert {stat.S_IMODE(path.stat().st_mode) for path in entry.folder.iterdir()} == {0o444}


def test_an_entry_is_never_replaced(tmp_path: Path) -> None:
    store = tmp_path / "store"
    first = commit(store, key=KEY, wheel=make_wheel(tmp_path / "1"), described=DESCRIBED, papers=PAPERS)
    other = make_wheel(tmp_path / "2", files={"demo/__init__.py": b"other"})
    again = commit(store, key=KEY, wheel=other, described={**DESCRIBED, "recipe": "x"}, papers={})
    assert again == first
    assert (first.folder / "build.log").exists()
    assert temporary(store) == []


def test_a_wheel_that_is_a_link_is_taken_in_as_a_file(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "real")
    link = tmp_path / wheel.name
    link.symlink_to(wheel)
    entry = commit(tmp_path / "store", key=KEY, wheel=link, described=DESCRIBED, papers={})
    shutil.rmtree(tmp_path / "real")
    verify_wheel(entry)


def test_a_prefix_from_another_file_system_is_the_same(tmp_path: Path) -> None:
    """Its programs run, and its content digest is that of the build."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        prefix = Path(folder, "prefix")
        (prefix / "bin").mkdir(parents=True)
        (prefix / "bin" / "nvcc").write_text("#!/bin/sh\n")
        (prefix / "bin" / "nvcc").chmod(0o755)
        built = tree_digest(prefix)
        entry = commit(tmp_path / "s", key=KEY, wheel=None, described=DESCRIBED, papers=PAPERS, prefix=prefix)
    assert entry.prefix is not None
    assert os.access(entry.prefix / "bin" / "nvcc", os.X_OK)
    assert tree_digest(entry.prefix) == built


@pytest.mark.parametrize("name", ["demo-1.0-py3-none-any.whl", "../key.json", ".", RECORD])
def test_papers_never_take_the_place_of_something_else(tmp_path: Path, name: str) -> None:
    """Papers may come from an archive that a stranger made."""
    store, wheel = tmp_path / "store", make_wheel(tmp_path)
    with pytest.raises(StoreError, match="no name for a paper"):
        commit(store, key=KEY, wheel=wheel, described=DESCRIBED, papers={name: b"hostile"})
    assert read(store, KEY) is None
    assert list(tmp_path.rglob("key.json")) == []
    assert temporary(store) == []


def test_all_entries_in_order_of_their_keys(tmp_path: Path) -> None:
    store = tmp_path / "store"
    assert list(entries(store)) == []
    put = [put_public(store, make_wheel(tmp_path, name)) for name in ("a", "b", "c")]
    put.append(put_built(store, make_wheel(tmp_path, "d")))
    assert [entry.wheel for entry in entries(store)] == sorted(put, key=lambda wheel: wheel.key)


def test_what_has_no_record_is_no_entry(tmp_path: Path) -> None:
    store = tmp_path / "store"
    folder = entry_folder(store, KEY)
    folder.mkdir(parents=True)
    (folder / "demo-1.0-py3-none-any.whl").write_bytes(b"half")
    assert read(store, KEY) is None
    assert list(entries(store)) == []
    entry = commit(store, key=KEY, wheel=make_wheel(tmp_path), described=DESCRIBED, papers=PAPERS)
    verify_wheel(entry)
    assert temporary(store) == []


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "cannot be read"),
        (b"{", "cannot be read"),
        (b"\xff\xfe", "cannot be read"),
        (b"[]", "lacks"),
        (b"null", "lacks"),
        (b"{}", "lacks 'name'"),
        (b'{"name": "demo", "version": "1.0"}', "lacks 'filename'"),
    ],
)
def test_a_record_that_cannot_be_read(tmp_path: Path, content: bytes, problem: str) -> None:
    store = tmp_path / "store"
    folder = commit(store, key=KEY, wheel=make_wheel(tmp_path), described=DESCRIBED, papers={}).folder
    (folder / RECORD).chmod(0o644)
    (folder / RECORD).write_bytes(content)
    for look in (lambda: read(store, KEY), lambda: list(entries(store))):
        with pytest.raises(StoreError, match=problem) as caught:
            look()
        assert caught.value.where == str(folder / RECORD)
        assert hint_text(caught.value.hint) == f"rm -r {folder}, then build again"


# --- serials ----------------------------------------------------------------------------------------


def test_serials_count_up_for_each_version(tmp_path: Path) -> None:
    store = tmp_path / "store"
    assert next_serial(store, "demo", "1.0") == 1
    put_built(store, make_wheel(tmp_path, build="1_0123abcd"), note="a")
    assert next_serial(store, "demo", "1.0") == 2
    put_built(store, make_wheel(tmp_path, build="10_89abcdef"), note="b")
    put_built(store, make_wheel(tmp_path, build="9_89abcdef"), note="c")
    assert next_serial(store, "demo", "1.0") == 11
    assert next_serial(store, "demo", "1.0.1") == 1
    assert next_serial(store, "dem", "1.0") == 1
    assert next_serial(store, "demo-more", "1.0") == 1


def test_wheels_without_a_build_tag_do_not_count(tmp_path: Path) -> None:
    store = tmp_path / "store"
    put_public(store, make_wheel(tmp_path))
    assert next_serial(store, "demo", "1.0") == 1


@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("flash-attn", "2.8.3"),
        ("flash_attn", "2.8.3"),
        ("Flash-Attn", "2.8.3"),
        ("flash.attn", "2.8.3"),
        ("flash-attn", "2.8.3.0"),
        ("flash-attn", "v2.8.3"),
    ],
)
def test_serials_know_a_name_and_version_in_any_spelling(tmp_path: Path, name: str, version: str) -> None:
    """Recipes write them as the project does; file names are normalised."""
    store = tmp_path / "store"
    put_built(store, make_wheel(tmp_path, "flash-attn", "2.8.3", build="4_0123abcd"))
    assert next_serial(store, name, version) == 5


# --- several processes, and killed ones -------------------------------------------------------------


def test_the_same_key_committed_at_once(tmp_path: Path) -> None:
    """Two builds of one key need not be the same bytes: all must get those of the one that came first."""
    store = tmp_path / "store"
    wheels = [make_wheel(tmp_path / str(one), files={"demo.py": bytes(1000 * one)}) for one in range(3)]
    processes = [start(COMMITTER, store, wheel, json.dumps(DESCRIBED)) for wheel in wheels]
    assert [hear(process) for process in processes] == ["ready"] * 3
    chance = random.Random(3)
    for _ in range(12):
        key = f"{chance.getrandbits(256):064x}"
        for process in processes:
            tell(process, key)
        answers = {hear(process) for process in processes}
        entry = read(store, key)
        assert entry is not None
        assert answers == {wheel_of(entry).sha256}
        verify_wheel(entry)
    for process in processes:
        end(process)
    assert temporary(store) == []


def test_killed_in_the_middle_of_a_commit(tmp_path: Path) -> None:
    """A pipe in the wheel's place: the process stops in the middle, for sure, to read it."""
    store, pipe = tmp_path / "store", tmp_path / "demo-1.0-py3-none-any.whl"
    os.mkfifo(pipe)
    process = start(COMMITTER, store, pipe, json.dumps(DESCRIBED))
    hear(process)
    tell(process, KEY)
    assert eventually(lambda: any((one / "build.log").exists() for one in temporary(store)), seconds=10)
    assert read(store, KEY) is None
    process.kill()
    process.wait()
    assert read(store, KEY) is None
    assert visible(store) == []
    assert list(entries(store)) == []
    pipe.unlink()
    entry = commit(store, key=KEY, wheel=make_wheel(tmp_path), described=DESCRIBED, papers=PAPERS)
    assert list(entries(store)) == [entry]
    verify_wheel(entry)


def test_killed_at_any_moment_of_a_commit(tmp_path: Path) -> None:
    store, wheel = tmp_path / "store", make_wheel(tmp_path, files={"big": os.urandom(2_000_000)})
    chance = random.Random(11)
    keys = [f"{chance.getrandbits(256):064x}" for _ in range(12)]
    finished = 0
    for key in keys:
        process = start(COMMITTER, store, wheel, json.dumps(DESCRIBED))
        hear(process)
        tell(process, key)
        time.sleep(chance.uniform(0, 0.04))
        process.send_signal(signal.SIGKILL)
        process.wait()
        found = read(store, key)
        if found is not None:
            finished += 1
            verify_wheel(found)
            assert (found.folder / "build.log").stat().st_size == 4_000_000
    assert len(list(entries(store))) == finished
    for key in keys:
        verify_wheel(commit(store, key=key, wheel=wheel, described=DESCRIBED, papers=PAPERS))


def test_a_failed_commit_leaves_nothing(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with pytest.raises(OSError, match="No such file"):
        commit(store, key=KEY, wheel=tmp_path / "gone.whl", described=DESCRIBED, papers=PAPERS)
    assert not list(store.iterdir())


def test_what_killed_processes_left_goes_with_the_next(tmp_path: Path) -> None:
    store = tmp_path / "store"
    (store / ".tmp-killed" / "prefix").mkdir(parents=True)
    (store / ".tmp-file").write_text("half")
    entry = commit(store, key=KEY, wheel=make_wheel(tmp_path), described=DESCRIBED, papers={})
    assert temporary(store) == []
    verify_wheel(entry)


def test_what_a_running_process_makes_stays(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with shared_lock(store, "importing"):
        (store / ".tmp-mine").mkdir()
        commit(store, key=KEY, wheel=make_wheel(tmp_path), described=DESCRIBED, papers={})
        assert [path.name for path in temporary(store)] == [".tmp-mine"]


# --- the index --------------------------------------------------------------------------------------


def indexed(store: Path) -> list[str]:
    return [str(row["key"]) for row in index_rows(store)]


def test_two_entries_within_one_tick_of_the_clock(tmp_path: Path) -> None:
    """The folder's time is the same before and after the second."""
    store, wheel, folder = tmp_path / "store", make_wheel(tmp_path), tmp_path / "store" / "ab"
    commit(store, key=KEY, wheel=wheel, described=DESCRIBED, papers={})
    tick = folder.stat().st_mtime_ns
    assert indexed(store) == [KEY]
    commit(store, key="ab" + "c" * 62, wheel=wheel, described=DESCRIBED, papers={})
    os.utime(folder, ns=(tick, tick))
    assert len(indexed(store)) == 2


def test_the_index_follows_the_store(tmp_path: Path) -> None:
    store, wheel = tmp_path / "store", make_wheel(tmp_path)
    keys = [f"ab{number:062x}" for number in range(20)]
    for count, key in enumerate(keys, start=1):
        commit(store, key=key, wheel=wheel, described=DESCRIBED, papers={})
        assert indexed(store) == keys[:count]
    for path in store.glob("??"):
        os.utime(path, (1, 1))  # settled
    assert indexed(store) == keys
    assert indexed(store) == keys
    shutil.rmtree(store / "ab" / keys[3])
    assert indexed(store) == [*keys[:3], *keys[4:]]


@pytest.mark.parametrize("content", ["", "[]", '{"schema": 99, "folders": {"ab": {}}}', '{"schema": 1}'])
def test_an_index_that_is_worth_nothing_is_made_anew(tmp_path: Path, content: str) -> None:
    store = tmp_path / "store"
    commit(store, key=KEY, wheel=make_wheel(tmp_path), described=DESCRIBED, papers={})
    (store / "index.json").write_text(content)
    assert indexed(store) == [KEY]


def test_an_index_that_cannot_be_written_does_not_matter(tmp_path: Path) -> None:
    store = tmp_path / "store"
    commit(store, key=KEY, wheel=make_wheel(tmp_path), described=DESCRIBED, papers={})
    (store / "index.json").mkdir()
    assert indexed(store) == [KEY]


def test_names_that_are_no_text_have_digests(tmp_path: Path) -> None:
    names = [os.fsdecode(name) for name in (b"caf\xe9.h", b"caf\xe8.h")]
    found: set[str] = set()
    for name in (*names, "caf\u00e9.h"):
        folder = tmp_path / str(len(found))
        folder.mkdir()
        (folder / name).touch()
        found.add(tree_digest(folder))
    assert len(found) == 3
