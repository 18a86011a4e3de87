"""What an export holds, before it is written anywhere: names, sizes, hashes and where the bytes are.

manifest.json comes first, then the papers, the wheels (so that the folder is itself good for
--find-links) with store/<key>/ for each wheel's papers, and spark-build/ with spark-build itself.
The same generation gives the same members, byte for byte.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from shlex import quote
from typing import Any, BinaryIO, cast

from spark_build.errors import StoreError, UsageError
from spark_build.files import CHUNK, sha256_of
from spark_build.transfer.instructions import install_text
from spark_build.transfer.licences import notice, pins_of
from spark_build.wheelhouse import generations
from spark_build.wheelhouse import store as stores
from spark_build.wheelhouse.generations import Generation
from spark_build.wheelhouse.resolve import needed
from spark_build.wheels.model import StoredWheel

SCHEMA = 1
SUMS = "SHA256SUMS"
TOOL = "spark-build"

Progress = Callable[[int, int], None]  # bytes done, bytes in total


@dataclass(frozen=True, kw_only=True, slots=True)
class Member:
    """One file of an export; `name` below its top folder."""

    name: str
    size: int
    sha256: str
    source: Path | bytes

    def content(self, start: int = 0, digest: Any = None) -> Iterator[bytes]:
        """The bytes from `start` on; StoreError as soon as it is sure that they are not what was recorded.

        They are hashed on the way, so that a file is read once. `digest` has those before `start`.
        """
        digest = digest or hashlib.sha256()
        done = start
        try:
            with self._opened() as file:
                file.seek(start)
                while chunk := file.read(CHUNK):
                    done += len(chunk)
                    if done > self.size:
                        break
                    digest.update(chunk)
                    yield chunk
        except FileNotFoundError:
            done = -1
        if done != self.size or digest.hexdigest() != self.sha256:
            raise damaged(self.source if isinstance(self.source, Path) else Path(self.name))

    def _opened(self) -> BinaryIO:
        if isinstance(self.source, bytes):
            return io.BytesIO(self.source)
        return cast("BinaryIO", self.source.open("rb", buffering=0))


@dataclass(frozen=True, kw_only=True, slots=True)
class Parcel:
    """An export: `top` is the folder that an archive unpacks to."""

    top: str
    wheels: tuple[StoredWheel, ...]
    members: tuple[Member, ...]

    @property
    def size(self) -> int:
        """Bytes of all members."""
        return sum(member.size for member in self.members)


def damaged(path: Path) -> StoreError:
    """The error for a file of the store that is not what was recorded."""
    return StoreError(
        f"{path.name} is damaged or missing in the store: it is not what was recorded",
        where=str(path.parent),
        hint=f"rm -r {quote(str(path.parent))}, then: spark-build all",
    )


def select(
    wheels: Sequence[StoredWheel], names: Sequence[str], environment: Mapping[str, str]
) -> tuple[tuple[StoredWheel, ...], tuple[str, ...]]:
    """(The wheels that `names` need, default all; requirements that nothing there meets)."""
    from packaging.requirements import InvalidRequirement

    try:
        chosen, missing = needed(names or [wheel.name for wheel in wheels], wheels, environment)
        absent = [name for name in names if name in missing]
    except InvalidRequirement as error:
        raise UsageError(f"no package: {error}") from error
    if absent:
        have = ", ".join(sorted({wheel.name for wheel in wheels}))
        raise UsageError(f"this generation has no {', '.join(absent)}", hint=f"there are {have}")
    # Everything means everything, also a second version that nothing asks for.
    return (chosen if names else tuple(wheels)), missing


def pack(
    generation: Generation,
    store: Path,
    *,
    wheels: Sequence[StoredWheel] | None = None,
    python: str = "",
    tool: Iterable[Path] = (),
    options: str = "",
) -> Parcel:
    """The export of a generation or of some of its `wheels`, with the wheels of spark-build itself.

    `python` (the ABI) and `options` (which select the view) are for INSTALL.txt.
    """
    view = generation.folder.parent.parent.name
    chosen = generation.wheels if wheels is None else tuple(wheels)
    content = [one for wheel in chosen for one in _of_wheel(store, wheel)]
    own = [_from_file(f"{TOOL}/{path.name}", path) for path in sorted(tool)]
    title = f"Wheels of {view}, generation {generation.number}"
    pins = pins_of(store, chosen)
    texts = {
        "INSTALL.txt": install_text(
            title, chosen, python, with_tool=bool(own), view=options, pins=sorted(pins)
        ),
        **pins,
        "NOTICE.txt": notice([store / wheel.key[:2] / wheel.key / wheel.filename for wheel in chosen]),
        **generations.papers(chosen),
    }
    papers = [_from_bytes(name, text.encode()) for name, text in texts.items() if text]
    listed = [*papers, *content, *own]
    sums = "".join(f"{one.sha256}  {one.name}\n" for one in listed)
    files = [*papers, _from_bytes(SUMS, sums.encode()), *own]
    manifest = {
        "schema": SCHEMA,
        "view": view,
        "generation": generation.number,
        "closure_key": generation.closure_key if chosen == generation.wheels else "",
        "wheels": [asdict(wheel) for wheel in chosen],
        "papers": {wheel.key: {} for wheel in chosen} | _papers_by_key(content),
        "files": {one.name: one.sha256 for one in files},
    }
    first = _from_bytes(generations.MANIFEST, (json.dumps(manifest, indent=1) + "\n").encode())
    return Parcel(
        top=f"{view}-{generation.number}",
        wheels=chosen,
        members=(first, *files[: len(papers) + 1], *content, *own),
    )


def _papers_by_key(content: Iterable[Member]) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for one in content:
        place = one.name.split("/")
        if len(place) == 3:
            found.setdefault(place[1], {})[place[2]] = one.sha256
    return found


def _of_wheel(store: Path, wheel: StoredWheel) -> Iterator[Member]:
    """The wheel and its papers."""
    folder = stores.entry_folder(store, wheel.key)
    path = folder / wheel.filename
    if not path.is_file() or path.stat().st_size != wheel.size:
        raise damaged(path)
    yield Member(name=wheel.filename, size=wheel.size, sha256=wheel.sha256, source=path)
    for paper in sorted(folder.iterdir()):
        # A prefix stays: it is for building here, and can be large.
        if paper.name not in (wheel.filename, stores.PREFIX):
            yield _from_file(f"store/{wheel.key}/{paper.name}", paper)


def _from_file(name: str, path: Path) -> Member:
    return Member(name=name, size=path.stat().st_size, sha256=sha256_of(path), source=path)


def _from_bytes(name: str, data: bytes) -> Member:
    return Member(name=name, size=len(data), sha256=hashlib.sha256(data).hexdigest(), source=data)
