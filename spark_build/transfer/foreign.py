"""Wheels that somebody else built: unpacked, audited, marked as "not built here"."""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from spark_build.errors import AuditError, SparkBuildError, StoreError
from spark_build.recipes.model import Target
from spark_build.transfer.bundle import Progress
from spark_build.transfer.bundle_read import Incoming
from spark_build.transfer.manifest import Sound, refused
from spark_build.transfer.proving import Proofs
from spark_build.wheels.audit import advice, findings_alone, fits
from spark_build.wheels.diff import known_libraries, known_policies
from spark_build.wheels.model import Finding, StoredWheel
from spark_build.wheels.reader import filename_parts

# Its wheels should not lose their provenance by the way.
_OURS = re.compile(r"([^/]+/)?(manifest\.json|store/[0-9a-f]{64}/[^/]+)")


@dataclass(frozen=True, kw_only=True, slots=True)
class Judgement:
    """What the audit says of a foreign wheel; `taken` is false for one of another platform or Python."""

    filename: str
    taken: bool
    findings: tuple[Finding, ...] = ()


def unpack(path: Path, files: Iterable[Incoming], folder: Path) -> dict[str, str]:
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


def judge(
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
