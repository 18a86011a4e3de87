"""The gate on device code, through `build`: a wheel that cannot run on the target is not published."""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from spark_build.wheels import fatbin
from spark_build.wheels.reader import read_facts
from tests.conftest import NATIVE, PROJECT, RECIPE, Root, make_root
from tests.helpers.devicewheels import NATIVE_121, SM_80, small
from tests.helpers.fatbins import container, elf
from tests.helpers.wheels import write_wheel

REPACK = """\
name = "tiny"
distribution = "demo"
summary = "a vendor's wheel"
kind = "repack"

[build]
memory_per_job_mib = 10
core_minutes = 0.1
disk_mib = 10

[requires]
cuda = true
"""
WANTS = """
[[audit.device]]
library = "lib.so"
why = "every kernel"
"""


def vendor(root: Root, fatbin: bytes, extra: str = "") -> subprocess.CompletedProcess[str]:
    """Repack a wheel with this code for gb10."""
    wheel = small(root.links, fatbin)
    pin = hashlib.sha256(wheel.read_bytes()).hexdigest()
    root.recipe(REPACK + extra)
    root.train(
        'name = "t"\nsummary = "s"\n[components.tiny]\nversion = "1.0"\n'
        f'sources = [{{ kind = "wheel", project = "demo", filename = "{wheel.name}", sha256 = "{pin}" }}]\n'
    )
    return root.run("--target", "gb10", "build", "tiny")


def published(root: Root) -> list[Path]:
    return list(root.folder.glob("wheelhouse/views/*/generations/*/*.whl"))


def findings_of(root: Root) -> list[tuple[str, str]]:
    (audit,) = [
        *root.folder.glob("build/tiny/*/audit.json"),
        *root.folder.glob("wheelhouse/store/*/*/audit.json"),
    ]
    found = json.loads(audit.read_text())["findings"]
    return [(one["severity"], one["rule"]) for one in found if one["rule"].startswith("device")]


def test_a_vendors_wheel_that_lacks_what_the_recipe_wants(root: Root) -> None:
    done = vendor(root, SM_80, WANTS)
    assert done.returncode == 8, done.stderr
    assert "may not be published: device-required: lib.so has nothing that runs on sm_121" in done.stderr
    assert published(root) == []
    assert not list(root.folder.glob("wheelhouse/store/*/*/record.json"))


def test_a_vendors_wheel_without_code_is_told(root: Root) -> None:
    done = vendor(root, SM_80)
    assert done.returncode == 0, done.stderr
    assert findings_of(root) == [("warning", "device-code"), ("warning", "device-library")]
    assert len(published(root)) == 1


def test_a_vendors_wheel_with_code(root: Root) -> None:
    done = vendor(root, NATIVE_121, WANTS + 'require = ["sm_121a"]\nforbid = ["sm_100*"]\n')
    assert done.returncode == 0, done.stderr
    assert findings_of(root) == []
    found = json.loads(root.run("--target", "gb10", "--json", "wheelhouse", "inspect", "demo").stdout)
    assert found["judged_by"]["recipe"] == "tiny"
    assert found["libraries"][0]["sass"]["sm_121"] == 1


HERE = """\
name = "spark-here"
summary = "this machine, for a GPU that it need not have"
platform = "host"
python = "host"
cuda_architectures = ["12.1"]
cuda = "12.0"
"""


def with_code(fatbin: bytes) -> dict[str, str]:
    """The project of the tests, whose extension carries this fat binary where nvcc puts it."""
    numbers = ",".join(map(str, fatbin))
    attribute = '__attribute__((section(".nv_fatbin"), used, aligned(8)))'
    return {
        **PROJECT,
        "native.c": f"{NATIVE}\n{attribute} static const unsigned char code[] = {{{numbers}}};\n",
    }


def build_for_a_spark(base: Path, files: Mapping[str, str]) -> tuple[Root, subprocess.CompletedProcess[str]]:
    root = make_root(base, files)
    (root.folder / "recipes/targets").mkdir()
    (root.folder / "recipes/targets/spark-here.toml").write_text(HERE)
    root.recipe(RECIPE.format(disk=50) + "\n[requires]\ncuda = true\n")
    return root, root.run("--target", "spark-here", "build", "tiny")


def test_our_wheel_without_code_for_the_target_is_not_published(tmp_path: Path) -> None:
    root, done = build_for_a_spark(tmp_path / "sm80", with_code(SM_80))
    assert done.returncode == 8, done.stdout + done.stderr
    assert "device-code: nothing in it runs on sm_121: it has sm_80; build for 12.1" in done.stderr
    assert published(root) == []
    assert not list(root.folder.glob("wheelhouse/store/*/*/record.json"))
    root, done = build_for_a_spark(tmp_path / "cpu", PROJECT)
    assert done.returncode == 8
    assert "no device code in any file, and it is to run on sm_121: was it built without CUDA?" in done.stderr


def test_our_wheel_with_code_for_the_target_is_published(tmp_path: Path) -> None:
    root, done = build_for_a_spark(tmp_path, with_code(NATIVE_121))
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(published(root)) == 1
    found = json.loads(root.run("--target", "spark-here", "--json", "wheelhouse", "inspect", "tiny").stdout)
    (library,) = found["libraries"]
    assert library["sass"]["sm_121a"] == 1
    assert [one for one in found["findings"] if one["rule"].startswith("device")] == []


def test_an_absurd_member_of_a_wheel_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fatbin, "MAX_ITEMS", 1000)
    wheel = write_wheel(tmp_path, {"demo/flood.so": elf([(".nv_fatbin", container() * 1001)])})
    (code,) = read_facts(wheel).device_code
    assert code.problems == ("given up: more than 1,000 fat-binary headers in one file",)
    assert not code.sass
