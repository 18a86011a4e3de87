"""The store of built wheels and prefixes, and its index."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from packaging.utils import (
    InvalidWheelFilename,
    canonicalize_name,
    canonicalize_version,
    parse_wheel_filename,
)

from spark_build import __version__
from spark_build.errors import Finding, Hint, StoreError, rm
from spark_build.files import (
    LockTimeout,
    copy_or_link,
    copy_tree,
    locked,
    make_folder,
    remove_any,
    remove_tree,
    sha256_of,
    sync_folder,
    sync_tree,
    unreadable,
    write_atomically,
)
from spark_build.recipes.model import Target
from spark_build.text import digest
from spark_build.wheels.model import Origin, StoredWheel, WheelFacts, finding_row

RECORD = "record.json"
LOCK = "lock"
PREFIX = "prefix"
SCHEMA = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class StoreEntry:
    """A committed entry: a wheel, a prefix for others to build against, or both."""

    folder: Path
    name: str
    version: str
    recipe: str  # "" for a public wheel
    content_digest: str
    wheel: StoredWheel | None
    prefix: Path | None
    imported: str = ""  # as in StoredWheel
    judgement: str = ""  # the judgement key by which its build was found good; "": none that counts here


@contextlib.contextmanager
def shared_lock(store: Path, purpose: str, *, looking: bool = False) -> Iterator[None]:
    """Keep the store from being collected.

    What killed processes left goes first, unless we are only `looking`: then no store is made, either.
    """
    if looking and not store.is_dir():
        yield
        return
    if not looking and leftovers(store):
        with exclusive(store, "removing what killed processes left") as busy:
            if not busy:
                remove_leftovers(store)
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(locked(store / LOCK, purpose=purpose, shared=True))
        except OSError as error:  # what cannot be written is not collected from, either
            if error.errno not in (errno.EROFS, errno.EACCES):
                raise
        yield


@contextlib.contextmanager
def exclusive(store: Path, purpose: str, patience: float = 0.0) -> Iterator[str]:
    """Take the store's exclusive lock: yields "", or who uses the store after a timeout."""
    with contextlib.ExitStack() as stack:
        holder = ""
        try:
            stack.enter_context(locked(store / LOCK, purpose=purpose, timeout=patience))
        except LockTimeout as others:
            holder = str(others)
        yield holder


def entry_folder(store: Path, key: str) -> Path:
    """Return the folder of an entry."""
    return store / key[:2] / key


def read(store: Path, key: str) -> StoreEntry | None:
    """Return an entry; None when it was never committed."""
    folder = entry_folder(store, key)
    try:
        return entry_of(folder, record_of(folder))
    except FileNotFoundError:
        return None


def record_of(folder: Path) -> dict[str, Any]:
    """Return an entry's record. Raises FileNotFoundError without one, StoreError when it is unreadable."""
    try:
        with open(f"{folder}/{RECORD}", "rb") as file:  # noqa: PTH123 - for ten thousand at once
            record: dict[str, Any] = json.loads(file.read())
    except FileNotFoundError:
        raise
    except PermissionError as error:
        raise unreadable(error) from error
    except (OSError, ValueError) as error:
        raise _bad_record(folder, f"cannot be read: {getattr(error, 'strerror', None) or error}") from error
    return record


def entry_of(folder: Path, record: Mapping[str, Any]) -> StoreEntry:
    """Return an entry from its record. Raises StoreError when the record lacks something."""
    try:
        wheel = StoredWheel(
            name=record["name"],
            version=record["version"],
            filename=record["filename"],
            sha256=record["sha256"],
            size=record["size"],
            key=folder.name,
            origin=record["origin"],
            requires=tuple(record["requires"]),
            imported=str(record.get("imported", "")),
        )
        return StoreEntry(
            folder=folder,
            name=wheel.name,
            version=wheel.version,
            recipe=record["recipe"],
            content_digest=record["content_digest"],
            wheel=wheel if wheel.filename else None,
            prefix=folder / PREFIX if record.get("prefix") else None,
            imported=wheel.imported,
            judgement=str(record.get("judgement", "")),
        )
    except (KeyError, TypeError) as error:
        raise _bad_record(folder, f"lacks {error}") from error


