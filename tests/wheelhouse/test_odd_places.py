"""A wheelhouse on a disk that cannot be written, has no locks or no room, is another user's; under a strict umask.

Each command works, or ends with one error and what to type next; nothing is lost.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import json
import os
import shutil
import struct
import subprocess
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from spark_build.build.sandbox import EQUAL, LOAD, MACHINES, NUMBER, PASSED
from spark_build.errors import HostError
from spark_build.files import sha256_of
from spark_build.paths import Home
from spark_build.wheelhouse import generations
from spark_build.wheelhouse.store import index_rows
from tests.conftest import Root, make_root
from tests.helpers import faults
from tests.helpers.wheelhouse import (
    VIEW,
    end,
    eventually,
    hear,
    home_in,
    make_wheel,
    publish,
    put_built,
    put_public,
    snapshot,
    start,
    tell,
)
from tests.transfer.test_export_remote import start_sshd
from tests.wheelhouse.test_faults import collect_all, house, place, put_another, state, whole
from tests.wheelhouse.test_wheelhouse import PUBLISHER

__all__ = ["place"]  # fixture
OWN = VIEW.replace("1.0", "t")  # the view of the root's train
READING = ("list", "generations", "check --no-resolve", "path")
GC = "gc --keep 1 --older-than 0 --grace 0"
CHANGING = ("rollback", "pin", "remove helper --force", GC, "import FILE --unsigned")


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root with three generations of the train's view, and set.tar beside it."""
    place = tmp_path_factory.mktemp("odd")
    made = make_root(place)
    home = house(made.folder)
    old = generations.current(home.views / VIEW)
    assert old is not None
    publish(home, old.wheels[:1], view=OWN)
    publish(home, old.wheels, view=OWN)
    with_more = put_public(home.store, make_wheel(place / "dist", "more", "2.0"))
    other = make_root(place / "other")
    publish(
        home_in(other.folder), [put_built(home_in(other.folder).store, make_wheel(place / "d"))], view=OWN
    )
    done = other.run("wheelhouse", "export", str(place / "set.tar"), "--without-spark-build")
    assert done.returncode == 0, done.stderr
    publish(home, [*old.wheels, with_more], view=OWN)
    return place


@pytest.fixture
def root(place: Path, template: Path) -> Root:
    """A copy of it."""
    shutil.copytree(template, place, symlinks=True, dirs_exist_ok=True)
    return Root(folder=place / "root", links=place / "links")


def inside(setup: Callable[[], object], root: Root, *commands: str) -> Iterator[tuple[str, int, str]]:
    """Run commands of `wheelhouse` in a process of their own after `setup`: (command, exit code, stderr)."""
    for command in commands:
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                setup()
                words = command.replace("FILE", str(root.folder.parent / "set.tar")).split()
                done = root.run("wheelhouse", *words)
                answer = (done.returncode, done.stderr)
            except BaseException:  # noqa: BLE001 - the parent judges
                answer = (-1, traceback.format_exc())
            os.write(writing, json.dumps(answer).encode())
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as pipe:
            code, said = json.loads(pipe.read())
        os.waitpid(child, 0)
        yield command, code, said


def refused(found: tuple[str, int, str], why: str) -> None:
    command, code, said = found
    lines = said.splitlines()
    assert code == 4, (command, code, said)
    assert [line.count(why) for line in lines if line.startswith("error:")] == [1], (command, said)
    assert sum(line.startswith("  next:") for line in lines) == 1, (command, said)


def without_powers() -> None:
    """As root, be held to the modes of others' files, as any user is."""
    header, none = struct.pack("=Ii", 0x20080522, 0), bytes(24)
    assert ctypes.CDLL(None).capset(header, none) == 0


