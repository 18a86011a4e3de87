"""Take a vendor's verified wheel as it is, and make a development prefix from its content."""

from __future__ import annotations

import errno
import shutil
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath

from spark_build.build.backends import Product, Runner
from spark_build.build.job import Job
from spark_build.errors import AuditError, StageError
from spark_build.files import copy_or_link, remove_tree
from spark_build.wheels.reader import opened

# A file named like a folder, or a name that is too long: the wheel's fault, not the disk's.
_NAMES = (errno.EEXIST, errno.EISDIR, errno.ENOTDIR, errno.ENAMETOOLONG)


def build(job: Job, _runner: Runner, _values: Mapping[str, str | Callable[[], str]]) -> Product:
    """The wheel byte for byte in job.dist; the folders that the recipe names in job.prefix."""
    source = job.step.source
    if source is None or source.kind != "wheel":
        raise StageError("a recipe of kind repack needs a source of kind wheel")
    archive = job.home.sources / source.sha256[:2] / source.sha256 / source.filename
    copy_or_link(archive, job.dist / source.filename)
    wanted = job.step.recipe.prefix
    if not wanted.copy:
        return Product(wheel=source.filename)
    remove_tree(job.prefix)
    with opened(archive) as wheel:
        for folder, destination in wanted.copy.items():
            _extract(wheel, folder, job.prefix / destination)
    for link, points_to in wanted.links.items():
        path = job.prefix / link
        if not (path.parent / points_to).exists():
            raise StageError(f"{source.filename} has no {points_to}, which {link} is to point to")
        path.symlink_to(points_to)
    return Product(wheel=source.filename, prefix=True)


def _extract(wheel: zipfile.ZipFile, folder: str, destination: Path) -> None:
    """The files below `folder` of a wheel; one that would land outside is refused."""
    inside = [name for name in wheel.namelist() if name.startswith(f"{folder}/") and not name.endswith("/")]
    if not inside:
        raise StageError(f"{wheel.filename} has no folder {folder}")
    for name in inside:
        relative = PurePosixPath(name.removeprefix(f"{folder}/"))
        if ".." in relative.parts or relative.is_absolute():
            raise AuditError(f"{wheel.filename} holds the unsafe name {name!r}")
        write_file(wheel, wheel.getinfo(name), destination / relative)


def write_file(wheel: zipfile.ZipFile, info: zipfile.ZipInfo, path: Path) -> None:
    """Write one file of a wheel with its executable bit; AuditError for a name that no file can have."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with wheel.open(info) as content, path.open("wb") as out:
            shutil.copyfileobj(content, out, 1 << 20)
    except OSError as error:
        if error.errno not in _NAMES:
            raise
        raise AuditError(
            f"{wheel.filename}: {info.filename!r} cannot be written: {error.strerror}"
        ) from error
    path.chmod(0o755 if info.external_attr >> 16 & 0o111 else 0o644)
