"""Whether what is installed are a wheel's files, byte for byte; and which files a wheel becomes."""

from __future__ import annotations

import configparser
import csv
import hashlib
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from shlex import quote

from spark_build.errors import StoreError
from spark_build.wheelhouse.generations import Generation
from spark_build.wheels.model import StoredWheel
from spark_build.wheels.reader import dist_info, opened, urlsafe

_PLACEHOLDER = b"#!python"  # the first line of a script for which an installer writes the interpreter


def site_packages(folder: Path) -> Path:
    """Where an environment's packages lie; StoreError where there is no such place."""
    found = [path for path in folder.glob("lib/python*/site-packages") if path.is_dir()]
    if len(found) != 1:
        raise StoreError(f"{folder} is no virtual environment any more", hint=f"rm -r {quote(str(folder))}")
    return found[0]


def prove_origin(folder: Path, generation: Generation, wheels: Sequence[StoredWheel]) -> None:
    """Raise StoreError unless every file of these wheels is installed byte for byte."""
    for wheel in wheels:
        for name, path in differences(folder, generation.folder / wheel.filename):
            raise StoreError(
                f"{wheel.name}: {name} in the environment is not the wheelhouse's",
                where=str(path),
                hint=f"rm -r {quote(str(folder))}, then make it again",
            )


def differences(folder: Path, wheel: Path) -> Iterator[tuple[str, Path]]:
    """(name in the wheel, where it should be) of each file that is missing or has other bytes."""
    with opened(wheel) as archive:
        for name, path, listed in _placed(archive, wheel.name, folder):
            if not listed or name.endswith(".pyc"):
                continue  # RECORD itself; and pip compiles anew, also where a wheel brought bytecode along
            if not _matches(path, listed) and not _is_script(archive, name, path):
                yield name, path


def files_of(folder: Path, wheel: Path) -> Iterator[Path]:
    """Every file that installing the wheel writes into the environment, commands included."""
    with opened(wheel) as archive:
        yield from (path for _, path, _ in _placed(archive, wheel.name, folder))
        for command in _commands(archive, wheel.name):
            yield folder / "bin" / command


def _placed(archive: zipfile.ZipFile, filename: str, folder: Path) -> Iterator[tuple[str, Path, str]]:
    """(name, where it is installed, hash as RECORD writes it) of a wheel's files."""
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
    """Whether it is the wheel's script with nothing but its first line rewritten by an installer."""
    if ".data/scripts/" not in name or not path.is_file():
        return False
    first, _, rest = archive.read(name).partition(b"\n")
    written = path.read_bytes()
    return first.startswith(_PLACEHOLDER) and written.startswith(b"#!") and written.endswith(b"\n" + rest)


def _commands(archive: zipfile.ZipFile, filename: str) -> Iterator[str]:
    """The commands that an installer makes of a wheel's entry points."""
    parser = configparser.ConfigParser(delimiters=("=",), strict=False, interpolation=None)
    try:
        parser.read_string(archive.read(f"{dist_info(archive, filename)}/entry_points.txt").decode())
    except (KeyError, configparser.Error):  # none, or no installer can read them either
        return
    for section in ("console_scripts", "gui_scripts"):
        if parser.has_section(section):
            yield from (name for name in parser[section] if "/" not in name)
