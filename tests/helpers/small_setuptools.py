"""A build backend that lies in the trees of small projects as their setuptools.py: nothing to install or compile.

It knows the two names that a setup.py imports, calls the compiler as setuptools does, and writes the same wheel
every time. What it is not told how to do is an error.
"""

from __future__ import annotations

import base64
import hashlib
import os
import runpy
import shlex
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_made: list[dict[str, Any]] = []


@dataclass(frozen=True)
class Extension:
    name: str
    sources: Sequence[str]
    define_macros: Sequence[tuple[str, str]] = ()
    extra_compile_args: Sequence[str] = ()
    extra_link_args: Sequence[str] = ()


def setup(**project: Any) -> None:
    _made.append(project)


def build_wheel(folder: str, config_settings: object = None, metadata_directory: object = None) -> str:
    sys.path.insert(0, str(Path.cwd()))
    runpy.run_path("setup.py", run_name="__main__")
    return _wheel(Path(folder), **_made.pop())


def _wheel(
    folder: Path,
    *,
    name: str,
    version: str,
    packages: Sequence[str] = (),
    ext_modules: Sequence[Extension] = (),
) -> str:
    tag = "py3-none-any"
    if ext_modules:
        python = f"cp{sys.version_info.major}{sys.version_info.minor}"
        tag = f"{python}-{python}-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
    info = f"{name}-{version}.dist-info"
    modules = [path for package in packages for path in sorted(Path(package.replace(".", "/")).glob("*.py"))]
    files = {str(path): path.read_bytes() for path in modules}
    files |= dict(map(_compiled, ext_modules))
    files[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode()
    pure = str(not ext_modules).lower()
    said = f"Wheel-Version: 1.0\nGenerator: small (1)\nRoot-Is-Purelib: {pure}\nTag: {tag}\n"
    files[f"{info}/WHEEL"] = said.encode()
    rows = [f"{path},sha256={_digest(data)},{len(data)}" for path, data in files.items()]
    files[f"{info}/RECORD"] = "\n".join([*rows, f"{info}/RECORD,,", ""]).encode()
    with zipfile.ZipFile(folder / f"{name}-{version}-{tag}.whl", "w") as wheel:
        for path, data in files.items():
            wheel.writestr(zipfile.ZipInfo(path), data)
    return f"{name}-{version}-{tag}.whl"


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def _compiled(extension: Extension) -> tuple[str, bytes]:
    """Return a compiled module's place in the wheel, and its bytes."""
    print(f"building {extension.name!r} extension", flush=True)
    compiler = shlex.split(os.environ.get("CC", "gcc"))
    flags = shlex.split(os.environ.get("CFLAGS", ""))
    flags += [
        *(f"-D{name}={value}" for name, value in extension.define_macros),
        *extension.extra_compile_args,
    ]
    objects = []
    for source in extension.sources:
        target = Path("build/temp", source).with_suffix(".o")
        target.parent.mkdir(parents=True, exist_ok=True)
        include = f"-I{sysconfig.get_path('include')}"
        _run([*compiler, *flags, "-fPIC", include, "-c", source, "-o", str(target)])
        objects.append(str(target))
    place = extension.name.replace(".", "/") + str(sysconfig.get_config_var("EXT_SUFFIX"))
    library = Path("build/lib", place)
    library.parent.mkdir(parents=True, exist_ok=True)
    linker = shlex.split(os.environ.get("LDSHARED", "")) or [*compiler, "-shared"]
    more = (*shlex.split(os.environ.get("LDFLAGS", "")), *extension.extra_link_args)
    _run([*linker, *objects, *more, "-o", str(library)])
    return place, library.read_bytes()


def _run(command: Sequence[str]) -> None:
    print(shlex.join(command), flush=True)
    done = subprocess.run(command, check=False)
    if done.returncode:
        sys.exit(f"error: command {command[0]!r} failed with exit code {done.returncode}")
