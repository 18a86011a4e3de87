"""Environments that follow the wheelhouse: update, rollback, check, several at once."""

from __future__ import annotations

import ensurepip
import json
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from spark_build.environments import installed
from spark_build.environments.create import UpdateOptions, choose, others, update
from spark_build.environments.installed import EnvironmentChange
from spark_build.errors import HostError, StoreError, UsageError
from tests.environments.test_create import flip, run_in, site
from tests.helpers.commands import hint_text, invoke
from tests.helpers.environments import House
from tests.helpers.wheelhouse import home_in, make_wheel


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(root=tmp_path, home=home_in(tmp_path), env=tmp_path / "env")


def short(change: EnvironmentChange) -> dict[str, list[str]]:
    """What changed, in a few words, without what is empty."""
    rows = {
        "added": [f"{one.name} {one.version}" for one in change.added],
        "replaced": [f"{one.wheel.name}: {one.why}" for one in change.replaced],
        "removed": [one.name for one in change.removed],
        "released": [one.name for one in change.released],
        "others": list(change.others),
    }
    return {name: row for name, row in rows.items() if row}


# --- what an update does ----------------------------------------------------------------------------


def test_the_same_version_with_other_bytes_is_replaced(house: House) -> None:
    """pip says "already satisfied" here."""
    house.create(house.publish(house.put("demo", "1.0", build="1_aa")))
    newer = house.publish(house.put("demo", "1.0", build="2_bb"))
    assert short(house.update(newer)) == {"replaced": ["demo: other bytes"]}
    assert run_in(house.env, "import demo; print(demo.BUILD)") == "2_bb"
    assert house.faults() == []


def test_new_requirements_come_and_what_is_not_needed_any_more_goes(house: House) -> None:
    old, new = house.put("old", "1.0"), house.put("new", "1.0")
    house.create(house.publish(house.put("demo", "1.0", requires=["old"]), old), "demo")
    newer = house.publish(house.put("demo", "2.0", requires=["new"]), new)
    assert short(house.update(newer)) == {
        "added": ["new 1.0"],
        "replaced": ["demo: another version"],
        "removed": ["old"],
    }
    assert house.installed() == "demo==2.0 new==1.0"
    assert not (site(house.env) / "old").exists()


def test_what_the_generation_has_no_more_goes(house: House) -> None:
    demo, gone = house.put("demo", "1.0"), house.put("gone", "1.0")
    house.create(house.publish(demo, gone), "demo", "gone")
    assert short(house.update(house.publish(demo))) == {"removed": ["gone"]}
    assert house.installed() == "demo==1.0"
    assert short(house.update(house.publish(demo, gone))) == {"added": ["gone 1.0"]}, "it is still asked for"


def test_everything_means_what_is_built_later_too(house: House) -> None:
    demo = house.put("demo", "1.0")
    house.create(house.publish(demo))
    later = house.publish(demo, house.put("later", "1.0"))
    assert short(house.update(later)) == {"added": ["later 1.0"]}


def test_without_names_other_peoples_wheels_are_meant_too(house: House) -> None:
    built = house.publish(house.put("demo", "1.0"))
    foreign = tuple(replace(wheel, origin="foreign") for wheel in built.wheels)
    public = tuple(replace(wheel, origin="public") for wheel in built.wheels)
    assert [wheel.name for wheel in choose(replace(built, wheels=foreign), [])] == ["demo"]
    assert choose(replace(built, wheels=public), []) == ()


def test_more_packages(house: House) -> None:
    demo, more = house.put("demo", "1.0"), house.put("more", "1.0")
    generation = house.publish(demo, more)
    house.create(generation, "demo")
    assert short(house.update(generation, "more")) == {"added": ["more 1.0"]}
    assert installed.read(house.env).asked == ("demo", "more")
    with pytest.raises(StoreError, match="has no unknown"):
        house.update(generation, "unknown")
    with pytest.raises(UsageError, match="no package: "):
        house.update(generation, "torch[")


