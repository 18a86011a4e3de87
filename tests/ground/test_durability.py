"""What would be there after a power cut: what was synced, as the operating system was told."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_build.files import atomic_directory, make_folder, write_atomically
from spark_build.text import digest
from spark_build.transfer.bundle import pack
from spark_build.transfer.bundle_write import write_archive, write_folder
from spark_build.wheelhouse import generations
from spark_build.wheelhouse import store as stores
from spark_build.wheels.reader import read_facts
from tests.helpers.exports import export, import_archive
from tests.helpers.wheelhouse import demo_house, home_in, make_wheel, publish, put_built


class Disk:
    """Remembers what each fsync made durable: a file's size and time, a folder's entries."""

    def __init__(self) -> None:
        self._synced: dict[int, object] = {}
        self.early: list[str] = []  # what a rename showed before it was on disk

    def fsync(self, descriptor: int) -> None:
        """Take note of an fsync."""
        found = os.fstat(descriptor)
        if stat.S_ISDIR(found.st_mode):
            self._synced[found.st_ino] = self._entries(descriptor)
        else:
            self._synced[found.st_ino] = (found.st_size, found.st_mtime_ns)

    def renamed(self, source: str | os.PathLike[str]) -> None:
        """Take note of what is about to appear under its final name."""
        path = Path(source)
        self.early += self.lost(path) if path.is_dir() else self._lost_file(path)

    def lost(self, folder: Path) -> list[str]:
        """What a power cut now would take from a folder and below it."""
        now = self._entries(folder)
        kept = self._synced.get(folder.stat().st_ino)
        gone = [
            str(folder / name) for name in now if not isinstance(kept, dict) or kept.get(name) != now[name]
        ]
        for path in folder.iterdir():
            if path.is_dir() and not path.is_symlink():
                gone += self.lost(path)
            elif not path.is_symlink():
                gone += self._lost_file(path)
        return gone

    def _lost_file(self, path: Path) -> list[str]:
        found = path.lstat()
        if path.is_symlink() or self._synced.get(found.st_ino) == (found.st_size, found.st_mtime_ns):
            return []
        return [str(path)]

    @staticmethod
    def _entries(folder: int | Path) -> dict[str, int]:
        with os.scandir(folder) as found:
            return {one.name: one.inode() for one in found}


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    made = Disk()
    fsync, rename, replace = os.fsync, os.rename, os.replace

    def noted(descriptor: int) -> None:
        fsync(descriptor)
        made.fsync(descriptor)

    def renaming(source: str, target: str) -> None:
        made.renamed(source)
        rename(source, target)

    def replacing(source: str, target: str) -> None:
        made.renamed(source)
        replace(source, target)

    monkeypatch.setattr(os, "fsync", noted)
    monkeypatch.setattr(os, "rename", renaming)
    monkeypatch.setattr(os, "replace", replacing)
    yield made
    monkeypatch.undo()


def test_a_file_is_on_disk_before_it_has_its_name_and_so_are_new_folders(disk: Disk, tmp_path: Path) -> None:
    write_atomically(tmp_path / "a" / "b" / "c.json", "{}")
    assert disk.early == []
    assert disk.lost(tmp_path) == []
    write_atomically(tmp_path / "a" / "b" / "c.json", '{"more": 1}')
    assert disk.early == []
    assert disk.lost(tmp_path) == []


def test_an_entry_is_on_disk_before_it_appears_in_the_store(disk: Disk, tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "dist")
    home = home_in(tmp_path / "root")
    put_built(home.store, wheel)
    assert disk.early == []
    assert disk.lost(home.wheelhouse) == []
    assert disk.lost(tmp_path / "root") == []


def test_an_entry_is_on_disk_though_another_process_is_just_making_the_folder_above(
    disk: Disk, tmp_path: Path
) -> None:
    home, wheel = home_in(tmp_path / "root"), make_wheel(tmp_path / "dist")
    put_built(home.store, wheel, note="other")
    (home.store / digest({"recipe": wheel.name, "note": ""})[:2]).mkdir()  # it comes to the sync later
    put_built(home.store, wheel)
    assert [path for path in disk.lost(home.store) if not path.endswith("/index.json")] == []


def test_a_generation_is_on_disk_before_it_appears(disk: Disk, tmp_path: Path) -> None:
    home = home_in(tmp_path / "root")
    wheel = put_built(home.store, make_wheel(tmp_path / "dist"))
    made = publish(home, [wheel])
    assert [path for path in disk.early if "/current" not in path] == []
    # The index of the store is derived; every other name must be there again.
    assert [path for path in disk.lost(tmp_path / "root") if not path.endswith("/index.json")] == []
    generations.pin(made.folder.parent.parent, made.number)
    assert disk.lost(home.views) == []


def test_an_import_is_on_disk_with_all_its_new_folders(disk: Disk, tmp_path: Path) -> None:
    home, generation = demo_house(tmp_path / "house")
    export(generation, home.store, tmp_path / "x.tar")
    other = home_in(tmp_path / "deep" / "new" / "root")
    import_archive(other, tmp_path / "x.tar")
    assert [path for path in disk.early if "/current" not in path and "house" not in path] == []
    assert [path for path in disk.lost(tmp_path / "deep") if not path.endswith("/index.json")] == []


@pytest.mark.parametrize("form", ["tar", "folder"])
def test_an_export_is_on_disk_with_its_new_folders(disk: Disk, tmp_path: Path, form: str) -> None:
    home, generation = demo_house(tmp_path / "house")
    place = tmp_path / "out" / "new" / "x"
    (write_archive if form == "tar" else write_folder)(pack(generation, home.store), place)
    assert disk.lost(tmp_path / "out") == []


def test_a_prefix_is_on_disk(disk: Disk, tmp_path: Path) -> None:
    home = home_in(tmp_path / "root")
    wheel = make_wheel(tmp_path / "dist")
    (tmp_path / "prefix" / "lib").mkdir(parents=True)
    (tmp_path / "prefix" / "lib" / "x.so").write_bytes(b"x")
    described = stores.described_as("built", read_facts(wheel), "content")
    stores.commit(
        home.store, key="ab" * 32, wheel=wheel, described=described, papers={}, prefix=tmp_path / "prefix"
    )
    assert disk.early == []
    assert [path for path in disk.lost(tmp_path / "root") if not path.endswith("/index.json")] == []


def test_a_detached_run_and_a_download_are_on_disk(disk: Disk, tmp_path: Path) -> None:
    """What a next run goes on from."""
    make_folder(tmp_path / "runs" / "a")
    with atomic_directory(tmp_path / "cache" / "kk" / "key") as folder:
        (folder / "file").write_text("x")
    assert disk.early == []
    assert disk.lost(tmp_path) == []
