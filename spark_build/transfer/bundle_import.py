"""Import bundles and third-party wheels."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from spark_build.errors import AGAIN, AuditError, Finding, Hint, StoreError, ours
from spark_build.files import make_folder, write_atomically
from spark_build.paths import Home
from spark_build.recipes.fields import PLATFORMS
from spark_build.recipes.model import Target
from spark_build.text import digest, printable
from spark_build.transfer.bundle import Progress
from spark_build.transfer.bundle_read import (
    DAMAGE,
    PLACE,
    Incoming,
    Manifest,
    Sound,
    incoming,
    incoming_tar,
    parse_manifest,
    refuse_other_schema,
    refused,
)
from spark_build.transfer.bundle_write import silent
from spark_build.wheelhouse import generations, trust
from spark_build.wheelhouse import store as stores
from spark_build.wheelhouse.generations import Generation
from spark_build.wheelhouse.trust import Signer
from spark_build.wheels.audit import as_installer, findings_alone, fits
from spark_build.wheels.model import StoredWheel, WheelFacts
from spark_build.wheels.reader import facts_and_digest, filename_parts, read_described
from spark_build.wheels.repair import symbol_policies, system_libraries

PROVENANCE = "provenance.json"
MANIFEST_LIMIT = 64 << 20  # bytes; 10 000 wheels have 10 MiB
SIGNATURE_LIMIT = 64 << 10  # bytes; the largest key makes two thousand
FEW = 5  # refused wheels, and reasons for each, that an error lists
RECORD_LIMIT = 1 << 20
PAPER_LIMIT = 1 << 30  # bytes; a build log of a gigabyte is no build log


@dataclass(frozen=True, kw_only=True, slots=True)
class ImportResult:
    """Result of an import; `judgements` on wheels that spark-build did not build.

    `replaced`: wheels built here whose place others took; `signer`: None for loose wheels.
    """

    generation: Generation
    new: bool
    signer: Signer | None = None
    replaced: tuple[StoredWheel, ...] = ()
    judgements: tuple[Judgement, ...] = ()


def import_bundle(
    home: Home,
    path: Path,
    view: Callable[[], tuple[str, Target]],
    *,
    targets: Callable[[], Iterable[Target]] = tuple,
    allowed: Allowed | None = None,
    copying: Progress = silent,
    checking: Progress = silent,
) -> ImportResult:
    """Take in an export; or a folder or tar of foreign wheels, which go into the view that `view` names.

    `targets`: those that an export's view may be for, as on this machine. A hostile, cut or changed export is
    refused (StoreError; AuditError where a wheel itself is unsound) and leaves nothing behind; so is one
    that no trusted signer signed, unless that is allowed. Of foreign wheels those that installers take are
    taken in; the result's `judgements` tell of the others; AuditError where none is left.
    """
    make_folder(home.store)
    # Until it is published: what nothing refers to yet must not be collected meanwhile.
    with stores.shared_lock(home.store, "importing"):
        return _taken(home, path, view, targets, allowed or Allowed(), copying, checking)


@dataclass(frozen=True, kw_only=True, slots=True)
class Allowed:
    """Exceptions that the user allows: unsigned or unknown origin, an older export; or does not: `strict`."""

    unsigned: bool = False
    downgrade: bool = False
    strict: bool = False  # of foreign wheels all or none


def _taken(
    home: Home,
    path: Path,
    view: Callable[[], tuple[str, Target]],
    targets: Callable[[], Iterable[Target]],
    allowed: Allowed,
    copying: Progress,
    checking: Progress,
) -> ImportResult:
    with tempfile.TemporaryDirectory(prefix=".tmp-import-", dir=home.store) as scratch, proofs() as proven:
        folder = Path(scratch)
        manifest: Manifest | None = None
        signer: Signer | None = None
        judgements: tuple[Judgement, ...] = ()
        with incoming(path, copying) as files:
            first = next(files, None)
            if first is None:
                raise refused(path, "there is nothing in it")
            if first.name.rpartition("/")[2] == generations.MANIFEST and first.name.count("/") < 2:
                manifest, signer = _unpack(home, path, first, files, folder, proven, allowed)
            else:
                hashes, misnamed = unpack_foreign(path, chain([first], files), folder)
        if manifest is not None:
            name = manifest.view
            _refuse_other_platform(path, manifest, targets())
            sound = _prove(path, folder, manifest, proven, checking)
            _refuse_other_bytes(home.store, path, sound, signer)
        else:
            name, target = view()
            sound, judged = judge_foreign(folder, hashes, target, proven, checking)
            judgements = (*misnamed, *judged)
            _refuse_foreign(path, sound, judgements, target, strict=allowed.strict)
        publication = _Publication(
            home=home, path=path, view=home.views / name, manifest=manifest, signer=signer, allowed=allowed
        )
        publication.refuse_downgrade(generations.current(publication.view), [one.wheel for one in sound])
        # An entry that is here already is kept.
        wheels = [_commit(home.store, folder, one, signer) for one in sound]
    return publication.publish(wheels, judgements)


def import_entry(
    home: Home, path: Path, file: BinaryIO, build_key: str, target: Target, *, audited: bool
) -> StoredWheel:
    """Commit the wheel of a signed export of one build, which `path` names in errors; publish nothing.

    audited: by `build/stages/audit.py` before its first use, which unpacks it: then it is only hashed here.
    Raises StoreError or AuditError for what an import refuses, and for another build than `build_key`.
    """
    make_folder(home.store)
    with (
        stores.shared_lock(home.store, "importing"),
        tempfile.TemporaryDirectory(prefix=".tmp-import-", dir=home.store) as scratch,
        contextlib.ExitStack() as stack,
    ):
        folder = Path(scratch)
        proven = None if audited else stack.enter_context(proofs())
        with incoming_tar(path, file) as files:
            manifest, signer = _unpack(home, path, next(files), files, folder, proven, Allowed())
        sound = _prove(path, folder, manifest, proven, silent)
        _refuse_other_build(path, [one.described["build_key"] for one in sound], build_key)
        if not _is_for(target, sound[0].wheel.filename):
            raise refused(path, f"{sound[0].wheel.filename} is not for {target.platform}, {target.python}")
        _refuse_other_bytes(home.store, path, sound, signer)
        return _commit(home.store, folder, sound[0], signer)


def peek_entry(home: Home, path: Path, file: BinaryIO, build_key: str) -> tuple[Signer, dict[str, Any]]:
    """Return who signed such an export, and the record of its wheel, from its first kilobytes.

    Raises StoreError for another build, and where a trusted signer's manifest or that record is missing.
    """
    with incoming_tar(path, file) as files:
        manifest, signer, others = _begun(home, path, next(files), files, Allowed())
        _refuse_other_build(path, [wheel.key for wheel in manifest.wheels], build_key)
        record = next(others, None)
        data = record.content.read(RECORD_LIMIT) if record else b""
        if hashlib.sha256(data).hexdigest() != manifest.papers.get(build_key, {}).get(stores.RECORD):
            raise refused(path, "its wheel's record does not come first, or is not what its manifest says")
        return signer, dict(json.loads(data))


def _refuse_other_build(path: Path, found: Sequence[str], build_key: str) -> None:
    if list(found) != [build_key]:
        raise refused(path, "it holds another build than its name says")


def _unpack(
    home: Home,
    path: Path,
    first: Incoming,
    files: Iterator[Incoming],
    folder: Path,
    proven: Proofs | None,
    allowed: Allowed,
) -> tuple[Manifest, Signer]:
    """Write wheels and attestations into `folder`, exactly the manifest's; returns it and its signer."""
    manifest, signer, files = _begun(home, path, first, files, allowed)
    top = first.name.removesuffix(generations.MANIFEST)
    sizes = {wheel.filename: wheel.size for wheel in manifest.wheels}
    missing = manifest.hashes()
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
        if name in sizes and proven:
            proven.begin(place)
    if missing:
        raise refused(path, f"{next(iter(missing))} is missing")
    return manifest, signer


