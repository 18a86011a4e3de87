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
import tarfile
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from spark_build.core.key import digest
from spark_build.errors import StoreError
from spark_build.host import store as stores
from spark_build.host import wheelhouse
from spark_build.host.files import CHUNK, sha256_of, sync_folder
from spark_build.host.home import Home
from spark_build.host.wheelhouse import Generation
from spark_build.model.wheel import StoredWheel

SCHEMA = 1
EPOCH = 315532800  # 1980: the same generation gives the same archive
MEMBER = re.compile(r"[^/]+/(?:[A-Za-z0-9_.+-]+|store/[0-9a-f]{64}/[A-Za-z0-9_.-]+)")
VIEW = re.compile(r"[A-Za-z0-9_.-]+")
PAPER_LIMIT = 1 << 30  # bytes; a build log of a gigabyte is no build log


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
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        with temporary.open("xb") as raw:
            with tarfile.TarFile(fileobj=raw, mode="w", copybufsize=CHUNK) as tar:
                _add_bytes(tar, f"{top}/{wheelhouse.MANIFEST}", json.dumps(manifest, indent=1).encode())
                for name, text in wheelhouse.papers(generation.wheels).items():
                    _add_bytes(tar, f"{top}/{name}", text.encode())
                for wheel in generation.wheels:
                    _add_wheel(tar, top, wheel, store)
            raw.flush()
            os.fsync(raw.fileno())
        temporary.replace(file)
        sync_folder(file.parent)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return file.stat().st_size


def _add_bytes(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode, member.mtime = len(data), 0o644, EPOCH
    tar.addfile(member, io.BytesIO(data))


def _add_wheel(tar: tarfile.TarFile, top: str, wheel: StoredWheel, store: Path) -> None:
    folder = stores.entry_folder(store, wheel.key)
    member = tarfile.TarInfo(f"{top}/{wheel.filename}")
    member.size, member.mode, member.mtime = wheel.size, 0o644, EPOCH
    with (folder / wheel.filename).open("rb") as raw:
        reader = _Hashing(raw)
        tar.addfile(member, reader)
        if reader.hexdigest() != wheel.sha256 or raw.read(1):
            raise StoreError(
                f"{wheel.filename} is damaged in the store: its sha256 is no longer the recorded one",
                where=str(folder),
                hint=f"rm -r {folder}, then: spark-build all",
            )
    for paper in sorted(folder.iterdir()):
        if paper.name != wheel.filename:
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
            wheels = tuple(
                StoredWheel(**{**row, "requires": tuple(row["requires"])}) for row in manifest["wheels"]
            )
            view, closure_key = str(manifest["view"]), str(manifest["closure_key"])
        except (tarfile.TarError, EOFError, ValueError, KeyError, TypeError) as error:
            raise _refused(file, f"it is cut short or no export of ours ({error})") from error
        if not VIEW.fullmatch(view) or view in (".", ".."):
            raise _refused(file, f"its view is called {view!r}")
        for wheel in wheels:
            _prove(file, folder / wheel.filename, wheel, papers)
        for wheel in wheels:
            _commit(home.store, folder / wheel.filename, wheel, papers)
    return _publish(home, view, wheels, closure_key)


def _refused(file: Path, why: str) -> StoreError:
    return StoreError(f"{file} is refused: {why}", hint="export it again, and compare the sha256 of the copy")


def _unpack(file: Path, folder: Path) -> tuple[dict[str, Any], dict[tuple[str, str], bytes]]:
    """Wheels into `folder`, papers into memory: (manifest, {(key, name): content})."""
    manifest: dict[str, Any] = {}
    papers: dict[tuple[str, str], bytes] = {}
    listed: set[str] = set()
    with tarfile.open(file, mode="r:") as tar:
        for member in tar:
            parts = member.name.split("/")
            content = tar.extractfile(member) if member.isreg() else None
            if content is None or not MEMBER.fullmatch(member.name) or ".." in parts:
                raise _refused(file, f"it holds {member.name!r}, which no export of ours does")
            if parts[1:] == [wheelhouse.MANIFEST]:
                manifest = json.loads(content.read(PAPER_LIMIT))
                listed = {row["filename"] for row in manifest["wheels"]}
            elif len(parts) == 4:
                papers[parts[2], parts[3]] = content.read(PAPER_LIMIT)
            elif parts[1] in listed:
                with (folder / parts[1]).open("xb") as out:
                    while chunk := content.read(CHUNK):
                        out.write(chunk)
            elif parts[1].endswith(".whl"):
                raise _refused(file, f"{parts[1]} is not in its manifest")
    return manifest, papers


def _prove(file: Path, path: Path, wheel: StoredWheel, papers: dict[tuple[str, str], bytes]) -> None:
    if path.name != wheel.filename or not path.is_file():
        raise _refused(file, f"{wheel.filename} is missing")
    if sha256_of(path) != wheel.sha256 or path.stat().st_size != wheel.size:
        raise _refused(file, f"{wheel.filename} is not what its manifest says (sha256)")
    if wheel.origin == "public":
        honest = wheel.key == wheel.sha256
    else:
        declared = json.loads(papers.get((wheel.key, "key.json"), b"{}"))
        honest = digest(declared.get("inputs")) == wheel.key
    if not honest or (wheel.key, stores.RECORD) not in papers:
        raise _refused(file, f"the papers of {wheel.filename} do not belong to its key")


def _commit(store: Path, path: Path, wheel: StoredWheel, papers: dict[tuple[str, str], bytes]) -> None:
    record = json.loads(papers[wheel.key, stores.RECORD])
    described = {
        "name": wheel.name,
        "version": wheel.version,
        "origin": wheel.origin,
        "requires": list(wheel.requires),
        "recipe": record["recipe"],
        "content_digest": record["content_digest"],
    }
    own = {name: data for (key, name), data in papers.items() if key == wheel.key and name != stores.RECORD}
    stores.commit(store, key=wheel.key, wheel=path, described=described, papers=own)


def _publish(
    home: Home, view: str, wheels: tuple[StoredWheel, ...], closure_key: str
) -> tuple[Generation, bool]:
    """The imported wheels replace those of their names; others in the view stay."""

    def choose(before: Generation | None) -> tuple[list[StoredWheel], str]:
        names = {wheel.name for wheel in wheels}
        others = [wheel for wheel in before.wheels if wheel.name not in names] if before else []
        return [*wheels, *others], closure_key if not others else ""

    return wheelhouse.publish(home.views / view, home.store, choose)
