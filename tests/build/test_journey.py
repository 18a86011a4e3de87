"""The README's main command for real: a fresh checkout, a fresh HOME, ONNX from its sdist."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from spark_build.build.backends import build_pep517
from spark_build.build.context import Job
from spark_build.errors import StageError
from tests.cli.test_launcher import copy_of_the_project
from tests.helpers import processes
from tests.helpers.exports import make_key
from tests.helpers.inspection import check

pytestmark = [pytest.mark.slow, pytest.mark.network]

USE = """
import onnx
from onnx import TensorProto, helper
value = lambda name: helper.make_tensor_value_info(name, TensorProto.FLOAT, [1])
graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [value("x")], [value("y")])
onnx.checker.check_model(helper.make_model(graph), full_check=True)
print("checked", onnx.__version__)
"""


@dataclass(frozen=True, kw_only=True)
class Checkout:
    """A checkout and its user."""

    folder: Path
    env: dict[str, str]

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run ./spark-build to its end."""
        return subprocess.run(
            ["./spark-build", *arguments],
            cwd=self.folder,
            env=self.env,
            capture_output=True,
            text=True,
            check=False,
        )

    def json(self, *arguments: str) -> Any:
        """Run with --json; it must succeed."""
        done = self.run("--json", *arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout)


@dataclass(frozen=True, kw_only=True)
class Again:
    """What the second start said of a build that was killed, and how many steps there are to compile."""

    said: str
    steps: int


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Checkout]:
    """A fresh checkout and HOME."""
    base = tmp_path_factory.mktemp("journey")
    (base / "home").mkdir()
    leaky = ("SPARK_BUILD_", "VIRTUAL_ENV", "XDG_", "PYTHONPATH")
    env = {name: value for name, value in os.environ.items() if not name.startswith(leaky)}
    env |= {"HOME": str(base / "home"), "SPARK_BUILD_PYTHON": str(Path(sys.executable).resolve())}
    env["SPARK_BUILD_NICE"] = "0"  # beside other tests, which leave low priorities nothing
    yield Checkout(folder=copy_of_the_project(base / "spark-build"), env=env)
    # No rmtree: a deletion in the background may still be at work in there, and takes files from under it.
    subprocess.run(["rm", "-rf", "--", base], check=True)


@pytest.fixture(scope="module")
def again(fresh: Checkout) -> Again:
    """`./spark-build all`, killed while it compiled, then typed again."""
    process = processes.start(
        ["./spark-build", "all"],
        cwd=fresh.folder,
        env=fresh.env,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    steps: list[tuple[str, str]] = []
    deadline = time.monotonic() + 900
    while time.monotonic() < deadline and process.poll() is None:
        logs = list(fresh.folder.glob("build/onnx/*/build.log"))
        steps = re.findall(r"^\[(\d+)/(\d+)\]", logs[0].read_text(), re.MULTILINE) if logs else []
        if steps and int(steps[-1][0]) >= 25:
            break
        time.sleep(0.2)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert steps, "the compile never got that far"
    time.sleep(5)
    left = subprocess.run(["pgrep", "-f", str(fresh.folder / "build")], check=False)
    assert left.returncode == 1, "processes outlive the build"
    done = fresh.run("all")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^onnx +1\.19\.1 +built", done.stdout, re.MULTILINE), done.stdout
    assert re.search(r"^verified: (\d+) of \1 checks ok", done.stdout, re.MULTILINE), done.stdout
    return Again(said=done.stderr, steps=int(steps[-1][1]))


@pytest.fixture(scope="module")
def checkout(fresh: Checkout, again: Again) -> Checkout:
    """A checkout in which `./spark-build all` has run to its end."""
    assert again.steps
    return fresh


def use(python: Path) -> str:
    """What a user's script says in an environment, away from any checkout."""
    return subprocess.check_output([python, "-c", USE], text=True, cwd=python.parent)


def test_everything_has_a_fate_and_again_nothing_is_rebuilt(checkout: Checkout) -> None:
    document = checkout.json("all")
    status = {row["recipe"]: row["status"] for row in document["results"]}
    assert status.pop("onnx") == "reused"
    assert set(status.values()) == {"skipped"}
    assert len(status) == 9
    reasons = [row["reasons"][0] for row in document["results"] if row["status"] == "skipped"]
    why = ("needs", "unless named", "is for linux-aarch64")
    assert all(any(words in reason for words in why) for reason in reasons)
    assert document["generation"] == 1
    assert all(check["status"] == "ok" for check in document["checks"])


def test_pip_installs_it_offline(checkout: Checkout, tmp_path: Path) -> None:
    path = checkout.run("wheelhouse", "path").stdout.strip()
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "env"], check=True)
    pip = [str(tmp_path / "env/bin/python"), "-m", "pip", "-q", "install", "--no-index", "--find-links", path]
    subprocess.run([*pip, "onnx"], check=True)
    assert use(tmp_path / "env/bin/python") == "checked 1.19.1\n"


