from __future__ import annotations

import errno
import fcntl
import os
import random
import signal
import socket
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_build import files
from spark_build.errors import HostError
from spark_build.files import (
    copy_or_link,
    copy_tree,
    locked,
    remove_tree,
    sha256_of,
    sync_tree,
    write_atomically,
)
from spark_build.reporting import Reporter, reporting
from spark_build.wheelhouse.store import tree_digest
from tests.helpers.wheelhouse import end, hear, start, tell

SIZE = 1 << 20
WRITER = f"""
import sys
from pathlib import Path
from spark_build.files import write_atomically
path = Path(sys.argv[1])
print("ready", flush=True)
while True:
    for byte in b"ab":
        write_atomically(path, bytes([byte]) * {SIZE})
"""
COUNTER = """
import sys, time
from pathlib import Path
from spark_build.files import locked
lock, counter = Path(sys.argv[1]), Path(sys.argv[2])
print("ready", flush=True)
sys.stdin.readline()
for _ in range(int(sys.argv[3])):
    with locked(lock, purpose="counting"):
        value = int(counter.read_text())
        time.sleep(0.002)
        counter.write_text(str(value + 1))
"""
HOLDER = """
import os, sys
from pathlib import Path
from spark_build.files import locked
with locked(Path(sys.argv[1]), purpose="building onnx"):
    print(os.getpid(), flush=True)
    sys.stdin.readline()
"""
# Holds the lock, hands it to a child that outlives it, and dies without a word.
DYING = """
import os, signal, subprocess, sys
from pathlib import Path
from spark_build.files import locked
with locked(Path(sys.argv[1]), purpose="building torch") as held:
    child = subprocess.Popen(["sleep", "3600"], pass_fds=(held,), stdout=subprocess.DEVNULL)
    print(child.pid, flush=True)
    sys.stdin.readline()
    if sys.argv[2] == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
"""


# --- writing ----------------------------------------------------------------------------------------


def test_written_as_told(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "file.json"
    write_atomically(path, "grüße\n")
    assert path.read_bytes() == "grüße\n".encode()
    write_atomically(path, b"\x00\xff")
    assert path.read_bytes() == b"\x00\xff"
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert [one.name for one in path.parent.iterdir()] == ["file.json"]


def test_a_link_is_replaced_not_followed(tmp_path: Path) -> None:
    """What it points to may be the store."""
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "link").symlink_to("precious")
    write_atomically(tmp_path / "link", "new")
    assert not (tmp_path / "link").is_symlink()
    assert (tmp_path / "precious").read_text() == "precious"


def test_a_failure_leaves_the_old_and_nothing_else(tmp_path: Path) -> None:
    folder = tmp_path / "taken"
    (folder / "inside").mkdir(parents=True)
    with pytest.raises(OSError, match="directory"):
        write_atomically(folder, "a file cannot replace a folder")
    assert [one.name for one in tmp_path.iterdir()] == ["taken"]


def test_a_killed_writer_leaves_the_old_or_the_new(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"a" * SIZE)
    whole = {b"a" * SIZE, b"b" * SIZE}
    chance = random.Random(7)
    seen = set()
    for _ in range(12):
        process = start(WRITER, path)
        assert hear(process) == "ready"
        deadline = time.monotonic() + chance.uniform(0.02, 0.15)
        while time.monotonic() < deadline:
            seen.add(path.read_bytes())
        process.kill()
        process.wait()
        seen.add(path.read_bytes())
    assert seen <= whole
    assert seen == whole, "the writers did write"
    # What a killed one leaves is hidden and is no file of that name.
    assert all(one.name.startswith(".file.") for one in tmp_path.iterdir() if one != path)


# --- locks ------------------------------------------------------------------------------------------


def test_one_at_a_time(tmp_path: Path) -> None:
    counter = tmp_path / "counter"
    counter.write_text("0")
    processes = [start(COUNTER, tmp_path / "locks" / "lock", counter, 25) for _ in range(4)]
    for process in processes:
        assert hear(process) == "ready"
    for process in processes:
        tell(process)
    for process in processes:
        end(process, timeout=60)
    assert counter.read_text() == "100"
    assert list((tmp_path / "locks").iterdir()) == [], "no litter"


