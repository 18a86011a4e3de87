"""Read wheels: names, metadata, records, and limits on hostile archives."""

from __future__ import annotations

import base64
import contextlib
import csv
import errno
import hashlib
import io
import lzma
import math
import os
import re
import struct
import tempfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from email.message import Message
from email.parser import Parser
from pathlib import Path
from typing import IO, TYPE_CHECKING

from packaging.metadata import parse_email
from packaging.tags import parse_tag
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from spark_build.errors import AuditError
from spark_build.files import CHUNK
from spark_build.text import printable
from spark_build.wheels import device_code
from spark_build.wheels.elf import Leaks, read_library
from spark_build.wheels.fatbin import ELF_MAGIC, kind_of
from spark_build.wheels.model import DeviceCode, Library, WheelFacts
from spark_build.wheels.payload import ZipEntry, file_summary, is_telling

if TYPE_CHECKING:
    from installer.records import RecordEntry

SPOOL = 32 << 20  # machine code up to this size is looked at in memory
TEXT = 64 << 20  # bytes of METADATA or RECORD: torch's RECORD has 1.5 MiB
TOLD = 1 << 20  # bytes of a .pth file, of entry_points.txt
HASHES = ("sha256", "sha384", "sha512")  # what the wheel format allows in RECORD

# Not covered by RECORD: the file itself and signatures over it.
RECORD_FILES = ("RECORD", "RECORD.jws", "RECORD.p7s")
PROVENANCE = "spark-build.provenance.json"  # in the dist-info folder
# What differs between two builds of the same content: tags, and what describes the build machine.
_VOLATILE = re.compile(rf"[^/]+\.dist-info/(RECORD(\.jws|\.p7s)?|WHEEL|sboms/.*|{re.escape(PROVENANCE)})")

