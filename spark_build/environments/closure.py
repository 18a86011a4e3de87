"""Resolve public requirements of a generation for its target; prove that a generation installs."""

from __future__ import annotations

import json
import platform
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from packaging.utils import parse_wheel_filename

from spark_build.environments import interpreters
from spark_build.errors import Hint, SourceError, StoreError, ours
from spark_build.files import make_folder, sha256_of
from spark_build.paths import Home
from spark_build.process import run
from spark_build.recipes.model import Target
from spark_build.recipes.parse import Lock
from spark_build.venv import clean_environment, error_in, find_uv, unconfigured
from spark_build.wheelhouse import generations
from spark_build.wheelhouse import resolve as wheelhouse_resolve
from spark_build.wheelhouse import store as stores
from spark_build.wheelhouse.fsck import Suspect, suspect
from spark_build.wheelhouse.generations import Generation
from spark_build.wheelhouse.trust import is_trusted
from spark_build.wheels import model as wheels_model
from spark_build.wheels.model import StoredWheel
from spark_build.wheels.reader import facts_and_digest

ELSEWHERE = Path(__file__).with_name("pip_cross_platform.py")


def resolve(
    built: Sequence[StoredWheel],
    pins: Mapping[str, str],
    *,
    store: Path,
    offline: bool,
    foreign: Target | None = None,
    locks: Sequence[Lock] = (),
) -> tuple[StoredWheel, ...]:
    """Download the public wheels that `built` need with pip, and commit them to the store.

    foreign: the target, when it is not this machine; files and requirements are then chosen as there.
    pip checks each file against the hash that the index announces, this against `locks`. Never runs
    project code: only wheels are taken.
    """
    make_folder(store)
    with (
        # Otherwise the scratch folder could be taken for what a killed process left.
        stores.shared_lock(store, "completing the set"),
        tempfile.TemporaryDirectory(prefix=".tmp-closure-", dir=store) as scratch,
    ):
        wheels = [stores.entry_folder(store, wheel.key) / wheel.filename for wheel in built]
        # What this store already has may still complete the set.
        links = [stores.entry_folder(store, row["key"]) for row in _public_wheels(store)] if offline else None
        command = download_command(wheels, pins, Path(scratch), locks=locks, foreign=foreign, links=links)
        done = run(command, env=clean_environment())
        if done.returncode != 0:
            raise SourceError(
                "the closure (public wheels that the built ones need) cannot be had: "
                f"{error_in(done.output)}",
                hint=Hint(
                    "the built wheels are safe in the store; "
                    "go on with the network, or without the closure: ",
                    ours("all --no-closure"),
                ),
            )
        names = {wheel.name for wheel in built}
        imported = {row["sha256"]: row["key"] for row in _public_wheels(store) if row["imported"]}
        return tuple(
            _commit(path, sha256, store, names, imported if offline else {})
            for path, sha256 in held(Path(scratch), wheels, locks).items()
        )


def download_command(
    wheels: Sequence[Path],
    pins: Mapping[str, str],
    folder: Path,
    *,
    locks: Sequence[Lock] = (),
    wanted: Sequence[str] = (),
    foreign: Target | None = None,
    links: Sequence[Path] | None = None,
) -> list[str]:
    """Return pip's command line that brings into `folder` what `wheels` and `wanted` require.

    links: folders to look in beside those that pip knows, and in no index; None: as pip is configured.
    """
    own = {parse_wheel_filename(wheel.name)[0] for wheel in wheels}
    free = {name: version for name, version in pins.items() if name not in own}
    options = ["download", "--progress-bar=off", "--only-binary=:all:", "--dest", str(folder)]
    options += constraints(free, locks, folder)
    options += tags(foreign) if foreign else []
    if links is not None:
        options += ["--no-index", *(f"--find-links={link}" for link in links)]
    return [*pip_for(foreign), *options, *map(str, wheels), *wanted]


def constraints(pins: Mapping[str, str], locks: Sequence[Lock], folder: Path) -> list[str]:
    """Return pip's options that hold these versions, by a file in `folder`."""
    file = folder / "constraints.txt"
    lines = (f"{name}{_exactly(name, version, locks)}\n" for name, version in sorted(pins.items()))
    file.write_text("".join(lines))
    return ["--constraint", str(file)]


def _exactly(name: str, version: str, locks: Sequence[Lock]) -> str:
    """Return a specifier of what is locked: not an index's own build 1.0+cpu, which pip prefers to 1.0."""
    pin = f"{name}=={version}"
    files = next((lock.wheels[pin] for lock in locks if lock.wheels.get(pin)), {})
    known = {str(parse_wheel_filename(file)[1]) for file in files}
    return f"==={known.pop()}" if len(known) == 1 else f"=={version}"


def held(folder: Path, wheels: Sequence[Path], locks: Sequence[Lock]) -> dict[Path, str]:
    """Return what that brought, with its sha256s. Raises SourceError for other bytes than locked."""
    own = {wheel.name for wheel in wheels}
    found = {path: sha256_of(path) for path in sorted(folder.glob("*.whl")) if path.name not in own}
    for path, sha256 in found.items():
        _refuse_other(path.name, sha256, locks)
    return found


def pip_for(foreign: Target | None) -> list[str]:
    """Return pip's command line, run as if on the target where that is not this machine."""
    options = ["--disable-pip-version-check", "--no-input"]
    if foreign is None:
        return [sys.executable, "-m", "pip", *options]
    # -P: not the modules beside the script in the place of the standard library's.
    return [sys.executable, "-P", str(ELSEWHERE), json.dumps(wheels_model.markers(foreign)), *options]