def _begun(
    home: Home, path: Path, first: Incoming, files: Iterator[Incoming], allowed: Allowed
) -> tuple[Manifest, Signer, Iterator[Incoming]]:
    """Return the manifest, who signed it, and the files that follow."""
    if first.size > MANIFEST_LIMIT:
        raise refused(path, "its manifest is enormous")
    data = b"".join(first.chunks())
    top = first.name.removesuffix(generations.MANIFEST)
    second = next(files, None)
    signature = b""
    if second is not None and second.name == top + trust.SIGNATURE:
        if second.size > SIGNATURE_LIMIT:
            raise refused(path, "its signature is enormous")
        signature, second = second.content.read(SIGNATURE_LIMIT), None
    refuse_other_schema(path, data)
    try:
        signer = trust.verify(home.wheelhouse, data, signature) if signature else None
    except StoreError as error:
        raise refused(path, error.message, hint=error.hint) from error
    # Before gigabytes are read, and before a manifest of megabytes, which takes minutes.
    accepted = _accepted(path, signer, allowed)
    return parse_manifest(path, data), accepted, chain([second], files) if second else files


_SIGN = ours("wheelhouse export --sign KEY ...", elsewhere=True)


def _accepted(path: Path, signer: Signer | None, allowed: Allowed) -> Signer:
    """Return the signer, or nobody where that is allowed."""
    if signer is not None and signer.name:
        return signer
    if allowed.unsigned:
        return Signer(name=trust.UNSIGNED, key="")
    anyway = ("; or as it is, unproven: ", ours("wheelhouse import --unsigned", path))
    if signer is None:
        raise refused(
            path,
            "nobody signed it",
            hint=Hint("on the machine that wrote it: ", _SIGN, *anyway),
        )
    raise refused(
        path,
        f"it is signed with {signer.fingerprint}, a key that is not trusted here",
        hint=Hint("with its owner's public key: ", ours("wheelhouse trust add NAME KEY.pub"), *anyway),
    )


