"""kill -9 and a full disk at every step of what changes a wheelhouse: the old state or the new one."""

from __future__ import annotations

import errno
import functools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from spark_build.files import sha256_of
from spark_build.paths import Home
from spark_build.transfer.bundle import pack
from spark_build.transfer.bundle_write import write_archive
from spark_build.wheelhouse import generations
from spark_build.wheelhouse.fsck import Suspect, check
from spark_build.wheelhouse.gc import collect
from tests.helpers import faults
from tests.helpers.exports import import_unsigned
from tests.helpers.wheelhouse import VIEW, home_in, make_wheel, publish, put_built, put_public

NAMES = ("publish", "first", "rollback", "remove", "gc", "import", "repair", "pin")


@pytest.fixture
def place() -> Iterator[Path]:
    """Where hundreds of copies are made: in memory where that can be, so that no disk is waited for."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as folder:
        yield Path(folder)


def whole(home: Home) -> tuple[Suspect, ...]:
    return check(home, deep=True, repair=False, told=lambda _done, _total: None)


def collect_all(home: Home) -> None:
    collect(home, keep=1, older_than=0, grace=0, dry_run=False)


def repair(home: Home) -> None:
    check(home, deep=True, repair=True, told=lambda _done, _total: None)


@dataclass(frozen=True)
class Case:
    """A wheelhouse, and what is done to it."""

    root: Path
    run: Callable[[Home], object]


def house(root: Path) -> Home:
    """Three generations; the first is nobody's, the second is pinned."""
    home, dist = home_in(root), root / "dist"
    helper = put_public(home.store, make_wheel(dist, "helper", "1.5"))
    for build in (1, 2, 3):
        demo = make_wheel(dist, build=f"{build}_0123abcd", requires=["helper>=1"])
        made = publish(home, [put_built(home.store, demo, note=str(build)), helper])
    generations.pin(home.views / VIEW, 2)
    publish(home, made.wheels, view="another")
    for folder in home.views.glob("*/generations/*"):
        os.utime(folder, (0, 0))
    return home


def put_another(home: Home) -> None:
    wheel = put_public(home.store, make_wheel(home.wheelhouse.parent / "dist", "more", "2.0"))
    generations.publish(
        home.views / VIEW, home.store, lambda old: ([*(old.wheels if old else ()), wheel], "")
    )


def case(name: str, folder: Path) -> Case:
    """What is tried under this name."""
    home = house(folder / "house")
    root, view, archive = home.wheelhouse.parent, VIEW, folder / "set.tar"
    if name == "publish":
        return Case(root, put_another)
    if name == "first":
        empty = home_in(folder / "empty")
        empty.wheelhouse.parent.mkdir()
        make_wheel(empty.wheelhouse.parent / "dist", "more", "2.0")
        return Case(empty.wheelhouse.parent, put_another)
    if name == "rollback":
        return Case(root, lambda home: generations.rollback(home.views / view, 2))
    if name == "remove":
        return Case(
            root,
            lambda home: generations.remove(home.views / view, home.store, ["demo"], markers={}, force=False),
        )
    if name == "gc":
        return Case(root, collect_all)
    if name == "pin":
        return Case(root, lambda home: generations.pin(home.views / view, 3))
    if name == "import":
        other = home_in(folder / "other")
        dist = other.wheelhouse.parent / "dist"
        wheels = [put_built(other.store, make_wheel(dist, "newer", "4.0", build="1_0123abcd"))]
        wheels.append(put_public(other.store, make_wheel(dist, "helper", "1.6")))
        write_archive(pack(publish(other, wheels), other.store), archive)
        return Case(root, lambda home: import_unsigned(home, archive))
    assert name == "repair"
    damage(home)
    return Case(root, repair)


def damage(home: Home) -> None:
    """What `check --repair` can mend."""
    current = generations.current(home.views / VIEW)
    assert current is not None
    demo, _ = current.wheels
    (current.folder / demo.filename).unlink()
    (current.folder / "constraints.txt").write_text("demo==9\n")
    (home.views / VIEW / "generations" / "1" / "manifest.json").unlink()


