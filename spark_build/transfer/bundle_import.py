"""Take in what another machine exported: everything is proven before anything becomes visible."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from spark_build.errors import AuditError
from spark_build.files import make_folder
from spark_build.hashing import digest
from spark_build.paths import Home
from spark_build.recipes.model import Target
from spark_build.text import printable
from spark_build.transfer import foreign
from spark_build.transfer.bundle import Progress
from spark_build.transfer.bundle_read import Incoming, incoming
from spark_build.transfer.bundle_write import silent
from spark_build.transfer.foreign import Judgement
from spark_build.transfer.manifest import DAMAGE, PLACE, Manifest, Sound, parse, refused
from spark_build.transfer.proving import Proofs, proofs
from spark_build.wheelhouse import generations
from spark_build.wheelhouse import store as stores
from spark_build.wheelhouse.generations import Generation
from spark_build.wheels.model import StoredWheel

MANIFEST_LIMIT = 64 << 20  # bytes; 10 000 wheels have 10 MiB
PAPER_LIMIT = 1 << 30  # bytes; a build log of a gigabyte is no build log


@dataclass(frozen=True, kw_only=True, slots=True)
class Taken:
    """What an import led to; `judgements` on wheels that spark-build did not build.

    `replaced`: wheels built here whose place others took.
    """

    generation: Generation
    new: bool
    replaced: tuple[StoredWheel, ...] = ()
    judgements: tuple[Judgement, ...] = ()


def take_in(
    home: Home,
    path: Path,
    view: Callable[[], tuple[str, Target]],
    *,
    copying: Progress = silent,
    checking: Progress = silent,
) -> Taken:
    """Take in an export; or a folder or tar of foreign wheels, which go into the view that `view` names.

    A hostile, cut or changed one is refused (StoreError; AuditError where a wheel itself is unsound)
    and leaves nothing behind.
    """
    make_folder(home.store)
    # Until it is published: what nothing refers to yet must not be collected meanwhile.
    with stores.in_use(home.store, "importing"):
        return _taken(home, path, view, copying, checking)


def _taken(
    home: Home,
    path: Path,
    view: Callable[[], tuple[str, Target]],
    copying: Progress,
    checking: Progress,
) -> Taken:
    with tempfile.TemporaryDirectory(prefix=".tmp-import-", dir=home.store) as scratch, proofs() as proven:
        folder = Path(scratch)
        manifest: Manifest | None = None
        judgements: tuple[Judgement, ...] = ()
        with incoming(path, copying) as files:
            first = next(files, None)
            if first is None:
                raise refused(path, "there is nothing in it")
            if first.name.rpartition("/")[2] == generations.MANIFEST and first.name.count("/") < 2:
                manifest = _unpack(path, first, files, folder, proven)
            else:
                hashes = foreign.unpack(path, chain([first], files), folder)
        if manifest is not None:
            name, closure_key = manifest.view, manifest.closure_key
            sound = _prove(path, folder, manifest, proven, checking)
        else:
            (name, target), closure_key = view(), ""
            sound, judgements = foreign.judge(path, folder, hashes, target, proven, checking)
        # An entry that is here already is kept: the same inputs, but not always the same bytes.
        wheels = [_commit(home.store, folder, one) for one in sound]
    generation, new, replaced = _publish(home, name, wheels, closure_key)
    return Taken(generation=generation, new=new, replaced=replaced, judgements=judgements)


def _unpack(path: Path, first: Incoming, files: Iterable[Incoming], folder: Path, proven: Proofs) -> Manifest:
    """Wheels and papers into `folder`, each as the manifest says and nothing besides."""
    if first.size > MANIFEST_LIMIT:
        raise refused(path, "its manifest is enormous")
    manifest = parse(b"".join(first.chunks()))
    top = first.name.removesuffix(generations.MANIFEST)
    sizes = {wheel.filename: wheel.size for wheel in manifest.wheels}
    missing = dict(manifest.hashes)
    for one in files:
        name = one.name.removeprefix(top)
        if not one.name.startswith(top) or not PLACE.fullmatch(name):
            raise refused(path, f"it holds {printable(repr(one.name)[:300])}, which no export of ours does")
        if name not in missing:
            raise refused(path, f"{name} is not in its manifest")
        if one.size != sizes.get(name, one.size) or (name not in sizes and one.size > PAPER_LIMIT):
            raise refused(path, f"{name} is not as large as its manifest says")
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        if one.save(place) != missing.pop(name):
            raise refused(path, f"{name} is not what its manifest says (sha256)")
        if name in sizes:
            proven.begin(place)
    if missing:
        raise refused(path, f"{next(iter(missing))} is missing")
    return manifest


def _prove(path: Path, folder: Path, manifest: Manifest, proven: Proofs, progress: Progress) -> list[Sound]:
    sound: list[Sound] = []
    done, total = 0, sum(wheel.size for wheel in manifest.wheels)
    for wheel in manifest.wheels:
        try:
            sound.append(_checked(path, folder, manifest, wheel, proven))
        except DAMAGE as error:
            said = printable(" ".join(str(error).split()))[:300]
            raise refused(path, f"the papers of {wheel.filename} are none of ours ({said})") from error
        done += wheel.size
        progress(done, total)
    return sound


def _checked(path: Path, folder: Path, manifest: Manifest, wheel: StoredWheel, proven: Proofs) -> Sound:
    """A wheel whose key, record and content belong together."""
    papers = manifest.papers(wheel.key)
    own = folder / "store" / wheel.key
    record: dict[str, Any] = json.loads((own / stores.RECORD).read_bytes()) if stores.RECORD in papers else {}
    if wheel.origin == "built":
        honest = (
            "key.json" in papers
            and digest(json.loads((own / "key.json").read_bytes())["inputs"]) == wheel.key
        )
    else:
        honest = wheel.key == wheel.sha256
    row = json.loads(json.dumps(asdict(wheel)))
    del row["key"]
    if not honest or any(record.get(name) != value for name, value in row.items()):
        raise refused(path, f"the papers of {wheel.filename} do not belong to its key")
    described = {name: row[name] for name in ("name", "version", "origin", "requires")}
    described |= {name: str(record[name]) for name in ("recipe", "content_digest")}
    facts, content = proven.of(folder / wheel.filename)
    if facts.record_problems:
        problem = facts.record_problems[0]
        raise AuditError(f"{wheel.filename} is not taken in: {problem}", hint="build it again")
    if content != described["content_digest"] and not record.get("prefix"):
        # Dependents' build keys are made of it.
        raise AuditError(
            f"{path} is refused: the content digest of {wheel.filename} is not what its record says",
            hint="export it again",
        )
    return Sound(
        wheel=wheel, described=described, papers=tuple(name for name in papers if name != stores.RECORD)
    )


def _commit(store: Path, folder: Path, one: Sound) -> StoredWheel:
    key = one.wheel.key
    papers = {name: (folder / "store" / key / name).read_bytes() for name in one.papers}
    wheel = folder / one.wheel.filename
    # As it was written, each byte was hashed and compared with what the export says.
    entry = stores.commit(
        store, key=key, wheel=wheel, described=one.described, papers=papers, sha256=one.wheel.sha256
    )
    assert entry.wheel is not None
    return entry.wheel


def _publish(
    home: Home, view: str, wheels: list[StoredWheel], closure_key: str
) -> tuple[Generation, bool, tuple[StoredWheel, ...]]:
    """The imported wheels replace those of their names; others in the view stay."""
    replaced: list[StoredWheel] = []

    def choose(before: Generation | None) -> tuple[list[StoredWheel], str]:
        names = {wheel.name for wheel in wheels}
        there = before.wheels if before else ()
        others = [wheel for wheel in there if wheel.name not in names]
        replaced[:] = (wheel for wheel in set(there) - {*wheels, *others} if wheel.origin == "built")
        return [*wheels, *others], closure_key if not others else ""

    generation, new = generations.publish(home.views / view, home.store, choose)
    return generation, new, tuple(sorted(replaced, key=lambda wheel: wheel.name))
