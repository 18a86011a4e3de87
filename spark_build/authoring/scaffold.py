"""Write a recipe for an sdist or a git tag."""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from spark_build.authoring.locks import write_locks
from spark_build.authoring.pins import facts_of, sha256_of_file
from spark_build.authoring.sdist_metadata import Sources, Survey, describing, survey, version_in
from spark_build.errors import HostError, SourceError, UsageError
from spark_build.events import Emit, Note
from spark_build.files import write_atomically
from spark_build.paths import Home
from spark_build.process import run
from spark_build.recipes.loader import Catalogue
from spark_build.recipes.model import (
    Build,
    Naming,
    Need,
    Pin,
    Recipe,
    Repair,
    Required,
    Requires,
    Source,
    System,
    Variable,
    Variant,
    When,
)
from spark_build.recipes.parse import joint_error, parse_recipe
from spark_build.recipes.toml_positions import quote
from spark_build.recipes.validation import cross_check
from spark_build.sources import git_remote
from spark_build.sources.archives import unpack
from spark_build.sources.download import fetch_pinned
from spark_build.sources.git import export_commit, fetch_commit
from spark_build.sources.simple_api import Indexes, configured, files_of, size_of
from spark_build.text import nearest
from spark_build.venv import clean_environment, error_in

ESTIMATE = "# estimate"


def draft(name: str, found: Survey, pin: Pin, requires: Sequence[str], needs: Mapping[str, str]) -> Recipe:
    """Return a recipe from a survey; `requires` are exact pins, `needs` come from store or public."""
    memory, minutes, disk = _costs(found)
    return Recipe(
        name=name,
        distribution=found.distribution or name,
        summary=_one_line(found.summary) or found.distribution or name,
        kind="pep517",
        notes=found.notes,
        pin=pin,
        needs=_needs(found, needs),
        build=Build(
            requires=tuple(requires),
            memory_per_job_mib=memory,
            core_minutes=minutes,
            disk_mib=disk,
            env=_env(found, pin),
            variants=_variants(found),
        ),
        requires=Requires(cuda=found.cuda_only),
        wheel=Naming(version="{version}+{label}") if found.label else Naming(),
        repair=_repair(found, needs),
        system=System(apt=("g++", "python3-dev") if found.compiled else ()),
    )


def render(recipe: Recipe, *, head: str, about_requires: str) -> str:
    """Return the TOML text of a drafted recipe, which parses to the same value.

    `head` and `about_requires` become comments.
    """
    assert recipe.pin is not None
    lines = [*_comment(head), *_pairs(recipe, "name", "distribution", "summary", "kind")]
    if recipe.notes:
        lines += ["notes = [", *(f"  {quote(note)}," for note in recipe.notes), "]"]
    lines += ["", "[pin]", "# For every train that does not list this component."]
    lines += _pairs(recipe.pin, "version")
    for source in recipe.pin.sources:
        lines += [
            "",
            "[[pin.sources]]",
            *_pairs(source, *(field.name for field in fields(Source)), skip=True),
        ]
    for need in recipe.needs:
        lines += ["", "[[needs]]", *_pairs(need, "name", "versions", "providers", "why", skip=True)]
        if need.when.cuda:
            lines.append("when = { cuda = true }")
    lines += ["", "[build]", *_comment(about_requires), *_list("requires", recipe.build.requires)]
    costs = _pairs(recipe.build, "memory_per_job_mib", "core_minutes", "disk_mib")
    lines += [f"{line} {ESTIMATE}" for line in costs]
    for name, variable in recipe.build.env.items():
        lines += ["", f"[build.env.{name}]", *_pairs(variable, "value", "why")]
    for variant in recipe.build.variants:
        lines += ["", "[[build.variants]]", "when = { cuda = true }"]
        for name, variable in variant.env.items():
            lines.append(f"env.{name} = {{ {', '.join(_pairs(variable, 'value', 'why'))} }}")
    lines += _closing(recipe)
    return "\n".join(lines) + "\n"


