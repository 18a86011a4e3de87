"""Judgements: inputs by which entries of the store were found good after their build.

An entry is immutable: its record names the judgement key of its build, judgement.json in it what that key
was made of. When rules or recipe ask for something else later, the entry is audited again, and what came
of it lies in judgements/<kk>/<build key>/<judgement key>.json beside the store, where programs that know
nothing of it do not look. Such a file speaks of certain bytes: it says nothing of an entry made anew.
All of it is derived; without it the next build audits again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from spark_build import __version__
from spark_build.files import remove_tree, write_atomically
from spark_build.text import digest
from spark_build.wheelhouse.store import RECORD, StoreEntry, entry_folder
from spark_build.wheels.model import Finding

PAPER = "judgement.json"
FOLDER = "judgements"
SCHEMA = 1


def holds(entry: StoreEntry, judgement: str) -> bool:
    """Return whether the entry was found good under this judgement key."""
    if entry.judgement == judgement:
        return True
    try:
        return _is_of(entry, _read(_folder(_store(entry), entry.folder.name) / f"{judgement}.json"))
    except (OSError, ValueError, LookupError, TypeError):
        return False


def note(entry: StoreEntry, inputs: Mapping[str, Any], findings: Sequence[Finding]) -> None:
    """Record that the entry was audited again and found good."""
    key = digest(inputs)
    document = {
        "schema": SCHEMA,
        "key": key,
        "inputs": dict(inputs),
        "of": _bytes_of(entry),
        "findings": [asdict(one) for one in findings],
        "judged": datetime.now(UTC).isoformat(timespec="seconds"),
        "spark_build": __version__,
    }
    path = _folder(_store(entry), entry.folder.name) / f"{key}.json"
    write_atomically(path, json.dumps(document, indent=1, sort_keys=True) + "\n")


def prune(store: Path) -> None:
    """Remove the judgements of entries that are gone; needs the store's exclusive lock."""
    for folder in store.parent.glob(f"{FOLDER}/*/*"):
        if not (entry_folder(store, folder.name) / RECORD).exists():
            remove_tree(folder)


def is_sound(path: Path) -> bool:
    """Return whether a judgement is readable and names its own key."""
    try:
        document = _read(path)
        return bool(path.name == f"{digest(document['inputs'])}.json" and document["of"])
    except (OSError, ValueError, LookupError, TypeError):
        return False


def _store(entry: StoreEntry) -> Path:
    return entry.folder.parent.parent


def _folder(store: Path, key: str) -> Path:
    return store.parent / FOLDER / key[:2] / key


def _read(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(path.read_bytes())
    if document["schema"] != SCHEMA:
        raise ValueError(f"schema {document['schema']}")
    return document


def _bytes_of(entry: StoreEntry) -> dict[str, str]:
    return {"sha256": entry.wheel.sha256 if entry.wheel else "", "content_digest": entry.content_digest}


def _is_of(entry: StoreEntry, document: Mapping[str, Any]) -> bool:
    return bool(document["of"] == _bytes_of(entry))


def last_inputs(entry: StoreEntry) -> Mapping[str, Any] | None:
    """Return the inputs of the entry's newest judgement."""
    found: list[tuple[str, Mapping[str, Any]]] = []
    for path in _folder(_store(entry), entry.folder.name).glob("[0-9a-f]*.json"):
        try:
            document = _read(path)
            if _is_of(entry, document):
                found.append((document["judged"], document["inputs"]))
        except (OSError, ValueError, LookupError, TypeError):
            continue
    if found:
        return max(found, key=lambda one: one[0])[1]
    try:
        # Without the record's word it is a paper that came with an import.
        own = json.loads((entry.folder / PAPER).read_bytes()) if entry.judgement else None
        return own["inputs"] if own else None
    except (OSError, ValueError, LookupError, TypeError):
        return None