def _refuse_other_platform(path: Path, manifest: Manifest, targets: Iterable[Target]) -> None:
    """Raise StoreError where a wheel is not for the machine that the view is for.

    All are for one and the same where no target of that name is known here.
    """
    name, _, python = manifest.view.rpartition("-")
    known = [target for target in targets if name.startswith(f"{target.name}-")]
    platforms = {max(known, key=lambda target: len(target.name)).platform} if known else {*PLATFORMS}
    for wheel in manifest.wheels:
        tags, _ = filename_parts(wheel.filename)
        fitting = {one for one in platforms if fits(tags, platform=one, python=python)}
        if not fitting:
            there = " or ".join(sorted(platforms))
            raise refused(
                path, f"{wheel.filename} is not for {there}, {python}, as its view {manifest.view} is"
            )
        platforms = fitting


def _refuse_other_bytes(store: Path, path: Path, sound: Sequence[Sound], signer: Signer | None) -> None:
    """Raise StoreError where a build key is known here, and its wheel has other bytes."""
    for one in sound:
        build_key, mine = one.described["build_key"], one.wheel
        keys = [build_key, *(row["key"] for row in stores.imports_of(store, build_key))] if build_key else []
        for entry in filter(None, (stores.read(store, key) for key in keys)):
            other = entry.wheel
            if other is None or other.sha256 == mine.sha256:
                continue
            raise refused(
                path,
                f"{mine.filename} in it ({mine.sha256[:12]}, {_by(signer)}) and {other.filename} here "
                f"({other.sha256[:12]}, {other.shown_origin}) have one build key and different bytes",
                hint=Hint(
                    "export without it; or ",
                    ours("wheelhouse remove", f"{other.name}=={other.version}"),
                    ours("wheelhouse gc --keep 1 --older-than 0d --grace 0"),
                    AGAIN,
                ),
            )


