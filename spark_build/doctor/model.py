"""Facts about a machine, and what a plan needs from it."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from spark_build.errors import Severity
from spark_build.machine import Limits, Machine
from spark_build.recipes.model import Plan, Step


@dataclass(frozen=True, kw_only=True, slots=True)
class Nvcc:
    """A CUDA compiler; `version` as 13.0.88, `rank` its place on the user's PATH."""

    path: str
    version: str
    rank: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class HostLibrary:
    """A library as a compiler and a linker find it: paths -> versions ("" where unknown)."""

    headers: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuFacts:
    """A GPU as nvidia-smi describes it now."""

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
class SystemFacts:
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
class ToolFacts:
    """Compilers and build tools with their versions; "" for one that is there and does not run."""

    compiler: str  # gcc, clang or empty
    compiler_version: str
    cmake: str | None
    ninja: str | None
    python_headers: bool
    paths: Mapping[str, str] = field(default_factory=dict)  # of cmake and ninja


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexAnswer:
    """A package index's answer: its address, the reason of a failure, its clock's lead in seconds."""

    where: str
    failure: str = ""
    ahead: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexFacts:
    """Package indexes that pip is configured for, with their answers."""

    asked: tuple[IndexAnswer, ...] = ()
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
    """Facts about the links between machines that compute together."""

    links: tuple[Link, ...]
    rdma: bool | None  # whether network cards may read the GPU's memory, as the driver answers
    peermem: bool  # its kernel module is loaded


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """All facts about a machine."""

    basics: Basics
    system: SystemFacts
    tools: ToolFacts
    driver: Driver
    gpus: tuple[GpuFacts, ...]
    nvccs: tuple[Nvcc, ...]  # in the order in which builds, then the user's shell would find them
    toolkit: Toolkit
    libraries: Mapping[str, HostLibrary]  # cuDNN, cuBLAS, cuFile, NCCL
    gds: bool  # nvidia-fs, the kernel module of GPUDirect Storage, is loaded
    compat_allowed: bool | None  # by cufile.json; None without one
    indexes: IndexFacts
    installable: tuple[str, ...] = ()  # of the packages of the CUDA libraries, those that apt knows
    cluster: Cluster | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Basics:
    """Facts that decide whether a build may start."""

    machine: Machine
    python: str  # 3.12.3
    folders: Mapping[str, bool]  # where we keep our files -> whether we may write there
    disk_free_mib: int
    disk_place: str
    nvcc: str  # release of the one that builds take: "13.0"; empty without one
    missing_packages: tuple[str, ...]
    has_apt: bool
    sandbox: str  # bubblewrap, unshare, none
    sandbox_limits: str  # what it leaves open, and why
    has_bubblewrap: bool
    forbids_namespaces: Mapping[str, str]  # kernel settings that restrict them -> value
    may_namespaces: bool  # we are root, or an AppArmor profile lets bubblewrap have them
    has_profile: bool  # there is one for bubblewrap, whatever it says
    cache: str  # "ccache 4.8"; empty without one
    cache_reason: str  # why none, or why this one
    cache_unwanted: bool = False
    largest_users: tuple[tuple[str, int], ...] = ()  # of memory, MiB; only where it is short


