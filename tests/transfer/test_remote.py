"""Remote stores in a folder, in S3 as moto serves it, behind a plain web server: pushers and pullers, killed too."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import http.server
import json
import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto.server import ThreadedMotoServer

from spark_build.errors import HostError, UsageError
from spark_build.files import sha256_of
from spark_build.paths import Home
from spark_build.recipes.model import Target
from spark_build.reporting import Reporter, reporting
from spark_build.transfer import remote
from spark_build.transfer.remote import Remote, Remotes, entry_name
from spark_build.wheelhouse import generations, trust
from spark_build.wheelhouse import store as stores
from spark_build.wheelhouse.fsck import check
from spark_build.wheelhouse.generations import Generation
from spark_build.wheels.model import StoredWheel
from tests.helpers import faults
from tests.helpers.commands import hint_text
from tests.helpers.exports import (
    import_unsigned,
    make_key,
    member,
    members,
    relabelled,
    sealed,
    taken_apart,
    written,
)
from tests.helpers.servers import Served, served
from tests.helpers.wheelhouse import (
    VIEW,
    end,
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

HERE = Target(name="host-cpu", summary="", platform="linux-x86_64", python=VIEW.rpartition("-")[2])


@dataclass(frozen=True)
class House:
    """A wheelhouse with three builds and a public wheel in its view, and the key of its owner."""

    home: Home
    generation: Generation
    key: Path

    @property
    def built(self) -> tuple[StoredWheel, ...]:
        return tuple(one for one in self.generation.wheels if one.origin == "built")

    def pushes_to(self, url: str) -> Remote:
        return remote.add(self.home.wheelhouse, f"r{len(url)}", url, push=True, key=self.key)


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheelhouse of `house`, once."""
    folder = tmp_path_factory.mktemp("given")
    home, dist = home_in(folder / "root"), folder / "root" / "dist"
    wheels = [
        put_built(
            home.store, make_wheel(dist, name, build="1_0123abcd", files={f"{name}.bin": os.urandom(9000)})
        )
        for name in ("one", "three", "two")
    ]
    publish(home, [*wheels, put_public(home.store, make_wheel(dist, "helper", "1.5"))])
    make_key(folder, "alice")
    make_key(folder, "mallory")
    return folder


@pytest.fixture
def house(given: Path, tmp_path: Path) -> House:
    return house_in(given, tmp_path / "house")


def house_in(given: Path, folder: Path) -> House:
    shutil.copytree(given / "root", folder, symlinks=True, ignore=shutil.ignore_patterns(".trash"))
    home = home_in(folder)
    found = generations.current(home.views / VIEW)
    assert found is not None
    return House(home, found, given / "alice")


def puller(given: Path, folder: Path, url: str) -> Home:
    """A wheelhouse with a wheel of its own that takes from a remote store what alice signed."""
    home = home_in(folder)
    publish(home, [put_public(home.store, make_wheel(folder / "dist", "own"))])
    trust.add(home.wheelhouse, "alice", given / "alice.pub")
    remote.add(home.wheelhouse, "lab", url, push=False, key=None)
    return home


def lab(folder: Path) -> str:
    folder.mkdir()
    return f"file://{folder}"


def whole(home: Home) -> list[str]:
    return [fault.finding.rule for fault in check(home, deep=True, repair=False, told=lambda *_: None)]


def taken(house: House, home: Home) -> list[str]:
    """Fetch all builds, prove that they are the same bytes under a key of their signer's; returns warnings."""
    told: list[str] = []
    with reporting(Reporter(told.append)):
        remotes = Remotes(home)
        for wheel in house.built:
            found = remotes.find(wheel.key)
            assert found is not None, told
            entry = stores.read(house.home.store, wheel.key)
            assert entry is not None
            assert (found.signer, found.content_digest) == ("alice", entry.content_digest)
            fetched = remotes.fetch(wheel.key, HERE)
            assert fetched is not None, told
            path = stores.entry_folder(home.store, fetched.key) / fetched.filename
            assert (sha256_of(path), fetched.imported) == (wheel.sha256, "alice")
            assert stores.read(home.store, wheel.key) is None, "never as built"
    return [text for text in told if "warning" in text]


# --- a folder ---------------------------------------------------------------------------------------


