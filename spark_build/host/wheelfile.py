"""What is really inside a wheel: its metadata, whether RECORD tells the truth, its ELF files."""

from __future__ import annotations

import base64
import contextlib
import errno
import hashlib
import lzma
import re
import struct
import tempfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from email.message import Message
from email.parser import Parser
from pathlib import Path
from typing import IO

from installer.records import InvalidRecordEntry, RecordEntry, parse_record_file
from packaging.metadata import parse_email
from packaging.tags import parse_tag
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from spark_build.core.audit import printable
from spark_build.errors import AuditError
from spark_build.host.elf import ELF_MAGIC, read_library
from spark_build.model.wheel import Library, WheelFacts

CHUNK = 1 << 20
SPOOL = 32 << 20  # ELF files up to this size are looked at in memory
HASHES = ("sha256", "sha384", "sha512")  # what the wheel format allows in RECORD

# Not covered by RECORD: the file itself and signatures over it.
RECORD_FILES = ("RECORD", "RECORD.jws", "RECORD.p7s")
# What differs between two builds of the same content: tags, and what describes the build machine.
_VOLATILE = re.compile(r"[^/]+\.dist-info/(RECORD(\.jws|\.p7s)?|WHEEL|sboms/.*)")

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
)


def read_facts(path: Path) -> WheelFacts:
    """Everything the audit rules look at; AuditError when the file is no readable wheel."""
    return facts_and_digest(path)[0]


def facts_and_digest(path: Path) -> tuple[WheelFacts, str]:
    """`read_facts` and `content_digest` for the price of one: every file is unpacked once."""
    tags, build = _filename_parts(path.name)
    with opened(path) as archive:
        folder = dist_info(archive, path.name)
        metadata, _ = parse_email(_member(archive, f"{folder}/METADATA"))
        if "name" not in metadata or "version" not in metadata:
            raise AuditError(f"{path.name}: METADATA has no name or no version")
        wheel = _headers(_member(archive, f"{folder}/WHEEL"))
        problems, contents = _inspect(archive, folder)
    libraries = [content.library for _, content in contents if content.library is not None]
    facts = WheelFacts(
        filename=path.name,
        name=canonicalize_name(metadata["name"]),
        version=metadata["version"],
        build=build,
        filename_tags=tags,
        wheel_tags=_expanded(wheel.get_all("Tag") or []),
        wheel_build=(wheel.get("Build") or "").strip(),
        root_is_purelib=(wheel.get("Root-Is-Purelib") or "").strip().lower() == "true",
        requires=tuple(metadata.get("requires_dist", ())),
        record_problems=tuple(map(printable, problems)),
        libraries=tuple(sorted(libraries, key=lambda library: library.path)),
        size=path.stat().st_size,
    )
    return facts, _digest_of(contents)


def content_digest(path: Path) -> str:
    """Hex sha256 over what the wheel installs: the same for any build tag, zip order and time.

    Without RECORD, WHEEL and SBOMs, which differ between builds of the same content.
    """
    with opened(path) as archive:
        infos = [info for info in files_of(archive) if not _VOLATILE.fullmatch(info.filename)]
        return _digest_of([(info.filename, _read(archive, info)) for info in infos])


def _digest_of(contents: Sequence[tuple[str, _Content]]) -> str:
    lines = sorted(
        f"{name}\0{content.sha256.hex()}\n".encode()
        for name, content in contents
        if not _VOLATILE.fullmatch(name)
    )
    return hashlib.sha256(b"".join(lines)).hexdigest()


@contextlib.contextmanager
def opened(path: Path) -> Iterator[zipfile.ZipFile]:
    """The wheel as a zip archive; any damage met inside the block becomes one AuditError."""
    try:
        with zipfile.ZipFile(path) as archive:
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
    """The archive's files, without folder entries, in its order."""
    return [info for info in archive.infolist() if not info.is_dir()]


def dist_info(archive: zipfile.ZipFile, filename: str) -> str:
    """The name of the one dist-info folder; AuditError without one or with several."""
    tops = {info.filename.partition("/")[0] for info in files_of(archive)}
    folders = sorted(top for top in tops if top.endswith(".dist-info"))
    if len(folders) != 1:
        found = printable(", ".join(folders)) or "none"
        raise AuditError(f"{filename}: expected one dist-info folder, found {found}")
    return folders[0]