def _by(signer: Signer | None) -> str:
    return "unsigned" if signer is None or not signer.key else f"signed by {signer.name}"


def _prove(
    path: Path, folder: Path, manifest: Manifest, proven: Proofs | None, progress: Progress
) -> list[Sound]:
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


def _checked(
    path: Path, folder: Path, manifest: Manifest, wheel: StoredWheel, proven: Proofs | None
) -> Sound:
    """Return a wheel whose key, record, METADATA and (what is `proven`) content agree."""
    papers = [*manifest.papers.get(wheel.key, ())]
    own = folder / "store" / wheel.key
    record: dict[str, Any] = json.loads((own / stores.RECORD).read_bytes()) if stores.RECORD in papers else {}
    is_recipes = wheel.origin in ("built", "imported")
    build_key = _build_key(path, own, wheel, papers) if is_recipes else ""
    key = build_key or wheel.sha256
    if wheel.imported:  # by who hands it on
        key = stores.import_key(wheel.sha256, build_key, record["signer_key"])
    row = json.loads(json.dumps(wheel.as_row()))
    del row["key"]
    # What nobody built has nothing to tell of its build.
    invented = not is_recipes and papers != [stores.RECORD]
    if wheel.key != key or invented or any(record.get(name) != value for name, value in row.items()):
        raise refused(path, f"the papers of {wheel.filename} do not belong to its key")
    described = {name: row[name] for name in ("name", "version", "requires")}
    described |= {
        "origin": "imported" if is_recipes else wheel.origin,
        "recipe": str(record["recipe"]) if is_recipes else "",
        "content_digest": str(record["content_digest"]),
        "build_key": build_key,
    }
    place = folder / wheel.filename
    told = _unpacked(path, place, record, proven) if proven else read_described(place)
    if (told.name, told.version, told.requires) != (wheel.name, wheel.version, wheel.requires):
        raise refused(path, f"the METADATA of {wheel.filename} is not what its manifest says")
    return Sound(
        wheel=wheel, described=described, papers=tuple(name for name in papers if name != stores.RECORD)
    )


def _unpacked(path: Path, wheel: Path, record: Mapping[str, Any], proven: Proofs) -> WheelFacts:
    """Return facts on a wheel whose files are what its RECORD and the record say."""
    facts, content = proven.of(wheel)
    if facts.unsafe:
        raise AuditError(f"{wheel.name} is not taken in: {facts.unsafe[0]}", hint="build it again")
    if content != record["content_digest"] and not record.get("prefix"):
        # Dependents' build keys are made of it.
        raise AuditError(
            f"{path} is refused: the content digest of {wheel.name} is not what its record says",
            hint="export it again",
        )
    return facts


def _build_key(path: Path, own: Path, wheel: StoredWheel, papers: Sequence[str]) -> str:
    """Return the key of a wheel's build, of which its provenance must tell."""
    if PROVENANCE not in papers or "key.json" not in papers:
        raise refused(path, f"{wheel.filename} comes without its key or its provenance")
    document = json.loads((own / "key.json").read_bytes())
    statement = json.loads((own / PROVENANCE).read_bytes())
    build_key = digest(document["inputs"])
    # An entry that was taken over from an older key keeps the provenance of its build.
    told = statement["predicate"]["buildDefinition"]["internalParameters"]["buildKey"]
    subjects = [(one["name"], one["digest"].get("sha256")) for one in statement["subject"]]
    if told not in (build_key, document.get("taken_over_from")):
        raise refused(path, f"the provenance of {wheel.filename} tells of another build")
    if (wheel.filename, wheel.sha256) not in subjects:
        raise refused(path, f"the provenance of {wheel.filename} tells of other bytes")
    return build_key


