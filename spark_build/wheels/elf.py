"""Read ELF files: dynamic section, imports, build paths; tell where a needed library comes from."""

from __future__ import annotations

import posixpath
import re
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from typing import IO, Literal

from spark_build.wheels.fatbin import ELF_MAGIC, ReadAt
from spark_build.wheels.model import UNREADABLE, HostCode, Library, WheelFacts

_MACHINES = {
    "EM_386": "i686",
    "EM_ARM": "armv7l",
    "EM_PPC64": "ppc64le",
    "EM_S390": "s390x",
    "EM_RISCV": "riscv64",
}


@cache
def _machine_names() -> dict[int, str]:
    from elftools.elf.enums import ENUM_E_MACHINE  # imports a debugger

    return {code: name for name, code in ENUM_E_MACHINE.items() if name != "_default_"}


def read_library(path: str, file: IO[bytes], *, symbols: bool = False) -> Library:
    """Return the facts of an ELF file; machine "unreadable" when it is cut or invalid.

    `symbols`: also what it takes from the interpreter (`python_symbols`).
    """

    def read_at(offset: int, count: int) -> bytes:
        file.seek(offset)
        return file.read(count)

    try:
        elf = read_elf(read_at, file.seek(0, 2), symbols=symbols)
    except ElfError:
        return Library(path=path, machine=UNREADABLE, needed=())
    return Library(path=path, machine=_machine(elf.machine), needed=elf.needed, host=elf.host)


def _machine(number: int) -> str:
    """Return the machine as in platform tags; an unknown one as number."""
    code = _machine_names().get(number, str(number))
    return _MACHINES.get(code, code.removeprefix("EM_").lower())


MAX_SEGMENTS = 1170  # Linux loads no more: 64 KiB of headers
MAX_TAGS = 1 << 16
MAX_NAMES = 1 << 13  # names of libraries and symbol versions in one file
MAX_NAME = 1 << 13  # bytes; an RPATH is one name

_LOAD, _DYNAMIC, _INTERP, _STACK = 1, 2, 3, 0x6474E551
_EXECUTABLE, _WRITABLE = 1, 2
_SHARED = 3  # e_type of a library, or of a program that may lie anywhere
_NEEDED, _STRTAB, _STRSZ, _SONAME, _RPATH, _TEXTREL, _RUNPATH, _FLAGS = 1, 5, 10, 14, 15, 22, 29, 30
_DF_TEXTREL = 4
_VERNEED, _VERNEEDNUM = 0x6FFFFFFE, 0x6FFFFFFF
_HASH, _SYMTAB, _GNU_HASH = 4, 6, 0x6FFFFEF5
_WEAK = 2  # the binding of a symbol
MAX_SYMBOLS, MAX_TEXT = 1 << 20, 1 << 26  # without a definition in one file, and bytes of all names


