"""Facts about wheels: files, libraries, device code, findings."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Literal

from spark_build.errors import Finding
from spark_build.recipes.model import Target
from spark_build.text import printable

GLIBC_MINOR = 39  # Ubuntu 24.04's, which DGX OS is made of


def python_version(target: Target) -> str:
    """Return 3.12 for cp312."""
    digits = target.python.removeprefix("cp").removesuffix("t")
    return f"{digits[0]}.{digits[1:]}"


def machine_of(target: Target) -> str:
    """Return aarch64 for linux-aarch64."""
    return target.platform.partition("-")[2]


def platforms(target: Target) -> list[str]:
    """Return the platform tags of wheels that run on a platform, best first."""
    machine = machine_of(target)
    # The oldest that manylinux knows; NVIDIA's libraries still say it.
    oldest, names = (5, (2014, 2010, 1)) if machine == "x86_64" else (17, (2014,))
    newer = [f"manylinux_2_{minor}_{machine}" for minor in range(GLIBC_MINOR, oldest - 1, -1)]
    return [*newer, *(f"manylinux{name}_{machine}" for name in names), f"linux_{machine}"]


def markers(target: Target) -> dict[str, str]:
    """Return the environment markers (PEP 508) of CPython on a platform.

    The patch release is not known beforehand: the first one, as uv has it. Kernel and its build are unknown.
    """
    version = python_version(target)
    return {
        "implementation_name": "cpython",
        "implementation_version": f"{version}.0",
        "os_name": "posix",
        "platform_machine": machine_of(target),
        "platform_python_implementation": "CPython",
        "platform_release": "",
        "platform_system": "Linux",
        "platform_version": "",
        "python_full_version": f"{version}.0",
        "python_version": version,
        "sys_platform": "linux",
    }


@dataclass(frozen=True, kw_only=True, slots=True)
class HostCode:
    """Facts of an ELF file for the loader, and traces of its build machine."""

    soname: str = ""
    rpaths: tuple[str, ...] = ()  # RPATH and RUNPATH, one folder each, as written
    versions: tuple[tuple[str, str], ...] = ()  # (soname, symbol version): ("libc.so.6", "GLIBC_2.34")
    writable_code: bool = False  # a segment that is writable and executable
    executable_stack: bool = False
    text_relocations: bool = False
    python_symbols: tuple[str, ...] = ()  # Py*, _Py*, from elsewhere; read where a tag says abi3
    leaks: tuple[str, ...] = ()  # paths in its bytes that look like the build machine's


@dataclass(frozen=True, kw_only=True, slots=True)
class FileSize:
    """A file of the wheel: unpacked and compressed size in bytes."""

    path: str
    size: int
    packed: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Payload:
    """All files of a wheel; of each kind of oddity, the first few."""

    dist_info: str = ""  # name of the folder
    files: int = 0
    unpacked: int = 0  # bytes
    packed: int = 0
    largest: tuple[FileSize, ...] = ()
    collisions: tuple[tuple[str, ...], ...] = ()  # names that one folder cannot hold everywhere
    special: tuple[tuple[str, str], ...] = ()  # (name, what it is instead of a file)
    writable: tuple[str, ...] = ()  # by everybody
    privileged: tuple[str, ...] = ()  # set-user-ID, set-group-ID
    tops: tuple[str, ...] = ()  # what lands directly in site-packages
    schemes: tuple[str, ...] = ()  # files below .data that no installer knows a place for
    startup: tuple[str, ...] = ()  # what every start of Python runs: .pth files with code, sitecustomize
    intrusive: tuple[tuple[str, str], ...] = ()  # (name, why): would harm the environment or cannot be there


# foreign: a loose wheel of another maker; imported: built elsewhere by spark-build, as an export says
Origin = Literal["built", "public", "foreign", "imported"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Library:
    """A shared library in a wheel; `sass`, `ptx`: entries that the CUDA runtime loads, by architecture."""

    path: str
    machine: str  # x86_64, aarch64, ...
    needed: tuple[str, ...]
    sass: dict[str, int] = field(default_factory=dict)
    ptx: dict[str, int] = field(default_factory=dict)
    host: HostCode = field(default_factory=HostCode)
    sha256: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class WheelFacts:
    """Facts that the audit rules use; filled by `wheels/reader.py`."""

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

    @property
    def unsafe(self) -> tuple[str, ...]:
        """Reasons against installing it at all: a false RECORD, or harm to the environment."""
        return (*self.record_problems, *(printable(f"{name} {why}") for name, why in self.payload.intrusive))


def finding_row(finding: Finding) -> dict[str, str]:
    """Return a finding of the audit as documents have it."""
    return {"rule": finding.rule, "severity": finding.severity, "message": finding.message}


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredWheel:
    """A wheel in a generation.

    key: build key, the sha256 of a public or foreign wheel, or the key of an import (`import_key`);
    imported: "" or who signed the export that it came in, "unsigned" for nobody.
    """

    name: str
    version: str
    filename: str
    sha256: str
    size: int
    key: str
    origin: Origin
    requires: tuple[str, ...] = ()
    imported: str = ""

    @property
    def shown_origin(self) -> str:
        """Return it as people are told it: "built", "imported (alice)", "public, imported (unsigned)"."""
        word = "third-party" if self.origin == "foreign" else self.origin
        if not self.imported:
            return word
        return f"{'' if word == 'imported' else f'{word}, '}imported ({self.imported})"

    def as_row(self) -> dict[str, Any]:
        """Return the row of a manifest, without `imported` where it is "": older programs do not know it."""
        return {
            name: value
            for name in (one.name for one in fields(self))
            if (value := getattr(self, name)) or name != "imported"
        }


FileKind = Literal["elf", "cubin", "fatbin", "other"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Code:
    """Entries by architecture: {"sm_121a": 20}, {"compute_80": 1}, {"lto_90a": 2}, {"kind16_120": 1}."""

    containers: int = 0
    sass: dict[str, int] = field(default_factory=dict)
    ptx: dict[str, int] = field(default_factory=dict)
    lto: dict[str, int] = field(default_factory=dict)  # for link-time optimisation: does not run
    other: dict[str, int] = field(default_factory=dict)  # of kinds that are not known here


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceCode:
    """Device code of one library, object, cubin or fat binary.

    `problems`: containers or sections that are not what their headers say, one line each.
    """

    path: str
    kind: FileKind
    loaded: Code  # .nv_fatbin, or the file itself: what the CUDA runtime registers
    relocatable: Code  # __nv_relfatbin: input of nvlink, cannot be launched
    elsewhere: Code  # in other sections (.cask_resource) or none: cuobjdump does not see it, the library may
    problems: tuple[str, ...] = ()

    @property
    def sass(self) -> dict[str, int]:
        """Machine code that the CUDA runtime registers, by architecture."""
        return self.loaded.sass

    @property
    def ptx(self) -> dict[str, int]:
        """PTX that the CUDA runtime registers and compiles at the first launch."""
        return self.loaded.ptx

    @property
    def empty(self) -> bool:
        """True when there is neither device code nor a problem."""
        return not self.problems and not any(
            code.containers or code.sass for code in (self.loaded, self.relocatable, self.elsewhere)
        )


UNREADABLE = "unreadable"  # machine of a file that begins like ELF and is none


# Code for the GPU or the kernel, loaded by name from data files: foreign by nature.
DEVICE_MACHINES = frozenset({"cuda", "amdgpu", "bpf"})