def test_what_one_pushes_another_takes(house: House, given: Path, tmp_path: Path) -> None:
    url = lab(tmp_path / "lab")
    store = house.pushes_to(url)
    pushed = Remotes(house.home).push(store, house.generation)
    assert pushed == house.built
    names = {
        str(path.relative_to(tmp_path / "lab")) for path in (tmp_path / "lab").rglob("*") if path.is_file()
    }
    assert names == {entry_name(wheel.key, store.signer) for wheel in house.built}, "no public wheel, no rest"
    home = puller(given, tmp_path / "other", url)
    assert taken(house, home) == []
    assert Remotes(home).find("0" * 64) is None
    assert Remotes(home).fetch("0" * 64, HERE) is None
    assert whole(home) == []


def test_an_entry_is_an_export(house: House, tmp_path: Path) -> None:
    """`wheelhouse import` takes it, too; its number lets it replace nothing that came later."""
    store = house.pushes_to(lab(tmp_path / "lab"))
    Remotes(house.home).push(store, house.generation)
    home = home_in(tmp_path / "other")
    for wheel in house.built:
        import_unsigned(home, tmp_path / "lab" / entry_name(wheel.key, store.signer))
    current = generations.current(home.views / VIEW)
    assert current is not None
    assert [one.sha256 for one in current.wheels] == [one.sha256 for one in house.built]


def test_a_prefix_is_never_pushed(house: House, tmp_path: Path) -> None:
    """Neither a build that is only one, nor one beside a wheel."""
    store = house.pushes_to(lab(tmp_path / "lab"))
    entry = stores.entry_folder(house.home.store, house.built[0].key)
    (entry / "prefix" / "lib").mkdir(parents=True)
    (entry / "prefix" / "lib" / "vendor.so").write_bytes(b"not to be handed on")
    (entry / "record.json").chmod(0o644)
    record = json.loads((entry / "record.json").read_text())
    (entry / "record.json").write_text(json.dumps({**record, "prefix": True}))
    assert [wheel.name for wheel in Remotes(house.home).push(store, house.generation)] == ["three", "two"]
    for path in (tmp_path / "lab").rglob("*.tar"):
        assert b"not to be handed on" not in path.read_bytes()


def forged(entry: Path, how: str, given: Path, other: Path) -> None:
    """Change an entry as somebody does who may write to the remote store."""
    top, files = taken_apart(entry)
    if how in ("unsigned", "mallory"):
        key = given / "mallory" if how == "mallory" else None
        files = {name: data for name, data in files.items() if name != "manifest.json.sig"}
        sealed(entry, top, files, key=key)
    elif how == "another build":
        shutil.copyfile(other, entry)
    elif how == "no tar":
        entry.write_bytes(os.urandom(5000))
    elif how == "empty":
        entry.write_bytes(b"")
    elif how == "cut":
        os.truncate(entry, entry.stat().st_size // 2)
    elif how == "wheel":
        changed = [
            (info, data.replace(b"PK", b"KP", 1) if info.name.endswith(".whl") else data)
            for info, data in members(entry)
        ]
        written(entry, changed)
    elif how == "more":
        written(entry, [*members(entry), member(f"{top}/../../evil", b"x")])
    else:
        assert how == "record"
        changed = [
            (info, data.replace(b'"version"', b'"Version"') if info.name.endswith("record.json") else data)
            for info, data in members(entry)
        ]
        written(entry, changed)


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("unsigned", "nobody signed it"),
        ("mallory", "a key that is not trusted here"),
        ("another build", "another build than its name says"),
        ("no tar", "is refused"),
        ("empty", "cut short"),
        ("cut", "is refused"),
        ("wheel", "is not what its manifest says"),
        ("more", "no safe name"),
        ("record", "is not what its manifest says"),
    ],
)
def test_a_tampered_entry_is_refused(house: House, given: Path, tmp_path: Path, how: str, says: str) -> None:
    """With one warning; nothing of it is left, and the other entry is taken: whoever unpacks the wheel."""
    url = lab(tmp_path / "lab")
    store = house.pushes_to(url)
    Remotes(house.home).push(store, house.generation)
    places = [tmp_path / "lab" / entry_name(wheel.key, store.signer) for wheel in house.built]
    forged(places[0], how, given, places[1])
    home = puller(given, tmp_path / "other", url)
    before = snapshot(home.wheelhouse)
    told: list[str] = []
    with reporting(Reporter(told.append)):
        remotes = Remotes(home)
        assert remotes.fetch(house.built[0].key, HERE) is None
        assert remotes.fetch(house.built[0].key, HERE, audited=True) is None
        assert told == told[:1] * 2
        assert told[0].startswith("warning: lab/entries/")
        assert says in told[0]
        assert {**snapshot(home.wheelhouse), **before} == snapshot(home.wheelhouse)
        assert list(home.store.glob(".tmp-*")) == []
        assert remotes.fetch(house.built[1].key, HERE) is not None, "the remote store itself is not given up"


