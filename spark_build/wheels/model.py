"""What is known about a wheel and about what the wheelhouse holds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from spark_build.wheels.contents import HostCode, Payload
from spark_build.wheels.device import DeviceCode

Severity = Literal["error", "warning", "info"]
Origin = Literal["built", "public", "foreign"]  # foreign: imported, and not built here


@dataclass(frozen=True, kw_only=True, slots=True)
class Library:
    """A shared library inside a wheel. sass/ptx: what the CUDA runtime loads, entries by architecture."""

    path: str
    machine: str  # x86_64, aarch64, ...
    needed: tuple[str, ...]
    sass: dict[str, int] = field(default_factory=dict)
    ptx: dict[str, int] = field(default_factory=dict)
    host: HostCode = field(default_factory=HostCode)
    sha256: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class WheelFacts:
    """Everything the audit rules look at; filled by `wheels/reader.py`."""

    filename: str
    name: str  # normalised, from METADATA
    version: str
    build: str  # build tag of the file name, "" without one
    filename_tags: tuple[str, ...]  # expanded: "cp311-cp311-linux_x86_64"
    wheel_tags: tuple[str, ...]  # from WHEEL, expanded
    wheel_build: str
    root_is_purelib: bool
    requires: tuple[str, ...]
    record_problems: tuple[str, ...]
    libraries: tuple[Library, ...]
    size: int  # bytes
    payload: Payload = field(default_factory=Payload)
    device_code: tuple[DeviceCode, ...] = ()  # of files that hold any, or are damaged where it belongs


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One result of an audit rule."""

    rule: str
    severity: Severity
    message: str


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredWheel:
    """A wheel in a generation. `key`: build key, or the sha256 of a wheel that was not built here."""

    name: str
    version: str
    filename: str
    sha256: str
    size: int
    key: str
    origin: Origin
    requires: tuple[str, ...] = ()