def _commit(store: Path, folder: Path, one: Sound, signer: Signer | None) -> StoredWheel:
    """Commit an import beside what was built or downloaded here; return that where it has these bytes."""
    key, described = one.wheel.key, dict(one.described)
    if signer is not None:
        own = stores.read(store, described["build_key"] or one.wheel.sha256)
        if own is not None and own.wheel is not None and own.wheel.sha256 == one.wheel.sha256:
            return own.wheel
        described |= {"imported": signer.name, "signer_key": signer.key}
        key = stores.import_key(one.wheel.sha256, described["build_key"], signer.key)
    papers = {name: (folder / "store" / one.wheel.key / name).read_bytes() for name in one.papers}
    wheel = folder / one.wheel.filename
    # As it was written, each byte was hashed and compared with what the export says.
    entry = stores.commit(
        store, key=key, wheel=wheel, described=described, papers=papers, sha256=one.wheel.sha256
    )
    assert entry.wheel is not None
    return entry.wheel


@dataclass(frozen=True, kw_only=True, slots=True)
class _Publication:
    """Destination of imported wheels, and who vouches for them; `manifest`, `signer`: of an export only."""

    home: Home
    path: Path
    view: Path
    manifest: Manifest | None
    signer: Signer | None
    allowed: Allowed

    def publish(self, wheels: list[StoredWheel], judgements: tuple[Judgement, ...]) -> ImportResult:
        """Let the imported wheels replace those of their names; others in the view stay."""
        # Nobody else's word may keep wheels from being completed from the index.
        is_signed = self.signer is not None and self.signer.key
        closure_key = self.manifest.closure_key if self.manifest and is_signed else ""
        replaced: list[StoredWheel] = []

        def choose(before: Generation | None) -> tuple[Sequence[StoredWheel], str]:
            taken = self.refuse_downgrade(before, wheels)
            names = {wheel.name for wheel in wheels}
            there = before.wheels if before else ()
            others = [wheel for wheel in there if wheel.name not in names]
            replaced[:] = (wheel for wheel in set(there) - {*wheels, *others} if wheel.origin == "built")
            if taken:
                write_atomically(self.view / generations.IMPORTS, json.dumps(taken) + "\n")
            if before and {*wheels, *others} == set(there):
                return there, before.closure_key
            return [*wheels, *others], closure_key if not others else ""

        generation, new = generations.publish(self.view, self.home.store, choose)
        gone = tuple(sorted(replaced, key=lambda wheel: wheel.name))
        return ImportResult(
            generation=generation, new=new, signer=self.signer, replaced=gone, judgements=judgements
        )

    def refuse_downgrade(self, before: Generation | None, wheels: Sequence[StoredWheel]) -> dict[str, int]:
        """Return what will have been taken in, by signer; StoreError for an older one that replaces."""
        if self.manifest is None or self.signer is None:
            return {}
        taken = _counters(self.view)
        last, number = taken.get(self.signer.key, 0), self.manifest.generation
        arriving = {wheel.name: wheel.sha256 for wheel in wheels}
        there = before.wheels if before else ()
        gone = [wheel for wheel in there if arriving.get(wheel.name, wheel.sha256) != wheel.sha256]
        if number < last and gone and not self.allowed.downgrade:
            raise refused(
                self.path,
                f"it is generation {number} of {self.view.name} ({_by(self.signer)}), older than {last}, "
                f"which was taken in before, and would replace {gone[0].name} {gone[0].version}",
                hint=Hint(
                    ours("wheelhouse import --allow-downgrade", self.path),
                    "  (two machines that sign with one key count apart: give each its own)",
                ),
            )
        return {**taken, self.signer.key: number if gone else max(number, last)}


def _counters(view: Path) -> dict[str, int]:
    """Return the generation last taken in, by the signer's key."""
    try:
        return {
            str(key): int(number)
            for key, number in json.loads((view / generations.IMPORTS).read_text()).items()
        }
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


