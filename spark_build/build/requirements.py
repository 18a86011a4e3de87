"""Build requirements as kept wheels, and what is missing offline."""

from __future__ import annotations

import platform
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import BinaryIO

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from spark_build import venv
from spark_build.build import patches
from spark_build.environments import closure
from spark_build.errors import CHECK_NETWORK, Hint, PatchError, SourceError, ours
from spark_build.files import remove_tree, sha256_of
from spark_build.paths import Home
from spark_build.process import run
from spark_build.recipes.loader import closure_locks, closure_pins
from spark_build.recipes.model import Download, Plan, Provision, Source, Step, Target
from spark_build.recipes.parse import Lock
from spark_build.sources import git, http, simple_api, source_types
from spark_build.sources.download import fetch_pinned, pinned_in
from spark_build.sources.simple_api import Indexes, IndexFile, best_file
from spark_build.venv import clean_environment

Hashes = Mapping[str, Sequence[str]]  # pin -> the sha256s that its wheel may have


def wanted(step: Step, target: Target) -> tuple[str, ...]:
    """Return the pins of a step's build environment; () where it is not built on this machine."""
    here = f"{sys.platform}-{platform.machine()}"
    return () if not step.recipe.is_compiled or target.platform != here else step.evaluated.requires


def obtain(  # noqa: PLR0913 - pins, and where from, where to, what for
    pins: Sequence[str],
    hashes: Hashes,
    *,
    recipe: str,
    folder: Path,
    scratch: Path,
    offline: bool,
    log: BinaryIO,
    keep: Sequence[int] = (),
) -> list[Path]:
    """Return a wheel for each pin (name==version): kept, found locally, or downloaded by pip.

    `hashes`: the sha256s that a locked recipe allows for each pin; empty: any. `keep`: lock descriptors
    that pip inherits. Raises SourceError.
    """
    if unlisted := [pin for pin in pins if hashes and not hashes.get(pin)]:
        raise SourceError(
            f"the recipe's lock lists no wheel of {', '.join(unlisted)} for this machine",
            hint=Hint(ours("recipes pin", recipe), "  (writes it anew)"),
        )
    kept = {pin: _kept(pin, folder, hashes) for pin in pins}
    lacking = [pin for pin, path in kept.items() if path is None]
    if lacking:
        indexes = simple_api.configured()
        found = {pin: _offered(pin, indexes, hashes) for pin in lacking}
        remote = [pin for pin, path in found.items() if path is None]
        if remote and offline:
            raise SourceError(
                f"{', '.join(remote)} not on this machine, and --offline was given",
                hint="bring the wheels along in a folder that PIP_FIND_LINKS names",
            )
        if remote:
            found |= _download(remote, hashes, recipe, scratch, log, keep)
        kept |= {pin: _keep(path, folder, indexes) for pin, path in found.items() if path}
        remove_tree(scratch)
    return [path for path in kept.values() if path]


def missing(
    pins: Sequence[str], hashes: Hashes, *, folder: Path, indexes: Callable[[], Indexes]
) -> tuple[str, ...]:
    """Return the pins that `obtain` would have to ask the network for; changes nothing."""
    lacking = (pin for pin in pins if _kept(pin, folder, hashes) is None)
    return tuple(pin for pin in lacking if _offered(pin, indexes(), hashes) is None)


def _kept(pin: str, folder: Path, hashes: Hashes) -> Path | None:
    name = Requirement(pin).name.replace("-", "_")
    paths = folder.glob(f"[0-9a-f][0-9a-f]/*/{_any_spelling(name)}-*.whl")
    allowed = [path for path in sorted(paths) if not hashes or path.parent.name in hashes[pin]]
    return _best(pin, [path for path in allowed if sha256_of(path) == path.parent.name])


def _any_spelling(name: str) -> str:
    """Return a pattern for a project's name in file names: any case, any of . - _."""
    letters = (f"[{one.lower()}{one.upper()}]" if one.isalpha() else one for one in name)
    return "".join("[-_.]" if one in "-_." else one for one in letters)


