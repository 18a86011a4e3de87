"""Command lines on a wheelhouse that tests fill themselves."""

from __future__ import annotations

from pathlib import Path

from spark_build.paths import Home
from tests.conftest import Root, make_root
from tests.helpers.wheelhouse import home_in
from tests.helpers.wheels import PYTHON

VIEW = f"host-cpu-t-{PYTHON}"


def root_and_home(base: Path) -> tuple[Root, Home, Path]:
    """A root for command lines, its folders, and the view that they work on."""
    root = make_root(base)
    home = home_in(root.folder)
    return root, home, home.views / VIEW