def without_locks() -> None:
    """Let flock fail as on a network file system without its daemon, by a filter in the kernel."""
    number = (73, 32)[list(MACHINES).index(os.uname().machine)]
    steps = [(LOAD, 0, 0, NUMBER), (EQUAL, 0, 1, number), (6, 0, 0, 0x50000 | errno.ENOLCK), PASSED]
    program = b"".join(struct.pack("=HBBI", *step) for step in steps)
    kept = ctypes.create_string_buffer(program)
    filters = ctypes.create_string_buffer(struct.pack("@HP", len(steps), ctypes.addressof(kept)))
    libc = ctypes.CDLL(None)
    assert libc.prctl(38, 1, 0, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
    assert libc.prctl(22, 2, filters) == 0  # PR_SET_SECCOMP, SECCOMP_MODE_FILTER


def test_without_locks_it_is_said(root: Root) -> None:
    before = snapshot(root.folder)
    for found in inside(without_locks, root, *CHANGING):
        refused(found, "this file system has no locks: No locks available")
    assert snapshot(root.folder) == before
    for command, code, said in inside(without_locks, root, "list", "generations", "path"):
        assert code == 0, (command, said)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_another_owner(root: Root) -> None:
    """What is another user's can be read, checked and exported."""
    subprocess.run(["chown", "-R", "65534:65534", root.folder], check=True)
    before = snapshot(root.folder)
    for found in inside(without_powers, root, *CHANGING):
        refused(found, "no permission")
    export = f"export {root.folder.parent}/out.tar --without-spark-build"
    for command, code, said in inside(without_powers, root, *READING, export):
        assert code == 0, (command, said)
    assert snapshot(root.folder) == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts a disk")
def test_a_read_only_disk(root: Root, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "spark-build-test", disk], check=True, timeout=30)
    try:
        trash = shutil.ignore_patterns(".trash")  # a process in the background may be deleting it
        shutil.copytree(root.folder.parent, disk, symlinks=True, dirs_exist_ok=True, ignore=trash)
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True, timeout=30)
        there = Root(folder=disk / "root", links=disk / "links")
        for found in inside(lambda: None, there, *CHANGING):
            refused(found, "Read-only file system")
        for found in inside(lambda: None, there, f"export {tmp_path}/out.tar"):
            refused(found, "there is no place to pack spark-build itself")
        export = f"export {tmp_path}/out.tar --without-spark-build"
        for command, code, said in inside(lambda: None, there, *READING, export):
            assert code == 0, (command, said)
    finally:
        subprocess.run(["umount", "--lazy", disk], check=True, timeout=30)


@pytest.mark.parametrize("part", [0.1, 0.5, 0.9])
def test_a_quota_that_is_used_up(root: Root, part: float) -> None:
    """From one step of the import on."""
    home = home_in(root.folder)
    before = state(home)

    def run() -> None:
        (found,) = inside_here(root, "import FILE --unsigned")
        assert found[1] == 0, found

    kept = root.folder.parent / "kept"
    shutil.copytree(root.folder, kept, symlinks=True, ignore=shutil.ignore_patterns(".trash"))
    clean = faults.run(run)
    assert clean is not None
    assert clean[1] == ""
    after = state(home)
    shutil.rmtree(root.folder)
    kept.rename(root.folder)
    done = faults.run(run, stop_at=int(clean[0] * part), error=errno.EDQUOT)
    assert done is not None
    assert "error: the disk is full" in done[1]
    assert "next: free some space, then run the same command again" in done[1]
    assert state(home) in (before, after)
    assert {fault.finding.rule for fault in whole(home)} <= {"unfinished"}
    again = faults.run(run)
    assert again is not None
    assert again[1] == ""
    assert whole(home) == ()


def inside_here(root: Root, command: str) -> list[tuple[str, int, str]]:
    done = root.run("wheelhouse", *command.replace("FILE", str(root.folder.parent / "set.tar")).split())
    return [(command, done.returncode, done.stderr)]


def test_a_strict_umask(root: Root) -> None:
    """What is made is its owner's alone, and whole."""
    export = f"export {root.folder.parent}/out.tar --without-spark-build"
    for command, code, said in inside(lambda: os.umask(0o077), root, *CHANGING, export, *READING):
        assert code == 0, (command, said)
    assert whole(home_in(root.folder)) == ()
    assert (root.folder.parent / "out.tar").stat().st_mode & 0o077 == 0


