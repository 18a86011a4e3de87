"""Import bundles and third-party wheels."""

from __future__ import annotations

import contextlib
import json
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from spark_build.errors import AuditError, SparkBuildError, StoreError
from spark_build.files import make_folder
from spark_build.hashing import digest
from spark_build.paths import Home
from spark_build.recipes.model import Target
from spark_build.text import printable
from spark_build.transfer.bundle import Progress
from spark_build.transfer.bundle_read import (
    DAMAGE,
    PLACE,
    Incoming,
    Manifest,
    Sound,
    incoming,
    parse_manifest,
    refused,
)
from spark_build.transfer.bundle_write import silent
from spark_build.wheelhouse import generations
from spark_build.wheelhouse import store as stores
from spark_build.wheelhouse.generations import Generation
from spark_build.wheels.audit import advice, findings_alone, fits
from spark_build.wheels.diff import known_libraries, known_policies
from spark_build.wheels.model import Finding, StoredWheel, WheelFacts
from spark_build.wheels.reader import facts_and_digest, filename_parts

MANIFEST_LIMIT = 64 << 20  # bytes; 10 000 wheels have 10 MiB
PAPER_LIMIT = 1 << 30  # bytes; a build log of a gigabyte is no build log


@dataclass(frozen=True, kw_only=True, slots=True)
class ImportResult:
    """What an import led to; `judgements` on wheels that spark-build did not build.

    `replaced`: wheels built here whose place others took.
    """

    generation: Generation
    new: bool
    replaced: tuple[StoredWheel, ...] = ()
    judgements: tuple[Judgement, ...] = ()


def import_bundle(
    home: Home,
    path: Path,
    view: Callable[[], tuple[str, Target]],
    *,
    copying: Progress = silent,
    checking: Progress = silent,
) -> ImportResult:
    """Take in an export; or a folder or tar of foreign wheels, which go into the view that `view` names.

    A hostile, cut or changed one is refused (StoreError; AuditError where a wheel itself is unsound)
    and leaves nothing behind.
    """
    make_folder(home.store)
    # Until it is published: what nothing refers to yet must not be collected meanwhile.
    with stores.shared_lock(home.store, "importing"):
        return _taken(home, path, view, copying, checking)


def _taken(
    home: Home,
    path: Path,
    view: Callable[[], tuple[str, Target]],
    copying: Progress,
    checking: Progress,
) -> ImportResult:
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
                hashes = unpack_foreign(path, chain([first], files), folder)
        if manifest is not None:
            name, closure_key = manifest.view, manifest.closure_key
            sound = _prove(path, folder, manifest, proven, checking)
        else:
            (name, target), closure_key = view(), ""
            sound, judgements = judge_foreign(path, folder, hashes, target, proven, checking)
        # An entry that is here already is kept: the same inputs, but not always the same bytes.
        wheels = [_commit(home.store, folder, one) for one in sound]
    generation, new, replaced = _publish(home, name, wheels, closure_key)
    return ImportResult(generation=generation, new=new, replaced=replaced, judgements=judgements)


def _unpack(path: Path, first: Incoming, files: Iterable[Incoming], folder: Path, proven: Proofs) -> Manifest:
    """Wheels and papers into `folder`, each as the manifest says and nothing besides."""
    if first.size > MANIFEST_LIMIT:
        raise refused(path, "its manifest is enormous")
    manifest = parse_manifest(path, b"".join(first.chunks()))
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
    if facts.unsafe:
        raise AuditError(f"{wheel.filename} is not taken in: {facts.unsafe[0]}", hint="build it again")
    if (facts.name, facts.version, facts.requires) != (wheel.name, wheel.version, wheel.requires):
        raise refused(path, f"the METADATA of {wheel.filename} is not what its manifest says")
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


# Its wheels should not lose their provenance by the way.
_OURS = re.compile(r"([^/]+/)?(manifest\.json|store/[0-9a-f]{64}/[^/]+)")


@dataclass(frozen=True, kw_only=True, slots=True)
class Judgement:
    """What the audit says of a foreign wheel; `taken` is false for one of another platform or Python."""

    filename: str
    taken: bool
    findings: tuple[Finding, ...] = ()


def unpack_foreign(path: Path, files: Iterable[Incoming], folder: Path) -> dict[str, str]:
    """The wheels among the files into `folder`: sha256 by file name."""
    found: dict[str, str] = {}
    for one in files:
        rest = one.name.rpartition("/")[2]
        if _OURS.fullmatch(one.name):
            raise refused(
                path,
                f"it holds {one.name}, as an export does, but does not begin with an export's manifest",
                hint="was it packed anew? Unpack it, and import the folder",
            )
        if not rest.endswith(".whl"):
            continue
        try:
            parse_wheel_filename(rest)
        except InvalidWheelFilename as error:
            raise refused(
                path, f"it holds a wheel with a bad name: {error}", hint="rename or remove it"
            ) from error
        if rest in found:
            raise refused(path, f"it holds {rest} twice", hint="keep one of them")
        found[rest] = one.save(folder / rest)
    if not found:
        raise refused(path, "there is no wheel in it", hint="name an export, or a folder or tar of wheels")
    return found


