"""Compare two results of one build, wheels or prefixes, file by file."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO

from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile

from spark_build.build.context import Job, Outputs
from spark_build.errors import StoreError
from spark_build.events import FileDifference, Repetition
from spark_build.files import CHUNK, sha256_of
from spark_build.wheelhouse import store
from spark_build.wheels.fatbin import ELF_MAGIC
from spark_build.wheels.reader import SPOOL, files_of, opened

Open = Callable[[], AbstractContextManager[IO[bytes]]]
File = tuple[str, Open]  # what of it counts besides the content; how to read it
# pyelftools trusts the file: any of these on one that is cut or no real ELF.
NOT_ELF = (ELFError, ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError)


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
    def reading(info: zipfile.ZipInfo) -> Open:
        return lambda: archive.open(info)

    return {info.filename: ("", reading(info)) for info in files_of(archive)}


def _tree(folder: Path) -> dict[str, File]:
    def reading(path: Path) -> Open:
        return lambda: path.open("rb")

    found: dict[str, File] = {}
    for path in folder.rglob("*"):
        if path.is_symlink():
            found[str(path.relative_to(folder))] = (f"link to {path.readlink()}", _nothing)
        elif path.is_file():
            mark = "executable" if path.stat().st_mode & 0o111 else "plain file"
            found[str(path.relative_to(folder))] = (mark, reading(path))
    return found


def _nothing() -> AbstractContextManager[IO[bytes]]:
    return Path(os.devnull).open("rb")


def _differences(first: Mapping[str, File], second: Mapping[str, File]) -> list[FileDifference]:
    found = []
    for name in sorted(first.keys() | second.keys()):
        if name not in second:
            found.append(FileDifference(file=name, what="only in the first build"))
        elif name not in first:
            found.append(FileDifference(file=name, what="only in the second build"))
        elif what := _difference(first[name], second[name]):
            found.append(FileDifference(file=name, what=what))
    return found


def _difference(first: File, second: File) -> str:
    with first[1]() as one, second[1]() as other, _seekable(one) as a, _seekable(other) as b:
        if _digest(a) == _digest(b):
            return "" if first[0] == second[0] else f"{first[0]}, then {second[0]}"
        a.seek(0)
        b.seek(0)
        if a.read(4) == b.read(4) == ELF_MAGIC:
            with contextlib.suppress(*NOT_ELF):
                return _sections(a, b)
        return _first_byte(a, b)


@contextlib.contextmanager
def _seekable(stream: IO[bytes]) -> Iterator[IO[bytes]]:
    """Yield the same content as a seekable stream: ELF needs random access, which is slow in a zip."""
    with tempfile.SpooledTemporaryFile(SPOOL) as spool:
        while chunk := stream.read(CHUNK):
            spool.write(chunk)
        spool.seek(0)
        yield spool


def _digest(file: IO[bytes]) -> bytes:
    digest = hashlib.sha256()
    while chunk := file.read(CHUNK):
        digest.update(chunk)
    return digest.digest()


def _sections(first: IO[bytes], second: IO[bytes]) -> str:
    """Return the sections in which two ELF files differ."""
    one, other = _section_digests(first), _section_digests(second)
    differing = [name for name in one | other if one.get(name) != other.get(name)]
    return f"sections {', '.join(differing)}" if differing else "ELF headers"


def _section_digests(file: IO[bytes]) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for section in ELFFile(file).iter_sections():
        size = 0 if section["sh_type"] == "SHT_NOBITS" else section["sh_size"]
        digest = hashlib.sha256(found.get(section.name, b"") + str(section["sh_size"]).encode())
        file.seek(section["sh_offset"])
        while size > 0 and (chunk := file.read(min(size, CHUNK))):
            digest.update(chunk)
            size -= len(chunk)
        found[section.name] = digest.digest()
    return found


def _first_byte(first: IO[bytes], second: IO[bytes]) -> str:
    first.seek(0)
    second.seek(0)
    position = 0
    while True:
        a, b = first.read(CHUNK), second.read(CHUNK)
        if a != b or not a:
            pairs = enumerate(zip(a, b, strict=False))
            place = next((at for at, (x, y) in pairs if x != y), min(len(a), len(b)))
            return f"from byte {position + place} on"
        position += len(a)
