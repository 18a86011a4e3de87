"""Provenance, SBOM and package URL documents."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import quote

from packaging.metadata import parse_email

Role = Literal["source", "patch", "build requirement", "need"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Material:
    """An input of a build; `digests`: algorithm in in-toto's spelling -> hex."""

    role: Role
    name: str
    version: str = ""
    uri: str = ""  # a purl, or where it comes from; never a place on this machine
    digests: Mapping[str, str] = field(default_factory=dict)
    provider: str = ""  # of a need: store, public or path


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """Method of a wheel's build, as far as every such build shares it."""

    recipe: str
    distribution: str
    version: str  # of the component, as the train pins it
    wheel_version: str
    key: str  # build key
    epoch: int  # SOURCE_DATE_EPOCH; 0: of a vendor's wheel, which has its own times
    builder_version: str
    target: Mapping[str, Any]  # platform, Python, architectures
    parameters: Mapping[str, Any]  # evaluated variables, measured tools
    materials: tuple[Material, ...]
    python_package: bool = True  # else a prefix for others to build against


@dataclass(frozen=True, kw_only=True, slots=True)
class Execution:
    """Facts about one build only."""

    target: str
    train: str
    plan_key: str
    started: str  # ISO 8601, UTC; "" where an older tree does not say
    finished: str
    sandbox: Mapping[str, Any]
    compiler_cache: Mapping[str, Any]
    jobs: int
    system: str
    findings: Mapping[str, int]  # severity -> count
    byproducts: Mapping[str, str]  # paper beside the wheel -> sha256
    repaired: Mapping[str, Any] = field(default_factory=dict)  # what repair did to the wheel


@dataclass(frozen=True, kw_only=True, slots=True)
class WheelContent:
    """Contents of a wheel for its attestations."""

    hashes: Mapping[str, str]  # file -> hex sha256, without RECORD
    metadata: bytes = b""
    sboms: tuple[bytes, ...] = ()  # of other tools


STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "https://slsa.dev/provenance/v1"
BUILD_TYPE = "urn:spark-build:recipe:v1"
BUILDER = "urn:spark-build:builder:v1"
# Of what is no single file: the content digest of a wheel or a prefix (docs/internals.md, Keys).
CONTENT = "sparkBuildContent"
MEDIA_TYPES = {".json": "application/json", ".log": "text/plain"}

Subject = tuple[str, Mapping[str, str]]  # name, digests


def statement(
    origin: Origin, subjects: Sequence[Subject], execution: Execution | None = None
) -> dict[str, Any]:
    """Return the provenance of `subjects`; without `execution` it is the same for every builder and time."""
    return {
        "_type": STATEMENT,
        "subject": [{"name": name, "digest": dict(digests)} for name, digests in subjects],
        "predicateType": PREDICATE,
        "predicate": {
            "buildDefinition": _definition(origin, execution),
            "runDetails": _run_details(origin, execution),
        },
    }


def _definition(origin: Origin, execution: Execution | None) -> dict[str, Any]:
    external: dict[str, Any] = {
        "recipe": origin.recipe,
        "version": origin.version,
        "target": dict(origin.target),
    }
    internal: dict[str, Any] = {
        "buildKey": origin.key,
        "sourceDateEpoch": origin.epoch,
        **origin.parameters,
    }
    if execution is not None:
        # Two names of targets or trains may stand for the same build.
        external |= {"targetName": execution.target, "train": execution.train}
        internal |= {
            "planKey": execution.plan_key,
            "sandbox": dict(execution.sandbox),
            "compilerCache": dict(execution.compiler_cache),
            "jobs": execution.jobs,
            "system": execution.system,
        }
        internal |= {"repaired": dict(execution.repaired)} if execution.repaired else {}
    return {
        "buildType": BUILD_TYPE,
        "externalParameters": external,
        "internalParameters": internal,
        "resolvedDependencies": [_dependency(one) for one in origin.materials],
    }


def _dependency(material: Material) -> dict[str, Any]:
    """Return a ResourceDescriptor without empty fields."""
    annotations: dict[str, str] = {"sparkbuild_role": material.role}
    if material.provider:
        annotations["sparkbuild_provider"] = material.provider
    described = {
        "name": material.name,
        "uri": material.uri,
        "digest": dict(material.digests),
        "annotations": annotations,
    }
    return {field: value for field, value in described.items() if value}


