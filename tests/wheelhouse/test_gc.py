"""gc: takes what is beyond the rule, and never what somebody needs."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from spark_build.errors import StoreError
from spark_build.files import remove_tree
from spark_build.paths import Home
from spark_build.text import digest
from spark_build.wheelhouse import generations, store
from spark_build.wheelhouse.gc import Collected, collect
from spark_build.wheelhouse.generations import Generation
from spark_build.wheels.model import StoredWheel
from tests.conftest import PROJECT, SETUP, make_root
from tests.helpers import processes
from tests.helpers.generations import VIEW, root_and_home
from tests.helpers.wheelhouse import (
    end,
    eventually,
    hear,
    home_in,
    make_wheel,
    publish,
    put_public,
    snapshot,
    start,
    tell,
)

DAY = 86400.0
BUILDER = """
import sys
from pathlib import Path
from spark_build.wheelhouse.store import shared_lock
with shared_lock(Path(sys.argv[1]), "building"):
    print("ready", flush=True)
    sys.stdin.readline()
"""


def gc(
    home: Home, *, keep: int = 1, older: float = DAY, grace: float = 0, dry_run: bool = False
) -> Collected:
    return collect(home, keep=keep, older_than=older, grace=grace, dry_run=dry_run)


def age(home: Home, days: float) -> None:
    """Everything that is there now has been there for so long."""
    then = time.time() - days * DAY
    for path in [*home.views.glob("*/generations/*"), *home.store.glob("??/*/record.json")]:
        os.utime(path, (then, then))


def names(done: Collected) -> set[str]:
    """What went, besides the pages of the index that only it showed."""
    return {one.name for one in done.taken if one.kind != "pages"}


def pages(done: Collected) -> list[str]:
    return sorted(one.name for one in done.taken if one.kind == "pages")


def shown(home: Home, number: int) -> str:
    """The page of demo in a generation."""
    return (home.views / VIEW / "generations" / str(number) / "index" / "demo").resolve().name


def keys(home: Home) -> set[str]:
    return {path.name for path in home.store.glob("??/*")}


def release(home: Home, version: str, view: str = VIEW) -> Generation:
    """A generation with one wheel of its own."""
    dist = home.wheelhouse.parent / "dist"
    return publish(home, [put_public(home.store, make_wheel(dist, "demo", version))], view=view)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """Four generations of another demo each, a month old."""
    made = home_in(tmp_path / "root")
    for number in range(1, 5):
        release(made, f"{number}.0")
    age(made, 30)
    return made


def test_the_rule(home: Home) -> None:
    view = home.views / VIEW
    assert gc(home, keep=4).taken == ()
    assert gc(home, older=31 * DAY).taken == ()
    assert names(gc(home, keep=3)) == {f"{VIEW} 1", "demo 1.0"}
    generations.pin(view, 2)
    done = gc(home)
    assert names(done) == {f"{VIEW} 3", "demo 3.0"}
    assert done.freed > 0
    assert generations.numbers(view) == [2, 4]
    assert len(keys(home)) == 2
    generations.unpin(view, 2)
    assert names(gc(home)) == {f"{VIEW} 2", "demo 2.0"}
    assert gc(home).taken == ()


def test_looking_changes_nothing(home: Home) -> None:
    before = snapshot(home.wheelhouse)
    would = gc(home, dry_run=True)
    after = snapshot(home.wheelhouse)
    after.pop("store/index.json")
    assert after == before
    done = gc(home)
    assert (done.taken, done.freed) == (would.taken, would.freed)
    assert len(done.taken) == 9


def test_the_current_one_stays_wherever_it_is(home: Home) -> None:
    generations.rollback(home.views / VIEW, 1)
    assert names(gc(home)) == {f"{VIEW} {number}" for number in (2, 3)} | {"demo 2.0", "demo 3.0"}
    found = generations.current(home.views / VIEW)
    assert found is not None
    assert (found.folder / found.wheels[0].filename).is_file()


def test_time_for_installers_counts_from_the_last_switch(home: Home) -> None:
    """4 was current until just now: who was told its path may still be reading."""
    generations.rollback(home.views / VIEW, 2)
    release(home, "5.0")  # 2 is not current any more, either
    done = gc(home, older=0, grace=3600)
    assert names(done) == {f"{VIEW} 1", f"{VIEW} 3", "demo 1.0", "demo 3.0"}
    assert generations.numbers(home.views / VIEW) == [2, 4, 5]


def test_what_another_view_shows_stays(home: Home) -> None:
    first = generations.read(home.views / VIEW / "generations" / "1")
    publish(home, first.wheels, view="another")
    age(home, 30)
    assert "demo 1.0" not in names(gc(home))
    assert (home.store / first.wheels[0].key[:2] / first.wheels[0].key).is_dir()


def build(home: Home, name: str, needs: dict[str, str], *, content: str = "") -> StoredWheel:
    """An entry as a build makes it; what it needed is in its key.json."""
    inputs = {"recipe": {"name": name}, "needs": needs, "content": content}
    key = digest(inputs)
    entry = store.commit(
        home.store,
        key=key,
        wheel=make_wheel(home.wheelhouse.parent / "dist", name),
        described={
            "name": name,
            "version": "1.0",
            "origin": "built",
            "recipe": name,
            "requires": [],
            "content_digest": content or key,
        },
        papers={"key.json": json.dumps({"key": key, "inputs": inputs}).encode()},
    )
    assert entry.wheel is not None
    return entry.wheel


def test_what_a_kept_wheel_was_built_from_stays(tmp_path: Path) -> None:
    """Without it the next plan could not know that the wheel needs no other build."""
    home = home_in(tmp_path / "root")
    deep = build(home, "deep", {}, content="d" * 64)
    llvm = build(home, "llvm", {"deep": "d" * 64}, content="c" * 64)
    torch = build(home, "torch", {})
    triton = build(home, "triton", {"llvm": "c" * 64, "torch": "store 1.0", "other": "path abc"})
    build(home, "other", {}, content="e" * 64)
    publish(home, [triton], view=VIEW)
    age(home, 30)
    assert names(gc(home)) == {"other 1.0"}
    assert keys(home) == {wheel.key for wheel in (deep, llvm, torch, triton)}


def test_a_young_entry_stays_and_an_old_one_gets_young(home: Home, tmp_path: Path) -> None:
    """Between a commit and the publication nothing names an entry."""
    wheel = make_wheel(tmp_path / "d", "alone")
    put_public(home.store, wheel)
    assert "alone 1.0" not in names(gc(home))
    age(home, 30)
    put_public(home.store, wheel)
    assert "alone 1.0" not in names(gc(home))
    age(home, 30)
    assert "alone 1.0" in names(gc(home))


def test_a_running_build_keeps_the_store(home: Home) -> None:
    builder = start(BUILDER, home.store)
    assert hear(builder) == "ready"
    done = gc(home)
    assert names(done) == {f"{VIEW} {number}" for number in (1, 2, 3)}
    assert f"building (process {builder.pid})" in done.held
    assert len(keys(home)) == 4
    tell(builder)
    end(builder)
    done = gc(home)
    assert names(done) == {f"demo {number}.0" for number in (1, 2, 3)}
    assert done.held == ""


def test_a_real_build_keeps_the_store(tmp_path: Path) -> None:
    root = make_root(tmp_path, {**PROJECT, "setup.py": f"import time\ntime.sleep(5)\n{SETUP}"})
    home = home_in(root.folder)
    put_public(home.store, make_wheel(tmp_path / "d", "alone"))
    age(home, 30)
    building = processes.start(root.command("build", "tiny", "--no-closure"), env=root.environment())
    assert eventually(lambda: any(root.folder.glob("build/tiny/*/build-started")), seconds=60)
    done = gc(home)
    assert done.taken == ()
    assert f"building (process {building.pid})" in done.held
    assert building.wait(120) == 0
    assert names(gc(home)) == {"alone 1.0"}


def test_pages_of_the_index_that_nobody_shows(home: Home) -> None:
    """Generations share them: the same wheel in another one is the same page."""
    view = home.views / VIEW
    first = generations.read(view / "generations" / "1")
    publish(home, first.wheels, view=VIEW)  # 5 shows what 1 showed
    age(home, 30)
    assert shown(home, 5) == shown(home, 1)
    gone = sorted(shown(home, number) for number in (2, 3, 4))
    assert pages(gc(home, dry_run=True)) == gone
    assert pages(gc(home)) == gone
    assert [path.name for path in (view / "pages").iterdir()] == [shown(home, 5)]
    assert (view / "generations" / "5" / "index" / "demo" / "index.html").is_file()


def test_what_is_not_known_is_not_taken(home: Home) -> None:
    (home.views / VIEW / "generations" / "1" / "manifest.json").write_text("{")
    before = snapshot(home.wheelhouse)
    with pytest.raises(StoreError, match=r"what generation 1 of .* needs is not known"):
        gc(home)
    assert snapshot(home.wheelhouse) == before


def test_what_killed_processes_left_goes(home: Home) -> None:
    (home.store / ".tmp-killed").mkdir()
    (home.store / ".tmp-killed" / "big.whl").write_bytes(bytes(1000))
    (home.views / VIEW / "generations" / ".tmp-killed").mkdir()
    done = gc(home, keep=4)
    assert [(one.kind, one.size) for one in done.taken] == [("leftover", 0), ("leftover", 1000)]
    assert list(home.wheelhouse.rglob(".tmp-*")) == []


def test_the_command_line(tmp_path: Path) -> None:
    root, home, _ = root_and_home(tmp_path)
    for number in range(1, 4):
        release(home, f"{number}.0")
    age(home, 3)
    assert root.run("wheelhouse", "gc").stdout == "nothing to collect that is older than 7 days\n"
    done = root.run("wheelhouse", "gc", "--keep", "1", "--older-than", "2d", "--dry-run")
    assert "would free" in done.stdout
    assert "(generations: 2, index pages: 2, store entries: 2)" in done.stdout
    said = root.json("wheelhouse", "gc", "--keep", "1", "--older-than", "36h")
    assert (said["dry_run"], said["held"]) == (False, None)
    assert {row["kind"] for row in said["taken"]} == {"generation", "pages", "entry"}
    assert said["freed"] == sum(row["size"] for row in said["taken"])
    for wrong in (["--keep", "0"], ["--older-than", "soon"], ["--older-than", "-1d"]):
        assert root.run("wheelhouse", "gc", *wrong).returncode == 2


def test_old_run_folders_go_and_those_that_measured_or_live_stay(tmp_path: Path) -> None:
    home = home_in(tmp_path)
    dead, alive = 2**22 + 1, os.getpid()  # no process has the first number
    runs = {name: home.runs / name for name in (f"2026010{day}T000000-{dead}" for day in range(1, 8))}
    oldest, measured, detached, unfinished, *rest = runs.values()
    own = home.runs / f"20251231T000000-{alive}"
    for path in (own, *runs.values(), home.runs / "history"):
        path.mkdir(parents=True)
        (path / "events.jsonl").write_text("{}\n")
    crash = home.runs / "crash-20251230T000000Z.txt"
    crash.write_text("a bug")
    (measured / "burn-in.json").write_text("{}")
    (detached / "detached.json").write_text(json.dumps({"pid": alive}))
    (oldest / "detached.json").write_text("[]")
    (home.runs / "unfinished-x.json").write_text(json.dumps({"folder": str(unfinished)}))
    (home.runs / "unfinished-y.json").symlink_to(home.runs / "nowhere")
    lost = home.runs / "crash-20251229T000000Z.txt"
    lost.symlink_to(home.runs / "nowhere")
    for path in home.runs.iterdir():
        os.utime(path, (0, time.time() - 40 * DAY), follow_symlinks=False)
    os.utime(rest[0], (0, time.time() - 1 * DAY))

    def collected(*, dry_run: bool) -> set[str]:
        done = collect(
            home, keep=3, older_than=0, grace=0, keep_runs=1, runs_older_than=30 * DAY, dry_run=dry_run
        )
        return {one.name for one in done.taken if one.kind == "run"}

    gone = {oldest.name, crash.name, lost.name, rest[1].name}
    before = snapshot(home.runs)
    assert collected(dry_run=True) == gone
    assert snapshot(home.runs) == before
    assert collected(dry_run=False) == gone
    kept = (own, measured, detached, unfinished, rest[0], rest[2])
    assert {path.name for path in home.runs.iterdir()} == {
        *(path.name for path in kept),
        *("history", "unfinished-x.json", "unfinished-y.json"),
    }


def test_a_run_that_another_gc_removes_meanwhile_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = home_in(tmp_path)
    first, second = (home.runs / f"2026010{day}T000000-{2**22 + 1}" for day in (1, 2))
    for path in (first, second):
        path.mkdir(parents=True)
        (path / "events.jsonl").write_text("{}\n")
    spent = [first, second]
    monkeypatch.setattr("spark_build.wheelhouse.gc.spent_runs", lambda *_, **__: spent)
    remove_tree(first)
    done = collect(home, keep=3, older_than=0, grace=0, keep_runs=1, runs_older_than=0, dry_run=False)
    assert [one.name for one in done.taken if one.kind == "run"] == [second.name]
