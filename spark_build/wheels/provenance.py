"""Provenance as an in-toto Statement v1 with a SLSA provenance v1 predicate.

https://slsa.dev/spec/v1.0/provenance says what the fields mean, docs/provenance.md what we put there. The
copy inside a wheel has only what is the same wherever the wheel is built: it is part of the bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from spark_build.wheels.attestation_formats import Execution, Material, Origin

STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "https://slsa.dev/provenance/v1"
BUILD_TYPE = "urn:spark-build:recipe:v1"
BUILDER = "urn:spark-build:builder:v1"
# Of what is no single file: the content digest of a wheel or a prefix (docs/architecture.md, Keys).
CONTENT = "sparkBuildContent"
MEDIA_TYPES = {".json": "application/json", ".log": "text/plain"}

Subject = tuple[str, Mapping[str, str]]  # name, digests


def statement(
    origin: Origin, subjects: Sequence[Subject], execution: Execution | None = None
) -> dict[str, Any]:
    """The provenance of `subjects`; without `execution` it does not depend on who built them and when."""
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
    """A ResourceDescriptor; empty fields mean nothing there and are left out."""
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
