"""What four users do in docs/journeys.md, most of it, with a project that is small enough."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path
from typing import Any

from tests.conftest import SETUPTOOLS, Root, make_root
from tests.helpers.commands import CLI, invoke
from tests.helpers.exports import make_key


def test_a_newcomer_sees_what_was_built_and_uses_it(built: Root, tmp_path: Path) -> None:
    (step,) = built.json("plan", "tiny")["steps"]
    assert step["decision"] == "REUSE"
    assert [wheel["name"] for wheel in built.json("wheelhouse", "list")["wheels"]] == ["tiny"]
    (wheel,) = Path(built.json("wheelhouse", "path")["path"]).glob("tiny-1.0-*.whl")
    assert "_native" in built.run("wheelhouse", "inspect", str(wheel)).stdout
    created = built.run("env", "create", str(tmp_path / "env"), "tiny", "--without-pip")
    assert created.returncode == 0, created.stderr
    use = [str(tmp_path / "env/bin/python"), "-I", "-c", "import tiny; print(tiny.answer())"]
    assert subprocess.check_output(use, text=True) == "42\n"
    assert built.run("env", "check", str(tmp_path / "env")).returncode == 0


def test_a_spark_owner_plans_on_a_laptop(tmp_path: Path) -> None:
    spark = [*CLI, "--root", str(tmp_path), "--target", "gb10", "--train", "2.13"]
    done = invoke([*spark, "--json", "plan", "flash-attn", "torch-scatter", "--provide", "torch=public"])
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["machine"] == {"cores": 20, "memory_mib": 124546, "here": False}
    steps: dict[str, dict[str, Any]] = {step["recipe"]: step for step in document["steps"]}
    assert {name: step["decision"] for name, step in steps.items()} == dict.fromkeys(
        ("cuda", "flash-attn", "torch-scatter"), "BUILD"
    )
    toolkit = steps["cuda"]["estimate"]
    assert 120 <= toolkit["seconds"] + toolkit["download_seconds"] <= 300, "two to four minutes were seen"
    assert 2 << 30 < steps["cuda"]["downloads"]["bytes"] < 3 << 30
    assert steps["torch-scatter"]["estimate"]["jobs"] == 3, "an extension has three files"
    total = document["total"]
    fetched = total["git"] + total["files"] + total["wheels"] + total["public"]
    assert (total["public"], total["downloads_unknown"] < fetched) == (1, True)
    # What is to be typed there is taken here, too.
    doctor, build = document["commands"]
    assert "flash-attn torch-scatter" in doctor
    assert "--provide torch=public" in build
    assert "--provide torch=public" in doctor, "else it wants what torch needs"
    typed = shlex.split(build.replace(" all ", " plan "))[1:]
    again = invoke([*CLI, "--root", str(tmp_path), "--json", *typed])
    assert json.loads(again.stdout)["total"] == total
    assert not any(tmp_path.iterdir()), "a plan changes nothing"


def test_a_library_author_makes_a_recipe_of_a_project(root: Root) -> None:
    (root.folder / "recipes" / "tiny.toml").unlink()
    (root.folder / "recipes" / "trains" / "t.toml").write_text('name = "t"\nsummary = "s"\n[components]\n')
    unknown = root.run("recipes", "new", "tiny", "--sdist", "tiny==2.0")
    assert (unknown.returncode, "sdists are there of 1.0" in unknown.stderr) == (5, True)
    made = root.json("recipes", "new", "tiny", "--sdist", "tiny==1.0")
    assert made["next"] == f"spark-build --root {root.folder} build tiny"
    assert root.run("recipes", "lint", "tiny").returncode == 0
    (step,) = root.json("plan", "tiny")["steps"]
    size = (root.links / "tiny-1.0.tar.gz").stat().st_size
    assert (step["decision"], step["source"]["size"]) == ("BUILD", size)
    # The sdist was looked into, so it is here.
    assert 0 < step["downloads"]["count"] == step["downloads"]["unknown"]


def test_a_ci_engineer_signs_hands_on_and_checks(built: Root, tmp_path: Path) -> None:
    key = make_key(tmp_path, "ci")
    archive = str(tmp_path / "wheels.tar")
    exported = built.run("wheelhouse", "export", archive, "--sign", str(key), "--without-spark-build")
    assert exported.returncode == 0, exported.stderr
    node = make_root(tmp_path / "node", SETUPTOOLS)
    node.train((built.folder / "recipes" / "trains" / "t.toml").read_text())  # gzip notes the time
    refused = node.run("--json", "wheelhouse", "import", archive)
    assert (refused.returncode, "wheelhouse trust add" in refused.stderr) == (10, True)
    nothing = node.run("wheelhouse", "check")
    assert (nothing.returncode, "nothing was checked" in nothing.stderr) == (12, True)
    assert node.run("wheelhouse", "trust", "add", "ci", f"{key}.pub").returncode == 0
    imported = node.run("-q", "wheelhouse", "import", archive)
    assert (imported.returncode, imported.stdout.count("\n")) == (0, 1), imported.stderr
    (step,) = node.json("plan", "tiny")["steps"]
    assert (step["decision"], "imported (ci)" in step["reasons"]) == ("REUSE", True), step
    assert node.run("wheelhouse", "check", "--deep").returncode == 0
    (wheel,) = Path(node.json("wheelhouse", "path")["path"]).glob("tiny-1.0-*.whl")
    copy = tmp_path / wheel.name
    copy.write_bytes(wheel.read_bytes()[:-40])
    assert node.run("--json", "wheelhouse", "inspect", str(copy)).returncode == 8
