from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spark_build.core.planning.key import digest
from spark_build.errors import AuditError, StoreError
from spark_build.host.home import Home
from spark_build.host.transfer.archive import write_archive
from spark_build.host.transfer.parcel import pack
from spark_build.host.transfer.taking import take_in
from spark_build.host.wheelhouse import store as stores
from spark_build.host.wheelhouse.views import Generation, current
from spark_build.model.recipe import Target
from tests.integration.houses import (
    VIEW,
    demo_house,
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

TOP = f"{VIEW}-1"
Member = tuple[tarfile.TarInfo, bytes]
Change = Callable[[dict[str, Any]], object]


def export(generation: Generation, store: Path, file: Path) -> int:
    return write_archive(pack(generation, store), file)


def no_view() -> tuple[str, Target]:
    raise AssertionError("an export knows its view")


def import_archive(home: Home, file: Path) -> tuple[Generation, bool]:
    taken = take_in(home, file, no_view)
    return taken.generation, taken.new


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


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


def members(file: Path) -> list[Member]:
    with tarfile.open(file, "r:") as tar:
        return [(member, tar.extractfile(member).read()) for member in tar]  # type: ignore[union-attr]


def written(file: Path, content: Sequence[Member]) -> Path:
    with tarfile.open(file, "w:") as tar:
        for member, data in content:
            member.size = len(data) if member.isreg() else 0
            tar.addfile(member, io.BytesIO(data))
    return file


def member(name: str, data: bytes = b"", **fields: Any) -> Member:
    info = tarfile.TarInfo(name)
    for field, value in fields.items():
        setattr(info, field, value)
    return info, data


# --- there and back ---------------------------------------------------------------------------------


def test_the_same_wheels_arrive(house: tuple[Home, Generation], archive: Path, tmp_path: Path) -> None:
    home, sent = house
    other = home_in(tmp_path / "other")
    arrived, new = import_archive(other, archive)
    assert new
    assert (arrived.number, arrived.wheels, arrived.closure_key) == (1, sent.wheels, sent.closure_key)
    assert current(other.views / VIEW) == arrived
    for wheel in sent.wheels:
        assert (arrived.folder / wheel.filename).read_bytes() == (sent.folder / wheel.filename).read_bytes()
        here, there = stores.read(other.store, wheel.key), stores.read(home.store, wheel.key)
        assert here is not None
        assert there is not None
        stores.verify_wheel(here)
        assert dataclasses.replace(here, folder=there.folder) == there
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


def test_an_entry_that_is_here_already_is_kept(archive: Path, tmp_path: Path) -> None:
    """The same build key built here gave other bytes: what is published must be what the store has."""
    home = home_in(tmp_path)
    name = "demo-1.0-1_0123abcd-py3-none-any.whl"
    other = make_wheel(
        tmp_path / "d",
        build="1_0123abcd",
        requires=["helper>=1"],
        files={"demo/__init__.py": b"# built here\n"},
    )
    assert other.name == name
    mine = put_built(home.store, other)
    arrived, _ = import_archive(home, archive)
    (demo,) = arrived.built()
    assert demo == mine
    assert f"demo==1.0 --hash=sha256:{mine.sha256}" in (arrived.folder / "requirements.txt").read_text()


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


# --- refused ----------------------------------------------------------------------------------------


@pytest.fixture
def other(tmp_path: Path) -> Home:
    """A wheelhouse with something in it, which a refused import must leave alone."""
    home = home_in(tmp_path / "other")
    publish(home, [put_built(home.store, make_wheel(tmp_path / "own", "own"))])
    return home


def refused(home: Home, file: Path) -> StoreError:
    """The one error; nothing was changed, nothing was left."""
    before = snapshot(home.wheelhouse)
    with pytest.raises(StoreError) as caught:
        import_archive(home, file)
    assert snapshot(home.wheelhouse) == before
    assert caught.value.message.startswith(f"{file} is refused: ")
    assert "\n" not in caught.value.message
    assert caught.value.hint
    return caught.value


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("/etc/passwd", {}),
        ("../escaped.whl", {}),
        (f"{TOP}/../escaped", {}),
        (f"{TOP}/../../../store/escaped", {}),
        (f"{TOP}/..", {}),
        (f"{TOP}/.", {}),
        (f"{TOP}/", {}),
        (f"{TOP}/.hidden", {}),
        ("..", {}),
        ("", {}),
        (f"{TOP}/sub/folder/x", {}),
        (f"{TOP}/store/{'a' * 64}/..", {}),
        (f"{TOP}/store/{'a' * 64}/.", {}),
        (f"{TOP}/store/{'a' * 64}/a/b", {}),
        (f"{TOP}/store/short/record.json", {}),
        (f"{TOP}/store/../record.json", {}),
        ("another-1/notes.txt", {}),
        (f"{TOP}/with\nnewline", {}),
        (f"{TOP}/back\\slash", {}),
        (f"{TOP}/{'x' * 400}", {}),
        (f"{TOP}/link", {"type": tarfile.SYMTYPE, "linkname": "/etc/passwd"}),
        (f"{TOP}/link.whl", {"type": tarfile.SYMTYPE, "linkname": "../../../store"}),
        (f"{TOP}/hard", {"type": tarfile.LNKTYPE, "linkname": f"{TOP}/manifest.json"}),
        (f"{TOP}/../folder", {"type": tarfile.DIRTYPE}),
        (f"{TOP}/device", {"type": tarfile.CHRTYPE}),
        (f"{TOP}/pipe", {"type": tarfile.FIFOTYPE}),
        (f"{TOP}/sparse", {"pax_headers": {"GNU.sparse.map": "0,0", "GNU.sparse.size": str(1 << 50)}}),
    ],
)
@pytest.mark.parametrize("where", ["first", "second", "last"])
def test_members_that_no_export_has(
    archive: Path, other: Home, tmp_path: Path, name: str, fields: dict[str, Any], where: str
) -> None:
    content = members(archive)
    content.insert({"first": 0, "second": 1, "last": len(content)}[where], member(name, b"", **fields))
    refused(other, written(tmp_path / "hostile.tar", content))
    assert not list(tmp_path.rglob("escaped*"))


