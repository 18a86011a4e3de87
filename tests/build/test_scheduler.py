"""Several recipes in one command: side by side, after failures, in part, under one budget."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Root
from tests.helpers import processes
from tests.helpers.commands import invoke
from tests.helpers.recipe_roots import events, make, statuses

SLEEP = """
def work():
    import time
    begin = time.time()
    time.sleep(2)
    print("SPAN", begin, time.time())
"""
FAIL = "def work():\n    raise SystemExit('this one cannot be built')\n"
# What ninja runs at once, told to run eight.
NINJA = """
def work():
    job = "sh -c 'echo + >> log; sleep 0.3; echo - >> log; touch $out'"
    with open("build.ninja", "w") as file:
        file.write(f"rule job\\n  command = {job}\\n" + "".join(f"build o{n}: job\\n" for n in range(8)))
    subprocess.run(["ninja", "-j8"], check=True)
    print("ORDER", open("log").read().replace("\\n", ""))
    print("JOBS", os.environ["MAX_JOBS"], "NICE", os.nice(0))
    if os.path.exists("/proc/self/autogroup"):
        print("SESSION", open("/proc/self/autogroup").read())
"""


def overlap(root: Root) -> bool:
    """Whether two builds, each of which printed its span, ran at the same time."""
    logs = [path.read_text() for path in root.folder.glob("wheelhouse/store/*/*/build.log")]
    spans = [log.partition("SPAN ")[2].split()[:2] for log in logs]
    ((begin, end), (other_begin, other_end)) = [(float(one), float(two)) for one, two in spans]
    return begin < other_end and other_begin < end


def test_independent_recipes_build_side_by_side(tmp_path: Path) -> None:
    root = make(tmp_path, {"a": SLEEP, "b": SLEEP})
    assert statuses(root.json("build", "a", "b", "--jobs", "2")) == {"a": "built", "b": "built"}
    assert overlap(root)


def test_one_job_means_one_build_at_a_time(tmp_path: Path) -> None:
    root = make(tmp_path, {"a": SLEEP, "b": SLEEP})
    assert statuses(root.json("build", "a", "b", "--jobs", "1")) == {"a": "built", "b": "built"}
    assert not overlap(root)
    waits = [one["message"] for one in events(root) if one["event"] == "Note"]
    assert any("waiting for a free job slot" in message for message in waits)


def test_a_need_comes_first_and_its_failure_blocks(tmp_path: Path) -> None:
    root = make(tmp_path, {"a": "", "b": "MODULE = lambda: str(__import__('a').VALUE)"}, {"b": "a"})
    assert statuses(root.json("build", "b")) == {"a": "built", "b": "built"}
    broken = make(tmp_path / "broken", {"a": FAIL, "b": ""}, {"b": "a"})
    done = broken.run("--json", "build", "b", "--keep-going")
    assert done.returncode == 7
    assert statuses(json.loads(done.stdout)) == {"a": "failed", "b": "blocked"}


def test_after_a_failure_only_keep_going_starts_others(tmp_path: Path) -> None:
    root = make(tmp_path, {"a": FAIL, "b": SLEEP, "c": ""})
    done = root.run("--json", "build", "a", "b", "c", "--jobs", "2")
    assert done.returncode == 7
    assert statuses(json.loads(done.stdout)) == {"a": "failed", "b": "built", "c": "skipped"}
    assert "--keep-going" in done.stdout
    done = root.run("--json", "build", "a", "b", "c", "--jobs", "2", "--keep-going")
    assert done.returncode == 7
    assert statuses(json.loads(done.stdout)) == {"a": "failed", "b": "reused", "c": "built"}


def test_the_results_say_why_a_recipe_was_not_started(tmp_path: Path) -> None:
    """The plan above said BUILD; only what it says is not repeated."""
    root = make(tmp_path, {"a": FAIL, "b": SLEEP, "c": ""})
    done = root.run("all", "a", "b", "c", "--jobs", "2")
    assert "not started, because a failed (--keep-going goes on with others)" in done.stdout
    assert "the plan above says why" not in done.stdout


def test_stop_after_fetch_brings_all_sources_and_leaves_no_tree(tmp_path: Path) -> None:
    root = make(tmp_path, {"a": "", "b": ""}, {"b": "a"})
    assert statuses(root.json("build", "b", "--stop-after", "fetch")) == {"a": "stopped", "b": "stopped"}
    assert len(list(root.folder.glob("sources/*/*/*.tar.gz"))) == 2
    assert not [path for path in root.folder.glob("build/*/*") if path.is_dir() and path.parent.name in "ab"]
    assert not list((root.folder / "wheelhouse" / "store").iterdir())
    # From here on no source is asked for.
    for link in root.links.iterdir():
        link.unlink()
    assert statuses(root.json("build", "b")) == {"a": "built", "b": "built"}


def test_fetching_alone_leaves_an_interrupted_tree_as_it_is(tmp_path: Path) -> None:
    root = make(tmp_path, {"a": FAIL})
    assert root.run("build", "a").returncode == 7
    (mark,) = root.folder.glob("build/a/*/build-started")
    assert root.run("build", "a", "--stop-after", "fetch").returncode == 0
    assert mark.exists()


def test_stop_after_a_stage_then_go_on(tmp_path: Path) -> None:
    root = make(tmp_path, {"a": "", "b": ""}, {"b": "a"})
    document = root.json("build", "b", "--stop-after", "environment")
    assert statuses(document) == {"a": "stopped", "b": "stopped"}
    (tree,) = root.folder.glob("build/a/*/env")
    assert str(tree.parent) in document["results"][0]["reasons"][0]
    done = root.run("build", "b")
    assert done.returncode == 0, done.stderr
    assert "a: environment kept from the last run" in done.stderr


def test_ninja_takes_what_the_budget_gives_whatever_the_project_says(tmp_path: Path) -> None:
    root = replace(make(tmp_path, {"a": NINJA}), env={"SPARK_BUILD_NICE": ""})
    document = root.json("build", "a", "--jobs", "2")
    log = Path(next(row["log"] for row in document["results"])).read_text()
    running = most = 0
    for sign in log.partition("ORDER ")[2].partition("\n")[0]:
        running += 1 if sign == "+" else -1
        most = max(most, running)
    assert most == 2
    assert "JOBS 2 " in log
    assert int(log.partition(" NICE ")[2].split()[0]) >= min(19, os.nice(0) + 10)
    if Path("/proc/self/autogroup").exists():
        assert re.search(r"SESSION /autogroup-\d+ nice 10$", log, re.MULTILINE)
    assert document["results"][0]["peak_memory_mib"] > 0
    told = [one for one in events(root) if one["event"] == "Usage"]
    assert told
    assert all(one["jobs"] <= 2 for one in told)


def test_a_build_server_may_give_builds_the_priority_of_others(tmp_path: Path) -> None:
    root = make(tmp_path, {"a": NINJA})
    for wrong in ("20", "-1", "low"):
        failed = replace(root, env={"SPARK_BUILD_NICE": wrong}).run("build", "a")
        assert (failed.returncode, f"SPARK_BUILD_NICE={wrong} is no niceness" in failed.stderr) == (2, True)
    assert not (root.folder / "runs").exists(), "it is an error before anything begins"
    document = replace(root, env={"SPARK_BUILD_NICE": "0"}).json("build", "a")
    log = Path(document["results"][0]["log"]).read_text()
    assert f" NICE {os.nice(0)}\n" in log
    assert " nice 10" not in log


def test_the_next_plan_knows_what_the_last_build_took(tmp_path: Path) -> None:
    root = make(tmp_path, {"a": SLEEP})
    before = root.json("plan", "a")["steps"][0]["estimate"]
    root.json("build", "a")
    recipe = root.folder / "recipes" / "a.toml"
    recipe.write_text(recipe.read_text().replace("requires = []", 'requires = ["wheel==0.45.1"]'))
    step = root.json("plan", "a")["steps"][0]
    assert (before["measured"], step["estimate"]["measured"]) == (False, True)
    assert step["estimate"]["seconds"] >= 2, "what it slept"
    assert step["estimate"]["memory_per_job_mib"] < before["memory_per_job_mib"]
    assert "recipe.requires" in step["reasons"][0], "the plan says what changed since"


def test_too_little_memory_is_refused_and_may_be_insisted_on(tmp_path: Path) -> None:
    root = make(tmp_path, {"a": ""})
    before = root.state()
    done = root.run("build", "a", "--memory", "50M")
    assert done.returncode == 4
    assert "one compile job of a takes up to 100 MiB" in done.stderr
    assert "--memory 100M" in done.stderr
    assert root.state() == before
    assert root.run("build", "a", "--memory", "lots").returncode == 2
    done = root.run("build", "a", "--memory", "50M", "--insist")
    assert done.returncode == 0, done.stderr


def test_a_shell_in_the_tree_of_a_failed_build(tmp_path: Path) -> None:
    half = "def work():\n    open('half-made', 'w').close(); raise SystemExit('no')\n"
    root = make(tmp_path, {"a": half})
    done = root.run("build", "a")
    assert done.returncode == 7
    assert f"look: {root.line} build a --shell" in done.stderr
    script = 'pwd; ls half-made; echo "$HOME"; ninja --version; touch seen; touch /usr/x; exit 5'
    shell = invoke(root.command("build", "a", "--shell"), env=root.environment(), input=script)
    assert shell.returncode == 5, shell.stderr
    place, found, home, ninja = shell.stdout.split()
    assert (place, found, home) == ("/run/spark-build/tree/src", "half-made", "/run/spark-build/tree/home")
    assert ninja.startswith("1.13")
    assert "Read-only file system" in shell.stderr
    assert len(list(root.folder.glob("build/a/*/src/seen"))) == 1


def test_a_shell_where_nothing_was_built_yet(tmp_path: Path) -> None:
    root = make(tmp_path, {"a": "", "b": ""}, {"b": "a"})
    assert root.run("build", "a", "--shell").returncode == 0
    done = root.run("build", "b", "--shell")
    assert done.returncode == 2
    assert "needs a first" in done.stderr


def test_a_shell_over_what_is_to_be_audited_again(tmp_path: Path) -> None:
    root = make(tmp_path, {"a": "", "b": ""}, {"b": "a"})
    assert statuses(root.json("build", "a")) == {"a": "built"}
    with (root.folder / "recipes" / "a.toml").open("a") as recipe:
        recipe.write('\n[[features]]\nname = "USE_X"\nvalue = "1"\n')
    done = root.run("build", "b", "--shell")
    assert done.returncode == 2, done.stderr
    assert "needs a first" in done.stderr


def test_paths_do_not_reach_the_wheel(tmp_path: Path) -> None:
    """Wherever a checkout lies, the build sees one place: the same bytes."""
    look = "MODULE = lambda: f'WHERE = {os.getcwd()!r}, {sys.prefix!r}, {os.environ[\"HOME\"]!r}\\n'\n"
    digests = set()
    for number, name in enumerate(("short", "with some spaces/and-rather-long")):
        root = make(tmp_path / str(number), {"a": look}, folder=name)
        assert root.run("build", "a").returncode == 0
        (record,) = root.folder.glob("wheelhouse/store/*/*/record.json")
        digests.add(json.loads(record.read_text())["content_digest"])
    assert len(digests) == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def test_a_signal_ends_all_builds(tmp_path: Path, number: signal.Signals) -> None:
    hang = "def work():\n    subprocess.run(['sh', '-c', 'trap \"\" TERM; sleep 600 & wait'])\n"
    root = make(tmp_path, {"a": hang, "b": hang})
    process = processes.start(
        root.command("build", "a", "b", "--jobs", "2"), env=root.environment(), stderr=-1
    )
    deadline = time.monotonic() + 60
    while len(list(root.folder.glob("build/*/*/build-started"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(0.5)
    process.send_signal(number)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert b"goes on where it stopped" in error
    assert b"failed" not in error, "what was interrupted did not fail"
    alive = subprocess.run(["pgrep", "-f", str(root.folder / "build")], capture_output=True, check=False)
    assert alive.returncode == 1, alive.stdout


def test_four_at_once_build_once(tmp_path: Path) -> None:
    root = make(tmp_path, {"a": SLEEP})
    running: list[Any] = [
        processes.start(root.command("--json", "build", "a"), env=root.environment(), stdout=-1, stderr=-1)
        for _ in range(4)
    ]
    found = [statuses(json.loads(process.communicate()[0]))["a"] for process in running]
    assert sorted(found) == ["built", *["reused"] * 3]
    assert len(list(root.folder.glob("wheelhouse/store/*/*/record.json"))) == 1


def test_a_folder_with_spaces_keeps_the_jobserver(tmp_path: Path) -> None:
    root = make(tmp_path, {"a": NINJA}, folder="a folder")
    document = root.json("build", "a", "--jobs", "2")
    log = Path(next(row["log"] for row in document["results"])).read_text()
    assert "ORDER " in log
    assert "++++" not in log.partition("ORDER ")[2].partition("\n")[0]
