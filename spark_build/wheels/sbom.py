"""A software bill of materials: CycloneDX 1.6 as JSON, the same for the same wheel.

PEP 770 gives SBOMs a place in wheels and says what they should have: the package as main component, a path
in the graph to every other one, a time and a tool. The time is SOURCE_DATE_EPOCH, numbers come from the key.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterable, Mapping
from typing import Any

from packaging.metadata import parse_email

from spark_build.wheels import purl
from spark_build.wheels.attestation_formats import Content, Material, Origin

SCHEMA = "http://cyclonedx.org/schema/bom-1.6.schema.json"
CLASSIFIER = "License :: "
PURL = re.compile(r"pkg:[a-z][a-z0-9.+-]*/[!-~]+")
MOST_LICENCE = 100  # characters; a longer License field is the text itself
Component = dict[str, Any]


def bom(origin: Origin, content: Content, *, moment: str, file_name: str = "", sha256: str = "") -> Component:
    """The document. `file_name` and `sha256`: of the wheel, where the SBOM lies beside it and not inside.

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
    """What is there besides the component itself; its source and patches are its pedigree."""
    return [one for one in origin.materials if one.role in ("build requirement", "need")]


def _main(origin: Origin, content: Content, file_name: str, sha256: str) -> Component:
    if origin.python_package:
        name = purl.pypi(origin.distribution, origin.wheel_version, file_name=file_name)
    else:
        name = purl.generic(origin.distribution, origin.wheel_version)
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
    """What the component was made from: the pinned sources, and the patches on top of them."""
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
    """A build requirement, which is not there at run time, or a need, which the wheel is linked with."""
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


def _bundled(content: Content) -> list[Component]:
    """What other tools say is inside the wheel, and the libraries that were copied into it.

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
    """The components of CycloneDX documents, without their main ones; what is none says nothing."""
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
    """The part of a stranger's component that any version of CycloneDX writes alike."""
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
    """What METADATA says: an SPDX expression, else the License field, else the classifiers."""
    raw, _ = parse_email(metadata)
    if expression := raw.get("license_expression"):
        return [{"expression": expression}]
    stated = (raw.get("license") or "").strip()
    if stated and len(stated) <= MOST_LICENCE and "\n" not in stated:
        return [{"license": {"name": stated}}]
    named = [one for one in raw.get("classifiers", ()) if one.startswith(CLASSIFIER)]
    return [{"license": {"name": one.rpartition(" :: ")[2]}} for one in named]
