"""An export and its import: the same wheels arrive, whole or not at all."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_build.errors import StoreError
from spark_build.paths import Home
from spark_build.wheelhouse import store as stores
from spark_build.wheelhouse.generations import Generation, current
from tests.helpers.exports import TOP, export, import_archive, members, told_apart
from tests.helpers.wheelhouse import (
    VIEW,
    demo_house,
    end,
    hear,
    home_in,
    make_wheel,
    publish,
    put_built,
    put_public,
    start,
    tell,
    verify_wheel,
)


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> tuple[Home, Generation]:
    return demo_house(tmp_path_factory.mktemp("house"))


@pytest.fixture(scope="module")
def archive(house: tuple[Home, Generation], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sound export; do not change it."""
    file = tmp_path_factory.mktemp("archive") / "wheels.tar"
    home, generation = house
    assert export(generation, home.store, file) == file.stat().st_size
    return file


# --- there and back ---------------------------------------------------------------------------------


def test_the_same_wheels_arrive(house: tuple[Home, Generation], archive: Path, tmp_path: Path) -> None:
    home, sent = house
    other = home_in(tmp_path / "other")
    arrived, new = import_archive(other, archive)
    assert new
    assert (arrived.number, told_apart(arrived.wheels)) == (1, told_apart(sent.wheels))
    assert current(other.views / VIEW) == arrived
    for wheel, mine in zip(sent.wheels, arrived.wheels, strict=True):
        assert (arrived.folder / wheel.filename).read_bytes() == (sent.folder / wheel.filename).read_bytes()
        here, there = stores.read(other.store, mine.key), stores.read(home.store, wheel.key)
        assert here is not None
        assert there is not None
        verify_wheel(here)
        assert (here.recipe, here.content_digest) == (there.recipe, there.content_digest)
        papers = {
            path.name: path.read_bytes() for path in there.folder.iterdir() if path.name != stores.RECORD
        }
        for name, data in papers.items():
            assert (here.folder / name).read_bytes() == data
    for name in ("requirements.txt", "constraints.txt"):
        assert (arrived.folder / name).read_text() == (sent.folder / name).read_text()
    again, new = import_archive(other, archive)
    assert (again, new) == (arrived, False)
    assert list(other.store.glob(".tmp-*")) == []


def test_what_arrived_can_be_sent_on(archive: Path, tmp_path: Path) -> None:
    second, third = home_in(tmp_path / "2"), home_in(tmp_path / "3")
    arrived, _ = import_archive(second, archive)
    export(arrived, second.store, tmp_path / "again.tar")
    assert import_archive(third, tmp_path / "again.tar")[0].wheels == arrived.wheels
    assert [wheel.imported for wheel in arrived.wheels] == ["unsigned"] * 4


def test_wheels_of_other_names_stay(archive: Path, tmp_path: Path) -> None:
    home = home_in(tmp_path)
    own = put_built(home.store, make_wheel(tmp_path / "d", "own"))
    old = put_public(home.store, make_wheel(tmp_path / "d", "helper", "0.5"))
    first = publish(home, [own, old])
    arrived, new = import_archive(home, archive)
    assert new
    assert [f"{wheel.name} {wheel.version}" for wheel in arrived.wheels] == [
        *("demo 1.0", "helper 1.5", "lonely 3.0", "more 2.0", "own 1.0"),
    ]
    assert (first.folder / old.filename).exists()


@pytest.mark.parametrize("kind", ["gz", "bz2", "xz"])
def test_compressed_ones(archive: Path, tmp_path: Path, kind: str) -> None:
    """By whoever carried it over."""
    with tarfile.open(tmp_path / "c.tar", f"w:{kind}") as tar:  # type: ignore[call-overload]
        for info, data in members(archive):
            tar.addfile(info, io.BytesIO(data))
    arrived, new = import_archive(home_in(tmp_path), tmp_path / "c.tar")
    assert new
    assert len(arrived.wheels) == 4


# --- the archive ------------------------------------------------------------------------------------


