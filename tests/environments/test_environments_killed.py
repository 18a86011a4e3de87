"""Environments whose creation or update is killed (-9) at any write: the next one finishes it."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_build.environments import installed
from spark_build.errors import HostError
from tests.helpers.commands import hint_text
from tests.helpers.environments import House
from tests.helpers.wheelhouse import home_in

WRITES = (
    "os.remove",
    "os.rename",
    "os.rmdir",
    "os.mkdir",
    "os.truncate",
    "shutil.rmtree",
    "subprocess.Popen",
)


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(root=tmp_path, home=home_in(tmp_path), env=tmp_path / "env")


def dying(work: Callable[[], object], at: int) -> bool:
    """Do it in a child that is killed at its `at`-th write; whether it was, or came to its end before.

    A command that it starts gets a little while.
    """
    child = os.fork()
    if child:
        return os.WIFSIGNALED(os.waitpid(child, 0)[1])
    count = 0

    def watch(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal count
        opened = arguments[2] if event == "open" else 0
        if event in WRITES or (isinstance(opened, int) and opened & (os.O_WRONLY | os.O_RDWR)):
            count += 1
            if count == at and event == "subprocess.Popen":
                threading.Timer(0.02 * (at % 4), os.kill, (os.getpid(), signal.SIGKILL)).start()
            elif count == at:
                os.kill(os.getpid(), signal.SIGKILL)

    try:
        sys.addaudithook(watch)
        work()
        os._exit(0)
    finally:
        os._exit(1)


def everything_below(env: Path) -> set[str]:
    paths = {str(path.relative_to(env)) for path in env.rglob("*") if "__pycache__" not in path.parts}
    # uv_cache.json is there or not, depending on who came to the end.
    return {path for path in paths - {"lib64"} if not path.endswith("/uv_cache.json")}


@pytest.mark.parametrize(
    ("installer", "step", "least"),
    [
        ("uv", 16, 2),
        pytest.param("uv", 4, 10, marks=pytest.mark.soak),
        pytest.param("pip", 12, 3, marks=pytest.mark.soak),
    ],
)
def test_an_update_killed_anywhere_is_finished_by_the_next(
    house: House, installer: str, step: int, least: int
) -> None:
    """Afterwards not one file more or less than in an environment that was never killed."""
    first, second = house.two_generations()
    house.create(second)
    clean = everything_below(house.env)
    house.update(first)
    killed = 0
    for at in itertools.count(1, step):
        if not dying(lambda: house.update(second, installer=installer), at):
            break
        killed += 1
        house.update(second)
        assert house.faults() == [], f"killed at {at}"
        assert everything_below(house.env) == clean, f"killed at {at}"
        house.update(first)
    assert killed >= least


@pytest.mark.parametrize(("step", "least"), [(18, 1), pytest.param(9, 3, marks=pytest.mark.soak)])
def test_an_interrupted_update_can_go_back_too(house: House, step: int, least: int) -> None:
    first, second = house.two_generations()
    house.create(first)
    clean = everything_below(house.env)
    doubtful = 0
    for at in range(2, 60, step):
        if dying(lambda: house.update(second), at):
            doubtful += not house.update(first).empty
    assert doubtful >= least
    assert (house.faults(), everything_below(house.env)) == ([], clean)


@pytest.mark.parametrize(
    "places", [(2, 5, 12), pytest.param((1, 2, 3, 5, 8, 12, 16), marks=pytest.mark.soak)], ids=len
)
def test_a_creation_killed_anywhere_is_begun_anew(house: House, places: tuple[int, ...]) -> None:
    generation, _ = house.two_generations()
    house.create(generation)
    clean = everything_below(house.env)
    killed = 0
    for at in places:
        subprocess.run(["rm", "-rf", house.env], check=True)
        if dying(lambda: house.create(generation), at):
            killed += 1
            if installed.exists(house.env):
                with pytest.raises(HostError, match="never finished") as caught:
                    house.update(generation)
                assert "env create" in hint_text(caught.value.hint)
            house.create(generation)
        assert (house.faults(), everything_below(house.env)) == ([], clean)
    assert killed > len(places) // 2
