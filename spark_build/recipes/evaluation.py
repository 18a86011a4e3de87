"""Evaluate a recipe for one target and train: conditions, placeholders, architectures."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename

from spark_build.errors import RecipeError
from spark_build.machine import Gpu, Machine
from spark_build.recipes.model import (
    Audit,
    Build,
    Evaluated,
    Patch,
    Pin,
    Recipe,
    Repair,
    Source,
    Target,
    Train,
    Variable,
    Variant,
    When,
)

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
    """Return the recipe for this target: its needs, costs, requirements and default.

    Variables, pins and features are settled by `evaluate`.
    """
    variants = _variants(recipe, target, train)
    default = [variant.default for variant in variants if variant.default is not None]
    without_cuda = recipe.requires.cpu and not target.cuda_architectures
    return replace(
        recipe,
        build=_costs(recipe.build, variants),
        cmake=replace(recipe.cmake, define=_with_options(recipe.cmake.define, recipe)),
        default=default[-1] if default else recipe.default,
        needs=tuple(need for need in recipe.needs if holds(need.when, recipe, target, train)),
        requires=replace(recipe.requires, cuda=recipe.requires.cuda and not without_cuda),
        audit=Audit() if without_cuda else recipe.audit,  # all of it concerns device code
        repair=_repair(recipe, target, train),
        scons=replace(recipe.scons, argument=_with_options(recipe.scons.argument, recipe)),
        preflight=replace(
            recipe.preflight,
            libraries=tuple(
                library
                for library in recipe.preflight.libraries
                if holds(library.when, recipe, target, train)
            ),
        ),
    )


def _repair(recipe: Recipe, target: Target, train: Train) -> Repair:
    """Return the repair with its conditions settled; external libraries stay so under every condition."""
    asked = recipe.repair
    return replace(
        asked,
        exclude=asked.outside,
        external=tuple(
            external for external in asked.external if holds(external.when, recipe, target, train)
        ),
        requires=tuple(
            replace(required, requirement=_pinned(required.requirement, target, train))
            for required in asked.requires
            if holds(required.when, recipe, target, train)
        ),
    )


_PIN = re.compile(r"\{(version|wheel):([^{}]*)\}")


@cache
def _project_of(pin: str) -> str:
    return canonicalize_name(Requirement(pin).name)


def _pinned(text: str, target: Target, train: Train) -> str:
    """Return a requirement with the train's versions; without a pin it stays as it is."""
    if not _PIN.search(text):
        return text
    wheels = {
        canonicalize_name(source.project): str(parse_wheel_filename(source.filename)[1])
        for pin in train.components.values()
        for source in sources_for(pin, target)
        if source.kind == "wheel"
    }
    versions = {name: pin.version for name, pin in train.components.items()}

    def version_of(found: re.Match[str]) -> str:
        if found[1] == "version":
            return versions.get(found[2]) or found[0]
        return wheels.get(canonicalize_name(found[2]), found[0])

    return _PIN.sub(version_of, text)


def _variants(recipe: Recipe, target: Target, train: Train) -> list[Variant]:
    return [variant for variant in recipe.build.variants if holds(variant.when, recipe, target, train)]


def _costs(build: Build, variants: Iterable[Variant]) -> Build:
    """Return the build with its variants' memory, time and disk; the last variant wins."""
    for variant in variants:
        build = replace(
            build,
            memory_per_job_mib=variant.memory_per_job_mib or build.memory_per_job_mib,
            core_minutes=variant.core_minutes or build.core_minutes,
            disk_mib=variant.disk_mib or build.disk_mib,
        )
    return build


def label(target: Target, train: Train) -> str:
    """Return the local version label of our builds: cu130.spark1, or cpu.spark1 without CUDA."""
    kind = "cu" + target.cuda.replace(".", "") if target.cuda_architectures else "cpu"
    return f"{kind}.spark{train.revision}"


def sources_for(pin: Pin, target: Target) -> tuple[Source, ...]:
    """Return the sources for the platform by preference; an assembled prefix uses all of them."""
    return tuple(source for source in pin.sources if source.platform in ("", target.platform))


