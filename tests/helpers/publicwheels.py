"""Wheels of the index that pip is configured for: each downloaded once in a run of the tests."""

from __future__ import annotations

import functools
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="public-wheels-")  # removed when the tests end


@functools.cache
def public_wheel(requirement: str, platforms: str = "", python: str = "") -> Path:
    """The wheel for this requirement, and these platforms ("a b") and Python ("312") if not this machine's."""
    folder = Path(tempfile.mkdtemp(dir=_folder().name))
    pip = [sys.executable, "-m", "pip", "-q", "download", "--no-deps", "--only-binary", ":all:"]
    options = [word for one in platforms.split() for word in ("--platform", one)]
    options += ["--python-version", python] if python else []
    subprocess.run([*pip, *options, "--dest", str(folder), requirement], check=True)
    (wheel,) = folder.iterdir()
    return wheel


@functools.cache
def public_cuobjdump() -> Path:
    """NVIDIA's cuobjdump out of the package triton."""
    with zipfile.ZipFile(public_wheel("triton")) as wheel:
        program = Path(wheel.extract("triton/backends/nvidia/bin/cuobjdump", _folder().name))
    program.chmod(0o755)
    return program
