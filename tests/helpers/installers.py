"""pip and uv in the oldest versions that we support and in the newest, each in a folder of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

VERSIONS = {"pip-oldest": "pip==24.1", "pip-newest": "pip", "uv-oldest": "uv==0.5.9", "uv-newest": "uv"}


@dataclass(frozen=True, kw_only=True)
class Installer:
    """Installs into a plain folder, with nothing configured and no cache but its own."""

    name: str
    folder: Path
    cache: Path

    @property
    def is_uv(self) -> bool:
        return self.name.startswith("uv")

    def run(self, command: str, *arguments: object) -> subprocess.CompletedProcess[str]:
        """One subcommand of `pip` or `uv pip`."""
        if self.is_uv:
            words = [str(self.folder / "bin" / "uv"), "pip", command, "--python", sys.executable]
        else:
            words = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", command]
        foreign = ("PIP_", "UV_", "PYTHON", "http", "HTTP", "SSL_")
        scrubbed = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
        own = {"UV_CACHE_DIR": str(self.cache), "UV_NO_CONFIG": "1"}
        own |= {
            "PIP_CACHE_DIR": str(self.cache),
            "PIP_CONFIG_FILE": os.devnull,
            "PYTHONPATH": str(self.folder),
        }
        return subprocess.run(
            [*words, *map(str, arguments)],
            env={**scrubbed, **own, "HOME": str(self.cache)},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )

    def install(self, target: Path, *arguments: object) -> str:
        """Install into `target`; returns what was said."""
        done = self.run("install", "--target", target, *arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    def resolve(self, folder: Path, *arguments: object) -> str:
        """Choose versions without installing anything; returns what was said."""
        if self.is_uv:
            names = folder / "names.in"
            names.write_text("demo\n")
            done = self.run("compile", names, "--no-header", *arguments)
        else:
            done = self.run("install", "--dry-run", "--target", folder / "out", "demo", *arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr


# The oldest pip takes as long as the newest, and most of what the tests of installers take.
TOOLS = [pytest.param(name, marks=pytest.mark.slow) if name == "pip-oldest" else name for name in VERSIONS]


@pytest.fixture(scope="session", params=TOOLS)
def tool(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """The name of an installer and the folder it lies in."""
    folder = tmp_path_factory.mktemp(request.param)
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "install",
            "-q",
            "--no-deps",
            "--target",
            folder,
            VERSIONS[request.param],
        ],
        check=True,
        timeout=300,
    )
    return request.param, folder


@pytest.fixture
def installer(tool: tuple[str, Path], tmp_path: Path) -> Installer:
    """An installer with an empty cache."""
    name, folder = tool
    return Installer(name=name, folder=folder, cache=tmp_path / "cache")
