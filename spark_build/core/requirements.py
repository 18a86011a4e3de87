"""Version specifiers against versions, pre-releases and local labels included."""

from __future__ import annotations

from packaging.specifiers import SpecifierSet
from packaging.version import Version


def allows(specifiers: str, version: Version) -> bool:
    """Whether ">=2.9,<2.15" takes a version; 2.9.1+cu130.spark1 counts as 2.9.1."""
    return SpecifierSet(specifiers).contains(Version(version.public), prereleases=True)
