"""Read bundles and check their manifests."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import stat
import tarfile
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from types import GenericAlias
from typing import IO, Any, BinaryIO, TypeVar, cast

from packaging.requirements import Requirement
from packaging.utils import parse_wheel_filename
from packaging.version import Version
from pydantic import ConfigDict, TypeAdapter, ValidationError

from spark_build.errors import AuditError, Hint, HintStep, StoreError
from spark_build.files import CHUNK
from spark_build.sources import archives
from spark_build.sources.archives import MAX_ENTRIES, Metered, RefusedError, decompressed
from spark_build.text import printable
from spark_build.transfer.bundle import SCHEMA, TOOL, Progress
from spark_build.transfer.bundle_write import silent
from spark_build.wheelhouse.generations import MANIFEST, VIEW
from spark_build.wheelhouse.store import PREFIX
from spark_build.wheelhouse.trust import SIGNATURE
from spark_build.wheels import reader
from spark_build.wheels.model import StoredWheel

T = TypeVar("T")
MAX_DEPTH = 64  # folders in folders
UNLIMITED = 1 << 62  # bytes
PACKED = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd")


@dataclass(frozen=True, kw_only=True, slots=True)
class Incoming:
    """One regular file; its content can be read until the next one is asked for."""

    name: str
    size: int
    content: IO[bytes]

    def chunks(self) -> Iterator[bytes]:
        """Its bytes, once."""
        while chunk := self.content.read(CHUNK):
            yield chunk

    def save(self, path: Path) -> str:
        """Write it to a new file; its sha256."""
        digest = hashlib.sha256()
        with path.open("xb", buffering=0) as out:
            for chunk in self.chunks():
                digest.update(chunk)
                out.write(chunk)
        return digest.hexdigest()


@contextlib.contextmanager
def incoming(path: Path, progress: Progress = silent) -> Iterator[Iterator[Incoming]]:
    """Yield the files of a folder, manifest.json first, or of a tar (.gz, .bz2, .xz, .zst) in its order.

    Names are safe and come once. Raises StoreError or DAMAGE for what nobody should take in.
    """
    if path.is_dir():
        # Closed at once: a refusal's traceback would keep the generator, and the file that it is at, open.
        with contextlib.closing(_of_folder(path, progress)) as files:
            yield files
        return
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        magic = file.read(6)
        file.seek(0)
        # What is not compressed ends where the file does.
        limit = max(reader.FREELY, reader.RATIO * size) if magic.startswith(PACKED) else UNLIMITED
        with incoming_tar(path, decompressed(file, magic), limit) as members:
            yield _telling(members, lambda: progress(file.tell(), size))


@contextlib.contextmanager
def incoming_tar(path: Path, file: BinaryIO, limit: int = UNLIMITED) -> Iterator[Iterator[Incoming]]:
    """Yield the files of an open tar as `incoming` does, reading forward only; `path`: its name in errors."""
    try:
        with contextlib.closing(_of_tar(path, Metered(file, limit))) as members:
            yield members
    except RefusedError as error:
        raise refused(path, str(error)) from error
    except (*DAMAGE, *archives.DAMAGE) as error:
        said = printable(" ".join(str(error).split()))[:300]
        raise refused(path, f"it is cut short or no export of ours ({said})") from error
    except OSError as error:
        # gzip and bz2 report damage as an OSError without a number.
        if error.errno is not None:
            raise
        raise refused(path, f"it is damaged ({error})") from error


def _telling(members: Iterator[Incoming], tell: Callable[[], None]) -> Iterator[Incoming]:
    """Yield the members, and tell after each how far the file was read."""
    for member in members:
        yield member
        tell()


def _of_tar(path: Path, stream: Metered) -> Generator[Incoming]:
    seen: set[str] = set()
    count = 0
    with tarfile.open(fileobj=cast("BinaryIO", stream), mode="r:") as tar:
        while (member := archives.next_member(tar, stream)) is not None:
            tar.members = []  # type: ignore[attr-defined]  # it would keep all of them
            count += 1
            if count > MAX_ENTRIES:
                raise refused(path, f"it holds more than {MAX_ENTRIES:,} files")
            name = member.name.removeprefix("./")
            if member.isdir() and (name in ("", ".") or reader.is_safe(name.rstrip("/"))):
                continue
            # A sparse file may claim any size without holding a byte.
            if not member.isreg() or member.issparse():
                raise refused(path, f"it holds {_shown(member.name)}, which is {_kind(member)}")
            if name in seen or not _is_sane(name):
                why = "is there twice" if name in seen else "is no safe name for a file"
                raise refused(path, f"it holds {_shown(member.name)}, which {why}")
            seen.add(name)
            content = tar.extractfile(member)
            assert content is not None
            yield Incoming(name=name, size=member.size, content=content)
        # tarfile takes a broken header for the end; the real end is zeros, or nothing.
        if stream.last.strip(b"\0") or len(stream.last) < tarfile.BLOCKSIZE or not seen:
            raise EOFError("it is cut short")
    if stream.limit < UNLIMITED:  # of what is not compressed the rest may have no end
        stream.drain()


def _kind(member: tarfile.TarInfo) -> str:
    if member.issym() or member.islnk():
        return "a link"
    if member.issparse():
        return "a sparse file"
    return "a folder outside it" if member.isdir() else "a device or a pipe"


def _shown(name: str) -> str:
    return printable(repr(name)[:300])


def _is_sane(name: str) -> bool:
    return reader.is_safe(name) and name.isprintable() and len(name) < 4096


def _below(path: Path) -> Iterator[Path]:
    """Yield what is in a folder and below it; StoreError for one without end, which Python cannot walk."""
    pending, count = [(path, 0)], 0
    while pending:
        folder, depth = pending.pop()
        for place in folder.iterdir():
            count += 1
            if depth > MAX_DEPTH or count > MAX_ENTRIES:
                raise refused(
                    path, f"it is nested deeper than {MAX_DEPTH}, or holds over {MAX_ENTRIES:,} files"
                )
            yield place
            if place.is_dir() and not place.is_symlink():
                pending.append((place, depth + 1))


def _of_folder(path: Path, progress: Progress) -> Generator[Incoming]:
    names = []
    for place in sorted(_below(path)):
        mode = place.lstat().st_mode
        name = str(place.relative_to(path))
        if stat.S_ISLNK(mode):
            raise refused(
                path, f"it holds {name!r}, a link", hint="cp -rL makes a copy of real files: import that"
            )
        if not stat.S_ISDIR(mode) and not (stat.S_ISREG(mode) and _is_sane(name)):
            raise refused(path, f"it holds {printable(name[:300])!r}, which is no plain file")
        if stat.S_ISREG(mode):
            names.append(({MANIFEST: 0, SIGNATURE: 1}.get(name, 2), name, place.stat().st_size))
    total, done = sum(size for _, _, size in names), 0
    for _, name, size in sorted(names):
        descriptor = os.open(path / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            yield Incoming(name=name, size=size, content=file)
        done += size
        progress(done, total)


NAME = r"[A-Za-z0-9_][A-Za-z0-9_.+!-]{0,254}"
PLACE = re.compile(rf"{NAME}|store/[0-9a-f]{{64}}/{NAME}|spark-build/{NAME}\.whl")
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
class Manifest:
    """Required fields of a manifest.json, which may have more.

    generation: the view's number on the machine that wrote it, which only grows there.
    papers: sha256 of the wheels' papers by key and name; files: of what is neither.
    """

    view: str
    generation: int
    closure_key: str
    wheels: tuple[StoredWheel, ...]
    papers: dict[str, dict[str, str]]
    files: dict[str, str]

    def hashes(self) -> dict[str, str]:
        """Return the sha256 of every other file, wheels included, by its name below the top folder."""
        papers = {
            f"store/{key}/{name}": sha256 for key, own in self.papers.items() for name, sha256 in own.items()
        }
        return {wheel.filename: wheel.sha256 for wheel in self.wheels} | self.files | papers


def refused(file: Path, why: str, *, hint: Hint | HintStep | str | None = None) -> StoreError:
    """Return the error for an archive or a folder that cannot be imported."""
    return StoreError(
        f"{file} is refused: {why}", hint=hint or "export it again, and compare the sha256 of the copy"
    )


_LISTED: Any = GenericAlias(list, (Manifest,))  # the list hands its configuration to what is inside
_SHAPE: TypeAdapter[list[Manifest]] = TypeAdapter(_LISTED, config=ConfigDict(extra="forbid", strict=True))
_HASH = re.compile(r"[0-9a-f]{64}")
_RESERVED = ("store", TOOL)  # folders of an export


def parse_manifest(path: Path, data: bytes) -> Manifest:
    """Read the manifest of the tar or folder `path`; StoreError, whatever is wrong with it."""
    return _or_refused(path, lambda: _checked(_manifest(path, data)))


def refuse_other_schema(path: Path, data: bytes) -> None:
    """Raise StoreError for what `parse_manifest` cannot read at all; quick, as nobody vouches for it yet."""
    _or_refused(path, lambda: _raw(path, data))


def _or_refused(path: Path, read: Callable[[], T]) -> T:
    try:
        return read()
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        why = f"{'.'.join(map(str, first['loc'][1:]))}: {first['msg']}"
    except (*DAMAGE, AuditError) as error:
        why = str(error)
    raise refused(path, f"its manifest is none of ours ({printable(' '.join(why.split()))[:300]})")


def _raw(path: Path, data: bytes) -> dict[str, Any]:
    raw: dict[str, Any] = json.loads(data)
    if raw["schema"] != SCHEMA:
        found = printable(repr(raw["schema"]))[:20]
        raise refused(
            path,
            f"its manifest has schema {found}, and this spark-build reads {SCHEMA}",
            hint="take it in with the version that wrote it, or with the one in its folder spark-build/",
        )
    return raw


def _manifest(path: Path, data: bytes) -> Manifest:
    raw = _raw(path, data)
    known = {one.name: raw[one.name] for one in fields(Manifest)}
    # By way of JSON: there pydantic's strict mode takes arrays for tuples and objects for classes.
    return _SHAPE.validate_json(json.dumps([known]))[0]


def _checked(document: Manifest) -> Manifest:
    """Return the manifest; DAMAGE or AuditError where its parts contradict each other."""
    for wheel in document.wheels:
        _check_wheel(wheel)
    names = {wheel.key: wheel.filename for wheel in document.wheels}
    if len(names) != len(document.wheels) or len(set(names.values())) != len(document.wheels):
        raise ValueError("a wheel is listed twice")
    if not VIEW.fullmatch(document.view):
        raise ValueError(f"its view is called {document.view!r}")
    if document.closure_key and not _HASH.fullmatch(document.closure_key):
        raise ValueError(f"its closure_key is {document.closure_key!r}")
    papers = [(key, name) for key, own in document.papers.items() for name in own]
    if any(names.get(key, name) == name or name == PREFIX for key, name in papers):
        raise ValueError("it lists papers of no wheel, or one with a wheel's name")
    taken = {*names.values(), *_RESERVED}
    if any(name.startswith("store/") or name in taken for name in document.files):
        raise ValueError("it lists a wheel, a paper or a folder as something else")
    for name, sha256 in document.hashes().items():
        if not PLACE.fullmatch(name) or not _HASH.fullmatch(sha256):
            raise ValueError(f"{name!r} with the sha256 {sha256!r} is no file of an export")
    return document


def _check_wheel(wheel: StoredWheel) -> None:
    """Raise DAMAGE or AuditError for a row of a manifest that describes no wheel."""
    reader.filename_parts(wheel.filename)
    name, version, _, _ = parse_wheel_filename(wheel.filename)
    plain = wheel.version.isascii() and wheel.version.isprintable() and " " not in wheel.version
    if (name, version) != (wheel.name, Version(wheel.version)) or not plain:
        raise ValueError(f"{wheel.filename} is not {wheel.name} {wheel.version}")
    if not _HASH.fullmatch(wheel.key) or wheel.size < 0:
        raise ValueError(f"{wheel.filename} has {wheel.size:,} bytes and the key {wheel.key!r}")
    for text in wheel.requires:
        requirement = Requirement(text)
        if requirement.marker is not None:
            requirement.marker.evaluate({"extra": ""})


@dataclass(frozen=True, kw_only=True, slots=True)
class Sound:
    """A wheel that lies proven in the scratch folder, and what its entry in the store will say."""

    wheel: StoredWheel
    described: Mapping[str, Any]
    papers: tuple[str, ...] = ()  # names below store/<key>/
