"""Recipes, trains, targets, and what a plan decides about them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from spark_build.machine import Machine
from spark_build.recipes import fields

SourceKind = Literal["git", "archive", "sdist", "wheel", "local"]
BuildKind = Literal["pep517", "cmake", "scons", "repack", "assemble"]
Provider = Literal["store", "public", "path"]
Coupling = Literal["content", "version"]


@dataclass(frozen=True, kw_only=True, slots=True)
class When:
    """A condition; all fields that are given must hold."""

    platforms: tuple[fields.PlatformName, ...] = ()
    trains: tuple[str, ...] = ()
    cuda: bool | None = None
    options: dict[str, str] = field(default_factory=dict)  # options of the recipe that have this value


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """One pinned origin of a component.

    sdist, wheel: `project` and `filename` on the configured index, `sha256`.
    archive: `url` and `sha256`. git: `url`, `tag` and full `commit`. `mirrors`: other places of the
    same archive or repository, asked in this order when `url` fails. local: a folder (`url`) that
    --source names, with the sha256 of its content; never in a file.
    """

    kind: SourceKind
    project: str = ""
    filename: str = ""
    url: fields.Url = ""
    mirrors: tuple[fields.Mirror, ...] = ()
    tag: str = ""
    commit: fields.Commit = ""  # of a git source: empty until `recipes pin` has read it from the tag
    sha256: fields.Sha256 = ""
    size: fields.Bytes = 0  # of the file, for plans; 0: not known
    platform: fields.AnyPlatform = ""  # only for this platform ("linux-aarch64"); empty: any
    submodules: bool = False
    note: str = ""
    # Of an extra source: NAME of {extra:NAME}, shared with others; empty: its own name.
    folder: fields.FolderName = ""
    # Path in it -> path in that folder; empty: all of it.
    copy: dict[fields.SourcePath, fields.LaidPath] = field(default_factory=dict, hash=False)

    @property
    def is_pinned(self) -> bool:
        """Return whether its content is fixed; a tag alone can move."""
        return self.kind != "git" or bool(self.commit)


@dataclass(frozen=True, kw_only=True, slots=True)
class Patch:
    """A patch below patches/: its reason, upstream discussion and trains."""

    file: fields.PatchFile
    why: fields.PatchReason
    sha256: fields.Sha256
    upstream: str = ""
    trains: tuple[str, ...] = ()  # empty: every train
    unverified: str = ""  # what was seen instead, when the pinned file could not be read


@dataclass(frozen=True, kw_only=True, slots=True)
class Need:
    """Another component that this one needs to build.

    providers: where it may come from, the usual one first; with "public" first it is not built for this,
    but the store's is taken where there is one. coupling "content": this component is
    built anew whenever the need's content changes (it is linked against it); "version": only when
    its version does. versions: those that will do, such as ">=2.4,<3"; empty: any.
    """

    name: fields.Name
    versions: fields.Versions = ""
    providers: tuple[Provider, ...] = ("store",)
    coupling: Coupling = "content"
    why: str = ""
    when: When = field(default_factory=When)


@dataclass(frozen=True, kw_only=True, slots=True)
class Variable:
    """An environment variable of the build; the reason names the file that reads it."""

    value: str
    why: str
    when: When = field(default_factory=When)


@dataclass(frozen=True, kw_only=True, slots=True)
class Option:
    """A choice for --option RECIPE.NAME=VALUE; {option:NAME} is replaced by the value."""

    value: str  # unless another one is asked for
    why: str
    choices: tuple[str, ...] = ()  # empty: any text


@dataclass(frozen=True, kw_only=True, slots=True)
class Variant:
    """Differences under a condition: its pins, variables and costs replace those of the same name."""

    when: When
    requires: tuple[fields.ExactPin, ...] = ()
    env: dict[fields.EnvironmentName, Variable] = field(default_factory=dict)
    apt: tuple[fields.Apt, ...] = ()
    dnf: tuple[fields.Dnf, ...] = ()
    default: bool | None = None  # of the recipe
    memory_per_job_mib: fields.MemoryPerJob | None = None
    core_minutes: fields.CoreMinutes | None = None
    disk_mib: fields.Disk | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Build:
    """Settings and costs of a build."""

    requires: tuple[fields.ExactPin, ...] = ()  # exact pins, the whole closure: name==version
    memory_per_job_mib: fields.MemoryPerJob = 1024
    threads_per_job: fields.Threads = 1  # processors that one job keeps busy
    most_jobs: fields.MostJobs | None = None  # that its build system runs at once, such as 1; None: any
    core_minutes: fields.CoreMinutes = 1.0  # CPU time of one clean build
    disk_mib: fields.Disk = 1024
    compile_flags: tuple[str, ...] = ()  # for C and C++; one with an option is left out while that is empty
    env: dict[fields.EnvironmentName, Variable] = field(default_factory=dict)
    variants: tuple[Variant, ...] = ()
    network: bool = False  # whether the build may use the network; `plan` warns
    any_target: bool = False  # a prefix that is the same for each GPU and each Python of a platform
    # Folder in the source <- an extra source's.
    place: dict[fields.PlaceFolder, Variable] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Cmake:
    """A build of kind cmake: configure, build, install into a prefix."""

    source: fields.CmakeFolder = "."  # folder of the top CMakeLists.txt
    define: dict[fields.CmakeName, Variable] = field(default_factory=dict)  # -DNAME=value
    expect: tuple[fields.ExpectedFile, ...] = ()  # files that the prefix must have: "bin/mlir-tblgen"


@dataclass(frozen=True, kw_only=True, slots=True)
class Stub:
    """A link-time substitute, made from a header, for a library of the GPU driver."""

    library: fields.StubLibrary  # "lib/stubs/libcuda.so"
    soname: fields.StubSoname  # "libcuda.so.1"
    header: fields.StubHeader  # "include/cuda.h"
    functions: fields.StubFunctions  # how the names of its functions begin: "cu"
    # What each of them returns when it is called all the same: an error code of this library.
    answer: fields.StubAnswer


@dataclass(frozen=True, kw_only=True, slots=True)
class Prefix:
    """A development prefix from one vendor's wheel (repack) or several (assemble)."""

    # Folder in a wheel -> folder in the prefix, "." its top.
    copy: dict[fields.WheelFolder, fields.PrefixFolder] = field(default_factory=dict)
    # Symbolic link -> what it points to, beside it.
    links: dict[fields.LinkPath, fields.LinkTarget] = field(default_factory=dict)
    unversioned: tuple[fields.PlainFolder, ...] = ()  # folders in which libX.so is to point to libX.so.N
    stubs: tuple[Stub, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Feature:
    """A feature that a build may drop silently, and the configure summary that proves it."""

    name: fields.FeatureName
    value: str = "ON"
    why: str = ""
    when: When = field(default_factory=When)


@dataclass(frozen=True, kw_only=True, slots=True)
class Naming:
    """Version that the wheel must carry; {version} and {label} are filled in."""

    version: fields.WheelVersion = "{version}"


@dataclass(frozen=True, kw_only=True, slots=True)
class System:
    """Distribution packages that the build needs, by package manager."""

    apt: tuple[fields.Apt, ...] = ()  # Debian, Ubuntu, DGX OS
    dnf: tuple[fields.Dnf, ...] = ()  # Fedora, RHEL: only named, never installed


@dataclass(frozen=True, kw_only=True, slots=True)
class Required:
    """A distribution that the finished wheel requires, whatever its build wrote into METADATA."""

    # As in Requires-Dist; {version:NAME} and {wheel:PROJECT} stand for the train's pins.
    requirement: fields.RequiredText
    why: fields.RequiredReason
    when: When = field(default_factory=When)


@dataclass(frozen=True, kw_only=True, slots=True)
class External:
    """Libraries of another distribution: left out of the wheel, found in that one's folder."""

    # What the wheel must require: "nvidia-cudnn-cu13", "cuda-toolkit[cublas]".
    distribution: fields.DistributionName
    folder: fields.SiteFolder  # below site-packages: "nvidia/cudnn/lib"
    libraries: tuple[fields.ExternalLibrary, ...]  # sonames, wildcards allowed
    when: When = field(default_factory=When)


@dataclass(frozen=True, kw_only=True, slots=True)
class Repair:
    """Changes to the wheel after the build; none by default."""

    bundle: bool = False  # copy the non-system shared libraries into the wheel (auditwheel)
    exclude: tuple[fields.Excluded, ...] = ()  # sonames that stay outside
    # The tag to get, "manylinux_2_34"; empty: the best when bundling, else as built.
    platform: fields.PolicyTag = ""
    strip: bool = False  # take debug sections and symbols out of libraries and programs (binutils)
    clean_rpath: bool = False  # take out what RPATHs name besides $ORIGIN (patchelf)
    external: tuple[External, ...] = ()
    # Files of the wheel (wildcards) that look in the folders of `external`.
    rpath: tuple[fields.WheelFile, ...] = ()
    requires: tuple[Required, ...] = ()

    @property
    def outside(self) -> tuple[str, ...]:
        """Sonames (wildcards allowed) that are never copied into the wheel."""
        brought = (name for one in self.external for name in one.libraries)
        return tuple(dict.fromkeys((*self.exclude, *brought)))


@dataclass(frozen=True, kw_only=True, slots=True)
class Linked:
    """A library of the wheel for the loader: its path and its linked libraries."""

    path: fields.WheelLibrary  # in the wheel: "torch/lib/libtorch_cuda.so"
    links: tuple[fields.LinkerName, ...]  # as the linker names them: "cublas" for libcublas.so
    when: When = field(default_factory=When)


@dataclass(frozen=True, kw_only=True, slots=True)
class Preflight:
    """A stub linked like the real thing, repaired, audited and imported before hours of compiling."""

    package: str = ""  # what is imported in the end
    libraries: tuple[Linked, ...] = ()  # none: there is no preflight


@dataclass(frozen=True, kw_only=True, slots=True)
class Scons:
    """A build of kind scons: build in the source's tree, copy files into a prefix."""

    argument: dict[fields.SconsName, Variable] = field(default_factory=dict)  # NAME=value of the command line
    targets: tuple[fields.SconsTarget, ...] = ()  # what to make; none: all that SConstruct makes by default
    # Files of the tree (wildcards) -> folder in the prefix.
    copy: dict[fields.TreeFiles, fields.PrefixFolder] = field(default_factory=dict)
    expect: tuple[fields.ExpectedFile, ...] = ()  # files that the prefix must have


@dataclass(frozen=True, kw_only=True, slots=True)
class Requires:
    """Requirements of a recipe on its target."""

    cuda: bool = False
    cpu: bool = False  # with cuda: may also be built for a target without CUDA
    platforms: tuple[fields.PlatformName, ...] = ("linux-x86_64", "linux-aarch64")


@dataclass(frozen=True, kw_only=True, slots=True)
class Verify:
    """Checks that run in a fresh environment: names of bench/checks/<name>.py."""

    checks: tuple[fields.CheckName, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceRule:
    """Requirements on the device code of one library, or of all that a wildcard names.

    Each GPU of the target must have something that runs; beyond that, what is required and forbidden.
    """

    library: fields.StubLibrary  # "libtorch_cuda.so", "torch/lib/*.so"
    why: fields.DeviceReason
    architectures: tuple[str, ...] = ()  # only for targets with one of these ("12.1"); empty: any with CUDA
    require: tuple[fields.DeviceTarget, ...] = ()  # "sm_121a", "compute_*"
    forbid: tuple[fields.DeviceTarget, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Audit:
    """Facts that the wheel's audit cannot find out itself."""

    host_only: str = ""  # why a wheel for CUDA has no device code
    device: tuple[DeviceRule, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """A component's build; versions and pins come from the train, else from its own pin."""

    name: fields.Name
    distribution: str  # the name in the wheel's metadata
    summary: str
    kind: BuildKind
    build: Build
    default: bool = True  # whether a command that names no recipe builds it
    options: dict[fields.OptionName, Option] = field(default_factory=dict)
    requires: Requires = field(default_factory=Requires)
    pin: Pin | None = None  # for every train that does not list this component
    needs: tuple[Need, ...] = ()
    cmake: Cmake = field(default_factory=Cmake)
    scons: Scons = field(default_factory=Scons)
    prefix: Prefix = field(default_factory=Prefix)
    features: tuple[Feature, ...] = ()
    wheel: Naming = field(default_factory=Naming)
    patches: tuple[Patch, ...] = ()
    system: System = field(default_factory=System)
    repair: Repair = field(default_factory=Repair)
    preflight: Preflight = field(default_factory=Preflight)
    audit: Audit = field(default_factory=Audit)
    verify: Verify = field(default_factory=Verify)
    notes: tuple[str, ...] = ()
    # As a train's: what this wheel requires beyond it, for every train.
    closure: dict[fields.Name, fields.Known] = field(default_factory=dict)

    @property
    def expect(self) -> tuple[str, ...]:
        """Files that its prefix must contain, by the kind of its build."""
        return self.scons.expect if self.kind == "scons" else self.cmake.expect

    @property
    def in_catalogue(self) -> bool:
        """True for a wheel that is built only when it is named; prefixes come with what needs them."""
        return self.kind == "pep517" and not self.default

    @property
    def serves_any_target(self) -> bool:
        """True for a prefix that serves each GPU and each Python of its platform."""
        return self.kind == "assemble" or self.build.any_target

    @property
    def is_compiled(self) -> bool:
        """True when its build compiles; a vendor's wheel is only unpacked, on any machine."""
        return self.kind not in ("repack", "assemble")


@dataclass(frozen=True, kw_only=True, slots=True)
class Pin:
    """A component's version within a train; `sources` in order of preference."""

    version: str
    sources: tuple[Source, ...]
    extra_sources: dict[str, Source] = field(default_factory=dict)
    unestablished: tuple[str, ...] = ()  # what could not be found out; `plan` warns


@dataclass(frozen=True, kw_only=True, slots=True)
class Train:
    """Versions that belong together."""

    name: fields.ViewPart
    summary: str
    components: dict[fields.Name, Pin]
    default: bool = False
    revision: int = 1  # counts our builds of these versions: the N of the label cu130.sparkN
    # Third-party versions: name -> version.
    closure: dict[fields.Name, fields.Known] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """The machine built for.

    platform and python are "host" in a target that means the machine that builds.
    """

    name: fields.ViewPart
    summary: str
    platform: fields.TargetPlatform  # linux-aarch64, linux-x86_64, host
    python: fields.Python  # cp312, host
    cuda_architectures: tuple[fields.Capability, ...] = ()  # "12.1"; empty: no CUDA
    cuda: fields.Cuda = ""  # lowest CUDA version
    unified_memory: bool = False
    gpu_names: tuple[str, ...] = ()  # how the driver names the GPU: what `auto` looks for
    cores: fields.Cores = 0  # processors of a machine that is always the same; 0: they differ
    memory_mib: fields.Memory = 0  # what its Linux says of itself (MemTotal)


CONFIGURE = "configure"  # the part of the build stage that a run may end after
Decision = Literal["BUILD", "REUSE", "SKIP", "BLOCKED"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """Expected cost of a step on this machine."""

    seconds: float
    memory_mib: int
    memory_per_job_mib: int
    disk_mib: int
    jobs: int
    measured: bool = False  # seconds are those of an earlier build here
    download_seconds: float = 0.0  # before, for the downloads of known size


@dataclass(frozen=True, kw_only=True, slots=True)
class Download:
    """Something that a step's build fetches; size in bytes, None where nothing says it.

    wheel: of a build requirement; public: a public wheel with all that it requires.
    """

    kind: Literal["git", "file", "wheel", "public"]
    name: str  # the same for two steps that need the same
    size: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class BuildOptions:
    """Options of a build."""

    offline: bool = False
    keep_going: bool = False  # start independent recipes after a failure, too
    stop_after: str = ""  # the last stage to run, or CONFIGURE; empty: all of them
    named: tuple[str, ...] = ()  # the recipes that were asked for; empty: all of the plan
    cached: bool = True  # whether the compiler cache may be used
    require_sandbox: bool = False  # refuse to build where the sandbox is not the full one


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluated:
    """A recipe for a known target and train; placeholders are still in it."""

    requires: tuple[str, ...]
    env: dict[str, Variable]
    apt: tuple[str, ...]
    dnf: tuple[str, ...]
    compile_flags: tuple[str, ...]
    features: tuple[Feature, ...]
    extra_sources: dict[str, Source]  # those that a variable refers to; others are not fetched
    label: str  # local version label of our builds: cu130.spark1
    wheel_version: str  # "2.13.0+cu130.spark1"
    # Pin -> the sha256s that its wheel may have here; empty: the pins are held by version only.
    hashes: dict[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Provision:
    """Provider of a need; `path` is an existing environment or prefix."""

    need: str
    distribution: str
    provider: Provider
    coupling: Coupling
    version: str  # of the need in this train
    path: str = ""
    locked: tuple[str, ...] = ()  # the sha256s that a public wheel may have; (): any

    def __str__(self) -> str:
        if self.provider == "path":
            return f"{self.need} from {self.path}"
        return (
            f"{self.need} {self.version} {'as public wheel' if self.provider == 'public' else 'built here'}"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One recipe in a plan; `key` is the plan key, `source` the source that is used."""

    recipe: Recipe
    pin: Pin
    evaluated: Evaluated
    decision: Decision
    reasons: tuple[str, ...]
    key: str
    declared: Mapping[str, Any]  # what the plan key was made of
    provisions: tuple[Provision, ...] = ()
    source: Source | None = None
    patches: tuple[Patch, ...] = ()
    estimate: Estimate | None = None
    downloads: tuple[Download, ...] = ()  # of a step to build: what is not on its machine yet
    build_key: str = ""  # known once every need is in the store
    stale: tuple[str, ...] = ()  # why what the store has is to be audited again before it is reused
    stored_as: str = ""  # its key in the store: an older one before it is taken over, or an import's
    remote: str = ""  # the remote store that it is fetched from
    warnings: tuple[str, ...] = ()

    @property
    def needs(self) -> tuple[str, ...]:
        """Names of the recipes that must be built before."""
        return tuple(provision.need for provision in self.provisions)

    @property
    def from_store(self) -> tuple[str, ...]:
        """Names of the needs that come from the store."""
        return tuple(provision.need for provision in self.provisions if provision.provider == "store")


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """Steps in build order for one target and train."""

    target: Target
    train: Train
    steps: tuple[Step, ...]
    machine: Machine | None = None  # whose cores and memory the estimates are for
