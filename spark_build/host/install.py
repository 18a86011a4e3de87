"""Virtual environments filled from one generation only, and the proof that they were."""

from __future__ import annotations

import csv
import hashlib
import os
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from shlex import quote

from spark_build.core.resolve import needed
from spark_build.errors import HostError, StoreError, UsageError
from spark_build.host import venv
from spark_build.host.files import remove_tree
from spark_build.host.wheelfile import dist_info, opened, urlsafe
from spark_build.host.wheelhouse import Generation, requirements
from spark_build.model.wheel import StoredWheel


def choose(generation: Generation, names: Sequence[str]) -> tuple[StoredWheel, ...]:
    """The wheels that `names` (default: everything built here) need, from this generation."""
    from packaging.markers import default_environment
    from packaging.requirements import InvalidRequirement

    try:
        wanted = names or [wheel.name for wheel in generation.built()]
        environment = {key: str(value) for key, value in default_environment().items()}
        chosen, missing = needed(wanted, generation.wheels, environment)
    except InvalidRequirement as error:
        raise UsageError(f"no package: {error}") from error
    if missing:
        have = ", ".join(sorted({wheel.name for wheel in generation.wheels}))
        raise StoreError(
            f"the wheelhouse has no {', '.join(missing)}",
            where=str(generation.folder),
            hint=f"there are {have}; `spark-build all` publishes the third-party wheels too",
        )
    return chosen


def install(generation: Generation, folder: Path, names: Sequence[str], *, with_pip: bool) -> tuple[str, ...]:
    """Make an environment in `folder` from the generation: offline, hashes required, origin proven.

    Returns "name==version" of what is in it. A folder with anything in it is refused; after a
    failure nothing is left.
    """
    if folder.is_symlink() or (folder.exists() and (not folder.is_dir() or any(folder.iterdir()))):
        raise UsageError(f"{folder} is no new or empty folder", hint="choose another, or remove it first")
    chosen = choose(generation, names)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        venv.create(folder)
        with tempfile.TemporaryDirectory() as scratch:
            listed = Path(scratch, "requirements.txt")
            listed.write_text(requirements(chosen))
            arguments = [
                "--no-index",
                "--find-links",
                str(generation.folder),
                "--no-deps",
                "--require-hashes",
            ]
            done = venv.pip(
                folder, ["install", "--no-cache-dir", *arguments, "-r", str(listed)], env=_unconfigured()
            )
        if done.returncode != 0:
            lines = [line for line in done.output.splitlines() if line.startswith("ERROR:")]
            raise StoreError(
                f"pip refuses the wheels: {lines[0] if lines else done.output[-300:]}",
                where=str(generation.folder),
                hint="spark-build wheelhouse list",
            )
        prove_origin(folder, generation, chosen)
        if with_pip:
            _add_pip(folder)
    except BaseException:
        remove_tree(folder)
        raise
    return tuple(f"{wheel.name}=={wheel.version}" for wheel in chosen)


def _unconfigured() -> dict[str, str]:
    """What keeps pip from its configuration: no index or folder of the user's has a say here.

    --isolated would still read PIP_CONFIG_FILE and the machine's file. Empty variables are ignored.
    """
    variables = dict.fromkeys((name for name in os.environ if name.startswith("PIP_")), "")
    return {**variables, "PIP_CONFIG_FILE": os.devnull}


def prove_origin(folder: Path, generation: Generation, wheels: Sequence[StoredWheel]) -> None:
    """Raise StoreError unless every file of these wheels is installed byte for byte."""
    for wheel in wheels:
        with opened(generation.folder / wheel.filename) as archive:
            for name, path, listed in _installed(archive, wheel.filename, folder):
                if not _matches(path, listed):
                    raise StoreError(
                        f"{wheel.name}: {name} in the environment is not the wheelhouse's",
                        where=str(path),
                        hint=f"rm -r {quote(str(folder))}, then make it again",
                    )


def _installed(archive: zipfile.ZipFile, filename: str, folder: Path) -> Iterator[tuple[str, Path, str]]:
    """(name, where it was installed, hash as RECORD writes it) of files that are copied unchanged."""
    (site,) = folder.glob("lib/python*/site-packages")
    bases = {"purelib": site, "platlib": site, "data": folder, "scripts": folder / "bin"}
    record = archive.read(f"{dist_info(archive, filename)}/RECORD").decode()
    for name, listed, _ in csv.reader(record.splitlines()):
        parts = name.split("/")
        if not listed:  # RECORD itself; the audit refuses other files without a hash
            continue
        if name.endswith(".pyc"):  # pip compiles anew, also where a wheel brought bytecode along
            continue
        if not parts[0].endswith(".data"):
            yield name, site / name, listed
        elif parts[1] in bases and not _gets_interpreter(archive, name):
            yield name, bases[parts[1]].joinpath(*parts[2:]), listed


def _gets_interpreter(archive: zipfile.ZipFile, name: str) -> bool:
    """Whether an installer rewrites the file's first line."""
    with archive.open(name) as file:
        return file.read(8) == b"#!python"


def _matches(path: Path, listed: str) -> bool:
    algorithm, _, digest = listed.partition("=")
    try:
        with path.open("rb") as file:
            return urlsafe(hashlib.file_digest(file, algorithm).digest()) == digest
    except OSError:
        return False


def _add_pip(folder: Path) -> None:
    """Give the user pip inside; from the interpreter's own bundle, without any index."""
    from spark_build.host.run import run

    done = run([str(venv.python_of(folder)), "-m", "ensurepip", "--upgrade"], env=venv.clean_environment())
    if done.returncode != 0:
        raise HostError(
            "this Python cannot put pip into an environment (ensurepip failed)",
            hint=f"sudo apt-get install -y python3.{sys.version_info.minor}-venv, or use --without-pip",
        )