def _run_details(origin: Origin, execution: Execution | None) -> dict[str, Any]:
    builder = {"id": BUILDER, "version": {"spark-build": origin.builder_version}}
    if execution is None:
        return {"builder": builder}
    # SLSA wants another id for each mode whose promises differ.
    mode = str(execution.sandbox.get("kind", "unknown")).replace(" ", "-")
    builder["id"] = f"{BUILDER}#{mode}"
    metadata = {
        "invocationId": f"{origin.key}@{execution.finished}",
        "startedOn": execution.started,
        "finishedOn": execution.finished,
    }
    return {
        "builder": builder,
        "metadata": {field: value for field, value in metadata.items() if value},
        "byproducts": [_byproduct(name, sha256, execution) for name, sha256 in execution.byproducts.items()],
    }


def _byproduct(name: str, sha256: str, execution: Execution) -> dict[str, Any]:
    suffix = name[name.rindex(".") :]
    described: dict[str, Any] = {
        "name": name,
        "digest": {"sha256": sha256},
        "mediaType": MEDIA_TYPES[suffix],
    }
    if name == "audit.json":
        counted = {f"sparkbuild_{severity}": count for severity, count in execution.findings.items()}
        described["annotations"] = counted
    return {field: value for field, value in described.items() if value}


SCHEMA = "http://cyclonedx.org/schema/bom-1.6.schema.json"
CLASSIFIER = "License :: "
PURL = re.compile(r"pkg:[a-z][a-z0-9.+-]*/[!-~]+")
MOST_LICENCE = 100  # characters; a longer License field is the text itself
Component = dict[str, Any]


def bom(
    origin: Origin, content: WheelContent, *, moment: str, file_name: str = "", sha256: str = ""
) -> Component:
    """Return the SBOM; `file_name` and `sha256` are the wheel's when the SBOM is beside it.

    `moment`: ISO 8601, "" to leave it out.
    """
    main = _main(origin, content, file_name, sha256)
    parts = {one["bom-ref"]: one for one in [*_bundled(content), *map(_material, _used(origin))]}
    serial = uuid.uuid5(uuid.NAMESPACE_URL, f"urn:spark-build:{origin.key}:{sha256}")
    tool = {"type": "application", "name": "spark-build", "version": origin.builder_version}
    metadata = {"timestamp": moment, "tools": {"components": [tool]}, "component": main}
    return {
        "$schema": SCHEMA,
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{serial}",
        "version": 1,
        "metadata": {name: value for name, value in metadata.items() if value},
        "components": list(parts.values()),
        "dependencies": [
            {"ref": main["bom-ref"], "dependsOn": list(parts)},
            *({"ref": ref} for ref in parts),
        ],
    }


def _used(origin: Origin) -> list[Material]:
    """Return the components besides the main one, whose source and patches are its pedigree."""
    return [one for one in origin.materials if one.role in ("build requirement", "need")]


def _main(origin: Origin, content: WheelContent, file_name: str, sha256: str) -> Component:
    if origin.python_package:
        name = pypi(origin.distribution, origin.wheel_version, file_name=file_name)
    else:
        name = generic(origin.distribution, origin.wheel_version)
    component: Component = {
        "type": "library",
        "bom-ref": name,
        "name": origin.distribution,
        "version": origin.wheel_version,
        "purl": name,
        "pedigree": _pedigree(origin),
        "properties": [{"name": "spark-build:key", "value": origin.key}],
    }
    if sha256:
        component["hashes"] = [{"alg": "SHA-256", "content": sha256}]
    if found := licences(content.metadata):
        component["licenses"] = found
    return component


def _pedigree(origin: Origin) -> Component:
    """Return the component's ancestors: pinned sources and the patches on them."""
    sources = [one for one in origin.materials if one.role == "source"]
    patches = [one for one in origin.materials if one.role == "patch"]
    found: Component = {"ancestors": [_source(one) for one in sources]}
    if patches:
        found["patches"] = [{"type": "unofficial", "diff": {"url": one.name}} for one in patches]
        known = "; ".join(f"{one.name} sha256 {one.digests['sha256']}" for one in patches)
        found["notes"] = f"patches: {known}"
    return found


