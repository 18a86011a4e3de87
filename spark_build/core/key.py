"""Keys: what must be equal for a result to be the same result.

The plan key covers declared inputs and can be computed on any machine. The build key adds what only
the building machine knows: the toolchain that was measured and the content of the needs.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from spark_build.model.recipe import Patch, Pin, Recipe, Source, Target

# Raise when the same inputs would now give other bytes (how wheels are built, repaired, rewritten).
FORMAT = 1


def canonical(value: Any) -> str:
    """JSON with one spelling per value: sorted keys, no spaces, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def digest(value: Any) -> str:
    """Hex sha256 of a value's canonical JSON."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()


def source_identity(source: Source | None) -> dict[str, Any]:
    """What pins a source; where it is downloaded from does not matter."""
    if source is None:
        return {}
    if source.kind == "git":
        return {"kind": "git", "commit": source.commit, "submodules": source.submodules}
    return {"kind": source.kind, "sha256": source.sha256}


def plan_inputs(
    recipe: Recipe,
    pin: Pin,
    source: Source | None,
    patches: Sequence[Patch],
    target: Target,
    needs: Mapping[str, str],
) -> dict[str, Any]:
    """The declared inputs of a build; `needs` maps a need to its plan key.

    Prose, costs and checks are left out: they do not reach the bytes.
    """
    return {
        "format": FORMAT,
        "recipe": {
            "name": recipe.name,
            "distribution": recipe.distribution,
            "kind": recipe.kind,
            "requires": sorted(recipe.build.requires),
            "env": {name: variable.value for name, variable in recipe.build.env.items()},
            "repair": {"bundle": recipe.repair.bundle, "exclude": sorted(recipe.repair.exclude)},
        },
        "version": pin.version,
        "source": source_identity(source),
        "extra_sources": {name: source_identity(extra) for name, extra in pin.extra_sources.items()},
        "patches": [patch.sha256 for patch in patches],
        "target": {
            "platform": target.platform,
            "python": target.python,
            "cuda_architectures": list(target.cuda_architectures),
        },
        "needs": dict(needs),
    }


def build_inputs(
    declared: Mapping[str, Any], needs: Mapping[str, str], toolchain: Mapping[str, str]
) -> dict[str, Any]:
    """What decides the bytes: declared inputs, content digests of the needs, measured tools."""
    # The needs' plan keys are replaced by what their wheels really hold.
    return {**declared, "needs": dict(needs), "toolchain": dict(toolchain)}
