"""Every value of a manifest replaced by odd ones, in a tar and in a folder: an error of ours, or it is fine."""

from __future__ import annotations

import json
import shutil
import tarfile
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from spark_build.errors import AuditError, StoreError
from spark_build.files import sha256_of
from spark_build.paths import Home
from spark_build.transfer.bundle_read import parse_manifest
from tests.helpers.exports import TOP, export, import_archive, members, written
from tests.helpers.wheelhouse import home_in, make_wheel, publish, put_built

ODD: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    2.5,
    10**400,
    float("nan"),
    "",
    "..",
    "../../x",
    "/etc/passwd",
    "x\n\x1b]0;owned\x07",
    "\ud800",
    "x" * 300,
    "store",
    "prefix",
    [],
    {},
    [[[]]],
    {"a" * 64: {"../x": "b"}},
)
TEXTS = (
    b"",
    b"\xff\xfe",
    b"null",
    b"[]",
    b'"x"',
    b"[" * 100_000,
    b'{"a":' * 100_000,
    b"9" * 100_000,
    b'{"schema": 1}',
    b"\x00",
)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield where each value stands: the whole, then what is in it."""
    yield path
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, inner in inside:
        yield from places(inner, (*path, name))


def mutated(manifest: dict[str, Any]) -> Iterator[bytes]:
    for path in list(places(manifest))[1:]:
        for odd in (*ODD, KeyError):
            changed = deepcopy(manifest)
            inner: Any = changed
            for step in path[:-1]:
                inner = inner[step]
            if odd is KeyError:
                del inner[path[-1]]
            else:
                inner[path[-1]] = odd
            yield json.dumps(changed).encode()
        if isinstance(path[-1], str):  # odd names, too
            for name in ("..", "store", "x" * 300, "x\x1b[2J", ""):
                changed = deepcopy(manifest)
                inner = changed
                for step in path[:-1]:
                    inner = inner[step]
                inner[name] = inner.pop(path[-1])
                yield json.dumps(changed).encode()


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An export of one wheel, unpacked."""
    folder = tmp_path_factory.mktemp("sound")
    home = home_in(folder)
    wheel = put_built(
        home.store, make_wheel(folder / "d", build="1_0123abcd", requires=["helper; os_name=='posix'"])
    )
    export(publish(home, [wheel]), home.store, folder / "x.tar")
    with tarfile.open(folder / "x.tar") as tar:
        tar.extractall(folder, filter="data")
    return folder


def outcome(home: Home, file: Path) -> str:
    """The error of ours that an import ends with, or nothing; any other one ends the test."""
    try:
        import_archive(home, file)
    except (StoreError, AuditError) as error:
        return error.message
    return ""


def test_no_mutation_of_a_manifest_is_a_bug_of_ours(sound: Path, tmp_path: Path) -> None:
    folder = sound / TOP
    before = (folder / "manifest.json").read_bytes()
    home, count, read = home_in(tmp_path), 0, 0
    for data in mutated(json.loads(before)):
        count += 1
        try:
            parse_manifest(folder, data)
        except StoreError as error:
            said = error.message
            assert said.startswith(f"{folder} is refused: its manifest ")
            assert said.isprintable()
            continue
        read += 1
        (folder / "manifest.json").write_bytes(data)
        assert outcome(home, folder).isprintable()
    (folder / "manifest.json").write_bytes(before)
    assert outcome(home, folder) == ""
    assert count > 500
    assert read < 60


@pytest.mark.parametrize("data", TEXTS, ids=lambda data: str(data[:12]))
def test_a_manifest_that_is_none(sound: Path, tmp_path: Path, data: bytes) -> None:
    """What a tar and a folder are refused for is the same."""
    content = members(sound / "x.tar")
    tar = written(tmp_path / "x.tar", [(content[0][0], data), *content[1:]])
    folder = tmp_path / "folder"
    shutil.copytree(sound / TOP, folder)
    (folder / "manifest.json").write_bytes(data)
    home = home_in(tmp_path)
    said = outcome(home, tar)
    assert "is refused: its manifest is none of ours" in said
    assert outcome(home, folder) == said.replace(str(tar), str(folder))
    assert not home.views.exists()


def test_a_manifest_that_lies_of_what_the_wheel_requires(sound: Path, tmp_path: Path) -> None:
    """Whoever resolves by the manifest would install something else than pip."""
    folder = tmp_path / "folder"
    shutil.copytree(sound / TOP, folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    (row,) = manifest["wheels"]
    record = folder / "store" / row["key"] / "record.json"
    row["requires"] = ["evil"]
    record.write_text(json.dumps({**json.loads(record.read_text()), "requires": ["evil"]}))
    manifest["papers"][row["key"]]["record.json"] = sha256_of(record)
    (folder / "manifest.json").write_text(json.dumps(manifest))
    assert "is not what its manifest says" in outcome(home_in(tmp_path), folder)