def _filename_parts(filename: str) -> tuple[tuple[str, ...], str]:
    """Expanded tags and the build tag, as written in the file name."""
    try:
        _, _, build, tags = parse_wheel_filename(filename)
    except InvalidWheelFilename as error:
        raise AuditError(
            f"{filename} is no wheel name: {error}", hint="a wheel is called name-version[-build]-tags.whl"
        ) from error
    return tuple(sorted(str(tag) for tag in tags)), filename.split("-")[2] if build else ""


def _expanded(tags: list[str]) -> tuple[str, ...]:
    """Every single tag behind compressed ones; one that is no tag is kept as it is."""
    found: set[str] = set()
    for tag in tags:
        try:
            found.update(str(single) for single in parse_tag(tag.strip()))
        except ValueError:
            found.add(tag.strip())
    return tuple(sorted(found))


def _member(archive: zipfile.ZipFile, name: str) -> bytes:
    try:
        return archive.read(name)
    except KeyError as error:
        raise AuditError(f"{Path(archive.filename or '').name} has no {printable(name)}") from error


def _headers(data: bytes) -> Message:
    return Parser().parsestr(data.decode(errors="replace"), headersonly=True)


def _inspect(archive: zipfile.ZipFile, folder: str) -> tuple[list[str], list[tuple[str, _Content]]]:
    """What RECORD says wrongly, and what each file is: every file is read once."""
    infos = files_of(archive)
    rows, problems = _record_rows(archive, folder)
    counts = Counter(info.filename for info in infos)
    problems += [f"{name}: appears {count} times in the zip" for name, count in counts.items() if count > 1]
    problems += [f"{name}: not a safe relative name" for name in counts if not is_safe(name)]
    contents = []
    exempt = {f"{folder}/{name}" for name in RECORD_FILES}
    for info in infos:
        row = rows.get(info.filename)
        listed = row.hash_ if row else None
        algorithm = listed.name if listed and listed.name in HASHES else "sha256"
        content = _read(archive, info, algorithm=algorithm, look_for_elf=True)
        contents.append((info.filename, content))
        if info.filename not in exempt:
            problems += _mismatches(info.filename, content, row)
    problems += [
        f"{name}: listed in RECORD, but not there"
        for name in rows
        if name not in counts and name not in exempt
    ]
    return problems, contents


def is_safe(name: str) -> bool:
    """Whether an archive name stays inside the folder it is unpacked to."""
    parts = name.split("/")
    return "\\" not in name and not any(part in ("", ".", "..") for part in parts)


def _record_rows(archive: zipfile.ZipFile, folder: str) -> tuple[dict[str, RecordEntry], list[str]]:
    """The rows by file, and what is wrong with them alone."""
    text = _member(archive, f"{folder}/RECORD").decode()
    rows: dict[str, RecordEntry] = {}
    problems = []
    try:
        for elements in parse_record_file(text.splitlines()):
            name = elements[0]
            if name in rows:
                problems.append(f"{name}: listed more than once in RECORD")
            try:
                rows[name] = RecordEntry.from_elements(*elements)
            except InvalidRecordEntry as error:
                problems.append(f"{name}: {error}")
    except (InvalidRecordEntry, ValueError) as error:
        problems.append(f"RECORD: {error}")
    return rows, problems


def _mismatches(name: str, content: _Content, row: RecordEntry | None) -> Iterator[str]:
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
    """A digest as RECORD writes it: URL-safe base64 without padding."""
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


@dataclass(frozen=True, kw_only=True, slots=True)
class _Content:
    size: int
    sha256: bytes
    listed: bytes  # by the algorithm that RECORD names
    library: Library | None


def _read(
    archive: zipfile.ZipFile, info: zipfile.ZipInfo, *, algorithm: str = "sha256", look_for_elf: bool = False
) -> _Content:
    """Read one file in chunks. ELF needs random access, so such a file is spooled on the way."""
    digest = hashlib.sha256()
    listed = digest if algorithm == "sha256" else hashlib.new(algorithm)
    size = 0
    library = None
    with contextlib.ExitStack() as stack:
        stream = stack.enter_context(archive.open(info))
        chunk = stream.read(CHUNK)
        spool: IO[bytes] | None = None
        if look_for_elf and chunk.startswith(ELF_MAGIC):
            spool = stack.enter_context(tempfile.SpooledTemporaryFile(SPOOL))
        while chunk:
            digest.update(chunk)
            if listed is not digest:
                listed.update(chunk)
            size += len(chunk)
            if spool is not None:
                spool.write(chunk)
            chunk = stream.read(CHUNK)
        if spool is not None:
            library = read_library(info.filename, spool)
    return _Content(size=size, sha256=digest.digest(), listed=listed.digest(), library=library)