def test_what_a_signer_says_wrongly_is_refused(house: House, given: Path, tmp_path: Path) -> None:
    """A record's content digest is compared here, or by the audit of who says that it will."""
    url = lab(tmp_path / "lab")
    store, first = house.pushes_to(url), house.built[0]
    Remotes(house.home).push(store, house.generation)
    relabelled(tmp_path / "lab" / entry_name(first.key, store.signer), given / "alice")
    told: list[str] = []
    with reporting(Reporter(told.append)):
        remotes = Remotes(puller(given, tmp_path / "other", url))
        assert remotes.fetch(first.key, HERE) is None
        assert remotes.fetch(first.key, HERE, audited=True) is not None
    assert "the content digest of one-1.0-" in told[0]


@pytest.mark.parametrize("how", ["a link", "a pipe", "a folder"])
def test_an_entry_that_is_no_file_is_refused(house: House, given: Path, tmp_path: Path, how: str) -> None:
    """A pipe would be waited for, a link read, wherever it leads; the remote store itself is not given up."""
    url = lab(tmp_path / "lab")
    store = house.pushes_to(url)
    Remotes(house.home).push(store, house.generation)
    first, second, _ = house.built
    entry = tmp_path / "lab" / entry_name(first.key, store.signer)
    entry.rename(tmp_path / "kept")
    if how == "a pipe":
        os.mkfifo(entry)
    elif how == "a folder":
        entry.mkdir()
    else:
        entry.symlink_to(tmp_path / "kept")
    told: list[str] = []
    with reporting(Reporter(told.append)):
        remotes = Remotes(puller(given, tmp_path / "other", url))
        assert remotes.fetch(first.key, HERE) is None
        assert [text.partition("is refused: ")[2] for text in told] == [
            "it is no regular file; going on without it"
        ]
        assert remotes.fetch(second.key, HERE) is not None


def test_what_follows_an_entry_is_not_read_to_its_end(house: House, given: Path, tmp_path: Path) -> None:
    """Terabytes of zeros, which take no place on the disk."""
    url = lab(tmp_path / "lab")
    store = house.pushes_to(url)
    Remotes(house.home).push(store, house.generation)
    os.truncate(tmp_path / "lab" / entry_name(house.built[0].key, store.signer), 1 << 42)
    assert taken(house, puller(given, tmp_path / "other", url)) == []


def test_a_link_in_place_of_a_lock_empties_no_file(house: House, tmp_path: Path) -> None:
    """Who may write to the folder knows what the pusher will write there."""
    store = house.pushes_to(lab(tmp_path / "lab"))
    entry = tmp_path / "lab" / entry_name(house.built[0].key, store.signer)
    entry.parent.mkdir(parents=True)
    (tmp_path / "precious").write_text("kept")
    entry.with_name(f".{entry.name}.lock").symlink_to(tmp_path / "precious")
    with pytest.raises(HostError, match="a link is in the place of a lock"):
        Remotes(house.home).push(store, house.generation)
    assert (tmp_path / "precious").read_text() == "kept"