def _source(material: Material) -> Component:
    component: Component = {
        "type": "library",
        "bom-ref": f"source:{material.name}",
        "name": material.name,
        **_identified(material),
    }
    if commit := material.digests.get("gitCommit"):
        component["pedigree"] = {"commits": [{"uid": commit}]}
    if material.uri.startswith(("git+", "https:", "http:")):
        kind = "vcs" if material.uri.startswith("git+") else "source-distribution"
        component["externalReferences"] = [{"type": kind, "url": material.uri}]
    return component


def _material(material: Material) -> Component:
    """Return the component of a build requirement (absent at run time) or of a linked need."""
    return {
        "type": "library",
        "bom-ref": f"{material.role.replace(' ', '-')}:{material.uri or material.name}",
        "name": material.name,
        "scope": "excluded" if material.role == "build requirement" else "required",
        **_identified(material),
        "properties": [{"name": "spark-build:role", "value": material.role}],
    }


def _identified(material: Material) -> Component:
    found: Component = {"version": material.version} if material.version else {}
    if material.uri.startswith("pkg:"):
        found["purl"] = material.uri
    if "sha256" in material.digests:
        found["hashes"] = [{"alg": "SHA-256", "content": material.digests["sha256"]}]
    return found


def _bundled(content: WheelContent) -> list[Component]:
    """Return the components that other tools declare in the wheel, and copied libraries.

    auditwheel leaves out what no package manager knows: the files tell of that, too.
    """
    files = [
        {
            "type": "file",
            "bom-ref": f"file:{name}",
            "name": name,
            "scope": "required",
            "hashes": [{"alg": "SHA-256", "content": sha256}],
            "properties": [{"name": "spark-build:role", "value": "bundled library"}],
        }
        for name, sha256 in sorted(content.hashes.items())
        if name.partition("/")[0].endswith(".libs")
    ]
    return [*_declared(content.sboms), *files]


def _declared(sboms: Iterable[bytes]) -> list[Component]:
    """Return the components of CycloneDX documents without their main ones; skips other documents."""
    found = []
    for data in sboms:
        try:
            document = json.loads(data)
            main = document.get("metadata", {}).get("component", {}).get("bom-ref")
            listed = document.get("components", [])
            found += [_taken_over(one) for one in listed if main is None or one.get("bom-ref") != main]
        except (ValueError, AttributeError, TypeError, KeyError):
            continue
    return sorted(found, key=lambda one: str(one["bom-ref"]))


def _taken_over(component: Mapping[str, Any]) -> Component:
    """Return the fields of a component that every version of CycloneDX writes alike."""
    kept = {name: str(component[name]) for name in ("name", "version", "purl") if component.get(name)}
    if not PURL.fullmatch(kept.get("purl", "")):
        kept.pop("purl", None)
    return {
        "type": "library",
        "bom-ref": f"bundled:{kept.get('purl') or kept['name']}",
        **kept,
        "scope": "required",
        "properties": [{"name": "spark-build:role", "value": "bundled library"}],
    }


def licences(metadata: bytes) -> list[Component]:
    """Return METADATA's licence: an SPDX expression, else the License field, else the classifiers."""
    raw, _ = parse_email(metadata)
    if expression := raw.get("license_expression"):
        return [{"expression": expression}]
    stated = (raw.get("license") or "").strip()
    if stated and len(stated) <= MOST_LICENCE and "\n" not in stated:
        return [{"license": {"name": stated}}]
    named = [one for one in raw.get("classifiers", ()) if one.startswith(CLASSIFIER)]
    return [{"license": {"name": one.rpartition(" :: ")[2]}} for one in named]


def pypi(name: str, version: str, *, file_name: str = "") -> str:
    """Return the package URL of a Python package; `file_name` selects one of its files."""
    return _purl("pypi", name.lower().replace("_", "-"), version, {"file_name": file_name})


def generic(name: str, version: str) -> str:
    """Return a package URL for something that no package manager knows."""
    return _purl("generic", name, version, {})


def _purl(kind: str, name: str, version: str, qualifiers: Mapping[str, str]) -> str:
    known = "&".join(f"{key}={_quoted(value)}" for key, value in sorted(qualifiers.items()) if value)
    at = f"@{_quoted(version)}" if version else ""
    return f"pkg:{kind}/{_quoted(name)}{at}" + (f"?{known}" if known else "")


def _quoted(text: str) -> str:
    return quote(text, safe=":")  # what the specification leaves unencoded, besides letters, digits and .-_~