def test_who_waits_is_told_once_who_holds_it(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    holder = start(HOLDER, lock)
    pid = hear(holder)
    told: list[str] = []

    def waiting(who: str) -> None:
        told.append(who)
        # Long enough for several looks at the lock.
        os.system(f"(sleep 0.5; kill {pid}) &")

    begin = time.monotonic()
    with locked(lock, purpose="second", waiting=waiting):
        assert told == [f"building onnx (process {pid})"]
        assert time.monotonic() - begin > 0.4
    holder.wait()


def test_nobody_is_told_when_nobody_waits(tmp_path: Path) -> None:
    told: list[str] = []
    for _ in range(2):
        with locked(tmp_path / "lock", purpose="alone", waiting=told.append):
            assert (tmp_path / "lock").read_text() == f"alone (process {os.getpid()})\n"
    assert told == []


def test_a_shorter_name_leaves_nothing_of_a_longer_one(tmp_path: Path) -> None:
    with locked(tmp_path / "lock", purpose="a very long purpose, longer than the next one"):
        pass
    with locked(tmp_path / "lock", purpose="short"):
        assert (tmp_path / "lock").read_text() == f"short (process {os.getpid()})\n"


def test_an_exception_frees_the_lock(tmp_path: Path) -> None:
    with pytest.raises(KeyError), locked(tmp_path / "lock", purpose="failing"):
        raise KeyError
    with locked(tmp_path / "lock", purpose="next", waiting=pytest.fail):
        pass


def test_a_killed_holder_frees_the_lock(tmp_path: Path) -> None:
    holder = start(HOLDER, tmp_path / "lock")
    hear(holder)
    holder.kill()
    holder.wait()
    with locked(tmp_path / "lock", purpose="next", waiting=pytest.fail):
        pass


@pytest.mark.parametrize("how", ["kill", "leave"])
def test_a_child_with_the_descriptor_keeps_the_lock(tmp_path: Path, how: str) -> None:
    """Its compilers live on: a new run must not meet them."""
    parent = start(DYING, tmp_path / "lock", how)
    child = int(hear(parent))
    tell(parent)
    parent.wait(timeout=30)
    assert Path(f"/proc/{child}").exists()
    told: list[str] = []

    def waiting(who: str) -> None:
        told.append(who)
        os.kill(child, signal.SIGKILL)

    with locked(tmp_path / "lock", purpose="next", waiting=waiting):
        assert told == [f"building torch (process {parent.pid})"]


def test_children_do_not_get_the_lock_by_accident(tmp_path: Path) -> None:
    with locked(tmp_path / "lock", purpose="first"):
        sleeper = start("import time; print('ready', flush=True); time.sleep(3600)")
        assert hear(sleeper) == "ready"
    try:
        with locked(tmp_path / "lock", purpose="next", waiting=pytest.fail):
            pass
    finally:
        sleeper.kill()
        sleeper.wait()


# --- trees ------------------------------------------------------------------------------------------


def test_copy_or_link(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"data")
    copy_or_link(tmp_path / "file", tmp_path / "same")
    assert (tmp_path / "same").read_bytes() == b"data"
    memory = Path("/dev/shm") / f"spark-build-test-{os.getpid()}"  # another file system
    memory.write_bytes(b"elsewhere")
    memory.chmod(0o755)
    os.utime(memory, (1, 1))
    try:
        copy_or_link(memory, tmp_path / "copied")
    finally:
        memory.unlink()
    copied = tmp_path / "copied"
    assert copied.read_bytes() == b"elsewhere"
    assert (copied.stat().st_mode & 0o777, copied.stat().st_mtime) == (0o755, 1)


def test_a_link_is_taken_in_as_the_file_it_means(tmp_path: Path) -> None:
    """A store that holds a link holds nothing."""
    (tmp_path / "file").write_bytes(b"data")
    (tmp_path / "link").symlink_to("file")
    copy_or_link(tmp_path / "link", tmp_path / "taken")
    assert not (tmp_path / "taken").is_symlink()
    assert (tmp_path / "taken").read_bytes() == b"data"


def test_of_a_link_only_the_link_goes(tmp_path: Path) -> None:
    """A build may put one where a folder is to be removed; the folder's modes stay as they are."""
    others = tmp_path / "others"
    others.mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(others)
    remove_tree(tmp_path / "link")
    assert not (tmp_path / "link").is_symlink()
    assert others.stat().st_mode & 0o777 == 0o700


def test_remove_tree(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("precious")
    tree = tmp_path / "tree"
    (tree / "a" / "b").mkdir(parents=True)
    (tree / "a" / "b" / "file").write_text("x")
    (tree / "a" / "link").symlink_to(outside)
    (tree / "a" / "b" / "file").chmod(0o444)
    (tree / "a" / "b").chmod(0o555)
    (tree / "a").chmod(0o555)
    remove_tree(tree)
    assert not tree.exists()
    assert (outside / "file").read_text() == "precious"
    remove_tree(tree)


def test_read_only_folders_go_also_without_root(tmp_path: Path) -> None:
    """Module caches and some sdists are unpacked read-only."""
    tmp_path.chmod(0o777)
    code = """
import os, sys
from pathlib import Path
from spark_build.files import remove_tree
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
tree = Path(sys.argv[1], "tree")
(tree / "a" / "b").mkdir(parents=True)
(tree / "a" / "b" / "file").write_text("x")
(tree / "a" / "b").chmod(0o555)
(tree / "a").chmod(0o555)
remove_tree(tree)
print("there" if tree.exists() else "gone")
"""
    folder = Path(f"/dev/shm/spark-build-tree-{os.getpid()}")
    folder.mkdir()
    folder.chmod(0o777)
    try:
        assert end(start(code, folder)) == "gone\n"
    finally:
        remove_tree(folder)


def test_sync_tree_takes_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "file").write_text("x")
    (tmp_path / "a" / "file").chmod(0o444)
    (tmp_path / "a" / "dangling").symlink_to("nowhere")
    sync_tree(tmp_path)


def test_sha256(tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(b"")
    assert sha256_of(tmp_path / "empty") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


def test_a_lock_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "others").write_text("kept")
    (tmp_path / "lock").symlink_to(tmp_path / "others")
    with (
        pytest.raises(HostError, match="a link is in the place of a lock"),
        locked(tmp_path / "lock", purpose=""),
    ):
        pass
    assert (tmp_path / "others").read_text() == "kept"
    assert (tmp_path / "lock").is_symlink()


@pytest.mark.parametrize("what", ["a link", "no file"])
def test_a_lock_that_leads_to_other_things_is_refused(what: str, tmp_path: Path) -> None:
    (tmp_path / "others").write_text("kept")
    if what == "a link":
        os.link(tmp_path / "others", tmp_path / "lock")
    else:
        os.mkfifo(tmp_path / "lock")
    with (
        pytest.raises(HostError, match=f"{what} is in the place of a lock"),
        locked(tmp_path / "lock", purpose=""),
    ):
        pass
    assert (tmp_path / "others").read_text() == "kept"


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("fuse.sshfs me@node:/srv rw,user_id=0", "locks of fuse.sshfs hold on this machine only"),
        ("nfs node:/srv rw,vers=3,local_lock=all,addr=192.0.2.1", "locks of nfs hold on this machine only"),
        ("nfs4 node:/srv rw,vers=4.2,local_lock=none", ""),
        ("ext4 /dev/sda rw", ""),
    ],
)
def test_locks_of_one_machine_are_told_once(
    kind: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = tmp_path.stat().st_dev
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"42 27 {os.major(device)}:{os.minor(device)} / /mnt/lab rw shared:1 - {kind}\n")
    monkeypatch.setattr(files, "MOUNTS", mounts)
    files._tell_of_own_locks.cache_clear()
    told: list[str] = []
    with reporting(Reporter(told.append)):
        for _ in range(2):
            with locked(tmp_path / "lock", purpose="testing"):
                pass
    files._tell_of_own_locks.cache_clear()
    assert [said in text and "/mnt/lab" in text for text in told] == [True] * bool(said)


