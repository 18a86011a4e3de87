"""Write and check the locks of wheels: of build environments, and of what completes a set."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path

from packaging.specifiers import SpecifierSet
from packaging.tags import Tag

from spark_build.authoring.pins import Row, facts_of, sha256_of_file
from spark_build.errors import SourceError
from spark_build.files import write_atomically
from spark_build.paths import Home
from spark_build.recipes.evaluation import evaluate
from spark_build.recipes.loader import Catalogue, read_lock
from spark_build.recipes.model import Pin, Recipe
from spark_build.recipes.parse import lock_file, normalized, render_lock
from spark_build.sources.simple_api import Indexes, configured, files_of

# What a build of ours can run on: glibc, both processors, the Pythons that spark-build supports.
_PLATFORM = re.compile(r"any|(many)?linux\w*_(x86_64|aarch64)")
_PYTHON = re.compile(r"py3|py2\.py3|cp31[1-9]")


def pins_of(owner: str, catalogue: Catalogue) -> tuple[str, ...]:
    """Return what the lock of a recipe ("onnx") or a train ("trains/2.13") lists, as indexes spell it.

    Of a recipe: its build environment over all trains and targets, and its closure.
    """
    name = owner.removeprefix("trains/")
    has_closure = catalogue.recipe(owner) if name == owner else catalogue.train(name)
    pins = {normalized(f"{one}=={known}") for one, known in has_closure.closure.items()}
    if isinstance(has_closure, Recipe):
        pins |= _requirements_of(has_closure, catalogue)
    return tuple(sorted(pins))


def _requirements_of(recipe: Recipe, catalogue: Catalogue) -> set[str]:
    pins: set[str] = set()
    if recipe.is_compiled:
        for train in catalogue.trains.values():
            pin = train.components.get(recipe.name, recipe.pin or Pin(version="0", sources=()))
            for target in catalogue.targets.values():
                pins.update(map(normalized, evaluate(recipe, pin, target, train).requires))
    return pins


def write_locks(
    home: Home, catalogue: Catalogue, owners: Sequence[str], *, base: Path | None = None, anew: bool = False
) -> tuple[list[Row], list[Path]]:
    """Lock what is not locked yet: (what became of each lock, files written).

    owners: recipes, and trains as "trains/2.13"; base: the data folder of recipes that are new; anew: also
    ask for what is locked already.
    """
    rows: list[Row] = []
    changed: list[Path] = []
    lookup = _Lookup()
    for name in owners:
        pins = pins_of(name, catalogue)
        lock = None if base else read_lock(home, name)
        if not pins and lock is None:
            continue
        file = lock_file(name)
        known = lock.wheels if lock else {}
        is_whole = tuple(sorted(known)) == pins
        try:
            wheels = lookup.wheels([pin for pin in pins if anew or pin not in known])
        except SourceError as error:
            state = "pinned" if is_whole and not anew else f"unknown ({error.message})"
            rows.append(Row(recipe=name, source=file, state=state))
            continue
        found = {pin: wheels.get(pin) or known[pin] for pin in pins}
        if lock is not None and found == known:
            rows.append(Row(recipe=name, source=file, state="pinned"))
            continue
        path = (base or _folder(home, name)) / file
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, render_lock(found))
        rows.append(Row(recipe=name, source=file, state="written"))
        changed.append(path)
    return rows, changed


def check_locks(home: Home, owners: Sequence[str]) -> list[Row]:
    """Compare each lock with what the indexes announce now."""
    rows: list[Row] = []
    lookup = _Lookup()
    for name in owners:
        lock = read_lock(home, name)
        if lock is None:
            continue
        try:
            found = lookup.wheels(tuple(lock.wheels))
        except SourceError as error:
            rows.append(Row(recipe=name, source=lock.file, state=f"unknown ({error.message})"))
            continue
        changed = [
            Row(recipe=name, source=file, state="changed", pinned=sha256, found=found[pin][file])
            for pin, files in lock.wheels.items()
            for file, sha256 in files.items()
            if found[pin].get(file, sha256) != sha256
        ]
        rows += changed or [Row(recipe=name, source=lock.file, state="ok")]
    return rows


def _folder(home: Home, owner: str) -> Path:
    """Return the data folder that the recipe or train comes from."""
    return next(one for one in home.data if (one / "recipes" / f"{owner}.toml").is_file())


class _Lookup:
    """The indexes, asked once for each pin."""

    def __init__(self) -> None:
        self._found: dict[str, dict[str, str]] = {}

    @cached_property
    def _indexes(self) -> Indexes:
        return configured()

    def wheels(self, pins: Sequence[str]) -> Mapping[str, Mapping[str, str]]:
        """Return the sha256s of the wheels of each pin, by file name. Raises SourceError."""
        indexes = self._indexes
        lacking = [pin for pin in pins if pin not in self._found]
        with ThreadPoolExecutor(max_workers=8) as pool:  # most of it is waiting
            self._found |= dict(
                zip(lacking, pool.map(lambda pin: _wheels(pin, indexes), lacking), strict=True)
            )
        return {pin: self._found[pin] for pin in pins}


def _wheels(pin: str, indexes: Indexes) -> dict[str, str]:
    name, _, version = pin.partition("==")
    wanted, found = SpecifierSet(f"=={version}", prereleases=True), dict[str, str]()
    for file in files_of(name, indexes):
        facts = facts_of(file.filename, name)
        # As pip reads ==1.0: an index's own build 1.0+cpu, too.
        if facts and facts[0] in wanted and any(map(_is_of_use, facts[1])):
            found[file.filename] = found.get(file.filename) or sha256_of_file(file, indexes)
    if not found:
        raise SourceError(f"no index has a wheel of {pin}", hint="pin another version")
    return found


def _is_of_use(tag: Tag) -> bool:
    fits = _PYTHON.fullmatch(tag.interpreter) or (tag.abi == "abi3" and tag.interpreter.startswith("cp3"))
    return bool(fits and _PLATFORM.fullmatch(tag.platform))