def test_a_wheel_that_the_manifest_does_not_list(archive: Path, other: Home, tmp_path: Path) -> None:
    extra = make_wheel(tmp_path / "d", "extra")
    content = [*members(archive), member(f"{TOP}/{extra.name}", extra.read_bytes())]
    error = refused(other, written(tmp_path / "hostile.tar", content))
    assert f"{extra.name} is not in its manifest" in error.message


def test_every_member_counts(archive: Path, other: Home, tmp_path: Path) -> None:
    """Left out, twice, or with a flipped bit: each is noticed."""
    content = members(archive)
    for index, (info, data) in enumerate(content):
        refused(other, written(tmp_path / "without.tar", content[:index] + content[index + 1 :]))
        flipped = data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1 :]
        changed = [*content[:index], (info, flipped), *content[index + 1 :]]
        refused(other, written(tmp_path / "flipped.tar", changed))
        refused(other, written(tmp_path / "twice.tar", [*content, (info, data)]))
    assert len(content) > 10


def test_other_orders_are_fine_but_for_the_manifest(archive: Path, other: Home, tmp_path: Path) -> None:
    content = members(archive)
    refused(other, written(tmp_path / "later.tar", [*content[1:], content[0]]))
    arrived, _ = import_archive(other, written(tmp_path / "backwards.tar", [content[0], *content[:0:-1]]))
    assert len(arrived.wheels) == 5


def changed_manifest(archive: Path, file: Path, change: Change) -> Path:
    content = members(archive)
    manifest = json.loads(content[0][1])
    change(manifest)
    return written(file, [(content[0][0], json.dumps(manifest).encode()), *content[1:]])


def _set(*path: str | int, to: Any) -> Change:
    def change(manifest: dict[str, Any]) -> None:
        inner: Any = manifest
        for step in path[:-1]:
            inner = inner[step]
        inner[path[-1]] = to

    return change


BAD_WHEELS: tuple[Any, ...] = (None, {}, 3, "x", [3], [{}], ["x"])
BAD_PAPERS: tuple[Any, ...] = (None, {}, [], {"a" * 64: {"b": "c"}})


# Wheel 0 is demo (built), wheel 1 helper (public).
@pytest.mark.parametrize(
    "change",
    [
        *[_set("view", to=view) for view in ("..", ".", "", "a/b", "../a", ".a", "a" * 300, None, 3, ["a"])],
        *[_set("wheels", to=wheels) for wheels in BAD_WHEELS],
        *[_set("papers", to=papers) for papers in BAD_PAPERS],
        *[_set("wheels", 1, "sha256", to=value) for value in ("a" * 64, None, 3, ["a"])],
        *[_set("wheels", 1, "size", to=value) for value in (1, "1", None, -1)],
        *[_set("wheels", 0, "key", to=value) for value in ("a" * 64, "../../x", "", None, 3, ["a"])],
        *[_set("wheels", 1, "key", to=value) for value in ("a" * 64, "../../x", "", None)],
        *[_set("wheels", 0, "origin", to=value) for value in ("public", "", None, "elsewhere")],
        _set("wheels", 1, "origin", to="built"),
        *[_set("wheels", 1, "name", to=value) for value in ("demo", "Helper", None, 3)],
        *[_set("wheels", 1, "version", to=value) for value in ("9.0", "x", None, 3)],
        *[
            _set("wheels", 1, "filename", to=value)
            for value in (
                *("requirements.txt", "manifest.json", "../x.whl", "/tmp/x.whl", "x.whl", "", None, 3),
                "helper-1.5-py3-none-any.whl/..",
            )
        ],
        *[_set("wheels", 1, "requires", to=value) for value in ("torch", ["torch"], None, 3, [3], [["a"]])],
        _set("wheels", 1, "surprise", to="x"),
        lambda manifest: manifest.pop("view"),
        lambda manifest: manifest.pop("closure_key"),
        lambda manifest: manifest["wheels"][1].pop("sha256"),
        lambda manifest: manifest["wheels"].append(manifest["wheels"][0]),
        lambda manifest: manifest["wheels"].pop(1),
    ],
)
def test_a_manifest_that_lies(archive: Path, other: Home, tmp_path: Path, change: Change) -> None:
    refused(other, changed_manifest(archive, tmp_path / "lying.tar", change))