def _bad_record(folder: Path, why: str) -> StoreError:
    return StoreError(
        f"the record of {folder.name[:12]} {why}",
        where=str(folder / RECORD),
        hint=Hint(rm(folder), ", then build again"),
    )


def commit(
    store: Path,
    *,
    key: str,
    wheel: Path | None,
    described: Mapping[str, Any],
    papers: Mapping[str, bytes],
    prefix: Path | None = None,
    sha256: str = "",
) -> StoreEntry:
    """Put a wheel, a prefix or both, with attestations, into the store; an existing entry is kept.

    `described` has name, version, origin, recipe, requires and content_digest, of a build also its
    judgement key; `sha256` is the wheel's, from a caller who has just computed it. Everything is on disk
    before the entry appears.
    """
    for name in papers:
        if name in ("", ".", "..", RECORD, PREFIX, wheel and wheel.name) or "/" in name:
            raise StoreError(f"{name!r} is no name for a paper")

    def fill(folder: Path) -> dict[str, Any]:
        if wheel is not None:
            copy_or_link(wheel, folder / wheel.name)
        if prefix is not None:
            _take(prefix, folder / PREFIX)
        for name, content in papers.items():
            (folder / name).write_bytes(content)
        return {
            "schema": SCHEMA,
            **described,
            "filename": wheel.name if wheel else "",
            "sha256": sha256 or (sha256_of(wheel) if wheel else ""),
            "size": wheel.stat().st_size if wheel else 0,
            "prefix": prefix is not None,
            "papers": {name: hashlib.sha256(content).hexdigest() for name, content in papers.items()},
            "committed": datetime.now(UTC).isoformat(timespec="seconds"),
        }

    with shared_lock(store, "taking in a wheel"):
        existing = read(store, key)
        if existing is not None:
            with contextlib.suppress(OSError):  # young again: who takes it in is about to need it
                os.utime(existing.folder / RECORD)
            return existing
        return _made(store, key, fill)


def described_as(origin: Origin, facts: WheelFacts, content_digest: str) -> dict[str, Any]:
    """Return what `commit` is told of a wheel that no recipe built."""
    return {
        "name": facts.name,
        "version": facts.version,
        "origin": origin,
        "recipe": "",
        "requires": list(facts.requires),
        "content_digest": content_digest,
    }


def _made(store: Path, key: str, fill: Callable[[Path], dict[str, Any]]) -> StoreEntry:
    """Return a new entry: `fill` writes into its folder and returns its record."""
    temporary = Path(tempfile.mkdtemp(prefix=".tmp-", dir=store))
    try:
        (temporary / RECORD).write_text(_record_text(fill(temporary)))
        _seal(temporary)
        return _appear(temporary, entry_folder(store, key))
    except BaseException:
        remove_tree(temporary)
        raise


def _record_text(record: Mapping[str, Any]) -> str:
    return json.dumps(record, indent=1, sort_keys=True) + "\n"


def again(
    store: Path, entry: StoreEntry, *, key: str, changed: Mapping[str, bytes], kept_as: Mapping[str, str]
) -> StoreEntry:
    """Put an entry under another key too, by hard links where possible.

    changed: papers that are new; kept_as: under what name the old ones of those names stay. An entry that
    has the key already is kept.
    """

    def fill(folder: Path) -> dict[str, Any]:
        record = record_of(entry.folder)
        papers = dict(record["papers"])
        for name in [*papers, *([entry.wheel.filename] if entry.wheel else [])]:
            copy_or_link(entry.folder / name, folder / kept_as.get(name, name))
        if entry.prefix is not None:
            _take(entry.prefix, folder / PREFIX)
        papers |= {new: papers[old] for old, new in kept_as.items()}
        for name, content in changed.items():
            (folder / name).write_bytes(content)
            papers[name] = hashlib.sha256(content).hexdigest()
        return {**record, "papers": papers}

    with shared_lock(store, "taking over an entry"):
        return read(store, key) or _made(store, key, fill)


