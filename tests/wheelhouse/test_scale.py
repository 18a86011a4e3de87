"""Sixteen processes publish, roll back, collect, check and install at once: nothing is lost, no install fails.

SPARK_BUILD_CROWD_SECONDS=60 makes it a minute.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_build.errors import UsageError
from spark_build.paths import Home
from spark_build.wheelhouse import generations
from spark_build.wheelhouse.fsck import check
from spark_build.wheelhouse.gc import collect
from spark_build.wheelhouse.generations import Generation
from spark_build.wheelhouse.store import entry_folder
from spark_build.wheels.model import StoredWheel
from tests.conftest import Root, make_root
from tests.helpers.wheelhouse import home_in, make_wheel, publish, put_built, put_public
from tests.helpers.wheels import PYTHON

pytestmark = pytest.mark.slow

SECONDS = float(os.environ.get("SPARK_BUILD_CROWD_SECONDS", "10"))
GRACE = 25.0  # s; longer than an install takes here, however busy the machine is
WORKERS = {"publisher": 5, "roller": 2, "collector": 2, "checker": 1, "installer": 6}
OLD = 4  # generations that may be collected from the start
VIEW = f"host-cpu-t-{PYTHON}"
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}


def house(base: Path) -> Root:
    """demo needs helper, in every generation; some old generations with wheels of their own."""
    root = make_root(base)
    home = home_in(root.folder)
    demo = put_built(home.store, make_wheel(base / "d", build="1_0123abcd", requires=["helper>=1"]))
    both = [demo, put_public(home.store, make_wheel(base / "d", "helper", "1.5"))]
    for number in range(OLD):
        old = put_public(home.store, make_wheel(base / "d", f"old{number}"))
        made = publish(home, [*both, old], view=VIEW)
        publish(home, both, view=VIEW)
        os.utime(entry_folder(home.store, old.key) / "record.json", (0, 0))
        os.utime(made.folder, (0, 0))
    return root


def publisher(home: Home, log: Path, number: int, turn: int) -> None:
    name = f"p{number}"
    wheel = make_wheel(log.parent / f"dist{number}", name, f"{turn}.0", build=f"{turn}_0123abcd")
    own = put_built(home.store, wheel, note=str(turn))
    seen: list[StoredWheel] = []

    def choose(before: Generation | None) -> tuple[list[StoredWheel], str]:
        assert before is not None
        seen[:] = [one for one in before.wheels if one.name != name]
        return [*seen, own], ""

    made, new = generations.publish(home.views / VIEW, home.store, choose)
    assert new
    assert set(made.wheels) == {*seen, own}
    for one in made.wheels:
        assert (made.folder / one.filename).stat().st_size == one.size
    with log.open("a") as out:
        out.write(
            json.dumps([made.number, made.before, name, sorted(one.filename for one in made.wheels)]) + "\n"
        )


def roller(home: Home, _log: Path, _number: int, _turn: int) -> None:
    view = home.views / VIEW
    try:
        # Not to the old ones: what was made from them would keep their wheels, rightly.
        there = [number for number in generations.numbers(view) if number >= 2 * OLD]
        generations.rollback(view, random.choice(there[-5:]))
    except UsageError as error:
        if "has no generation" not in error.message:  # collected just now
            raise
    time.sleep(0.2)


def collector(home: Home, log: Path, _number: int, _turn: int) -> None:
    done = collect(home, keep=2, older_than=0, grace=GRACE, dry_run=False)
    with log.open("a") as out:
        out.write(json.dumps([one.name for one in done.taken]) + "\n")
    time.sleep(0.2)


def checker(home: Home, _log: Path, _number: int, _turn: int) -> None:
    assert check(home, deep=True, repair=False, told=lambda _done, _total: None) == ()
    time.sleep(0.2)


def installer(home: Home, log: Path, number: int, turn: int) -> None:
    common = ["--root", str(home.wheelhouse.parent), "--train", "t", "--target", "host-cpu"]
    where = [sys.executable, "-m", "spark_build", *common, "wheelhouse", "path"]
    path = subprocess.run(where, capture_output=True, text=True, check=True, timeout=60).stdout.strip()
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--disable-pip-version-check",
        "install",
        "--no-cache-dir",
        "--no-index",
    ]
    target = log.parent / f"env{number}-{turn}"
    done = subprocess.run(
        [*pip, "--find-links", path, "--target", str(target), "demo"],
        env={**CLEAN, "PIP_CONFIG_FILE": os.devnull},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert (target / "helper" / "__init__.py").is_file()
    with log.open("a") as out:
        out.write(json.dumps(path) + "\n")


def work(kind: str, number: int, home: Home, folder: Path, until: float) -> None:
    one: Callable[[Home, Path, int, int], None] = globals()[kind]
    turn = 0
    while time.monotonic() < until:
        turn += 1
        one(home, folder / f"{kind}{number}.jsonl", number, turn)


def lines(folder: Path, kind: str) -> list[list[object]]:
    logs = folder.glob(f"{kind}*.jsonl")
    return [json.loads(line) for log in logs for line in log.read_text().splitlines()]


def test_everything_at_once(tmp_path: Path) -> None:
    home, folder = home_in(house(tmp_path).folder), tmp_path / "logs"
    folder.mkdir()
    until = time.monotonic() + SECONDS
    fork = multiprocessing.get_context("fork")
    crowd = [
        fork.Process(target=work, args=(kind, number, home, folder, until), name=f"{kind}{number}")
        for kind, count in WORKERS.items()
        for number in range(count)
    ]
    assert len(crowd) == 16
    for process in crowd:
        process.start()
    for process in crowd:
        process.join(SECONDS + 180)
    assert {process.name: process.exitcode for process in crowd if process.exitcode != 0} == {}

    assert check(home, deep=True, repair=False, told=lambda _done, _total: None) == ()
    published = lines(folder, "publisher")
    installed = lines(folder, "installer")
    taken = [name for row in lines(folder, "collector") for name in row]
    print(f"{len(published)} published, {len(installed)} installed, {len(taken)} collected")
    # Each number was given once, and none was left out.
    numbers = sorted(int(str(row[0])) for row in published)
    assert numbers == list(range(2 * OLD + 1, 2 * OLD + 1 + len(numbers)))
    # Each generation has all of the one that it was made from, but for the publisher's own.
    files = {int(str(row[0])): row[3] for row in published}
    for _, before, name, now in published:
        old = files.get(int(str(before)))
        if isinstance(old, list) and isinstance(now, list):
            assert [one for one in old if not one.startswith(f"{name}-")] == [
                one for one in now if not one.startswith(f"{name}-")
            ]
    assert {f"{VIEW} {number}" for number in range(1, 2 * OLD, 2)} <= set(taken)
    assert {f"old{number} 1.0" for number in range(OLD)} <= set(taken)
    assert len(installed) >= WORKERS["installer"]