def test_a_lock_that_another_machine_removed_is_taken_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On NFS its file is stale then, wherever it is next looked at."""
    real = os.fstat
    for count in (1, 2):
        looks = iter(range(1, count + 1))

        def fstat(descriptor: int, looks: Iterator[int] = looks, last: int = count) -> os.stat_result:
            if next(looks, None) == last:
                raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
            return real(descriptor)

        monkeypatch.setattr(os, "fstat", fstat)
        with locked(tmp_path / "lock", purpose="testing"):
            assert (tmp_path / "lock").is_file()
        assert next(looks, None) is None, "it was stale"


def test_a_lock_that_another_machine_has_made_anew_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An NFS client remembers names for a minute; it asks the server about a folder that is opened."""
    done: list[str] = []
    real_open, real_flock = os.open, fcntl.flock

    def opened(path: Any, flags: int, *more: Any, **named: Any) -> int:
        done.append("asks" if flags & os.O_DIRECTORY and Path(path) == tmp_path else "opens")
        return real_open(path, flags, *more, **named)

    def flock(descriptor: int, kind: int) -> None:
        real_flock(descriptor, kind)
        done.append("locks")

    monkeypatch.setattr(os, "open", opened)
    monkeypatch.setattr(fcntl, "flock", flock)
    with locked(tmp_path / "lock", purpose="testing"):
        assert done == ["opens", "locks", "asks"]


def test_a_tree_is_copied_with_what_its_digest_tells(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "lib").mkdir(parents=True)
    (tree / "lib" / "a.so").write_text("a")
    (tree / "lib" / "a.so").chmod(0o755)
    (tree / "lib" / "link").symlink_to("a.so")
    (tree / "nowhere").symlink_to("gone")
    (tree / ".git").mkdir()
    os.mkfifo(tree / "pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tree / "ipc"))
        copy_tree(tree, tmp_path / "copy", without=".git")
    assert sorted(path.name for path in (tmp_path / "copy").rglob("*")) == ["a.so", "lib", "link", "nowhere"]
    assert tree_digest(tmp_path / "copy") == tree_digest(tree)
    with pytest.raises(FileExistsError):
        copy_tree(tree / "lib", tmp_path / "copy" / "lib")
    (tree / "lib" / "link").unlink()
    copy_tree(tree / "lib", tmp_path / "copy" / "lib", existing=True)


def test_a_disk_that_is_full_ends_the_copy_of_a_tree(tmp_path: Path) -> None:
    asked = []

    def copy(source: Path, copied: Path) -> None:
        asked.append(source)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(copied))

    for name in ("a", "b"):
        (tmp_path / "tree" / name).mkdir(parents=True)
        (tmp_path / "tree" / name / "file").touch()
    with pytest.raises(OSError, match="No space left") as raised:
        copy_tree(tmp_path / "tree", tmp_path / "copy", copy=copy)
    assert raised.value.errno == errno.ENOSPC
    assert len(asked) == 1