def test_a_list_that_came_with_a_folder_signs_nothing(house: House, tmp_path: Path) -> None:
    """Else somebody's checkout has its wheels signed by whoever builds in it."""
    url = lab(tmp_path / "lab")
    house.pushes_to(url)
    file = house.home.wheelhouse / remote.FILE
    others = home_in(Path(shutil.copytree(house.home.wheelhouse.parent, tmp_path / "others", symlinks=True)))
    (store,) = remote.configured(others.wheelhouse)
    told: list[str] = []
    with reporting(Reporter(told.append)):
        Remotes(others).push_all(house.generation)
    assert [store.key in text and "signs nothing for" in text for text in told] == [True]
    file.write_text(file.read_text().replace('/alice"', '/mallory"'))
    with pytest.raises(UsageError, match="another key than"):
        Remotes(house.home).push(remote.configured(house.home.wheelhouse)[0], house.generation)
    assert list((tmp_path / "lab").iterdir()) == []
    file.write_text(file.read_text().replace("file://", "reference::file://"))
    with pytest.raises(UsageError, match="no URL for a remote store"):
        remote.configured(house.home.wheelhouse)


@pytest.mark.parametrize(
    "row",
    [
        {"asked": 1},
        {"push": "yes"},
        {"name": []},
        {"url": "sftp://h/\ud800"},
        {"url": "local:///etc"},
        {"url": "x"},
        {"more": 1},
    ],
)
def test_a_list_that_others_wrote_is_refused(row: dict[str, object], tmp_path: Path) -> None:
    written = {"name": "lab", "url": "https://[2001:db8::5]/store", **row}
    (tmp_path / remote.FILE).write_text(json.dumps({"remotes": [written]}))
    with pytest.raises(UsageError, match="the list of remote stores cannot be read") as caught:
        remote.configured(tmp_path)
    assert str(tmp_path / remote.FILE) in str(caught.value.where)


def test_a_server_may_have_a_number_for_a_name(tmp_path: Path) -> None:
    made = remote.add(tmp_path, "lab", "https://[2001:db8::5]/store/", push=False, key=None)
    assert remote.configured(tmp_path) == (made,)


def test_a_folder_may_be_called_anything(tmp_path: Path) -> None:
    place = tmp_path / "lab #1?"
    with pytest.raises(UsageError, match="there is no folder") as caught:
        remote.add(tmp_path, "lab", str(place), push=False, key=None)
    assert f"mkdir -p '{place}'" in hint_text(caught.value.hint)
    place.mkdir()
    assert remote.add(tmp_path, "lab", str(place), push=False, key=None).folder == place


def test_what_is_no_url_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no URL for a remote store"):
        remote.add(tmp_path, "lab", "sftp://[abc/x", push=False, key=None)


def test_a_web_server_redirects_to_no_file(house: House, given: Path, tmp_path: Path) -> None:
    store = house.pushes_to(lab(tmp_path / "lab"))
    Remotes(house.home).push(store, house.generation)
    with serving(tmp_path / "lab", redirect=f"file://{tmp_path}/lab") as url:
        remotes = Remotes(puller(given, tmp_path / "other", url))
        told: list[str] = []
        with reporting(Reporter(told.append)):
            assert remotes.fetch(house.built[0].key, HERE) is None
    assert len(told) == 1
    assert "cannot be used" in told[0]


def test_a_wheel_for_another_python_is_refused(house: House, given: Path, tmp_path: Path) -> None:
    url = lab(tmp_path / "lab")
    wheel = put_built(house.home.store, make_wheel(tmp_path / "d", "old", tag="cp27-cp27m-linux_x86_64"))
    Remotes(house.home).push(house.pushes_to(url), publish(house.home, [wheel]))
    told: list[str] = []
    with reporting(Reporter(told.append)):
        assert Remotes(puller(given, tmp_path / "other", url)).fetch(wheel.key, HERE) is None
    assert "is not for linux-x86_64" in told[0]


def test_a_store_that_fails_is_asked_once(house: House, given: Path, tmp_path: Path) -> None:
    home = puller(given, tmp_path / "other", lab(tmp_path / "lab"))
    (tmp_path / "lab").rmdir()
    told: list[str] = []
    with reporting(Reporter(told.append)):
        remotes = Remotes(home)
        for wheel in house.built:
            assert remotes.find(wheel.key) is None
            assert remotes.fetch(wheel.key, HERE) is None
    assert told == [f"warning: {tmp_path / 'lab'} is not there; going on without it"]