def _take(prefix: Path, destination: Path) -> None:
    """Copy a prefix, by hard links where possible."""
    copy_tree(prefix, destination, copy=copy_or_link)


def _seal(folder: Path) -> None:
    """Make files read-only and durable, so that nobody changes an entry by accident."""
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            path.chmod(path.stat().st_mode & 0o111 | 0o444)
    sync_tree(folder)
    folder.chmod(0o755)


def _appear(temporary: Path, final: Path) -> StoreEntry:
    make_folder(final.parent)
    try:
        temporary.rename(final)
    except OSError:
        # Somebody committed the same key meanwhile; or rubbish without a record lies there.
        if not (final / RECORD).exists():
            remove_tree(final)
            temporary.rename(final)
        else:
            remove_tree(temporary)
    sync_folder(final.parent)
    # Somebody who made it beside us may not have come to that: the entry would be gone with the folder.
    sync_folder(final.parent.parent)
    return entry_of(final, json.loads((final / RECORD).read_text()))


def leftovers(store: Path) -> list[Path]:
    """Return what has a temporary name, unfinished or left by a killed process."""
    return [*store.glob(".tmp-*"), *store.glob(".index.json.*")]


def remove_leftovers(store: Path) -> None:
    """Remove what killed processes left; needs the exclusive lock."""
    for path in leftovers(store):
        remove_any(path)


INDEX = "index.json"
INDEX_SCHEMA = 2
OF_IMPORTS = ("imported", "signer_key", "build_key")  # "" of all else
KEPT = (
    *("name", "version", "recipe", "filename", "sha256", "size", "origin", "committed", "content_digest"),
    *OF_IMPORTS,
)
SETTLED = 1_000_000_000  # ns; a folder's time that is younger may stand for another change just after it


def index_rows(store: Path) -> Iterator[dict[str, Any]]:
    """Yield `key` and the fields KEPT of every entry, ordered by key. Raises StoreError like `read`."""
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
            write_atomically(store / INDEX, json.dumps({"schema": INDEX_SCHEMA, "folders": now}))
    for one in now.values():
        yield from one["rows"]


def import_key(sha256: str, build_key: str, signer_key: str) -> str:
    """Return the key of a wheel from an export: no build key, so that what is built here never meets it.

    signer_key: "" when nobody signed; each signer's papers stay apart from all others'.
    """
    return digest({"imported": sha256, "build_key": build_key, "signer_key": signer_key})


def imports_of(store: Path, build_key: str) -> list[dict[str, Any]]:
    """Return the rows of imported entries that were built elsewhere under this key, as their exports say."""
    return [row for row in index_rows(store) if row["build_key"] == build_key]


def last_build(store: Path, recipe: str, target: Target) -> Mapping[str, Any] | None:
    """Return the key.json of the newest entry of a recipe for the target's platform and Python.

    Its "key" is that of the entry; "imported" says who signed one that came in an export.
    """
    own = [row for row in index_rows(store) if row["recipe"] == recipe]
    for row in sorted(own, key=lambda row: str(row["committed"]), reverse=True):
        try:
            key = json.loads((entry_folder(store, row["key"]) / "key.json").read_text())
            made_for = (
                key["inputs"]["target"]["platform"],
                key["inputs"]["target"].get("python", target.python),
            )
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            continue  # a damaged one is for `check` to tell
        if made_for == (target.platform, target.python):
            return {**key, "key": row["key"], "imported": row["imported"]}
    return None


def next_serial(store: Path, name: str, version: str) -> int:
    """Return the serial of the next build of this version: newer builds sort above older ones."""
    wanted = (canonicalize_name(name), canonicalize_version(version))
    serials = [0]
    for row in index_rows(store):
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
        found: dict[str, Any] = index["folders"] if index["schema"] == INDEX_SCHEMA else {}
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


