"""Virtual environments filled from one generation only, and the proof that they were."""

from __future__ import annotations

import base64
import hashlib
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from spark_build.core.resolve import needed
from spark_build.errors import HostError, StoreError, UsageError
from spark_build.host import venv
from spark_build.host.files import remove_tree
from spark_build.host.wheelhouse import Generation, requirements
from spark_build.model.wheel import StoredWheel

HASH_CHUNK = 1 << 20


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
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} is not empty", hint="choose a new folder, or remove this one first")
    chosen = choose(generation, names)
    try:
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
            # --isolated: no index or folder of the user's own configuration has a say here.
            done = venv.pip(
                folder, ["--isolated", "install", "--no-cache-dir", *arguments, "-r", str(listed)]
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


def prove_origin(folder: Path, generation: Generation, wheels: Sequence[StoredWheel]) -> None:
    """Raise StoreError unless every installed file is byte for byte the wheelhouse's."""
    (site,) = folder.glob("lib/python*/site-packages")
    for wheel in wheels:
        with zipfile.ZipFile(generation.folder / wheel.filename) as archive:
            record = next(name for name in archive.namelist() if name.endswith(".dist-info/RECORD"))
            rows = archive.read(record).decode().splitlines()
        wrong = [path for path, digest in _hashed(rows) if not _matches(site / path, digest)]
        if wrong:
            raise StoreError(
                f"{wheel.name}: {wrong[0]} in the environment is not the wheelhouse's",
                where=str(site / wrong[0]),
                hint=f"rm -r {folder}, then make it again",
            )


def _hashed(rows: Sequence[str]) -> list[tuple[str, str]]:
    """(path, sha256 as RECORD writes it) of files that an installer copies unchanged."""
    import csv

    found = []
    for path, digest, _ in csv.reader(rows):
        moved = path.split("/")[0].endswith(".data")
        # pip compiles bytecode anew, also where a wheel brought some along.
        if digest.startswith("sha256=") and not moved and not path.endswith(".pyc"):
            found.append((path, digest.removeprefix("sha256=")))
    return found


def _matches(path: Path, digest: str) -> bool:
    try:
        with path.open("rb") as file:
            actual = hashlib.file_digest(file, "sha256").digest()
    except OSError:
        return False
    return base64.urlsafe_b64encode(actual).rstrip(b"=").decode() == digest


def _add_pip(folder: Path) -> None:
    """Give the user pip inside; from the interpreter's own bundle, without any index."""
    from spark_build.host.run import run

    done = run([str(venv.python_of(folder)), "-m", "ensurepip", "--upgrade"], env=venv.clean_environment())
    if done.returncode != 0:
        raise HostError(
            "this Python cannot put pip into an environment (ensurepip failed)",
            hint=f"sudo apt-get install -y python3.{sys.version_info.minor}-venv, or use --without-pip",
        )