# Its wheels should not lose their provenance by the way.
_OURS = re.compile(r"([^/]+/)?(manifest\.json|store/[0-9a-f]{64}/[^/]+)")


@dataclass(frozen=True, kw_only=True, slots=True)
class Judgement:
    """Audit of a foreign wheel; not `taken`: `refused` says why, or it is for another platform or Python."""

    filename: str
    taken: bool
    findings: tuple[Finding, ...] = ()
    refused: tuple[str, ...] = ()


def unpack_foreign(
    path: Path, files: Iterable[Incoming], folder: Path
) -> tuple[dict[str, str], list[Judgement]]:
    """Copy the wheels among the files into `folder`; returns sha256 by file name, and the misnamed ones."""
    found: dict[str, str] = {}
    misnamed: list[Judgement] = []
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
            why = f"no wheel name: {printable(str(error))}"
            misnamed.append(Judgement(filename=printable(rest), taken=False, refused=(why,)))
            continue
        if rest in found:
            raise refused(path, f"it holds {rest} twice", hint="keep one of them")
        found[rest] = one.save(folder / rest)
    if not found and not misnamed:
        raise refused(path, "there is no wheel in it", hint="name an export, or a folder or tar of wheels")
    return found, misnamed


def judge_foreign(
    folder: Path, hashes: dict[str, str], target: Target, proven: Proofs, progress: Progress
) -> tuple[list[Sound], list[Judgement]]:
    """Return the proven wheels that an installer for the target would take, and a judgement on each."""
    sound: list[Sound] = []
    judgements: list[Judgement] = []
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
        except AuditError as error:
            why = error.message.removeprefix(f"{name} is ").removeprefix(f"{name}: ")
            judgements.append(Judgement(filename=name, taken=False, refused=(why,)))
        else:
            wrong = tuple(finding.message for finding in findings if finding.severity == "error")
            judgements.append(Judgement(filename=name, taken=not wrong, findings=findings, refused=wrong))
            sound += [] if wrong else [one]
        done += (folder / name).stat().st_size
        progress(done, total)
    return sound, judgements


def _is_for(target: Target, filename: str) -> bool:
    tags, _ = filename_parts(filename)
    return fits(tags, platform=target.platform, python=target.python)


def _judged(path: Path, sha256: str, target: Target, proven: Proofs) -> tuple[Sound, tuple[Finding, ...]]:
    facts, content = proven.of(path)
    findings = as_installer(
        findings_alone(
            facts,
            system_libraries=system_libraries,
            policies=symbol_policies,
            capabilities=target.cuda_architectures,
        )
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
    return Sound(wheel=wheel, described=stores.described_as("foreign", facts, content)), findings


def _refuse_foreign(
    path: Path, sound: Sequence[Sound], judgements: Sequence[Judgement], target: Target, *, strict: bool
) -> None:
    """Raise AuditError where all are refused, with `strict` one; StoreError where none fits."""
    wrong = [one for one in judgements if one.refused]
    if wrong and (strict or not sound):
        lines = [f"{one.filename}: {'; '.join(one.refused[:FEW])}" for one in wrong[:FEW]]
        more = f"; and {len(wrong) - FEW} more wheels" if len(wrong) > FEW else ""
        told = (one.hint for one in wrong[0].findings if one.severity == "error" and one.hint)
        hint = Hint(next(told, "fetch or build it again; no installer takes it as it is"))
        if more and sound:
            hint = Hint(hint, "; without --strict each is listed, and the sound ones are taken")
        raise AuditError(f"{path} is refused: {'; '.join(lines)}{more}", hint=hint)
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
    """Proofs of the wheels in a folder: each is begun when its file is complete."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self._pool = pool
        self._begun: dict[Path, Future[tuple[WheelFacts, str]]] = {}

    def begin(self, wheel: Path) -> None:
        """Begin with a complete file; hashing and unpacking release Python's lock for the next one."""
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