def test_a_push_that_fails_costs_a_warning(house: House, tmp_path: Path) -> None:
    """Of a place that is gone, and of a wheel that is damaged here."""
    place, url = tmp_path / "lab", lab(tmp_path / "lab")
    house.pushes_to(url)
    place.rmdir()
    told: list[str] = []
    with reporting(Reporter(told.append)):
        Remotes(house.home).push_all(house.generation)
        place.mkdir()
        first = house.built[0]
        (stores.entry_folder(house.home.store, first.key) / first.filename).unlink()
        Remotes(house.home).push_all(house.generation)
    assert [text.partition(": ")[0] for text in told] == ["warning"] * 2
    assert f"{place} is not there" in told[0]
    assert f"{first.filename} is damaged or missing in the store" in told[1]
    assert list(place.rglob("*")) == []


def test_gc_takes_what_no_view_names(house: House, given: Path, tmp_path: Path) -> None:
    url = lab(tmp_path / "lab")
    store = house.pushes_to(url)
    remotes = Remotes(house.home)
    remotes.push(store, house.generation)
    publish(house.home, [house.built[1]])
    generations.discard(house.generation.folder)
    theirs = tmp_path / "lab" / entry_name(house.built[0].key, "ssh-ed25519 AAAAbob")
    shutil.copyfile(tmp_path / "lab" / entry_name(house.built[0].key, store.signer), theirs)
    left = theirs.with_name(f"{Path(entry_name('0' * 64, store.signer)).name}.part")
    left.write_bytes(b"of a killed pusher")
    assert remotes.collect(store, older_than=60, dry_run=False) == ()
    going = [entry_name(house.built[number].key, store.signer) for number in (0, 2)]
    going.append(str(left.relative_to(tmp_path / "lab")))
    assert sorted(one.name for one in remotes.collect(store, older_than=-1, dry_run=True)) == sorted(going)
    assert left.exists()
    remotes.collect(store, older_than=-1, dry_run=False)
    files = {path for path in (tmp_path / "lab").rglob("*") if path.is_file()}
    assert files == {theirs, tmp_path / "lab" / entry_name(house.built[1].key, store.signer)}


def test_only_a_signer_pushes(house: House, tmp_path: Path) -> None:
    store = remote.add(house.home.wheelhouse, "lab", lab(tmp_path / "lab"), push=False, key=None)
    with pytest.raises(UsageError, match="no key signs"):
        Remotes(house.home).push(store, house.generation)
    with pytest.raises(UsageError, match="nothing in lab was pushed from here"):
        Remotes(house.home).collect(store, older_than=0, dry_run=False)


# --- killed, and all at once ------------------------------------------------------------------------


@pytest.fixture
def memory() -> Iterator[Path]:
    """Where dozens of copies are made, so that no disk is waited for."""
    fast = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=fast if os.access(fast, os.W_OK) else None) as folder:
        yield Path(folder)


@pytest.mark.parametrize("every", [11, pytest.param(1, marks=pytest.mark.soak)])
def test_a_pusher_killed_at_every_step(given: Path, memory: Path, every: int) -> None:
    """What is to be seen then is whole; the next push goes on, and leaves nothing else."""
    house = house_in(given, memory / "house")
    place, url = memory / "lab", lab(memory / "lab")
    store = house.pushes_to(url)
    push = functools.partial(lambda: Remotes(house.home).push(store, house.generation))
    killed = 0
    for step in range(1, faults.NEVER, every):
        shutil.rmtree(place)
        place.mkdir()
        done = faults.run(push, stop_at=step)
        if done is not None:
            assert done[1] == ""
            break
        killed += 1
        seen = [wheel for wheel in house.built if (place / entry_name(wheel.key, store.signer)).exists()]
        home = puller(given, memory / f"other{step}", url)
        assert taken(House(house.home, publish(house.home, seen), house.key), home) == [] if seen else True
        push()
        assert taken(house, home) == [], step
        left = {path.name for path in place.rglob("*") if path.is_file() and not path.name.endswith(".lock")}
        assert left == {Path(entry_name("0" * 64, store.signer)).name}, step
        shutil.rmtree(memory / f"other{step}")
    assert killed * every > 40, killed


def fetch_all(home: Home, keys: Sequence[str]) -> None:
    for key in keys:
        Remotes(home).fetch(key, HERE)