@pytest.mark.slow
def test_two_roots_with_one_cache(place: Path) -> None:
    """At once, and the one that comes second finds what the first compiled."""
    roots = [make_root(place / name) for name in ("one", "two", "three")]
    for other in roots[1:]:
        (other.folder / "cache").symlink_to(roots[0].folder / "cache")
    (roots[0].folder / "cache").mkdir()
    with ThreadPoolExecutor() as threads:
        both = list(threads.map(lambda one: one.run("build", "tiny", "--no-closure"), roots[:2]))
    last = roots[2].run("build", "tiny", "--no-closure")
    assert [done.returncode for done in (*both, last)] == [0, 0, 0], [done.stderr for done in (*both, last)]
    assert [whole(home_in(one.folder)) for one in roots] == [(), (), ()]
    wheels = [next(one.folder.glob("wheelhouse/store/*/*/*.whl")) for one in roots]
    assert len({sha256_of(wheel) for wheel in wheels}) == 1
    assert "1 of 1" in last.stdout + last.stderr


def later(home: Home) -> None:
    """Let everything be from tomorrow, as after the clock was set back."""
    for record in home.store.glob("*/*/record.json"):
        text = json.dumps(json.loads(record.read_text()) | {"committed": "2999-01-01T00:00:00+00:00"})
        record.chmod(0o644)
        record.write_text(text)
    tomorrow = max(path.lstat().st_mtime for path in home.wheelhouse.rglob("*")) + 86_400
    for path in home.wheelhouse.rglob("*"):
        os.utime(path, (tomorrow, tomorrow), follow_symlinks=False)


def test_a_clock_that_was_set_back(root: Root) -> None:
    """New wheels are seen and are the current ones, though all others are younger; gc takes none of them."""
    home = home_in(root.folder)
    later(home)
    names = {row["filename"] for row in index_rows(home.store)}
    before, kept = state(home), snapshot(home.store)
    put_another(home)
    assert {row["filename"] for row in index_rows(home.store)} == names | {"more-2.0-py3-none-any.whl"}
    assert state(home)[VIEW][0] == before[VIEW][0] + 1
    for command, code, said in inside(lambda: None, root, "import FILE --unsigned", "rollback", GC):
        assert code == 0, (command, said)
    collect_all(home)
    assert kept.items() <= {**snapshot(home.store), "index.json": kept["index.json"]}.items()
    assert whole(home) == ()


