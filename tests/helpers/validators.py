"""What the publishers of the formats say of our papers: in-toto's and SLSA's protobuf schemas, CycloneDX's JSON."""

from __future__ import annotations

import functools
import json
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from google.protobuf.json_format import ParseDict
from in_toto_attestation.predicates.provenance.v1.provenance_pb2 import Provenance
from in_toto_attestation.v1.resource_descriptor import ResourceDescriptor
from in_toto_attestation.v1.statement import Statement
from in_toto_attestation.v1.statement_pb2 import Statement as StatementMessage
from packageurl import PackageURL

if TYPE_CHECKING:
    from cyclonedx.validation.json import JsonStrictValidator

HEX = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


def check_provenance(text: str | bytes) -> Any:
    """The document; fails unless it is an in-toto Statement v1 with a SLSA provenance v1 predicate.

    ParseDict refuses fields that are not in the published schema. What the specification requires in
    words (https://slsa.dev/spec/v1.0/provenance, in-toto's resource_descriptor.md) is checked by hand.
    """
    document = json.loads(text)
    statement = Statement.copy_from_pb(ParseDict(document, StatementMessage()))
    statement.validate()
    assert document["predicateType"] == "https://slsa.dev/provenance/v1"
    message = ParseDict(document["predicate"], Provenance())
    assert message.build_definition.external_parameters.fields
    for uri in (message.build_definition.build_type, message.run_details.builder.id):
        assert_uri(uri)
    dependencies = message.build_definition.resolved_dependencies
    for one in (*statement.pb.subject, *dependencies, *message.run_details.byproducts):
        ResourceDescriptor.copy_from_pb(one).validate()
        assert one.uri or one.digest or one.content
        assert all(HEX.fullmatch(value) for value in one.digest.values())
        if one.uri:
            assert_uri(one.uri)
    return document


def assert_uri(text: str) -> None:
    """RFC 3986: a scheme, and none but its characters."""
    assert urlsplit(text).scheme
    assert re.fullmatch(r"[A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=%-]+", text), text
    if text.startswith("pkg:"):
        assert PackageURL.from_string(text).to_string() == text


@functools.cache
def _validator() -> JsonStrictValidator:
    # Importing it takes three seconds, and every worker imports every test.
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    return JsonStrictValidator(SchemaVersion.V1_6)


def check_sbom(text: str | bytes) -> Any:
    """The document; fails unless it is CycloneDX 1.6 with all components in the graph, as PEP 770 asks."""
    plain = text.decode() if isinstance(text, bytes) else text
    problem = _validator().validate_str(plain)
    assert problem is None, problem
    document = json.loads(plain)
    graph = {one["ref"]: one.get("dependsOn", []) for one in document["dependencies"]}
    main = document["metadata"]["component"]
    assert_uri(main["purl"])
    reachable = {main["bom-ref"], *graph[main["bom-ref"]]}
    for component in document["components"]:
        assert component["bom-ref"] in reachable
        if "purl" in component:
            assert_uri(component["purl"])
    return document