def _offered(pin: str, indexes: Indexes, hashes: Hashes) -> Path | None:
    """Return the wheel that a local folder or index offers."""
    try:
        files = simple_api.files_of(Requirement(pin).name, indexes.local())
    except SourceError:
        return None
    here = {
        Path(http.path_of(file.url)): file.sha256
        for file in files
        if file.filename.endswith(".whl") and not http.is_remote(file.url)
    }
    allowed = hashes.get(pin, ())
    return _best(pin, [path for path, announced in here.items() if _is_sound(path, announced, allowed)])


def _is_sound(path: Path, announced: str, allowed: Sequence[str]) -> bool:
    if not path.is_file():
        return False
    found = sha256_of(path) if announced or allowed else ""
    return (not announced or found == announced) and (not allowed or found in allowed)


def _best(pin: str, paths: Sequence[Path]) -> Path | None:
    """Return the wheel that pip takes for the pin on this interpreter."""
    name, (exactly,) = canonicalize_name(Requirement(pin).name), Requirement(pin).specifier
    # A wheel's name has no dash before its version: other projects may have the same version.
    own = [path for path in paths if canonicalize_name(path.name.partition("-")[0]) == name]
    files = [IndexFile(project=name, filename=path.name, url=str(path)) for path in own]
    best = best_file(files, exactly.version)
    return Path(best.url) if best else None


def _download(
    pins: Sequence[str], hashes: Hashes, recipe: str, scratch: Path, log: BinaryIO, keep: Sequence[int]
) -> dict[str, Path | None]:
    """Have pip download them; it checks each file against the lock, else against what its index announces."""
    remove_tree(scratch)
    scratch.mkdir(parents=True)
    lines = [" ".join([pin, *(f"--hash=sha256:{one}" for one in hashes.get(pin, ()))]) for pin in pins]
    (scratch / "requirements.txt").write_text("\n".join(lines) + "\n")
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "download"]
    options = ["--no-deps", "--only-binary=:all:", "--dest", str(scratch)]
    options += ["--requirement", str(scratch / "requirements.txt")]
    done = run([*command, *options], env=clean_environment(), log=log, pass_fds=keep)
    if done.returncode != 0:
        remove_tree(scratch)
        if other := re.search(r"^ {4}(\S+==\S+) from (\S+)", done.output, re.MULTILINE):
            raise SourceError(
                f"{other[2]}: these are not the bytes of {other[1]} that the recipe's lock names",
                hint=Hint(
                    "remove that file if it lies here, or find out who changed the index; to take it: ",
                    ours("recipes pin", recipe),
                    "  (writes the lock anew)",
                ),
            )
        raise SourceError(
            f"a build requirement cannot be had: {venv.error_in(done.output)}", hint=CHECK_NETWORK
        )
    paths = sorted(scratch.glob("*.whl"))
    return {pin: _best(pin, paths) for pin in pins}


def _keep(path: Path, folder: Path, indexes: Indexes) -> Path:
    """Return the kept copy of a wheel."""
    sha256 = sha256_of(path)
    source = Source(kind="archive", url=path.absolute().as_uri(), filename=path.name, sha256=sha256)
    return fetch_pinned(source, folder=folder, indexes=indexes)


def downloads(step: Step, home: Home | None) -> tuple[Download, ...]:
    """Return what a step's build fetches, less what is in `home` by its name; None: nothing is there.

    Files are not read: `missing_sources` tells of what is damaged, and of what lies in other folders.
    """
    sources = filter(None, (step.source, *step.evaluated.extra_sources.values()))
    found = [_download_of(one) for one in sources if one.kind != "local" and not _is_fetched(one, home)]
    if step.recipe.is_compiled:
        hashes = step.evaluated.hashes
        lacking = (pin for pin in step.evaluated.requires if home is None or not _has(pin, hashes, home))
        found += [Download(kind="wheel", name=pin) for pin in lacking]
        found += [
            Download(kind="public", name=f"{one.distribution}=={one.version}")
            for one in step.provisions
            if one.provider == "public" and one.coupling == "content"
            if home is None or not _has_environment(step, home)
        ]
    return tuple(dict.fromkeys(found))


def _download_of(source: Source) -> Download:
    if source.kind == "git":
        return Download(kind="git", name=f"{source.url}@{source.commit}")
    return Download(kind="file", name=source.sha256, size=source.size or None)


