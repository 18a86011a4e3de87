"""Select what a bundle holds: wheels, license texts, spark-build itself, instructions."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import Any, BinaryIO, cast

from packaging.metadata import parse_email
from packaging.requirements import InvalidRequirement

from spark_build import __version__
from spark_build.environments.closure import pip_for, tags
from spark_build.errors import AuditError, Hint, HostError, SourceError, StoreError, UsageError, ours, rm
from spark_build.files import CHUNK, atomic_directory, locked, make_folder, sha256_of
from spark_build.paths import PACKAGE, Home
from spark_build.process import run
from spark_build.recipes.model import Target
from spark_build.text import digest, render_template
from spark_build.venv import clean_environment
from spark_build.wheelhouse import generations, trust
from spark_build.wheelhouse import store as stores
from spark_build.wheelhouse.generations import Generation
from spark_build.wheelhouse.resolve import needed
from spark_build.wheelhouse.store import entry_folder, index_rows
from spark_build.wheels.model import StoredWheel
from spark_build.wheels.reader import TEXT, dist_info, files_of, opened, sane

SCHEMA = 1
SUMS = "SHA256SUMS"
TOOL = "spark-build"

Progress = Callable[[int, int], None]  # bytes done, bytes in total


@dataclass(frozen=True, kw_only=True, slots=True)
class Member:
    """One file of an export; `name` below its top folder."""

    name: str
    size: int
    sha256: str
    source: Path | bytes

    def content(self) -> Iterator[bytes]:
        """Yield the bytes. Raises StoreError as soon as they must differ from the record.

        They are hashed on the way, so that a file is read once.
        """
        digest, done = hashlib.sha256(), 0
        try:
            with self._opened() as file:
                while chunk := file.read(CHUNK):
                    done += len(chunk)
                    if done > self.size:
                        break
                    digest.update(chunk)
                    yield chunk
        except FileNotFoundError:
            done = -1
        if done != self.size or digest.hexdigest() != self.sha256:
            raise damaged(self.source if isinstance(self.source, Path) else Path(self.name))

    def _opened(self) -> BinaryIO:
        if isinstance(self.source, bytes):
            return io.BytesIO(self.source)
        return cast("BinaryIO", self.source.open("rb", buffering=0))


@dataclass(frozen=True, kw_only=True, slots=True)
class Bundle:
    """An export: `top` is the folder that an archive unpacks to."""

    top: str
    wheels: tuple[StoredWheel, ...]
    members: tuple[Member, ...]

    @property
    def size(self) -> int:
        """Bytes of all members."""
        return sum(member.size for member in self.members)


def damaged(path: Path) -> StoreError:
    """Return the error for a file of the store that differs from its record."""
    return StoreError(
        f"{path.name} is damaged or missing in the store: it is not what was recorded",
        where=str(path.parent),
        hint=Hint(rm(path.parent), ours("all")),
    )


def select(
    wheels: Sequence[StoredWheel], names: Sequence[str], environment: Mapping[str, str]
) -> tuple[tuple[StoredWheel, ...], tuple[str, ...]]:
    """Return the wheels that `names` need (default: all), and the requirements that none of them meets."""
    try:
        chosen, missing = needed(names or [wheel.name for wheel in wheels], wheels, environment)
        absent = [name for name in names if name in missing]
    except InvalidRequirement as error:
        raise UsageError(f"no package: {error}") from error
    if absent:
        have = ", ".join(sorted({wheel.name for wheel in wheels}))
        raise UsageError(f"this generation has no {', '.join(absent)}", hint=f"there are {have}")
    # Everything means everything, also a second version that nothing asks for.
    return (chosen if names else tuple(wheels)), missing


def pack(
    generation: Generation,
    store: Path,
    *,
    wheels: Sequence[StoredWheel] | None = None,
    python: str = "",
    tool: Iterable[Path] = (),
    options: str = "",
    key: Path | None = None,
) -> Bundle:
    """Return the export of a generation or of some of its `wheels`, with spark-build's own wheels.

    `python` (the ABI) and `options` (which select the view) are for INSTALL.txt; `key` signs the manifest,
    which has the sha256 of every other file.
    """
    view = generation.folder.parent.parent.name
    chosen = generation.wheels if wheels is None else tuple(wheels)
    content = [one for wheel in chosen for one in _of_wheel(store, wheel)]
    own = [_from_file(f"{TOOL}/{path.name}", path) for path in sorted(tool)]
    pins = pins_of(store, chosen)
    names = [wheel.name for wheel in chosen if wheel.origin != "public"] or [wheel.name for wheel in chosen]
    install = render_template(
        "INSTALL.txt",
        title=f"Wheels of {view}, generation {generation.number}",
        count=len(chosen),
        names=" ".join(names),
        python=f"{python[2]}.{python[3:].rstrip('t')}" if python else "",
        with_tool=bool(own),
        view=options,  # the options that select the wheels' view
        pins=sorted(pins),  # of what is not handed on
        signed=bool(key),
    )
    paths = [store / wheel.key[:2] / wheel.key / wheel.filename for wheel in chosen]
    notices = {"NOTICE.txt": license_notice(paths), **generations.artifacts(chosen)}
    texts = {"INSTALL.txt": install, **pins, **notices}
    papers = [_from_bytes(name, text.encode()) for name, text in texts.items() if text]
    listed = [*papers, *content, *own]
    sums = "".join(f"{one.sha256}  {one.name}\n" for one in listed)
    files = [*papers, _from_bytes(SUMS, sums.encode()), *own]
    data = _manifest(generation, chosen, content, files)
    first = [_from_bytes(generations.MANIFEST, data)]
    if key:
        first.append(_from_bytes(trust.SIGNATURE, trust.sign(data, key)))
    members = (*first, *files[: len(papers) + 1], *content, *own)
    return Bundle(top=f"{view}-{generation.number}", wheels=chosen, members=members)


def _manifest(
    generation: Generation, chosen: Sequence[StoredWheel], content: Sequence[Member], files: Sequence[Member]
) -> bytes:
    manifest = {
        "schema": SCHEMA,
        "view": generation.folder.parent.parent.name,
        "generation": generation.number,
        "closure_key": generation.closure_key if chosen == generation.wheels else "",
        "wheels": [wheel.as_row() for wheel in chosen],
        "papers": {wheel.key: {} for wheel in chosen} | _papers_by_key(content),
        "files": {one.name: one.sha256 for one in files},
    }
    return (json.dumps(manifest, indent=1) + "\n").encode()


def _papers_by_key(content: Iterable[Member]) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for one in content:
        place = one.name.split("/")
        if len(place) == 3:
            found.setdefault(place[1], {})[place[2]] = one.sha256
    return found


def _of_wheel(store: Path, wheel: StoredWheel) -> Iterator[Member]:
    """Yield the wheel and its attestations."""
    folder = stores.entry_folder(store, wheel.key)
    path = folder / wheel.filename
    if not path.is_file() or path.stat().st_size != wheel.size:
        raise damaged(path)
    yield Member(name=wheel.filename, size=wheel.size, sha256=wheel.sha256, source=path)
    for paper in sorted(folder.iterdir()):
        # A prefix stays: it is for building here, and can be large.
        if paper.name not in (wheel.filename, stores.PREFIX):
            yield _from_file(f"store/{wheel.key}/{paper.name}", paper)


def _from_file(name: str, path: Path) -> Member:
    return Member(name=name, size=path.stat().st_size, sha256=sha256_of(path), source=path)


def _from_bytes(name: str, data: bytes) -> Member:
    return Member(name=name, size=len(data), sha256=hashlib.sha256(data).hexdigest(), source=data)


# Redistributable libraries of the CUDA toolkit and beside it, under any version.
_LIBRARIES = re.compile(
    r"lib(cudart|cublas|cublasLt|cudnn\w*|nccl|cusparse|cusparseLt|cusolver\w*|cufft\w*|curand|cupti|cufile\w*|"
    r"nvrtc[\w-]*|nvJitLink|nvToolsExt|nvshmem\w*|nvblas|npp\w*|nvjpeg|nvinfer\w*|cudss\w*|cutensor\w*)"
    r"(-[0-9a-f]{8})?\.so(\.\d+)*"
)
_TOOLS = frozenset({"ptxas", "ptxas-blackwell", "cuobjdump", "nvdisasm", "libdevice.10.bc"})
_LICENCE = re.compile(r"(licen[cs]e|eula|notice|copying)[^/]*", re.IGNORECASE)


def license_notice(wheels: Sequence[Path]) -> str:
    """Return NOTICE.txt for these wheels, each licence text once; "" when nothing of NVIDIA's is inside."""
    vendors: dict[str, list[str]] = {}
    bundled: dict[str, list[str]] = {}
    licences: dict[str, list[str]] = {}  # text -> where it lies
    for path in sorted(wheels, key=lambda path: path.name):
        try:
            vendor, libraries, texts = _inside(path)
        except (AuditError, FileNotFoundError):
            continue  # the export itself will say that it is damaged
        if vendor:
            vendors[path.name] = [*texts]
        elif libraries:
            bundled[path.name] = libraries
        for name, text in texts.items():
            licences.setdefault(text.rstrip("\n"), []).append(f"{name} in {path.name}")
    if not vendors and not bundled:
        return ""
    return render_template("NOTICE.txt", vendors=vendors, bundled=bundled, licences=licences)


