"""A shared library to link with in the place of one that only the GPU driver brings: names without code.

The bytes are written here rather than by a compiler: the same on every machine, for every platform.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence

_ALIGN = 0x10000  # the largest page of aarch64
_LOAD, _DYNAMIC, _STACK = 1, 2, 0x6474E551
_READ, _WRITE, _EXECUTE = 4, 2, 1
_MACHINES = {"linux-x86_64": 62, "linux-aarch64": 183}


def functions_in(header: str, start: str) -> tuple[str, ...]:
    """Return the functions of a C header whose names begin with `start`, under all their names.

    A header renames functions by macros (cuMemAlloc is cuMemAlloc_v2, or cuMemcpy_ptds with a stream for each
    thread). Which of them holds depends on who includes it, so all are there.
    """
    text = re.sub(r"/\*.*?\*/|//[^\n]*", " ", header, flags=re.DOTALL).replace("\\\n", " ")
    name = rf"\b{re.escape(start)}[A-Z]\w*"
    suffixes: dict[str, set[str]] = {}
    for macro, _, suffix in re.findall(r"#\s*define\s+(\w+)\((\w+)\)\s+\2\s*##\s*(\w+)", text):
        suffixes.setdefault(macro, set()).add(suffix)
    found: set[str] = set()
    for line in text.splitlines():
        if not line.lstrip().startswith("#"):
            found.update(re.findall(rf"({name})\s*\(", line))
        elif renamed := re.match(rf"\s*#\s*define\s+({name})\s+(.*)", line):
            for other in re.findall(name, renamed[2]):
                found.update((renamed[1], other))
                for macro in re.findall(r"(\w+)\(", renamed[2]):
                    found.update(other + suffix for suffix in suffixes.get(macro, ()))
    return tuple(sorted(found))


def library(names: Sequence[str], *, soname: str, platform: str, answer: int) -> bytes:
    """Return an ELF library for a platform that defines these functions; each returns `answer`."""
    code = _code(platform, answer)
    strings, offsets = _strings(["", soname, *names])
    symbols = [struct.pack("<IBBHQQ", 0, 0, 0, 0, 0, 0)]
    tables = 64 + 4 * 56  # after the header of the file and four of segments
    table = _hash_table(names)
    symbols_at = tables + len(table)
    strings_at = symbols_at + 24 * (len(names) + 1)
    code_at = _rounded(strings_at + len(strings), 16)
    dynamic_at = _rounded(code_at + len(code), 16)
    symbols += [struct.pack("<IBBHQQ", offsets[one], 0x12, 0, 4, code_at, len(code)) for one in names]
    tags = (
        (14, offsets[soname]),
        (4, tables),
        (5, strings_at),
        (6, symbols_at),
        (10, len(strings)),
        (11, 24),
    )
    dynamic = b"".join(struct.pack("<QQ", tag, value) for tag, value in (*tags, (0, 0)))
    own, named = _strings(["", ".hash", ".dynsym", ".dynstr", ".text", ".dynamic", ".shstrtab"])
    own_at = dynamic_at + len(dynamic)
    sections_at = _rounded(own_at + len(own), 8)
    # The loader writes into .dynamic: it is mapped once more, one page further on.
    moved = dynamic_at + _ALIGN
    segments = (
        (_LOAD, _READ | _EXECUTE, 0, 0, dynamic_at),
        (_LOAD, _READ | _WRITE, dynamic_at, moved, len(dynamic)),
        (_DYNAMIC, _READ | _WRITE, dynamic_at, moved, len(dynamic)),
        (_STACK, _READ | _WRITE, 0, 0, 0),
    )
    # name, type, flags, address, offset, size, link, info, alignment, size of an entry
    sections = (
        (0, 0, 0, 0, 0, 0, 0, 0, 0, 0),
        (named[".hash"], 5, 2, tables, tables, len(table), 2, 0, 8, 4),
        (named[".dynsym"], 11, 2, symbols_at, symbols_at, strings_at - symbols_at, 3, 1, 8, 24),
        (named[".dynstr"], 3, 2, strings_at, strings_at, len(strings), 0, 0, 1, 0),
        (named[".text"], 1, 6, code_at, code_at, len(code), 0, 0, 16, 0),
        (named[".dynamic"], 6, 3, moved, dynamic_at, len(dynamic), 3, 0, 8, 16),
        (named[".shstrtab"], 3, 0, 0, own_at, len(own), 0, 0, 1, 0),
    )
    head = b"\x7fELF\2\1\1".ljust(16, b"\0") + struct.pack(
        "<HHIQQQIHHHHHH", 3, _MACHINES[platform], 1, 0, 64, sections_at, 0, 64, 56, 4, 64, len(sections), 6
    )
    parts = [(0, head), (64, b"".join(_segment(*one) for one in segments)), (tables, table)]
    parts += [(symbols_at, b"".join(symbols)), (strings_at, strings), (code_at, code), (dynamic_at, dynamic)]
    parts += [(own_at, own), (sections_at, b"".join(struct.pack("<IIQQQQIIQQ", *one) for one in sections))]
    content = bytearray()
    for at, part in parts:
        content += bytes(at - len(content)) + part
    return bytes(content)


def _code(platform: str, answer: int) -> bytes:
    """Return the machine code of a function that returns a small number."""
    if platform == "linux-x86_64":
        return b"\xb8" + struct.pack("<I", answer) + b"\xc3"  # mov eax, answer; ret
    return struct.pack("<II", 0x52800000 | answer << 5, 0xD65F03C0)  # mov w0, #answer; ret


def _segment(kind: int, flags: int, offset: int, address: int, size: int) -> bytes:
    align = {_LOAD: _ALIGN, _DYNAMIC: 8, _STACK: 16}[kind]
    return struct.pack("<IIQQQQQQ", kind, flags, offset, address, address, size, size, align)


def _strings(texts: Sequence[str]) -> tuple[bytes, dict[str, int]]:
    """Return a string table, and where each text begins in it."""
    table, offsets = b"", {}
    for text in texts:
        offsets[text] = len(table)
        table += text.encode() + b"\0"
    return table, offsets


def _hash_table(names: Sequence[str]) -> bytes:
    """Return the symbols' hash table as System V wants it; symbol 0 is none."""
    buckets = [0] * max(1, len(names) // 2)
    chains = [0] * (len(names) + 1)
    for index, name in enumerate(names, start=1):
        place = _hash(name) % len(buckets)
        chains[index], buckets[place] = buckets[place], index
    words = [len(buckets), len(chains), *buckets, *chains]
    return struct.pack(f"<{len(words)}I", *words) + bytes(-4 * len(words) % 8)


def _hash(name: str) -> int:
    value = 0
    for byte in name.encode():
        value = (value << 4) + byte
        high = value & 0xF0000000
        value = (value ^ high >> 24) & ~high
    return value


def _rounded(value: int, to: int) -> int:
    return -(-value // to) * to
