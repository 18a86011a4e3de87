"""Make one development prefix of several wheels of a vendor, such as a CUDA toolkit. Nothing is executed."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath

from spark_build.build import stublib
from spark_build.build.backends import Product, Runner
from spark_build.build.job import Job
from spark_build.build.repack import write_file
from spark_build.errors import AuditError, StageError
from spark_build.files import remove_tree
from spark_build.recipes.model import Source, Stub
from spark_build.wheels.reader import dist_info, files_of, is_safe, opened

LICENCES = "share/licenses"  # below the prefix: one folder for each wheel
_PROGRAMS = (b"\x7fELF", b"#!")
_SHARED = re.compile(r"(lib[^/]+\.so)\.[\d.]+")


def build(job: Job, _runner: Runner, _values: Mapping[str, str | Callable[[], str]]) -> Product:
    """Unpack all wheels into job.prefix, then add links and stubs. Raises AuditError or StageError."""
    recipe, source = job.step.recipe, job.step.source
    if source is None:
        raise StageError(f"{recipe.name} has no wheels for {job.target.platform}")
    remove_tree(job.prefix)
    owners: dict[str, str] = {}
    used: set[str] = set()
    for wheel in sorted((source, *job.step.evaluated.extra_sources.values()), key=lambda one: one.filename):
        used |= _add(_archive(job, wheel), wheel.filename, recipe.prefix.copy, job.prefix, owners)
    unused = [folder for folder in recipe.prefix.copy if folder not in used]
    if unused:
        raise StageError(f"no wheel has a folder {', '.join(unused)}", where=_where(job, "copy"))
    for link, goal in recipe.prefix.links.items():
        _link(job, job.prefix / link, goal)
    for folder in recipe.prefix.unversioned:
        _unversioned(job, job.prefix / folder)
    for stub in recipe.prefix.stubs:
        _write_stub(job, stub)
    return Product(prefix=True)


def _archive(job: Job, wheel: Source) -> Path:
    if wheel.kind != "wheel":
        raise StageError("a recipe of kind assemble needs sources of kind wheel")
    return job.home.sources / wheel.sha256[:2] / wheel.sha256 / wheel.filename


def _add(
    archive: Path, filename: str, copy: Mapping[str, str], prefix: Path, owners: dict[str, str]
) -> set[str]:
    """Unpack one wheel; `owners` tells whose each path is. Return those folders of `copy` that it has."""
    used: set[str] = set()
    with opened(archive) as wheel:
        papers = dist_info(wheel, filename)
        for info in files_of(wheel):
            if not is_safe(info.filename):
                raise AuditError(f"{filename} holds the unsafe name {info.filename!r}")
            licence = _licence(info.filename, papers)
            if licence:
                _write(
                    wheel, info, f"{LICENCES}/{papers.removesuffix('.dist-info')}/{licence}", prefix, owners
                )
            for folder, destination in copy.items():
                inside = info.filename.removeprefix(f"{folder}/")
                # Hidden files are notes of the vendor's own build.
                if inside != info.filename and "/." not in f"/{inside}":
                    used.add(folder)
                    name = str(PurePosixPath(destination, inside))
                    _write(wheel, info, name, prefix, owners)
    if not used:
        raise StageError(f"{filename} has none of the folders {', '.join(copy)}")
    return used


def _licence(name: str, papers: str) -> str:
    """Return the name of a licence text below the wheel's dist-info folder; "" for anything else."""
    inside = name.removeprefix(f"{papers}/")
    is_one = inside.startswith("licenses/") or re.match(
        r"(licen[cs]e|eula|notice|copying)", inside, re.IGNORECASE
    )
    return inside.removeprefix("licenses/") if inside != name and is_one else ""


def _write(
    wheel: zipfile.ZipFile, info: zipfile.ZipInfo, name: str, prefix: Path, owners: dict[str, str]
) -> None:
    """Write one file, executable where the wheel says so, and any program in a folder named bin."""
    mine, place = Path(str(wheel.filename)).name, PurePosixPath(name)
    taken = next((str(one) for one in (place, *place.parents) if str(one) in owners), "")
    if not taken and (prefix / name).is_dir():
        taken = next(other for other in owners if other.startswith(f"{name}/"))
    if taken:
        both = f"{owners[taken]} and {mine}" if owners[taken] != mine else f"{mine} twice"
        raise AuditError(f"{name} comes from {both}: they do not make one prefix")
    owners[name] = mine
    write_file(wheel, info, prefix / name)
    with (prefix / name).open("rb") as file:
        if "bin" in place.parts and file.read(4).startswith(_PROGRAMS):
            (prefix / name).chmod(0o755)


def _link(job: Job, link: Path, goal: str) -> None:
    shown = link.relative_to(job.prefix)
    if not (link.parent / goal).exists():
        raise StageError(f"there is no {goal}, which {shown} is to point to", where=_where(job, "links"))
    if link.exists() or link.is_symlink():
        raise StageError(f"{shown} is there already", where=_where(job, "links"))
    link.symlink_to(goal)


def _unversioned(job: Job, folder: Path) -> None:
    """Let libX.so point to libX.so.N, which a linker looks for and wheels leave out."""
    for name, versions in sorted(_by_name(folder)):
        if (folder / name).exists():
            continue
        if len(versions) > 1:
            shown = (folder / name).relative_to(job.prefix)
            raise StageError(f"{shown} may be {' or '.join(versions)}", where=_where(job, "unversioned"))
        (folder / name).symlink_to(versions[0])


def _by_name(folder: Path) -> Iterator[tuple[str, list[str]]]:
    found: dict[str, list[str]] = {}
    for path in sorted(folder.glob("lib*.so.*")):
        if name := _SHARED.fullmatch(path.name):
            found.setdefault(name[1], []).append(path.name)
    yield from found.items()


def _write_stub(job: Job, stub: Stub) -> None:
    header, path = job.prefix / stub.header, job.prefix / stub.library
    if not header.is_file():
        raise StageError(
            f"there is no {stub.header}, which {stub.library} is made from", where=_where(job, "stubs")
        )
    names = stublib.functions_in(header.read_text(errors="replace"), stub.functions)
    if not names or path.exists():
        why = (
            f"{stub.library} is there already"
            if names
            else f"{stub.header} has no function {stub.functions}..."
        )
        raise StageError(why, where=_where(job, "stubs"))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(
        stublib.library(names, soname=stub.soname, platform=job.target.platform, answer=stub.answer)
    )


def _where(job: Job, key: str) -> str:
    return f"recipes/{job.step.recipe.name}.toml: prefix.{key}"
