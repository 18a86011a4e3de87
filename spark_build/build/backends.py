"""Ways to build: pep517, cmake, scons, repack, assemble; stub libraries."""

from __future__ import annotations

import errno
import re
import shutil
import struct
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path, PurePosixPath

from build import BuildBackendException, BuildException, ProjectBuilder
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from pyproject_hooks import BuildBackendWarning

from spark_build import venv
from spark_build.build.context import NOWHERE, Job
from spark_build.errors import AuditError, SparkBuildError, StageError
from spark_build.files import copy_or_link, read_made, remove_tree
from spark_build.recipes.evaluation import fill_placeholders
from spark_build.recipes.model import Source, Stub
from spark_build.sources.download import pinned_in
from spark_build.wheels.reader import dist_info, files_of, is_safe, opened

# Runs a command of the build, with variables on top of the build's own; raises StageError.
Runner = Callable[[Sequence[str], Path, Mapping[str, str]], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Product:
    """Result of a build: a wheel's file name in job.dist, a prefix in job.prefix, or both."""

    wheel: str = ""
    prefix: bool = False


class BuildReached(Exception):  # noqa: N818  no error: it is what a run that only configures ends with
    """The project is done with configuring and begins to build; `call` is what it called or printed."""

    def __init__(self, call: str, *, began: bool = False, by_itself: bool = False) -> None:
        super().__init__(call)
        self.call = call
        self.began = began  # something was compiled already
        self.by_itself = by_itself  # without ninja and make


# Build in job.source; the values fill placeholders. Raises StageError.
Builder = Callable[[Job, Runner, Mapping[str, str | Callable[[], str]]], Product]


def refuse_incomplete(job: Job, key: str) -> None:
    """Raise StageError when the prefix lacks a file that the recipe expects; `key`: where it says so.

    Also when one of its links leads to a file outside: with the prefix, others would be given that. And for
    what is no file, folder or link: whoever opens a FIFO waits for ever.
    """
    recipe = job.step.recipe
    for path in job.prefix.rglob("*"):
        if path.is_symlink():
            if path.exists():
                _refuse_outside(path, job.prefix)
        elif not path.is_file() and not path.is_dir():
            raise StageError(f"{path.relative_to(job.prefix)} in the prefix is no file, folder or link")
    missing = [path for path in recipe.expect if not (job.prefix / path).exists()]
    if missing:
        raise StageError(f"the prefix lacks {', '.join(missing)}", where=f"recipes/{recipe.name}.toml: {key}")


def build_pep517(job: Job, runner: Runner, _values: Mapping[str, str | Callable[[], str]]) -> Product:
    """Call the backend's hooks in the build environment."""

    def hook(
        cmd: Sequence[str], cwd: str | None = None, extra_environ: Mapping[str, str] | None = None
    ) -> None:
        runner(cmd, Path(cwd) if cwd else job.source, extra_environ or {})
        with suppress(FileNotFoundError):  # the hook's answer, which is read next
            read_made(Path(cmd[-1], "output.json"), 0)

    # The backend's warnings are in the log; pyproject-hooks would repeat them on our stderr.
    warnings.simplefilter("ignore", BuildBackendWarning)
    python = venv.python_of(job.environment)
    try:
        builder = ProjectBuilder(job.source, python_executable=str(python), runner=hook)
    except (BuildException, UnicodeDecodeError) as error:  # no pyproject.toml, or what is none
        raise StageError(f"the source is no Python project that can be built: {error}") from error
    try:
        _check_requirements(job, builder.build_system_requires | builder.get_requires_for_build("wheel"))
        wheel = job.dist / Path(builder.build("wheel", job.dist)).name
        read_made(wheel, 0)
        return Product(wheel=wheel.name)
    except BuildBackendException as error:
        # The frontend wraps whatever our runner raised.
        if isinstance(error.exception, (SparkBuildError, BuildReached)):
            raise error.exception from error
        raise StageError(f"the build backend failed: {error}") from error
    except (TypeError, ValueError, LookupError) as error:  # pyproject-hooks reads whatever the build wrote
        raise StageError(f"the build backend's answer is none: {error}") from error
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ELOOP, errno.ENOENT):
            raise
        raise StageError(f"the build backend left no regular file: {error}") from error


