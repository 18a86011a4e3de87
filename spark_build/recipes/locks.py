"""Parse and render recipes/locks/pylock.<recipe>.toml: build requirements by hash, as in PEP 751."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from spark_build.errors import RecipeError
from spark_build.recipes.toml_positions import quote

_SHA256 = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Lock:
    """The wheels that a recipe's build environment may be made of: pin -> file name -> sha256."""

    file: str
    wheels: Mapping[str, Mapping[str, str]]

    def hashes(self, pins: Sequence[str], platform: str) -> dict[str, tuple[str, ...]]:
        """Return each pin's allowed sha256s for a platform such as linux-aarch64; none: it is not listed."""
        ends = ("-any.whl", f"_{platform.partition('-')[2]}.whl")
        return {
            pin: tuple(
                sorted(
                    one for name, one in self.wheels.get(normalized(pin), {}).items() if name.endswith(ends)
                )
            )
            for pin in pins
        }


def lock_file(recipe: str) -> str:
    """Return where a recipe's lock lies below a data folder."""
    return f"recipes/locks/pylock.{recipe}.toml"


def normalized(pin: str) -> str:
    """Return name==version with the name as indexes have it."""
    requirement = Requirement(pin)
    return f"{canonicalize_name(requirement.name)}{requirement.specifier}"


def parse_lock(text: str, file: str) -> Lock:
    """Return the lock that a text holds. Raises RecipeError when it is none that can be used."""
    try:
        raw = tomllib.loads(text)
        wheels = dict(_package(one) for one in raw["packages"])
    except (RecursionError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise RecipeError(
            f"{file} is no lock of build requirements: {' '.join(str(error).split())[:200]}",
            hint="delete it, then write it anew: spark-build recipes pin",
        ) from error
    return Lock(file=file, wheels=wheels)


def _package(raw: Mapping[str, Any]) -> tuple[str, dict[str, str]]:
    found = {str(one["path"]): str(one["hashes"]["sha256"]) for one in raw["wheels"]}
    if bad := [name for name, sha256 in found.items() if not _SHA256.fullmatch(sha256)]:
        raise ValueError(f"the sha256 of {bad[0]}")
    return normalized(f"{raw['name']}=={raw['version']}"), found


def render_lock(wheels: Mapping[str, Mapping[str, str]]) -> str:
    """Return the text of a lock; parse_lock gives the same wheels back.

    A wheel is named by a path beside the lock and by no index: its hash decides, wherever it comes from.
    """
    lines = ['lock-version = "1.0"', 'created-by = "spark-build"']
    for pin, files in sorted(wheels.items()):
        name, _, version = pin.partition("==")
        lines += ["", "[[packages]]", f"name = {quote(name)}", f"version = {quote(version)}", "wheels = ["]
        for file, sha256 in sorted(files.items()):
            lines.append(f"  {{ path = {quote(file)}, hashes = {{ sha256 = {quote(sha256)} }} }},")
        lines.append("]")
    return "\n".join(lines) + "\n"
