"""What the doctor found out about a machine. None: it cannot be read here, which is never 0 or no."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from spark_build.doctor.basics import Basics


@dataclass(frozen=True, kw_only=True, slots=True)
class Nvcc:
    """A CUDA compiler; `version` as 13.0.88, `rank` its place on the user's PATH."""

    path: str
    version: str
    rank: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Library:
    """What a compiler and a linker would find of one library: paths -> versions (empty: unknown)."""

    headers: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Gpu:
    """A GPU as NVML or nvidia-smi describe it now."""

    name: str
    clock_mhz: int | None = None  # of the SMs
    max_clock_mhz: int | None = None
    watts: float | None = None
    limit_watts: float | None = None
    state: str = ""  # P0
    utilisation: float | None = None  # 0..1
    processes: int | None = None  # that compute
    used_mib: int | None = None
    reasons: tuple[str, ...] = ()  # why the clocks are what they are


@dataclass(frozen=True, kw_only=True, slots=True)
class Driver:
    """The NVIDIA driver: its kernel module, its libraries, the newest CUDA that they know."""

    module: str = ""
    libraries: str = ""
    cuda: str = ""
    problem: str = ""  # what nvidia-smi said instead of an answer


@dataclass(frozen=True, kw_only=True, slots=True)
class Toolkit:
    """The folder of the CUDA toolkit that builds use."""

    folder: str = ""
    missing: tuple[str, ...] = ()  # of what every build needs, below the folder
    foreign: tuple[str, ...] = ()  # libraries of another processor
    newest_gcc: int | None = None  # major version that nvcc takes
    before_clang: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class System:
    """The operating system and what the user's session says."""

    os: Mapping[str, str]  # /etc/os-release
    dgx: Mapping[str, str]  # /etc/dgx-release
    product: str
    kernel: str
    restart_wanted: bool
    swap_total_mib: int
    swap_used_mib: int
    pressure: Mapping[str, float] | None  # share of the last 10 s, in %, that some or all waited for memory
    now: float  # seconds since 1970
    installed: float  # when the newest file of ours was written
    synchronised: bool | None
    locale: str
    locale_usable: bool
    encoding: str
    proxies: Mapping[str, str]  # variables as they are set


@dataclass(frozen=True, kw_only=True, slots=True)
class Tools:
    """Compilers and build tools with their versions; "" for one that is there and does not run."""

    compiler: str  # gcc, clang or empty
    compiler_version: str
    cmake: str | None
    ninja: str | None
    python_headers: bool
    paths: Mapping[str, str] = field(default_factory=dict)  # of cmake and ninja


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """One package index: who, why not, and how far its clock is ahead of ours (seconds)."""

    where: str
    failure: str = ""
    ahead: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Indexes:
    """What pip is configured to ask."""

    asked: tuple[Asked, ...] = ()
    links: bool = False  # folders or pages of its own (find-links)
    problem: str = ""  # the configuration cannot be read
    lacking: int | None = None  # things a build would have to fetch; counted where no index answers


@dataclass(frozen=True, kw_only=True, slots=True)
class Link:
    """A network interface that speaks RDMA (RoCE)."""

    name: str
    device: str  # rocep1s0f0
    up: bool
    mtu: int
    addresses: tuple[str, ...] = ()
    dynamic: tuple[str, ...] = ()  # those of them from DHCP, or made up by the machine itself


@dataclass(frozen=True, kw_only=True, slots=True)
class Cluster:
    """What several machines that compute together need."""

    links: tuple[Link, ...]
    rdma: bool | None  # whether network cards may read the GPU's memory, as the driver answers
    peermem: bool  # its kernel module is loaded


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """All of it."""

    basics: Basics
    system: System
    tools: Tools
    driver: Driver
    gpus: tuple[Gpu, ...]
    nvccs: tuple[Nvcc, ...]  # in the order in which builds, then the user's shell would find them
    toolkit: Toolkit
    libraries: Mapping[str, Library]  # cuDNN, cuBLAS, cuFile, NCCL
    gds: bool  # nvidia-fs, the kernel module of GPUDirect Storage, is loaded
    compat_allowed: bool | None  # by cufile.json; None without one
    indexes: Indexes
    cluster: Cluster | None = None
