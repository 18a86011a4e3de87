"""cuSPARSELt for two platforms from any machine: the vendor's real wheels, about 370 MB."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from spark_build.paths import locate
from spark_build.recipes import loader
from spark_build.wheels.elf import read_library
from tests.conftest import CLI
from tests.helpers.commands import invoke

pytestmark = [pytest.mark.slow, pytest.mark.network]


@pytest.mark.parametrize(("target", "platform"), [("gb10", "aarch64"), ("h200", "x86_64")])
def test_the_vendors_wheel_and_a_prefix(target: str, platform: str, tmp_path: Path) -> None:
    command = [*CLI, "--root", str(tmp_path), "--target", target, "--train", "2.13", "--json"]
    done = invoke([*command, "build", "cusparselt"])
    assert done.returncode == 0, done.stderr
    listed = json.loads(invoke([*command, "wheelhouse", "list"]).stdout)
    (wheel,) = listed["wheels"]
    train = loader.load(locate(None).data).train("2.13")
    pinned = {
        source.platform: source.sha256 for source in train.components["cusparselt"].sources
    }  # fmt: skip
    assert hashlib.sha256(Path(wheel["path"]).read_bytes()).hexdigest() == pinned[f"linux-{platform}"]
    (prefix,) = tmp_path.glob("wheelhouse/store/??/*/prefix")
    assert (prefix / "include/cusparseLt.h").is_file()
    library = prefix / "lib/libcusparseLt.so"
    assert str(library.readlink()) == "libcusparseLt.so.0"
    with library.open("rb") as file:
        assert read_library("libcusparseLt.so", file).machine == platform
    if platform == os.uname().machine:
        assert asked_itself(tmp_path, wheel["path"]) == [("version", "ok", "the library says 0.8.1")]
    again = json.loads(invoke([*command, "build", "cusparselt"]).stdout)
    assert [row["status"] for row in again["results"]] == ["reused"]


def asked_itself(base: Path, wheel: str) -> list[tuple[str, str, str]]:
    """What the recipe's check says of the installed wheel: loading the library needs no GPU."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", base / "env"], check=True)
    pip = [sys.executable, "-m", "pip", "-q", "--python", str(base / "env/bin/python"), "install"]
    subprocess.run([*pip, "--no-index", wheel], check=True)
    script = Path(__file__).parents[2] / "bench/checks/cusparselt.py"
    subprocess.run([base / "env/bin/python", "-I", script, "--out", base / "out.json"], check=True)
    checks = json.loads((base / "out.json").read_text())["checks"]
    return [(check["name"], check["status"], check["evidence"]) for check in checks]


@pytest.mark.parametrize("train", ["2.9", "2.11", "2.13", "2.15"])
def test_a_spark_can_be_planned_anywhere(train: str, tmp_path: Path) -> None:
    command = [*CLI, "--root", str(tmp_path), "--target", "gb10", "--train", train, "--json", "plan"]
    document = json.loads(invoke(command).stdout)
    steps = {step["recipe"]: step for step in document["steps"]}
    assert len(steps) == 10
    order = list(steps)
    for name, step in steps.items():
        assert all(order.index(need) < order.index(name) for need in step["needs"])
        assert step["reasons"]
    assert list(tmp_path.iterdir()) == []