def _closing(recipe: Recipe) -> Iterator[str]:
    """Yield the last tables: requirements on target, system and wheel."""
    if recipe.requires.cuda:
        yield from ("", "[requires]", "cuda = true # .cu files, and no way around them was seen")
    if recipe.wheel != Naming():
        yield from ("", "[wheel]", *_pairs(recipe.wheel, "version"))
    if recipe.system.apt:
        yield from ("", "[system]", *_pairs(recipe.system, "apt"))
    if recipe.repair.bundle:
        yield from ("", "[repair]", "bundle = true # libraries that not every Linux has go into the wheel")
    if recipe.repair.exclude:
        yield "# From torch and the CUDA toolkit, whose libraries a wheel of ours never carries along."
        yield from _list("exclude", recipe.repair.exclude)
    for required in recipe.repair.requires:
        yield from ("", "[[repair.requires]]", *_pairs(required, "requirement", "why"))


def _costs(found: Survey) -> tuple[int, float, int]:
    """Return MiB per job, core minutes and MiB on disk, by the kind of code."""
    if found.torch_extension or found.cuda_files:
        memory = 4096 if found.cuda_files else 2048
        minutes = 0.5 * (found.compiled - found.cuda_files) + 2.0 * found.cuda_files
        return memory, max(1.0, minutes), 2048
    if found.compiled:
        return 1024, max(0.5, round(0.1 * found.compiled, 1)), 1024
    return 256, 0.1, 256


def _env(found: Survey, pin: Pin) -> dict[str, Variable]:
    """Return variables that keep the number of compile jobs within this machine's memory."""
    env: dict[str, Variable] = {}
    if found.ninja:
        env["MAX_JOBS"] = Variable(value="{jobs}", why="torch/utils/cpp_extension.py: passed to ninja as -j")
    if found.cmake:
        env["CMAKE_BUILD_PARALLEL_LEVEL"] = Variable(
            value="{jobs}", why="CMake: cmake --build without --parallel takes it"
        )
        env["CMAKE_GENERATOR"] = Variable(
            value="Ninja",
            why="CMake: Ninja deletes half-written objects after an interruption, GNU make trusts them",
        )
    for name, value in found.force_build.items():
        env[name] = Variable(value=value, why="setup.py: else it may download a finished wheel")
    if found.label:
        env[found.label] = Variable(value="{label}", why="setup.py: the local version label")
    scm = any(re.match(r"(setuptools[-_.]scm|hatch-vcs)\b", text) for text in found.asked)
    if scm and any(source.kind == "git" for source in pin.sources):
        env["SETUPTOOLS_SCM_PRETEND_VERSION"] = Variable(
            value="{version}", why="setuptools_scm: asks the history, which a pinned source does not have"
        )
    return env


def _needs(found: Survey, needs: Mapping[str, str]) -> tuple[Need, ...]:
    """Return the needs: other components, and cuda for CUDA code.

    An extension takes minutes and torch hours: torch is not built for it.
    """
    listed = [
        Need(
            name=need,
            versions=found.limits.get(need, ""),
            providers=("public", "store") if need == "torch" else ("store", "public"),
            why=why,
        )
        for need, why in sorted(needs.items())
    ]
    if found.cuda_files and "cuda" not in needs:
        why = "nvcc and the toolkit's headers, for the .cu files"
        listed.append(Need(name="cuda", providers=("store", "path"), why=why, when=When(cuda=True)))
    return tuple(listed)


def _variants(found: Survey) -> tuple[Variant, ...]:
    if not (found.cuda_files and "torch" in found.needs):
        return ()
    reader = "find_package(Torch)" if found.cmake else "torch/utils/cpp_extension.py"
    value = "{arch_list:cpp_extension}"
    env = {"TORCH_CUDA_ARCH_LIST": Variable(value=value, why=f"{reader}: else the GPUs seen here")}
    env["CUDA_HOME"] = Variable(value="{need:cuda}", why=f"{reader}: which toolkit")
    if found.force_cuda:
        env[found.force_cuda] = Variable(value="1", why="setup.py: CUDA code although no GPU is seen")
    return (Variant(when=When(cuda=True), env=env),)


def _repair(found: Survey, needs: Mapping[str, str]) -> Repair:
    """Return what goes into the wheel: libraries of the system, not those of torch and of CUDA."""
    linked = found.compiled and "torch" in needs
    exclude = ("libc10*.so", "libtorch*.so") if linked else ()
    requires = (Required(requirement="torch=={version:torch}", why=_ABI),) if linked else ()
    return Repair(
        bundle=bool(found.compiled),
        exclude=(*exclude, *(_NVIDIA if found.cuda_files else ())),
        requires=requires,
    )


