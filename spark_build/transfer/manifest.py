"""What an export says of itself, read with suspicion."""

from __future__ import annotations

import json
import re
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.utils import parse_wheel_filename
from packaging.version import Version

from spark_build.errors import StoreError
from spark_build.wheels.model import StoredWheel

NAME = r"[A-Za-z0-9_][A-Za-z0-9_.+!-]{0,254}"
PLACE = re.compile(rf"{NAME}|store/[0-9a-f]{{64}}/{NAME}|spark-build/{NAME}\.whl")
# What reading an archive or a paper that somebody made up may raise.
DAMAGE = (
    tarfile.TarError,
    EOFError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    OverflowError,
    RecursionError,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """`hashes`: sha256 of every other file, wheels included, by its name below the top folder."""

    view: str
    closure_key: str
    wheels: tuple[StoredWheel, ...]
    hashes: Mapping[str, str]

    def papers(self, key: str) -> list[str]:
        """Names of the papers of a wheel."""
        start = f"store/{key}/"
        return [name.removeprefix(start) for name in self.hashes if name.startswith(start)]


def refused(file: Path, why: str, *, hint: str = "") -> StoreError:
    """The one error for an archive or a folder that is not taken in."""
    return StoreError(
        f"{file} is refused: {why}", hint=hint or "export it again, and compare the sha256 of the copy"
    )


def parse(data: bytes) -> Manifest:
    """Read a manifest and look at all of it; DAMAGE when it is none of ours."""
    raw = json.loads(data)
    wheels = tuple(StoredWheel(**{**row, "requires": tuple(row["requires"])}) for row in raw["wheels"])
    for wheel in wheels:
        name, version, _, _ = parse_wheel_filename(wheel.filename)
        if (name, version) != (wheel.name, Version(wheel.version)):
            raise ValueError(f"{wheel.filename} is not {wheel.name} {wheel.version}")
        if wheel.origin not in ("built", "public", "foreign"):
            raise ValueError(f"{wheel.filename} is of origin {wheel.origin!r}")
    names = {wheel.key: wheel.filename for wheel in wheels}
    if len(names) != len(wheels) or len(set(names.values())) != len(wheels):
        raise ValueError("a wheel is listed twice")
    if not re.fullmatch(NAME, raw["view"]):
        raise ValueError(f"its view is called {raw['view']!r}")
    papers = {(key, name): sha256 for key, own in raw["papers"].items() for name, sha256 in own.items()}
    if any(names.get(key, name) == name for key, name in papers):
        raise ValueError("it lists papers of no wheel, or one with a wheel's name")
    files = dict(raw["files"])
    if any(name.startswith("store/") or name in names.values() for name in files):
        raise ValueError("it lists a wheel or a paper as something else")
    hashes = {wheel.filename: wheel.sha256 for wheel in wheels} | files
    hashes |= {f"store/{key}/{name}": sha256 for (key, name), sha256 in papers.items()}
    return Manifest(view=raw["view"], closure_key=str(raw["closure_key"]), wheels=wheels, hashes=hashes)


@dataclass(frozen=True, kw_only=True, slots=True)
class Sound:
    """A wheel that lies proven in the scratch folder, and what its entry in the store will say."""

    wheel: StoredWheel
    described: Mapping[str, Any]
    papers: tuple[str, ...] = ()  # names below store/<key>/
