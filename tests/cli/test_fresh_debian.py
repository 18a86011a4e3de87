"""The README's commands, and its ways to install, on a Debian in which there is nothing but Python and git."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cli.test_launcher import copy_of_the_project

pytestmark = pytest.mark.soak

# In that Debian.
HOME, CHECKOUT = "/root", "/srv/spark-build"

# By pivot_root and not by chroot, in which the kernel lets nobody make the namespaces of a sandbox.
ENTER = """
mount --make-rprivate /
mount --bind "$0" "$0"
mount -t proc proc "$0/proc"
mount --rbind /dev "$0/dev"
mount --rbind /sys "$0/sys"
cd "$0"
mkdir -p .outside
pivot_root . .outside
umount -l /.outside
cd "$CHECKOUT"
"$@" && exit 0 || exit $?
"""
# What a network may need: a proxy and its certificate, or an index of its own.
OUTSIDE = ("/etc/resolv.conf", "/etc/pip.conf", "/usr/local/share/ca-certificates", "/etc/apt/apt.conf.d")
PASSED = (
    "PIP_CERT",
    "PIP_INDEX_URL",
    "REQUESTS_CA_BUNDLE",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "UV_DEFAULT_INDEX",
)


@dataclass(frozen=True, kw_only=True)
class Debian:
    """A Debian in a folder; its commands run as root in the checkout."""

    folder: Path

    def run(self, *words: str) -> str:
        """Return what a command prints; it must succeed."""
        kept = {name: os.environ[name] for name in PASSED if name in os.environ}
        own = {
            "HOME": HOME,
            "CHECKOUT": CHECKOUT,
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            "LC_ALL": "C.UTF-8",
        }
        unshared = ["unshare", "--mount", "--pid", "--fork", "--kill-child=KILL", "bash", "-euc", ENTER]
        done = subprocess.run(
            [*unshared, str(self.folder), *words],
            env={**kept, **own, "DEBIAN_FRONTEND": "noninteractive"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{words}: {done.stdout[-8000:]}"
        return done.stdout


@pytest.fixture(params=["bookworm", "trixie", "sid"])
def debian(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Debian]:
    """Debian 12 (Python 3.11), 13 (3.13) and unstable (3.14 or newer); needs root and the network."""
    folder = tmp_path / "root"
    subprocess.run(["debootstrap", "--variant=minbase", request.param, str(folder)], check=True)
    for outside in map(Path, OUTSIDE):
        inside = folder / outside.relative_to("/")
        if outside.is_dir():
            shutil.copytree(outside, inside, dirs_exist_ok=True)
        elif outside.exists():
            shutil.copy(outside, inside)
    copy_of_the_project(folder / CHECKOUT[1:])
    made = Debian(folder=folder)
    made.run("apt-get", "-qq", "update")
    made.run("apt-get", "-qq", "install", "--no-install-recommends", "ca-certificates", "git", "python3")
    yield made
    shutil.rmtree(folder)


@pytest.mark.timeout(5400)
def test_both_commands_and_ways_of_the_readme(debian: Debian) -> None:
    python = debian.run("python3", "--version").split()[1]
    said = debian.run("./spark-build", "all")
    print(f"Python {python}\n{said}")
    assert "installing system packages" in said
    assert "verified: " in said
    assert "onnx" in debian.run("./spark-build", "wheelhouse", "list")
    again = debian.run("./spark-build", "-q", "all")
    assert "1 reused" in again
    # Installed as a package: by pip, then by uv. Both take over what the checkout built.
    debian.run("python3", "-m", "venv", "/opt/by-pip")
    debian.run("/opt/by-pip/bin/pip", "--quiet", "install", ".", "uv")
    debian.run("/opt/by-pip/bin/uv", "--quiet", "tool", "install", "--python", "/usr/bin/python3", ".")
    for program in ("/opt/by-pip/bin/spark-build", f"{HOME}/.local/bin/spark-build"):
        there = ("--root", CHECKOUT)
        assert "REUSE" in debian.run(program, *there, "plan", "onnx"), program
        assert "verified: " in debian.run(program, *there, "all", "--reverify", "onnx"), program
        assert debian.run(program, "completion", "bash").strip(), program
    assert debian.run("test", "-e", "/opt/by-pip/share/man/man1/spark-build.1") == ""
    # The linters, and some of the tests: what the second command needs is what differs from one Debian to another.
    tested = debian.run(
        "./run-tests", "tests/recipes", "tests/build/test_plan.py", "tests/sources/test_downloads.py"
    )
    assert " passed" in tested
    print(tested[-1000:])