class ElfError(ValueError):
    """An ELF file that contradicts its headers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Elf:
    """A readable ELF file."""

    machine: int
    needed: tuple[str, ...]
    host: HostCode


@dataclass(frozen=True, kw_only=True, slots=True)
class _Header:
    order: str  # "<" or ">"
    wide: bool  # 64 bits
    kind: int
    machine: int
    segments: int  # offset of the table
    width: int
    count: int


@dataclass(frozen=True, kw_only=True, slots=True)
class _Segment:
    kind: int
    flags: int
    offset: int
    address: int
    size: int


def read_elf(read: ReadAt, size: int, *, symbols: bool = False) -> Elf:
    """Return the facts of an ELF file of `size` bytes. Raises ElfError when it is cut or invalid."""
    header = _header(read, size)
    segments = [*_segments(read, size, header)]
    table = [*_dynamic(read, header, segments)]
    names = _Names(read, size, segments, dict(table))
    own = [names.at(value) for tag, value in table if tag == _SONAME]
    paths = [names.at(value) for tag, value in table if tag in (_RPATH, _RUNPATH)]
    flags = [value for tag, value in table if tag == _FLAGS]
    host = HostCode(
        soname=own[0] if own else "",
        # An empty one is no path; an empty part of one is the current folder.
        rpaths=tuple(folder for path in paths if path for folder in path.split(":")),
        versions=tuple(_versions(header, dict(table), names)),
        writable_code=any(
            one.kind == _LOAD and one.flags & _WRITABLE and one.flags & _EXECUTABLE for one in segments
        ),
        executable_stack=_executable_stack(header, segments),
        text_relocations=any(tag == _TEXTREL for tag, _ in table) or any(one & _DF_TEXTREL for one in flags),
        python_symbols=_python_symbols(header, dict(table), names) if symbols else (),
    )
    needed = tuple(names.at(value) for tag, value in table if tag == _NEEDED)
    return Elf(machine=header.machine, needed=needed, host=host)


def _header(read: ReadAt, size: int) -> _Header:
    ident = _exactly(read, 0, 16)
    if not ident.startswith(ELF_MAGIC) or ident[4] not in (1, 2) or ident[5] not in (1, 2):
        raise ElfError("no ELF file")
    order, wide = "<>"[ident[5] - 1], ident[4] == 2
    layout = struct.Struct(order + ("HHIQQQIHHHHHH" if wide else "HHIIIIIHHHHHH"))
    kind, machine, _, _, start, sections, _, _, width, count, row, rows, _ = layout.unpack(
        _exactly(read, 16, layout.size)
    )
    # The loader needs no section table, but it stands last: without it the file is cut.
    if sections + row * rows > size:
        raise ElfError("the section table is not in the file")
    return _Header(
        order=order, wide=wide, kind=kind, machine=machine, segments=start, width=width, count=count
    )


def _segments(read: ReadAt, size: int, header: _Header) -> Iterator[_Segment]:
    layout = struct.Struct(header.order + ("IIQQQQQQ" if header.wide else "IIIIIIII"))
    if header.count > MAX_SEGMENTS or (header.count and header.width != layout.size):
        raise ElfError("no segment table that Linux would load")
    for fields in layout.iter_unpack(_exactly(read, header.segments, header.count * layout.size)):
        if header.wide:
            kind, flags, offset, address, _, length, _, _ = fields
        else:
            kind, offset, address, _, length, _, flags, _ = fields
        if kind in (_LOAD, _DYNAMIC) and offset + length > size:
            raise ElfError("a segment is not in the file")
        yield _Segment(kind=kind, flags=flags, offset=offset, address=address, size=length)


def _dynamic(read: ReadAt, header: _Header, segments: list[_Segment]) -> Iterator[tuple[int, int]]:
    tables = [one for one in segments if one.kind == _DYNAMIC and one.size]
    if len(tables) > 1:
        raise ElfError("more than one dynamic table")
    layout = struct.Struct(header.order + ("QQ" if header.wide else "II"))
    for one in tables:
        count = one.size // layout.size
        if count > MAX_TAGS:
            raise ElfError("an endless dynamic table")
        for tag, value in layout.iter_unpack(_exactly(read, one.offset, count * layout.size)):
            if tag == 0:
                return
            yield tag, value


class _Names:
    """Strings and memory that a dynamic table points to."""

    def __init__(self, read: ReadAt, size: int, segments: list[_Segment], table: dict[int, int]) -> None:
        self._read, self._size = read, size
        self._loaded = [one for one in segments if one.kind == _LOAD]
        self._table, self._length = table.get(_STRTAB), table.get(_STRSZ, 0)
        self._left = MAX_NAMES

    def at(self, index: int) -> str:
        """Return the string at this index of the table."""
        self._left -= 1
        if self._table is None or index >= self._length or self._left < 0:
            raise ElfError("a name that is not in the string table")
        data = self._read(self.offset(self._table) + index, min(self._length - index, MAX_NAME))
        text, end, _ = data.partition(b"\0")
        if not end:
            raise ElfError("a name without an end")
        return text.decode(errors="backslashreplace")

    def all(self) -> bytes:
        """Return the string table."""
        if self._table is None or self._length > MAX_TEXT:
            raise ElfError("an endless string table")
        return self.memory(self._table, self._length)

    def offset(self, address: int) -> int:
        """Return the file offset of the byte that is loaded at `address`."""
        for one in self._loaded:
            if one.address <= address < one.address + one.size:
                return one.offset + address - one.address
        raise ElfError("an address that no segment loads")

    def memory(self, address: int, size: int) -> bytes:
        """Return the bytes that are loaded at `address`."""
        return _exactly(self._read, self.offset(address), size)


def _versions(header: _Header, table: dict[int, int], names: _Names) -> Iterator[tuple[str, str]]:
    """Yield (library, version) for each symbol version that the file needs: DT_VERNEED."""
    start, count = table.get(_VERNEED), table.get(_VERNEEDNUM, 0)
    if start is None:
        return
    outer, inner = struct.Struct(f"{header.order}HHIII"), struct.Struct(f"{header.order}IHHII")
    at = start
    for _ in range(count):
        _, wanted, file, first, following = outer.unpack(names.memory(at, outer.size))
        library, here = names.at(file), at + first
        for _ in range(wanted):
            _, _, _, name, more = inner.unpack(names.memory(here, inner.size))
            yield library, names.at(name)
            here += more
        at += following


def _python_symbols(header: _Header, table: dict[int, int], names: _Names) -> tuple[str, ...]:
    """Return the names of the interpreter's symbols that the file must find elsewhere, sorted.

    A weak one may be lacking: it is none of them.
    """
    if _SYMTAB not in table or not table.keys() & {_HASH, _GNU_HASH}:
        return ()
    words = struct.Struct(f"{header.order}II")
    # In both tables the second word: where the defined symbols begin (GNU), or how many there are.
    _, count = words.unpack(names.memory(table.get(_GNU_HASH, table.get(_HASH, 0)), words.size))
    layout = struct.Struct(f"{header.order}{'IBBHQQ' if header.wide else 'IIIBBH'}")
    info, section = (1, 3) if header.wide else (3, 5)
    if count > MAX_SYMBOLS:
        raise ElfError("an endless symbol table")
    rows = layout.iter_unpack(names.memory(table[_SYMTAB], count * layout.size))
    undefined = {row[0] for row in rows if row[section] == 0 and row[info] >> 4 != _WEAK}
    text = names.all()
    starts = [at for at in undefined if text.startswith((b"Py", b"_Py"), at)]
    ends = [text.find(b"\0", at, at + MAX_NAME) for at in starts]
    if len(starts) > MAX_NAMES or -1 in ends:
        raise ElfError("endless names of symbols")
    found = (text[at:end] for at, end in zip(starts, ends, strict=True))
    return tuple(sorted({name.decode(errors="backslashreplace") for name in found}))


def _executable_stack(header: _Header, segments: list[_Segment]) -> bool:
    """Return whether the loader must make all stacks executable, which is also the default."""
    said = [one.flags for one in segments if one.kind == _STACK]
    if said:
        return bool(said[0] & _EXECUTABLE)
    program = any(one.kind == _INTERP for one in segments)
    library = header.kind == _SHARED and any(one.kind == _DYNAMIC for one in segments)
    return library and not program


def _exactly(read: Callable[[int, int], bytes], offset: int, size: int) -> bytes:
    data = read(offset, size) if offset < 1 << 62 else b""
    if len(data) != size:
        raise ElfError("the file is cut")
    return data


PREFIXES = (b"root/", b"run/spark-build/")
MAX_LOOKED_AT = 10_000  # a file may consist of nothing but beginnings
MAX_FOUND = 5  # for each library; one is enough to act on
LONGEST = 200

# A person's folder has a name and something in it; "/home/%s" and "/home/" are text.
_HOME = rb"home/[A-Za-z0-9_.-]{1,64}/(?=[A-Za-z0-9_.])"
# What may stand before the beginning of an absolute path: no part of a longer one, no host name.
_BEGINS = rb"/(?:(?<![A-Za-z0-9_.~/}$*-]/)|(?<=-[IL]/))"


class Leaks:
    """A search for build paths: feed a file in chunks, close, then read `found`."""

    def __init__(self, own: Sequence[str] = ()) -> None:
        """Search also for `own`, the folders of this build."""
        folders = (f"{folder.strip('/')}/".encode(errors="surrogateescape") for folder in own)
        known = b"|".join([_HOME, *map(re.escape, (*PREFIXES, *(one for one in folders if one != b"/")))])
        self._pattern = re.compile(rb"%s(?:%s)[A-Za-z0-9_./+@~=-]{1,%d}" % (_BEGINS, known, LONGEST))
        self._tail = b""
        self._next = 0  # where in it the search goes on
        self._left = MAX_LOOKED_AT
        self._found: dict[str, None] = {}

    @property
    def found(self) -> tuple[str, ...]:
        """The first few paths found."""
        return tuple(self._found)

    def feed(self, chunk: bytes) -> None:
        """Search the next bytes of the file."""
        data = self._tail + chunk
        # What begins in the last bytes may go on in the next chunk.
        end = max(len(data) - 2 * LONGEST, self._next)
        self._search(data, end)
        kept = max(end - 2, 0)
        self._tail, self._next = data[kept:], end - kept

    def close(self) -> None:
        """Finish the search."""
        self._search(self._tail, len(self._tail))

    def _search(self, data: bytes, end: int) -> None:
        for found in self._pattern.finditer(data, self._next):
            if found.start() >= end or len(self._found) == MAX_FOUND or self._left == 0:
                return
            self._left -= 1
            self._found[found[0][:LONGEST].decode(errors="replace")] = None


_ORIGIN = re.compile(r"\$(?:ORIGIN\b|\{ORIGIN\})/?(.*)")
_DATA = re.compile(r"[^/]+\.data/(?:platlib|purelib)/")


def beside_library(entry: str) -> bool:
    """Return whether an RPATH entry is relative to its own file."""
    return _ORIGIN.fullmatch(entry) is not None


def leads_to(entry: str, library: str) -> str | None:
    """Return the folder below site-packages that an RPATH entry of a wheel's file means; None for others."""
    found = _ORIGIN.fullmatch(entry)
    if found is None:
        return None
    folder = posixpath.normpath(posixpath.join(_folder_of(library), found[1]))
    return None if folder.startswith("..") else folder


