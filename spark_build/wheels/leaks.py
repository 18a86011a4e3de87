"""Paths of the build machine in the bytes of a library: found while it streams by, in bounded time."""

from __future__ import annotations

import re
from collections.abc import Sequence

PREFIXES = ("/home/", "/root/", "/run/spark-build/")
MAX_FOUND = 5  # for each library; one is enough to act on
MAX_LOOKED_AT = 10_000  # a file may consist of nothing but beginnings
LONGEST = 200

_PATH = re.compile(rb"/[A-Za-z0-9_./+@~=-]{1,%d}" % (LONGEST - 1))
# A person's folder has a name and something in it; "/home/%s" and "/home/" are text.
_HOME = re.compile(rb"/home/[A-Za-z0-9_.-]+/[A-Za-z0-9_.]")
# What may stand before the beginning of an absolute path: no part of a longer one, no host name.
_BEFORE = re.compile(rb"[^A-Za-z0-9_.~/}$*-]")


class Leaks:
    """Feed a file in chunks, close, then ask for `found`."""

    def __init__(self, own: Sequence[str] = ()) -> None:
        """`own`: folders of this build, told wherever they occur."""
        folders = (folder.rstrip("/") + "/" for folder in own if folder.strip("/"))
        self._needles = [prefix.encode(errors="surrogateescape") for prefix in (*PREFIXES, *folders)]
        self._tail = b""
        self._left = MAX_LOOKED_AT
        self._found: dict[str, None] = {}

    @property
    def found(self) -> tuple[str, ...]:
        """The first few paths."""
        return tuple(self._found)

    def feed(self, chunk: bytes) -> None:
        """The next bytes of the file."""
        data = self._tail + chunk
        # What begins in the last bytes may go on in the next chunk.
        end = max(len(data) - LONGEST, 0)
        self._search(data, end)
        self._tail = data[max(end - 1, 0) :]

    def close(self) -> None:
        """No more bytes."""
        self._search(self._tail, len(self._tail))

    def _search(self, data: bytes, end: int) -> None:
        for needle in self._needles:
            # Byte 0 was looked at as the last one of the chunk before; it is here to stand before byte 1.
            at = data.find(needle, 1, end + len(needle) - 1)
            while at >= 0 and self._left > 0 and len(self._found) < MAX_FOUND:
                self._left -= 1
                self._take(data, at, len(needle))
                at = data.find(needle, at + 1, end + len(needle) - 1)

    def _take(self, data: bytes, at: int, shortest: int) -> None:
        path = _PATH.match(data, at)
        begins = _BEFORE.match(data, at - 1) or data[max(at - 2, 0) : at] in (b"-I", b"-L")
        if (
            path
            and len(path[0]) > shortest
            and begins
            and (not data.startswith(b"/home/", at) or _HOME.match(data, at))
        ):
            self._found[path[0].decode()] = None
