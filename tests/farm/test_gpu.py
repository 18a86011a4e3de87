"""Checks that need a GPU: by a worker that has one, else said to be open."""

from __future__ import annotations

import gc
import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import dask
import pytest

from spark_build.build.context import resolve_context
from spark_build.cli.farm import FarmOptions, _verified, with_gpu
from spark_build.cli.judgement import judge
from spark_build.cli.options import Options
from spark_build.farm.address import parse_address
from spark_build.farm.client import Connection
from spark_build.farm.task import TaskAnswer
from spark_build.measure.request import BurnInRequest
from spark_build.paths import locate
from spark_build.recipes.loader import load
from spark_build.recipes.model import BuildOptions
from spark_build.wheelhouse.generations import Generation
from spark_build.wheels.model import StoredWheel
from tests.helpers import farms, recipe_roots
from tests.helpers.farms import Lab

WHERE = FarmOptions(farm=parse_address("tls://w:1"))
TARGET = """\
name = "gpu"
summary = "a GPU for tests"
platform = "linux-{machine}"
python = "{python}"
cuda_architectures = ["9.0"]
cuda = "13.0"
"""
# What a check is without a GPU, and what the machine with one says.
CHECK = """\
import json, shutil, sys
status = open(shutil.which("nvidia-smi") + ".status").read()
row = {"name": "seen", "status": status, "evidence": "of the GPU"}
open(sys.argv[sys.argv.index("--out") + 1], "w").write(json.dumps({"checks": [row]}))
"""


def driver(folder: Path, does: str, status: str) -> Path:
    """A driver's command; returns the file that says what the check finds."""
    folder.mkdir()
    (folder / "nvidia-smi").write_text(f"#!/bin/sh\n{does}\n")
    (folder / "nvidia-smi").chmod(0o755)
    told = folder / "nvidia-smi.status"
    told.write_text(status)
    return told


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    """A lab whose recipe has a check, for a target with a GPU."""
    made = farms.make(tmp_path, {"a": ""})
    made.client.env["PATH"] = f"{driver(tmp_path / 'none', 'exit 9', 'skipped').parent}:{os.environ['PATH']}"
    recipes = made.client.folder / "recipes"
    (recipes / "targets").mkdir()
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    (recipes / "targets" / "gpu.toml").write_text(TARGET.format(python=python, machine=os.uname().machine))
    with (recipes / "a.toml").open("a") as recipe:
        recipe.write('[verify]\nchecks = ["a_gpu"]\n')
    made.scheduler()
    roots = made.roots("one", "two")
    for root in (made.client, *roots):
        (root.folder / "bench" / "checks").mkdir(parents=True)
        (root.folder / "bench" / "checks" / "a_gpu.py").write_text(CHECK)
    return made


def asked(lab: Lab, *words: str) -> tuple[int, Any]:
    where = ("--farm", lab.address, "--certificates", str(lab.certificates))
    done = lab.client.run("--json", "--target", "gpu", "all", "a", *where, *words)
    return done.returncode, json.loads(done.stdout)


@pytest.mark.slow
def test_a_worker_with_a_gpu_checks_what_the_client_cannot(lab: Lab) -> None:
    one, two = (replace(lab.client, folder=lab.folder / name) for name in ("one", "two"))
    lab.workers(one)
    code, alone = asked(lab)
    assert (code, alone["with_gpu"]["checks"]) == (0, [])
    assert alone["with_gpu"]["problem"] == "no worker of the farm for this target has one"
    status = driver(lab.folder / "smi", "echo Test GPU, 9.0", "ok")
    lab.workers(two, before=("env", f"PATH={status.parent}:{os.environ['PATH']}"))
    code, document = asked(lab)
    rows = {row["name"]: row["status"] for row in document["with_gpu"]["checks"]}
    assert (code, rows) == (0, {"origin": "ok", "a_gpu.seen": "ok"}), document["with_gpu"]
    assert {row["name"]: row["status"] for row in document["checks"]}["a_gpu.seen"] == "skipped"
    status.write_text("fail")
    assert asked(lab)[0] == 0, "verified before"
    code, document = asked(lab, "--reverify")
    assert code == 9, document["with_gpu"]


@pytest.mark.parametrize(
    ("sha256", "status", "unmeasured", "problem", "code"),
    [
        ("1", "ok", False, "", 0),
        ("1", "ok", True, "", 12),  # a burn-in was asked for: a worker checks, it measures nothing
        ("1", "fail", True, "", 9),
        ("2", "ok", False, "w has other bytes of a.whl", 12),
        ("1", "skipped", False, "w did not do a of a", 12),
        ("1", "fine", False, "w answers with something else than checks", 12),
    ],
)
def test_checks_of_other_wheels_or_of_none_do_not_count(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    sha256: str,
    status: str,
    unmeasured: bool,
    problem: str,
    code: int,
) -> None:
    made = recipe_roots.make(tmp_path, {"a": ""})
    with (made.folder / "recipes" / "a.toml").open("a") as recipe:
        recipe.write('[verify]\nchecks = ["a"]\n')
    home = locate(str(made.folder))
    setting = resolve_context(home, load(home.data), "h200", "t", {})
    setting = replace(setting, machine=replace(setting.machine, gpus=()))
    row = {"package": "a", "name": "a.seen", "status": status, "evidence": "here"}
    answer = TaskAnswer(worker="w", address="tls://w:1", checks=[row], wheels={"a.whl": sha256})
    monkeypatch.setattr("spark_build.cli.farm._verified", lambda *_, **__: answer)
    wheel = StoredWheel(
        name="a", version="1", filename="a.whl", sha256="1", size=1, key="k", origin="imported"
    )
    unchecked = judge(
        replace(setting, target=replace(setting.target, python="cp39")),
        Generation(number=1, folder=tmp_path, wheels=(wheel,), closure_key=""),
        tmp_path,
        print,
        burn_in=BurnInRequest() if unmeasured else None,
    )
    assert unchecked.code == 12
    judged = with_gpu(Options(), setting, BuildOptions(), WHERE, {"a": [wheel]}, unchecked, reverify=False)
    assert judged.document["with_gpu"]["problem"] == problem
    assert judged.document["with_gpu"]["checks"] == ([] if problem else [row])
    assert (judged.code, judged.unchecked) == (code, unchecked.unchecked if code == 12 else None)


@pytest.mark.filterwarnings("ignore:.*SSLSocket:pytest.PytestUnraisableExceptionWarning")
def test_a_farm_that_goes_away_while_it_is_asked_is_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dask's own error, by a real scheduler that is killed between two questions."""
    made = farms.make(tmp_path, {"a": ""})
    scheduler = made.scheduler()
    await_all = Connection.await_all

    def killed(self: Connection) -> None:
        scheduler.kill()
        scheduler.wait()
        await_all(self)

    monkeypatch.setattr(Connection, "await_all", killed)
    home = locate(str(made.client.folder))
    setting = resolve_context(home, load(home.data), "host-cpu", "t", {})
    where = replace(WHERE, farm=parse_address(made.address), certificates=made.certificates)
    with dask.config.set({"distributed.comm.timeouts.connect": "1s"}):
        answer = _verified(Options(), setting, BuildOptions(named=("a",)), where, reverify=False)
    assert answer.problem.startswith("the farm went away ("), answer
    gc.collect()  # Client.close stops its loop before all sockets are closed: not to the next test's harm