def test_a_later_wish_about_a_package_replaces_the_earlier(house: House) -> None:
    generation = house.publish(house.put("demo", "1.0"), house.put("demo", "2.0"))
    house.create(generation, "demo")
    assert house.installed() == "demo==2.0"
    assert short(house.update(generation, "demo<2")) == {"replaced": ["demo: another version"]}
    assert house.update(generation).empty
    house.update(generation, "demo")
    assert house.installed() == "demo==2.0"


def test_back_to_an_earlier_generation(house: House) -> None:
    first = house.publish(house.put("demo", "1.0"))
    house.create(house.publish(house.put("demo", "2.0"), house.put("more", "1.0")))
    assert short(house.update(first)) == {"replaced": ["demo: another version"], "removed": ["more"]}
    assert (installed.read(house.env).generation, house.installed()) == (1, "demo==1.0")


def test_nothing_to_do_writes_nothing(house: House) -> None:
    generation = house.publish(house.put("demo", "1.0"))
    house.create(generation)
    before = {path: path.stat().st_mtime_ns for path in house.env.rglob("*") if path.is_file()}
    assert house.update(generation).empty
    assert {path: path.stat().st_mtime_ns for path in house.env.rglob("*") if path.is_file()} == before


def test_another_generation_of_the_same_wheels_is_only_noted(house: House) -> None:
    demo = house.put("demo", "1.0")
    house.create(house.publish(demo), "demo")
    later = house.publish(demo, house.put("more", "1.0"))
    assert house.update(later).empty
    assert installed.read(house.env).generation == later.number


def test_a_dry_run_changes_nothing(house: House) -> None:
    house.create(house.publish(house.put("demo", "1.0")))
    before = installed.read(house.env)
    newer = house.publish(house.put("demo", "2.0"))
    assert short(house.update(newer, dry_run=True)) == {"replaced": ["demo: another version"]}
    assert (installed.read(house.env), house.installed()) == (before, "demo==1.0")


# --- what is the user's stays -----------------------------------------------------------------------


def by_hand(house: House, *wheels: Path) -> None:
    """The user installs something with the environment's own pip."""
    own = str(house.env / "bin" / "python")
    command = [sys.executable, "-m", "pip", "--python", own, "install", "--no-deps", "--no-index", "-q"]
    subprocess.run([*command, *map(str, wheels)], check=True, timeout=60)


def test_what_the_user_added_stays_and_is_named(house: House) -> None:
    house.create(house.publish(house.put("demo", "1.0")), with_pip=True)
    checked = run_in(
        house.env, "import subprocess, sys; subprocess.run([sys.executable, '-m', 'pip', 'check'])"
    )
    assert checked == "No broken requirements found."
    by_hand(house, make_wheel(house.root / "own", "mine", "0.1"))
    change = house.update(house.publish(house.put("other", "1.0")))
    assert short(change) == {"added": ["other 1.0"], "removed": ["demo"], "others": ["mine 0.1"]}
    assert run_in(house.env, "import mine, other, pip; print(mine.VERSION)") == "0.1"
    assert others(house.env, installed.read(house.env)) == ("mine 0.1",)


def test_a_package_replaced_by_hand_comes_back(house: House) -> None:
    generation = house.publish(house.put("demo", "1.0"))
    house.create(generation)
    by_hand(house, make_wheel(house.root / "own", "demo", "7.0"))
    assert house.faults() == [("demo", "", "replaced by hand (7.0)")]
    assert short(house.update(generation)) == {"replaced": ["demo: it was replaced by hand"]}
    assert house.installed() == "demo==1.0"


def test_a_package_replaced_by_hand_is_the_users_when_the_wheelhouse_has_none(house: House) -> None:
    house.create(house.publish(house.put("demo", "1.0"), house.put("more", "1.0")))
    by_hand(house, make_wheel(house.root / "own", "more", "7.0"))
    change = house.update(house.publish(house.put("demo", "1.0")))
    assert short(change) == {"released": ["more"], "others": ["more 7.0"]}
    assert house.installed() == "demo==1.0 more==7.0"
    assert others(house.env, installed.read(house.env)) == ("more 7.0",)


