"""Write an export as a folder; what is right there already is left alone."""

from __future__ import annotations

import json
import os
from pathlib import Path

from spark_build.errors import UsageError
from spark_build.files import locked, remove_empty, sha256_of, sync_folder
from spark_build.transfer.bundle import Member, Parcel, Progress
from spark_build.transfer.bundle_write import Counter, silent
from spark_build.wheelhouse.generations import MANIFEST

PART = ".part"
LOCK = ".export.lock"  # inside: the folder may be the top of a stick, the one place to write


def write_folder(parcel: Parcel, folder: Path, progress: Progress = silent) -> int:
    """Write the members to `folder`, the manifest last; bytes of all. Interrupted, it goes on.

    An older export there is replaced; UsageError when there is anything else.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / LOCK, purpose=f"writing {folder.name}"):
        manifest, *others = parcel.members
        stale = _earlier(folder, parcel)
        counter = Counter(progress, parcel.size)
        # Says from now on what belongs here, also if this is the last that happens.
        _write(manifest, folder / f"{MANIFEST}{PART}", counter)
        for member in others:
            path = folder / member.name
            if _is_right(path, member):
                counter.add(member.size)
            else:
                _write(member, path, counter)
        for name in stale:
            (folder / name).unlink(missing_ok=True)
            remove_empty((folder / name).parent)
        (folder / f"{MANIFEST}{PART}").replace(folder / MANIFEST)
        sync_folder(folder)
    return parcel.size


def _is_right(path: Path, member: Member) -> bool:
    whole = path.is_file() and not path.is_symlink() and path.stat().st_size == member.size
    return whole and sha256_of(path) == member.sha256


def _write(member: Member, path: Path, counter: Counter) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + PART) if path.suffix != PART else path
    with part.open("wb", buffering=0) as out:
        for chunk in member.content():
            out.write(chunk)
            counter.add(len(chunk))
        os.fsync(out.fileno())
    part.replace(path)


def _earlier(folder: Path, parcel: Parcel) -> list[str]:
    """Names in `folder` that an earlier export left there and this one does not have."""
    known = {member.name for member in parcel.members}
    there = {
        str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_symlink() or not path.is_dir()
    }
    there -= {f"{MANIFEST}{PART}", LOCK}
    ours = known | _listed(folder / MANIFEST) | _listed(folder / f"{MANIFEST}{PART}")
    strange = sorted(name for name in there if name.removesuffix(PART) not in ours)
    if strange:
        raise UsageError(
            f"{folder} holds {strange[0]!r}, which no export put there"
            + (f" (and {len(strange) - 1} more)" if strange[1:] else ""),
            hint="name a new or empty folder",
        )
    return sorted(there - known)


def _listed(manifest: Path) -> set[str]:
    """The names that a manifest lists; none when it cannot be read."""
    try:
        raw = json.loads(manifest.read_text())
        wheels = {str(row["filename"]) for row in raw["wheels"]}
        papers = {f"store/{key}/{name}" for key, own in raw["papers"].items() for name in own}
        return {*wheels, *papers, *raw["files"], MANIFEST}
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return set()
