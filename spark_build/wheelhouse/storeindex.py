"""What the records of the store say, without reading each of them every time.

store/index.json is derived and may be deleted: it holds the rows of every folder store/<kk>/ with
that folder's time. A folder that changed since is read again, so nobody has to keep it up to date.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from spark_build.files import write_atomically
from spark_build.recipes.model import Target
from spark_build.wheelhouse.store import entry_folder, entry_of, record_of

INDEX = "index.json"
SCHEMA = 1
KEPT = ("name", "version", "recipe", "filename", "sha256", "size", "origin", "committed", "content_digest")
SETTLED = 1_000_000_000  # ns; a folder's time that is younger may stand for another change just after it


def rows(store: Path) -> Iterator[dict[str, Any]]:
    """`key` and the fields KEPT of every committed entry, in order of key. StoreError as `store.read`."""
    known = _known(store)
    now: dict[str, Any] = {}
    for folder in sorted(store.glob("[0-9a-f][0-9a-f]")):
        changed = folder.stat().st_mtime_ns
        before = known.get(folder.name)
        if before is None or before["changed"] != changed:
            settled = time.time_ns() - changed > SETTLED
            before = {"changed": changed if settled else 0, "rows": _read(folder)}
        now[folder.name] = before
    if now != known:
        with contextlib.suppress(OSError):  # a full or read-only disk only makes the next look slower
            write_atomically(store / INDEX, json.dumps({"schema": SCHEMA, "folders": now}))
    for one in now.values():
        yield from one["rows"]


def last_build(store: Path, recipe: str, target: Target) -> Mapping[str, Any] | None:
    """The key.json of the newest entry of a recipe for the target's platform and Python."""
    own = [row for row in rows(store) if row["recipe"] == recipe]
    for row in sorted(own, key=lambda row: str(row["committed"]), reverse=True):
        folder = entry_folder(store, row["key"])
        key: dict[str, Any] = json.loads((folder / "key.json").read_text())
        made_for = key["inputs"]["target"]
        if made_for["platform"] == target.platform and made_for.get("python", target.python) == target.python:
            return key
    return None


def next_serial(store: Path, name: str, version: str) -> int:
    """The serial of the next build of this version: a newer build sorts above all older ones."""
    from packaging.utils import (
        InvalidWheelFilename,
        canonicalize_name,
        canonicalize_version,
        parse_wheel_filename,
    )

    wanted = (canonicalize_name(name), canonicalize_version(version))
    serials = [0]
    for row in rows(store):
        if canonicalize_name(row["name"]) != wanted[0]:
            continue
        with contextlib.suppress(InvalidWheelFilename):
            _, release, build, _ = parse_wheel_filename(row["filename"])
            if build and canonicalize_version(release) == wanted[1]:
                serials.append(build[0])
    return max(serials) + 1


def _known(store: Path) -> dict[str, Any]:
    try:
        index = json.loads((store / INDEX).read_bytes())
        found: dict[str, Any] = index["folders"] if index["schema"] == SCHEMA else {}
    except (OSError, ValueError, LookupError, TypeError):
        return {}
    return found


def _read(folder: Path) -> list[dict[str, Any]]:
    found = []
    for key in sorted(os.listdir(folder)):  # noqa: PTH208 - names are enough
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            record = record_of(folder / key)
            entry_of(folder / key, record)  # says what is wrong with it
            found.append({"key": key, **{name: record.get(name, "") for name in KEPT}})
    return found
