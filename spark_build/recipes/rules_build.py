"""What must hold in the parts of a recipe that say how it is built and judged: [build], [audit] and so on."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from spark_build.recipes.archs import CONSUMERS, minimum_cuda
from spark_build.recipes.rawtables import Finding, below, items, table, tables, version_of
from spark_build.recipes.rules_options import condition_findings, option_findings
from spark_build.recipes.toml_positions import Path

# What a value may refer to; recipes/README.md explains each. Those with an argument: {need:llvm}.
PLACEHOLDERS = (
    "python",
    "pybind11_cmake_dir",
    "jobs",
    "cuda_home",
    "version",
    "label",
    "wheel_version",
    "prefix",
)
WITH_ARGUMENT = ("arch_list", "need", "version", "extra", "option")

_NAME = "[A-Za-z_][A-Za-z0-9_]*"
_TARGET = re.compile(r"(sm|compute)_(\d{2,3}[af]?|\d{0,3}\*)")


def build_findings(raw: Mapping[str, Any], needs: list[Any]) -> Iterator[Finding]:
    """What is wrong with how a recipe is built."""
    build = table(raw, "build")
    yield from _amounts(build, ("build",))
    yield from _changes(build, ("build",), needs)
    for index, variant in tables(build, "variants"):
        path: Path = ("build", "variants", index)
        yield from _amounts(variant, path)
        yield from _changes(variant, path, needs)
        if "when" in variant and not any(value not in ([], {}) for value in table(variant, "when").values()):
            yield path, "a variant without a condition: say when, or move it to [build]"
    yield from option_findings(raw)
    yield from condition_findings(raw)
    for folder, variable in table(build, "place").items():
        path = ("build", "place", folder)
        yield from below(folder, path, "the folder in the source")
        yield from _placed(folder, variable, path)
    yield from _cmake(raw, needs)
    yield from _prefix(raw)
    yield from _features(raw)
    yield from _audit(raw)
    yield from _repair(raw)
    yield from _naming(table(raw, "wheel").get("version"))


def _amounts(part: Mapping[str, Any], path: Path) -> Iterator[Finding]:
    """Yield the costs, of [build] or of one variant, that are no amounts."""
    for key in ("memory_per_job_mib", "threads_per_job", "core_minutes", "disk_mib"):
        amount = part.get(key, 1)
        if isinstance(amount, int | float) and not (math.isfinite(amount) and amount > 0):
            yield (*path, key), f"build.{key} must be more than 0"


def _changes(part: Mapping[str, Any], path: Path, needs: list[Any]) -> Iterator[Finding]:
    """The pins and variables of [build] or of one variant."""
    yield from _requirements(part, path)
    for name, variable in table(part, "env").items():
        if not re.fullmatch(_NAME, name):
            yield (*path, "env", name), f"'{name}' is no name of an environment variable"
        yield from _variable(name, variable, (*path, "env", name), needs)


def _requirements(part: Mapping[str, Any], path: Path) -> Iterator[Finding]:
    seen: set[str] = set()
    listed = part.get("requires")
    for index, text in enumerate(listed if isinstance(listed, list) else []):
        here: Path = (*path, "requires", index)
        if not isinstance(text, str):
            continue
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            yield here, f"'{text}' is no requirement: write name==version"
            continue
        if not re.fullmatch(r"[A-Za-z0-9._-]+\s*==\s*[^,*;\s]+", text) or not version_of(
            text.partition("==")[2]
        ):
            yield here, f"'{text}' is no exact pin: write {requirement.name}==version"
        name = canonicalize_name(requirement.name)
        if name in seen:
            yield here, f"{name} is pinned twice"
        seen.add(name)


def _variable(name: str, variable: object, path: Path, needs: list[Any]) -> Iterator[Finding]:
    """A variable of the environment or of CMake: it has a reason, and known placeholders."""
    if not isinstance(variable, dict):
        return
    if variable.get("why") == "":
        yield (*path, "why"), f"say why {name} is set: name the file that reads it"
    value = variable.get("value")
    for placeholder in re.findall(r"\{([^{}]*)\}", value if isinstance(value, str) else ""):
        problem = _placeholder(placeholder, needs)
        if problem:
            yield (*path, "value"), problem


def _placed(folder: str, variable: object, path: Path) -> Iterator[Finding]:
    """What is placed in the source comes from an extra source."""
    if not isinstance(variable, dict):
        return
    if variable.get("why") == "":
        yield (*path, "why"), f"say why something is placed at {folder}: name the file that reads it"
    value = variable.get("value")
    if isinstance(value, str) and not re.fullmatch(r"\{extra:[^{}]+\}(/[^{}]*)?", value):
        yield (*path, "value"), f"'{value}' is no extra source: write {{extra:NAME}}"


def _placeholder(text: str, needs: list[Any]) -> str:
    """What is wrong with {text}; empty when nothing is."""
    verb, _, argument = text.partition(":")
    if argument and verb == "need" and argument not in needs:
        return f"{{{text}}}: this recipe has no need '{argument}'"
    if verb == "arch_list" and argument not in CONSUMERS:
        return f"{{{text}}}: write {{arch_list:WHO}} for one of {', '.join(CONSUMERS)}"
    if verb in WITH_ARGUMENT if argument else text in PLACEHOLDERS:
        return ""
    options = ", ".join((*PLACEHOLDERS, *(f"{verb}:NAME" for verb in WITH_ARGUMENT)))
    return f"unknown placeholder {{{text}}} (known: {options})"


def _cmake(raw: Mapping[str, Any], needs: list[Any]) -> Iterator[Finding]:
    cmake = table(raw, "cmake")
    if "cmake" in raw and raw.get("kind") in ("pep517", "repack", "assemble"):
        yield ("cmake",), f"[cmake] has no meaning in a recipe of kind {raw['kind']}"
    yield from below(cmake.get("source"), ("cmake", "source"), "the source folder")
    for name, variable in table(cmake, "define").items():
        path: Path = ("cmake", "define", name)
        if not re.fullmatch(f"{_NAME}(:[A-Z]+)?", name):
            yield path, f"'{name}' is no name of a CMake variable"
        yield from _variable(name, variable, path, needs)
        if isinstance(variable, dict) and "when" in variable:
            yield (*path, "when"), "a CMake definition takes no condition"
    expected = cmake.get("expect")
    for index, file in enumerate(expected if isinstance(expected, list) else []):
        yield from below(file, ("cmake", "expect", index), "the expected file")


def _prefix(raw: Mapping[str, Any]) -> Iterator[Finding]:
    prefix = table(raw, "prefix")
    if "prefix" in raw and raw.get("kind") in ("pep517", "cmake"):
        yield ("prefix",), f"[prefix] has no meaning in a recipe of kind {raw['kind']}"
    for source, folder in table(prefix, "copy").items():
        path: Path = ("prefix", "copy", source)
        yield from below(source, path, "the folder in the wheel")
        yield from below(folder, path, "the folder in the prefix")
    for link, goal in table(prefix, "links").items():
        path = ("prefix", "links", link)
        yield from below(link, path, "the link")
        if isinstance(goal, str) and (not goal or "/" in goal or goal in (".", "..")):
            yield path, f"the link points to '{goal}', which must be the name of a file beside it"
    yield from _assembled(raw, prefix)


def _assembled(raw: Mapping[str, Any], prefix: Mapping[str, Any]) -> Iterator[Finding]:
    """What only a prefix of several wheels has, and what it must have."""
    if raw.get("kind") == "assemble" and not table(prefix, "copy"):
        yield ("kind",), "a recipe of kind assemble needs [prefix] copy: which folders of the wheels to take"
    for key in ("unversioned", "stubs"):
        if key in prefix and raw.get("kind") == "repack":
            yield ("prefix", key), f"prefix.{key} has no meaning in a recipe of kind repack"
    for index, folder in enumerate(items(prefix, "unversioned")):
        yield from below(folder, ("prefix", "unversioned", index), "the folder")
    for index, stub in tables(prefix, "stubs"):
        for key in ("library", "header"):
            yield from below(stub.get(key), ("prefix", "stubs", index, key), f"the {key}")
        soname, answer = stub.get("soname"), stub.get("answer")
        if isinstance(soname, str) and not re.fullmatch(r"[^\s/]+\.so[^\s/]*", soname):
            yield ("prefix", "stubs", index, "soname"), f"'{soname}' is no soname: write libcuda.so.1"
        if stub.get("functions") == "":
            yield ("prefix", "stubs", index, "functions"), "say how the names of the functions begin"
        if isinstance(answer, int) and not 0 <= answer < 1 << 16:
            yield ("prefix", "stubs", index, "answer"), "the answer must be from 0 to 65535"


def _features(raw: Mapping[str, Any]) -> Iterator[Finding]:
    seen: list[tuple[object, object]] = []
    for index, feature in tables(raw, "features"):
        name, when = feature.get("name"), feature.get("when", {})
        path: Path = ("features", index)
        if (name, when) in seen:
            yield (*path, "name"), f"the feature '{name}' is listed twice"
        seen.append((name, when))
        if feature.get("name") == "":
            yield (*path, "name"), "a feature needs the name that the configure summary prints"


def _audit(raw: Mapping[str, Any]) -> Iterator[Finding]:
    audit, requires = table(raw, "audit"), table(raw, "requires")
    rules = list(tables(audit, "device"))
    if audit.get("host_only") and rules:
        yield (
            ("audit", "host_only"),
            "audit.host_only says that there is no device code, audit.device asks for some",
        )
    if audit.get("host_only") and requires.get("cuda") is not True:
        yield ("audit", "host_only"), "audit.host_only has a meaning only with requires.cuda = true"
    for index, rule in rules:
        yield from _device_rule(rule, ("audit", "device", index))


def _repair(raw: Mapping[str, Any]) -> Iterator[Finding]:
    repair, kind = table(raw, "repair"), raw.get("kind")
    useful = {"repack": ("exclude",), "cmake": (), "assemble": ()}.get(str(kind), tuple(repair))
    for key in repair:
        if key not in useful:
            why = "the vendor's wheel is kept byte for byte" if kind == "repack" else "it makes no wheel"
            yield ("repair", key), f"repair.{key} has no meaning in a recipe of kind {kind}: {why}"
    platform = repair.get("platform")
    if isinstance(platform, str) and platform and not re.fullmatch(r"manylinux_2_\d+", platform):
        yield (
            ("repair", "platform"),
            f"repair.platform must be like manylinux_2_34, without the machine, not '{platform}'",
        )
    seen: set[str] = set()
    for index, soname in enumerate(items(repair, "exclude")):
        if not isinstance(soname, str):
            continue
        if not re.fullmatch(r"[^\s/*?][^\s/]*\.so[^\s/]*", soname):
            yield (
                ("repair", "exclude", index),
                f"'{soname}' is no soname: write libcuda.so.1 or libtorch*.so, as NEEDED names it",
            )
        if soname in seen:
            yield ("repair", "exclude", index), f"'{soname}' is excluded already"
        seen.add(soname)


def _device_rule(rule: Mapping[str, Any], path: Path) -> Iterator[Finding]:
    yield from below(rule.get("library"), (*path, "library"), "the library")
    if rule.get("why") == "":
        yield (*path, "why"), "say what is lost without this code"
    for key in ("require", "forbid"):
        for index, text in enumerate(items(rule, key)):
            if isinstance(text, str) and not _TARGET.fullmatch(text):
                yield (*path, key, index), f"'{text}' is no architecture: write sm_121a, compute_90 or sm_12*"
    for text in items(rule, "require"):
        if text in items(rule, "forbid"):
            yield (*path, "forbid"), f"{text} is both required and forbidden"
    for index, text in enumerate(items(rule, "architectures")):
        if isinstance(text, str) and not minimum_cuda(text):
            yield (*path, "architectures", index), f"no capability is named '{text}': write 12.1"


def _naming(version: object) -> Iterator[Finding]:
    if not isinstance(version, str):
        return
    path: Path = ("wheel", "version")
    unknown = [one for one in re.findall(r"\{([^{}]*)\}", version) if one not in ("version", "label")]
    for placeholder in unknown:
        yield path, f"unknown placeholder {{{placeholder}}} in wheel.version (known: version, label)"
    filled = version.replace("{version}", "1.0").replace("{label}", "cu130.spark1")
    if not unknown and version_of(filled) is None:
        yield path, f"wheel.version '{version}' makes no version: '{filled}' is none"
