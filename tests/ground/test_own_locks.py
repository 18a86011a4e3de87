"""Our own dependencies are locked: by each file's sha256, in versions that pyproject.toml allows."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
LOCKS = ROOT / "tools" / "locks"
ENTRY = re.compile(r"^(\S+)==(\S+?)(?: ; (.+?))?((?: \\\n    --hash=sha256:[0-9a-f]{64})+)$", re.MULTILINE)


def entries(extras: str) -> set[tuple[str, str]]:
    """Name and version of all in a lock, whose lines are all understood."""
    text = (LOCKS / f"{extras}.txt").read_text()
    assert ENTRY.sub("", text).strip() == ""
    return {(found[1], found[2]) for found in ENTRY.finditer(text)}


def wanted(extras: str) -> list[Requirement]:
    """What pyproject.toml asks for, and the build backend."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    optional = project["project"]["optional-dependencies"]
    found = [*project["project"]["dependencies"], *project["build-system"]["requires"], "editables"]
    names = extras.split(",")
    for name in names:
        for text in optional[name]:
            if text.startswith("spark-build["):
                names += text.partition("[")[2].rstrip("]").split(",")
            else:
                found.append(text)
    return [*map(Requirement, found)]


@pytest.mark.parametrize("extras", ["verify", "dev", "dev,docs"])
def test_all_that_is_installed_is_locked(extras: str) -> None:
    locked = entries(extras)
    for one in wanted(extras):
        versions = [version for name, version in locked if name == canonicalize_name(one.name)]
        assert versions, one
        assert all(map(one.specifier.contains, versions)), one


def test_the_tests_run_with_what_users_get() -> None:
    assert entries("verify") <= entries("dev") <= entries("dev,docs")


def test_the_licences_of_all_are_told() -> None:
    rows = re.findall(r"(?m)^\| (\S+) \| (.+) \|$", (ROOT / "docs/dependencies.md").read_text())
    licences = dict(rows[1:])
    assert licences.keys() == {name for name, _ in entries("verify")}
    assert not {"", "not installed here", "see its files"} & {*licences.values()}
