"""Write bundles as archives or directories."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, cast

from spark_build.errors import UsageError
from spark_build.files import locked, make_folder, remove_empty, sha256_of, sync_folder
from spark_build.transfer.bundle import Bundle, Member, Progress
from spark_build.wheelhouse.generations import MANIFEST
from spark_build.wheelhouse.trust import SIGNATURE

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

EPOCH = 315532800  # 1980: the same generation gives the same archive
LEVEL = 3  # wheels are compressed already: what shrinks are logs and SBOMs


class Counter:
    """Counts bytes of content, and tells."""

    def __init__(self, progress: Progress, total: int) -> None:
        self._progress, self._total, self.done = progress, total, 0

    def add(self, count: int) -> None:
        """So many more are done; fewer, when they have to be done again."""
        self.done += count
        self._progress(self.done, self._total)


def silent(_done: int, _total: int) -> None:
    """Progress that nobody wants to see."""


def write_archive(parcel: Bundle, file: Path, progress: Progress = silent) -> int:
    """Write FILE.tar or FILE.tar.zst; its size in bytes.

    A damaged wheel ends it with a StoreError that leaves nothing; what was at `file` stays till the end.
    """
    part = file.with_name(f"{file.name}.part")
    counter = Counter(progress, parcel.size)
    make_folder(file.parent)
    with locked(file.with_name(f".{file.name}.lock"), purpose=f"writing {file.name}"):
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o644)
        try:
            with os.fdopen(descriptor, "wb") as out:
                with _packing(out, file) as packed:
                    for data in stream(parcel.members, f"{parcel.top}/"):
                        packed.write(data)
                        counter.add(min(len(data), parcel.size - counter.done))
                out.flush()
                os.fsync(descriptor)
        except BaseException as stop:
            part.unlink()
            stop.add_note("the same command writes the archive anew")
            raise
        part.replace(file)
        sync_folder(file.parent)
        return file.stat().st_size


@contextlib.contextmanager
def _packing(out: BinaryIO, file: Path) -> Iterator[BinaryIO]:
    """Yield what packs into `out` as the name of `file` says."""
    if file.suffix == ".zst":
        with zstd.ZstdFile(out, "wb", level=LEVEL) as packed:
            yield cast("BinaryIO", packed)
    else:
        yield out


def stream(members: Iterable[Member], top: str = "") -> Iterator[bytes]:
    """Yield the members as a tar, with `top` before their names."""
    total = 0
    for member in members:
        header = _header(f"{top}{member.name}", member.size)
        yield header
        yield from member.content()
        yield bytes(_padding(member.size))
        total += len(header) + member.size + _padding(member.size)
    yield _end(total)


def _header(name: str, size: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.size, info.mode, info.mtime = size, 0o644, EPOCH
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict")


def _padding(size: int) -> int:
    return -size % tarfile.BLOCKSIZE


def _end(total: int) -> bytes:
    """Return two empty blocks, and up to a whole record."""
    blocks = 2 * tarfile.BLOCKSIZE
    return bytes(blocks + -(total + blocks) % tarfile.RECORDSIZE)


PART = ".part"
LOCK = ".export.lock"  # inside: the folder may be the top of a stick, the one place to write


def write_folder(parcel: Bundle, folder: Path, progress: Progress = silent) -> int:
    """Write the members to `folder`, the manifest last; bytes of all. Interrupted, it goes on.

    An older export there is replaced; UsageError when there is anything else.
    """
    make_folder(folder)
    with locked(folder / LOCK, purpose=f"writing {folder.name}"):
        manifest, *others = parcel.members
        stale = _earlier(folder, parcel)
        counter = Counter(progress, parcel.size)
        # Says from now on what belongs here, also if this is the last that happens.
        _write_file(manifest, folder / f"{MANIFEST}{PART}", counter)
        for member in others:
            path = folder / member.name
            if _is_right(path, member):
                counter.add(member.size)
            else:
                _write_file(member, path, counter)
        for name in stale:
            (folder / name).unlink(missing_ok=True)
            remove_empty((folder / name).parent)
        for place in {(folder / member.name).parent for member in others}:
            sync_folder(place)  # before the manifest says that all of it is there
        (folder / f"{MANIFEST}{PART}").replace(folder / MANIFEST)
        sync_folder(folder)
    return parcel.size


def _is_right(path: Path, member: Member) -> bool:
    whole = path.is_file() and not path.is_symlink() and path.stat().st_size == member.size
    return whole and sha256_of(path) == member.sha256


def _write_file(member: Member, path: Path, counter: Counter) -> None:
    make_folder(path.parent)
    part = path.with_name(path.name + PART) if path.suffix != PART else path
    part.unlink(missing_ok=True)  # what an interrupted one left, or a link of whoever had the stick
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
    with os.fdopen(descriptor, "wb", buffering=0) as out:
        for chunk in member.content():
            out.write(chunk)
            counter.add(len(chunk))
        os.fsync(out.fileno())
    part.replace(path)


def _earlier(folder: Path, parcel: Bundle) -> list[str]:
    """Return names in `folder` that an earlier export left there and this one does not have."""
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
    """Return the names in a manifest; none when it is unreadable."""
    try:
        raw = json.loads(manifest.read_text())
        wheels = {str(row["filename"]) for row in raw["wheels"]}
        papers = {f"store/{key}/{name}" for key, own in raw["papers"].items() for name in own}
        return {*wheels, *papers, *raw["files"], MANIFEST, SIGNATURE}
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return set()
