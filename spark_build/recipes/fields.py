"""Types of the values in recipes, trains and targets: what one value must look like."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Annotated, Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from spark_build.recipes.toml_positions import is_specifier, version_of

SHAPE_ONLY = "shape only"  # context of a validation in which no rule is applied
PLATFORMS = ("linux-x86_64", "linux-aarch64")


class FieldCheck:
    """A rule for one value: `problem` returns what is wrong with it, "" when nothing is."""

    def __init__(self, problem: Callable[[Any], str]) -> None:
        self.problem = problem

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        """Return pydantic's schema of the value with this rule; pydantic is imported only for that."""
        from pydantic_core import PydanticCustomError, core_schema

        def checked(value: Any, info: Any) -> Any:
            if info.context != SHAPE_ONLY and (problem := self.problem(value)):
                raise PydanticCustomError("rule", "{problem}", {"problem": problem})
            return value

        return core_schema.with_info_after_validator_function(checked, handler(source))


def _matching(pattern: str, problem: str) -> FieldCheck:
    """Return a rule for text; `problem` may hold {} for the value."""
    return FieldCheck(lambda value: "" if re.fullmatch(pattern, value) else problem.format(value))


def _one_of(*options: str, what: str = "platform") -> FieldCheck:
    listed = f"{what} must be one of {', '.join(options)}, not "
    return FieldCheck(lambda value: "" if value in options else f"{listed}'{value}'")


def _positive(key: str) -> FieldCheck:
    return FieldCheck(
        lambda value: "" if math.isfinite(value) and value > 0 else f"build.{key} must be more than 0"
    )


def _stated(problem: str) -> FieldCheck:
    """Return a rule for what must not be empty."""
    return FieldCheck(lambda value: "" if value else problem)


def _inside(what: str) -> FieldCheck:
    """Return a rule for a relative path that stays inside."""
    return FieldCheck(
        lambda value: (
            f"{what} '{value}' must be a relative path without '..'"
            if not value or value.startswith("/") or ".." in value.split("/")
            else ""
        )
    )


def _requirement(text: str) -> Requirement | None:
    try:
        return Requirement(text)
    except InvalidRequirement:
        return None


def _name_problem(name: str) -> str:
    if re.fullmatch("[a-z0-9]+(-[a-z0-9]+)*", name):
        return ""
    return f"the name '{name}' must be in lower case, words joined by '-': '{canonicalize_name(name)}'"


def _versions_problem(text: str) -> str:
    return "" if is_specifier(text) else f"'{text}' does not say which versions will do: \">=2.4,<3\""


def _pin_problem(text: str) -> str:
    if re.fullmatch(rf"{_PROJECT}\s*==\s*[^,*;\s]+", text) and version_of(text.partition("==")[2]):
        return ""
    found = _requirement(text)
    if found is None:
        return f"'{text}' is no requirement: write name==version"
    return f"'{text}' is no exact pin: write {found.name}==version"


def _distribution_problem(text: str) -> str:
    found = _requirement(text)
    if found is None or found.specifier or found.marker or found.url:
        return f"'{text}' is no name of a distribution: write nvidia-nccl-cu13 or cuda-toolkit[cublas]"
    return ""


def _required_problem(text: str) -> str:
    filled = re.sub(r"\{(version|wheel):[^{}]+\}", "1", text)
    if "{" in filled:
        return f"'{text}': write {{version:NAME}} or {{wheel:PROJECT}}"
    return "" if _requirement(filled) else f"'{text}' is no requirement: write name==version, with a marker"


def _naming_problem(version: str) -> str:
    for placeholder in re.findall(r"\{([^{}]*)\}", version):
        if placeholder not in ("version", "label"):
            return f"unknown placeholder {{{placeholder}}} in wheel.version (known: version, label)"
    filled = version.replace("{version}", "1.0").replace("{label}", "cu130.spark1")
    if version_of(filled) is None:
        return f"wheel.version '{version}' makes no version: '{filled}' is none"
    return ""


_PROJECT = "[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
_ADDRESS = r"(https?|ssh|git|file)://\S+|/\S+"
_SCHEMES = "must start with https://, http://, ssh://, git://, file:// or /, not '{}'"
_VARIABLE = "[A-Za-z_][A-Za-z0-9_]*"
_SONAME = r"[^\s/*?][^\s/]*\.so[^\s/]*"

# Names and versions. "" passes where a key may be left out: required keys are checked with their table.
Name = Annotated[str, FieldCheck(_name_problem)]
# Of a train and a target: both stand in the names of folders and in addresses of the server.
ViewPart = Annotated[
    str,
    _matching(
        "[A-Za-z0-9_][A-Za-z0-9_.+!-]{0,99}",
        "'{}' is no name: write up to 100 letters, digits and ._+!-, beginning with a letter, a digit or _",
    ),
]
FolderName = Annotated[str, FieldCheck(lambda name: _name_problem(name) if name else "")]
Known = Annotated[str, FieldCheck(lambda text: "" if version_of(text) else f"'{text}' is no version")]
Versions = Annotated[str, FieldCheck(_versions_problem)]
PlatformName = Annotated[str, _one_of(*PLATFORMS)]
AnyPlatform = Annotated[str, FieldCheck(lambda text: _one_of(*PLATFORMS).problem(text) if text else "")]
TargetPlatform = Annotated[str, _one_of(*PLATFORMS, "host")]
Python = Annotated[str, _matching(r"cp3\d+t?|host", "python must be like cp312, or host, not '{}'")]
Capability = Annotated[str, _matching(r"\d{1,2}\.\d", "a CUDA architecture must be like 12.1, not '{}'")]
Cores = Annotated[
    int, FieldCheck(lambda count: "" if count >= 0 else f"cores must be at least 1, not {count}")
]
Memory = Annotated[
    int, FieldCheck(lambda mib: "" if mib >= 0 else f"memory_mib must be at least 1, not {mib}")
]
Cuda = Annotated[str, _matching(r"(\d+\.\d+)?", "cuda must be like 13.0, not '{}'")]
CheckName = Annotated[str, _matching("[a-z0-9_]+", "'{}' is no name of a check: bench/checks/<name>.py")]