def test_a_file_that_two_packages_have_survives_the_going_of_one(house: House) -> None:
    """As nvidia/__init__.py, which each of NVIDIA's wheels brings along."""
    shared = {"vendor/__init__.py": b""}
    demo = house.put("demo", "1.0", files={**shared, "vendor/demo.py": b""})
    more = house.put("more", "1.0", files={**shared, "vendor/more.py": b""})
    house.create(house.publish(demo, more))
    house.update(house.publish(demo))
    assert sorted(path.name for path in (site(house.env) / "vendor").glob("*.py")) == [
        "__init__.py",
        "demo.py",
    ]
    assert house.faults() == []


def test_what_the_interpreter_brings_gives_way_to_the_wheelhouses(house: House) -> None:
    """Also in the same version, which an installer would leave as it is."""
    ours = house.put("pip", ensurepip.version(), build="1_aa")
    house.create(house.publish(house.put("demo", "1.0", requires=["pip"]), ours), with_pip=True)
    assert run_in(house.env, "import pip; print(pip.BUILD)") == "1_aa"
    assert house.faults() == []


# --- check ------------------------------------------------------------------------------------------


def test_check_names_each_file_and_repair_mends_it(house: House) -> None:
    files = {"demo/data.bin": b"data"}
    generation = house.publish(house.put("demo", "1.0", files=files), house.put("more", "1.0"))
    house.create(generation)
    assert house.faults() == []
    (site(house.env) / "demo" / "__init__.py").write_text("VERSION = 'changed'")
    (site(house.env) / "demo" / "data.bin").unlink()
    assert house.faults() == [("demo", "demo/__init__.py", "changed"), ("demo", "demo/data.bin", "missing")]
    assert house.update(generation).empty, "a plain update does not read every file"
    assert short(house.update(generation, repair=True)) == {"replaced": ["demo: its files were changed"]}
    assert house.faults() == []


def test_check_does_not_trust_a_damaged_wheelhouse(house: House) -> None:
    demo = house.put("demo", "1.0")
    house.create(house.publish(demo))
    flip(house.home.store / demo.key[:2] / demo.key / demo.filename)
    ((package, _, problem),) = house.faults()
    assert (package, problem.startswith("cannot be compared: demo-1.0")) == ("demo", True)


# --- what is refused --------------------------------------------------------------------------------


def test_a_damaged_wheel_stops_an_update_before_it_begins(house: House) -> None:
    house.create(house.publish(house.put("demo", "1.0")))
    newer = house.put("demo", "2.0")
    generation = house.publish(newer)
    flip(house.home.store / newer.key[:2] / newer.key / newer.filename)
    with pytest.raises(StoreError, match="damaged or missing"):
        house.update(generation)
    assert (house.installed(), house.faults(), installed.read(house.env).unfinished) == ("demo==1.0", [], "")


def test_an_environment_of_somebody_else(house: House) -> None:
    generation = house.publish(house.put("demo", "1.0"))
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", house.env], check=True)
    with pytest.raises(UsageError, match="was not made by"):
        house.update(generation)
    with pytest.raises(UsageError, match="was not made by"):
        update(house.root / "nowhere", generation, UpdateOptions(), kept=house.home.store)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": 2}', '{"schema": 1, "asked": 3}', "\0"])
def test_a_marker_that_cannot_be_read(house: House, text: str) -> None:
    generation = house.publish(house.put("demo", "1.0"))
    house.create(generation)
    (house.env / installed.NAME).write_text(text)
    with pytest.raises(StoreError, match="cannot be read"):
        house.update(generation)
    assert house.installed() == "demo==1.0"


