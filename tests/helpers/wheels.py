"""Real wheels for tests: written entry by entry, with libraries from the real compiler."""

from __future__ import annotations

import base64
import hashlib
import subprocess
import sys
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from packaging.tags import Tag, compatible_tags, cpython_tags, parse_tag

from spark_build.errors import Finding
from spark_build.recipes.model import Target
from spark_build.wheels import model as wheels_model

VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
PYTHON = "cp" + VERSION.replace(".", "")
Moment = tuple[int, int, int, int, int, int]
LONG_AGO: Moment = (1999, 12, 31, 23, 59, 58)
PURE = {"demo/__init__.py": b"VALUE = 1\n", "demo/data.bin": bytes(range(256))}


def blocks(findings: Sequence[Finding]) -> bool:
    """Whether these findings forbid publishing."""
    return any(one.severity == "error" for one in findings)


def row(name: str, data: bytes, algorithm: str = "sha256") -> str:
    """A line of RECORD."""
    digest = base64.urlsafe_b64encode(hashlib.new(algorithm, data).digest()).rstrip(b"=").decode()
    return f"{name},{algorithm}={digest},{len(data)}\n"


def record_of(files: Mapping[str, bytes], record: str) -> str:
    return "".join(row(name, data) for name, data in files.items()) + f"{record},,\n"


def write_zip(
    path: Path,
    entries: Sequence[tuple[str, bytes]],
    *,
    moment: Moment = LONG_AGO,
    executable: Sequence[str] = (),
    compression: int = zipfile.ZIP_DEFLATED,
) -> Path:
    """A zip with exactly these entries in exactly this order."""
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, data in entries:
            info = zipfile.ZipInfo(name, moment)
            info.external_attr = (0o100777 if name in executable else 0o100664) << 16
            info.compress_type = compression
            archive.writestr(info, data)
    return path


def entries_of(path: Path) -> list[tuple[str, bytes]]:
    with zipfile.ZipFile(path) as archive:
        return [(info.filename, archive.read(info)) for info in archive.infolist()]


def write_wheel(
    folder: Path,
    files: Mapping[str, bytes] = PURE,
    *,
    tag: str = "py3-none-any",
    build: str = "",
    requires: Sequence[str] = (),
    executable: Sequence[str] = (),
    record: str | None = None,
) -> Path:
    """The wheel demo 1.0 with these files, as a build backend would write it."""
    info = "demo-1.0.dist-info"
    metadata = "Metadata-Version: 2.1\nName: Demo\nVersion: 1.0\n"
    metadata += "".join(f"Requires-Dist: {need}\n" for need in requires)
    wheel = f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: {str(tag.endswith('-any')).lower()}\n"
    wheel += "".join(f"Tag: {single}\n" for single in sorted(map(str, parse_tag(tag))))
    wheel += f"Build: {build}\n" if build else ""
    everything = {**files, f"{info}/METADATA": metadata.encode(), f"{info}/WHEEL": wheel.encode()}
    text = record_of(everything, f"{info}/RECORD") if record is None else record
    folder.mkdir(parents=True, exist_ok=True)
    return write_zip(
        folder / f"demo-1.0{'-' + build if build else ''}-{tag}.whl",
        [*everything.items(), (f"{info}/RECORD", text.encode())],
        executable=executable,
    )


def compiled(folder: Path, name: str, source: str, *flags: str, program: bool = False) -> Path:
    """A real shared library or program from C source."""
    folder.mkdir(parents=True, exist_ok=True)
    code = folder / f"{name}.c"
    code.write_text(source)
    out = folder / name
    kind = () if program else ("-shared", "-fPIC")
    subprocess.run(["gcc", *kind, "-o", str(out), str(code), *flags], check=True, timeout=60)
    return out


def tags_of(target: Target) -> frozenset[Tag]:
    """The wheel tags that CPython accepts on a platform."""
    version = tuple(map(int, wheels_model.python_version(target).split(".")))
    names = wheels_model.platforms(target)
    native = cpython_tags(version, abis=[target.python], platforms=names)
    return frozenset((*native, *compatible_tags(version, interpreter=target.python, platforms=names)))