# NVIDIA's driver, toolkit and the libraries beside it, whichever of them the project is linked with.
_NVIDIA = (
    "libcuda.so.1",
    "libcudart.so.*",
    "libcublas*.so.*",
    "libcudnn*.so.*",
    "libcufft*.so.*",
    "libcufile*.so.*",
    "libcupti.so.*",
    "libcurand.so.*",
    "libcusolver*.so.*",
    "libcusparse*.so.*",
    "libnccl.so.*",
    "libnpp*.so.*",
    "libnvJitLink.so.*",
    "libnvjpeg.so.*",
    "libnvrtc*.so.*",
    "libnvshmem*.so.*",
)
_ABI = "compiled against this torch; another minor version has another ABI"


def _comment(text: str) -> Iterator[str]:
    for line in text.split("\n"):
        yield "# " + re.sub(r"[\x00-\x1f\x7f]", " ", line).rstrip()


def _pairs(value: object, *names: str, skip: bool = False) -> list[str]:
    """Return `name = value` for a dataclass's fields; `skip`: without the empty ones."""
    pairs = [(name, getattr(value, name)) for name in names]
    return [f"{name} = {_toml(value)}" for name, value in pairs if value or not skip]


def _list(name: str, values: Sequence[str]) -> list[str]:
    return [f"{name} = [", *(f"  {quote(value)}," for value in values), "]"] if values else [f"{name} = []"]


