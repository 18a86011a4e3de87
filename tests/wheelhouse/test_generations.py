"""generations, rollback, remove, pin: from the command line, on real wheels."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from spark_build.errors import StoreError, UsageError
from spark_build.paths import Home
from spark_build.wheelhouse import generations
from tests.conftest import Root
from tests.helpers.commands import hint_text
from tests.helpers.generations import VIEW, root_and_home
from tests.helpers.wheelhouse import make_wheel, publish, put_built, put_public, snapshot
from tests.wheelhouse.test_wheelhouse import environment, pip, versions


@pytest.fixture
def kept(tmp_path: Path) -> tuple[Root, Home, Path]:
    """Three generations: demo and helper; demo rebuilt; another helper, and lonely."""
    root, home, view = root_and_home(tmp_path)
    dist = tmp_path / "dist"

    def demo(build: str) -> Path:
        return make_wheel(dist, build=build, requires=["helper>=1"])

    first = put_built(home.store, demo("1_0123abcd"), note="1")
    helper = put_public(home.store, make_wheel(dist, "helper", "1.5"))
    publish(home, [first, helper], view=VIEW)
    second = put_built(home.store, demo("2_0123abcd"), note="2")
    publish(home, [second, helper], view=VIEW)
    newer = put_public(home.store, make_wheel(dist, "helper", "1.6"))
    publish(home, [second, newer, put_public(home.store, make_wheel(dist, "lonely", "3.0"))], view=VIEW)
    return root, home, view


def number(view: Path) -> int:
    found = generations.current(view)
    assert found is not None
    return found.number


def test_what_changed_in_each_generation(kept: tuple[Root, Home, Path]) -> None:
    root, home, _ = kept
    done = root.run("wheelhouse", "generations")
    assert done.returncode == 0, done.stderr
    _, third, second, first = (line.split(maxsplit=2) for line in done.stdout.splitlines())
    assert (first[0], first[2]) == ("1", "+demo 1.0, +helper 1.5")
    assert (second[0], second[2]) == ("2", "rebuilt demo 1.0")
    assert (third[0], third[2].split(maxsplit=1)) == ("3", ["current", "helper 1.5 -> 1.6, +lonely 3.0"])
    shown = root.json("wheelhouse", "generations")
    assert shown["view"] == VIEW
    assert [row["generation"] for row in shown["generations"]] == [1, 2, 3]
    row = shown["generations"][2]
    assert (row["current"], row["pinned"], row["verified"], row["against"], row["wheels"]) == (
        True,
        False,
        False,
        2,
        3,
    )
    assert {"kind": "version", "name": "helper", "before": "1.5", "after": "1.6"} in row["changes"]
    current = generations.current(home.views / VIEW)
    assert current is not None
    generations.write_verdict(current, {"checks": [{"name": "origin", "status": "ok", "evidence": ""}]})
    assert root.json("wheelhouse", "generations")["generations"][2]["verified"]


def test_a_damaged_generation_hides_no_other(kept: tuple[Root, Home, Path]) -> None:
    root, _, view = kept
    (view / "generations" / "2" / "manifest.json").write_text("{")
    shown = root.json("wheelhouse", "generations")["generations"]
    assert "cannot be read" in shown[1]["problem"]
    assert (shown[0]["problem"], shown[2]["problem"]) == (None, None)


def test_back_and_forth(kept: tuple[Root, Home, Path]) -> None:
    root, _, view = kept
    before = snapshot(view / "generations")
    done = root.run("wheelhouse", "rollback")
    assert done.stdout.splitlines() == [
        "generation 2 is current again, instead of 3",
        "  helper 1.6 -> 1.5",
        "  -lonely 3.0",
    ]
    assert number(view) == 2
    shown = root.json("wheelhouse", "rollback", "3")
    assert (shown["from"], shown["generation"], len(shown["changes"])) == (2, 3, 2)
    assert number(view) == 3
    assert "already" in root.run("wheelhouse", "rollback", "3").stdout
    assert snapshot(view / "generations") == before


def test_the_next_number_is_never_one_that_was_given(kept: tuple[Root, Home, Path]) -> None:
    _, home, view = kept
    _, first = generations.rollback(view, 1)
    made = publish(home, first.wheels[:1], view=VIEW)
    assert (made.number, made.before) == (4, 1)
    _, back = generations.rollback(view, None)
    assert back.number == 1, "what it was made from, not what has the number before"


def test_there_is_nothing_to_go_back_to(kept: tuple[Root, Home, Path]) -> None:
    root, _, view = kept
    done = root.run("wheelhouse", "rollback", "9")
    assert done.returncode == 2
    assert "has no generation 9; there are 1, 2, 3" in done.stderr
    generations.rollback(view, 1)
    with pytest.raises(UsageError, match="no generation before 1"):
        generations.rollback(view, None)


def test_a_generation_without_its_wheels_is_not_made_current(kept: tuple[Root, Home, Path]) -> None:
    root, home, view = kept
    first = generations.read(view / "generations" / "1").wheels[0]
    (home.store / first.key[:2] / first.key / first.filename).unlink()
    done = root.run("wheelhouse", "rollback", "1")
    assert done.returncode == 10
    assert f"{first.filename} is missing" in done.stderr
    assert "check --repair" in done.stderr
    assert number(view) == 3


def test_rollback_mends_a_dangling_current(kept: tuple[Root, Home, Path]) -> None:
    root, _, view = kept
    (view / "current").unlink()
    (view / "current").symlink_to("generations/77")
    assert root.run("wheelhouse", "rollback", "2").returncode == 0
    assert number(view) == 2
    (view / "current").unlink()
    (view / "current").mkdir()
    with pytest.raises(StoreError, match="is a folder") as caught:
        generations.rollback(view, 2)
    asked = "spark-build --target host-cpu --train t wheelhouse rollback 3"
    assert hint_text(caught.value.hint) == f"rm -r {view / 'current'}, then: {asked}"


def test_what_others_need_is_not_taken_out_by_accident(kept: tuple[Root, Home, Path], tmp_path: Path) -> None:
    root, home, view = kept
    done = root.run("wheelhouse", "remove", "Helper")
    assert done.returncode == 2
    assert "demo needs helper>=1" in done.stderr
    assert "--force" in done.stderr
    assert number(view) == 3
    done = root.run("wheelhouse", "remove", "lonely==3")
    assert done.stdout == "generation 4 is without lonely 3.0\n"
    assert [wheel.name for wheel in generations.read(view / "generations" / "4").wheels] == ["demo", "helper"]
    shown = root.json("wheelhouse", "remove", "helper", "--force")
    assert shown["lacking"] == ["demo needs helper>=1"]
    assert shown["removed"] == [{"name": "helper", "version": "1.6"}]
    python = environment(tmp_path / "env")
    assert pip(python, "install", "--no-index", "--find-links", shown["path"], "demo").returncode != 0
    both = root.json("wheelhouse", "rollback", "3")["path"]
    assert pip(python, "install", "--no-index", "--find-links", both, "demo").returncode == 0
    assert len(list(home.store.glob("??/*"))) == 5, "the store keeps all"


@pytest.mark.parametrize(
    ("name", "told"),
    [("nothing", "has no nothing"), ("helper==1.5", "there is 1.6"), ("helper==", "demo needs")],
)
def test_names_that_mean_nothing(kept: tuple[Root, Home, Path], name: str, told: str) -> None:
    root, _, view = kept
    done = root.run("wheelhouse", "remove", name)
    assert done.returncode == 2
    assert told in done.stderr
    assert number(view) == 3


def test_pins(kept: tuple[Root, Home, Path]) -> None:
    root, _, view = kept
    assert root.json("wheelhouse", "pin") == {"generation": 3, "pinned": True, "new": True}
    assert root.json("wheelhouse", "pin", "1")["new"]
    assert not root.json("wheelhouse", "pin", "1")["new"]
    assert generations.pins(view) == {1, 3}
    assert root.run("wheelhouse", "unpin", "3").stdout == "generation 3 is not pinned\n"
    assert generations.pins(view) == {1}
    assert root.run("wheelhouse", "pin", "8").returncode == 2
    assert [row["pinned"] for row in root.json("wheelhouse", "generations")["generations"]] == [
        True,
        False,
        False,
    ]


def test_several_versions_in_one_generation(kept: tuple[Root, Home, Path], tmp_path: Path) -> None:
    """The highest is what installers are held to; the others are there for who asks."""
    _, home, view = kept
    wheels = [one for number in (1, 3) for one in generations.read(view / "generations" / str(number)).wheels]
    made = publish(home, wheels, view=VIEW)
    assert [wheel.version for wheel in made.wheels if wheel.name == "helper"] == ["1.5", "1.6"]
    assert (made.folder / "constraints.txt").read_text() == "demo==1.0\nhelper==1.6\nlonely==3.0\n"
    assert (made.folder / "requirements.txt").read_text().count("--hash") == 4, "two builds of demo"
    python = environment(tmp_path / "env")
    links = ["install", "--no-index", "--find-links", made.folder]
    done = pip(python, *links, "--require-hashes", "-r", made.folder / "requirements.txt")
    assert done.returncode == 0, done.stderr
    assert versions(python, "helper") == ["1.6"]
    assert pip(python, *links, "helper==1.5").returncode == 0
    assert versions(python, "helper") == ["1.5"]


def test_two_wheels_of_one_file_name(kept: tuple[Root, Home, Path], tmp_path: Path) -> None:
    _, home, _ = kept
    one = put_public(home.store, make_wheel(tmp_path / "a", "same"))
    other = put_public(home.store, make_wheel(tmp_path / "b", "same", files={"same.py": b"other"}))
    with pytest.raises(StoreError, match="two wheels are called same"):
        publish(home, [one, other], view=VIEW)


def test_before_anything_is_published(tmp_path: Path) -> None:
    root, _, _ = root_and_home(tmp_path)
    assert "nothing is published" in root.run("wheelhouse", "generations").stdout
    assert root.run("wheelhouse", "remove", "demo").returncode == 10
    for command in ("rollback", "pin"):
        done = root.run("wheelhouse", command)
        assert done.returncode == 10, done.stderr
        assert re.search(r"next: spark-build .*\ball$", done.stderr, re.MULTILINE), done.stderr
    assert json.loads(root.run("--json", "wheelhouse", "gc").stdout)["taken"] == []
    assert root.run("wheelhouse", "check").returncode == 0
