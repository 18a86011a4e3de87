"""The static index as files: what generations share, what a killed publisher leaves."""

from __future__ import annotations

import json
import os
import shutil
import socket
import zipfile
from pathlib import Path

import pytest

from spark_build.errors import AuditError
from spark_build.files import sha256_of
from spark_build.wheelhouse import server, simple_index
from spark_build.wheelhouse.server import bears
from spark_build.wheelhouse.simple_index import INDEX, PAGES, indexed
from tests.helpers.wheelhouse import VIEW, demo_house, home_in, make_wheel, publish, put_built, snapshot


def test_every_wheel_is_there_with_its_metadata(tmp_path: Path) -> None:
    _, generation = demo_house(tmp_path)
    index = generation.folder / INDEX
    listed = [row["name"] for row in json.loads((index / "index.json").read_text())["projects"]]
    assert listed == sorted(wheel.name for wheel in generation.wheels)
    for wheel in generation.wheels:
        (row,) = json.loads((index / wheel.name / "index.json").read_text())["files"]
        assert (row["filename"], row["size"]) == (wheel.filename, wheel.size)
        assert sha256_of(index / wheel.name / row["url"]) == row["hashes"]["sha256"] == wheel.sha256
        metadata = index / wheel.name / f"{row['url']}.metadata"
        assert sha256_of(metadata) == row["core-metadata"]["sha256"]
        with zipfile.ZipFile(generation.folder / wheel.filename) as archive:
            (inside,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
            assert archive.read(inside) == metadata.read_bytes()


def test_generations_share_what_did_not_change(tmp_path: Path) -> None:
    home, first = demo_house(tmp_path)
    before = snapshot(home.views / VIEW / PAGES)
    demo = put_built(home.store, make_wheel(tmp_path / "dist", version="2.0", build="1_89abcdef"))
    second = publish(home, [*first.wheels, demo])
    pages = home.views / VIEW / PAGES
    for name in ("helper", "lonely", "more"):
        links = [(generation.folder / INDEX / name).readlink() for generation in (first, second)]
        assert links[0] == links[1]
    one, two = (
        json.loads((each.folder / INDEX / "demo" / "index.json").read_text()) for each in (first, second)
    )
    assert (one["versions"], two["versions"]) == (["1.0"], ["1.0", "2.0"])
    assert len(list(pages.iterdir())) == len(first.wheels) + 1
    after = snapshot(pages)
    assert {name: after[name] for name in before} == before


def test_the_wheelhouse_can_move_and_be_copied(tmp_path: Path) -> None:
    home, generation = demo_house(tmp_path / "here")
    home.wheelhouse.rename(tmp_path / "there")
    moved = tmp_path / "there" / generation.folder.relative_to(home.wheelhouse)
    shutil.copytree(moved, tmp_path / "copy")
    for folder in (moved, tmp_path / "copy"):
        for wheel in generation.wheels:
            assert sha256_of(folder / INDEX / wheel.name / wheel.filename) == wheel.sha256
    assert not any(path.is_symlink() for path in (tmp_path / "copy").rglob("*"))


def test_views_on_another_disk(tmp_path: Path) -> None:
    home = home_in(tmp_path / "root")
    (tmp_path / "other" / "disk" / "views").mkdir(parents=True)
    home.wheelhouse.mkdir(parents=True)
    home.views.symlink_to(tmp_path / "other" / "disk" / "views")
    wheel = put_built(home.store, make_wheel(tmp_path / "dist"))
    generation = publish(home, [wheel])
    assert sha256_of(generation.folder / INDEX / "demo" / wheel.filename) == wheel.sha256


def test_what_a_killed_publisher_left_goes(tmp_path: Path) -> None:
    home, first = demo_house(tmp_path)
    left = home.views / VIEW / PAGES / ".tmp-killed" / "digest"
    left.mkdir(parents=True)
    (left / "index.html").write_text("half")
    publish(home, first.wheels[:1])
    assert not list((home.views / VIEW / PAGES).glob(".tmp-*"))


def test_a_failure_leaves_no_pages(tmp_path: Path) -> None:
    """The second wheel cannot be read: the pages of the first must not stay, half synced."""
    home, first = demo_house(tmp_path)
    before = snapshot(home.views)
    wheels = [put_built(home.store, make_wheel(tmp_path / "dist", f"p{number}")) for number in range(2)]
    kept = home.store / wheels[1].key[:2] / wheels[1].key / wheels[1].filename
    kept.chmod(0o644)
    kept.write_bytes(b"no zip")
    with pytest.raises(AuditError):
        publish(home, [*first.wheels, *wheels])
    assert snapshot(home.views) == before


def test_many_pages_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Above some number all is synced at once; what comes out is the same."""
    home, generation = demo_house(tmp_path / "few")
    monkeypatch.setattr(simple_index, "MANY", 0)
    other, many = demo_house(tmp_path / "many")
    for wheel, twin in zip(generation.wheels, many.wheels, strict=True):
        assert indexed(home.store, wheel).metadata == indexed(other.store, twin).metadata
        assert sha256_of(many.folder / INDEX / twin.name / twin.filename) == twin.sha256


def test_links_are_short(tmp_path: Path) -> None:
    """ext4 keeps a link of less than 60 characters in the inode; longer ones cost 10 000 blocks."""
    _, generation = demo_house(tmp_path)
    assert all(len(os.readlink(generation.folder / INDEX / one.name)) < 60 for one in generation.wheels)  # noqa: PTH115


def test_answers_do_not_wait_for_acknowledgements() -> None:
    with server.bind("127.0.0.1", 0) as listening, socket.create_connection(listening.getsockname()):
        accepted, _ = listening.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0


def test_a_token_is_no_prefix_and_no_name() -> None:
    assert bears("Basic XzphOmI=", "a:b")  # _:a:b
    assert not bears("Basic YTpiOg==", "a")
    assert not bears("Bearer a", "ab")
    assert not bears("", "a")
