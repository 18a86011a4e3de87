"""The command matrix: real builds of small recipes for several trains, targets and Pythons."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from spark_build.probe import probe
from tests.conftest import Root
from tests.helpers import recipe_roots
from tests.helpers.recipe_roots import statuses

BROKEN = "def work():\n    raise SystemExit('broken')\n"


@pytest.fixture
def root(tmp_path: Path) -> Root:
    """Recipes a, b (needs a), c and d, which fails; trains t, u (without c and d) and v."""
    made = recipe_roots.make(tmp_path, {"a": "", "b": "", "c": "", "d": BROKEN}, {"b": "a"})
    trains = made.folder / "recipes" / "trains"
    text = (trains / "t.toml").read_text()
    (trains / "u.toml").write_text(text.partition("\n[components.c]")[0].replace('name = "t"', 'name = "u"'))
    (trains / "v.toml").write_text(text.replace('name = "t"', 'name = "v"'))
    return made


def outcome(root: Root, *words: str, code: int = 0) -> list[dict[str, Any]]:
    done = root.run("--json", "matrix", *words, "--no-closure")
    document = json.loads(done.stdout)
    assert (done.returncode, document["exit_code"]) == (code, code), done.stderr
    rows: list[dict[str, Any]] = document["combinations"]
    return rows


def fates(rows: list[dict[str, Any]]) -> dict[str, str]:
    return {row["view"]: row["status"] for row in rows}


def test_what_can_be_built_is_built_once_and_the_rest_says_why_not(root: Root) -> None:
    abi = probe().python
    other = "cp312" if abi != "cp312" else "cp311"
    pythons = ",".join(f"3.{one.removeprefix('cp3')}" for one in (abi, other))
    words = ("b", "--trains", "t,u", "--targets", "host-cpu,thor", "--pythons", pythons)
    planned = root.json("matrix", *words, "--dry-run")["combinations"]
    assert [one["decision"] for one in planned[0]["steps"]] == ["BUILD", "BUILD"]
    assert not (root.folder / "wheelhouse").exists()
    there = root.json("matrix", *words, "--dry-run", "--farm", "local:2")["combinations"]
    assert [one["status"] for one in there] == [one["status"] for one in planned], (
        "its workers are this machine"
    )
    rows = outcome(root, *words)
    assert [row["view"] for row in rows] == [row["view"] for row in planned]
    here = f"host-cpu-t-{abi}", f"host-cpu-u-{abi}"
    assert len(rows) == 8
    assert {name: fate for name, fate in fates(rows).items() if fate != "skipped"} == dict(
        zip(here, ("built", "reused"), strict=True)
    ), "the trains share all keys"
    assert all("cannot build a, b" in row["reasons"][0] for row in rows if row["status"] == "skipped")
    for row in rows:
        assert (row["generation"] == 1) is (row["view"] in here)
        assert (root.folder / "wheelhouse" / "views" / row["view"]).exists() is (row["view"] in here)
    again = outcome(root, *words)
    assert set(fates(again).values()) == {"reused", "skipped"}
    assert {row["generation"] for row in again} == {1, None}


def test_a_failure_stops_its_own_combination_only(root: Root) -> None:
    done = root.run("matrix", "d", "b", "--trains", "v,u,t", "--no-closure", "--keep-going")
    assert done.returncode == 7, done.stderr
    found = {words[0]: words[3] for line in done.stdout.splitlines() if len(words := line.split()) > 3}
    assert (found["v"], found["u"], found["t"]) == ("failed", "reused", "failed"), done.stdout
    for train in "tv":
        assert f"--train {train} build d --shell" in done.stderr, "what to type is for that train"
    rows = outcome(root, "--trains", "v,u", "--keep-going", code=7)
    assert [*fates(rows).values()] == ["failed", "reused"]
    assert {**statuses(rows[0]), "a": "reused", "c": "built", "d": "failed"} == statuses(rows[0])
    assert rows[0]["reasons"] == ["d: broken"]


def test_a_combination_that_this_machine_has_no_room_for_does_not_stop_the_others(root: Root) -> None:
    recipe = root.folder / "recipes" / "c.toml"
    recipe.write_text(recipe.read_text().replace("memory_per_job_mib = 100", "memory_per_job_mib = 99999999"))
    rows = outcome(root, "a", "c", "--trains", "t,u", code=4)
    assert [*fates(rows).values()] == ["failed", "built"]
    assert "one compile job of c takes up to" in rows[0]["reasons"][0]


def test_what_a_train_lacks_is_no_failure(root: Root) -> None:
    rows = outcome(root, "c", "--trains", "v,u")
    assert [*fates(rows).values()] == ["built", "blocked"]
    assert rows[1]["reasons"] == ["c: train u has no version of it"]
    rows = outcome(root, "c", "a", "--trains", "u")
    assert (statuses(rows[0]), rows[0]["status"]) == ({"a": "built", "c": "skipped"}, "built")
    assert rows[0]["reasons"] == ["c: train u has no version of it"]


def test_wrong_names_are_told_before_anything_is_built(root: Root) -> None:
    for words, told in {
        ("a", "--trains", "t,w"): "no train is named 'w'",
        ("a", "--targets", "host-cpu,gb11"): "no target is named 'gb11': did you mean 'gb10'?",
        ("a", "--pythons", "3.11,three"): "--pythons three: write 3.12",
        ("a", "aa"): "no recipe is named 'aa'",
    }.items():
        done = root.run("matrix", *words)
        assert (done.returncode, done.stdout) == (2, ""), done.stdout
        assert told in done.stderr
    assert not (root.folder / "wheelhouse").exists()


def test_that_nothing_was_verified_is_said(root: Root) -> None:
    """With what to type; a list that names nothing is no default."""
    done = root.run("matrix", "a", "--trains", "t,v", "--no-closure")
    assert done.returncode == 0, done.stderr
    said = done.stdout[done.stdout.index("nothing of this was verified:") :]
    assert [line.rpartition("--train ")[2] for line in said.splitlines()[1:]] == [
        f"{train} --target host-cpu verify" for train in "tv"
    ]
    for empty in ("", ","):
        done = root.run("matrix", "a", "--trains", empty)
        assert (done.returncode, "it names nothing" in done.stderr) == (2, True), done.stderr


def test_where_nothing_can_be_built_nothing_was_checked(root: Root) -> None:
    rows = outcome(root, "a", "--targets", "gb10,thor-cp311", code=12)
    assert fates(rows) == {"gb10-t-cp312": "skipped", "thor-t-cp311": "skipped"}
    done = root.run("-q", "matrix", "a", "--targets", "gb10")
    assert (done.returncode, done.stdout) == (12, "1 skipped\n")
    assert "nothing was checked" in done.stderr
