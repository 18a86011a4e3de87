"""Builds that try to download, through the command line: they fail, and the reason is said plainly.

bubblewrap must be installed and work here (run-tests sees to that).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import SETUPTOOLS, Root, make_root

# As flash-attention's setup.py does it, which takes a prebuilt wheel where there is one.
CACHED = """
import os, urllib.error, urllib.request
from setuptools.command.bdist_wheel import bdist_wheel

class CachedWheelsCommand(bdist_wheel):
    def run(self):
        if os.environ.get("TINY_FORCE_BUILD") == "TRUE":
            return super().run()
        url = "https://example.invalid/releases/tiny-1.0-cp311-cp311-linux_x86_64.whl"
        print("Guessing wheel URL: ", url)
        HANDLED
"""
DIRECT = "urllib.request.urlretrieve(url, 'tiny.whl')"
CAUGHT = """try:
            urllib.request.urlretrieve(url, 'tiny.whl')
        except (urllib.error.HTTPError, urllib.error.URLError):
            print("Precompiled wheel not found. Building from source...")
            super().run()"""


def project(handled: str) -> dict[str, str]:
    """The small project, whose wheel is downloaded where that works."""
    setup = SETUPTOOLS["setup.py"].replace(
        "setup(name", "setup(cmdclass={'bdist_wheel': CachedWheelsCommand}, name"
    )
    return {**SETUPTOOLS, "setup.py": CACHED.replace("HANDLED", handled) + setup}


def explained(root: Root) -> None:
    """The build stops with the diagnosis; what mends it is said."""
    done = root.run("build", "tiny", "--stop-after", "build")
    assert done.returncode == 7, done.stderr
    (error,) = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    assert "The build wants to download something" in error
    assert "may use the network only where its recipe allows it" in error
    assert "next: pin it in the train as an extra source" in done.stderr
    assert "network = true under [build] in the recipe" in done.stderr
    assert root.json("log", "tiny")["diagnosis"]["problem"] == "download-refused"


def test_a_prebuilt_wheel_instead_of_a_build(tmp_path: Path) -> None:
    root = make_root(tmp_path, project(DIRECT))
    explained(root)
    text = (root.folder / "recipes" / "tiny.toml").read_text()
    root.recipe(text + '\n[build.env.TINY_FORCE_BUILD]\nvalue = "TRUE"\nwhy = "setup.py"\n')
    again = root.run("build", "tiny", "--stop-after", "build")
    assert again.returncode == 0, again.stderr


def test_a_download_that_may_fail_fails_nothing(tmp_path: Path) -> None:
    root = make_root(tmp_path, project(CAUGHT))
    done = root.run("build", "tiny", "--stop-after", "build")
    assert done.returncode == 0, done.stderr
    (log,) = root.folder.glob("build/tiny/*/build.log")
    assert "Precompiled wheel not found. Building from source..." in log.read_text().splitlines()


@pytest.mark.parametrize(
    "command",
    [
        ["curl", "-fsSL", "-o", "x.tar.gz", "https://example.invalid/x.tar.gz"],
        ["wget", "https://example.invalid/x.tar.gz"],
        ["git", "clone", "https://example.invalid/x.git"],
    ],
    ids=lambda command: str(command[0]),
)
def test_programs_that_download(command: list[str], tmp_path: Path) -> None:
    setup = f"import subprocess\nsubprocess.run({command!r}, check=True)\n{SETUPTOOLS['setup.py']}"
    explained(make_root(tmp_path, {**SETUPTOOLS, "setup.py": setup}))