def pins_of(store: Path, wheels: Sequence[StoredWheel]) -> dict[str, str]:
    """Return file name -> requirements with hashes for each vendor's prefix that these were built with.

    The prefix itself is never handed on; from the pins another machine makes the same.
    """
    needs: dict[str, set[str]] = {}
    for wheel in wheels:
        # A public one has no key.json, and an import may have brought one of any shape.
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError, AttributeError):
            for name, identity in _paper(store, wheel.key, "key.json")["inputs"]["needs"].items():
                needs.setdefault(name, set()).add(identity)
    found: dict[str, str] = {}
    for row in index_rows(store) if needs else ():
        if row["content_digest"] in needs.get(row["recipe"], ()):
            with contextlib.suppress(OSError, ValueError, LookupError, TypeError, AttributeError):
                inputs = _paper(store, row["key"], "key.json")["inputs"]
                if inputs["recipe"]["kind"] == "assemble":
                    platform = str(inputs["target"]["platform"])
                    name = f"{row['recipe']}-{row['version']}-{platform}.pins.txt"
                    held = {"recipe": row["recipe"], "version": row["version"], "platform": platform}
                    pinned = sorted(_sources(store, row["key"]))
                    found[name] = render_template("PINS.txt", wheels=pinned, **held)
    return found