@pytest.fixture
def sshfs(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """Mounts a folder of this machine by sshfs, with options."""
    folder = tmp_path / "served"
    mounted: list[Path] = []
    folder.mkdir()
    server, sshd = start_sshd(tmp_path / "sshd")

    def mount(*options: str) -> Path:
        place = tmp_path / f"mount{len(mounted)}"
        place.mkdir()
        config = ["-F", sshd.rsh.rpartition(" ")[2], "-p", str(sshd.port)]
        subprocess.run(["sshfs", *config, *options, f"127.0.0.1:{folder}", place], check=True, timeout=60)
        mounted.append(place)
        return place

    yield mount
    for one in mounted:  # lazily: what a build left is still being deleted in the background
        subprocess.run(["fusermount3", "-uz", one], check=False, timeout=60)
    server.terminate()
    server.wait(timeout=20)


# Of the soak tier, which is run by hand: containers have neither, and nothing stands in for a kernel's FUSE.
NEEDS_SSHFS = pytest.mark.skipif(
    not (shutil.which("sshfs") and os.access("/dev/fuse", os.W_OK)), reason="needs /dev/fuse and sshfs"
)


def is_shown(home: Home, name: str) -> bool:
    return name in str(state(home))


@pytest.mark.soak
@NEEDS_SSHFS
def test_a_root_on_sshfs(sshfs: Callable[..., Path]) -> None:
    """One machine publishes, twice at once, is killed, collects and builds; it is told what the locks are."""
    place = sshfs("-o", "no_contain_symlinks")
    made = make_root(place)
    home = house(made.folder)
    processes = [start(PUBLISHER, made.folder, prefix, 4) for prefix in ("a", "b")]
    assert [hear(one) for one in processes] == ["ready"] * 2
    for one in processes:
        tell(one)
    for one in processes:
        end(one, timeout=300)
    names = {f"{prefix}{number}" for prefix in "ab" for number in range(4)}
    assert names < {Path(name).name.partition("-")[0] for name in state(home)[VIEW][1]}
    for count in range(4):
        process = start(PUBLISHER, made.folder, f"k{count}-", 4)
        hear(process)
        tell(process)
        shown = f"k{count}_{count - 1}-" if count else ""  # killed at once, or when this is published
        assert eventually(functools.partial(is_shown, home, shown), seconds=300)
        process.kill()
        process.wait()
        assert {fault.finding.rule for fault in whole(home)} <= {"unfinished"}
    put_another(home)
    collect_all(home)
    assert whole(home) == ()
    done = made.run("build", "tiny", "--no-closure", process=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("locks of fuse.sshfs hold on this machine only") == 1
    again = made.run("--json", "build", "tiny", "--no-closure")
    assert [row["status"] for row in json.loads(again.stdout)["results"]] == ["reused"]
    assert whole(home) == ()


@pytest.mark.soak
@NEEDS_SSHFS
def test_sshfs_that_follows_no_links(sshfs: Callable[..., Path], tmp_path: Path) -> None:
    """As Debian's is mounted by default since its fix of CVE-2026-47187."""
    place = sshfs()
    (place / "a").mkdir()
    with contextlib.suppress(PermissionError):
        (place / "a" / "link").symlink_to("../a")
        (place / "a" / "link").stat()
        pytest.skip("this sshfs follows such links")
    home = home_in(place / "root")
    wheel = put_public(home.store, make_wheel(tmp_path / "dist"))
    with pytest.raises(HostError, match="follows no links to the store") as caught:
        publish(home, [wheel])
    assert "no_contain_symlinks" in str(caught.value.hint)
    assert whole(home) == ()


# Two mounts of one export with nosharecache are two clients of the server.
NFS = os.environ.get("SPARK_BUILD_TEST_NFS", "").split(":")
NEEDS_NFS = pytest.mark.skipif(
    len(NFS) < 2, reason="SPARK_BUILD_TEST_NFS=MOUNT:MOUNT names two mounts of NFS"
)


@pytest.fixture
def shared() -> Iterator[list[Path]]:
    """A new folder, as each mount shows it."""
    name = f"spark-build-{os.getpid()}"
    Path(NFS[0], name).mkdir()
    yield [Path(mount, name) for mount in NFS]
    shutil.rmtree(Path(NFS[0], name))


@pytest.mark.soak
@pytest.mark.timeout(3600)
@NEEDS_NFS
def test_two_mounts_of_nfs(shared: list[Path]) -> None:
    """Four processes publish at once, two on each; then each is killed, and the other mount goes on."""
    processes = [start(PUBLISHER, shared[n % 2], "abcd"[n], 8) for n in range(4)]
    assert [hear(one) for one in processes] == ["ready"] * 4
    for one in processes:
        tell(one)
    for one in processes:
        end(one, timeout=900)
    wanted = {f"{prefix}{number}" for prefix in "abcd" for number in range(8)}
    homes = [home_in(folder) for folder in shared]
    for home in homes:
        assert {Path(name).name.partition("-")[0] for name in state(home)[VIEW][1]} == wanted
        assert whole(home) == ()
    for count in range(20):
        process = start(PUBLISHER, shared[count % 2], f"k{count}-", 4)
        hear(process)
        tell(process)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=count / 20)
        process.kill()
        process.communicate()
        assert {fault.finding.rule for fault in whole(homes[(count + 1) % 2])} <= {"unfinished"}
    put_another(homes[0])
    collect_all(homes[1])
    assert [whole(home) for home in homes] == [(), ()]