def _check_requirements(job: Job, wanted: set[str]) -> None:
    """Check that the pins meet the project's own requirements."""
    sites = [*job.environment.glob("lib/python*/site-packages")]
    sites += [one.site for one in job.provided if one.site is not None]
    found = distributions(path=[str(site) for site in sites])
    have = {canonicalize_name(dist.name): dist.version for dist in found}
    unmet = []
    for text in sorted(wanted):
        try:
            requirement = Requirement(text)
            applies = requirement.marker is None or requirement.marker.evaluate()
        except ValueError as error:  # also a marker that compares what cannot be compared
            raise StageError(f"the project asks for {text!r}, which is no requirement") from error
        if not applies:
            continue
        version = have.get(canonicalize_name(requirement.name))
        if version is None or not requirement.specifier.contains(version, prereleases=True):
            unmet.append(f"{requirement} (have {version or 'none'})")
    if unmet:
        raise StageError(
            f"the project asks for {', '.join(unmet)}",
            where=f"recipes/{job.step.recipe.name}.toml",
            hint="mend build.requires in the recipe",
        )


def build_cmake(job: Job, runner: Runner, values: Mapping[str, str | Callable[[], str]]) -> Product:
    """Leaves the prefix in job.prefix; StageError when a file that the recipe expects is missing."""
    recipe = job.step.recipe
    tree = job.source / ".spark-build"  # inside, so that an interrupted build is found and continued
    installed = f"{NOWHERE}/{recipe.name}"
    where = f"recipes/{recipe.name}.toml: cmake.define"
    defined = [
        f"-D{name}={fill_placeholders(variable.value, values, where=f'{where}.{name}')}"
        for name, variable in recipe.cmake.define.items()
    ]
    # How many jobs is the jobserver's business: -j would switch it off.
    configure = ["cmake", "-G", "Ninja", "-S", str(job.source / recipe.cmake.source), "-B", str(tree)]
    runner([*configure, f"-DCMAKE_INSTALL_PREFIX={installed}", *defined], job.source, {})
    runner(["ninja", "-C", str(tree)], job.source, {})
    staging = job.work / "staging"
    remove_tree(staging)
    staging.mkdir()
    remove_tree(job.prefix)
    runner(["cmake", "--install", str(tree)], job.source, {"DESTDIR": str(staging)})
    made = Path(f"{staging}{installed}")
    _refuse_outside(made, staging)
    if not made.is_dir() or made.is_symlink():
        raise StageError(f"the install step put nothing under its prefix {installed}")
    made.rename(job.prefix)
    refuse_incomplete(job, "cmake.expect")
    return Product(prefix=True)


# A file named like a folder, or a name that is too long: the wheel's fault, not the disk's.
_NAMES = (errno.EEXIST, errno.EISDIR, errno.ENOTDIR, errno.ENAMETOOLONG)


def build_repack(job: Job, _runner: Runner, _values: Mapping[str, str | Callable[[], str]]) -> Product:
    """Copy the wheel byte for byte to job.dist, and the folders that the recipe names to job.prefix."""
    source = job.step.source
    if source is None:
        raise StageError("a recipe of kind repack needs a source")
    archive = _archive(job, source)
    copy_or_link(archive, job.dist / source.filename)
    wanted = job.step.recipe.prefix
    if not wanted.copy:
        return Product(wheel=source.filename)
    remove_tree(job.prefix)
    with opened(archive) as wheel:
        for folder, destination in wanted.copy.items():
            _extract(wheel, folder, job.prefix / destination)
    for link, goal in wanted.links.items():
        _link(job, job.prefix / link, goal)
    return Product(wheel=source.filename, prefix=True)


def _extract(wheel: zipfile.ZipFile, folder: str, destination: Path) -> None:
    """Extract the files below `folder` of a wheel; refuses paths that lead outside."""
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


LICENCES = "share/licenses"  # below the prefix: one folder for each wheel
_PROGRAMS = (b"\x7fELF", b"#!")
_SHARED = re.compile(r"(lib[^/]+\.so)\.[\d.]+")


def build_assemble(job: Job, _runner: Runner, _values: Mapping[str, str | Callable[[], str]]) -> Product:
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
        raise StageError(f"a recipe of kind {job.step.recipe.kind} needs sources of kind wheel")
    return pinned_in(wheel, job.home.sources).final


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
    names = functions_in(header.read_text(errors="replace"), stub.functions)
    if not names or path.exists():
        why = (
            f"{stub.library} is there already"
            if names
            else f"{stub.header} has no function {stub.functions}..."
        )
        raise StageError(why, where=_where(job, "stubs"))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(
        stub_library(names, soname=stub.soname, platform=job.target.platform, answer=stub.answer)
    )


def _where(job: Job, key: str) -> str:
    return f"recipes/{job.step.recipe.name}.toml: prefix.{key}"


