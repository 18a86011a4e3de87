"""Rules for recipes, trains and targets, alone and together."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import InvalidVersion

from spark_build.errors import Problem
from spark_build.recipes.evaluation import CONSUMERS, minimum_cuda
from spark_build.recipes.model import Recipe, Train
from spark_build.recipes.repair_rules import preflight_findings, repair_findings
from spark_build.recipes.toml_positions import (
    PLATFORMS,
    Finding,
    Path,
    Positions,
    below,
    is_specifier,
    items,
    name_rule,
    one_of,
    platforms,
    table,
    tables,
    version_of,
)
from spark_build.text import did_you_mean

__all__ = ["PLACEHOLDERS", "PLATFORMS", "Finding", "recipe_findings", "target_findings", "train_findings"]

_NEEDED = {
    "git": ("url", "commit"),
    "archive": ("url", "sha256"),
    "sdist": ("project", "filename", "sha256"),
    "wheel": ("project", "filename", "sha256"),
}
_ALLOWED = {kind: {*keys, "kind", "platform", "note"} for kind, keys in _NEEDED.items()}
_ALLOWED["git"] |= {"tag", "submodules", "mirrors"}
_ALLOWED["archive"] |= {"mirrors"}
_URL = re.compile(r"(https?|ssh|git|file)://\S+|/\S+")


def recipe_findings(raw: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield the mistakes in a recipe's values."""
    yield from name_rule(raw.get("name"), ("name",))
    needs = [need.get("name") for _, need in tables(raw, "needs")]
    yield from build_findings(raw, needs)
    yield from _packages(raw)
    yield from _need_rules(raw, needs)
    if isinstance(raw.get("pin"), dict):
        yield from _pin_rules(("pin",), str(raw.get("name", "it")), raw["pin"])
    for index, patch in tables(raw, "patches"):
        yield from _patch_rules(("patches", index), patch)
    yield from platforms(table(raw, "requires"), ("requires",))
    for index, check in enumerate(items(table(raw, "verify"), "checks")):
        if isinstance(check, str) and not re.fullmatch("[a-z0-9_]+", check):
            yield ("verify", "checks", index), f"'{check}' is no name of a check: bench/checks/<name>.py"