def test_an_interpreter_that_is_gone(house: House) -> None:
    generation = house.publish(house.put("demo", "1.0"))
    house.create(generation)
    (house.env / "bin" / "python").unlink()
    (house.env / "bin" / "python").symlink_to("/nowhere/python3.11")
    with pytest.raises(HostError, match="does not run any more"):
        house.update(generation)


def test_creating_where_an_environment_is(house: House) -> None:
    generation = house.publish(house.put("demo", "1.0"))
    house.create(generation)
    with pytest.raises(UsageError, match="already is an environment") as caught:
        house.create(generation)
    assert "env update" in hint_text(caught.value.hint)


# --- the command line -------------------------------------------------------------------------------


def test_the_journey_on_the_command_line(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    (house.root / "recipes").mkdir()
    first, second = house.two_generations()
    house.create(first)
    run = runner(house)
    assert json.loads(run("--json", "env", "check", str(house.env))) == {
        "folder": str(house.env),
        "view": first.folder.parent.parent.name,
        "generation": 1,
        "packages": ["demo==1.0", "kept==1.0", "more==1.0", "odd==1.0"],
        "ok": True,
        "unfinished": "",
        "problems": [],
        "others": [],
    }
    would = json.loads(run("--json", "env", "update", str(house.env), "--dry-run"))
    assert (would["dry_run"], would["changed"], house.installed().count("late")) == (True, True, 0)
    done = json.loads(run("--json", "env", "update", str(house.env)))
    assert {**done, "dry_run": True} == would
    assert done["replaced"] == [
        {"name": "demo", "from": "1.0", "to": "1.0", "why": "other bytes"},
        {"name": "more", "from": "1.0", "to": "2.0", "why": "another version"},
    ]
    assert (done["added"], done["removed"]) == (
        [{"name": "late", "version": "1.0"}],
        [{"name": "odd", "version": "1.0"}],
    )
    assert f"already as in generation {second.number}" in run("env", "update", str(house.env))
    (house.root / "way").symlink_to(house.env)
    roundabout = str(house.root / "recipes" / ".." / "way")
    back = run("env", "update", roundabout, "--generation", "1")
    assert "as in generation 1, from generation 2; 1 unchanged" in back
    assert not (site(house.env) / "late").exists()
    (site(house.env) / "demo" / "__init__.py").write_text("")
    told = run("env", "check", str(house.env), code=10)
    assert "demo/__init__.py  changed" in told
    again = f"env update {house.env} --repair --generation 1"
    assert f"next: spark-build --root {house.root} {again}" in told.splitlines()
    other = run("--target", "gb10", "env", "check", str(house.env), code=10)
    assert f"next: spark-build --root {house.root} {again}" in other.splitlines()
    state = house.env / "spark-build.json"
    kept = state.read_text()
    state.write_text(json.dumps({**json.loads(kept), "unfinished": "create"}))
    told = run("env", "check", str(house.env), code=10)
    assert f"never finished; next: spark-build --root {house.root} env create {house.env}" in told
    state.write_text(kept)
    run("env", "update", str(house.env), "--generation", "9", code=2)
    run("env", "update", str(house.root), code=2)


def runner(house: House) -> Callable[..., str]:
    def run(*arguments: str, code: int = 0) -> str:
        command = [sys.executable, "-m", "spark_build", "--root", str(house.root), *arguments]
        done = invoke(command)
        assert done.returncode == code, done.stderr
        return done.stdout

    return run


def test_one_of_several_creators_wins_and_updaters_take_turns(house: House) -> None:
    first, second = house.two_generations()

    def outcome(work: Callable[[], object]) -> str:
        try:
            work()
        except UsageError as error:
            return error.message
        return "done"

    with ThreadPoolExecutor(4) as pool:
        created = list(pool.map(outcome, [lambda: house.create(first)] * 4))
        assert created.count("done") == 1
        assert all("already is an environment" in one for one in created if one != "done")
        ways = [second, first, second, first]
        assert list(pool.map(outcome, [partial(house.update, way) for way in ways])) == ["done"] * 4
    assert house.faults() == []