def tags(target: Target) -> list[str]:
    """Return the options that make pip choose files for another machine."""
    return [
        *(f"--platform={name}" for name in wheels_model.platforms(target)),
        f"--python-version={wheels_model.python_version(target)}",
        "--implementation=cp",
        *(f"--abi={abi}" for abi in (target.python, "abi3", "none")),
    ]


def _public_wheels(store: Path) -> list[dict[str, Any]]:
    """Return the rows of those that were downloaded here, or imported from a signer who is trusted."""
    return [
        row
        for row in stores.index_rows(store)
        if row["origin"] == "public" and (not row["imported"] or is_trusted(store.parent, row))
    ]


def _refuse_other(file: str, sha256: str, locks: Sequence[Lock]) -> None:
    """Raise SourceError for a wheel of a locked name: another file or other bytes."""
    name, version, *_ = parse_wheel_filename(file)
    holders = [lock for lock in locks if name in lock.names]
    if not holders or any(lock.allows(file, sha256) for lock in holders):
        return
    owner = next((lock for lock in holders if lock.pins.get(name) == str(version)), holders[0])
    raise SourceError(
        f"{file}: {owner.file} does not name these bytes (sha256 {sha256}) of {name}=={version}",
        hint=Hint(
            "remove that file if it lies in a folder of PIP_FIND_LINKS, or find out who changed the "
            "index; to take it: ",
            ours("recipes pin", owner.owner),
            "  (writes the lock anew; vendors' wheels are pinned in the train itself)",
        ),
    )


def unlocked(public: Iterable[StoredWheel], locks: Sequence[Lock]) -> list[str]:
    """Return the wheels that no lock holds, as name==version."""
    locked = frozenset().union(*(lock.names for lock in locks))
    return [f"{wheel.name}=={wheel.version}" for wheel in public if wheel.name not in locked]


def _commit(
    path: Path, sha256: str, store: Path, built: set[str], imported: Mapping[str, str]
) -> StoredWheel:
    """Commit a download; one that is here by an import (sha256 -> key) stays marked as that."""
    facts, content = facts_and_digest(path)
    if facts.unsafe:
        raise StoreError(f"the public wheel {path.name} is not taken: {facts.unsafe[0]}")
    if facts.name in built:
        raise StoreError(f"pip would take {path.name} from the index instead of the wheel built here")
    there = stores.read(store, imported[sha256]) if sha256 in imported else None
    if there is not None and there.wheel is not None:
        return there.wheel
    entry = stores.commit(
        store,
        key=sha256,
        wheel=path,
        described=stores.described_as("public", facts, content),
        papers={},
    )
    assert entry.wheel is not None
    return entry.wheel


HERE = f"{sys.platform}-{platform.machine()}"


def prove_installable(generation: Generation, target: Target) -> tuple[str, ...]:
    """Return uv's reasons why the generation cannot be installed on the target; () for none.

    It resolves for any target from any machine. Asked for are the newest of all that is not public, together,
    and every older version alone.
    """
    groups = wheelhouse_resolve.roots(generation.wheels)
    said = (_refusal(generation.folder, wheels, target) for wheels in groups)
    return tuple(dict.fromkeys(f"uv says: {one}" for one in said if one))


def _is_here(target: Target) -> bool:
    return (target.platform, target.python) == (HERE, interpreters.own().abi)


def _refusal(folder: Path, wheels: Sequence[StoredWheel], target: Target) -> str:
    with tempfile.TemporaryDirectory() as scratch:
        wanted = Path(scratch, "requirements.in")
        wanted.write_text("".join(f"{wheel.name}=={wheel.version}\n" for wheel in wheels))
        command = [
            find_uv() or "uv",
            "pip",
            "compile",
            "--quiet",
            "--no-config",
            "--offline",
            "--no-progress",
        ]
        command += ["--cache-dir", f"{scratch}/cache", "--python", sys.executable, "--prerelease", "allow"]
        if not _is_here(target):
            place = f"{wheels_model.machine_of(target)}-manylinux_2_{wheels_model.GLIBC_MINOR}"
            command += ["--python-version", wheels_model.python_version(target), "--python-platform", place]
        # Of a path, uv takes what follows # for a fragment.
        links = folder.absolute().as_uri()
        sources = ["--no-index", "--find-links", links, "--only-binary", ":all:"]
        done = run([*command, *sources, str(wanted)], cwd=Path(scratch), env=unconfigured())
    return "" if done.returncode == 0 else error_in(done.output)


def unresolved(
    home: Home, targets: Iterable[Target], *, most: int | None, told: Callable[[str], None]
) -> tuple[Suspect, ...]:
    """Return what keeps the current generations from being installed, by a real resolver, offline.

    Views of more than `most` wheels are only told of: a resolver takes seconds for hundreds.
    """
    known = tuple(targets)
    found = []
    for view in sorted(path for path in home.views.glob("*") if path.is_dir()):
        target = _target_of(view.name, known)
        current = generations.current(view)
        if current is None:
            continue
        if target is None:
            told(f"{view.name}: no target of that name is known here; whether it installs was not tried")
        elif most is not None and len(current.wheels) > most:
            told(f"{view.name}: {len(current.wheels)} wheels; --resolve tries whether they install")
        else:
            fix = Hint(ours("all", options=generations.options_of(view)), " (completes the set)")
            found += [
                suspect("incomplete", current.folder, problem, fix)
                for problem in prove_installable(current, target)
            ]
    return tuple(found)


def _target_of(view: str, targets: Iterable[Target]) -> Target | None:
    """Return the target of a view by its name; a target that means this machine gets its platform."""
    name, _, python = view.rpartition("-")
    for target in targets:
        if name.startswith(f"{target.name}-") and python.startswith("cp"):
            here = HERE if target.platform == "host" else target.platform
            return replace(target, platform=here, python=python)
    return None