def build_scons(job: Job, runner: Runner, values: Mapping[str, str | Callable[[], str]]) -> Product:
    """Leave the prefix in job.prefix; StageError when nothing is found for a pattern, or a file lacks."""
    recipe = job.step.recipe
    where = f"recipes/{recipe.name}.toml: scons"
    arguments = [
        f"{name}={fill_placeholders(variable.value, values, where=f'{where}.argument.{name}')}"
        for name, variable in recipe.scons.argument.items()
    ]
    # scons takes no jobserver: what memory allows when the build starts.
    jobs = fill_placeholders("{jobs}", values, where=where)
    runner(["scons", f"--jobs={jobs}", *arguments, *recipe.scons.targets], job.source, {})
    remove_tree(job.prefix)
    for pattern, folder in recipe.scons.copy.items():
        found = sorted(path for path in job.source.glob(pattern) if path.is_file())
        if not found:
            raise StageError(f"the tree has no {pattern}", where=f"{where}.copy")
        for path in found:
            _refuse_outside(path, job.source)
            _copy(path, job.prefix / folder / path.relative_to(job.source / _fixed(pattern)))
    refuse_incomplete(job, "scons.expect")
    return Product(prefix=True)


def _refuse_outside(path: Path, folder: Path) -> None:
    """Raise StageError when links that a build made lead from the folder to files of others."""
    if not path.resolve().is_relative_to(folder.resolve()):
        raise StageError(
            f"{path.relative_to(folder)} leads out of the {folder.name} folder: {path.resolve()}"
        )


def _fixed(pattern: str) -> Path:
    """Return the folders of a pattern that come before its first wildcard."""
    parts = Path(pattern).parts[:-1]
    wild = next((index for index, part in enumerate(parts) if "*" in part or "?" in part), len(parts))
    return Path(*parts[:wild])


def _copy(source: Path, destination: Path) -> None:
    destination.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(source, destination, follow_symlinks=False)


BUILDERS: dict[str, Builder] = {  # by the kind of a recipe
    "pep517": build_pep517,
    "cmake": build_cmake,
    "scons": build_scons,
    "repack": build_repack,
    "assemble": build_assemble,
}


_ALIGN = 0x10000  # the largest page of aarch64
_LOAD, _DYNAMIC, _STACK = 1, 2, 0x6474E551
_READ, _WRITE, _EXECUTE = 4, 2, 1
_MACHINES = {"linux-x86_64": 62, "linux-aarch64": 183}


def functions_in(header: str, start: str) -> tuple[str, ...]:
    """Return the functions of a C header whose names begin with `start`, under all their names.

    A header renames functions by macros (cuMemAlloc is cuMemAlloc_v2, or cuMemcpy_ptds with a stream for each
    thread). Which of them holds depends on who includes it, so all are there.
    """
    text = re.sub(r"/\*.*?\*/|//[^\n]*", " ", header, flags=re.DOTALL).replace("\\\n", " ")
    name = rf"\b{re.escape(start)}[A-Z]\w*"
    suffixes: dict[str, set[str]] = {}
    for macro, _, suffix in re.findall(r"#\s*define\s+(\w+)\((\w+)\)\s+\2\s*##\s*(\w+)", text):
        suffixes.setdefault(macro, set()).add(suffix)
    found: set[str] = set()
    for line in text.splitlines():
        if not line.lstrip().startswith("#"):
            found.update(re.findall(rf"({name})\s*\(", line))
        elif renamed := re.match(rf"\s*#\s*define\s+({name})\s+(.*)", line):
            for other in re.findall(name, renamed[2]):
                found.update((renamed[1], other))
                for macro in re.findall(r"(\w+)\(", renamed[2]):
                    found.update(other + suffix for suffix in suffixes.get(macro, ()))
    return tuple(sorted(found))