def _is_fetched(source: Source, home: Home | None) -> bool:
    if home is None:
        return False
    if source.kind == "git":
        return not git.missing(source, folder=home.sources)
    return pinned_in(source, home.sources).final.is_file()


def _has(pin: str, hashes: Hashes, home: Home) -> bool:
    if hashes:
        return any((home.sources / one[:2] / one).is_dir() for one in hashes.get(pin, ()))
    return _kept(pin, home.sources, hashes) is not None


_BEFORE_ENVIRONMENT = ("fetch", "patch")


@dataclass(frozen=True, kw_only=True, slots=True)
class MissingSource:
    """An input of a recipe's build that is not on this machine."""

    recipe: str
    what: str


def missing_sources(plan: Plan, home: Home, *, stop_after: str = "") -> tuple[MissingSource, ...]:
    """Return all missing inputs of all recipes to build, up to stage `stop_after`; changes nothing."""
    indexes = cache(simple_api.configured)
    locks = closure_locks(home, plan.train, plan.target.platform)
    public = cache(partial(_public, locks))
    return tuple(
        MissingSource(recipe=step.recipe.name, what=what)
        for step in plan.steps
        if step.decision == "BUILD"
        for what in (
            *_of_sources(step, home, indexes),
            *missing(wanted(step, plan.target), step.evaluated.hashes, folder=home.sources, indexes=indexes),
            *(_of_patches(step, home) if stop_after != "fetch" else ()),
            *(_of_needs(step, home, public) if stop_after not in _BEFORE_ENVIRONMENT else ()),
        )
    )


def refuse(plan: Plan, home: Home, *, stop_after: str = "") -> None:
    """Raise SourceError naming every missing input, if there is any."""
    found: dict[str, list[str]] = {}
    for one in missing_sources(plan, home, stop_after=stop_after):
        found.setdefault(one.recipe, []).append(one.what)
    if found:
        listed = "; ".join(f"{recipe}: {', '.join(what)}" for recipe, what in found.items())
        raise SourceError(
            f"--offline, and not on this machine: {listed}",
            hint="where there is a network: the same command with --stop-after fetch instead of --offline; "
            "else bring the files along in a folder that PIP_FIND_LINKS names (docs/offline.md)",
        )


def _of_sources(step: Step, home: Home, indexes: Callable[[], Indexes]) -> Iterator[str]:
    for source in (step.source, *step.evaluated.extra_sources.values()):
        if source is not None:
            try:
                yield from source_types.missing(source, folder=home.sources, indexes=indexes)
            except SourceError as error:  # of what is here and damaged
                yield error.message


def _of_patches(step: Step, home: Home) -> Iterator[str]:
    for patch in step.patches:
        try:
            patches.located(patch, home)
        except PatchError as error:
            yield error.message


def _of_needs(step: Step, home: Home, public: Callable[[Provision], str]) -> Iterator[str]:
    """Yield the build environment's public wheels, unless they are installed already."""
    if not step.recipe.is_compiled or _has_environment(step, home):
        return
    for one in step.provisions:
        if one.provider == "public" and one.coupling == "content" and (lacking := public(one)):
            yield lacking


def _has_environment(step: Step, home: Home) -> bool:
    """Return whether an earlier run made the environment of the same build."""
    work = home.build / step.recipe.name / step.key
    mark = work / "build-key"
    return (
        mark.is_file()
        and mark.read_text() == step.build_key
        and (work / "stamps" / "environment.json").is_file()
        and venv.python_of(work / "env").exists()
    )


def _public(locks: Sequence[Lock], one: Provision) -> str:
    """Return what is missing of a public wheel and its requirements; "" when it can be installed."""
    wanted = f"{one.distribution}=={one.version}"
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "install"]
    options = ["--dry-run", "--ignore-installed", "--no-index", "--only-binary=:all:", "--quiet"]
    with tempfile.TemporaryDirectory() as scratch:
        limits = closure.constraints(closure_pins(locks), locks, Path(scratch))
        done = run([*command, *options, *limits, wanted], env=venv.clean_environment())
    if done.returncode == 0:
        return ""
    lacking = re.findall(r"No matching distribution found for (\S+)", done.output) or [wanted]
    return f"public wheel {wanted}" + (f" (it requires {lacking[0]})" if lacking[0] != wanted else "")