def judge_foreign(
    path: Path, folder: Path, hashes: dict[str, str], target: Target, proven: Proofs, progress: Progress
) -> tuple[list[Sound], tuple[Judgement, ...]]:
    """Those that fit the target, proven and audited; AuditError names all that are unsound."""
    sound, judgements, wrong = [], [], []
    errors: list[SparkBuildError] = []
    total, done = sum((folder / name).stat().st_size for name in hashes), 0
    for name in sorted(hashes):
        with contextlib.suppress(AuditError):  # told below, with the others
            if _is_for(target, name):
                proven.begin(folder / name)
    for name, sha256 in sorted(hashes.items()):
        try:
            if not _is_for(target, name):
                judgements.append(Judgement(filename=name, taken=False))
                continue
            one, findings = _judged(folder / name, sha256, target, proven)
            judgements.append(Judgement(filename=name, taken=True, findings=findings))
            wrong += [(name, finding) for finding in findings if finding.severity == "error"]
            sound.append(one)
        except AuditError as error:
            errors.append(error)
        done += (folder / name).stat().st_size
        progress(done, total)
    _refuse_unsound(path, wrong, errors)
    _refuse_unfit(path, sound, judgements, target)
    return sound, tuple(judgements)


def _is_for(target: Target, filename: str) -> bool:
    tags, _ = filename_parts(filename)
    return fits(tags, platform=target.platform, python=target.python)


def _judged(path: Path, sha256: str, target: Target, proven: Proofs) -> tuple[Sound, tuple[Finding, ...]]:
    facts, content = proven.of(path)
    findings = findings_alone(
        facts,
        system_libraries=known_libraries,
        policies=known_policies,
        capabilities=target.cuda_architectures,
    )
    wheel = StoredWheel(
        name=facts.name,
        version=facts.version,
        filename=path.name,
        sha256=sha256,
        size=facts.size,
        key=sha256,
        origin="foreign",
        requires=facts.requires,
    )
    described = {
        "name": wheel.name,
        "version": wheel.version,
        "origin": wheel.origin,
        "recipe": "",
        "requires": list(wheel.requires),
        "content_digest": content,
    }
    return Sound(wheel=wheel, described=described), findings


def _refuse_unsound(
    path: Path, wrong: Sequence[tuple[str, Finding]], errors: Sequence[SparkBuildError]
) -> None:
    lines = [error.message for error in errors]
    lines += [f"{name}: {finding.message}" for name, finding in wrong]
    if not lines:
        return
    more = f" (and {len(lines) - 3} more)" if lines[3:] else ""
    first = wrong[0][0] if wrong else "WHEEL"
    told = advice(wrong[0][1].rule) if wrong and not errors else ""
    raise AuditError(
        f"{path} is refused: {'; '.join(lines[:3])}{more}",
        hint=told or f"`spark-build wheelhouse inspect {first}` says all of it; leave it out, or mend it",
    )


def _refuse_unfit(
    path: Path, sound: Sequence[Sound], judgements: Sequence[Judgement], target: Target
) -> None:
    if not sound:
        raise StoreError(
            f"{path} is refused: no wheel in it is for {target.platform} and {target.python} "
            f"({judgements[0].filename}, ...)",
            hint="--target chooses another view",
        )
    counts = Counter(one.wheel.name for one in sound)
    twice = [one.wheel.filename for one in sound if counts[one.wheel.name] > 1]
    if twice:
        raise refused(
            path, f"it holds several wheels of one name: {', '.join(twice)}", hint="keep one of them"
        )


WORKERS = 4  # each may hold a library of some MiB in memory


class Proofs:
    """What is in each wheel of a folder: begun when it lies there, asked for when all do."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self._pool = pool
        self._begun: dict[Path, Future[tuple[WheelFacts, str]]] = {}

    def begin(self, wheel: Path) -> None:
        """It is whole: hashing and unpacking it leave Python's lock to who reads the next one."""
        self._begun[wheel] = self._pool.submit(facts_and_digest, wheel)

    def of(self, wheel: Path) -> tuple[WheelFacts, str]:
        """As `facts_and_digest`, which may raise AuditError."""
        return self._begun[wheel].result()


@contextlib.contextmanager
def proofs() -> Iterator[Proofs]:
    """At the end nothing goes on; after a failure nothing new is begun."""
    pool = ThreadPoolExecutor(WORKERS)
    try:
        yield Proofs(pool)
    finally:
        pool.shutdown(cancel_futures=True)
