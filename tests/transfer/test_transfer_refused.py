"""Archives that no export makes, or that were damaged on the way: one error, and nothing is changed."""

from __future__ import annotations

import hashlib
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spark_build.errors import AuditError, StoreError
from spark_build.paths import Home
from spark_build.text import digest
from spark_build.wheelhouse import store as stores
from tests.helpers.exports import TOP, Member, export, import_archive, member, members, written
from tests.helpers.wheelhouse import (
    demo_house,
    home_in,
    make_wheel,
    publish,
    put_built,
    snapshot,
    verify_wheel,
)

Change = Callable[[dict[str, Any]], object]


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sound export; do not change it."""
    file = tmp_path_factory.mktemp("archive") / "wheels.tar"
    home, generation = demo_house(tmp_path_factory.mktemp("house"))
    export(generation, home.store, file)
    return file


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
        verify_wheel(entry)