def entry_to(folder: str, library: str) -> str:
    """Return the RPATH entry by which a wheel's file finds a folder of site-packages."""
    way = posixpath.relpath(f"/{folder}", f"/{_folder_of(library)}")
    return "$ORIGIN" if way == "." else f"$ORIGIN/{way}"


def _folder_of(library: str) -> str:
    """Return the folder below site-packages into which a wheel's file is installed."""
    return posixpath.dirname(_DATA.sub("", library, count=1))


Provenance = Literal[
    "wheel", "system", "driver", "toolkit", "stack", "package", "recipe", "python", "missing"
]
_DRIVER = re.compile(
    r"lib(cuda|nvcuvid|nvidia-[^/]+|nvoptix|cudadebugger|cuda-[^/]+)\.so(\.[\d.]+)?", re.ASCII
)
_TOOLKIT = re.compile(
    r"lib(cudart|cublas|cublasLt|cufft|cufftw|cufile|cufile_rdma|cupti|curand|cusolver|cusolverMg|cusparse|"
    r"npp[a-z]+|nvblas|nvfatbin|nvJitLink|nvjpeg|nvperf_[a-z]+|nvrtc|nvrtc-builtins|nvToolsExt|nvvm|"
    r"accinj64|cuinj64)\.so(\.[\d.]+)?",
    re.ASCII,
)
_OF_STACK = (
    (re.compile(r"lib(torch|c10)[A-Za-z0-9_]*\.so|libshm\.so|libcaffe2[a-z_]*\.so"), "torch"),
    (re.compile(r"libtriton\.so"), "triton"),
    (re.compile(r"libcusparseLt\.so(\.\d+)*"), "nvidia-cusparselt"),
)
# NVIDIA's libraries outside the toolkit, each in a package of its own.
_PACKAGES = (
    (re.compile(r"libcudnn[a-z_]*\.so(\.\d+)*"), "cuDNN"),
    (re.compile(r"libnccl\.so(\.\d+)*"), "NCCL"),
    (re.compile(r"libnvshmem[a-z_]*\.so(\.\d+)*"), "NVSHMEM"),
    (re.compile(r"libcutensor[A-Za-z]*\.so(\.\d+)*"), "cuTENSOR"),
)
_PYTHON = re.compile(r"libpython\d[^/]*")


