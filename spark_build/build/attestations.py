"""Attestations of a wheel: what is known of a build, for its provenance and its SBOM.

Inside the wheel lie copies without what differs from build to build; beside it, in the store, all of it.
"""

from __future__ import annotations

import hashlib
import json
import platform
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

from packaging.utils import canonicalize_name

from spark_build import __version__
from spark_build.build.context import Job, Outputs, Provided
from spark_build.files import sha256_of
from spark_build.recipes.model import Source
from spark_build.sources.git_remote import display_url, is_local
from spark_build.text import document
from spark_build.wheelhouse import store as stores
from spark_build.wheels import attestation_formats
from spark_build.wheels.attestation_formats import (
    CONTENT,
    Execution,
    Material,
    Origin,
    Subject,
    WheelContent,
    bom,
    statement,
)
from spark_build.wheels.reader import PROVENANCE, digest_of, dist_info, files_of, opened, record_rows
from spark_build.wheels.writer import hex_of

SBOM = "sboms/spark-build.cdx.json"


def inside(job: Job, earlier: Mapping[str, Outputs]) -> Mapping[str, Callable[[WheelContent], bytes]]:
    """Return the attestations inside a wheel by their name in dist-info, each made from the other files.

    A wheel cannot hold its own sha256: there the subject of the provenance is its content digest.
    """
    origin = _origin(job, earlier, beside=False)

    def provenance(content: WheelContent) -> bytes:
        digest = digest_of((name, bytes.fromhex(sha256)) for name, sha256 in content.hashes.items())
        name = f"{origin.distribution} {origin.wheel_version}"
        return document(statement(origin, [(name, {CONTENT: digest})]))

    return {
        SBOM: lambda content: document(bom(origin, content, moment=_moment(origin))),
        PROVENANCE: provenance,
    }


