"""A first recipe for a project, as a value and as a TOML text that a person goes on with."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields

from spark_build.authoring.sdist_metadata import Survey
from spark_build.recipes.model import (
    Build,
    Need,
    Pin,
    Recipe,
    Repair,
    Requires,
    Source,
    System,
    Variable,
    Variant,
    When,
)
from spark_build.recipes.toml_positions import quote

ESTIMATE = "# estimate"


def draft(name: str, found: Survey, pin: Pin, requires: Sequence[str], needs: Mapping[str, str]) -> Recipe:
    """A recipe from what was found; `requires` are exact pins, `needs` go to providers store and public."""
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
        repair=_repair(found, needs),
        system=System(apt=("g++", "python3-dev") if found.compiled else ()),
    )


def render(recipe: Recipe, *, head: str, about_requires: str) -> str:
    """The TOML text of a drafted recipe: parse_recipe gives the same value back.

    `head` and `about_requires` become comments.
    """
    assert recipe.pin is not None
    lines = [*_comment(head), *_pairs(recipe, "name", "distribution", "summary", "kind")]
    if recipe.notes:
        lines += ["notes = [", *(f"  {quote(note)}," for note in recipe.notes), "]"]
    lines += ["", "[pin]", "# For every train that does not list this component."]
    lines += _pairs(recipe.pin, "version")
    for source in recipe.pin.sources:
        lines += ["", "[[pin.sources]]", *_pairs(source, *(one.name for one in fields(Source)), skip=True)]
    for need in recipe.needs:
        lines += ["", "[[needs]]", *_pairs(need, "name", "providers", "why", skip=True)]
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
    """The last tables: what the target, the system and the wheel must have."""
    if recipe.requires.cuda:
        yield from ("", "[requires]", "cuda = true # .cu files, and no way around them was seen")
    if recipe.system.apt:
        yield from ("", "[system]", *_pairs(recipe.system, "apt"))
    if recipe.repair.bundle:
        yield from ("", "[repair]", "bundle = true # libraries that not every Linux has go into the wheel")
    elif recipe.repair.exclude:
        yield from ("", "[repair]", "# Loaded before it: torch's own libraries, and those that torch brings.")
        yield from _pairs(recipe.repair, "exclude")


def version_in(tag: str) -> str:
    """The version that a tag such as v2.1.2 or release-1.0 names; empty when there is none."""
    found = re.search(r"(?:^|[^0-9.])(\d+(?:\.\d+)+(?:[-_.]?(?:a|b|rc|post|dev)\.?\d*)*)$", tag)
    return found[1] if found else ""


def _costs(found: Survey) -> tuple[int, float, int]:
    """MiB per job, core minutes and MiB on disk, by the kind of code."""
    if found.torch_extension or found.cuda_files:
        memory = 4096 if found.cuda_files else 2048
        minutes = 0.5 * (found.compiled - found.cuda_files) + 2.0 * found.cuda_files
        return memory, max(1.0, minutes), 2048
    if found.compiled:
        return 1024, max(0.5, round(0.1 * found.compiled, 1)), 1024
    return 256, 0.1, 256


def _env(found: Survey, pin: Pin) -> dict[str, Variable]:
    """Variables that keep the number of compile jobs within this machine's memory."""
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
    scm = any(re.match(r"(setuptools[-_.]scm|hatch-vcs)\b", text) for text in found.asked)
    if scm and any(source.kind == "git" for source in pin.sources):
        env["SETUPTOOLS_SCM_PRETEND_VERSION"] = Variable(
            value="{version}", why="setuptools_scm: asks the history, which a pinned source does not have"
        )
    return env


def _needs(found: Survey, needs: Mapping[str, str]) -> tuple[Need, ...]:
    """Other components, and nvcc for what has CUDA code; the recipe `cuda` brings it."""
    listed = [Need(name=need, providers=("store", "public"), why=why) for need, why in sorted(needs.items())]
    if found.cuda_files and "cuda" not in needs:
        why = "nvcc and the toolkit's headers, for the .cu files"
        listed.append(Need(name="cuda", providers=("store", "path"), why=why, when=When(cuda=True)))
    return tuple(listed)


def _variants(found: Survey) -> tuple[Variant, ...]:
    if not (found.torch_extension and found.cuda_files):
        return ()
    reader = "torch/utils/cpp_extension.py"
    value = "{arch_list:cpp_extension}"
    env = {"TORCH_CUDA_ARCH_LIST": Variable(value=value, why=f"{reader}: else the GPUs seen here")}
    env["CUDA_HOME"] = Variable(value="{need:cuda}", why=f"{reader}: which toolkit")
    if found.force_cuda:
        env["FORCE_CUDA"] = Variable(value="1", why="setup.py: CUDA code although no GPU is seen")
    return (Variant(when=When(cuda=True), env=env),)


def _repair(found: Survey, needs: Mapping[str, str]) -> Repair:
    """What is linked against other components finds their libraries where those are installed."""
    if "torch" in needs:
        cuda = ("libcudart.so.*",) if found.cuda_files else ()
        return Repair(exclude=("libc10*.so", "libtorch*.so", *cuda))
    return Repair(bundle=bool(found.compiled) and not needs)


def _comment(text: str) -> Iterator[str]:
    for line in text.split("\n"):
        yield "# " + re.sub(r"[\x00-\x1f\x7f]", " ", line).rstrip()


def _pairs(value: object, *names: str, skip: bool = False) -> list[str]:
    """`name = value` for fields of a dataclass; with `skip` not for empty ones."""
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