# What zipfile and the decompressors raise on damaged input, besides BadZipFile.
_DAMAGE = (
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    struct.error,
    EOFError,
    RuntimeError,  # encrypted; NotImplementedError: an unknown compression method
    OverflowError,
    ValueError,  # offsets before the beginning, names that are no text
    MemoryError,  # LZMA asks for what its header says
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Described:
    """Name, version and requirements in a wheel's METADATA; `name` normalised."""

    name: str
    version: str
    requires: tuple[str, ...]


def read_facts(path: Path, *, own: Sequence[str] = ()) -> WheelFacts:
    """Return everything the audit rules use. Raises AuditError for an unreadable wheel.

    `own`: folders of the build, which libraries should not mention.
    """
    return facts_and_digest(path, own=own)[0]


def facts_and_digest(path: Path, *, own: Sequence[str] = ()) -> tuple[WheelFacts, str]:
    """Return `read_facts` and `content_digest` together, unpacking every file once."""
    tags, build = filename_parts(path.name)
    with opened(path) as archive:
        folder, told = _described(archive, path.name)
        wheel = _headers(sane(_member(archive, f"{folder}/WHEEL")))
        wheel_tags = expanded(wheel.get_all("Tag") or [])
        problems, contents = _inspect(archive, folder, own, symbols=any("-abi3-" in tag for tag in tags))
        payload = file_summary(
            [entry(info) for info in files_of(archive)],
            dist_info=folder,
            texts={name: content.text for name, content in contents if content.text is not None},
        )
    libraries = [content.library for _, content in contents if content.library is not None]
    facts = WheelFacts(
        filename=path.name,
        name=told.name,
        version=told.version,
        build=build,
        filename_tags=tags,
        wheel_tags=wheel_tags,
        wheel_build=(wheel.get("Build") or "").strip(),
        root_is_purelib=(wheel.get("Root-Is-Purelib") or "").strip().lower() == "true",
        requires=told.requires,
        record_problems=tuple(map(printable, problems)),
        libraries=tuple(sorted(libraries, key=lambda library: library.path)),
        size=path.stat().st_size,
        payload=payload,
        device_code=_device_code([content for _, content in contents]),
    )
    return facts, digest_of((name, content.sha256) for name, content in contents)


def read_described(path: Path) -> Described:
    """Return what METADATA says; of a zip without bombs, of which no other file is unpacked."""
    with opened(path) as archive:
        return _described(archive, path.name)[1]


def _described(archive: zipfile.ZipFile, filename: str) -> tuple[str, Described]:
    """Return the dist-info folder, and what METADATA in it says."""
    folder = dist_info(archive, filename)
    metadata, unparsed = parse_email(sane(_member(archive, f"{folder}/METADATA")))
    if "requires-dist" in unparsed:  # none of them would be known
        raise AuditError(f"{filename}: a Requires-Dist of METADATA is no UTF-8")
    if "name" not in metadata or "version" not in metadata:
        raise AuditError(f"{filename}: METADATA has no name or no version")
    name, requires = canonicalize_name(metadata["name"]), tuple(metadata.get("requires_dist", ()))
    return folder, Described(name=name, version=metadata["version"], requires=requires)


def content_digest(path: Path) -> str:
    """Return hex sha256 of what the wheel installs, independent of build tag, zip order and time.

    Without RECORD, WHEEL, SBOMs and our provenance, which differ between builds of the same content.
    """
    with opened(path) as archive:
        infos = [info for info in files_of(archive) if not _VOLATILE.fullmatch(info.filename)]
        return digest_of((info.filename, _read(archive, info).sha256) for info in infos)


def digest_of(hashes: Iterable[tuple[str, bytes]]) -> str:
    """Return the content digest of a wheel from the sha256 of each of its files."""
    lines = sorted(
        f"{name}\0{sha256.hex()}\n".encode() for name, sha256 in hashes if not _VOLATILE.fullmatch(name)
    )
    return hashlib.sha256(b"".join(lines)).hexdigest()


@contextlib.contextmanager
def opened(path: Path) -> Iterator[zipfile.ZipFile]:
    """Yield the wheel as a zip archive; damage met inside the block becomes one AuditError."""
    try:
        with Bounded(path) as file, zipfile.ZipFile(file) as archive:
            refuse_unsafe_zip(archive, path.stat().st_size)
            yield archive
    except _DAMAGE as error:
        raise _broken(path, error) from error
    except OSError as error:
        # bz2 reports damage as an OSError without a number, a wild offset is an invalid seek.
        if error.errno in (None, errno.EINVAL):
            raise _broken(path, error) from error
        raise


def _broken(path: Path, error: Exception) -> AuditError:
    reason = printable(str(error)) or type(error).__name__
    return AuditError(f"{path.name} is no readable wheel: {reason}", hint="build or fetch it again")


def files_of(archive: zipfile.ZipFile) -> list[zipfile.ZipInfo]:
    """Return the archive's files, without folder entries, in its order."""
    return [info for info in archive.infolist() if not info.is_dir()]


def dist_info(archive: zipfile.ZipFile, filename: str) -> str:
    """Return the name of the dist-info folder. Raises AuditError without exactly one."""
    tops = {info.filename.partition("/")[0] for info in files_of(archive)}
    folders = sorted(top for top in tops if top.endswith(".dist-info"))
    if len(folders) != 1:
        found = printable(", ".join(folders)) or "none"
        raise AuditError(f"{filename}: expected one dist-info folder, found {found}")
    return folders[0]


def _member(archive: zipfile.ZipFile, name: str) -> bytes:
    try:
        size = archive.getinfo(name).file_size
        if size > TEXT:
            raise zipfile.BadZipFile(f"{name} of {size:,} bytes")
        return archive.read(name)
    except KeyError as error:
        raise AuditError(f"{Path(archive.filename or '').name} has no {printable(name)}") from error


def _headers(data: bytes) -> Message:
    return Parser().parsestr(data.decode(errors="replace"), headersonly=True)


def _inspect(
    archive: zipfile.ZipFile, folder: str, own: Sequence[str], *, symbols: bool
) -> tuple[list[str], list[tuple[str, _WheelContent]]]:
    """Read every file once; returns the mistakes in RECORD, and each file's facts."""
    infos = files_of(archive)
    rows, problems = record_rows(_member(archive, f"{folder}/RECORD").decode())
    counts = Counter(info.filename for info in infos)
    problems += [f"{name}: appears {count} times in the zip" for name, count in counts.items() if count > 1]
    problems += [f"{name}: not a safe relative name" for name in counts if not is_safe(name)]
    problems += oddities(archive)
    problems += _about_itself(rows, folder)
    contents = []
    exempt = {f"{folder}/{name}" for name in RECORD_FILES}
    for info in infos:
        row = rows.get(info.filename)
        listed = row.hash_ if row else None
        algorithm = listed.name if listed and listed.name in HASHES else "sha256"
        kept = is_telling(info.filename, folder)
        content = _read(archive, info, algorithm=algorithm, leaks=Leaks(own), kept=kept, symbols=symbols)
        contents.append((info.filename, content))
        if content.size != info.file_size:
            problems.append(f"{info.filename}: {content.size} bytes, the zip says {info.file_size}")
        if info.filename not in exempt:
            problems += _mismatches(info.filename, content, row)
    problems += [
        f"{name}: listed in RECORD, but not there"
        for name in rows
        if name not in counts and name not in exempt
    ]
    return problems, contents


def _about_itself(rows: Mapping[str, RecordEntry], folder: str) -> Iterator[str]:
    """Yield what the package `installer` finds wrong in RECORD's rows on RECORD and its signatures."""
    record, *signatures = (f"{folder}/{name}" for name in RECORD_FILES)
    own = rows.get(record)
    if own is None:
        yield f"{record}: does not list itself"
    elif own.hash_ is not None or own.size is not None:
        yield f"{record}: states its own hash or size, which it cannot know"
    yield from (f"{name}: a signature over RECORD, and listed there" for name in signatures if name in rows)


def _mismatches(name: str, content: _WheelContent, row: RecordEntry | None) -> Iterator[str]:
    if row is None:
        yield f"{name}: not listed in RECORD"
        return
    if row.hash_ is None or row.hash_.name not in HASHES:
        yield f"{name}: RECORD has no sha256 for it"
    elif row.hash_.value != urlsafe(content.listed):
        yield f"{name}: content is not what RECORD says ({row.hash_.name} differs)"
    if row.size != content.size:
        yield f"{name}: {content.size} bytes, RECORD says {'nothing' if row.size is None else row.size}"


def urlsafe(digest: bytes) -> str:
    """Return a digest in RECORD's form: URL-safe base64 without padding."""
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


@dataclass(frozen=True, kw_only=True, slots=True)
class _WheelContent:
    size: int
    sha256: bytes
    listed: bytes  # by the algorithm that RECORD names
    library: Library | None
    code: DeviceCode | None
    text: bytes | None  # all of it, where it was asked for


def _read(
    archive: zipfile.ZipFile,
    info: zipfile.ZipInfo,
    *,
    algorithm: str = "sha256",
    leaks: Leaks | None = None,
    kept: bool = False,
    symbols: bool = False,
) -> _WheelContent:
    """Read one file in chunks; machine code is spooled on the way, because it needs random access.

    With `leaks`, which must be fresh, machine code is looked into, with `symbols` for what it takes from the
    interpreter; `kept`: remember the whole of it.
    """
    if kept and info.file_size > TOLD:
        raise zipfile.BadZipFile(f"{info.filename} of {info.file_size:,} bytes")
    digest = hashlib.sha256()
    listed = digest if algorithm == "sha256" else hashlib.new(algorithm)
    size = 0
    library, code = None, None
    with contextlib.ExitStack() as stack:
        stream = stack.enter_context(archive.open(info))
        chunk = stream.read(CHUNK)
        spool: IO[bytes] | None = None
        pieces = []
        if leaks is not None and kind_of(chunk[: device_code.HEAD]) != "other":
            spool = stack.enter_context(tempfile.SpooledTemporaryFile(SPOOL))
        while chunk:
            digest.update(chunk)
            if listed is not digest:
                listed.update(chunk)
            size += len(chunk)
            if kept:
                pieces.append(chunk)
            if spool is not None and leaks is not None:
                spool.write(chunk)
                leaks.feed(chunk)
            chunk = stream.read(CHUNK)
        if spool is not None and leaks is not None:
            library, code = _looked_into(spool, info.filename, leaks, digest.hexdigest(), symbols=symbols)
    sha256, wanted = digest.digest(), listed.digest()
    text = b"".join(pieces) if kept else None
    return _WheelContent(size=size, sha256=sha256, listed=wanted, library=library, code=code, text=text)


def _looked_into(
    file: IO[bytes], name: str, leaks: Leaks, sha256: str, *, symbols: bool
) -> tuple[Library | None, DeviceCode]:
    """Return a file's facts for the loader, if it is ELF, and its device code."""
    leaks.close()
    code = device_code.read_or_tell(file, name)
    file.seek(0)
    if file.read(len(ELF_MAGIC)) != ELF_MAGIC:
        return None, code
    library = read_library(name, file, symbols=symbols)
    host = replace(library.host, leaks=leaks.found)
    return replace(library, sha256=sha256, host=host, sass=code.sass, ptx=code.ptx), code


def _device_code(contents: Iterable[_WheelContent]) -> tuple[DeviceCode, ...]:
    codes = [content.code for content in contents if content.code is not None and not content.code.empty]
    return tuple(sorted(codes, key=lambda code: code.path))


MAX_NAME = 230  # bytes: an index has a file with .metadata behind it, installers and we add more for a moment
MAX_TAGS = 1000  # a compressed tag is a product of three lists
# What the readers take is linear in one and quadratic in the other.
MAX_LINES, MAX_HEADERS = 20_000, 200
MAX_ROWS = 400_000  # of RECORD: torch has 12 000
_EMPTY_LINE = re.compile(rb"(?:\A|\n|\r(?!\n))[\r\n]")  # with the line ends of the email parser


def filename_parts(filename: str) -> tuple[tuple[str, ...], str]:
    """Return the file name's expanded tags and its build tag."""
    try:
        if _product("-".join(filename.split("-")[-3:])) > MAX_TAGS:
            raise InvalidWheelFilename(f"it stands for more than {MAX_TAGS} tags")
        if len(filename.encode()) > MAX_NAME:
            raise InvalidWheelFilename(f"it is longer than {MAX_NAME} bytes")
        _, _, build, tags = parse_wheel_filename(filename)
    except InvalidWheelFilename as error:
        raise AuditError(
            f"{filename} is no wheel name: {error}", hint="a wheel is called name-version[-build]-tags.whl"
        ) from error
    return tuple(sorted(str(tag) for tag in tags)), filename.split("-")[2] if build else ""


def sane(headers: bytes) -> bytes:
    """Return METADATA or WHEEL unchanged. Raises ValueError for headers that keep a parser busy for hours."""
    lines = _EMPTY_LINE.split(headers, 1)[0].splitlines()
    names = {line.partition(b":")[0].lower() for line in lines if line[:1] not in (b" ", b"\t")}
    if len(lines) > MAX_LINES or len(names) > MAX_HEADERS:
        raise ValueError(f"{len(lines):,} lines of metadata with {len(names):,} different names")
    return headers


def expanded(tags: list[str]) -> tuple[str, ...]:
    """Return the single tags of compressed ones; an invalid one is kept."""
    found: set[str] = set()
    if sum(map(_product, tags)) > MAX_TAGS:
        raise ValueError(f"WHEEL stands for more than {MAX_TAGS} tags")
    for tag in tags:
        try:
            found.update(str(single) for single in parse_tag(tag.strip()))
        except ValueError:
            found.add(tag.strip())
    return tuple(sorted(found))


def _product(tag: str) -> int:
    """Return the number of tags in a compressed one."""
    return math.prod(part.count(".") + 1 for part in tag.split("-"))


def record_rows(text: str) -> tuple[dict[str, RecordEntry], list[str]]:
    """Return RECORD's rows by file, and the mistakes in them."""
    from installer.records import InvalidRecordEntry, RecordEntry, parse_record_file

    rows: dict[str, RecordEntry] = {}
    problems = []
    # Counted first: a list of 64 MiB of line ends would take half a gigabyte.
    if max(map(text.count, "\n\r")) > MAX_ROWS or len(lines := text.splitlines()) > MAX_ROWS:
        raise ValueError(f"RECORD has more than {MAX_ROWS:,} rows")
    try:
        for elements in parse_record_file(lines):
            name = elements[0]
            if name in rows:
                problems.append(f"{name}: listed more than once in RECORD")
            try:
                rows[name] = RecordEntry.from_elements(*elements)
            except InvalidRecordEntry as error:
                problems.append(f"{name}: {error}")
    except (InvalidRecordEntry, ValueError, csv.Error) as error:
        problems.append(f"RECORD: {error}")
    return rows, problems


MAX_READ = 16 << 20  # bytes asked for at once: a central directory of this size lists 200 000 files
MAX_UNPACKED = 64 << 30
FREELY, RATIO = 1 << 30, 200  # what unpacks to more than a gigabyte may grow this much
_LOCAL_HEADER = 30


class Bounded(io.BufferedReader):
    """A file that limits zipfile's reads, whatever headers in it ask for."""

    def __init__(self, path: Path) -> None:
        super().__init__(io.FileIO(path))
        self._size = os.fstat(self.fileno()).st_size

    def read(self, size: int | None = -1, /) -> bytes:
        """Read up to MAX_READ bytes."""
        wanted = self._size - self.tell() if size is None or size < 0 else size
        if min(wanted, self._size) > MAX_READ:
            raise zipfile.BadZipFile(f"a directory or header of {wanted:,} bytes")
        return super().read(size)


def refuse_unsafe_zip(archive: zipfile.ZipFile, size: int) -> None:
    """Raise BadZipFile for a zip of `size` bytes that unpacks without end, or the same bytes twice."""
    infos = archive.infolist()
    if any(not info.filename for info in infos):
        raise zipfile.BadZipFile("an entry without a name")  # zipfile stumbles over it elsewhere
    unpacked = sum(info.file_size for info in infos)
    if unpacked > MAX_UNPACKED or unpacked > max(FREELY, RATIO * size):
        raise zipfile.BadZipFile(
            f"a zip bomb: {size:,} bytes would unpack to {unpacked:,} (more than {RATIO} times as many)"
        )
    end, before = 0, ""
    for info in sorted(infos, key=lambda info: info.header_offset):
        if info.header_offset < end:
            raise zipfile.BadZipFile(f"{before} and {info.filename} overlap: a zip bomb")
        end = info.header_offset + _LOCAL_HEADER + info.compress_size
        before = info.filename
    if end > size:
        raise zipfile.BadZipFile(f"{before} would end after the end of the file")


def oddities(archive: zipfile.ZipFile) -> list[str]:
    """Return what a readable zip should not contain."""
    infos = archive.infolist()
    folders = [info for info in infos if info.is_dir()]
    found = [
        f"{info.filename}: a folder with {info.file_size} bytes in it" for info in folders if info.file_size
    ]
    found += [
        f"{info.filename}: not a safe relative name"
        for info in folders
        if not is_safe(info.filename.removesuffix("/"))
    ]
    first = min((info.header_offset for info in infos), default=0)
    found += [f"{first} bytes stand before the first file of the zip"] if first else []
    return found + list(_differentials(archive))


_UNICODE_PATH = 0x7075  # Info-ZIP's extra field: another name, which Python 3.12 and others take
_DESCRIPTORS = (12, 16, 20, 24)  # bytes that may follow a file whose size was not known beforehand


def _differentials(archive: zipfile.ZipFile) -> Iterator[str]:
    """Yield where readers of zips differ: who reads it as a stream would meet other files or other names."""
    assert archive.fp is not None
    infos = sorted(archive.infolist(), key=lambda info: info.header_offset)
    following = [*(info.header_offset for info in infos[1:]), archive.start_dir]
    for info, end in zip(infos, following, strict=True):
        archive.fp.seek(info.header_offset + _LOCAL_HEADER - 4)
        name, extra = struct.unpack("<HH", archive.fp.read(4))
        gap = end - info.header_offset - _LOCAL_HEADER - name - extra - info.compress_size
        if gap not in (_DESCRIPTORS if info.flag_bits & 8 else (0,)):
            yield f"{info.filename}: {gap} bytes behind it belong to no file of the zip"
        for fields in (info.extra, archive.fp.read(name + extra)[name:]):
            # Not `filename`: since Python 3.12 zipfile itself takes the other name.
            if _other_name(fields) not in ("", info.orig_filename):
                yield f"{info.orig_filename}: the zip also calls it {_other_name(fields)}"


def _other_name(fields: bytes) -> str:
    """Return the Unicode path among an entry's extra fields; "" without one."""
    while len(fields) >= 4:
        kind, size = struct.unpack_from("<HH", fields)
        if kind == _UNICODE_PATH:
            return fields[9 : 4 + size].decode(errors="replace")
        fields = fields[4 + size :]
    return ""


def is_safe(name: str) -> bool:
    """Return whether an archive name stays inside the destination."""
    parts = name.split("/")
    return "\\" not in name and not any(part in ("", ".", "..") for part in parts)


def entry(info: zipfile.ZipInfo) -> ZipEntry:
    """Return the entry without zipfile's types."""
    return ZipEntry(
        name=info.filename,
        size=info.file_size,
        packed=info.compress_size,
        mode=info.external_attr >> 16,
    )