def train_findings(raw: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield the mistakes in a train's pins."""
    for name, version in table(raw, "closure").items():
        yield from name_rule(name, ("closure", name))
        yield from _version_rule(version, ("closure", name))
    for name, pin in table(raw, "components").items():
        path: Path = ("components", name)
        yield from name_rule(name, path)
        if isinstance(pin, dict):
            yield from _pin_rules(path, name, pin)


def target_findings(raw: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield the mistakes in the description of a machine."""
    yield from one_of(raw.get("platform"), (*PLATFORMS, "host"), ("platform",), "platform")
    python = raw.get("python")
    if isinstance(python, str) and not re.fullmatch(r"cp3\d+t?|host", python):
        yield ("python",), f"python must be like cp312, or host, not '{python}'"
    architectures = items(raw, "cuda_architectures")
    for index, entry in enumerate(architectures):
        if isinstance(entry, str) and not re.fullmatch(r"\d{1,2}\.\d", entry):
            yield ("cuda_architectures", index), f"a CUDA architecture must be like 12.1, not '{entry}'"
    cuda = raw.get("cuda", "")
    if isinstance(cuda, str) and cuda and not re.fullmatch(r"\d+\.\d+", cuda):
        yield ("cuda",), f"cuda must be like 13.0, not '{cuda}'"
    if bool(cuda) != bool(architectures):
        have, lack = ("cuda", "cuda_architectures") if cuda else ("cuda_architectures", "cuda")
        yield (have,), f"{have} without {lack}: give both, or neither for a machine without CUDA"


def _pin_rules(path: Path, name: str, pin: Mapping[str, Any]) -> Iterator[Finding]:
    """Check a component's pin, in a train or in its own recipe."""
    sources = list(tables(pin, "sources"))
    if pin.get("sources") == [] and not pin.get("unestablished"):
        yield (
            (*path, "sources"),
            f"{name} has no source: pin one, or say in unestablished why there is none",
        )
    commits = [str(source.get("commit", "")) for _, source in sources if source.get("kind") == "git"]
    if not _is_hash_version(pin.get("version"), commits):
        yield from _version_rule(pin.get("version"), (*path, "version"))
    # Of several projects: a set that makes one prefix, in which each wheel has its own version.
    is_set = len({str(source.get("project")) for _, source in sources if source.get("kind") == "wheel"}) > 1
    seen: set[tuple[str, str]] = set()
    for index, source in sources:
        yield from _source_rules((*path, "sources", index), source)
        version = None if is_set else pin.get("version")
        yield from _filename_rule((*path, "sources", index), source, version)
        which = (str(source.get("project")), str(source.get("platform")))
        if is_set and which in seen:
            yield (*path, "sources", index), f"{which[0]} is in this set already, for the same platform"
        seen.add(which)
        for key in ("copy", "folder"):
            if key in source:
                yield (*path, "sources", index, key), f"'{key}' has a meaning in an extra source only"
    for extra, source in table(pin, "extra_sources").items():
        if isinstance(source, dict):
            where: Path = (*path, "extra_sources", extra)
            yield from _source_rules(where, source)
            yield from _filename_rule(where, source, None)
            yield from name_rule(source.get("folder") or None, (*where, "folder"))
            for inside, laid in table(source, "copy").items():
                yield from below(inside, (*where, "copy", inside), "the path in the source")
                yield from below(laid, (*where, "copy", inside), "the path in the folder")


def _source_rules(path: Path, source: Mapping[str, Any]) -> Iterator[Finding]:
    """Check that a source is pinned as its kind requires."""
    kind = source.get("kind")
    if kind == "local":
        yield (*path, "kind"), "a folder is no pinned source: name it with --source NAME=DIR"
    if kind not in _NEEDED:
        return
    for key in _NEEDED[kind]:
        # commit = "": `recipes pin` is to read it from the tag. Left out altogether it is a slip.
        is_open = key == "commit" and source.get(key) == "" and source.get("tag")
        if not source.get(key) and not is_open:
            yield path, f"a source of kind {kind} needs '{key}'"
    if kind == "git" and not source.get("tag") and not source.get("note"):
        yield path, "a source of kind git needs 'tag' (or a 'note' that says why there is none)"
    for key in source:
        if key not in _ALLOWED[kind] and key in {"tag", "submodules", "mirrors"}.union(*_NEEDED.values()):
            yield (*path, key), f"'{key}' has no meaning in a source of kind {kind}"
    yield from _digits_rule(source.get("sha256"), 64, (*path, "sha256"))
    yield from _digits_rule(source.get("commit") or None, 40, (*path, "commit"))
    yield from one_of(source.get("platform") or None, PLATFORMS, (*path, "platform"), "platform")
    yield from _url_rules(path, source)


def _url_rules(path: Path, source: Mapping[str, Any]) -> Iterator[Finding]:
    """Check a source's places: each one an address, no duplicates."""
    listed = [((*path, "mirrors", index), place) for index, place in enumerate(items(source, "mirrors"))]
    seen: set[str] = set()
    for where, place in [((*path, "url"), source.get("url")), *listed]:
        if not isinstance(place, str) or (where[-1] == "url" and not place):
            continue
        what = "url" if where[-1] == "url" else "a mirror"
        if not _URL.fullmatch(place):
            yield (
                where,
                f"{what} must start with https://, http://, ssh://, git://, file:// or /, not '{place}'",
            )
        if place in seen:
            yield where, f"the mirror '{place}' is named already"
        seen.add(place)


def _filename_rule(path: Path, source: Mapping[str, Any], version: object) -> Iterator[Finding]:
    """Check that the file is of this project and version, which catches half an update of a pin."""
    filename, project, kind = source.get("filename"), source.get("project"), source.get("kind")
    if kind not in ("sdist", "wheel") or not isinstance(filename, str) or not filename:
        return
    try:
        parse = parse_sdist_filename if kind == "sdist" else parse_wheel_filename
        found_name, found_version = parse(filename)[:2]
    except (InvalidSdistFilename, InvalidWheelFilename, InvalidVersion):
        yield (
            (*path, "filename"),
            f"'{filename}' is no file name of {'an sdist' if kind == 'sdist' else 'a wheel'}",
        )
        return
    if isinstance(project, str) and project and canonicalize_name(project) != found_name:
        yield (*path, "filename"), f"'{filename}' is no file of the project {project}"
    if isinstance(version, str) and version_of(version) not in (None, found_version):
        yield (*path, "filename"), f"'{filename}' is version {found_version}, but the pin says {version}"


def _need_rules(raw: Mapping[str, Any], needs: list[Any]) -> Iterator[Finding]:
    for index, need in tables(raw, "needs"):
        path, name = ("needs", index, "name"), need.get("name")
        yield from name_rule(name, path)
        if name is not None and name == raw.get("name"):
            yield path, f"{name} cannot need itself"
        if name is not None and name in needs[:index]:
            yield path, f"the need '{name}' is listed twice"
        yield from platforms(table(need, "when"), ("needs", index, "when"))
        if need.get("providers") == []:
            yield ("needs", index, "providers"), f"the need '{name}' has no provider: store, public or path"
        if isinstance(versions := need.get("versions"), str) and not is_specifier(versions):
            yield (
                ("needs", index, "versions"),
                f"'{versions}' does not say which versions will do: \">=2.4,<3\"",
            )


def _patch_rules(path: Path, patch: Mapping[str, Any]) -> Iterator[Finding]:
    file = patch.get("file")
    if isinstance(file, str) and (not file or file.startswith("/") or ".." in file.split("/")):
        yield (*path, "file"), f"'{file}' must be a path below patches/"
    if patch.get("why") == "":
        yield (*path, "why"), "say why the patch exists"
    yield from _digits_rule(patch.get("sha256"), 64, (*path, "sha256"))


def _digits_rule(value: object, count: int, path: Path) -> Iterator[Finding]:
    if isinstance(value, str) and value and not re.fullmatch(f"[0-9a-f]{{{count}}}", value):
        yield path, f"{path[-1]} must be {count} hexadecimal digits in lower case"


def _version_rule(value: object, path: Path) -> Iterator[Finding]:
    if isinstance(value, str) and version_of(value) is None:
        yield path, f"'{value}' is no version"


def _is_hash_version(version: object, commits: list[str]) -> bool:
    """Return whether a version is the start of a commit, as for Triton's LLVM."""
    return isinstance(version, str) and len(version) >= 7 and any(c.startswith(version) for c in commits)


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
    """Yield the mistakes in how a recipe is built."""
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
    yield from _scons(raw, needs)
    yield from repair_findings(raw)
    yield from preflight_findings(raw)
    yield from _naming(table(raw, "wheel").get("version"))


def _amounts(part: Mapping[str, Any], path: Path) -> Iterator[Finding]:
    """Yield invalid costs of [build] or of one variant."""
    for key in ("memory_per_job_mib", "threads_per_job", "core_minutes", "disk_mib"):
        amount = part.get(key, 1)
        if isinstance(amount, int | float) and not (math.isfinite(amount) and amount > 0):
            yield (*path, key), f"build.{key} must be more than 0"


# Debian's policy and RPM: no option, glob, path or shell. A - at the end tells apt-get to remove.
_PACKAGE = {
    "apt": re.compile(r"[a-z0-9][a-z0-9+.-]*[a-z0-9+]"),
    "dnf": re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*"),
}


def _packages(raw: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield names of system packages that are none: they become arguments of a command of root's."""
    for path, part in ((("system",), table(raw, "system")), *_parts(raw)):
        for manager, names in _PACKAGE.items():
            listed = part.get(manager)
            for index, name in enumerate(listed if isinstance(listed, list) else []):
                if isinstance(name, str) and not names.fullmatch(name):
                    yield (*path, manager, index), f"'{name}' is no name of a package for {manager}"


def _changes(part: Mapping[str, Any], path: Path, needs: list[Any]) -> Iterator[Finding]:
    """Check the pins and variables of [build] or of one variant."""
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
    """Check a variable of the environment or of CMake: its reason, its placeholders."""
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
    """Check that files placed in the source come from an extra source."""
    if not isinstance(variable, dict):
        return
    if variable.get("why") == "":
        yield (*path, "why"), f"say why something is placed at {folder}: name the file that reads it"
    value = variable.get("value")
    if isinstance(value, str) and not re.fullmatch(r"\{extra:[^{}]+\}(/[^{}]*)?", value):
        yield (*path, "value"), f"'{value}' is no extra source: write {{extra:NAME}}"


def _placeholder(text: str, needs: list[Any]) -> str:
    """Return what is wrong with {text}; "" when nothing is."""
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
    if "cmake" in raw and raw.get("kind") in ("pep517", "scons", "repack", "assemble"):
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


def _scons(raw: Mapping[str, Any], needs: list[Any]) -> Iterator[Finding]:
    scons = table(raw, "scons")
    if "scons" in raw and raw.get("kind") != "scons":
        yield ("scons",), f"[scons] has no meaning in a recipe of kind {raw.get('kind')}"
    if raw.get("kind") == "scons" and not table(scons, "copy"):
        yield ("kind",), "a recipe of kind scons needs [scons] copy: which files to take into the prefix"
    for name, variable in table(scons, "argument").items():
        path: Path = ("scons", "argument", name)
        if not re.fullmatch(_NAME, name):
            yield path, f"'{name}' is no name of an argument of scons"
        yield from _variable(name, variable, path, needs)
        if isinstance(variable, dict) and "when" in variable:
            yield (*path, "when"), "an argument of scons takes no condition"
    for pattern, folder in table(scons, "copy").items():
        yield from below(pattern, ("scons", "copy", pattern), "the files in the tree")
        yield from below(folder, ("scons", "copy", pattern), "the folder in the prefix")
    for index, file in enumerate(items(scons, "expect")):
        yield from below(file, ("scons", "expect", index), "the expected file")


def _prefix(raw: Mapping[str, Any]) -> Iterator[Finding]:
    prefix = table(raw, "prefix")
    if "prefix" in raw and raw.get("kind") in ("pep517", "cmake", "scons"):
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
    """Check the fields that a prefix of several wheels has alone, and must have."""
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


_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")


def condition_findings(raw: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield conditions on platforms and options that do not exist."""
    options = table(raw, "options")
    for path, part in _conditional(raw):
        when = table(part, "when")
        yield from platforms(when, (*path, "when"))
        for name, value in table(when, "options").items():
            here: Path = (*path, "when", "options", name)
            choices = items(table(options, name), "choices")
            if name not in options:
                yield here, _unknown(name, options)
            elif choices and value not in choices:
                yield here, f"the option {name} is never '{value}' (choices: {_listed(choices)})"


def option_findings(raw: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield the mistakes in the options and in the values that refer to them."""
    options, requires = table(raw, "options"), table(raw, "requires")
    for name, option in options.items():
        if isinstance(option, dict):
            yield from _option(name, option)
    for path, text in _values(raw):
        for placeholder in _PLACEHOLDER.findall(text):
            verb, _, name = placeholder.partition(":")
            if verb == "option" and name and name not in options:
                yield path, f"{{{placeholder}}}: {_unknown(name, options)}"
            elif verb != "option" and "compile_flags" in path:
                yield path, f"{{{placeholder}}}: compile_flags take only {{option:NAME}}"
    if requires.get("cpu") is True and requires.get("cuda") is not True:
        yield ("requires", "cpu"), "requires.cpu has a meaning only with requires.cuda = true"


def _option(name: str, option: Mapping[str, Any]) -> Iterator[Finding]:
    path: Path = ("options", name)
    if not re.fullmatch("[a-z][a-z0-9_]*", name):
        yield path, f"the name of the option '{name}' must be in lower case: letters, digits and '_'"
    if option.get("why") == "":
        yield (*path, "why"), f"say what the option {name} decides"
    value, choices = option.get("value"), items(option, "choices")
    if choices and value not in choices:
        yield (*path, "value"), f"'{value}' is no choice of the option {name} ({_listed(choices)})"


def _conditional(raw: Mapping[str, Any]) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """Yield every table that may have a condition, with its place."""
    for path, part in _parts(raw):
        if path != ("build",):
            yield path, part
        for name, variable in table(part, "env").items():
            if isinstance(variable, dict):
                yield (*path, "env", name), variable
    for key in ("features", "needs"):
        for index, one in tables(raw, key):
            yield (key, index), one
    for key, inner in (("repair", "external"), ("repair", "requires"), ("preflight", "libraries")):
        for index, one in tables(table(raw, key), inner):
            yield (key, inner, index), one


def _values(raw: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    """Yield every text that may refer to an option, with its place."""
    found: list[tuple[Path, object]] = [
        (("build", "compile_flags", index), flag)
        for index, flag in enumerate(items(table(raw, "build"), "compile_flags"))
    ]
    tabled: list[tuple[Path, Mapping[str, Any]]] = [
        ((*path, "env"), table(part, "env")) for path, part in _parts(raw)
    ]
    tabled.append((("cmake", "define"), table(table(raw, "cmake"), "define")))
    found += [
        ((*path, name, "value"), variable.get("value"))
        for path, variables in tabled
        for name, variable in variables.items()
        if isinstance(variable, dict)
    ]
    yield from ((path, text) for path, text in found if isinstance(text, str))


def _parts(raw: Mapping[str, Any]) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    build = table(raw, "build")
    yield ("build",), build
    yield from ((("build", "variants", index), one) for index, one in tables(build, "variants"))


def _unknown(name: str, options: Mapping[str, Any]) -> str:
    return f"this recipe has no option '{name}' (options: {_listed(sorted(options)) or 'none'})"


def _listed(values: list[Any]) -> str:
    return ", ".join(str(value) or "''" for value in values)


def cross_check(
    recipes: Mapping[str, Recipe], trains: Mapping[str, Train], texts: Mapping[str, str]
) -> tuple[Problem, ...]:
    """Return all problems between files. `texts`: the files by display name, for line numbers."""
    found = [*_needs_without_recipe(recipes), *_circle(recipes), *_pins_without_recipe(recipes, trains)]
    if trains and not any(train.default for train in trains.values()):
        found.append((f"recipes/trains/{min(trains)}.toml", ("default",), "no train is the default one"))
    return tuple(
        Problem(file=file, line=Positions(texts.get(file, "")).line(path), message=message)
        for file, path, message in found
    )


def _needs_without_recipe(recipes: Mapping[str, Recipe]) -> Iterator[tuple[str, Path, str]]:
    for name, recipe in recipes.items():
        for index, need in enumerate(recipe.needs):
            if need.name not in recipes:
                hint = did_you_mean(need.name, recipes.keys() - {name})
                yield _file(name), ("needs", index, "name"), f"no recipe is named '{need.name}'{hint}"


def _circle(recipes: Mapping[str, Recipe]) -> Iterator[tuple[str, Path, str]]:
    graph = {name: [need.name for need in recipe.needs] for name, recipe in recipes.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        # graphlib lists each one before the one that needs it; first and last are the same.
        circle = list(reversed(error.args[1]))
        path: Path = ("needs", graph[circle[0]].index(circle[1]), "name")
        yield _file(circle[0]), path, f"the needs go round in a circle: {' -> '.join(circle)}"


def _pins_without_recipe(
    recipes: Mapping[str, Recipe], trains: Mapping[str, Train]
) -> Iterator[tuple[str, Path, str]]:
    for train in trains.values():
        for name in train.components:
            if name not in recipes:
                hint = did_you_mean(name, recipes)
                file = f"recipes/trains/{train.name}.toml"
                yield file, ("components", name), f"no recipe is named '{name}'{hint}"


def _file(recipe: str) -> str:
    """Return the display name of a recipe's file; parse_recipe checked that it is its name."""
    return f"recipes/{recipe}.toml"
