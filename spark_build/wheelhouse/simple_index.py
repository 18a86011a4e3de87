"""The static index of a generation. What is said of one project is a folder that generations share.

views/<view>/pages/<digest>/ holds the pages of a project, its wheels (symlinks) and their metadata;
generations/<n>/index/<project> is a symlink to it. So a new generation costs one link for each project
that did not change.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from spark_build.files import locked, make_folder, remove_tree, sync_folder, sync_tree
from spark_build.wheelhouse.simpleindex import IndexedWheel, project_pages, root_pages
from spark_build.wheelhouse.store import RECORD, entry_folder
from spark_build.wheels.model import StoredWheel

INDEX = "index"
PAGES = "pages"
FORMAT = 1  # another number makes every page anew
# A link of less than 60 characters lies in the inode: on ext4 10 000 take 0.1 s, longer ones up to 4 s.
DIGITS = 40
MANY = 100  # pages; for more one sync of all is quicker than one for each file


def write_index(generation: Path, view: Path, wheels: Sequence[StoredWheel], store: Path) -> None:
    """Write `generation`/index, and the pages it needs that are not there; under the view's lock.

    The caller syncs the generation's folder.
    """
    pages = view / PAGES
    make_folder(pages)
    projects: dict[str, list[StoredWheel]] = {}
    for wheel in wheels:
        projects.setdefault(wheel.name, []).append(wheel)
    digests = {project: _digest(own) for project, own in projects.items()}
    there = set(os.listdir(pages))  # noqa: PTH208 - names are enough
    _write_pages(
        pages, {digests[name]: projects[name] for name in projects if digests[name] not in there}, store
    )
    index = generation / INDEX
    index.mkdir()
    for project, digest in digests.items():
        # Plain strings: pathlib takes longer than the system call.
        os.symlink(f"../../../{PAGES}/{digest}", f"{index}/{project}")  # noqa: PTH211 - a string
    for name, data in root_pages(sorted(projects)).items():
        (index / name).write_bytes(data)


def add_index(generation: Path, view: Path, wheels: Sequence[StoredWheel], store: Path) -> None:
    """Give a generation its index that was published before there were any."""
    if (generation / INDEX).is_dir():
        return
    with locked(view / "lock", purpose="writing an index"):
        if (generation / INDEX).is_dir():
            return
        # At the depth of a generation, where publishing removes what a killed process left.
        temporary = Path(tempfile.mkdtemp(prefix=".tmp-", dir=generation.parent))
        try:
            write_index(temporary, view, wheels, store)
            sync_tree(temporary)
            (temporary / INDEX).rename(generation / INDEX)
            sync_folder(generation)
        finally:
            remove_tree(temporary)


def _digest(wheels: Sequence[StoredWheel]) -> str:
    """Names the pages of these wheels, without reading them: entries of the store never change."""
    rows = sorted(f"{wheel.filename}\0{wheel.sha256}\0{wheel.key}" for wheel in wheels)
    return hashlib.sha256("\n".join([str(FORMAT), *rows]).encode()).hexdigest()[:DIGITS]


def _write_pages(pages: Path, missing: Mapping[str, Sequence[StoredWheel]], store: Path) -> None:
    """Write the pages of each digest; all are on disk before the first appears under its name."""
    for killed in pages.glob(".tmp-*"):
        remove_tree(killed)
    if not missing:
        return
    staging = Path(tempfile.mkdtemp(prefix=".tmp-", dir=pages))
    try:
        # Resolved: the wheelhouse's views/ or store/ may itself be a link to another disk.
        to_store = Path(os.path.relpath(store.resolve(), pages.resolve() / "digest"))
        for digest, wheels in missing.items():
            folder = staging / digest
            folder.mkdir()
            for wheel in wheels:
                (folder / wheel.filename).symlink_to(entry_folder(to_store, wheel.key) / wheel.filename)
            for name, data in project_pages(wheels[0].name, [indexed(store, one) for one in wheels]).items():
                (folder / name).write_bytes(data)
        if len(missing) > MANY:
            os.sync()
        else:
            sync_tree(staging)
        for digest in missing:
            (staging / digest).rename(pages / digest)
        sync_folder(pages)
    finally:
        remove_tree(staging)


def indexed(store: Path, wheel: StoredWheel) -> IndexedWheel:
    """What an index says of a wheel in the store. Reads its record and the METADATA in it."""
    from spark_build.wheels.reader import dist_info, opened

    folder = entry_folder(store, wheel.key)
    with opened(folder / wheel.filename) as archive:
        metadata = archive.read(f"{dist_info(archive, wheel.filename)}/METADATA")
    committed = datetime.fromisoformat(json.loads((folder / RECORD).read_text())["committed"])
    return IndexedWheel(
        name=wheel.name,
        version=wheel.version,
        filename=wheel.filename,
        sha256=wheel.sha256,
        size=wheel.size,
        uploaded=committed.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        metadata=metadata,
    )
