"""Write bundles as archives or directories."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from spark_build.errors import StoreError, UsageError
from spark_build.files import CHUNK, locked, make_folder, remove_empty, sha256_of, sync_folder
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


# Puts one member at a place of the file; returns where it ends.
_Writer = Callable[[BinaryIO, int, Member, bytes, Counter], int]


def silent(_done: int, _total: int) -> None:
    """Progress that nobody wants to see."""


def write_archive(parcel: Bundle, file: Path, progress: Progress = silent) -> int:
    """Write FILE.tar or FILE.tar.zst; its size in bytes. Goes on where an interrupted one stopped.

    A damaged wheel ends it with a StoreError that leaves nothing; what was at `file` stays till the end.
    """
    part = file.with_name(f"{file.name}.part")
    writer: _Writer = _framed if file.suffix == ".zst" else _plain
    make_folder(file.parent)
    with locked(file.with_name(f".{file.name}.lock"), purpose=f"writing {file.name}"):
        try:
            with os.fdopen(
                os.open(part, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644), "r+b", buffering=0
            ) as out:
                _write(parcel, out, writer, Counter(progress, parcel.size))
                os.fsync(out.fileno())
        except StoreError:
            part.unlink()
            raise
        part.replace(file)
        sync_folder(file.parent)
        return file.stat().st_size


def stream(members: tuple[Member, ...]) -> Iterator[bytes]:
    """Yield the members as a tar for a pipe."""
    total = 0
    for member in members:
        header = _header(member.name, member.size)
        yield header
        yield from member.content()
        yield bytes(_padding(member.size))
        total += len(header) + member.size + _padding(member.size)
    yield _end(total)


def _write(parcel: Bundle, out: BinaryIO, writer: _Writer, counter: Counter) -> None:
    at = total = 0
    for member in parcel.members:
        header = _header(f"{parcel.top}/{member.name}", member.size)
        at = writer(out, at, member, header, counter)
        total += len(header) + member.size + _padding(member.size)
    last = Member(name="", size=0, sha256=hashlib.sha256(b"").hexdigest(), source=b"")
    at = writer(out, at, last, _end(total), counter)
    out.truncate(at)


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


def _read(out: BinaryIO, at: int, size: int) -> Iterator[bytes]:
    """Yield what is there already, of at most `size` bytes."""
    out.seek(at)
    while size > 0 and (chunk := out.read(min(CHUNK, size))):
        size -= len(chunk)
        yield chunk


def _put(out: BinaryIO, data: bytes) -> None:
    """Write all of it: an unbuffered file may take less at once."""
    view = memoryview(data)
    while view:
        view = view[out.write(view) :]


def _plain(out: BinaryIO, at: int, member: Member, header: bytes, counter: Counter) -> int:
    begin = at + len(header)
    end = begin + member.size + _padding(member.size)
    digest, kept, before = hashlib.sha256(), 0, counter.done
    if b"".join(_read(out, at, len(header))) == header:
        for chunk in _read(out, begin, member.size):
            digest.update(chunk)
            kept += len(chunk)
            counter.add(len(chunk))
    if kept == member.size and digest.hexdigest() != member.sha256:
        counter.add(-kept)
        digest, kept = hashlib.sha256(), 0
    out.seek(at)
    _put(out, header)
    try:
        _append(out, begin + kept, member, kept, digest, counter)
    except StoreError:
        if not kept:
            raise
        # Either the source is damaged, or the beginning that was there: from the start it will show.
        counter.add(before - counter.done)
        _append(out, begin, member, 0, hashlib.sha256(), counter)
    out.seek(begin + member.size)
    _put(out, bytes(end - begin - member.size))
    return end


def _append(out: BinaryIO, at: int, member: Member, kept: int, digest: object, counter: Counter) -> None:
    out.seek(at)
    if kept == member.size:
        return
    for chunk in member.content(kept, digest):
        _put(out, chunk)
        counter.add(len(chunk))


def _framed(out: BinaryIO, at: int, member: Member, header: bytes, counter: Counter) -> int:
    end = _sound_frame(out, at, member, header)
    if end is not None:
        counter.add(member.size)
        return end
    out.truncate(at)
    out.seek(at)
    packer = zstd.ZstdCompressor(level=LEVEL)
    packer.set_pledged_input_size(len(header) + member.size + _padding(member.size))
    _put(out, packer.compress(header))
    for chunk in member.content():
        _put(out, packer.compress(chunk))
        counter.add(len(chunk))
    _put(out, packer.compress(bytes(_padding(member.size))) + packer.flush())
    return out.tell()


def _sound_frame(out: BinaryIO, at: int, member: Member, header: bytes) -> int | None:
    """Return the end of this member's frame; None when it is missing or damaged."""
    unpacker, begin, digest, size = zstd.ZstdDecompressor(), b"", hashlib.sha256(), 0
    padding = _padding(member.size)
    out.seek(at)
    try:
        while not unpacker.eof:
            packed = out.read(CHUNK) if unpacker.needs_input else b""
            if not packed and unpacker.needs_input:
                return None
            at += len(packed)
            data = unpacker.decompress(packed, CHUNK)
            begin, data = (begin + data)[: len(header)], data[max(0, len(header) - len(begin)) :]
            if not header.startswith(begin):
                return None
            content = data[: max(0, member.size - size)]
            digest.update(content)
            size += len(data)
            if size > member.size + padding or any(data[len(content) :]):  # the padding is zeros
                return None
    except zstd.ZstdError:
        return None
    whole = begin == header and size == member.size + padding and digest.hexdigest() == member.sha256
    return at - len(unpacker.unused_data) if whole else None


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
    with part.open("wb", buffering=0) as out:
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
