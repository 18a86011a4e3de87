"""A recipe as it is for one target and train: conditions settled, names and labels filled in."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from spark_build.recipes.model import (
    Audit,
    Build,
    Pin,
    Recipe,
    Source,
    Target,
    Train,
    Variable,
    Variant,
    When,
)
from spark_build.recipes.placeholders import fill
from spark_build.recipes.plan import Evaluated

# The first that speaks the jobserver is 1.13; Debian 12 and Ubuntu 24.04 have older ones.
NINJA = "ninja==1.13.2"


def holds(when: When, recipe: Recipe, target: Target, train: Train) -> bool:
    """Return whether a condition of this recipe is met."""
    return (
        (not when.platforms or target.platform in when.platforms)
        and (not when.trains or train.name in when.trains)
        and (when.cuda is None or when.cuda == bool(target.cuda_architectures))
        and all(recipe.options[name].value == value for name, value in when.options.items())
    )


def for_target(recipe: Recipe, target: Target, train: Train) -> Recipe:
    """Return the recipe as it is for this target: its needs, its costs, what it requires, its default.

    Variables, pins and features are settled by `evaluate`.
    """
    variants = _variants(recipe, target, train)
    default = [one.default for one in variants if one.default is not None]
    without_cuda = recipe.requires.cpu and not target.cuda_architectures
    return replace(
        recipe,
        build=_costs(recipe.build, variants),
        cmake=replace(recipe.cmake, define=_with_options(recipe.cmake.define, recipe)),
        default=default[-1] if default else recipe.default,
        needs=tuple(need for need in recipe.needs if holds(need.when, recipe, target, train)),
        requires=replace(recipe.requires, cuda=recipe.requires.cuda and not without_cuda),
        audit=Audit() if without_cuda else recipe.audit,  # all of it concerns device code
    )


def _variants(recipe: Recipe, target: Target, train: Train) -> list[Variant]:
    return [one for one in recipe.build.variants if holds(one.when, recipe, target, train)]


def _costs(build: Build, variants: Iterable[Variant]) -> Build:
    """Return the build with what its variants say of memory, time and disk; the last one counts."""
    for one in variants:
        build = replace(
            build,
            memory_per_job_mib=one.memory_per_job_mib or build.memory_per_job_mib,
            core_minutes=one.core_minutes or build.core_minutes,
            disk_mib=one.disk_mib or build.disk_mib,
        )
    return build


def label(target: Target, train: Train) -> str:
    """The local version label of our builds: cu130.spark1, or cpu.spark1 without CUDA."""
    kind = "cu" + target.cuda.replace(".", "") if target.cuda_architectures else "cpu"
    return f"{kind}.spark{train.revision}"


def sources_for(pin: Pin, target: Target) -> tuple[Source, ...]:
    """The sources for the target's platform, in order of preference; an assembled prefix is made of all."""
    return tuple(source for source in pin.sources if source.platform in ("", target.platform))


def evaluate(recipe: Recipe, pin: Pin, target: Target, train: Train) -> Evaluated:
    """Settle all conditions; a variant's pins and variables replace those of the same name.

    Whatever is compiled gets a ninja that shares the machine.
    """
    variants = _variants(recipe, target, train)
    pins = {canonicalize_name(Requirement(text).name): text for text in recipe.build.requires}
    env = {name: one for name, one in recipe.build.env.items() if holds(one.when, recipe, target, train)}
    apt, dnf = list(recipe.system.apt), list(recipe.system.dnf)
    for variant in variants:
        pins |= {canonicalize_name(Requirement(text).name): text for text in variant.requires}
        env |= {name: one for name, one in variant.env.items() if holds(one.when, recipe, target, train)}
        apt += [name for name in variant.apt if name not in apt]
        dnf += [name for name in variant.dnf if name not in dnf]
    if recipe.is_compiled:
        pins.setdefault(canonicalize_name("ninja"), NINJA)
    names = {"version": pin.version, "label": label(target, train)}
    return Evaluated(
        requires=tuple(pins[name] for name in sorted(pins)),
        env=_with_options(env, recipe),
        apt=tuple(apt),
        dnf=tuple(dnf),
        compile_flags=_flags(recipe),
        features=tuple(one for one in recipe.features if holds(one.when, recipe, target, train)),
        extra_sources=_extra_sources(recipe, pin, target, env),
        label=names["label"],
        wheel_version=fill(recipe.wheel.version, names, where=f"recipes/{recipe.name}.toml: wheel.version"),
    )


_OPTION = re.compile(r"\{option:([^{}]*)\}")


def _with_options(variables: Mapping[str, Variable], recipe: Recipe) -> dict[str, Variable]:
    return {name: replace(one, value=_chosen(one.value, recipe)) for name, one in variables.items()}


def _chosen(text: str, recipe: Recipe) -> str:
    """Return the text with the recipe's options filled in; what else stands in braces stays."""
    return _OPTION.sub(lambda found: recipe.options[found[1]].value, text)


def _flags(recipe: Recipe) -> tuple[str, ...]:
    """Return the compiler flags, without those whose option is empty."""
    flags = recipe.build.compile_flags
    wanted = [one for one in flags if all(recipe.options[name].value for name in _OPTION.findall(one))]
    return tuple(_chosen(one, recipe) for one in wanted)


def _extra_sources(
    recipe: Recipe, pin: Pin, target: Target, env: Mapping[str, Variable]
) -> dict[str, Source]:
    """Return the sources beside the component's own that the build refers to, or that are assembled."""
    if recipe.kind == "assemble":
        return {source.filename: source for source in sources_for(pin, target)[1:]}
    referring = (*env.values(), *recipe.cmake.define.values(), *recipe.build.place.values())
    texts = [variable.value for variable in referring]
    return {
        name: source
        for name, source in pin.extra_sources.items()
        if source.platform in ("", target.platform)
        and any(f"{{extra:{source.folder or name}}}" in text for text in texts)
    }