def tree_digest(folder: Path) -> str:
    """Return sha256 of every path with content, link target and executable bit, without .git."""
    rows = []
    for path in sorted(folder.rglob("*")):
        relative = path.relative_to(folder)
        if ".git" in relative.parts:
            continue
        name = str(relative)
        if path.is_symlink():
            rows.append([name, "link", str(path.readlink())])
        elif path.is_file():
            executable = "x" if path.stat().st_mode & 0o111 else ""
            rows.append([name, f"file{executable}", sha256_of(path)])
    return digest(rows)


# Judgements: inputs by which entries of the store were found good after their build. An entry is immutable:
# its record names the judgement key of its build, judgement.json in it what that key was made of. When rules
# or recipe ask for something else later, the entry is audited again, and what came of it lies in
# judgements/<kk>/<build key>/<judgement key>.json beside the store, where programs that know nothing of it do
# not look. Such a file speaks of certain bytes: it says nothing of an entry made anew. All of it is derived;
# without it the next build audits again.
JUDGEMENT = "judgement.json"
JUDGEMENTS = "judgements"
JUDGEMENT_SCHEMA = 1


def is_judged(entry: StoreEntry, judgement: str) -> bool:
    """Return whether the entry was found good under this judgement key."""
    if entry.judgement == judgement:
        return True
    later = _judgement_in(_judgements_of(entry) / f"{judgement}.json")
    return later is not None and later["of"] == _bytes_of(entry)


def note_judgement(entry: StoreEntry, inputs: Mapping[str, Any], findings: Sequence[Finding]) -> None:
    """Record that the entry was audited again and found good."""
    key = digest(inputs)
    document = {
        "schema": JUDGEMENT_SCHEMA,
        "key": key,
        "inputs": dict(inputs),
        "of": _bytes_of(entry),
        "findings": [finding_row(one) for one in findings],
        "judged": datetime.now(UTC).isoformat(timespec="seconds"),
        "spark_build": __version__,
    }
    path = _judgements_of(entry) / f"{key}.json"
    write_atomically(path, json.dumps(document, indent=1, sort_keys=True) + "\n")


def prune_judgements(store: Path) -> None:
    """Remove the judgements of entries that are gone; needs the store's exclusive lock."""
    for folder in store.parent.glob(f"{JUDGEMENTS}/*/*"):
        if not (entry_folder(store, folder.name) / RECORD).exists():
            remove_tree(folder)


def is_sound_judgement(path: Path) -> bool:
    """Return whether a judgement is readable and names its own key."""
    document = _judgement_in(path)
    return document is not None and path.name == f"{digest(document['inputs'])}.json"


def _judgements_of(entry: StoreEntry) -> Path:
    return entry.folder.parents[2] / JUDGEMENTS / entry.folder.parent.name / entry.folder.name


def _judgement_in(path: Path) -> dict[str, Any] | None:
    """Return a judgement; None for one that cannot be read."""
    try:
        document: dict[str, Any] = json.loads(path.read_bytes())
        sound = document["schema"] == JUDGEMENT_SCHEMA and document["of"] and document["judged"]
        return document if sound and isinstance(document["inputs"], dict) else None
    except (OSError, ValueError, LookupError, TypeError):
        return None


def _bytes_of(entry: StoreEntry) -> dict[str, str]:
    return {"sha256": entry.wheel.sha256 if entry.wheel else "", "content_digest": entry.content_digest}


def last_judged_inputs(entry: StoreEntry) -> Mapping[str, Any] | None:
    """Return the inputs of the entry's newest judgement."""
    found = map(_judgement_in, _judgements_of(entry).glob("[0-9a-f]*.json"))
    own_bytes = _bytes_of(entry)
    later = [one for one in found if one is not None and one["of"] == own_bytes]
    if later:
        return dict(max(later, key=lambda one: str(one["judged"]))["inputs"])
    try:
        # Without the record's word it is a paper that came with an import.
        own = json.loads((entry.folder / JUDGEMENT).read_bytes()) if entry.judgement else None
        return own["inputs"] if own else None
    except (OSError, ValueError, LookupError, TypeError):
        return None