# The library -> the package that brings it for CUDA 13.0 on Debian, Ubuntu and DGX OS.
PACKAGES = {
    "cuBLAS": "libcublas-dev-13-0",
    "cuDNN": "libcudnn9-dev-cuda-13",
    "cuFile": "libcufile-dev-13-0",
    "NCCL": "libnccl-dev",
}
# How packages begin that only NVIDIA's own repository has.
NVIDIA = ("cuda-", "libcublas", "libcudnn", "libcufile", "libnccl", "nvidia-driver")
REPOSITORY = "https://developer.download.nvidia.com/compute/cuda/repos"


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanRequirements:
    """A plan, the share of the machine it may use, and what follows from both.

    named: the recipes that the user asked for by name.
    """

    plan: Plan
    limits: Limits
    named: frozenset[str] = frozenset()

    @property
    def building(self) -> tuple[Step, ...]:
        """Steps that build something."""
        return tuple(step for step in self.plan.steps if step.decision == "BUILD")

    @property
    def compiled(self) -> tuple[Step, ...]:
        """Steps that compile; repacking a vendor's wheel does not."""
        return tuple(step for step in self.building if step.recipe.is_compiled)

    @property
    def cuda(self) -> bool:
        """True when CUDA code is compiled."""
        return bool(self.plan.target.cuda_architectures and self.compiled)

    @property
    def toolkit(self) -> str:
        """Folder of the system's CUDA toolkit that builds use; "" where a recipe provides the toolkit."""
        given = (
            provision.path
            for step in self.compiled
            for provision in step.provisions
            if provision.need == "cuda"
        )
        return next(filter(None, given), "")

    @property
    def brings_toolkit(self) -> str:
        """Version of the toolkit that the recipe `cuda` provides for this plan; "" without one."""
        brought = any("cuda" in step.from_store for step in self.compiled)
        return next(
            (step.pin.version for step in self.plan.steps if brought and step.recipe.name == "cuda"), ""
        )

    def toolkit_fix(self, line: str) -> str:
        """Return what mends a toolkit given by path: the recipe's, where the train has it, or `line`."""
        has = "cuda" in self.plan.train.components
        return f"--provide cuda=store (the recipe brings all of it), or: {line}" if has else line

    @property
    def lacks_toolkit(self) -> tuple[str, ...]:
        """Names of the recipes that cannot be built because neither train nor machine has a toolkit."""
        lost = {step.recipe.name for step in self.plan.steps if step.decision in ("SKIP", "BLOCKED")}
        return tuple(
            step.recipe.name
            for step in self.plan.steps
            if step.decision == "BLOCKED" and "cuda" in step.from_store and "cuda" in lost
        )

    @property
    def is_for_gpu(self) -> bool:
        """True when the target has a GPU."""
        return bool(self.plan.target.cuda_architectures)

    @property
    def packages(self) -> Mapping[str, str]:
        """CUDA libraries that torch needs beside a toolkit given by path -> packages that provide them."""
        return PACKAGES if self.toolkit and any(step.recipe.name == "torch" for step in self.compiled) else {}

    @property
    def torch(self) -> str:
        """Version of the torch that is compiled, or whose headers are used; "" without one."""
        pin = self.plan.train.components.get("torch")
        near = any(step.recipe.name == "torch" or "torch" in step.needs for step in self.compiled)
        return pin.version if pin is not None and near else ""

    def severity(self, *, needed: bool) -> Severity:
        """Return "error" where this plan needs what is wrong, else "warning"."""
        return "error" if needed else "warning"


def install_line(packages: Sequence[str]) -> str:
    """Return the line that installs packages on Debian, Ubuntu and DGX OS; NVIDIA's have one of their own.

    What begins with - is an option of apt-get; the names stand behind -- and are quoted.
    """
    options = [one for one in packages if one.startswith("-")]
    theirs = [name for name in packages if name.startswith(NVIDIA)]
    ours = [name for name in packages if name not in (*theirs, *options)]
    install = " ".join(["sudo apt-get install -y", *options, "--"])
    lines = [f"{install} {shlex.join(names)}" for names in (ours, theirs) if names]
    return " && ".join(["sudo apt-get update", *lines])


def repository_note(packages: Iterable[str]) -> str:
    """Return a note for messages about packages that only NVIDIA's repository has."""
    theirs = [name for name in packages if name.startswith(NVIDIA)]
    if not theirs:
        return ""
    return f"; {', '.join(theirs)}: in NVIDIA's apt repository only ({REPOSITORY}; DGX OS has it)"


def version(text: str) -> tuple[int, ...]:
    """Return the leading numbers of a version: (580, 65, 6) for 580.65.06; () when there are none."""
    numbers: list[int] = []
    for part in text.removeprefix("V").replace("-", ".").split("."):
        if not part.isdecimal():
            break
        numbers.append(int(part))
    return tuple(numbers)
