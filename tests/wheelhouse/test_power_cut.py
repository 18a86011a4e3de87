"""A power cut after any operation of what changes a wheelhouse: the old state or the new one, and nothing is lost."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.helpers.powercuts import Recorder, cuts, write
from tests.helpers.wheelhouse import home_in, snapshot
from tests.wheelhouse.test_faults import NAMES, again, case, copied, place, state, whole

__all__ = ["place"]  # fixture


def test_the_recorder_misses_nothing(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that it noted, done to what was there before, gives what is there now."""
    for name in ("import", "gc"):
        one = case(name, place / name)
        home = copied(one.root, place / f"{name}-copy")
        recorder = Recorder(place / f"{name}-copy")
        with recorder.patched(monkeypatch):
            one.run(home)
        write(recorder.before.after(recorder.log), recorder.kinds, place / f"{name}-again")
        assert snapshot(place / f"{name}-again") == snapshot(place / f"{name}-copy")


@pytest.mark.parametrize(
    ("name", "every"),
    [
        ("publish", 40),
        ("import", 90),
        ("gc", 20),
        *(pytest.param(name, 1, marks=pytest.mark.soak) for name in NAMES),
    ],
)
def test_what_a_power_cut_leaves(place: Path, name: str, every: int, monkeypatch: pytest.MonkeyPatch) -> None:
    one = case(name, place)
    home = copied(one.root, place / "copy")
    before = state(home) if name != "repair" else None
    recorder = Recorder(place / "copy")
    with recorder.patched(monkeypatch):
        one.run(home)
    after = state(home)
    number = 0
    for number, (is_over, tree) in enumerate(cuts(recorder, every)):
        if every > 1 and number % 7 and not is_over:
            continue
        folder = place / "left"
        shutil.rmtree(folder, ignore_errors=True)
        write(tree, recorder.kinds, folder)
        home = home_in(folder)
        if name != "repair":
            assert state(home) in ([after] if is_over else [before, after]), number
            left = [fault.finding.rule for fault in whole(home)]
            assert set(left) <= {"unfinished"}, (number, left)
        again(one, home)
        assert whole(home) == (), number
        assert {view: wheels for view, (_, wheels) in state(home).items()} == {
            view: wheels for view, (_, wheels) in after.items()
        }, number
    assert number > 3
    print(f"{name}: {len(recorder.log)} operations, {number + 1} states")
