"""Rules for device code: does it run on the target's GPUs, and does it meet the recipe's demands.

What runs where (CUDA C++ Programming Guide, "Application Compatibility" and "Feature-Specific Targets"):
machine code on the same major and the same or a higher minor version, which holds for the family variant `f`
too, while `a` runs on exactly its own. PTX is compiled at run time for its own and every later version, as
`a` for its own alone, as `f` within its major version.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

from spark_build.errors import Finding, Severity
from spark_build.recipes.model import DeviceRule, Recipe, Target
from spark_build.text import printable
from spark_build.wheels.model import UNREADABLE, Code, DeviceCode, WheelFacts

# From best to worst: made for this GPU; for its family; for an older one; yet to be compiled; not at all.
Fit = Literal["native", "family", "older", "jit", "none"]
FITS: tuple[Fit, ...] = ("native", "family", "older", "jit", "none")

_TARGET = re.compile(r"(sm|compute)_(\d+)(\d)([af]?)")
_JIT = (
    "the driver compiles each kernel when it is first used, which takes seconds to minutes for a large "
    "library and is kept in the user's cache only (~/.nv/ComputeCache), and it uses nothing newer"
)

_BUILT = (
    "was it built without CUDA? see the configure summary in the log; "
    "a wheel that needs no device code says so in audit.host_only"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceDemand:
    """Demands on the device code of a wheel."""

    capabilities: tuple[str, ...] = ()  # of the GPUs it is for: "12.1"; empty: unknown, or none
    needed: bool = False  # without device code the wheel is worth nothing
    rules: tuple[DeviceRule, ...] = ()
    elsewhere: bool = True  # code that the CUDA runtime does not register counts: the library loads it itself


def demand(recipe: Recipe, target: Target) -> DeviceDemand:
    """Return the demands of a recipe and its target."""
    if not target.cuda_architectures:
        return DeviceDemand()
    wanted = set(target.cuda_architectures)
    return DeviceDemand(
        capabilities=target.cuda_architectures,
        needed=recipe.requires.cuda and not recipe.audit.host_only,
        rules=tuple(
            rule
            for rule in recipe.audit.device
            if not rule.architectures or wanted.intersection(rule.architectures)
        ),
        elsewhere=recipe.kind == "repack",
    )


def fit(code: str, capability: str) -> Fit:
    """Return how code ("sm_120f", "compute_90") runs on a GPU ("12.1"); "none" for an unknown name too."""
    match = _TARGET.fullmatch(code)
    if match is None:
        return "none"
    kind, variant = match[1], match[4]
    have = (int(match[2]), int(match[3]))
    major, _, minor = capability.partition(".")
    want = (int(major), int(minor))
    if variant == "a" and have != want:
        return "none"
    if kind == "compute":
        later = have <= want and (variant != "f" or have[0] == want[0])
        return "jit" if later else "none"
    if have[0] != want[0] or have > want:
        return "none"
    if have == want:
        return "native"
    return "family" if variant == "f" else "older"


def best(codes: Iterable[str], capability: str) -> Fit:
    """Return the best fit of any of these on a GPU."""
    return min((fit(code, capability) for code in codes), key=FITS.index, default="none")


def device_findings(facts: WheelFacts, wanted: DeviceDemand) -> tuple[Finding, ...]:
    """Return all findings on a wheel's device code; the recipe's own demands give "device-required"."""
    found = [*_damage(facts), *_whole(facts, wanted), *_each(facts, wanted)]
    found += [finding for rule in wanted.rules for finding in _required(facts, rule, wanted)]
    return tuple(Finding(rule, severity, printable(message)) for rule, severity, message in found)


_Said = tuple[str, Severity, str]  # rule, severity, message


def runnable(code: DeviceCode, *, elsewhere: bool = True) -> dict[str, int]:
    """Return machine code and PTX that can be launched, with numbers."""
    return added([code.loaded, code.elsewhere] if elsewhere else [code.loaded])


def added(parts: Iterable[Code]) -> dict[str, int]:
    """Return machine code and PTX together."""
    total: dict[str, int] = {}
    for part in parts:
        for target, number in (*part.sass.items(), *part.ptx.items()):
            total[target] = total.get(target, 0) + number
    return total


def order(target: str) -> tuple[int, int, str]:
    """Sorts sm_90 before sm_120 before sm_120a, PTX behind all machine code."""
    kind, _, rest = target.partition("_")
    digits = re.match(r"\d*", rest)
    number = int(digits[0]) if digits and digits[0] else 0
    return ("sm", "compute", "lto").index(kind) if kind in ("sm", "compute", "lto") else 9, number, rest


def _damage(facts: WheelFacts) -> Iterator[_Said]:
    unreadable = {library.path for library in facts.libraries if library.machine == UNREADABLE}
    for code in facts.device_code:
        if code.problems and code.path not in unreadable:
            more = f" (and {len(code.problems) - 1} more)" if len(code.problems) > 1 else ""
            message = f"{code.path}: device code is not what its headers say, {code.problems[0]}{more}"
            yield "device-damage", "error", f"{message}; build again"


def _whole(facts: WheelFacts, wanted: DeviceDemand) -> Iterator[_Said]:
    """Something in the wheel must run on each GPU that it is for."""
    codes = {code.path: runnable(code, elsewhere=wanted.elsewhere) for code in facts.device_code}
    everything = {target for code in codes.values() for target in code}
    for capability in wanted.capabilities if wanted.needed else ():
        if not everything:
            yield "device-code", "error", f"{_nothing(facts)}, and it is to run on {sm(capability)}: {_BUILT}"
            return
        if best(everything, capability) == "none":
            message = f"nothing in it runs on {sm(capability)}: it has {listed(everything)}"
            advice = f"build for {capability} (the architecture list in the recipe's variables)"
            yield "device-code", "error", f"{message}; {advice}"


def _nothing(facts: WheelFacts) -> str:
    """Return why nothing can be launched, however much device code there is."""
    elsewhere = added(code.elsewhere for code in facts.device_code)
    if elsewhere:
        return f"device code only where the CUDA runtime does not see it ({listed(elsewhere)})"
    parts = [part for code in facts.device_code for part in (code.loaded, code.relocatable)]
    linkable = {*added(parts), *(target for part in parts for target in part.lto)}
    return f"device code only for a linker ({listed(linkable)})" if linkable else "no device code in any file"


def _each(facts: WheelFacts, wanted: DeviceDemand) -> Iterator[_Said]:
    """Yield how each library runs, where it could run better."""
    for capability in wanted.capabilities:
        for code in facts.device_code:
            have = runnable(code, elsewhere=wanted.elsewhere)
            if have:
                yield from _how(code.path, have, capability)


def _how(path: str, have: Mapping[str, int], capability: str) -> Iterator[_Said]:
    how, gpu = best(have, capability), sm(capability)
    good = listed(target for target in have if fit(target, capability) == how)
    if how == "none":
        yield (
            "device-library",
            "warning",
            f"{path} has nothing that runs on {gpu}: it has {listed(have)}; kernels of its own, if any, fail",
        )
    elif how == "jit":
        yield (
            "device-jit",
            "warning",
            f"{path} has only PTX for {gpu} ({good}): {_JIT}; build machine code for {capability} too",
        )
    elif how == "older":
        yield (
            "device-native",
            "warning",
            f"{path} runs, not native: for {gpu} it has {good}; build for {capability} to have its own code",
        )
    elif how == "family":
        yield (
            "device-native",
            "info",
            f"{path} runs by its family's code: for {gpu} it has {good}",
        )


def _required(facts: WheelFacts, rule: DeviceRule, wanted: DeviceDemand) -> Iterator[_Said]:
    """Yield violations of the recipe's demands on one library or on several together."""
    paths = {library.path for library in facts.libraries} | {code.path for code in facts.device_code}
    if not any(matches(rule, path) for path in paths):
        yield _wish(rule, f"{rule.library} is not in the wheel")
        return
    have = added(
        part
        for code in facts.device_code
        if matches(rule, code.path)
        for part in ((code.loaded, code.elsewhere) if wanted.elsewhere else (code.loaded,))
    )
    for capability in wanted.capabilities:
        if best(have, capability) == "none":
            yield _wish(
                rule, f"{rule.library} has nothing that runs on {sm(capability)}: it has {listed(have)}"
            )
    for target in rule.require:
        if not any(fnmatchcase(one, target) for one in have):
            yield _wish(rule, f"{rule.library} has no code for {target}: it has {listed(have)}")
    for target in rule.forbid:
        unwanted = [one for one in have if fnmatchcase(one, target)]
        if unwanted:
            yield _wish(rule, f"{rule.library} must have no code for {target}, and has {listed(unwanted)}")


def _wish(rule: DeviceRule, message: str) -> _Said:
    return "device-required", "error", f"{message}; the recipe wants it otherwise: {rule.why}"


def matches(rule: DeviceRule, path: str) -> bool:
    """By its name, or by its whole path where the rule has a slash."""
    return fnmatchcase(path if "/" in rule.library else path.rpartition("/")[2], rule.library)


def sm(capability: str) -> str:
    """12.1 as nvcc names it."""
    return f"sm_{capability.replace('.', '')}"


def listed(targets: Iterable[str]) -> str:
    """Architectures in their order, or that there are none."""
    return ", ".join(sorted(set(targets), key=order)) or "none"
