"""Sources of all kinds: fetch them, and write their trees."""

from __future__ import annotations

import filecmp
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from spark_build.errors import SourceError
from spark_build.files import copy_tree, remove_tree
from spark_build.recipes.model import Source
from spark_build.sources import download, git, http
from spark_build.sources.archives import unpack
from spark_build.sources.git_remote import display_url
from spark_build.sources.simple_api import Indexes


def obtain(
    source: Source,
    *,
    folder: Path,
    offline: bool,
    log: BinaryIO,
) -> dict[str, Any]:
    """Download or find what is pinned; returns {"name"} for people and "archive" (a path) or "git": true.

    Reports bytes, or git's objects, and why a mirror is asked. Raises SourceError.
    """
    if source.kind == "local":
        log.write(f"source {source.url} as it is, content {source.sha256}\n".encode())
        return {"name": f"{Path(source.url).name} (local)", "local": True}
    if source.kind == "git":
        git.fetch_commit(source, folder=folder, offline=offline, log=log)
        log.write(f"source {display_url(source.url)} commit {source.commit}\n".encode())
        return {"name": f"{display_url(source.url)}@{source.commit}", "git": True}
    archive = download.fetch_pinned(source, folder=folder, offline=offline)
    log.write(f"source {archive.name} sha256 {source.sha256}\n".encode())
    return {"name": archive.name, "archive": str(archive)}


def missing(source: Source, *, folder: Path, indexes: Callable[[], Indexes]) -> tuple[str, ...]:
    """Return what `obtain` needs the network for; changes nothing."""
    if source.kind == "local":
        return ()
    if source.kind == "git":
        return git.missing(source, folder=folder)
    if download.is_here(source, folder=folder, indexes=indexes):
        return ()
    return (source.filename or http.name_in(source.url),)


def is_here(source: Source, obtained: Mapping[str, Any], *, folder: Path) -> bool:
    """Return whether the result of `obtain` still exists."""
    if source.kind == "local":
        return Path(source.url).is_dir()
    if source.kind != "git":
        return "name" in obtained and Path(obtained["archive"]).is_file()
    try:
        git.fetch_commit(source, folder=folder, offline=True, log=None)
    except SourceError:
        return False
    return True


def write_tree(source: Source, obtained: Mapping[str, Any], *, folder: Path, destination: Path) -> None:
    """Write the source's tree to `destination`, which must not exist."""
    if source.kind == "local":
        copy_tree(Path(source.url), destination, without=".git")
        return
    if source.kind == "git":
        git.export_commit(source, folder=folder, destination=destination)
        return
    unpacked = destination.with_name(f"{destination.name}.unpacked")
    remove_tree(unpacked)
    unpack(Path(obtained["archive"]), unpacked).rename(destination)
    remove_tree(unpacked)


def lay_tree(source: Source, obtained: Mapping[str, Any], *, folder: Path, destination: Path) -> None:
    """Write an extra source's selected files to `destination`, beside those of other sources.

    Raises SourceError for what the source lacks, and for a file that is there with another content.
    """
    if not source.copy and not destination.exists():
        write_tree(source, obtained, folder=folder, destination=destination)
        return
    whole = destination.with_name(f"{destination.name}.whole")
    remove_tree(whole)
    write_tree(source, obtained, folder=folder, destination=whole)
    for inside, laid in (source.copy or {".": "."}).items():
        wanted = whole / inside
        if not wanted.exists():
            hint = "look into the source, and correct `copy` in its pin"
            raise SourceError(f"{obtained['name']} has no {inside}", hint=hint)
        for file in [wanted] if wanted.is_file() else _files_below(wanted):
            place = destination / laid / file.relative_to(wanted)
            if os.path.lexists(place) and not _is_same(file, place):
                say = f"{obtained['name']} and another extra source lay two different {place.name}"
                raise SourceError(say, hint="give one of them a folder of its own")
            # A link that was harmless where it was unpacked may lead elsewhere from here.
            if not place.parent.resolve().is_relative_to(destination.resolve()):
                raise SourceError(f"{obtained['name']} would lay {place.name} outside its folder")
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file, place, follow_symlinks=False)
    remove_tree(whole)


def _files_below(folder: Path) -> list[Path]:
    """Return the files and links of a tree, in an order that does not depend on the disk."""
    return sorted(path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir())


def _is_same(one: Path, other: Path) -> bool:
    """Return whether both are plain files of the same content (wheels bring empty __init__.py)."""
    plain = not one.is_symlink() and not other.is_symlink()
    return plain and filecmp.cmp(one, other, shallow=False)