@pytest.mark.parametrize("every", [11, pytest.param(1, marks=pytest.mark.soak)])
def test_a_puller_killed_at_every_step(given: Path, memory: Path, every: int) -> None:
    house = house_in(given, memory / "house")
    url = lab(memory / "lab")
    Remotes(house.home).push(house.pushes_to(url), house.generation)
    puller(given, memory / "fresh", url)
    killed = 0
    for step in range(1, faults.NEVER, every):
        shutil.rmtree(memory / "other", ignore_errors=True)
        shutil.copytree(memory / "fresh", memory / "other", symlinks=True)
        home = home_in(memory / "other")
        fetch = functools.partial(fetch_all, home, [one.key for one in house.built])
        done = faults.run(fetch, stop_at=step)
        if done is not None:
            assert done[1] == ""
            break
        killed += 1
        assert whole(home) in ([], ["unfinished"]), step
        assert taken(house, home) == [], step
        assert whole(home) == [], step
    assert killed * every > 40, killed


def test_ten_pullers_and_two_pushers_at_once(given: Path, memory: Path) -> None:
    """Two for each of five wheelhouses; one of the pushers comes too late for nothing."""
    url = lab(memory / "lab")
    first, second = (house_in(given, memory / name) for name in ("first", "second"))
    stores_of = [one.pushes_to(url) for one in (first, second)]
    homes = [puller(given, memory / f"other{number}", url) for number in range(5)]

    def pull(home: Home) -> list[str]:
        deadline = time.monotonic() + 120
        while any(Remotes(home).fetch(wheel.key, HERE) is None for wheel in first.built):
            assert time.monotonic() < deadline
        return taken(first, home)

    with ThreadPoolExecutor(12) as pool:
        pulling = [pool.submit(pull, home) for home in homes * 2]
        pushing = [
            pool.submit(Remotes(one.home).push, store, one.generation)
            for one, store in zip((first, second), stores_of, strict=True)
        ]
        assert {one for done in pushing for one in done.result()} == {*first.built}
        assert [done.result() for done in pulling] == [[]] * 10
    for home in homes:
        assert whole(home) == []


# --- S3 ---------------------------------------------------------------------------------------------


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of a place in a bucket, as a server of its own."""
    (tmp_path / "home").mkdir()
    for name, value in (
        ("HOME", str(tmp_path / "home")),
        ("AWS_EC2_METADATA_DISABLED", "true"),
        ("AWS_DEFAULT_REGION", "us-east-1"),
        ("AWS_ACCESS_KEY_ID", "key"),
        ("AWS_SECRET_ACCESS_KEY", "secret"),
    ):
        monkeypatch.setenv(name, value)
    server = ThreadedMotoServer(port=0, verbose=False)
    server.start()
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://{}:{}".format(*server.get_host_and_port()))
    boto3.resource("s3").create_bucket(Bucket="lab")
    yield "s3://lab/wheels"
    server.stop()


def test_s3(house: House, given: Path, tmp_path: Path, bucket: str) -> None:
    """Pushed, fetched, found tampered with, collected, and gone."""
    store = house.pushes_to(bucket)
    remotes = Remotes(house.home)
    home = puller(given, tmp_path / "other", bucket)
    assert Remotes(home).find(house.built[0].key) is None
    assert remotes.push(store, house.generation) == house.built
    assert remotes.push(store, house.generation) == ()
    there = boto3.resource("s3").Bucket("lab")
    keys = {f"wheels/{entry_name(wheel.key, store.signer)}" for wheel in house.built}
    assert {one.key for one in there.objects.all()} == keys
    assert taken(house, home) == []
    assert whole(home) == []
    changed = there.Object(f"wheels/{entry_name(house.built[0].key, store.signer)}")
    data = bytearray(changed.get()["Body"].read())
    data[data.index(b"PK\3\4") + 200] ^= 1  # in the wheel
    changed.put(Body=bytes(data))
    told: list[str] = []
    with reporting(Reporter(told.append)):
        fresh = puller(given, tmp_path / "fresh", bucket)
        assert Remotes(fresh).fetch(house.built[0].key, HERE) is None
    assert ["is refused" in text for text in told] == [True]
    generations.discard(house.generation.folder)
    assert len(remotes.collect(store, older_than=-10, dry_run=False)) == 3
    assert list(there.objects.all()) == []
    there.delete()
    with reporting(Reporter(told.append)):
        assert Remotes(home).find(house.built[0].key) is None
    assert "warning: the remote store lab cannot be used" in told[-1]
    with pytest.raises(HostError, match="cannot be used"):
        Remotes(house.home).push(store, house.generation)


PUSH = """
import sys
from pathlib import Path
from spark_build.transfer.remote import Remotes, configured
from spark_build.wheelhouse import generations
from tests.helpers.wheelhouse import VIEW, home_in
home = home_in(Path(sys.argv[1]))
(store,) = configured(home.wheelhouse)
print("ready", flush=True)
sys.stdin.readline()
Remotes(home).push(store, generations.read(Path(sys.argv[2])))
"""
PULL = """
import sys
from pathlib import Path
from spark_build.recipes.model import Target
from spark_build.transfer.remote import Remotes
from tests.helpers.wheelhouse import home_in
here = Target(name="host-cpu", summary="", platform="linux-x86_64", python=sys.argv[2])
remotes = Remotes(home_in(Path(sys.argv[1])))
print("ready", flush=True)
sys.stdin.readline()
for key in sys.argv[3:]:
    assert remotes.fetch(key, here) is not None
