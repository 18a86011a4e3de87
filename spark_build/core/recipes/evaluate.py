"""A recipe as it is for one target and train: conditions settled, names and labels filled in."""

from __future__ import annotations

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from spark_build.core.recipes.placeholders import fill
from spark_build.model.plan import Evaluated
from spark_build.model.recipe import Pin, Recipe, Target, Train, When

# The first that speaks the jobserver is 1.13; Debian 12 and Ubuntu 24.04 have older ones.
NINJA = "ninja==1.13.2"


def holds(when: When, target: Target, train: Train) -> bool:
    """Whether a condition is met."""
    return (
        (not when.platforms or target.platform in when.platforms)
        and (not when.trains or train.name in when.trains)
        and (when.cuda is None or when.cuda == bool(target.cuda_architectures))
    )


def label(target: Target, train: Train) -> str:
    """The local version label of our builds: cu130.spark1, or cpu.spark1 without CUDA."""
    kind = "cu" + target.cuda.replace(".", "") if target.cuda_architectures else "cpu"
    return f"{kind}.spark{train.revision}"


def evaluate(recipe: Recipe, pin: Pin, target: Target, train: Train) -> Evaluated:
    """Settle all conditions; a variant's pins and variables replace those of the same name.

    Whatever is compiled gets a ninja that shares the machine.
    """
    variants = [one for one in recipe.build.variants if holds(one.when, target, train)]
    pins = {canonicalize_name(Requirement(text).name): text for text in recipe.build.requires}
    env = dict(recipe.build.env)
    apt = list(recipe.system.apt)
    for variant in variants:
        pins |= {canonicalize_name(Requirement(text).name): text for text in variant.requires}
        env |= variant.env
        apt += [name for name in variant.apt if name not in apt]
    if recipe.kind != "repack":
        pins.setdefault(canonicalize_name("ninja"), NINJA)
    names = {"version": pin.version, "label": label(target, train)}
    texts = [variable.value for variable in (*env.values(), *recipe.cmake.define.values())]
    return Evaluated(
        requires=tuple(pins[name] for name in sorted(pins)),
        env=env,
        apt=tuple(apt),
        features=tuple(one for one in recipe.features if holds(one.when, target, train)),
        extra_sources={
            name: source
            for name, source in pin.extra_sources.items()
            if any(f"{{extra:{name}}}" in text for text in texts)
        },
        label=names["label"],
        wheel_version=fill(recipe.wheel.version, names, where=f"recipes/{recipe.name}.toml: wheel.version"),
    )
