"""What one root builds another takes from a remote store: real builds, one needing the other."""

from __future__ import annotations

import json
import shutil
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from spark_build.files import sha256_of
from spark_build.wheelhouse import store
from tests.conftest import Root
from tests.helpers import recipe_roots
from tests.helpers.exports import make_key, relabelled
from tests.helpers.recipe_roots import statuses


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Root, Path]:
    """A root whose builds of base and top alice has pushed to a folder, and that folder."""
    folder = tmp_path_factory.mktemp("remotes")
    root = recipe_roots.make(folder, {"base": "", "top": ""}, {"top": "base"})
    make_key(folder, "alice")
    (folder / "lab").mkdir()
    root.json("remotes", "add", "lab", str(folder / "lab"), "--push", "--sign", str(folder / "alice"))
    built = root.run("--json", "build", "top", "--no-closure")
    assert statuses(json.loads(built.stdout)) == {"base": "built", "top": "built"}, built.stderr
    assert "pushed top-1.0-1_" in built.stderr
    return root, folder / "lab"


@pytest.fixture
def lab(recorded: tuple[Root, Path], tmp_path: Path) -> Path:
    """A copy of the folder, for tests that meddle with it."""
    return Path(shutil.copytree(recorded[1], tmp_path / "lab"))


@pytest.fixture
def other(recorded: tuple[Root, Path], lab: Path, tmp_path: Path) -> Root:
    """A root of the same recipes, in which nothing was built, that takes from the copy what alice signed."""
    root = recorded[0]
    shutil.copytree(root.folder / "recipes", tmp_path / "other" / "recipes")
    made = replace(root, folder=tmp_path / "other")
    made.json("remotes", "add", "lab", str(lab), "--trust", f"alice={recorded[1].parent / 'alice.pub'}")
    return made


def decisions(root: Root) -> dict[str, tuple[str, str | None]]:
    """Of each recipe what the plan decides, and the remote store that it names."""
    return {step["recipe"]: (step["decision"], step["remote"]) for step in root.json("plan", "top")["steps"]}


def wheels(root: Root) -> dict[str, str]:
    """sha256 of each wheel in the view, read anew."""
    rows = root.json("wheelhouse", "list")["wheels"]
    return {Path(row["path"]).name: sha256_of(Path(row["path"])) for row in rows}


def damage(lab: Path, recipe: str) -> None:
    """Flip a bit of a recipe's wheel in its entry."""
    for entry in lab.rglob("*.tar"):
        with tarfile.open(entry) as tar:
            (wheel,) = (one for one in tar if one.name.endswith(".whl"))
        if f"/{recipe}-1.0" in wheel.name:
            data = bytearray(entry.read_bytes())
            data[wheel.offset_data + wheel.size // 2] ^= 1
            entry.write_bytes(data)


def test_a_build_is_pushed_fetched_and_reused(recorded: tuple[Root, Path], other: Root) -> None:
    """Also what is built against another build is known before that was fetched."""
    root, lab = recorded
    assert decisions(other) == {"base": ("REUSE", "lab"), "top": ("REUSE", "lab")}
    table = other.run("plan", "top").stdout
    assert "REUSE FROM lab" in table
    assert "imported (alice)" in table
    done = other.run("--json", "build", "top", "--no-closure", "--offline")
    assert statuses(json.loads(done.stdout)) == {"base": "reused", "top": "reused"}
    assert "from lab: imported (alice)" in done.stderr
    assert wheels(other) == wheels(root)
    assert {row["origin"] for row in other.json("wheelhouse", "list")["wheels"]} == {"imported"}
    for row in root.json("wheelhouse", "list")["wheels"]:
        own = store.entry_folder(other.folder / "wheelhouse" / "store", row["key"])
        assert not own.exists(), "the keys of our own builds know nothing of it"
    assert decisions(other) == {"base": ("REUSE", None), "top": ("REUSE", None)}
    before = {path: path.stat() for path in lab.rglob("*")}
    assert root.json("remotes", "push", "lab")["pushed"] == []
    assert {path: path.stat() for path in lab.rglob("*")} == before


def test_what_is_tampered_with_or_gone_costs_a_warning_and_is_built(
    recorded: tuple[Root, Path], other: Root, lab: Path, tmp_path: Path
) -> None:
    (tmp_path / "gone").mkdir()
    other.json("remotes", "add", "gone", str(tmp_path / "gone"))
    (tmp_path / "gone").rmdir()
    damage(lab, "top")
    done = other.run("--json", "build", "top", "--no-closure")
    assert statuses(json.loads(done.stdout)) == {"base": "reused", "top": "built"}, done.stderr
    refused, gone = sorted(line for line in done.stderr.splitlines() if "warning" in line)[::-1]
    assert "top-1.0-1_" in refused
    assert "is not what its manifest says (sha256); going on without it" in refused
    assert f"warning: {tmp_path / 'gone'} is not there; going on without it" in gone
    assert wheels(other).keys() == wheels(recorded[0]).keys()


def test_a_signer_who_says_what_is_not_so_ends_the_build(
    recorded: tuple[Root, Path], other: Root, lab: Path
) -> None:
    """What a fetch does not unpack the audit does, before anything is made of it."""
    for entry in lab.rglob("*.tar"):
        relabelled(entry, recorded[1].parent / "alice")
    done = other.run("--json", "build", "base", "--no-closure")
    assert done.returncode == 8, done.stderr
    assert "record: its content digest is not what its record says" in done.stderr
    assert "nothing is published" in other.run("wheelhouse", "list").stderr


def test_nothing_is_taken_from_whom_nobody_trusts(other: Root) -> None:
    other.json("wheelhouse", "trust", "remove", "alice")
    assert decisions(other) == {"base": ("BUILD", None), "top": ("BUILD", None)}


def test_a_list_of_remote_stores(other: Root, lab: Path, tmp_path: Path) -> None:
    other.json("remotes", "add", "web", "https://example.org/lab/")
    rows = other.json("remotes", "list")["remotes"]
    assert [(row["name"], row["url"]) for row in rows] == [
        ("lab", f"file://{lab}"),
        ("web", "https://example.org/lab"),
    ]
    key = make_key(tmp_path, "mallory").with_suffix(".pub")
    for words, told in (
        (("web", "https://example.org"), "web is a remote store already"),
        (("web", str(lab), "--trust", f"mallory={key}"), "web is a remote store already"),
        (("new", "simplecache::https://n/lab"), "is no URL"),
        (("a b", str(lab)), "'a b' is no name"),
        (("new", str(tmp_path / "no")), "there is no folder"),
        (("new", "s3://me:secret@bucket"), "keeps no password"),
        (("new", str(lab), "--push"), "with which key?"),
        (("new", str(lab), "--trust", f"mallory={key}", "--trust", f"b={lab}"), "holds no public key"),
        (("new", "http://n/lab", "--sign", str(tmp_path)), "'--sign'"),
    ):
        done = other.run("remotes", "add", *words)
        assert (done.returncode, told in done.stderr) == (2, True), done.stderr
        assert other.json("remotes", "list")["remotes"] == rows
    assert [row["name"] for row in other.json("wheelhouse", "trust", "list")["signers"]] == ["alice"]
    assert other.run("remotes", "push", "lab").returncode == 10, "nothing is published yet"
    assert [row["name"] for row in other.json("remotes", "remove", "web")["remotes"]] == ["lab"]
    assert "no remote store 'web'" in other.run("remotes", "remove", "web").stderr
