"""spark-build itself as wheels, with all that it needs: the offline node can verify what it gets."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from spark_build import __version__
from spark_build.environments.closure import pip_for, tags
from spark_build.errors import SourceError
from spark_build.files import appearing, locked, sha256_of
from spark_build.hashing import digest
from spark_build.paths import PACKAGE, Home
from spark_build.process import run
from spark_build.recipes.model import Target
from spark_build.venv import clean_environment

EXTRA = "verify"
EPOCH = "315532800"  # the same sources give the same wheel
_SOURCES = ("spark_build", "recipes", "patches", "bench", "pyproject.toml", "README.md", "LICENSE")


def wheels_of_itself(
    home: Home, target: Target, *, is_here: bool, tell: Callable[[str], None]
) -> tuple[Path, ...]:
    """The wheels, made by pip once for each state of the sources, then kept.

    SourceError where there is no network and nothing is kept.
    """
    key = digest(
        {
            "sources": _state(),
            "platform": target.platform,
            "python": target.python,
            "here": sys.version_info[:2],
        }
    )
    folder = home.cache / "spark-build" / key
    with locked(folder.with_name(f".{key}.lock"), purpose="packing spark-build"):
        if not folder.is_dir():
            tell("packing spark-build itself, with what it needs (once; then it is kept)")
            with appearing(folder) as temporary:
                _make(temporary, None if is_here else target)
    return tuple(sorted(folder.glob("*.whl")))


def _checkout() -> Path | None:
    folder = PACKAGE.parent
    return folder if (folder / "pyproject.toml").is_file() and (folder / "recipes").is_dir() else None


def _state() -> str:
    """What the wheel is made of; an installed package is what its version and RECORD say."""
    checkout = _checkout()
    if checkout is None:
        try:
            return f"{__version__} {distribution('spark-build').read_text('RECORD')}"
        except PackageNotFoundError:
            return __version__
    return digest({str(path.relative_to(checkout)): sha256_of(path) for path in _files(checkout)})


def _files(checkout: Path) -> Iterator[Path]:
    for name in _SOURCES:
        top = checkout / name
        for path in [top] if top.is_file() else sorted(top.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                yield path


def _make(folder: Path, foreign: Target | None) -> None:
    checkout = _checkout()
    if checkout is None:
        _from_installed(folder)
    else:
        _pip(None, "wheel", "--no-deps", "--wheel-dir", str(folder), str(checkout))
    (own,) = folder.glob("*.whl")
    options = tags(foreign) if foreign else []
    _pip(foreign, "download", "--only-binary=:all:", "--dest", str(folder), *options, f"{own}[{EXTRA}]")


def _pip(foreign: Target | None, command: str, *arguments: str) -> None:
    env = clean_environment({"SOURCE_DATE_EPOCH": EPOCH})
    done = run([*pip_for(foreign), command, "--quiet", *arguments], env=env)
    if done.returncode != 0:
        errors = [line for line in done.output.splitlines() if line.startswith("ERROR:")]
        raise SourceError(
            "spark-build itself cannot be packed for the other machine: "
            + (errors[-1].removeprefix("ERROR: ") if errors else done.output[-300:]),
            hint="export with --without-spark-build; or once with the network, after which it is kept",
        )


def _from_installed(folder: Path) -> None:
    """The wheel that this installation came from, put together again from its files."""
    from wheel.wheelfile import WheelFile

    try:
        own = distribution("spark-build")
    except PackageNotFoundError as error:
        raise SourceError(
            "spark-build runs from neither a checkout nor an installed package: it cannot be packed",
            hint="export with --without-spark-build",
        ) from error
    left_out = ("INSTALLER", "RECORD", "REQUESTED", "direct_url.json", "uv_cache.json")
    with tempfile.TemporaryDirectory() as scratch:
        for file in own.files or ():
            # Scripts are made by the installer, from entry_points.txt.
            inside = ".." not in file.parts and "__pycache__" not in file.parts
            if inside and not (file.parts[0].endswith(".dist-info") and file.name in left_out):
                copy = Path(scratch, *file.parts)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(str(file.locate()), copy)
                os.utime(copy, (int(EPOCH), int(EPOCH)))
        name = folder / f"spark_build-{own.version}-py3-none-any.whl"
        with WheelFile(str(name), "w") as wheel:
            wheel.write_files(scratch)
