"""Carry a generation to another machine: one plain tar of real files, proven on both ends.

<view>-<generation>/manifest.json comes first, then the papers, the wheels (so that the unpacked
folder is itself good for --find-links) and store/<key>/ with each built wheel's papers.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from shlex import quote
from typing import IO, Any

from packaging.utils import parse_wheel_filename
from packaging.version import Version

from spark_build.core.key import digest
from spark_build.errors import StoreError
from spark_build.host import store as stores
from spark_build.host import wheelhouse
from spark_build.host.files import CHUNK, sha256_of, sync_folder
from spark_build.host.home import Home
from spark_build.host.wheelfile import proven_digest
from spark_build.host.wheelhouse import Generation
from spark_build.model.wheel import StoredWheel

SCHEMA = 1
EPOCH = 315532800  # 1980: the same generation gives the same archive
NAME = r"[A-Za-z0-9_][A-Za-z0-9_.+!-]{0,254}"
MEMBER = re.compile(rf"{NAME}/(?:{NAME}|store/[0-9a-f]{{64}}/{NAME})")
PAPER_LIMIT = 1 << 30  # bytes; a build log of a gigabyte is no build log
# What reading an archive or a paper that somebody made up may raise.
DAMAGE = (
    tarfile.TarError,
    EOFError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    OverflowError,
    RecursionError,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Manifest:
    """What an archive says of itself; papers: (key, name) -> sha256."""

    view: str
    closure_key: str
    wheels: tuple[StoredWheel, ...]
    papers: dict[tuple[str, str], str]


class _Hashing:
    """A reader that hashes what goes through it, so that a file is read once."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._sha256 = hashlib.sha256()

    def read(self, count: int = -1) -> bytes:
        """Read on and remember."""
        data = self._file.read(count)
        self._sha256.update(data)
        return data

    def hexdigest(self) -> str:
        """Of all that was read."""
        return self._sha256.hexdigest()


