"""Plan keys and build keys, and the difference between two of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

from spark_build.recipes.model import (
    DeviceRule,
    Evaluated,
    External,
    Patch,
    Pin,
    Prefix,
    Provision,
    Recipe,
    Repair,
    Scons,
    Source,
    Target,
    Variable,
)
from spark_build.text import canonical, digest, printable
from spark_build.wheels.model import StoredWheel, markers

# Raise when the same inputs would now give other bytes (how wheels are built, repaired, rewritten), or
# when what is written here changes; `brought_up` then says which older inputs still name the same bytes.
FORMAT = 3
UNKNOWING = 2  # the format before, which did not know whether a build might use the network
# Raise when an audit rule, or the reading of features, judges differently: tests/build/test_keys.py notices.
RULES = 5


def source_identity(source: Source | None) -> dict[str, Any]:
    """Return what pins a source; download locations do not count."""
    if source is None:
        return {}
    if source.kind == "git":
        return {"kind": "git", "commit": source.commit, "submodules": source.submodules}
    return {"kind": source.kind, "sha256": source.sha256}


def plan_inputs(  # noqa: PLR0913 - each of them, and each field of the dict, is a part of the key
    recipe: Recipe,
    evaluated: Evaluated,
    pin: Pin,
    source: Source | None,
    patches: Sequence[Patch],
    target: Target,
    provisions: Sequence[Provision],
    keys: Mapping[str, str],
) -> dict[str, Any]:
    """Return the declared inputs of a build; `keys` maps needs from the store to their plan keys.

    Prose and costs are left out: nothing depends on them. What only judges is in `judgement_inputs`.
    """
    # What not every recipe has stays out of the others' keys.
    flags = {"compile_flags": list(evaluated.compile_flags)} if evaluated.compile_flags else {}
    placed = recipe.build.place
    return {
        "format": FORMAT,
        **_asked({"locked_requirements": {pin: list(one) for pin, one in evaluated.hashes.items()}}),
        "recipe": {
            **flags,
            "name": recipe.name,
            "distribution": recipe.distribution,
            "kind": recipe.kind,
            "requires": sorted(evaluated.requires),
            "env": {name: _value(variable, evaluated.label) for name, variable in evaluated.env.items()},
            "wheel_version": evaluated.wheel_version,
            "cmake": {
                "source": recipe.cmake.source,
                "define": {
                    name: _value(variable, evaluated.label) for name, variable in recipe.cmake.define.items()
                },
            },
            **({"scons": _scons(recipe.scons, evaluated.label)} if recipe.kind == "scons" else {}),
            "prefix": _prefix(recipe.prefix),
            "repair": _repair(recipe.repair),
            "network": recipe.build.network,
            **({"place": {path: one.value for path, one in placed.items()}} if placed else {}),
        },
        "version": pin.version,
        "source": source_identity(source),
        "extra_sources": {
            name: source_identity(extra) | _asked({"folder": extra.folder, "copy": extra.copy})
            for name, extra in evaluated.extra_sources.items()
        },
        "patches": [patch.sha256 for patch in patches],
        "target": _target(recipe, target),
        "needs": {one.need: _declared_need(one, keys) for one in provisions},
    }


def _target(recipe: Recipe, target: Target) -> dict[str, Any]:
    """Return what of the target decides the bytes: of some prefixes, the platform only."""
    if recipe.serves_any_target:
        return {"platform": target.platform}
    return {
        "platform": target.platform,
        "python": target.python,
        "cuda_architectures": list(target.cuda_architectures),
    }


def _scons(scons: Scons, label: str) -> dict[str, Any]:
    """Return scons's arguments and targets, and the files taken from its tree."""
    arguments = {name: _value(variable, label) for name, variable in scons.argument.items()}
    return {"argument": arguments, "targets": list(scons.targets), "copy": scons.copy}


def _prefix(prefix: Prefix) -> dict[str, Any]:
    """Return how the prefix is made, without defaults."""
    asked = {"unversioned": list(prefix.unversioned), "stubs": [asdict(one) for one in prefix.stubs]}
    always = {"copy": prefix.copy, "links": prefix.links}
    return always | _asked(asked)


def _repair(repair: Repair) -> dict[str, Any]:
    """Return the repair, without defaults."""
    asked = {
        "platform": repair.platform,
        "strip": repair.strip,
        "clean_rpath": repair.clean_rpath,
        "rpath": sorted(repair.rpath),
        "folders": [one.folder for one in repair.external] if repair.rpath else [],
        "requires": [one.requirement for one in repair.requires],
    }
    return {"bundle": repair.bundle, "exclude": sorted(repair.outside), **_asked(asked)}


