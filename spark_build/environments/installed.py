"""The state file of an environment, its installed packages, and its installers."""

from __future__ import annotations

import contextlib
import csv
import errno
import hashlib
import json
import os
import sys
import tempfile
import zipfile
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from spark_build import venv
from spark_build.decoding import decoder
from spark_build.errors import AGAIN, Hint, HostError, StoreError, UsageError, ours, pip_install, rm
from spark_build.files import remove_tree, write_atomically
from spark_build.process import run
from spark_build.wheelhouse.generations import Generation, requirements
from spark_build.wheels.model import StoredWheel
from spark_build.wheels.payload import ENTRY_POINTS, commands
from spark_build.wheels.reader import dist_info, opened, urlsafe

InstallerName = Literal["uv", "pip"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Installed:
    """A package that was installed; `record`: sha256 of the RECORD that the installer left."""

    name: str
    version: str
    filename: str
    sha256: str
    key: str
    record: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class State:
    """Contents of an environment from the wheelhouse, and the packages that were asked for.

    unfinished: "" or the command that did not come to its end; then any of `doubtful` may be there in
    part, with `files` (relative to the environment) the ones that its installer was about to write.
    """

    view: str
    generation: int
    python: str  # cp312
    asked: tuple[str, ...]
    everything: bool  # all that is built here, beside what was asked for by name
    packages: tuple[Installed, ...]
    bundled: tuple[str, ...] = ()  # pip and what came with it
    unfinished: Literal["", "create", "update"] = ""
    doubtful: tuple[str, ...] = ()
    files: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Replacement:
    """A package whose wheel is replaced by another, or reinstalled."""

    before: str  # version that is there
    wheel: StoredWheel
    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class EnvironmentChange:
    """Changes that an update makes to an environment."""

    added: tuple[StoredWheel, ...] = ()
    replaced: tuple[Replacement, ...] = ()
    removed: tuple[Installed, ...] = ()
    released: tuple[Installed, ...] = ()  # put in by us, replaced by the user: now the user's
    same: tuple[str, ...] = ()
    others: tuple[str, ...] = field(default=())  # "name version" of what the user added, which stays

    @property
    def installs(self) -> tuple[StoredWheel, ...]:
        """Wheels to install."""
        return (*self.added, *(replacement.wheel for replacement in self.replaced))

    @property
    def empty(self) -> bool:
        """True when the environment is already as it should be."""
        return not (self.added or self.replaced or self.removed)


@dataclass(frozen=True, kw_only=True, slots=True)
class Package:
    """A dist-info folder. `record`: sha256 of its RECORD, "" without one."""

    name: str
    version: str
    info: Path
    record: str


def present(folder: Path) -> dict[str, Package]:
    """Return the installed packages by normalised name; of two folders for one name, one."""
    return {package.name: package for package in _packages(site_packages(folder))}


def _packages(site: Path) -> Iterator[Package]:
    for info in sorted(site.glob("*.dist-info")):
        name, _, version = info.name.removesuffix(".dist-info").partition("-")
        try:
            record = hashlib.sha256((info / "RECORD").read_bytes()).hexdigest()
        except OSError:
            record = ""
        yield Package(name=canonicalize_name(name), version=version, info=info, record=record)


def remove(folder: Path, names: Collection[str], leftovers: Iterable[Path] = ()) -> None:
    """Remove packages, and `leftovers`, files of an interrupted installation.

    A file that another package lists too stays. May be interrupted at any point and called again: the
    list of a package's files goes last.
    """
    folder = folder.resolve()
    site = site_packages(folder)
    doomed, kept = {path.parent.resolve() / path.name for path in leftovers}, set[Path]()
    going = []
    for package in _packages(site):
        files = set(_files(package.info, folder))
        if package.name in names:
            going.append(package.info)
            doomed |= files
        else:
            kept |= files
    lists = {info / "RECORD" for info in going}
    for path in doomed - kept - lists:
        _unlink(path)
    _prune({path.parent for path in doomed - kept - lists}, site)
    for info in going:
        remove_tree(info)


def _files(info: Path, folder: Path) -> Iterator[Path]:
    """Yield the files that a package lists, except those outside the environment."""
    try:
        rows = list(csv.reader((info / "RECORD").read_text().splitlines()))
    except (OSError, ValueError, csv.Error):
        return
    for row in rows:
        path = Path(os.path.normpath(info.parent / row[0])) if row else folder
        if path != folder and path.is_relative_to(folder):
            yield path


def _unlink(path: Path) -> None:
    """Remove a file and its bytecode."""
    with contextlib.suppress(FileNotFoundError, IsADirectoryError, NotADirectoryError):
        path.unlink()
    if path.suffix == ".py":
        for compiled in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
            compiled.unlink(missing_ok=True)


def _prune(folders: Iterable[Path], site: Path) -> None:
    """Remove folders in site-packages that became empty, bottom up."""
    for folder in sorted(folders, key=lambda path: -len(path.parts)):
        place = folder
        while place != site and place.is_relative_to(site):
            with contextlib.suppress(OSError):
                (place / "__pycache__").rmdir()
            try:
                place.rmdir()
            except FileNotFoundError:
                pass
            except OSError:
                break
            place = place.parent


NAME = "spark-build.json"
SCHEMA = 1


def write(folder: Path, state: State) -> None:
    """Write the state atomically."""
    text = json.dumps({"schema": SCHEMA, **asdict(state)}, indent=1)
    write_atomically(folder / NAME, text + "\n")


def read(folder: Path) -> State:
    """Return the state of an environment of ours. Raises UsageError for any other folder."""
    try:
        raw: dict[str, Any] = json.loads((folder / NAME).read_text())
    except (FileNotFoundError, NotADirectoryError) as error:
        raise UsageError(
            f"{folder} was not made by `env create`: there is no {NAME} in it",
            hint=Hint("make a new one: ", ours("env create DIR")),
        ) from error
    except (OSError, ValueError) as error:
        raise _unreadable(folder, error) from error
    try:
        if raw.pop("schema") != SCHEMA:
            raise ValueError("written by a newer spark-build")
        state: State = decoder(State)(raw)
    except (KeyError, TypeError, ValueError) as error:
        raise _unreadable(folder, error) from error
    return state


def _unreadable(folder: Path, error: Exception) -> StoreError:
    return StoreError(
        f"what is known about this environment cannot be read: {error}",
        where=str(folder / NAME),
        hint=Hint(rm(folder), ", then make it again"),
    )


def is_unfinished_creation(folder: Path) -> bool:
    """Return whether `env create` was killed in this folder."""
    try:
        return read(folder).unfinished == "create"
    except (UsageError, StoreError):
        return False


def exists(folder: Path) -> bool:
    """Return whether an environment of ours is here, finished or not."""
    return (folder / NAME).is_file()


_PLACEHOLDER = b"#!python"  # the first line of a script for which an installer writes the interpreter


def site_packages(folder: Path) -> Path:
    """Return the environment's site-packages. Raises StoreError when it has none."""
    found = [path for path in folder.glob("lib/python*/site-packages") if path.is_dir()]
    if len(found) != 1:
        raise StoreError(f"{folder} is no virtual environment any more", hint=rm(folder))
    return found[0]


def prove_origin(folder: Path, generation: Generation, wheels: Sequence[StoredWheel]) -> None:
    """Raise StoreError unless every file of these wheels is installed byte for byte."""
    for wheel in wheels:
        for name, path in changed_files(folder, generation.folder / wheel.filename):
            raise StoreError(
                f"{wheel.name}: {name} in the environment is not the wheelhouse's",
                where=str(path),
                hint=Hint(rm(folder), ", then make it again"),
            )


def changed_files(folder: Path, wheel: Path) -> Iterator[tuple[str, Path]]:
    """Yield (name in the wheel, installed path) of each file that is missing or differs."""
    with opened(wheel) as archive:
        for name, path, listed in _placed(archive, wheel.name, folder):
            if not listed or name.endswith(".pyc"):
                continue  # RECORD itself; and pip compiles anew, also where a wheel brought bytecode along
            if not _matches(path, listed) and not _is_script(archive, name, path):
                yield name, path


def files_of(folder: Path, wheel: Path) -> Iterator[Path]:
    """Yield every file that installing the wheel writes, commands included."""
    with opened(wheel) as archive:
        yield from (path for _, path, _ in _placed(archive, wheel.name, folder))
        for command in _commands(archive, wheel.name):
            yield folder / "bin" / command


def _placed(archive: zipfile.ZipFile, filename: str, folder: Path) -> Iterator[tuple[str, Path, str]]:
    """Yield (name, installed path, hash as in RECORD) of a wheel's files."""
    site = site_packages(folder)
    bases = {"purelib": site, "platlib": site, "data": folder, "scripts": folder / "bin"}
    record = archive.read(f"{dist_info(archive, filename)}/RECORD").decode()
    for name, listed, _ in csv.reader(record.splitlines()):
        parts = name.split("/")
        if not parts[0].endswith(".data"):
            yield name, site / name, listed
        elif parts[1] in bases:
            yield name, bases[parts[1]].joinpath(*parts[2:]), listed


def _matches(path: Path, listed: str) -> bool:
    algorithm, _, digest = listed.partition("=")
    try:
        with path.open("rb") as file:
            return urlsafe(hashlib.file_digest(file, algorithm).digest()) == digest
    except OSError:
        return False


def _is_script(archive: zipfile.ZipFile, name: str, path: Path) -> bool:
    """Return whether a file is the wheel's script with only its first line rewritten."""
    if ".data/scripts/" not in name or not path.is_file():
        return False
    first, _, rest = archive.read(name).partition(b"\n")
    written = path.read_bytes()
    return first.startswith(_PLACEHOLDER) and written.startswith(b"#!") and written.endswith(b"\n" + rest)


def _commands(archive: zipfile.ZipFile, filename: str) -> Iterator[str]:
    """Yield the commands that an installer makes of a wheel's entry points."""
    file = f"{dist_info(archive, filename)}/{ENTRY_POINTS}"
    if file in archive.namelist():
        yield from (name for name in commands(archive.read(file)) if "/" not in name)


def choose_installer(wanted: str = "auto") -> InstallerName:
    """Return uv if there is one, else pip. Raises HostError when uv is asked for and missing."""
    if wanted == "pip":
        return "pip"
    if venv.find_uv() is not None:
        return "uv"
    if wanted == "uv":
        oldest = ".".join(map(str, venv.OLDEST_UV))
        raise HostError(
            f"there is no uv {oldest} or newer",
            hint=Hint(pip_install(f"uv>={oldest}"), ", or --installer pip"),
        )
    return "pip"


def fill(installer: InstallerName, folder: Path, source: Path, wheels: Sequence[StoredWheel]) -> None:
    """Install these wheels from `source` into the environment: offline, with hashes."""
    if not wheels:
        return
    with tempfile.TemporaryDirectory(prefix=venv.SCRATCH, dir=folder) as scratch:
        listed = Path(scratch, "requirements.txt")
        listed.write_text(requirements(wheels))
        # Of a path, uv takes what follows # for a fragment.
        links = source.absolute().as_uri() if installer == "uv" else str(source)
        found = ["--no-index", "--find-links", links]
        options = [*found, "--no-deps", "--require-hashes", "-r", str(listed)]
        if installer == "uv":
            done = venv.uv(folder, ["install", "--no-build", *options])
        else:
            isolated = ["--disable-pip-version-check", "--no-input"]
            command = [sys.executable, "-m", "pip", "--python", str(venv.python_of(folder)), *isolated]
            done = run([*command, "install", "--no-cache-dir", *options], cwd=folder, env=venv.unconfigured())
    if done.returncode != 0:
        if os.strerror(errno.ENOSPC) in done.output:
            raise HostError(f"the disk is full ({folder})", hint=Hint("free some space, then ", AGAIN))
        raise StoreError(
            f"{installer} refuses the wheels: {venv.error_in(done.output)}",
            where=str(source),
            hint=ours("wheelhouse list"),
        )


def add_pip(folder: Path) -> None:
    """Install pip from the interpreter's own bundle, without any index."""
    python = str(venv.python_of(folder))
    done = run([python, "-m", "ensurepip", "--upgrade"], env=venv.unconfigured())
    if done.returncode != 0:
        raise HostError(
            "this Python cannot put pip into an environment (ensurepip failed)",
            hint="sudo apt-get install -y python3-venv, or use --without-pip",
        )


def merged(asked: Sequence[str], more: Sequence[str]) -> tuple[str, ...]:
    """Return both requests together; a later one for the same package replaces the earlier.

    Raises UsageError for what is none.
    """
    try:
        wishes = {canonicalize_name(Requirement(text).name): text for text in (*asked, *more)}
    except InvalidRequirement as error:
        raise UsageError(f"no package: {error}") from error
    return tuple(wishes.values())
