from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import pytest

from spark_build.errors import StoreError
from spark_build.files import LockTimeout, locked
from spark_build.paths import Home
from spark_build.wheelhouse import generations
from spark_build.wheelhouse.generations import (
    Generation,
    current,
    discard,
    numbers,
    read,
    verdict_of,
    write_verdict,
)
from spark_build.wheels.model import StoredWheel
from tests.helpers.wheelhouse import (
    VIEW,
    demo_house,
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

# Publishes one wheel after the other, each beside what was there before.
PUBLISHER = """
import sys
from pathlib import Path
from spark_build.wheelhouse import generations
from tests.helpers.wheelhouse import VIEW, home_in, make_wheel, put_built
root, prefix = Path(sys.argv[1]), sys.argv[2]
home = home_in(root)
wheels = [put_built(home.store, make_wheel(root / prefix, f"{prefix}{n}")) for n in range(int(sys.argv[3]))]
print("ready", flush=True)
sys.stdin.readline()
for wheel in wheels:
    generations.publish(
        home.views / VIEW, home.store, lambda before: ([*(before.wheels if before else ()), wheel], "")
    )
print("done", flush=True)
"""
# Looks at the current generation until it is told to stop; every look must find all of one.
READER = """
import select, sys
from pathlib import Path
from spark_build.wheelhouse.generations import current
view, seen, looks = Path(sys.argv[1]), [], 0
print("ready", flush=True)
while not select.select([sys.stdin], [], [], 0)[0]:
    generation = current(view)
    looks += 1
    if generation is None:
        assert not seen
        continue
    assert (view / "current").is_dir()
    names = {path.name for path in (view / "current").glob("*.whl")}
    for wheel in generation.wheels:
        assert (generation.folder / wheel.filename).stat().st_size == wheel.size
    assert len(generation.wheels) == generation.number, "one wheel more in each"
    if not seen or seen[-1] != generation.number:
        assert not seen or seen[-1] < generation.number, "never backwards"
        seen.append(generation.number)
print(looks, *seen)
"""
# Switches to and fro as fast as it can; the other looks as fast as it can.
SWITCHER = """
import sys
from pathlib import Path
from spark_build.wheelhouse.generations import switch
print("ready", flush=True)
for number in range(1000):
    switch(Path(sys.argv[1]), 1 + number % 2)
print("done", flush=True)
"""


def environment(folder: Path) -> Path:
    """A fresh environment without pip; returns its interpreter."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=60)
    return folder / "bin" / "python"


def pip(python: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check"]
    # Not this machine's configuration: an index or a folder of its own must not help.
    scrubbed = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    return subprocess.run(
        [*command, *map(str, arguments)],
        env={**scrubbed, "PIP_CONFIG_FILE": os.devnull, "PIP_NO_CACHE_DIR": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def versions(python: Path, *modules: str) -> list[str]:
    code = "import importlib, sys; print(*(importlib.import_module(m).VERSION for m in sys.argv[1:]))"
    done = subprocess.run(
        [python, "-c", code, *modules], capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout.split()


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Generation:
    """A published view for tests that only read it."""
    return demo_house(tmp_path_factory.mktemp("house"))[1]


# --- publishing -------------------------------------------------------------------------------------


def test_before_the_first_generation(tmp_path: Path) -> None:
    assert current(tmp_path / "views" / VIEW) is None


def test_a_generation_is_links_and_papers(tmp_path: Path) -> None:
    home, generation = demo_house(tmp_path)
    view = home.views / VIEW
    assert generation.folder == view / "generations" / "1"
    assert (view / "current").readlink() == Path("generations/1")
    assert current(view) == generation
    assert read(generation.folder) == generation
    assert {path.name for path in generation.folder.iterdir()} == {
        *(wheel.filename for wheel in generation.wheels),
        *("manifest.json", "constraints.txt", "requirements.txt", "index"),
    }
    for wheel in generation.wheels:
        link = generation.folder / wheel.filename
        assert link.is_symlink()
        assert not link.readlink().is_absolute()
        assert link.resolve() == home.store.resolve() / wheel.key[:2] / wheel.key / wheel.filename
    assert [wheel.name for wheel in generation.wheels] == ["demo", "helper", "lonely", "more"]
    assert [wheel.name for wheel in generation.built()] == ["demo"]
    assert (
        generation.folder / "constraints.txt"
    ).read_text() == "demo==1.0\nhelper==1.5\nlonely==3.0\nmore==2.0\n"
    manifest = json.loads((generation.folder / "manifest.json").read_text())
    assert (manifest["schema"], manifest["generation"], manifest["view"]) == (1, 1, VIEW)
    assert {path.name for path in view.iterdir()} <= {"current", "generations", "pages", "lock"}
    assert [path.name for path in (view / "generations").iterdir()] == ["1"]


def test_the_same_wheels_are_the_same_generation(tmp_path: Path) -> None:
    home, first = demo_house(tmp_path)
    before = snapshot(home.wheelhouse)
    again, new = generations.publish(home.views / VIEW, home.store, lambda _: (reversed(first.wheels), ""))
    assert (again, new) == (first, False)
    assert snapshot(home.wheelhouse) == before


def test_another_closure_is_another_generation(tmp_path: Path) -> None:
    home, first = demo_house(tmp_path)
    second, new = generations.publish(home.views / VIEW, home.store, lambda _: (first.wheels, "k" * 64))
    assert (second.number, second.closure_key, new) == (2, "k" * 64, True)
    assert second.wheels == first.wheels


def test_generations_stay_as_they_are(tmp_path: Path) -> None:
    home, first = demo_house(tmp_path)
    before = snapshot(first.folder)
    more = put_built(home.store, make_wheel(tmp_path / "d2", "other"))
    second = publish(home, [*first.wheels, more])
    third = publish(home, [more])
    assert [second.number, third.number] == [2, 3]
    assert snapshot(first.folder) == before
    assert current(home.views / VIEW) == third
    assert read(first.folder) == first


def test_the_choice_sees_the_current_generation(tmp_path: Path) -> None:
    home, first = demo_house(tmp_path)
    seen: list[Generation | None] = []

    def choose(before: Generation | None) -> tuple[list[StoredWheel], str]:
        seen.append(before)
        return list(first.wheels), ""

    generations.publish(home.views / VIEW, home.store, choose)
    generations.publish(home.views / "another", home.store, choose)
    assert seen == [first, None]


def test_a_wheel_that_the_store_lacks(tmp_path: Path) -> None:
    home, first = demo_house(tmp_path)
    shutil.rmtree(home.store / first.wheels[0].key[:2])
    before = snapshot(home.wheelhouse)
    with pytest.raises(StoreError, match="is not in the store"):
        publish(home, first.wheels[:1])
    assert snapshot(home.wheelhouse) == before


def test_a_failing_choice_changes_nothing(tmp_path: Path) -> None:
    home, first = demo_house(tmp_path)
    before = snapshot(home.wheelhouse)

    def choose(_: Generation | None) -> tuple[list[StoredWheel], str]:
        raise KeyError

    with pytest.raises(KeyError):
        generations.publish(home.views / VIEW, home.store, choose)
    assert snapshot(home.wheelhouse) == before
    assert publish(home, first.wheels) == first, "and the lock is free"


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"wheels": [{"name": "demo"}]}', '{"wheels": 3}'])
def test_a_manifest_that_cannot_be_read(tmp_path: Path, content: str) -> None:
    home, generation = demo_house(tmp_path)
    (generation.folder / "manifest.json").write_text(content)
    with pytest.raises(StoreError, match="cannot be read") as caught:
        current(home.views / VIEW)
    assert caught.value.where == str(generation.folder / "manifest.json")
    assert caught.value.hint


def test_a_current_that_is_no_link(tmp_path: Path) -> None:
    home, _ = demo_house(tmp_path)
    (home.views / VIEW / "current").unlink()
    (home.views / VIEW / "current").mkdir()
    with pytest.raises(StoreError, match="is no symbolic link"):
        current(home.views / VIEW)


def test_a_verdict_is_kept_with_its_generation(tmp_path: Path) -> None:
    home, first = demo_house(tmp_path)
    assert verdict_of(first) is None
    write_verdict(first, {"verdict": "UPLIFT"})
    assert verdict_of(first) == {"verdict": "UPLIFT"}
    assert verdict_of(publish(home, first.wheels[:1])) is None
    assert read(first.folder) == first


def test_a_generation_that_is_gone_does_not_come_back_with_its_verdict(tmp_path: Path) -> None:
    home, first = demo_house(tmp_path)
    second = publish(home, first.wheels[:1])
    discard(first.folder)
    write_verdict(first, {"verdict": "UPLIFT"})
    assert numbers(second.folder.parent.parent) == [second.number]


# --- moving -----------------------------------------------------------------------------------------


def wheels_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*.whl")}


def test_links_survive_moving_and_copying(tmp_path: Path) -> None:
    home, generation = demo_house(tmp_path / "old")
    before = wheels_of(generation.folder)
    assert len(before) == 4
    copied, moved = tmp_path / "copied", tmp_path / "elsewhere" / "deeper" / "moved"
    moved.parent.mkdir(parents=True)
    shutil.copytree(home.wheelhouse, copied, symlinks=True)
    home.wheelhouse.rename(moved)
    shutil.rmtree(tmp_path / "old")
    for root in (copied, moved):
        assert wheels_of(root / "views" / VIEW / "generations" / "1") == before
        assert wheels_of(root / "views" / VIEW / "current") == before
        found = current(root / "views" / VIEW)
        assert found is not None
        assert found.wheels == generation.wheels


@pytest.mark.parametrize("linked", ["wheelhouse", "wheelhouse/store", "wheelhouse/views"])
def test_a_folder_on_another_disk(tmp_path: Path, linked: str) -> None:
    """Disks fill up; people put a link where a folder was."""
    disk = tmp_path / "mnt" / "disk" / "deep" / "down"
    disk.mkdir(parents=True)
    link = tmp_path / "house" / linked
    link.parent.mkdir(parents=True)
    link.symlink_to(disk)
    _, generation = demo_house(tmp_path / "house")
    assert len(wheels_of(generation.folder)) == 4


# --- several processes ------------------------------------------------------------------------------


def test_readers_meet_whole_generations_only(tmp_path: Path) -> None:
    view = home_in(tmp_path).views / VIEW
    publisher = start(PUBLISHER, tmp_path, "p", 25)
    reader = start(READER, view)
    assert (hear(publisher), hear(reader)) == ("ready", "ready")
    tell(publisher)
    assert hear(publisher) == "done"
    assert eventually(lambda: current(view) is not None, seconds=30)
    time.sleep(0.1)
    tell(reader, "stop")
    looks, *seen = map(int, end(reader).split())
    end(publisher)
    assert seen[-1] == 25
    assert looks > len(seen) > 3, "it did look while the other published"


def test_there_is_a_current_generation_at_every_moment(tmp_path: Path) -> None:
    home, first = demo_house(tmp_path)
    publish(home, first.wheels[:1])
    link = home.views / VIEW / "current"
    switcher = start(SWITCHER, home.views / VIEW)
    assert hear(switcher) == "ready"
    targets: set[str] = set()
    while switcher.poll() is None:
        targets.update(str(link.readlink()) for _ in range(1000))
    assert targets == {"generations/1", "generations/2"}
    assert end(switcher) == "done\n"


def test_publishing_holds_the_lock_of_the_view(tmp_path: Path) -> None:
    home, first = demo_house(tmp_path)
    view = home.views / VIEW
    held: list[str] = []

    def choose(before: Generation | None) -> tuple[tuple[StoredWheel, ...], str]:
        try:
            with locked(view / "lock", purpose="a second publisher", timeout=0):
                held.append("")
        except LockTimeout as others:
            held.append(str(others))
        return first.wheels, "another closure"

    generations.publish(view, home.store, choose)
    assert held[0].startswith("publishing a generation")


def test_the_tenth_generation_comes_after_the_ninth(tmp_path: Path) -> None:
    for number in (10, 9, 1, 11, 2, 100):
        (tmp_path / "generations" / str(number)).mkdir(parents=True)
    assert generations.numbers(tmp_path) == [1, 2, 9, 10, 11, 100]


def test_publishers_at_once_lose_nothing(tmp_path: Path) -> None:
    processes = [start(PUBLISHER, tmp_path, prefix, 8) for prefix in ("a", "b", "c")]
    assert [hear(process) for process in processes] == ["ready"] * 3
    for process in processes:
        tell(process)
    for process in processes:
        end(process, timeout=60)
    found = current(home_in(tmp_path).views / VIEW)
    assert found is not None
    assert found.number == 24
    assert {wheel.name for wheel in found.wheels} == {f"{p}{n}" for p in "abc" for n in range(8)}


def test_killed_publishers_leave_a_whole_generation(tmp_path: Path) -> None:
    home = home_in(tmp_path)
    view = home.views / VIEW
    for count in range(6):
        process = start(PUBLISHER, tmp_path, f"k{count}-", 6)
        hear(process)
        tell(process)
        time.sleep(0.004 * count)
        process.kill()
        process.wait()
        found = current(view)
        for wheel in found.wheels if found else ():
            assert found is not None
            assert (found.folder / wheel.filename).stat().st_size == wheel.size
    last = put_built(home.store, make_wheel(tmp_path / "last", "last"))
    assert [wheel.name for wheel in publish(home, [last]).wheels] == ["last"]


# --- installers -------------------------------------------------------------------------------------


def copied(generation: Generation, folder: Path) -> Path:
    """A copy with real files, as `cp -rL` makes it."""
    subprocess.run(["cp", "-rL", str(generation.folder), str(folder)], check=True, timeout=60)
    return folder


@pytest.mark.parametrize("real", [False, True], ids=["links", "copy"])
def test_pip_installs_from_a_generation(house: Generation, tmp_path: Path, real: bool) -> None:
    folder = copied(house, tmp_path / "copy") if real else house.folder
    python = environment(tmp_path / "env")
    done = pip(python, "install", "--no-index", "--find-links", folder, "demo")
    assert done.returncode == 0, done.stderr
    assert versions(python, "demo", "helper") == ["1.0", "1.5"]


@pytest.mark.parametrize("real", [False, True], ids=["links", "copy"])
def test_uv_installs_from_a_generation(house: Generation, tmp_path: Path, real: bool) -> None:
    folder = copied(house, tmp_path / "copy") if real else house.folder
    python = environment(tmp_path / "env")
    uv = Path(sysconfig.get_path("scripts"), "uv")
    command = [uv, "pip", "install", "--no-config", "--offline", "--no-index", "--find-links", folder, "demo"]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("UV_")}
    done = subprocess.run(
        [*map(str, command), "--python", str(python)],
        env={**kept, "UV_CACHE_DIR": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert versions(python, "demo", "helper") == ["1.0", "1.5"]


def test_requirements_install_with_hashes(house: Generation, tmp_path: Path) -> None:
    python = environment(tmp_path / "env")
    arguments = ["install", "--no-index", "--find-links", house.folder, "--require-hashes", "--no-deps"]
    done = pip(python, *arguments, "-r", house.folder / "requirements.txt")
    assert done.returncode == 0, done.stderr
    assert versions(python, "demo", "helper", "lonely", "more") == ["1.0", "1.5", "3.0", "2.0"]


def test_hashes_refuse_other_bytes(house: Generation, tmp_path: Path) -> None:
    """The reason for requirements.txt: a wheel of the same name with other bytes."""
    folder = copied(house, tmp_path / "copy")
    make_wheel(folder, files={"demo/__init__.py": b"VERSION = 'hostile'"}, build="1_0123abcd")
    python = environment(tmp_path / "env")
    arguments = ["install", "--no-index", "--find-links", folder, "--require-hashes", "--no-deps"]
    done = pip(python, *arguments, "-r", folder / "requirements.txt")
    assert done.returncode != 0
    assert "DO NOT MATCH" in done.stderr


def test_constraints_hold_the_versions(house: Generation, tmp_path: Path) -> None:
    newer = tmp_path / "newer"
    make_wheel(newer, "helper", "9.0")
    python = environment(tmp_path / "env")
    links = ["--no-index", "--find-links", house.folder, "--find-links", newer]
    done = pip(python, "install", *links, "-c", house.folder / "constraints.txt", "demo")
    assert done.returncode == 0, done.stderr
    assert versions(python, "helper") == ["1.5"]


def test_a_newer_build_is_preferred(tmp_path: Path) -> None:
    """The serial in the build tag is what makes a rebuilt wheel win over an older one."""
    home: Home = home_in(tmp_path)
    old = put_built(home.store, make_wheel(tmp_path / "d", build="9_ffffffff"), note="old")
    new = put_built(home.store, make_wheel(tmp_path / "d", build="10_00000000"), note="new")
    other = put_public(home.store, make_wheel(tmp_path / "d", "helper", "1.5"))
    generation = publish(home, [old, new, other])
    python = environment(tmp_path / "env")
    done = pip(python, "install", "--no-index", "--find-links", generation.folder, "demo")
    assert done.returncode == 0, done.stderr
    shown = subprocess.run(
        [python, "-c", "import demo; print(demo.BUILD)"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert shown.stdout.strip() == "10_00000000"
