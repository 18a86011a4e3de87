"""kill -9 of whole commands, at points drawn from all their steps in the file system; `--soak` draws 200."""

from __future__ import annotations

import random
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from spark_build.files import remove_tree
from spark_build.paths import Home
from tests.conftest import RECIPE, Root, make_root
from tests.helpers import faults
from tests.helpers.exports import import_unsigned
from tests.helpers.wheelhouse import home_in
from tests.wheelhouse.test_faults import house, place, state, whole

__all__ = ["place"]  # fixture
State = dict[str, tuple[int, tuple[str, ...]]]
POINTS = 40  # of each command
COMMANDS = ("build", "publish", "export", "import", "gc")
NO_CLOSURE = ("build", "tiny", "--no-closure")
# Quick: it needs no other package.
BACKEND = """
import base64, hashlib, zipfile
INFO = "tiny-1.0.dist-info/"
FILES = {
    "tiny.py": "ANSWER = 42\\n",
    INFO + "METADATA": "Metadata-Version: 2.1\\nName: tiny\\nVersion: 1.0\\n",
    INFO + "WHEEL": "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
}
def row(name, text):
    digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")
    return f"{name},sha256={digest},{len(text)}\\n"
def build_wheel(folder, config_settings=None, metadata_directory=None):
    record = "".join(row(*one) for one in FILES.items()) + INFO + "RECORD,,\\n"
    with zipfile.ZipFile(folder + "/tiny-1.0-py3-none-any.whl", "w") as out:
        for name, text in {**FILES, INFO + "RECORD": record}.items():
            out.writestr(zipfile.ZipInfo(name), text)
    return "tiny-1.0-py3-none-any.whl"
"""
PROJECT = {
    "pyproject.toml": '[build-system]\nrequires = []\nbuild-backend = "b"\nbackend-path = ["."]\n',
    "b.py": BACKEND,
}


@dataclass(frozen=True)
class Command:
    """A root, and the command that is killed in copies of it."""

    root: Root
    words: tuple[str, ...]
    archive: Path | None = None

    def run(self) -> None:
        done = self.root.run(*self.words)
        assert done.returncode == 0, done.stderr


def prepared(name: str, base: Path) -> Command:
    """What is tried under this name."""
    root = make_root(base, PROJECT)
    root.recipe(RECIPE.format(disk=50))
    archive = root.folder / "out.tar"
    if name == "gc":
        house(root.folder)
        return Command(root, ("wheelhouse", "gc", "--keep", "1", "--older-than", "0", "--grace", "0"))
    first = (*NO_CLOSURE[:2], "--stop-after", "fetch") if name == "build" else NO_CLOSURE
    assert root.run(*first).returncode == 0
    if name == "publish":
        remove_tree(root.folder / "wheelhouse" / "views")
    elif name in ("export", "import"):
        export = ("wheelhouse", "export", str(archive), "--without-spark-build")
        if name == "export":
            return Command(root, export, archive)
        assert root.run(*export).returncode == 0
        remove_tree(root.folder / "wheelhouse")
        return Command(root, ("wheelhouse", "import", str(archive), "--unsigned"))
    remove_tree(root.folder / "build")
    return Command(root, NO_CLOSURE)


def wheels(home: Home) -> dict[str, tuple[str, ...]]:
    """Of each view; a generation that nobody saw leaves a number out."""
    return {view: names for view, (_, names) in state(home).items()}


def check_archive(archive: Path | None, scratch: Path, *, must: bool) -> None:
    """An export is whole or not there."""
    if archive is not None and (must or archive.exists()):
        remove_tree(scratch)
        import_unsigned(home_in(scratch), archive)
        assert whole(home_in(scratch)) == ()


def killed(one: Command, step: int, home: Home, after: State, scratch: Path) -> bool:
    """Kill the command at a step and run it again; returns whether it was not over before."""
    before = state(home)
    done = faults.run(one.run, stop_at=step)
    assert done is None or done[1] == "", done
    assert state(home) in (before, after), step
    assert {fault.finding.rule for fault in whole(home)} <= {"unfinished"}, step
    check_archive(one.archive, scratch, must=False)
    again = faults.run(one.run)
    assert again is not None
    assert again[1] == "", (step, again[1])
    assert whole(home) == (), step
    assert wheels(home) == {view: names for view, (_, names) in after.items()}, step
    check_archive(one.archive, scratch, must=True)
    return done is None


@pytest.mark.soak
@pytest.mark.parametrize("name", COMMANDS)
def test_killed_at_drawn_points(place: Path, name: str) -> None:
    one = prepared(name, place)
    root, kept = one.root.folder, place / "kept"
    # What builds left in the trash is being deleted meanwhile.
    shutil.copytree(root, kept, symlinks=True, ignore=shutil.ignore_patterns(".trash"))
    home = home_in(root)
    clean = faults.run(one.run)
    assert clean is not None
    assert clean[1] == "", clean[1]
    after, drawn, hits = state(home), random.Random(name), 0
    while hits < POINTS:
        remove_tree(root)
        shutil.copytree(kept, root, symlinks=True)
        hits += killed(one, drawn.randint(1, clean[0]), home, after, place / "scratch")
    print(f"{name}: {hits} kills among {clean[0]} steps")
