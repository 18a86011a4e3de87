"""Writes a wheel whose bytes depend on its content alone: order, times, modes and compression are fixed."""

from __future__ import annotations

import contextlib
import csv
import hashlib
import io
import json
import os
import re
import stat
import time
import zipfile
from base64 import urlsafe_b64decode
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import IO
from urllib.parse import quote

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from spark_build.files import CHUNK
from spark_build.wheels.attestation_formats import WheelContent
from spark_build.wheels.reader import RECORD_FILES, dist_info, files_of, opened, urlsafe

# What a zip file can express: 1980-01-01 to 2107-12-31, in seconds since 1970.
ZIP_EPOCHS = (315532800, 4354819198)
# Of zlib's levels, the last before the steep part: libraries become 3 to 4% larger than with the
# default, 6, in less than half of its time (67 instead of 29 MB/s).
LEVEL = 4
_NEWLINE = r"(?:\r\n|\r(?!\n)|\n)"
Row = tuple[str, str, str]  # of RECORD: file, hash, size
# More files for the dist-info folder, by their name there: each is made from the wheel's other content.
Extra = Mapping[str, Callable[[WheelContent], bytes]]


def zip_epoch(epoch: int) -> int:
    """Return the nearest time that a zip file can express."""
    return min(max(epoch, ZIP_EPOCHS[0]), ZIP_EPOCHS[1])


def rewrite(  # noqa: PLR0913 - what goes into a wheel, by name
    layers: Sequence[Path],
    draft: Path,
    *,
    new_name: str,
    build_tag: str,
    tags: Sequence[str],
    epoch: int,
    extra: Extra,
    requires: Sequence[str] = (),
) -> None:
    """Copy entry by entry into a zip that depends on the content alone; later layers win.

    `tags`: what WHEEL is to name; none: as it does. `requires`: what METADATA is to require besides.
    """
    moment = time.gmtime(zip_epoch(epoch))
    with contextlib.ExitStack() as stack, draft.open("wb") as file:
        archives = [stack.enter_context(opened(layer)) for layer in layers]
        prefix = f"{dist_info(archives[0], layers[0].name)}/"
        # Signatures go with the RECORD they signed.
        dropped = {f"{prefix}{name}" for name in (*RECORD_FILES, *extra)}
        entries, rows, told = merged(archives), [], {}
        with zipfile.ZipFile(file, "w") as new:
            for name in sorted(entries.keys() - dropped, key=lambda name: (name.startswith(prefix), name)):
                old, info = entries[name]
                entry = _entry(name, moment, executable=bool(info.external_attr >> 16 & 0o111))
                if name == f"{prefix}WHEEL":
                    data = _labelled(old.read(info), build_tag, tags)
                elif name.startswith(f"{prefix}sboms/"):
                    data = _steady_sbom(old.read(info), renamed=(layers[-1].name, new_name), moment=moment)
                elif name == f"{prefix}METADATA":
                    data = _requiring(old.read(info), requires)
                else:
                    with old.open(info) as stream:
                        rows.append(add(new, entry, stream, info.file_size))
                    continue
                told[name.removeprefix(prefix)] = data
                rows.append(add(new, entry, io.BytesIO(data), len(data)))
            for name, data in sorted(_made(extra, rows, told).items()):
                rows.append(_add_text(new, f"{prefix}{name}", moment, data))
            record = f"{prefix}RECORD"
            _add_text(new, record, moment, record_text([*rows, (record, "", "")]))
        file.flush()
        os.fsync(file.fileno())


def merged(
    archives: Sequence[zipfile.ZipFile],
) -> dict[str, tuple[zipfile.ZipFile, zipfile.ZipInfo]]:
    """Return each file with the archive that has the last word on it."""
    return {info.filename: (archive, info) for archive in archives for info in files_of(archive)}


