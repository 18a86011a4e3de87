"""Entries whose key an older spark-build made: found by what they were made from, taken over under today's.

The wheel, its papers and its prefix are linked, not moved: generations and older programs that know the
old key go on with it until it is collected.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spark_build.build.keys import UNKNOWING, brought_up
from spark_build.hashing import digest
from spark_build.wheelhouse import store as stores
from spark_build.wheelhouse.store import Entry

KEY = "key.json"
OLD_KEY = f"key.format-{UNKNOWING}.json"  # key.json of the older program, which the provenance speaks of


def find(store: Path, recipe: str, inputs: Mapping[str, Any], *, with_prefix: bool) -> Entry | None:
    """The newest entry of an older program that was made from just these inputs."""
    key, network = digest(inputs), bool(inputs["recipe"]["network"])
    rows = [row for row in stores.rows(store) if row["recipe"] == recipe and row["origin"] == "built"]
    for row in sorted(rows, key=lambda row: str(row["committed"]), reverse=True):
        folder = stores.entry_folder(store, row["key"])
        try:
            recorded = json.loads((folder / KEY).read_bytes())["inputs"]
            if recorded["format"] != UNKNOWING or network not in _leaves(folder):
                continue
            today = brought_up(recorded, network=network)
        except (OSError, ValueError, LookupError, TypeError):
            continue  # a damaged one is for `check` to tell
        if today is not None and digest(today) == key:
            entry = stores.read(store, row["key"])
            if entry is not None and (entry.prefix is not None or not with_prefix):
                return entry
    return None


def take_over(store: Path, old: Entry, plan_key: str, inputs: Mapping[str, Any]) -> Entry:
    """Link an older entry under the key of these inputs; whole or not at all."""
    key = digest(inputs)
    document = {"key": key, "plan_key": plan_key, "inputs": inputs, "taken_over_from": old.folder.name}
    raw = (json.dumps(document, indent=1, sort_keys=True) + "\n").encode()
    return stores.again(store, old, key=key, changed={KEY: raw}, kept_as={KEY: OLD_KEY})


def recorded_inputs(store: Path, document: Mapping[str, Any]) -> Mapping[str, Any]:
    """The inputs in a key.json, as they are written today where that is known."""
    inputs: Mapping[str, Any] = document["inputs"]
    try:
        leaves = _leaves(stores.entry_folder(store, document["key"]))
        return brought_up(inputs, network=min(leaves)) or inputs
    except (OSError, ValueError, LookupError, TypeError):
        return inputs


def _leaves(folder: Path) -> frozenset[bool]:
    """Whether a build had leave to use the network, by its provenance; both where that decided nothing."""
    provenance = json.loads((folder / "provenance.json").read_bytes())
    sandbox = provenance["predicate"]["buildDefinition"]["internalParameters"]["sandbox"]
    if sandbox["kind"] == "unknown":
        raise ValueError("the provenance does not say in what sandbox")
    if sandbox["kind"] == "none":  # any build could
        return frozenset({False, True})
    return frozenset({bool(sandbox["network"])})