def _sources(store: Path, key: str) -> list[tuple[str, str]]:
    """Return the wheels' file names and hashes from the entry's provenance."""
    definition = _paper(store, key, "provenance.json")["predicate"]["buildDefinition"]
    return [(one["name"], one["digest"]["sha256"]) for one in definition["resolvedDependencies"]]


def _paper(store: Path, key: str, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((entry_folder(store, key) / name).read_text())
    return found


def _inside(path: Path) -> tuple[bool, list[str], dict[str, str]]:
    """Return (whether it is NVIDIA's own, names of libraries of NVIDIA's, licence texts by file)."""
    with opened(path) as archive:
        infos = files_of(archive)
        folder = dist_info(archive, path.name)
        names = {info.filename.rpartition("/")[2] for info in infos}
        libraries = sorted(name for name in names if _LIBRARIES.fullmatch(name) or name in _TOOLS)
        written = f"{folder}/METADATA"
        metadata, _ = parse_email(sane(archive.read(written)) if written in archive.namelist() else b"")
        said = " ".join(
            str(metadata.get(key, "")) for key in ("author", "author_email", "maintainer", "license")
        )
        vendor = "nvidia" in f"{metadata.get('name', '')} {said}".lower()
        if not vendor and not libraries:
            return False, [], {}
        texts = {
            info.filename: archive.read(info).decode(errors="replace")
            for info in infos
            if info.filename.startswith(f"{folder}/")
            and _LICENCE.fullmatch(info.filename.rpartition("/")[2])
            and info.file_size <= TEXT
        }
        return vendor, libraries, texts


EXTRA = "verify"
EPOCH = "315532800"  # the same sources give the same wheel
_PAPERS = ("docs/spark-build.1", "pyproject.toml", "README.md", "LICENSE")
_SOURCES = ("spark_build", "recipes", "patches", "bench", *_PAPERS)


def wheels_of_itself(
    home: Home, target: Target, *, is_here: bool, tell: Callable[[str], None]
) -> tuple[Path, ...]:
    """Return spark-build's wheels, made by pip once for each state of the sources.

    SourceError where there is no network and nothing is kept.
    """
    lock = _own_lock()
    key = digest(
        {
            "sources": _state(),
            "lock": lock,
            "platform": target.platform,
            "python": target.python,
            "here": sys.version_info[:2],
        }
    )
    folder = home.cache / "spark-build" / key
    try:
        make_folder(folder.parent)
    except OSError as error:
        raise HostError(
            f"there is no place to pack spark-build itself: {error.strerror}",
            where=str(folder.parent),
            hint="export with --without-spark-build",
        ) from error
    with locked(folder.with_name(f".{key}.lock"), purpose="packing spark-build"):
        if not folder.is_dir():
            tell("packing spark-build itself, with what it needs (once; then it is kept)")
            with atomic_directory(folder) as temporary:
                _make(temporary, None if is_here else target, lock)
    return tuple(sorted(folder.glob("*.whl")))


def _checkout() -> Path | None:
    folder = PACKAGE.parent
    return folder if (folder / "pyproject.toml").is_file() and (folder / "recipes").is_dir() else None


def _state() -> str:
    """Return a digest of what the wheel is made of; for an installed package, its version and RECORD."""
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


def _own_lock() -> str:
    """Return the lock of what an export takes along of spark-build itself; "" where nothing is locked."""
    checkout = _checkout()
    file = checkout / "tools" / "locks" / f"{EXTRA}.txt" if checkout else None
    return file.read_text() if file and file.is_file() and not os.environ.get("SPARK_BUILD_UNLOCKED") else ""


def _make(folder: Path, foreign: Target | None, lock: str) -> None:
    checkout = _checkout()
    if checkout is None:
        _from_installed(folder)
    else:
        # ./spark-build has installed the backend, by its hash.
        alone = ["--no-build-isolation"] if find_spec("hatchling") else []
        _pip(None, "wheel", "--no-deps", *alone, "--wheel-dir", str(folder), str(checkout))
    (own,) = folder.glob("*.whl")
    options = tags(foreign) if foreign else []
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as constraints:
        constraints.write("".join(f"{pin}\n" for pin in re.findall(r"(?m)^\w[^\\\n]*", lock)))
        constraints.flush()
        options += ["--constraint", constraints.name, "--dest", str(folder)]
        _pip(foreign, "download", "--only-binary=:all:", *options, f"{own}[{EXTRA}]")
    for wheel in sorted({*folder.glob("*.whl")} - {own}):
        if lock and f"sha256:{sha256_of(wheel)}" not in lock:
            raise SourceError(
                f"{wheel.name} for spark-build itself: tools/locks/{EXTRA}.txt does not name these bytes",
                hint="remove that file if it lies in a folder of PIP_FIND_LINKS, or find out who changed the "
                "index; SPARK_BUILD_UNLOCKED=1 takes it, --without-spark-build does without",
            )


def _pip(foreign: Target | None, command: str, *arguments: str) -> None:
    env = clean_environment({"SOURCE_DATE_EPOCH": EPOCH})
    done = run([*pip_for(foreign), command, "--quiet", *arguments], env=env)
    if done.returncode != 0:
        lines = done.output.strip().splitlines()
        # A traceback stands below "ERROR: Exception:" and says most in its last line.
        errors = [line for line in lines if line.startswith("ERROR:") and line != "ERROR: Exception:"]
        raise SourceError(
            "spark-build itself cannot be packed for the other machine: "
            + (errors or lines or ["pip said nothing"])[-1].removeprefix("ERROR: "),
            hint="export with --without-spark-build; or once with the network, after which it is kept",
        )


def _from_installed(folder: Path) -> None:
    """Rebuild the wheel that this installation came from, from its files."""
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
            parts = file.parts
            if ".." in parts:
                if "share" not in parts:
                    continue  # scripts are made by the installer, from entry_points.txt
                parts = (f"spark_build-{own.version}.data", "data", *parts[parts.index("share") :])
            made = parts[0].endswith(".dist-info") and file.name in left_out
            if not made and "__pycache__" not in parts:
                copy = Path(scratch, *parts)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(str(file.locate()), copy)
                os.utime(copy, (int(EPOCH), int(EPOCH)))
        name = folder / f"spark_build-{own.version}-py3-none-any.whl"
        with WheelFile(str(name), "w") as wheel:
            wheel.write_files(scratch)