def export(generation: Generation, store: Path, file: Path) -> int:
    """Write the generation to `file`; returns its size in bytes. Damaged wheels stop the export."""
    view = generation.folder.parent.parent.name
    top = f"{view}-{generation.number}"
    manifest = {
        "schema": SCHEMA,
        "view": view,
        "generation": generation.number,
        "closure_key": generation.closure_key,
        "wheels": [asdict(wheel) for wheel in generation.wheels],
        "papers": {wheel.key: _hashes(store, wheel) for wheel in generation.wheels},
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{file.name}.", dir=file.parent)
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as raw:
            with tarfile.TarFile(fileobj=raw, mode="w", copybufsize=CHUNK) as tar:
                _add_bytes(tar, f"{top}/{wheelhouse.MANIFEST}", json.dumps(manifest, indent=1).encode())
                for name, text in wheelhouse.papers(generation.wheels).items():
                    _add_bytes(tar, f"{top}/{name}", text.encode())
                for wheel in generation.wheels:
                    _add_wheel(tar, top, wheel, store)
            raw.flush()
            os.fsync(raw.fileno())
        temporary.chmod(0o644)
        temporary.replace(file)
        sync_folder(file.parent)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return file.stat().st_size


def _papers_of(store: Path, wheel: StoredWheel) -> list[Path]:
    return sorted(
        path
        for path in stores.entry_folder(store, wheel.key).iterdir()
        # A prefix stays: it is for building here, and can be large.
        if path.name not in (wheel.filename, stores.PREFIX)
    )


def _hashes(store: Path, wheel: StoredWheel) -> dict[str, str]:
    """sha256 of an entry's papers; StoreError when the entry cannot be exported."""
    path = stores.entry_folder(store, wheel.key) / wheel.filename
    if not path.is_file() or path.stat().st_size != wheel.size:
        raise _damaged(path)
    return {paper.name: sha256_of(paper) for paper in _papers_of(store, wheel)}


def _damaged(path: Path) -> StoreError:
    return StoreError(
        f"{path.name} is damaged or missing in the store: it is not what was recorded",
        where=str(path.parent),
        hint=f"rm -r {quote(str(path.parent))}, then: spark-build all",
    )


def _add_bytes(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode, member.mtime = len(data), 0o644, EPOCH
    tar.addfile(member, io.BytesIO(data))


def _add_wheel(tar: tarfile.TarFile, top: str, wheel: StoredWheel, store: Path) -> None:
    path = stores.entry_folder(store, wheel.key) / wheel.filename
    member = tarfile.TarInfo(f"{top}/{wheel.filename}")
    member.size, member.mode, member.mtime = wheel.size, 0o644, EPOCH
    with path.open("rb") as raw:
        reader = _Hashing(raw)
        tar.addfile(member, reader)
        if reader.hexdigest() != wheel.sha256 or raw.read(1):
            raise _damaged(path)
    for paper in _papers_of(store, wheel):
        _add_bytes(tar, f"{top}/store/{wheel.key}/{paper.name}", paper.read_bytes())


def import_archive(home: Home, file: Path) -> tuple[Generation, bool]:
    """Take in an exported archive: (generation of its view, is it new?).

    Every wheel is proven against the manifest before anything becomes visible; a hostile, cut or
    changed archive is refused and leaves nothing behind.
    """
    home.store.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".tmp-import-", dir=home.store) as scratch:
        folder = Path(scratch)
        try:
            manifest, papers = _unpack(file, folder)
            records = [_prove(file, folder, wheel, papers) for wheel in manifest.wheels]
        except DAMAGE as error:
            raise _refused(file, f"it is cut short or no export of ours ({error})") from error
        # An entry that is here already is kept: the same inputs, but not always the same bytes.
        wheels = [
            _commit(home.store, folder / wheel.filename, wheel, record, papers)
            for wheel, record in zip(manifest.wheels, records, strict=True)
        ]
    return _publish(home, manifest.view, wheels, manifest.closure_key)


def _refused(file: Path, why: str) -> StoreError:
    return StoreError(f"{file} is refused: {why}", hint="export it again, and compare the sha256 of the copy")


def _unpack(file: Path, folder: Path) -> tuple[_Manifest, dict[tuple[str, str], bytes]]:
    """Wheels into `folder`, papers into memory: (manifest, {(key, name): content})."""
    papers: dict[tuple[str, str], bytes] = {}
    with tarfile.open(file, mode="r:") as tar:
        members = _members(file, tar)
        parts, content = next(members, (["nothing"], io.BytesIO()))
        if parts != [wheelhouse.MANIFEST]:
            raise _refused(file, "its first file is no manifest")
        manifest = _manifest(content.read(PAPER_LIMIT))
        listed = {wheel.filename for wheel in manifest.wheels}
        for parts, content in members:
            if len(parts) == 3:
                papers[parts[1], parts[2]] = content.read(PAPER_LIMIT)
            elif parts[0] in listed:
                with (folder / parts[0]).open("xb") as out:
                    shutil.copyfileobj(content, out, CHUNK)
            elif parts[0].endswith(".whl"):
                raise _refused(file, f"{parts[0]} is not in its manifest")
    if {place: hashlib.sha256(data).hexdigest() for place, data in papers.items()} != manifest.papers:
        raise _refused(file, "the papers in it are not what its manifest says (sha256)")
    return manifest, papers


def _members(file: Path, tar: tarfile.TarFile) -> Iterator[tuple[list[str], IO[bytes]]]:
    """(path below the one top folder, content) of each file; anything but plain files is refused."""
    seen: set[str] = set()
    tops: set[str] = set()
    for member in tar:
        # A sparse file may claim any size without holding a byte.
        content = tar.extractfile(member) if member.isreg() and not member.issparse() else None
        top, *parts = member.name.split("/")
        if content is None or not MEMBER.fullmatch(member.name) or member.name in seen or tops - {top}:
            raise _refused(file, f"it holds {member.name!r}, which no export of ours does")
        seen.add(member.name)
        tops.add(top)
        yield parts, content


def _manifest(data: bytes) -> _Manifest:
    """Read a manifest and look at all of it; DAMAGE when it is none of ours."""
    raw = json.loads(data)
    wheels = tuple(StoredWheel(**{**row, "requires": tuple(row["requires"])}) for row in raw["wheels"])
    for wheel in wheels:
        name, version, _, _ = parse_wheel_filename(wheel.filename)
        if (name, version) != (wheel.name, Version(wheel.version)):
            raise ValueError(f"{wheel.filename} is not {wheel.name} {wheel.version}")
        if wheel.origin not in ("built", "public"):
            raise ValueError(f"{wheel.filename} is of origin {wheel.origin!r}")
    names = {wheel.key: wheel.filename for wheel in wheels}
    if len(names) != len(wheels) or len(set(names.values())) != len(wheels):
        raise ValueError("a wheel is listed twice")
    if not re.fullmatch(NAME, raw["view"]):
        raise ValueError(f"its view is called {raw['view']!r}")
    papers = {(key, name): sha256 for key, own in raw["papers"].items() for name, sha256 in own.items()}
    if any(names.get(key, name) == name for key, name in papers):
        raise ValueError("it lists papers of no wheel, or one with a wheel's name")
    return _Manifest(view=raw["view"], closure_key=str(raw["closure_key"]), wheels=wheels, papers=papers)


def _prove(
    file: Path, folder: Path, wheel: StoredWheel, papers: dict[tuple[str, str], bytes]
) -> dict[str, Any]:
    """The record of a wheel that is what the manifest and its papers say."""
    path = folder / wheel.filename
    if not path.is_file():
        raise _refused(file, f"{wheel.filename} is missing")
    if sha256_of(path) != wheel.sha256 or path.stat().st_size != wheel.size:
        raise _refused(file, f"{wheel.filename} is not what its manifest says (sha256)")
    if wheel.origin == "public":
        honest = wheel.key == wheel.sha256
    else:
        honest = digest(json.loads(papers[wheel.key, "key.json"])["inputs"]) == wheel.key
    record: dict[str, Any] = json.loads(papers[wheel.key, stores.RECORD])
    row = json.loads(json.dumps(asdict(wheel)))
    del row["key"]
    if not honest or any(record[name] != value for name, value in row.items()):
        raise _refused(file, f"the papers of {wheel.filename} do not belong to its key")
    return record


def _commit(
    store: Path,
    path: Path,
    wheel: StoredWheel,
    record: dict[str, Any],
    papers: dict[tuple[str, str], bytes],
) -> StoredWheel:
    described = {
        "name": wheel.name,
        "version": wheel.version,
        "origin": wheel.origin,
        "requires": list(wheel.requires),
        "recipe": str(record["recipe"]),
        "content_digest": str(record["content_digest"]),
    }
    own = {name: data for (key, name), data in papers.items() if key == wheel.key and name != stores.RECORD}
    if proven_digest(path) != described["content_digest"] and not record.get("prefix"):
        # Dependents' build keys are made of it.
        raise StoreError(f"the content digest of {wheel.filename} is not what its record says")
    entry = stores.commit(store, key=wheel.key, wheel=path, described=described, papers=own)
    assert entry.wheel is not None
    return entry.wheel


def _publish(
    home: Home, view: str, wheels: Sequence[StoredWheel], closure_key: str
) -> tuple[Generation, bool]:
    """The imported wheels replace those of their names; others in the view stay."""

    def choose(before: Generation | None) -> tuple[list[StoredWheel], str]:
        names = {wheel.name for wheel in wheels}
        others = [wheel for wheel in before.wheels if wheel.name not in names] if before else []
        return [*wheels, *others], closure_key if not others else ""

    return wheelhouse.publish(home.views / view, home.store, choose)
