"""Compare two results of one build, wheels or prefixes, file by file."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from spark_build.build.context import Job, Outputs
from spark_build.errors import StoreError
from spark_build.events import FileDifference, Repetition
from spark_build.files import sha256_of
from spark_build.wheelhouse import store
from spark_build.wheels.reader import files_of, opened

File = tuple[str, str]  # what of it counts besides the content; the sha256 of that


def same_bytes(first: Path, second: Path) -> bool:
    """Return whether two files have the same name and the same bytes."""
    return first.name == second.name and sha256_of(first) == sha256_of(second)


def repetition(job: Job, outputs: Mapping[str, Outputs]) -> Repetition:
    """Describe what a job made that was built once more, against what the store has of it."""
    keys = (job.key, *(row["key"] for row in store.imports_of(job.home.store, job.key)))
    entry = next(filter(None, (store.read(job.home.store, key) for key in keys)), None)
    if entry is None:
        raise StoreError(f"{job.step.recipe.name} is not in the store", hint="build it first")
    found: tuple[FileDifference, ...] = ()
    product, sha256 = "prefix", entry.content_digest
    if entry.wheel is not None:
        product, sha256 = entry.wheel.filename, entry.wheel.sha256
        found = wheels(entry.folder / product, job.out / str(outputs["audit"]["wheel"]))
    if entry.prefix is not None:
        found += folders(entry.prefix, job.prefix)
    return Repetition(recipe=job.step.recipe.name, product=product, sha256=sha256, differences=found)


def wheels(first: Path, second: Path) -> tuple[FileDifference, ...]:
    """Return the differences of two wheels; () only when every byte is the same."""
    if same_bytes(first, second):
        return ()
    with opened(first) as one, opened(second) as other:
        found = _differences(_members(one), _members(other))
    if first.name != second.name:
        found.append(FileDifference(file=first.name, what=f"the second is called {second.name}"))
    if not found:
        found.append(FileDifference(file=first.name, what="only times, modes, order or packing of its files"))
    return tuple(found)


def folders(first: Path, second: Path) -> tuple[FileDifference, ...]:
    """Return the differences of two folders: contents, links, executable bits."""
    return tuple(_differences(_tree(first), _tree(second)))


def _members(archive: zipfile.ZipFile) -> dict[str, File]:
    found: dict[str, File] = {}
    for info in files_of(archive):
        with archive.open(info) as content:
            file = cast("zipfile.ZipExtFile", content)
            found[info.filename] = ("", hashlib.file_digest(file, "sha256").hexdigest())
    return found


def _tree(folder: Path) -> dict[str, File]:
    found: dict[str, File] = {}
    for path in folder.rglob("*"):
        if path.is_symlink():
            found[str(path.relative_to(folder))] = (f"link to {path.readlink()}", "")
        elif path.is_file():
            mark = "executable" if path.stat().st_mode & 0o111 else "plain file"
            found[str(path.relative_to(folder))] = (mark, sha256_of(path))
    return found


def _differences(first: Mapping[str, File], second: Mapping[str, File]) -> list[FileDifference]:
    found = []
    for name in sorted(first.keys() | second.keys()):
        if name not in second:
            found.append(FileDifference(file=name, what="only in the first build"))
        elif name not in first:
            found.append(FileDifference(file=name, what="only in the second build"))
        elif first[name][0] != second[name][0]:
            found.append(FileDifference(file=name, what=f"{first[name][0]}, then {second[name][0]}"))
        elif first[name] != second[name]:
            found.append(FileDifference(file=name, what="another content"))
    return found
