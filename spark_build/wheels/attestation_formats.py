"""Where a wheel comes from: what its papers, provenance and SBOM, are made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Role = Literal["source", "patch", "build requirement", "need"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Material:
    """Something that went into a build. digests: algorithm, by in-toto's names -> hex."""

    role: Role
    name: str
    version: str = ""
    uri: str = ""  # a purl, or where it comes from; never a place on this machine
    digests: Mapping[str, str] = field(default_factory=dict)
    provider: str = ""  # of a need: store, public or path


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """What made a wheel, as far as it is the same wherever and whenever that is done."""

    recipe: str
    distribution: str
    version: str  # of the component, as the train pins it
    wheel_version: str
    key: str  # build key
    epoch: int  # SOURCE_DATE_EPOCH; 0: of a vendor's wheel, which has its own times
    builder_version: str
    target: Mapping[str, Any]  # platform, Python, architectures
    parameters: Mapping[str, Any]  # evaluated variables, measured tools
    materials: tuple[Material, ...]
    python_package: bool = True  # else a prefix for others to build against


@dataclass(frozen=True, kw_only=True, slots=True)
class Execution:
    """What is true of one build only."""

    target: str
    train: str
    plan_key: str
    started: str  # ISO 8601, UTC; "" where an older tree does not say
    finished: str
    sandbox: Mapping[str, Any]
    compiler_cache: Mapping[str, Any]
    jobs: int
    system: str
    findings: Mapping[str, int]  # severity -> count
    byproducts: Mapping[str, str]  # paper beside the wheel -> sha256
    repaired: Mapping[str, Any] = field(default_factory=dict)  # what repair did to the wheel


@dataclass(frozen=True, kw_only=True, slots=True)
class Content:
    """What is in a wheel, as its papers tell it."""

    hashes: Mapping[str, str]  # file -> hex sha256, without RECORD
    metadata: bytes = b""
    sboms: tuple[bytes, ...] = ()  # of other tools