def pin_hint(recipe: str, source: Source, train: str) -> str:
    """Return what a git source lacks without a commit, and the command that writes it.

    train: "" for a pin in the recipe itself.
    """
    line = f"`recipes pin {recipe}{f' --train {train}' if train else ''}`"
    return f"the commit of {source.tag} of {source.url}. On a machine that reaches it: {line}"


def evaluate(recipe: Recipe, pin: Pin, target: Target, train: Train) -> Evaluated:
    """Settle all conditions; a variant's pins and variables replace those of the same name.

    Whatever is compiled gets a ninja that shares the machine.
    """
    variants = _variants(recipe, target, train)
    pins = {_project_of(text): text for text in recipe.build.requires}
    env = {name: one for name, one in recipe.build.env.items() if holds(one.when, recipe, target, train)}
    apt, dnf = list(recipe.system.apt), list(recipe.system.dnf)
    for variant in variants:
        pins |= {_project_of(text): text for text in variant.requires}
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
        features=tuple(feature for feature in recipe.features if holds(feature.when, recipe, target, train)),
        extra_sources=_extra_sources(recipe, pin, target, env),
        label=names["label"],
        wheel_version=fill_placeholders(
            recipe.wheel.version, names, where=f"recipes/{recipe.name}.toml: wheel.version"
        ),
    )


_OPTION = re.compile(r"\{option:([^{}]*)\}")


def _with_options(variables: Mapping[str, Variable], recipe: Recipe) -> dict[str, Variable]:
    return {name: replace(one, value=_chosen(one.value, recipe)) for name, one in variables.items()}


def _chosen(text: str, recipe: Recipe) -> str:
    """Return the text with the recipe's options filled in; other placeholders stay."""
    return _OPTION.sub(lambda found: recipe.options[found[1]].value, text)


def _flags(recipe: Recipe) -> tuple[str, ...]:
    """Return the compiler flags, without those whose option is empty."""
    flags = recipe.build.compile_flags
    wanted = [flag for flag in flags if all(recipe.options[name].value for name in _OPTION.findall(flag))]
    return tuple(_chosen(flag, recipe) for flag in wanted)


def _extra_sources(
    recipe: Recipe, pin: Pin, target: Target, env: Mapping[str, Variable]
) -> dict[str, Source]:
    """Return the extra sources that the build refers to or assembles."""
    if recipe.kind == "assemble":
        return {source.filename: source for source in sources_for(pin, target)[1:]}
    referring = (
        *env.values(),
        *recipe.cmake.define.values(),
        *recipe.scons.argument.values(),
        *recipe.build.place.values(),
    )
    texts = [variable.value for variable in referring]
    return {
        name: source
        for name, source in pin.extra_sources.items()
        if source.platform in ("", target.platform)
        and any(f"{{extra:{source.folder or name}}}" in text for text in texts)
    }


PLACEHOLDER = re.compile(r"\{([A-Za-z0-9_:.-]+)\}")


def fill_placeholders(text: str, values: Mapping[str, str | Callable[[], str]], *, where: str) -> str:
    """Replace every {name}; a function as value is called only when its name occurs."""

    def value_of(match: re.Match[str]) -> str:
        value = values.get(match.group(1))
        if value is None:
            raise RecipeError(
                f"{{{match.group(1)}}} is no placeholder; there are {', '.join(sorted(values))}", where=where
            )
        return value if isinstance(value, str) else value()

    return PLACEHOLDER.sub(value_of, text)


HOST_CPU = "host-cpu"


def resolve_target(target: Target, machine: Machine) -> Target:
    """Replace "host" by what this machine is."""
    return replace(
        target,
        platform=machine.platform if target.platform == "host" else target.platform,
        python=machine.python if target.python == "host" else target.python,
    )


def detect_target(targets: Mapping[str, Target], machine: Machine) -> Target:
    """Return the target for this machine: by GPU name, else by capability, else the CPU."""
    if not machine.gpus:
        return resolve_target(targets[HOST_CPU], machine)
    gpu = machine.gpus[0]
    found = _by_gpu([resolve_target(target, machine) for target in targets.values()], gpu, machine.platform)
    # The wheels are for the Python that runs here, whatever the file's usual one is.
    return replace(found, python=machine.python)