def _made(extra: Extra, rows: Sequence[Row], told: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the extra files for a wheel with these RECORD rows and dist-info files."""
    content = WheelContent(
        hashes={name: hex_of(listed) for name, listed, _ in rows},
        metadata=told["METADATA"],
        sboms=tuple(data for name, data in told.items() if name.startswith("sboms/")),
    )
    return {name: make(content) for name, make in extra.items()}


def hex_of(listed: str) -> str:
    """Return a RECORD sha256 in hex."""
    return urlsafe_b64decode(f"{listed.removeprefix('sha256=')}=").hex()


def _entry(name: str, moment: time.struct_time, *, executable: bool) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, moment[:6])
    entry.create_system = 3  # Unix: the one whose modes installers read
    entry.external_attr = (stat.S_IFREG | (0o755 if executable else 0o644)) << 16
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry._compresslevel = LEVEL  # type: ignore[attr-defined]  # noqa: SLF001 - zipfile takes it nowhere else for a stream
    return entry


def add(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, stream: IO[bytes], size: int) -> Row:
    """Write one file of `size` bytes; its row of RECORD."""
    entry.file_size = size  # known beforehand: zip64 only where it is needed
    digest = hashlib.sha256()
    with archive.open(entry, "w") as out:
        while chunk := stream.read(CHUNK):
            digest.update(chunk)
            out.write(chunk)
    return entry.filename, f"sha256={urlsafe(digest.digest())}", str(size)


def _add_text(archive: zipfile.ZipFile, name: str, moment: time.struct_time, data: bytes) -> Row:
    return add(archive, _entry(name, moment, executable=False), io.BytesIO(data), len(data))


def record_text(rows: Sequence[Row]) -> bytes:
    """RECORD with these rows."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()


def _labelled(wheel: bytes, build_tag: str, wanted: Sequence[str]) -> bytes:
    """Return the WHEEL file with only this Build line, before the tags: those wanted, else its own."""
    lines = [line for line in wheel.decode().splitlines() if line.strip()]
    lines = [line for line in lines if not line.lower().startswith("build:")]
    own = [line for line in lines if line.lower().startswith("tag:")]
    others = [line for line in lines if line not in own]
    tags = [f"Tag: {tag}" for tag in wanted] or own
    return "".join(f"{line}\n" for line in [*others, f"Build: {build_tag}", *tags]).encode()


def _requiring(metadata: bytes, wanted: Sequence[str]) -> bytes:
    """METADATA with these requirements in the place of its own ones of the same distributions."""
    if not wanted:
        return metadata
    names = {canonicalize_name(Requirement(text).name) for text in wanted}
    # By the same ends of lines as readers, and bytes that are no UTF-8 stay what they are.
    head, *body = re.split(f"{_NEWLINE}{_NEWLINE}", metadata.decode(errors="surrogateescape"), maxsplit=1)
    # A line that begins with a space belongs to the one before.
    fields = re.split(f"{_NEWLINE}(?![ \t])", head.rstrip("\r\n"))
    kept = [field for field in fields if not _is_replaced(field, names)]
    last = max(
        (i for i, field in enumerate(kept) if field.lower().startswith("requires-dist:")), default=None
    )
    place = len(kept) if last is None else last + 1
    kept[place:place] = [f"Requires-Dist: {text}" for text in wanted]
    return "\n".join([*kept, *(["", *body] if body else [""])]).encode(errors="surrogateescape")


def _is_replaced(field: str, names: Collection[str]) -> bool:
    """Return whether a field of METADATA requires one of these distributions, and not for an extra."""
    key, _, value = field.partition(":")
    if key.lower() != "requires-dist":
        return False
    try:
        one = Requirement(value.strip())
    except InvalidRequirement:
        return False
    return canonicalize_name(one.name) in names and "extra" not in str(one.marker or "")


def _steady_sbom(data: bytes, *, renamed: tuple[str, str], moment: time.struct_time) -> bytes:
    """Return an SBOM without random numbers and clock times, with the wheel's present name."""
    old, new = (quote(name, safe="").encode() for name in renamed)
    data = data.replace(old, new)
    try:
        sbom = json.loads(data)
    except ValueError:
        return data
    if not isinstance(sbom, dict) or sbom.get("bomFormat") != "CycloneDX":
        return data
    sbom.pop("serialNumber", None)  # optional in CycloneDX, random in most tools
    metadata = sbom.get("metadata")
    if isinstance(metadata, dict) and "timestamp" in metadata:
        metadata["timestamp"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", moment)
    return (json.dumps(sbom, indent=2) + "\n").encode()