def _toml(value: object) -> str:
    if isinstance(value, str):
        return quote(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return str(value)


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 120 else f"{line[:117]}..."


MAX_TEXT = 4 << 20  # bytes read of a file that describes a project
MAX_TEXTS = 32 << 20  # of all such files


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """A new recipe's source: exactly one of sdist ("PKG==VER") and git ("URL@TAG")."""

    name: str
    base: Path  # the folder whose recipes/ gets the file
    sdist: str = ""
    git: str = ""
    needs: tuple[str, ...] = ()
    force: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Created:
    """A new recipe and its file."""

    path: Path
    recipe: Recipe
    version: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Draft:
    """Facts about a project for a new recipe; nothing is written yet."""

    request: Request
    path: Path
    found: Survey
    pin: Pin
    requires: tuple[str, ...]
    needs: Mapping[str, str]  # recipe -> why

    def without_needs(self, names: Collection[str]) -> Draft:
        """Return the draft without needs that have no recipe after all."""
        return replace(self, needs={name: why for name, why in self.needs.items() if name not in names})


def create(request: Request, home: Home, catalogue: Catalogue, emit: Emit) -> Created:
    """Write recipes/<name>.toml atomically.

    Raises UsageError for a bad request, SourceError when something cannot be had, HostError when
    this Python is not one of the project's.
    """
    return write(look_into(request, home, catalogue, recipes_of(catalogue), emit), home, catalogue, emit)


def recipes_of(catalogue: Catalogue) -> dict[str, str]:
    """Return the recipe of each distribution."""
    return {canonicalize_name(one.distribution): one.name for one in catalogue.recipes.values()}


def look_into(
    request: Request, home: Home, catalogue: Catalogue, recipes: Mapping[str, str], emit: Emit
) -> Draft:
    """Get the source and read what builds it; raises as `create`.

    recipes: distribution -> recipe, to find needs among its build requirements.
    """
    path = _free(request, home, catalogue)
    for need in request.needs:
        catalogue.recipe(need)
    with tempfile.TemporaryDirectory(prefix="spark-build-new-") as scratch:
        folder = Path(scratch)
        source, version, top = (_from_sdist if request.sdist else _from_git)(request, home, folder, emit)
        found = survey(read_sources(top), recipes)
        _check_python(found, version)
        version = version or _version(found, source)
        emit(Note(message=f"resolving what builds {request.name}: {', '.join(found.requires)}"))
        pins = resolve(found.requires, folder)
    needs = {name: why for name, why in found.needs.items() if name != request.name}
    needs |= {name: "asked for with --needs" for name in request.needs if name not in needs}
    return Draft(
        request=request,
        path=path,
        found=found,
        pin=Pin(version=version, sources=(source,)),
        requires=pins,
        needs=needs,
    )


def write(prepared: Draft, home: Home, catalogue: Catalogue, emit: Emit) -> Created:
    """Write the recipe and its lock."""
    name, found = prepared.request.name, prepared.found
    recipe = draft(name, found, prepared.pin, prepared.requires, prepared.needs)
    text = render(recipe, head=_head(recipe), about_requires=_about(found))
    _check(text, recipe, catalogue)
    write_atomically(prepared.path, text)
    known = replace(catalogue, recipes={**catalogue.recipes, name: recipe})
    rows, _ = write_locks(home, known, [name], base=prepared.request.base)
    for row in rows:
        if row.state != "written":
            emit(Note(message=f"its build requirements are not locked by hash: {row.state}"))
    return Created(path=prepared.path, recipe=recipe, version=prepared.pin.version)


def shadowed(name: str, catalogue: Catalogue) -> list[str]:
    """Return a note for each train that lists the component and so overrides the recipe's own pin."""
    before = catalogue.recipes.get(name)
    own = before.pin if before else None
    pins = {train.name: train.components.get(name) for train in catalogue.trains.values()}
    return [
        f"train {train} pins {name} {pin.version} itself, which comes before the recipe's own pin"
        for train, pin in pins.items()
        if pin is not None and pin != own
    ]


def read_sources(top: Path) -> Sources:
    """Return the names of all files, and the texts of those that describe the project."""
    paths = []
    for folder, folders, names in os.walk(top):
        folders[:] = [name for name in folders if name != ".git"]
        paths += [str(Path(folder, name).relative_to(top)) for name in names]
    texts, left = {}, MAX_TEXTS
    for name in describing(paths):
        file = top / name
        # A link out of the tree would show something of this machine.
        if file.is_file() and file.resolve().is_relative_to(top.resolve()):
            with file.open("rb") as stream:
                content = stream.read(min(MAX_TEXT, left))
            left -= len(content)
            texts[name] = content.decode(errors="replace")
    return Sources(paths=tuple(sorted(paths)), texts=texts)


def resolve(requirements: Sequence[str], folder: Path, what: str = "what builds it") -> tuple[str, ...]:
    """Return exact pins for requirements and their requirements, by pip, wheels only, without installing."""
    report = folder / "report.json"
    command = [sys.executable, "-P", "-m", "pip", "--disable-pip-version-check", "--no-input", "install"]
    options = ["--dry-run", "--ignore-installed", "--quiet", "--only-binary=:all:", "--report", str(report)]
    if not requirements:
        return ()
    done = run([*command, *options, "--", *requirements], env=clean_environment(), cwd=folder)
    if done.returncode != 0:
        raise SourceError(
            f"{what} cannot be had as wheels: {error_in(done.output)}",
            hint=f"check the network and `{sys.executable} -m pip config list`; asked for: "
            + ", ".join(requirements),
        )
    found = [item["metadata"] for item in json.loads(report.read_text())["install"]]
    return tuple(sorted(f"{canonicalize_name(row['name'])}=={row['version']}" for row in found))


def _free(request: Request, home: Home, catalogue: Catalogue) -> Path:
    """Return the new recipe's file. Raises UsageError when the name is invalid or exists."""
    name = request.name
    if not re.fullmatch("[a-z0-9]+(-[a-z0-9]+)*", name):
        raise UsageError(
            f"'{name}' is no name of a recipe: lower case, words joined by '-'",
            hint=f"try {re.sub('[^a-z0-9]+', '-', name.lower()).strip('-') or 'my-library'}",
        )
    path = request.base / "recipes" / f"{name}.toml"
    taken = path if path.exists() else home.find(f"recipes/{name}.toml")
    if not request.force and (taken is not None or name in catalogue.recipes):
        raise UsageError(
            f"there is a recipe named '{name}': {taken}", hint="take another name, or replace it with --force"
        )
    return path


def _from_sdist(request: Request, home: Home, folder: Path, emit: Emit) -> tuple[Source, str, Path]:
    """Return the pinned sdist, its version and its unpacked tree."""
    project, version = _exact(request.sdist)
    indexes = configured()
    source = find_sdist(project, version, indexes)
    emit(Note(message=f"looking into {source.filename}"))
    archive = fetch_pinned(source, folder=home.sources, indexes=indexes)
    return source, str(version), unpack(archive, folder / "source")


def _exact(text: str) -> tuple[str, Version]:
    try:
        requirement = Requirement(text)
        (only,) = requirement.specifier
        if only.operator == "==" and not requirement.extras and not requirement.marker:
            return requirement.name, Version(only.version)
    except (InvalidRequirement, ValueError):  # not one version, or none at all
        pass
    raise UsageError(f"--sdist wants PROJECT==VERSION, not '{text}'", hint="--sdist torch-scatter==2.1.2")


def find_sdist(project: str, version: Version, indexes: Indexes) -> Source:
    """Return the sdist of that version with its hash. Raises SourceError with the existing versions."""
    there: dict[Version, list[str]] = {}
    files = files_of(project, indexes)
    for file in files:
        facts = facts_of(file.filename, project)
        if facts and not facts[1]:
            there.setdefault(facts[0], []).append(file.filename)
    if version not in there:
        some = ", ".join(str(one) for one in sorted(there, reverse=True)[:8])
        hint = f"sdists are there of {some}" if there else "take its repository: --git URL@TAG"
        raise SourceError(f"there is no sdist of {project} {version}", hint=hint)
    filename = min(there[version], key=lambda name: (not name.endswith(".tar.gz"), name))
    file = next(file for file in files if file.filename == filename)
    return Source(
        kind="sdist",
        project=canonicalize_name(project),
        filename=filename,
        sha256=sha256_of_file(file, indexes),
        size=size_of(file, indexes) or 0,
    )


def _from_git(request: Request, home: Home, folder: Path, emit: Emit) -> tuple[Source, str, Path]:
    """Return the pinned commit and its files; the version comes later, from the files or the tag."""
    url, tag = _repository(request.git)
    emit(Note(message=f"asking {url} for {tag}"))
    known = git_remote.remote_tags(url)
    if tag not in known:
        newest = ", ".join(
            sorted(known, key=lambda one: (Version(version_in(one) or "0"), one), reverse=True)[:8]
        )
        hint = f"tags are {newest}" if known else "it has no tags"
        raise SourceError(f"{url} has no tag '{tag}'{nearest(tag, known)}", hint=hint)
    source = Source(kind="git", url=url, tag=tag, commit=known[tag])
    emit(Note(message=f"looking into commit {source.commit}"))
    fetch_commit(source, folder=home.sources, offline=False, log=None)
    top = folder / "source"
    export_commit(source, folder=home.sources, destination=top)
    return replace(source, submodules=(top / ".gitmodules").exists()), "", top


def _repository(text: str) -> tuple[str, str]:
    """Split URL@TAG into URL and tag."""
    url, _, tag = text.rpartition("@")
    example = "--git https://host/owner/project@v1.0"
    try:
        git_remote.check_address(url)
        git_remote.check_tag(tag)
    except git_remote.BadAddressError as error:
        raise UsageError(
            f"--git wants URL@TAG, not '{git_remote.display_url(text)}': {error}", hint=example
        ) from None
    if not re.match(r"(https?|ssh|git|file)://|/", url) or not tag:
        raise UsageError(f"--git wants URL@TAG, not '{git_remote.display_url(text)}'", hint=example)
    if re.match(r"(https?|git)://[^/]*@", url):
        raise UsageError(
            "the URL holds a login, which does not belong into a recipe",
            hint="leave it out; git's own credential helpers apply",
        )
    return url, tag


def _version(found: Survey, source: Source) -> str:
    """Return a git source's version from its files, else the tag, else the start of the commit."""
    return found.version or version_in(source.tag) or source.commit[:12]


def _check_python(found: Survey, version: str) -> None:
    here = ".".join(map(str, sys.version_info[:3]))
    try:
        fits = SpecifierSet(found.requires_python).contains(here, prereleases=True)
    except InvalidSpecifier:
        return
    if not fits:
        raise HostError(
            f"{found.distribution} {version} wants Python {found.requires_python}; this is {here}",
            hint="take a version for this Python, or set SPARK_BUILD_PYTHON to one that fits",
        )


def _head(recipe: Recipe) -> str:
    assert recipe.pin is not None
    (source,) = recipe.pin.sources
    origin = f"the sdist {source.filename}" if source.kind == "sdist" else f"the tag {source.tag}"
    return f"Made by `spark-build recipes new` from {origin}; what says estimate was not measured."


def _about(found: Survey) -> str:
    python = f"CPython {sys.version_info.major}.{sys.version_info.minor}"
    return (
        f"Its files ask for: {', '.join(found.asked) or 'nothing'}.\nThe whole closure, by pip for {python}."
    )


def _check(text: str, recipe: Recipe, catalogue: Catalogue) -> None:
    """Check that the text parses to the draft and agrees with the other recipes."""
    file = f"recipes/{recipe.name}.toml"
    read = parse_recipe(text, file)
    assert read == recipe
    recipes = catalogue.recipes | {recipe.name: read}
    problems = cross_check(recipes, catalogue.trains, {file: text})
    if problems:
        raise joint_error(problems)