def _by_gpu(targets: Iterable[Target], gpu: Gpu, platform: str) -> Target:
    local = [target for target in targets if target.platform == platform]
    for target in local:
        if _is_named(target, gpu):
            return target
    for target in local:
        if gpu.capability in target.cuda_architectures:
            return target
    return Target(
        name="cuda-sm" + gpu.capability.replace(".", ""),
        summary=f"this machine's {gpu.name}",
        platform=platform,
        python="host",
        cuda_architectures=(gpu.capability,),
    )


def _is_named(target: Target, gpu: Gpu) -> bool:
    # Whole words: GB10 is not GB100.
    return any(re.search(rf"\b{re.escape(name)}\b", gpu.name) for name in target.gpu_names)


def machine_of(target: Target, here: Machine) -> Machine:
    """Return the target's machine, idle, with the cores and memory that its file gives; else this one."""
    is_here = target.platform == here.platform and any(_is_named(target, gpu) for gpu in here.gpus)
    if is_here or not target.cores or not target.memory_mib:
        return here
    free = target.memory_mib * 95 // 100  # an idle desktop takes the rest
    return Machine(
        platform=target.platform,
        python=target.python,
        cores=target.cores,
        memory_mib=target.memory_mib,
        available_mib=free,
    )


def view_name(target: Target, train: str) -> str:
    """Return the name of the view of one target, train and ABI."""
    return f"{target.name}-{train}-{target.python}"


TORCH = "torch"  # TORCH_CUDA_ARCH_LIST as torch's own CMake reads it
CPP_EXTENSION = "cpp_extension"  # TORCH_CUDA_ARCH_LIST as vision, audio and every other extension read it
FLASH_ATTN = "flash_attn"  # FLASH_ATTN_CUDA_ARCHS
CONSUMERS = (TORCH, CPP_EXTENSION, FLASH_ATTN)

# Capability: the first CUDA whose nvcc knows it.
_MINIMUM = {
    "7.5": "10.0",
    "8.0": "11.0",
    "8.6": "11.1",
    "8.7": "11.4",
    "8.9": "11.8",
    "9.0": "11.8",
    "10.0": "12.8",
    "10.3": "12.9",
    "11.0": "13.0",
    "12.0": "12.8",
    "12.1": "12.9",
}
# Variants that came later than their capability: a is one architecture's own, f a family's.
_LATER = {"9.0a": "12.0", "10.0f": "12.9", "12.0f": "12.9"}

# flash-attention's setup.py has branches for 80, 90, 100 and 120; 121 is our patch's. Code for a lower
# minor version runs on a higher one. 110 has no branch: alone it adds no flag, so that
# TORCH_CUDA_ARCH_LIST decides.
_FLASH_BRANCH = {
    "8.0": "80",
    "8.6": "80",
    "8.7": "80",
    "8.9": "80",
    "9.0": "90",
    "10.0": "100",
    "10.3": "100",
    "11.0": "110",
    "12.0": "120",
    "12.1": "121",
}


def arch_list(consumer: str, capabilities: Sequence[str]) -> str:
    """Return the architecture list for these capabilities ("12.1") in the consumer's syntax."""
    wanted = set(capabilities)
    if consumer == TORCH and "12.1" in wanted:
        wanted.add("12.0")  # cmake/Codegen.cmake adds 121a only where compute_120 is in the list
    ordered = sorted(wanted, key=_order)
    if consumer == FLASH_ATTN:
        ordered = [_FLASH_BRANCH.get(capability, capability.replace(".", "")) for capability in ordered]
    return ";".join(dict.fromkeys(ordered))


def minimum_cuda(capability: str) -> str:
    """Return the first CUDA that compiles for a capability ("12.1", "12.0f"); "" for an unknown one."""
    plain = capability.removesuffix("+PTX")
    return _LATER.get(plain) or _MINIMUM.get(plain.rstrip("af"), "")


def _order(capability: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", capability))


def patches_for(recipe: Recipe, train: Train) -> tuple[Patch, ...]:
    """Return the patches for this train's version."""
    return tuple(patch for patch in recipe.patches if not patch.trains or train.name in patch.trains)
