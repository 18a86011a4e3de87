from __future__ import annotations

import json
from pathlib import Path

import pytest

from spark_build.recipes.loader import KINDS, json_schema, schema_text

FOLDER = Path(__file__).resolve().parent.parent.parent / "recipes" / "schema"


@pytest.mark.parametrize("kind", KINDS)
def test_the_committed_schemas_are_in_step(kind: str) -> None:
    """When this fails: spark-build recipes schema KIND > recipes/schema/KIND.schema.json."""
    assert (FOLDER / f"{kind}.schema.json").read_text() == schema_text(kind)


@pytest.mark.parametrize("kind", KINDS)
def test_unknown_keys_are_refused_everywhere(kind: str) -> None:
    found = json_schema(kind)
    for table in (found, *found.get("$defs", {}).values()):
        assert table["additionalProperties"] is False
    assert json.loads(schema_text(kind)) == found


def test_references_lead_somewhere() -> None:
    for kind in KINDS:
        text = schema_text(kind)
        for name in {part.partition('"')[0] for part in text.split('"#/$defs/')[1:]}:
            assert name in json_schema(kind)["$defs"], (kind, name)


def test_what_a_recipe_must_have() -> None:
    assert set(json_schema("recipe")["required"]) == {"name", "distribution", "summary", "kind", "build"}
    assert json_schema("recipe")["properties"]["kind"]["enum"] == [
        "pep517",
        "cmake",
        "scons",
        "repack",
        "assemble",
    ]