def test_it_is_a_plain_tar_of_real_files(
    house: tuple[Home, Generation], archive: Path, tmp_path: Path
) -> None:
    content = members(archive)
    assert all(info.isreg() and info.mode == 0o644 and info.uid == 0 for info, _ in content)
    assert content[0][0].name == f"{TOP}/manifest.json"
    subprocess.run(["tar", "-xf", str(archive), "-C", str(tmp_path)], check=True, timeout=60)
    unpacked = tmp_path / TOP
    assert not [path for path in unpacked.rglob("*") if path.is_symlink()]
    _, generation = house
    assert {path.name for path in unpacked.glob("*.whl")} == {wheel.filename for wheel in generation.wheels}
    checked = subprocess.run(
        ["sha256sum", "-c", "-"],
        cwd=unpacked,
        input="".join(f"{wheel.sha256}  {wheel.filename}\n" for wheel in generation.wheels),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert checked.returncode == 0, checked.stdout


def test_unpacked_it_serves_an_installer(archive: Path, tmp_path: Path) -> None:
    subprocess.run(["tar", "-xf", str(archive), "-C", str(tmp_path)], check=True, timeout=60)
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "env")], check=True, timeout=60
    )
    python, links = tmp_path / "env" / "bin" / "python", str(tmp_path / TOP)
    options = ["--no-index", "--find-links", links, "--require-hashes", "--no-deps", "--no-cache-dir"]
    scrubbed = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "-q", *options]
    subprocess.run(
        [*command, "-r", str(tmp_path / TOP / "requirements.txt")],
        env={**scrubbed, "PIP_CONFIG_FILE": os.devnull},
        check=True,
        timeout=120,
    )
    subprocess.run([python, "-c", "import demo, helper, lonely, more"], check=True, timeout=60)


def test_the_same_generation_gives_the_same_bytes(
    house: tuple[Home, Generation], archive: Path, tmp_path: Path
) -> None:
    home, generation = house
    os.utime(generation.folder)
    os.utime(next(home.store.glob("*/*/build.log")))
    export(generation, home.store, tmp_path / "again.tar")
    assert (tmp_path / "again.tar").read_bytes() == archive.read_bytes()


def test_it_replaces_an_older_one_and_makes_folders(house: tuple[Home, Generation], tmp_path: Path) -> None:
    home, generation = house
    file = tmp_path / "new" / "wheels.tar"
    export(generation, home.store, file)
    file.write_text("old")
    # What an earlier export left that was killed under the same process id.
    (file.parent / f".{file.name}.{os.getpid()}").write_text("half")
    export(generation, home.store, file)
    assert tarfile.is_tarfile(file)
    assert file.stat().st_mode & 0o777 == 0o644


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.chmod(0o644)
    path.write_bytes(data)


def _cut(path: Path) -> None:
    path.chmod(0o644)
    os.truncate(path, 100)


def _grow(path: Path) -> None:
    path.chmod(0o644)
    with path.open("ab") as file:
        file.write(b"more")


@pytest.mark.parametrize("damage", [_flip, _cut, _grow, Path.unlink])
def test_a_damaged_wheel_is_not_exported(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    home, generation = demo_house(tmp_path)
    wheel = generation.wheels[2]
    damage(stores.entry_folder(home.store, wheel.key) / wheel.filename)
    (tmp_path / "out").mkdir()
    with pytest.raises(StoreError, match=f"{wheel.filename} is damaged") as caught:
        export(generation, home.store, tmp_path / "out" / "wheels.tar")
    assert caught.value.hint
    assert list((tmp_path / "out").iterdir()) == []


def test_a_failed_export_leaves_the_older_one(tmp_path: Path) -> None:
    home, generation = demo_house(tmp_path)
    file = tmp_path / "wheels.tar"
    export(generation, home.store, file)
    before = file.read_bytes()
    _flip(stores.entry_folder(home.store, generation.wheels[0].key) / generation.wheels[0].filename)
    with pytest.raises(StoreError):
        export(generation, home.store, file)
    assert file.read_bytes() == before


# --- several processes ------------------------------------------------------------------------------


IMPORTER = """
import sys
from pathlib import Path
from tests.helpers.exports import import_unsigned
from tests.helpers.wheelhouse import home_in
print("ready", flush=True)
sys.stdin.readline()
taken = import_unsigned(home_in(Path(sys.argv[1])), Path(sys.argv[2]))
print(taken.generation.number, taken.new)
"""


def test_imports_at_once(archive: Path, tmp_path: Path) -> None:
    processes = [start(IMPORTER, tmp_path, archive) for _ in range(3)]
    assert [hear(process) for process in processes] == ["ready"] * 3
    for process in processes:
        tell(process)
    assert sorted(end(process).strip() for process in processes) == ["1 False", "1 False", "1 True"]
    assert list((tmp_path / "wheelhouse" / "store").glob(".tmp-*")) == []
