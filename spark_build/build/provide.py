"""Needs as they are on this machine: a store entry, a public wheel to come, a path."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from spark_build.errors import StageError, UsageError
from spark_build.files import sha256_of
from spark_build.hashing import digest
from spark_build.process import capture
from spark_build.recipes.model import Provision
from spark_build.wheelhouse import store as stores

LOOK = """
import importlib.metadata as m, json, sys, sysconfig
try: dist = m.distribution(sys.argv[1])
except m.PackageNotFoundError: print("null"); raise SystemExit
record = next((str(f.locate()) for f in dist.files or [] if f.name == "RECORD"), "")
root = str(dist.locate_file(""))
print(json.dumps({"version": dist.version, "record": record, "site": root}))
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Provided:
    """A need that was found. identity: what of it goes into the build key."""

    provision: Provision
    identity: str
    wheel: Path | None = None  # to be installed into the build environment
    prefix: Path | None = None  # what {need:NAME} stands for
    site: Path | None = None  # site-packages of an existing environment


def locate(provision: Provision, store: Path, keys: Mapping[str, str]) -> Provided:
    """Find a need; `keys` has the build keys of those from the store."""
    if provision.provider == "public":
        return Provided(provision=provision, identity=f"public {provision.version}")
    if provision.provider == "path":
        return _at_path(provision)
    entry = stores.read(store, keys[provision.need])
    if entry is None:
        raise StageError(f"{provision.need} is not in the store", hint=f"spark-build build {provision.need}")
    identity = entry.content_digest if provision.coupling == "content" else f"store {entry.version}"
    wheel = entry.folder / entry.wheel.filename if entry.wheel else None
    return Provided(provision=provision, identity=identity, wheel=wheel, prefix=entry.prefix)


def _at_path(provision: Provision) -> Provided:
    """An environment with the distribution in it, or a prefix."""
    path = Path(provision.path).expanduser().absolute()
    if not path.is_dir():
        raise UsageError(f"--provide {provision.need}={provision.path}: there is no such folder")
    python = path / "bin" / "python"
    if not python.exists():
        return Provided(provision=provision, identity=_fingerprint(path), prefix=path)
    found = json.loads(capture([str(python), "-c", LOOK, provision.distribution]) or "null")
    if found is None:
        raise UsageError(
            f"--provide {provision.need}={provision.path}: there is no {provision.distribution} in it",
            hint="give an environment that has it, or an install prefix",
        )
    record = sha256_of(Path(found["record"])) if found["record"] else ""
    identity = found["version"] if provision.coupling == "version" else f"{found['version']} {record}"
    return Provided(provision=provision, identity=identity, prefix=path, site=Path(found["site"]))


def _fingerprint(path: Path) -> str:
    """Names, sizes and times of a prefix: reading gigabytes for every plan would be too much."""
    rows = []
    for file in sorted(path.rglob("*")):
        status = file.lstat()
        rows.append([str(file.relative_to(path)), status.st_size, status.st_mtime_ns])
    return f"path {digest(rows)}"