def state(home: Home) -> dict[str, tuple[int, tuple[str, ...]]]:
    """Of each view the current generation, every wheel of it read."""
    found = {}
    for view in home.views.glob("*"):
        if (current := generations.current(view)) is not None:
            for wheel in current.wheels:
                assert sha256_of(current.folder / wheel.filename) == wheel.sha256
            found[view.name] = (current.number, tuple(wheel.filename for wheel in current.wheels))
    return found


def copied(source: Path, destination: Path) -> Home:
    shutil.rmtree(destination, ignore_errors=True)
    shutil.copytree(source, destination, symlinks=True)
    return home_in(destination)


def steps_of(one: Case, folder: Path) -> int:
    done = faults.run(functools.partial(one.run, copied(one.root, folder)))
    assert done is not None
    assert done[1] == ""
    return done[0]


def again(one: Case, home: Home) -> None:
    """The next run of the same; what was done already may be refused."""
    done = faults.run(functools.partial(one.run, home))
    assert done is not None
    assert done[1] == "" or "UsageError" in done[1]


def test_there_are_enough_steps(place: Path) -> None:
    counts = {name: steps_of(case(name, place / name), place / "copy") for name in NAMES}
    assert sum(counts.values()) >= 200, counts


@pytest.mark.parametrize("every", [7, pytest.param(1, marks=pytest.mark.soak)])
@pytest.mark.parametrize("name", NAMES)
def test_killed_at_every_step(place: Path, name: str, every: int) -> None:
    one = case(name, place)
    home = copied(one.root, place / "copy")
    before = state(home) if name != "repair" else None
    one.run(home)
    after = state(home)
    assert whole(home) == ()
    for step in range(1, faults.NEVER, every):
        home = copied(one.root, place / "copy")
        done = faults.run(functools.partial(one.run, home), stop_at=step)
        if done is not None:
            assert (done[0] in range(step - every, step), done[1]) == (True, "")
            break
        if name != "repair":
            assert state(home) in (before, after), step
            left = whole(home)
            assert [fault.finding.rule for fault in left] in ([], ["unfinished"]), (step, left)
        again(one, home)
        assert whole(home) == (), step
        now = state(home)
        assert {view: wheels for view, (_, wheels) in now.items()} == {
            view: wheels for view, (_, wheels) in after.items()
        }, step
    assert step > 5


@pytest.mark.parametrize("every", [10, pytest.param(2, marks=pytest.mark.soak)])
@pytest.mark.parametrize("name", NAMES)
def test_no_space_from_any_step_on(place: Path, name: str, every: int) -> None:
    """From one step on every change fails, also what cleans up: nothing worse than after a kill."""
    one = case(name, place)
    home = copied(one.root, place / "copy")
    before = state(home) if name != "repair" else None
    one.run(home)
    after = state(home)
    for step in range(1, faults.NEVER, every):
        home = copied(one.root, place / "copy")
        done = faults.run(functools.partial(one.run, home), stop_at=step, error=errno.ENOSPC)
        assert done is not None
        if done[0] < step:
            break
        if name != "repair":
            assert state(home) in (before, after), step
            assert [fault.finding.rule for fault in whole(home)] in ([], ["unfinished"]), step
        again(one, home)
        assert whole(home) == (), step


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small disk of its own."""
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "spark-build-test", folder], check=True, timeout=30
    )
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True, timeout=30)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts a disk")
def test_a_disk_that_is_really_full(disk: Path, tmp_path: Path) -> None:
    """Publish on a disk that leaves a few bytes more each time, until it works."""
    home = home_in(disk)
    old = publish(home, [put_public(home.store, make_wheel(tmp_path / "dist"))])
    big = [
        make_wheel(tmp_path / "dist", f"big{n}", files={f"big{n}.bin": os.urandom(60_000)}) for n in range(2)
    ]
    failures = 0
    for room in range(0, 400, 8):
        ballast = faults.fill(disk)
        os.truncate(ballast, max(0, ballast.stat().st_size - room * 1024))
        done = faults.run(lambda: publish(home, [*old.wheels, *(put_public(home.store, one) for one in big)]))
        ballast.unlink()
        assert done is not None
        assert whole(home) == (), room
        if done[1] == "":
            break
        failures += 1
        assert "No space left" in done[1]
        assert state(home) == {VIEW: (1, (old.wheels[0].filename,))}
    assert failures > 5
    assert state(home)[VIEW][0] == 2