"""


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_killed_at_fifty_points_in_s3(given: Path, tmp_path: Path, bucket: str) -> None:
    """Real processes, by the clock: what a pusher left is whole or not to be seen, what a puller left goes."""
    house = house_in(given, tmp_path / "house")
    big = [
        put_built(
            house.home.store, make_wheel(tmp_path / "d", name, files={f"{name}.bin": os.urandom(8 << 20)})
        )
        for name in ("big", "huge")
    ]
    house = House(house.home, publish(house.home, big), house.key)
    store, there = house.pushes_to(bucket), boto3.resource("s3").Bucket("lab")
    pushing = (house.home.wheelhouse.parent, house.generation.folder)
    seconds = run_for(PUSH, *pushing)
    visible: set[int] = set()
    for point in range(50):
        there.objects.all().delete()
        run_for(PUSH, *pushing, kill_after=seconds * point / 50)
        names = {one.key for one in there.objects.all()}
        seen = [one for one in big if f"wheels/{entry_name(one.key, store.signer)}" in names]
        home = puller(given, tmp_path / f"after{point}", bucket)
        # The server may still be at a request of the killed one: more than was seen, never less.
        fetched = [one for one in big if Remotes(home).fetch(one.key, HERE) is not None]
        assert {*seen} <= {*fetched}, point
        visible.add(len(fetched))
        Remotes(house.home).push(store, house.generation)
        assert taken(house, home) == [], point
        shutil.rmtree(tmp_path / f"after{point}")
    assert visible >= {0, 1}, "some died before, some between"
    Remotes(house.home).push(store, house.generation)
    puller(given, tmp_path / "clean", bucket)
    unfinished, keys = 0, [wheel.key for wheel in big]
    seconds = run_for(PULL, copy(tmp_path / "clean", tmp_path / "first"), HERE.python, *keys)
    for point in range(50):
        folder = copy(tmp_path / "clean", tmp_path / f"pull{point}")
        run_for(PULL, folder, HERE.python, *keys, kill_after=seconds * point / 50)
        found = whole(home_in(folder))
        assert found in ([], ["unfinished"]), point
        unfinished += len(found)
        assert taken(house, home_in(folder)) == [], point
        assert whole(home_in(folder)) == [], point
        shutil.rmtree(folder)
    assert unfinished > 0


def run_for(code: str, *arguments: object, kill_after: float | None = None) -> float:
    """Seconds that a process takes for its work, or until it is killed."""
    process = start(code, *arguments)
    assert hear(process) == "ready"
    begun = time.monotonic()
    tell(process)
    if kill_after is None:
        end(process, timeout=600)
    else:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=kill_after)
        process.kill()
        process.communicate()
    return time.monotonic() - begun


def copy(source: Path, destination: Path) -> Path:
    return Path(shutil.copytree(source, destination, symlinks=True))


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_ten_processes_pull_from_s3_at_once(house: House, given: Path, tmp_path: Path, bucket: str) -> None:
    """Two for each of five wheelhouses."""
    Remotes(house.home).push(house.pushes_to(bucket), house.generation)
    homes = [puller(given, tmp_path / f"other{number}", bucket) for number in range(5)]
    keys = [wheel.key for wheel in house.built]
    processes = [start(PULL, home.wheelhouse.parent, HERE.python, *keys) for home in homes * 2]
    for one in processes:
        assert hear(one) == "ready"
    for one in processes:
        tell(one)
    for one in processes:
        end(one, timeout=600)
    for home in homes:
        assert taken(house, home) == []
        assert whole(home) == []


# --- a web server -----------------------------------------------------------------------------------


def test_a_plain_web_server_is_enough(house: House, given: Path, tmp_path: Path) -> None:
    """One that knows no ranges and lists nothing; when it is gone, one warning."""
    Remotes(house.home).push(house.pushes_to(lab(tmp_path / "lab")), house.generation)
    with serving(tmp_path / "lab") as url:
        home = puller(given, tmp_path / "other", url)
        assert Remotes(home).find("0" * 64) is None
        assert taken(house, home) == []
    told: list[str] = []
    with reporting(Reporter(told.append)):
        remotes = Remotes(home)
        assert [remotes.find(wheel.key) for wheel in house.built] == [None] * 3
        remotes = Remotes(home)
        remotes.offline = True
        assert remotes.find(house.built[0].key) is None
    assert len(told) == 1
    assert "cannot be used: connection refused" in told[0]


def test_what_serve_hands_out_is_enough(house: House, given: Path, tmp_path: Path) -> None:
    """Of the folders that are pushed to; of one generation alone, nothing."""
    store = house.pushes_to(lab(tmp_path / "lab"))
    Remotes(house.home).push(store, house.generation)
    root = house.home.wheelhouse.parent
    with served(root) as server:
        home = puller(given, tmp_path / "other", server.url)
        assert Remotes(home).find("0" * 64) is None
        assert taken(house, home) == []
        first, *_ = house.built
        name = entry_name(first.key, store.signer)
        answer = server.get(name)
        assert hashlib.sha256(answer.content).hexdigest() == sha256_of(tmp_path / "lab" / name)
        entry = tmp_path / "lab" / name
        for wrong in (entry.name[:-1], f"{entry.name}.part", f"..%2f{entry.name}", "%2e%2e"):
            assert server.get(f"{name.rpartition('/')[0]}/{wrong}").status_code == 404, wrong
        assert server.get(name.replace("entries/", "entries/0")).status_code == 404
        plant_links(entry, tmp_path / "secret", server)
    publish(house.home, house.built, view=f"host-cpu-2.13-{HERE.python}")
    with served(root, "--generation", "1", "--target", "host-cpu", "--train", "2.13") as server:
        assert server.get(name).status_code == 404


def plant_links(entry: Path, secret: Path, server: Served) -> None:
    """Who may write to the folder leads the server to no other file, and stops it with no pipe."""
    secret.mkdir()
    (secret / entry.name).write_bytes(b"of the machine")
    path = "/".join(entry.parts[-4:])
    entry.unlink()
    os.mkfifo(entry)
    assert server.get(path).status_code == 404
    entry.unlink()
    entry.symlink_to(secret / entry.name)
    assert server.get(path).status_code == 404
    shutil.rmtree(entry.parent)
    entry.parent.symlink_to(secret)
    assert server.get(path).status_code == 404


@contextlib.contextmanager
def serving(folder: Path, redirect: str = "") -> Iterator[str]:
    handler = functools.partial(Quiet, directory=str(folder), redirect=redirect)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


class Quiet(http.server.SimpleHTTPRequestHandler):
    def __init__(self, *named: Any, redirect: str, **more: Any) -> None:
        self.redirect = redirect
        super().__init__(*named, **more)

    def do_GET(self) -> None:
        if not self.redirect:
            super().do_GET()
            return
        self.send_response(302)
        self.send_header("Location", self.redirect + self.path)
        self.end_headers()

    def log_message(self, *_arguments: object) -> None:
        pass

    def list_directory(self, path: object) -> None:
        self.send_error(403)