def _asked(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that are set, so that a field added later changes no old key."""
    return {name: value for name, value in values.items() if value}


def _value(variable: Variable, label: str) -> str:
    """Return a variable's value with placeholders filled in that neither recipe nor pin defines."""
    return variable.value.replace("{label}", label)


def _declared_need(one: Provision, keys: Mapping[str, str]) -> str:
    """Return a need as any machine can name it."""
    if one.provider == "public":
        return public_identity(one)
    if one.coupling == "version":
        return f"{one.provider} {one.version}"
    return f"store {keys[one.need]}" if one.provider == "store" else "path"


def public_identity(one: Provision) -> str:
    """Return a public wheel as keys name it: its version, and what its lock allows where its bytes count."""
    lock = f", lock {digest(list(one.locked))}" if one.locked and one.coupling == "content" else ""
    return f"public {one.version}{lock}"


def build_inputs(
    declared: Mapping[str, Any], needs: Mapping[str, str], toolchain: Mapping[str, str]
) -> dict[str, Any]:
    """Return the inputs that decide the bytes: declared ones, contents of needs, measured tools.

    `needs` replaces the plan keys by what is really there: a content digest, a fingerprint of a
    path, or a version, by the need's coupling.
    """
    return {**declared, "needs": dict(needs), "toolchain": dict(toolchain)}


def brought_up(inputs: Mapping[str, Any], *, network: bool) -> dict[str, Any] | None:
    """Return an older program's inputs in today's format; None where they cannot be converted.

    network: whether that build had leave to use the network, which its inputs do not say.
    """
    if inputs["format"] != UNKNOWING:
        return None
    return {**inputs, "format": FORMAT, "recipe": {**inputs["recipe"], "network": network}}


def closure_key(
    built: Sequence[StoredWheel],
    pins: Mapping[str, str],
    locked: Mapping[str, Mapping[str, str]],
    python: str,
    *,
    foreign: Target | None = None,
) -> str:
    """Return the key of a closure: the wheels it completes, the train's pins and lock, the interpreter."""
    decisive = {
        "wheels": sorted(wheel.sha256 for wheel in built),
        "pins": dict(pins),
        "python": python,
        **_asked({"locked": {pin: dict(files) for pin, files in locked.items()}}),
    }
    # Earlier versions judged markers as on this machine: such a closure is resolved once more.
    return digest({**decisive, "markers": markers(foreign)} if foreign else decisive)


def judgement_inputs(recipe: Recipe, evaluated: Evaluated, policies: str) -> dict[str, Any]:
    """Return the inputs of a judgement; `policies`: versions of others' data that the rules use.

    Checks of a recipe are left out: they run in a fresh environment after each publication.
    """
    features: dict[str, list[str]] = {}
    for feature in evaluated.features:
        features.setdefault(feature.name, []).append(feature.value)
    return {
        "rules": RULES,
        "policies": policies,
        "requires": {"cuda": recipe.requires.cuda, "platforms": sorted(recipe.requires.platforms)},
        "features": {name: ", ".join(sorted(values)) for name, values in features.items()},
        "expect": sorted(recipe.expect),
        # Why there is no device code is prose; that there is none is no error then.
        "host_only": bool(recipe.audit.host_only),
        "device": sorted((_device_rule(rule) for rule in recipe.audit.device), key=canonical),
        **_asked({"external": [_external(one) for one in recipe.repair.external]}),
    }


def _external(one: External) -> dict[str, Any]:
    """Return the requirements on libraries of another distribution."""
    return {"distribution": one.distribution, "folder": one.folder, "libraries": sorted(one.libraries)}


def _device_rule(rule: DeviceRule) -> dict[str, Any]:
    """Return the requirements on a library's device code."""
    return {
        "library": rule.library,
        "architectures": sorted(rule.architectures),
        "require": sorted(rule.require),
        "forbid": sorted(rule.forbid),
    }


class KeyDifference(NamedTuple):
    """One value that differs; None where it is absent."""

    path: str  # "recipe.env.USE_CUDA"
    before: Any
    now: Any


def key_differences(before: Any, now: Any) -> tuple[KeyDifference, ...]:
    """Return every leaf that differs, ordered by path."""
    return tuple(_differences(before, now, ""))


def key_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a build's changes in a few words, as reasons in a plan."""
    most = 2
    found = key_differences(before, now)
    said = [f"{one.path} changed: {_short(one.before)} -> {_short(one.now)}" for one in found[:most]]
    return (*said, f"{len(found) - most} more (`why` lists them)") if len(found) > most else tuple(said)


def _short(value: Any) -> str:
    text = "none" if value is None else printable(str(value))  # an import's may be anything
    return text if len(text) <= 40 else f"{text[:37]}..."


def _differences(before: Any, now: Any, path: str) -> Iterator[KeyDifference]:
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        for name in sorted({*before, *now}):
            inner = f"{path}.{name}" if path else str(name)
            if name not in before or name not in now:
                yield KeyDifference(inner, before.get(name), now.get(name))
            else:
                yield from _differences(before[name], now[name], inner)
    elif isinstance(before, list) and isinstance(now, list):
        yield from _listed(before, now, path)
    elif not _same(before, now):
        yield KeyDifference(path, before, now)


def _same(before: Any, now: Any) -> bool:
    """Return whether values are equal as JSON, where true is not 1."""
    return type(before) is type(now) and bool(before == now)


def _listed(before: list[Any], now: list[Any], path: str) -> Iterator[KeyDifference]:
    """Yield differences of lists: by index for equal lengths, else items added and removed."""
    if len(before) == len(now):
        for place, (old, new) in enumerate(zip(before, now, strict=True)):
            yield from _differences(old, new, f"{path}[{place}]")
        return
    start = 0
    while start < min(len(before), len(now)) and not key_differences(before[start], now[start]):
        start += 1
    end = 0
    while end < min(len(before), len(now)) - start and not key_differences(before[-1 - end], now[-1 - end]):
        end += 1
    gone, come = before[start : len(before) - end], now[start : len(now) - end]
    for place in range(max(len(gone), len(come))):
        old = gone[place] if place < len(gone) else None
        new = come[place] if place < len(come) else None
        yield KeyDifference(f"{path}[{start + place}]", old, new)