@pytest.mark.parametrize(
    "data",
    [b"", b"x", b"[]", b"null", b"3", b'"x"', b"{}", b"\xff\xfe", b"[" * 100_000, b'{"wheels":' * 50_000],
    ids=lambda data: str(data[:10]),
)
def test_a_manifest_that_is_none(archive: Path, other: Home, tmp_path: Path, data: bytes) -> None:
    content = members(archive)
    refused(other, written(tmp_path / "none.tar", [(content[0][0], data), *content[1:]]))


def forged(archive: Path, file: Path, change: Callable[[str, bytes], bytes | None]) -> Path:
    """An archive whose manifest agrees with its changed papers: made with care by somebody hostile."""
    content = members(archive)
    manifest = json.loads(content[0][1])
    made: list[Member] = []
    for info, data in content[1:]:
        new: bytes | None = data
        parts = info.name.split("/")
        if len(parts) == 4:
            new = change(parts[3], data)
            del manifest["papers"][parts[2]][parts[3]]
            if new is not None:
                manifest["papers"][parts[2]][parts[3]] = sha256(new)
        if new is not None:
            made.append((info, new))
    return written(file, [(content[0][0], json.dumps(manifest).encode()), *made])


def test_forging_as_such_works(archive: Path, other: Home, tmp_path: Path) -> None:
    """The helper below breaks nothing by itself."""
    import_archive(other, forged(archive, tmp_path / "same.tar", lambda _, data: data))


def _record(**fields: Any) -> Callable[[str, bytes], bytes | None]:
    return lambda name, data: (
        json.dumps({**json.loads(data), **fields}).encode() if name == "record.json" else data
    )


@pytest.mark.parametrize(
    "change",
    [
        lambda name, data: None if name == "record.json" else data,
        lambda name, data: None if name == "key.json" else data,
        lambda name, data: b"" if name == "record.json" else data,
        lambda name, data: b"[]" if name == "record.json" else data,
        lambda name, data: b"null" if name == "key.json" else data,
        lambda name, data: b"[" * 100_000 if name == "key.json" else data,
        lambda name, data: json.dumps({"inputs": {"other": 1}}).encode() if name == "key.json" else data,
        lambda name, data: b"{}" if name == "record.json" else data,
        _record(sha256="a" * 64),
        _record(requires=["torch"]),
        _record(filename="other-1.0-py3-none-any.whl"),
        _record(origin="elsewhere"),
    ],
)
def test_papers_that_do_not_belong(
    archive: Path, other: Home, tmp_path: Path, change: Callable[[str, bytes], bytes | None]
) -> None:
    refused(other, forged(archive, tmp_path / "forged.tar", change))


def test_a_record_of_another_content(archive: Path, other: Home, tmp_path: Path) -> None:
    """Build keys of what needs this wheel are made of it."""
    before = sorted(other.wheelhouse.rglob("*"))
    lying = forged(archive, tmp_path / "forged.tar", _record(content_digest="a" * 64))
    with pytest.raises(AuditError, match="the content digest of demo-"):
        import_archive(other, lying)
    assert sorted(other.wheelhouse.rglob("*")) == before


def test_a_paper_with_the_name_of_the_wheel(archive: Path, other: Home, tmp_path: Path) -> None:
    """In the store it would take the proven wheel's place."""
    content = members(archive)
    manifest = json.loads(content[0][1])
    row = manifest["wheels"][1]
    manifest["papers"][row["key"]][row["filename"]] = sha256(b"hostile")
    made = [
        (content[0][0], json.dumps(manifest).encode()),
        *content[1:],
        member(f"{TOP}/store/{row['key']}/{row['filename']}", b"hostile"),
    ]
    refused(other, written(tmp_path / "hostile.tar", made))


