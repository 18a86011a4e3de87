"""JSON Schemas of the TOML files, for editors; generated from the classes of the model."""

from __future__ import annotations

import json
from types import GenericAlias
from typing import Any

from pydantic import ConfigDict, TypeAdapter

from spark_build.recipes.model import Recipe, Target, Train

KINDS: dict[str, type] = {"recipe": Recipe, "train": Train, "target": Target}


def schema(kind: str) -> dict[str, Any]:
    """The schema of "recipe", "train" or "target" files."""
    listed: Any = GenericAlias(list, (KINDS[kind],))  # the list hands its configuration to what is inside
    whole = TypeAdapter(listed, config=ConfigDict(extra="forbid")).json_schema()
    definitions = whole["$defs"]
    root = definitions.pop(whole["items"]["$ref"].rpartition("/")[2])
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"spark-build {kind}",
        **{key: value for key, value in root.items() if key != "title"},
        "$defs": definitions,
    }


def schema_text(kind: str) -> str:
    """The schema as it is kept in recipes/schema/<kind>.schema.json."""
    return json.dumps(schema(kind), indent=2, sort_keys=True) + "\n"