def stub_library(  # long: a table of the file's parts, each placed by those before it
    names: Sequence[str], *, soname: str, platform: str, answer: int
) -> bytes:
    """Return an ELF library for a platform that defines these functions; each returns `answer`."""
    code = _code(platform, answer)
    strings, offsets = _strings(["", soname, *names])
    symbols = [struct.pack("<IBBHQQ", 0, 0, 0, 0, 0, 0)]
    tables = 64 + 4 * 56  # after the header of the file and four of segments
    table = _hash_table(names)
    symbols_at = tables + len(table)
    strings_at = symbols_at + 24 * (len(names) + 1)
    code_at = _rounded(strings_at + len(strings), 16)
    dynamic_at = _rounded(code_at + len(code), 16)
    symbols += [struct.pack("<IBBHQQ", offsets[one], 0x12, 0, 4, code_at, len(code)) for one in names]
    tags = (
        (14, offsets[soname]),
        (4, tables),
        (5, strings_at),
        (6, symbols_at),
        (10, len(strings)),
        (11, 24),
    )
    dynamic = b"".join(struct.pack("<QQ", tag, value) for tag, value in (*tags, (0, 0)))
    own, named = _strings(["", ".hash", ".dynsym", ".dynstr", ".text", ".dynamic", ".shstrtab"])
    own_at = dynamic_at + len(dynamic)
    sections_at = _rounded(own_at + len(own), 8)
    # The loader writes into .dynamic: it is mapped once more, one page further on.
    moved = dynamic_at + _ALIGN
    segments = (
        (_LOAD, _READ | _EXECUTE, 0, 0, dynamic_at),
        (_LOAD, _READ | _WRITE, dynamic_at, moved, len(dynamic)),
        (_DYNAMIC, _READ | _WRITE, dynamic_at, moved, len(dynamic)),
        (_STACK, _READ | _WRITE, 0, 0, 0),
    )
    # name, type, flags, address, offset, size, link, info, alignment, size of an entry
    sections = (
        (0, 0, 0, 0, 0, 0, 0, 0, 0, 0),
        (named[".hash"], 5, 2, tables, tables, len(table), 2, 0, 8, 4),
        (named[".dynsym"], 11, 2, symbols_at, symbols_at, strings_at - symbols_at, 3, 1, 8, 24),
        (named[".dynstr"], 3, 2, strings_at, strings_at, len(strings), 0, 0, 1, 0),
        (named[".text"], 1, 6, code_at, code_at, len(code), 0, 0, 16, 0),
        (named[".dynamic"], 6, 3, moved, dynamic_at, len(dynamic), 3, 0, 8, 16),
        (named[".shstrtab"], 3, 0, 0, own_at, len(own), 0, 0, 1, 0),
    )
    head = b"\x7fELF\2\1\1".ljust(16, b"\0") + struct.pack(
        "<HHIQQQIHHHHHH", 3, _MACHINES[platform], 1, 0, 64, sections_at, 0, 64, 56, 4, 64, len(sections), 6
    )
    parts = [(0, head), (64, b"".join(_segment(*one) for one in segments)), (tables, table)]
    parts += [(symbols_at, b"".join(symbols)), (strings_at, strings), (code_at, code), (dynamic_at, dynamic)]
    parts += [(own_at, own), (sections_at, b"".join(struct.pack("<IIQQQQIIQQ", *one) for one in sections))]
    content = bytearray()
    for at, part in parts:
        content += bytes(at - len(content)) + part
    return bytes(content)


def _code(platform: str, answer: int) -> bytes:
    """Return the machine code of a function that returns a small number."""
    if platform == "linux-x86_64":
        return b"\xb8" + struct.pack("<I", answer) + b"\xc3"  # mov eax, answer; ret
    return struct.pack("<II", 0x52800000 | answer << 5, 0xD65F03C0)  # mov w0, #answer; ret


def _segment(kind: int, flags: int, offset: int, address: int, size: int) -> bytes:
    align = {_LOAD: _ALIGN, _DYNAMIC: 8, _STACK: 16}[kind]
    return struct.pack("<IIQQQQQQ", kind, flags, offset, address, address, size, size, align)


def _strings(texts: Sequence[str]) -> tuple[bytes, dict[str, int]]:
    """Return a string table, and where each text begins in it."""
    table, offsets = b"", {}
    for text in texts:
        offsets[text] = len(table)
        table += text.encode() + b"\0"
    return table, offsets


def _hash_table(names: Sequence[str]) -> bytes:
    """Return the symbols' hash table as System V wants it; symbol 0 is none."""
    buckets = [0] * max(1, len(names) // 2)
    chains = [0] * (len(names) + 1)
    for index, name in enumerate(names, start=1):
        place = _hash(name) % len(buckets)
        chains[index], buckets[place] = buckets[place], index
    words = [len(buckets), len(chains), *buckets, *chains]
    return struct.pack(f"<{len(words)}I", *words) + bytes(-4 * len(words) % 8)


def _hash(name: str) -> int:
    value = 0
    for byte in name.encode():
        value = (value << 4) + byte
        high = value & 0xF0000000
        value = (value ^ high >> 24) & ~high
    return value


def _rounded(value: int, to: int) -> int:
    return -(-value // to) * to