@dataclass(frozen=True, kw_only=True, slots=True)
class Needed:
    """A soname that libraries of the wheel name in NEEDED."""

    soname: str
    by: tuple[str, ...]  # paths in the wheel
    source: Provenance
    reason: str


def explain_library(
    facts: WheelFacts, *, system_libraries: frozenset[str], provided: Sequence[str] = ()
) -> tuple[Needed, ...]:
    """Return each needed soname once, ordered by name; `provided`: what the recipe leaves outside."""
    users: dict[str, set[str]] = {}
    inside: dict[str, str] = {}
    for library in facts.libraries:
        # By the name of the file: the loader opens that, whatever the soname inside.
        inside.setdefault(library.path.rpartition("/")[2], library.path)
        for soname in library.needed:
            users.setdefault(soname, set()).add(library.path)
    found = []
    for soname, by in sorted(users.items()):
        source, reason = _explained(soname, inside, system_libraries, provided)
        found.append(Needed(soname=soname, by=tuple(sorted(by)), source=source, reason=reason))
    return tuple(found)


def _explained(
    soname: str, inside: dict[str, str], system_libraries: frozenset[str], provided: Sequence[str]
) -> tuple[Provenance, str]:
    if soname in inside:
        return "wheel", f"it is {inside[soname]}"
    if soname in system_libraries:
        return "system", "manylinux systems have it"
    known = library_origin(soname)
    if known:
        return known
    for pattern in provided:
        if fnmatchcase(soname, pattern):
            return "recipe", f"the recipe leaves it outside: repair.exclude has {pattern}"
    return "missing", "nothing that we know brings it: repair should bundle it"


def library_origin(soname: str) -> tuple[Provenance, str] | None:
    """Return what a soname's name alone tells about its origin."""
    if _DRIVER.fullmatch(soname):
        return "driver", "it is a part of the GPU driver, which must be the machine's own"
    if _TOOLKIT.fullmatch(soname):
        return "toolkit", "it is a part of the CUDA toolkit"
    for pattern, name in _OF_STACK:
        if pattern.fullmatch(soname):
            return "stack", f"it comes with {name}"
    for pattern, name in _PACKAGES:
        if pattern.fullmatch(soname):
            return "package", f"it comes with NVIDIA's {name}"
    if _PYTHON.match(soname):
        return "python", "the interpreter brings its symbols: an extension module must not link with it"
    return None