def test_uv_installs_it_offline(checkout: Checkout, tmp_path: Path) -> None:
    path = checkout.run("wheelhouse", "path").stdout.strip()
    uv = [sys.executable, "-m", "uv", "--quiet", "--no-config"]
    subprocess.run([*uv, "venv", "--python", sys.executable, tmp_path / "env"], check=True)
    offline = ["--offline", "--no-index", "--find-links", path, "--python", str(tmp_path / "env/bin/python")]
    subprocess.run([*uv, "pip", "install", *offline, "onnx"], check=True)
    assert use(tmp_path / "env/bin/python") == "checked 1.19.1\n"


def test_export_import_and_install_there(checkout: Checkout, tmp_path: Path) -> None:
    key = make_key(tmp_path, "builder")
    exported = checkout.run("wheelhouse", "export", str(tmp_path / "set.tar"), "--sign", str(key))
    assert exported.returncode == 0, exported.stderr
    there = ["--root", str(tmp_path / "there")]
    trusted = checkout.run(*there, "wheelhouse", "trust", "add", "builder", f"{key}.pub")
    assert trusted.returncode == 0, trusted.stderr
    imported = checkout.run(*there, "wheelhouse", "import", str(tmp_path / "set.tar"))
    assert imported.returncode == 0, imported.stderr
    created = checkout.run(*there, "env", "create", str(tmp_path / "env"), "onnx")
    assert created.returncode == 0, created.stderr
    assert use(tmp_path / "env/bin/python") == "checked 1.19.1\n"
    # The other machine has nothing to compile.
    planned = checkout.json(*there, "plan", "onnx")
    assert planned["steps"][0]["decision"] == "REUSE"


def test_inspect_of_it_is_true_in_every_line(checkout: Checkout) -> None:
    (wheel,) = checkout.folder.glob("wheelhouse/store/??/*/onnx-*.whl")
    found = check(wheel, None)
    assert not [one for one in found["findings"] if one["severity"] == "error"]
    (bundled,) = [one for one in found["needed"] if one["soname"].startswith("libprotobuf-lite")]
    assert bundled["source"] == "wheel"


def digest(root: Path) -> str:
    """Content digest of the one built wheel under a root."""
    records = [json.loads(path.read_text()) for path in root.glob("wheelhouse/store/??/*/record.json")]
    (built,) = [record for record in records if record["origin"] == "built"]
    return str(built["content_digest"])


def test_a_build_that_was_killed_goes_on_where_it_stopped(checkout: Checkout, again: Again) -> None:
    assert "onnx: environment kept from the last run" in again.said
    (log,) = checkout.folder.glob("wheelhouse/store/??/*/build.log")
    compiled = re.findall(r"^\[\d+/\d+\] Building", log.read_text(), re.MULTILINE)
    # Only what was being compiled at the kill is compiled twice.
    assert 25 <= len(compiled) <= again.steps + 2


@pytest.mark.soak
def test_a_build_in_one_go_gives_the_same_wheel(checkout: Checkout, tmp_path: Path) -> None:
    done = checkout.run("--root", str(tmp_path), "all")
    assert done.returncode == 0, done.stdout + done.stderr
    assert digest(tmp_path) == digest(checkout.folder)


@pytest.mark.soak
def test_burn_in_on_a_cpu_says_how_sure_it_is(checkout: Checkout) -> None:
    document = checkout.json("verify", "--burn-in", "--seed", "7")
    burn_in = document["burn_in"]
    assert burn_in["indicative"] is True
    assert burn_in["ci95"][0] <= burn_in["ratio"] <= burn_in["ci95"][1]
    assert {case["case"]["dtype"] for case in burn_in["cases"]} == {"fp32", "bf16"}
    assert "<svg" in Path(burn_in["report"]).read_text()


NO_PROJECTS = {
    "nothing": None,
    "a table": b"[build-system]\nrequires = 'x'\n",
    "no TOML": b"[",
    "no text": b"\xe9",
}


@pytest.mark.parametrize("text", NO_PROJECTS.values(), ids=NO_PROJECTS.keys())
def test_a_source_that_is_no_project_fails_its_stage(text: bytes | None, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "pyproject.toml").write_bytes(text)
    job = cast("Job", SimpleNamespace(source=tmp_path, environment=tmp_path / "env"))
    with pytest.raises(StageError, match="the source is no Python project that can be built: "):
        build_pep517(job, lambda *_: None, {})
