"""System packages: what is missing, and installing it where that is allowed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from typing import BinaryIO

from spark_build.build import sandbox
from spark_build.errors import HostError
from spark_build.probe import has_python_headers, package_versions
from spark_build.process import capture, run


def missing_packages(packages: Sequence[str]) -> tuple[str, ...]:
    """Of these Debian packages, those that are not installed and really lack here.

    python3-dev counts only when the interpreter in use has no headers: one from pyenv, uv or conda
    brings its own.
    """
    wanted = [name for name in packages if name != "python3-dev" or not has_python_headers()]
    if shutil.which("dpkg-query") is None:
        return ()
    have = package_versions(wanted)
    return tuple(name for name in wanted if name not in have)


def install_line(packages: Sequence[str]) -> str:
    """The one line that installs them."""
    return f"sudo apt-get update && sudo apt-get install -y {' '.join(packages)}"


def can_install() -> bool:
    """Whether packages can be installed without asking for a password."""
    return shutil.which("apt-get") is not None and (
        os.geteuid() == 0 or capture(["sudo", "-n", "true"], timeout=10) is not None
    )


def install(packages: Sequence[str], log: BinaryIO | None = None) -> None:
    """Install through apt; HostError with the line to type where that is not allowed or fails."""
    hint = install_line(packages)
    if not can_install():
        raise HostError(f"missing system packages: {', '.join(packages)}", hint=hint)
    prefix = [] if os.geteuid() == 0 else ["sudo", "-n"]
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for arguments in (["update"], ["install", "-y", "--no-install-recommends", *packages]):
        done = run([*prefix, "apt-get", "-q", *arguments], env=environment, log=log)
        if done.returncode != 0 and arguments[0] == "install":
            last = next((line for line in done.output.splitlines() if line.startswith("E:")), "see apt-get")
            raise HostError(f"cannot install {', '.join(packages)}: {last}", hint=hint)
    # What was installed may be what the sandbox was missing.
    sandbox.choose.cache_clear()