def beside(job: Job, earlier: Mapping[str, Outputs], byproducts: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return sbom.json and provenance.json; `byproducts`: other files that are published beside them."""
    audited = earlier["audit"]
    origin = _origin(job, earlier, beside=True)
    wheel = job.out / audited["wheel"] if audited["wheel"] else None
    content, sha256 = (content_of(wheel), sha256_of(wheel)) if wheel else (WheelContent(hashes={}), "")
    name = audited["wheel"] or ""
    sbom = document(bom(origin, content, moment=_moment(origin), file_name=name, sha256=sha256))
    subjects: list[Subject] = [(name, {"sha256": sha256})] if wheel else []
    if earlier["build"]["prefix"]:
        subjects.append((stores.PREFIX, {CONTENT: audited["content_digest"]}))
    execution = _execution(job, earlier, {**byproducts, "sbom.json": sbom})
    return {"sbom.json": sbom, "provenance.json": document(statement(origin, subjects, execution))}


def content_of(wheel: Path) -> WheelContent:
    """Return the facts about a finished wheel for its attestations; reads only its dist-info folder."""
    with opened(wheel) as archive:
        folder = dist_info(archive, wheel.name)
        rows, _ = record_rows(
            archive.read(f"{folder}/RECORD").decode()
        )  # the audit compared it with the files
        return WheelContent(
            hashes={
                name: hex_of(row.hash_.value)
                for name, row in rows.items()
                if row.hash_ and row.hash_.name == "sha256"
            },
            metadata=archive.read(f"{folder}/METADATA"),
            sboms=tuple(_foreign_sboms(archive, folder)),
        )


def _foreign_sboms(archive: zipfile.ZipFile, folder: str) -> Iterator[bytes]:
    """Yield the SBOMs that other tools put into the wheel."""
    for name in sorted(info.filename for info in files_of(archive)):
        if name.startswith(f"{folder}/sboms/") and name != f"{folder}/{SBOM}":
            yield archive.read(name)


def _origin(job: Job, earlier: Mapping[str, Outputs], *, beside: bool) -> Origin:
    recipe, declared = job.step.recipe, job.inputs["recipe"]
    return Origin(
        recipe=recipe.name,
        distribution=recipe.distribution,
        version=job.step.pin.version,
        # A vendor's wheel is what it says itself.
        wheel_version=earlier["audit"]["version"] if beside else job.step.evaluated.wheel_version,
        key=job.key,
        epoch=int(earlier["patch"]["epoch"]),
        builder_version=__version__,
        target=job.inputs["target"],
        parameters={
            "kind": recipe.kind,
            "variables": declared["env"],
            "definitions": declared["cmake"]["define"],
            "repair": declared["repair"],
            "toolchain": job.inputs["toolchain"],
        },
        materials=(*_sources(job), *_requirements(job, earlier), *_needs(job, earlier, beside=beside)),
        python_package=recipe.kind in ("pep517", "repack"),
    )


def _sources(job: Job) -> Iterator[Material]:
    step = job.step
    if step.source is not None:
        yield material_of(step.recipe.name, step.source, step.pin.version)
    for name, source in step.evaluated.extra_sources.items():
        yield material_of(name, source, "")
    for patch in step.patches:
        yield Material(role="patch", name=patch.file, digests={"sha256": patch.sha256})


def material_of(name: str, source: Source, version: str) -> Material:
    """Return a source's origin, without paths of this machine and passwords."""
    if source.kind == "git":
        at = f"@refs/tags/{source.tag}" if source.tag else ""
        uri = "" if is_local(source.url) else f"git+{display_url(source.url)}{at}"
        return Material(
            role="source", name=name, version=version, uri=uri, digests={"gitCommit": source.commit}
        )
    if source.kind == "local":
        return Material(role="source", name=name, version=version, digests={CONTENT: source.sha256})
    if source.kind == "archive":
        uri = "" if is_local(source.url) else display_url(source.url)
    else:
        if source.kind == "wheel":  # of a set, each has a version of its own
            version = source.filename.split("-")[1]
        uri = attestation_formats.pypi(source.project, version, file_name=source.filename)
    return Material(
        role="source",
        name=source.filename or name,
        version=version,
        uri=uri,
        digests={"sha256": source.sha256},
    )


def _requirements(job: Job, earlier: Mapping[str, Outputs]) -> Iterator[Material]:
    """Yield the packages of the build environment, without the needs."""
    needs = {canonicalize_name(one.provision.distribution) for one in job.provided}
    for row in sorted(earlier["environment"]["installed"], key=lambda row: str(row["name"]).lower()):
        if canonicalize_name(row["name"]) not in needs:
            yield Material(
                role="build requirement",
                name=row["name"],
                version=row["version"],
                uri=attestation_formats.pypi(row["name"], row["version"]),
                digests={"sha256": row["sha256"]} if row["sha256"] else {},
            )


def _needs(job: Job, earlier: Mapping[str, Outputs], *, beside: bool) -> Iterator[Material]:
    installed = {canonicalize_name(row["name"]): row["sha256"] for row in earlier["environment"]["installed"]}
    for one in job.provided:
        provision = one.provision
        entry = _entry(job, one)
        version = entry.version if entry else provision.version
        digests = {CONTENT: one.identity} if entry and provision.coupling == "content" else {}
        file_name, sha256 = "", installed.get(canonicalize_name(provision.distribution))
        if provision.provider == "public" and sha256:
            digests["sha256"] = sha256
        if beside and entry is not None and entry.wheel is not None:
            # Not inside: a need that was rebuilt to the same content does not change what it is built into.
            digests["sha256"] = entry.wheel.sha256
            file_name = entry.wheel.filename
        if entry is not None and entry.wheel is None:
            uri = attestation_formats.generic(provision.distribution, version)
        else:
            uri = attestation_formats.pypi(provision.distribution, version, file_name=file_name)
        yield Material(
            role="need",
            name=provision.distribution,
            version=version,
            uri=uri,
            digests=digests,
            provider=_provider(one, entry) if beside else provision.provider,
        )


def _provider(need: Provided, entry: stores.StoreEntry | None) -> str:
    """Return the provider, with who vouches for a wheel that was built elsewhere."""
    provider = need.provision.provider
    return f"{provider}, imported ({entry.imported})" if entry and entry.imported else provider


def _entry(job: Job, need: Provided) -> stores.StoreEntry | None:
    """Return the store's entry that provides a need; None for a need from elsewhere."""
    place = need.wheel or need.prefix
    if need.provision.provider != "store" or place is None:
        return None
    return stores.read(job.home.store, place.parent.name)


def _execution(job: Job, earlier: Mapping[str, Outputs], byproducts: Mapping[str, bytes]) -> Execution:
    built = earlier["build"]
    findings = json.loads(byproducts["audit.json"])["findings"]
    return Execution(
        target=job.target.name,
        train=job.train,
        plan_key=job.step.key,
        # An older tree does not say.
        started=built.get("started", ""),
        finished=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        sandbox=built.get("sandbox", {"kind": "unknown"}),
        compiler_cache=built.get("compiler_cache", {"kind": "none"}),
        jobs=built.get("cost", {}).get("jobs", 0),
        system=platform.platform(),
        findings=dict(sorted(Counter(one["severity"] for one in findings).items())),
        repaired=earlier["audit"].get("repair", {}),
        byproducts={name: hashlib.sha256(data).hexdigest() for name, data in sorted(byproducts.items())},
    )


def _moment(origin: Origin) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(origin.epoch)) if origin.epoch else ""