def test_a_public_wheel_under_another_key(archive: Path, other: Home, tmp_path: Path) -> None:
    """Its key is its sha256: nothing else may lie where a later download is looked for."""
    content = members(archive)
    manifest = json.loads(content[0][1])
    row = manifest["wheels"][1]
    old, new = row["key"], digest("the key of something else")
    assert row["origin"] == "public"
    row["key"] = new
    manifest["papers"][new] = manifest["papers"].pop(old)
    made = [(content[0][0], json.dumps(manifest).encode())]
    made += [member(info.name.replace(old, new), data) for info, data in content[1:]]
    refused(other, written(tmp_path / "hostile.tar", made))


def test_papers_of_a_wheel_that_is_not_there(archive: Path, other: Home, tmp_path: Path) -> None:
    content = members(archive)
    manifest = json.loads(content[0][1])
    key = digest("nothing")
    manifest["papers"][key] = {"record.json": sha256(b"{}")}
    made = [
        (content[0][0], json.dumps(manifest).encode()),
        *content[1:],
        member(f"{TOP}/store/{key}/record.json", b"{}"),
    ]
    refused(other, written(tmp_path / "hostile.tar", made))


@pytest.mark.parametrize("kind", ["gz", "bz2", "xz"])
def test_compressed_ones(archive: Path, tmp_path: Path, kind: str) -> None:
    """By whoever carried it over."""
    with tarfile.open(tmp_path / "c.tar", f"w:{kind}") as tar:  # type: ignore[call-overload]
        for info, data in members(archive):
            tar.addfile(info, io.BytesIO(data))
    arrived, new = import_archive(home_in(tmp_path), tmp_path / "c.tar")
    assert new
    assert len(arrived.wheels) == 4


@pytest.mark.parametrize(
    "data", [b"", b"x", b"PK\x03\x04" + bytes(5000), bytes(512), bytes(10240), b"text\n" * 5000], ids=len
)
def test_what_is_no_tar(other: Home, tmp_path: Path, data: bytes) -> None:
    (tmp_path / "no.tar").write_bytes(data)
    refused(other, tmp_path / "no.tar")


def contents_end(archive: Path) -> int:
    """Where the last member's content ends: after it there are only zeros."""
    with tarfile.open(archive, "r:") as tar:
        last = tar.getmembers()[-1]
        return last.offset_data + last.size


LENIENT = settings(
    deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@LENIENT
@given(st.data())
def test_cut_anywhere(archive: Path, other: Home, tmp_path: Path, data: st.DataObject) -> None:
    length = data.draw(st.integers(0, contents_end(archive) - 1))
    (tmp_path / "cut.tar").write_bytes(archive.read_bytes()[:length])
    refused(other, tmp_path / "cut.tar")


@LENIENT
@given(st.data())
def test_damaged_anywhere(archive: Path, tmp_path: Path, data: st.DataObject) -> None:
    """One byte changed: refused, or it made no difference to what arrives."""
    content = bytearray(archive.read_bytes())
    where = data.draw(st.integers(0, contents_end(archive) - 1))
    content[where] ^= data.draw(st.integers(1, 255))
    (tmp_path / "damaged.tar").write_bytes(content)
    home = home_in(tmp_path / f"home{len(list(tmp_path.iterdir()))}")
    try:
        arrived, _ = import_archive(home, tmp_path / "damaged.tar")
    except StoreError:
        assert not home.views.exists()
        assert list(home.store.iterdir()) == []
        return
    assert [wheel.name for wheel in arrived.wheels] == ["demo", "helper", "lonely", "more"]
    for wheel in arrived.wheels:
        entry = stores.read(home.store, wheel.key)
        assert entry is not None
        stores.verify_wheel(entry)


# --- several processes ------------------------------------------------------------------------------


IMPORTER = """
import sys
from pathlib import Path
from spark_build.host.transfer.taking import take_in
from tests.integration.houses import home_in
print("ready", flush=True)
sys.stdin.readline()
taken = take_in(home_in(Path(sys.argv[1])), Path(sys.argv[2]), lambda: sys.exit("an export knows its view"))
print(taken.generation.number, taken.new)
"""


def test_imports_at_once(archive: Path, tmp_path: Path) -> None:
    processes = [start(IMPORTER, tmp_path, archive) for _ in range(3)]
    assert [hear(process) for process in processes] == ["ready"] * 3
    for process in processes:
        tell(process)
    assert sorted(end(process).strip() for process in processes) == ["1 False", "1 False", "1 True"]
    assert list((tmp_path / "wheelhouse" / "store").glob(".tmp-*")) == []
