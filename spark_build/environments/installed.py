"""The packages in an environment: which are there, and taking some out again."""

from __future__ import annotations

import contextlib
import csv
import hashlib
import os
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from packaging.utils import canonicalize_name

from spark_build.environments.origin import site_packages
from spark_build.files import remove_tree


@dataclass(frozen=True, kw_only=True, slots=True)
class Package:
    """A dist-info folder. `record`: sha256 of its RECORD, "" without one."""

    name: str
    version: str
    info: Path
    record: str


def present(folder: Path) -> dict[str, Package]:
    """What is installed, by normalised name. Of two folders for one name one is shown."""
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
    """Take packages out, and `leftovers`, files of an installation that did not come to its end.

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
    """The files that a package lists; never one outside of the environment."""
    try:
        rows = list(csv.reader((info / "RECORD").read_text().splitlines()))
    except (OSError, ValueError, csv.Error):
        return
    for row in rows:
        path = Path(os.path.normpath(info.parent / row[0])) if row else folder
        if path != folder and path.is_relative_to(folder):
            yield path


def _unlink(path: Path) -> None:
    """Remove a file and the bytecode that was compiled from it."""
    with contextlib.suppress(FileNotFoundError, IsADirectoryError, NotADirectoryError):
        path.unlink()
    if path.suffix == ".py":
        for compiled in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
            compiled.unlink(missing_ok=True)


def _prune(folders: Iterable[Path], site: Path) -> None:
    """Remove the folders in site-packages that became empty, bottom up."""
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
