"""cuSPARSELt for two platforms from any machine: the vendor's real wheels, about 370 MB."""

from __future__ import annotations

import hashlib
import json
import subprocess
from pathlib import Path

import pytest

from spark_build.host import catalogue
from spark_build.host.home import locate
from spark_build.host.wheelfile import read_library
from tests.conftest import CLI

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("target", "platform"), [("gb10", "aarch64"), ("h200", "x86_64")])
def test_the_vendors_wheel_and_a_prefix(target: str, platform: str, tmp_path: Path) -> None:
    command = [*CLI, "--root", str(tmp_path), "--target", target, "--train", "2.13", "--json"]
    done = subprocess.run([*command, "build", "cusparselt"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    listed = json.loads(subprocess.check_output([*command, "wheelhouse", "list"]))
    (wheel,) = listed["wheels"]
    train = catalogue.load(locate(None).data).train("2.13")
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
    again = json.loads(subprocess.check_output([*command, "build", "cusparselt"]))
    assert [row["status"] for row in again["results"]] == ["reused"]


@pytest.mark.parametrize("train", ["2.9", "2.11", "2.13", "2.15"])
def test_a_spark_can_be_planned_anywhere(train: str, tmp_path: Path) -> None:
    command = [*CLI, "--root", str(tmp_path), "--target", "gb10", "--train", train, "--json", "plan"]
    document = json.loads(subprocess.check_output(command))
    steps = {step["recipe"]: step for step in document["steps"]}
    assert len(steps) == 8
    order = list(steps)
    for name, step in steps.items():
        assert all(order.index(need) < order.index(name) for need in step["needs"])
        assert step["reasons"]
    assert list(tmp_path.iterdir()) == []