# Sources and patches.
Url = Annotated[str, _matching(f"({_ADDRESS})?", f"url {_SCHEMES}")]
Mirror = Annotated[str, _matching(_ADDRESS, f"a mirror {_SCHEMES}")]
Sha256 = Annotated[str, _matching("([0-9a-f]{64})?", "sha256 must be 64 hexadecimal digits in lower case")]
Bytes = Annotated[
    int, FieldCheck(lambda count: "" if count >= 0 else f"size must be a number of bytes, not {count}")
]
Commit = Annotated[str, _matching("([0-9a-f]{40})?", "commit must be 40 hexadecimal digits in lower case")]
PatchFile = Annotated[
    str,
    FieldCheck(lambda text: f"'{text}' must be a path below patches/" if _inside("").problem(text) else ""),
]
PatchReason = Annotated[str, _stated("say why the patch exists")]
SourcePath = Annotated[str, _inside("the path in the source")]
LaidPath = Annotated[str, _inside("the path in the folder")]

# Builds.
MemoryPerJob = Annotated[int, _positive("memory_per_job_mib")]
Threads = Annotated[int, _positive("threads_per_job")]
MostJobs = Annotated[int, _positive("most_jobs")]
CoreMinutes = Annotated[float, _positive("core_minutes")]
Disk = Annotated[int, _positive("disk_mib")]
# Debian's policy and RPM: no option, glob, path or shell. A - at the end tells apt-get to remove.
Apt = Annotated[str, _matching(r"[a-z0-9][a-z0-9+.-]*[a-z0-9+]", "'{}' is no name of a package for apt")]
Dnf = Annotated[str, _matching(r"[A-Za-z0-9][A-Za-z0-9._+-]*", "'{}' is no name of a package for dnf")]
ExactPin = Annotated[str, FieldCheck(_pin_problem)]
EnvironmentName = Annotated[str, _matching(_VARIABLE, "'{}' is no name of an environment variable")]
CmakeName = Annotated[str, _matching(f"{_VARIABLE}(:[A-Z]+)?", "'{}' is no name of a CMake variable")]
SconsName = Annotated[str, _matching(_VARIABLE, "'{}' is no name of an argument of scons")]
SconsTarget = Annotated[str, _matching(r"[^\s=-][^\s=]*", "'{}' is no target of scons: a file that it makes")]
OptionName = Annotated[
    str,
    _matching(
        "[a-z][a-z0-9_]*",
        "the name of the option '{}' must be in lower case: letters, digits and '_'",
    ),
]
FeatureName = Annotated[str, _stated("a feature needs the name that the configure summary prints")]
PlaceFolder = Annotated[str, _inside("the folder in the source")]
CmakeFolder = Annotated[str, _inside("the source folder")]
ExpectedFile = Annotated[str, _inside("the expected file")]
TreeFiles = Annotated[str, _inside("the files in the tree")]

# Prefixes.
WheelFolder = Annotated[str, _inside("the folder in the wheel")]
PrefixFolder = Annotated[str, _inside("the folder in the prefix")]
LinkPath = Annotated[str, _inside("the link")]
LinkTarget = Annotated[
    str,
    _matching(r"(?!\.{1,2}$)[^/]+", "the link points to '{}', which must be the name of a file beside it"),
]
PlainFolder = Annotated[str, _inside("the folder")]
StubLibrary = Annotated[str, _inside("the library")]
StubHeader = Annotated[str, _inside("the header")]
StubSoname = Annotated[str, _matching(r"[^\s/]+\.so[^\s/]*", "'{}' is no soname: write libcuda.so.1")]
StubFunctions = Annotated[str, _stated("say how the names of the functions begin")]
StubAnswer = Annotated[
    int, FieldCheck(lambda value: "" if 0 <= value < 1 << 16 else "the answer must be from 0 to 65535")
]

# The finished wheel.
WheelVersion = Annotated[str, FieldCheck(_naming_problem)]
RequiredText = Annotated[str, FieldCheck(_required_problem)]
RequiredReason = Annotated[str, _stated("say why the wheel requires it")]
DistributionName = Annotated[str, FieldCheck(_distribution_problem)]
SiteFolder = Annotated[str, _inside("the folder below site-packages")]
ExternalLibrary = Annotated[str, _matching(_SONAME, "'{}' is no soname: write libnccl.so.*")]
Excluded = Annotated[
    str, _matching(_SONAME, "'{}' is no soname: write libcuda.so.1 or libtorch*.so, as NEEDED names it")
]
PolicyTag = Annotated[
    str,
    _matching(
        r"(manylinux_2_\d+)?",
        "repair.platform must be like manylinux_2_34, without the machine, not '{}'",
    ),
]
WheelFile = Annotated[str, _inside("the file of the wheel")]
WheelLibrary = Annotated[str, _inside("the library in the wheel")]
LinkerName = Annotated[
    str, _matching(r"[A-Za-z0-9_.+:-]+", "'{}' is no name for a linker: write cublas for libcublas.so")
]
DeviceReason = Annotated[str, _stated("say what is lost without this code")]
DeviceTarget = Annotated[
    str,
    _matching(
        r"(sm|compute)_(\d{2,3}[af]?|\d{0,3}\*)",
        "'{}' is no architecture: write sm_121a, compute_90 or sm_12*",
    ),
]
