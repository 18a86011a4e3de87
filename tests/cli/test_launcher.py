"""The launcher for real: most tests on a tiny project with the same launcher, one on this project."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from spark_build.files import sha256_of
from tests.helpers import processes

ROOT = Path(__file__).resolve().parents[2]
LAUNCHER_FILES = ("spark-build", "tools/setup.sh")
# What a connected machine types to prepare a folder for others (the launcher's own header says so).
PREPARE = ("download", "--dest", "DIR", "--require-hashes", "-r", "tools/locks/verify.txt")

BACKEND = ("editables", "hatchling", "packaging", "pathspec", "pluggy", "tomlkit", "trove_classifiers")

TINY_PYPROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "spark-build"
version = "1"
requires-python = ">=3.11"
optional-dependencies = { verify = [], dev = [] }
scripts = { spark-build = "spark_build.main:run" }

[tool.hatch.build]
dev-mode-dirs = ["."]

[tool.hatch.build.targets.wheel]
packages = ["spark_build"]
"""
TINY_MAIN = """\
import json, os, sys


def run():
    seen = {"arguments": sys.argv[1:], "directory": os.getcwd(), "user": os.environ.get("PIP_USER")}
    json.dump(seen, sys.stdout)
    sys.exit(int(os.environ.get("TINY_EXIT", "0")))
"""


def environment(home: Path, wheels: Path, **more: str) -> dict[str, str]:
    """A fresh user without a network, whose only packages are those in `wheels`."""
    leaky = ("PIP_", "SPARK_BUILD_", "PYTHON", "VIRTUAL_ENV", "XDG_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(leaky)}
    home.mkdir(exist_ok=True)
    offline = {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels)}
    return kept | offline | {"HOME": str(home), "SPARK_BUILD_PYTHON": sys.executable, **more}


def copy_of_the_project(target: Path) -> Path:
    """What a commit of everything here would hold."""
    listing = subprocess.run(
        ["git", "-c", "safe.directory=*", "ls-files", "-co", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    ).stdout
    for name in listing.decode().split("\0"):
        if name and (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)
    return target


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = copy_of_the_project(tmp_path_factory.mktemp("project") / "a checkout")
    yield folder
    shutil.rmtree(folder)  # pytest would keep 400 MB of three runs


@pytest.fixture(scope="module")
def all_wheels(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("all-wheels")
    arguments = [str(folder) if word == "DIR" else word for word in PREPARE]
    subprocess.run([sys.executable, "-m", "pip", "-q", *arguments], cwd=project, check=True)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the tiny project is installed with: its build backend."""
    folder = tmp_path_factory.mktemp("wheels")
    lines = (ROOT / PREPARE[-1]).read_text().replace("\\\n", "").splitlines()
    pins = [line.split()[0] for line in lines if line.partition("==")[0].replace("-", "_") in BACKEND]
    assert len(pins) == len(BACKEND)
    download = [sys.executable, "-m", "pip", "-q", "download", "--no-deps", "--dest", str(folder)]
    subprocess.run([*download, *pins], check=True)
    return folder


@pytest.fixture
def user(wheels: Path, tmp_path: Path) -> dict[str, str]:
    return environment(tmp_path / "home", wheels)


def make_tiny(folder: Path) -> Path:
    for name in LAUNCHER_FILES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / name)
    (folder / "pyproject.toml").write_text(TINY_PYPROJECT)
    (folder / "spark_build").mkdir()
    (folder / "spark_build/__init__.py").touch()
    (folder / "spark_build/main.py").write_text(TINY_MAIN)
    return folder


@pytest.fixture
def tiny(tmp_path: Path) -> Iterator[Path]:
    """A checkout nothing was ever started in; its path has a space."""
    folder = make_tiny(tmp_path / "a tiny one")
    yield folder
    shutil.rmtree(folder)


@dataclass(frozen=True)
class Ready:
    """A checkout, and what was said of its first two starts, the second of which came during the first."""

    folder: Path
    first: subprocess.CompletedProcess[str]
    second: subprocess.CompletedProcess[str]


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory, wheels: Path) -> Iterator[Ready]:
    folder = make_tiny(tmp_path_factory.mktemp("ready") / "a ready one")
    env = environment(folder.parent / "home", wheels)
    with ThreadPoolExecutor() as pool:
        first = pool.submit(start, folder, env)
        wait_for((folder / ".venv/setup").exists)
        second = start(folder, env, "second")
        yield Ready(folder=folder, first=first.result(), second=second)
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def ready(started: Ready) -> Path:
    """A checkout that is set up; tests leave it as it is."""
    assert started.first.returncode == 0, started.first.stderr
    assert started.first.stderr == "spark-build: setting up .venv (once, about half a minute)\n"
    return started.folder


def start(
    checkout: Path, env: Mapping[str, str], *arguments: str, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [checkout / "spark-build", *arguments],
        cwd=cwd or checkout,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def wait_for(condition: Callable[[], object], *, seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def test_later_starts_pass_everything_on(ready: Path, user: dict[str, str], tmp_path: Path) -> None:
    made = (ready / ".venv/installed").stat().st_mtime_ns
    arguments = ["two words", "", "*", "--json", "a'b\"c", "$HOME", "line\nbreak"]

    again = start(ready, user | {"TINY_EXIT": "11", "PIP_USER": "mine"}, *arguments, cwd=tmp_path)

    assert again.returncode == 11
    assert again.stderr == ""
    assert json.loads(again.stdout) == {"arguments": arguments, "directory": str(tmp_path), "user": "mine"}
    assert (ready / ".venv/installed").stat().st_mtime_ns == made


def test_is_found_through_links(ready: Path, user: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/spark-build").symlink_to("../second")
    (tmp_path / "second").symlink_to(ready / "spark-build")

    done = start(tmp_path / "bin", user, "x", cwd=Path("/"))

    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.machine
def test_later_starts_are_quick(ready: Path, user: dict[str, str]) -> None:
    def quickest(command: Path) -> float:
        times = []
        for _ in range(20):
            begin = time.perf_counter()
            subprocess.run([command], env=user, stdout=subprocess.DEVNULL, check=True)
            times.append(time.perf_counter() - begin)
        return min(times)

    assert quickest(ready / "spark-build") - quickest(ready / ".venv/bin/spark-build") < 0.03


@pytest.mark.slow  # makes an environment of its own
def test_a_changed_pyproject_updates(tiny: Path, user: dict[str, str]) -> None:
    assert start(tiny, user).returncode == 0
    keep = tiny / ".venv/keep"
    keep.touch()
    with (tiny / "pyproject.toml").open("a") as file:
        file.write("# changed\n")

    failed = start(tiny, user | {"PIP_FIND_LINKS": str(tiny)})
    updated = start(tiny, user)

    assert failed.returncode == 4
    assert updated.returncode == 0
    assert updated.stderr == "spark-build: updating .venv\n"
    assert keep.exists()
    assert start(tiny, user).stderr == ""


@pytest.mark.slow  # makes an environment of its own
def test_a_moved_checkout_is_set_up_again(ready: Path, user: dict[str, str], tmp_path: Path) -> None:
    moved = tmp_path / "moved"
    shutil.copytree(ready, moved, symlinks=True)

    done = start(moved, user)

    assert done.returncode == 0
    assert "setting up" in done.stderr
    assert str(ready) not in (moved / ".venv/bin/spark-build").read_text()


@pytest.mark.slow  # makes an environment of its own
def test_a_vanished_python_is_replaced(ready: Path, user: dict[str, str], tmp_path: Path) -> None:
    other = make_tiny(tmp_path / "other")
    (other / ".venv").mkdir()
    (other / ".venv/setup").write_text(f"{other}\n{sys.executable}\n")
    shutil.copytree(ready / ".venv/bin", other / ".venv/bin", symlinks=True)
    shutil.copy(other / "pyproject.toml", other / ".venv/installed")
    for link in (other / ".venv/bin").glob("python3.*"):
        link.unlink()
        link.symlink_to("/usr/bin/python3.0")

    done = start(other, user)

    assert done.returncode == 0
    assert "setting up" in done.stderr


def test_an_environment_of_someone_else_is_left_alone(tiny: Path, user: dict[str, str]) -> None:
    theirs = tiny / ".venv/pyvenv.cfg"
    theirs.parent.mkdir()
    theirs.write_text("home = /usr/bin\n")

    done = start(tiny, user)

    assert done.returncode == 4
    assert "was not made by spark-build" in done.stderr
    assert [path.name for path in theirs.parent.iterdir()] == ["pyvenv.cfg"]


@pytest.mark.slow  # makes an environment of its own
def test_a_failed_installation_leaves_no_half_environment(tiny: Path, user: dict[str, str]) -> None:
    failed = start(tiny, user | {"PIP_FIND_LINKS": str(tiny / "nothing")})

    lines = failed.stderr.splitlines()
    assert failed.returncode == 4
    assert any("No matching distribution found for hatchling" in line for line in lines)
    assert "then try again" in lines[-1]
    assert {path.name for path in (tiny / ".venv").iterdir()} == {"setup", "install.log"}
    assert start(tiny, user).returncode == 0


def lock_for(tiny: Path, wheels: Path, digest: str = "") -> None:
    """Lock what the tiny project is installed with, the build backend; `digest`: another one for all of it."""
    (tiny / "tools/locks").mkdir(exist_ok=True)
    lines = []
    for path in sorted(wheels.glob("*.whl")):
        name, version = path.name.split("-")[:2]
        if name in BACKEND:
            lines.append(f"{name}=={version} --hash=sha256:{digest or sha256_of(path)}")
    assert len(lines) == len(BACKEND)
    (tiny / "tools/locks/verify.txt").write_text("\n".join(lines) + "\n")


@pytest.mark.slow  # makes environments of its own
def test_only_locked_files_are_installed(tiny: Path, user: dict[str, str], wheels: Path) -> None:
    """Other bytes of the same name and version are refused, unless the user asks for them."""
    lock_for(tiny, wheels, "0" * 64)
    refused = start(tiny, user)
    assert (refused.returncode, "SPARK_BUILD_UNLOCKED=1" in refused.stderr) == (4, True), refused.stderr
    assert "DO NOT MATCH THE HASHES" in (tiny / ".venv/install.log").read_text()
    asked = start(tiny, user | {"SPARK_BUILD_UNLOCKED": "1"})
    assert asked.returncode == 0, asked.stderr
    assert start(tiny, user).stderr == ""
    lock_for(tiny, wheels)
    updated = start(tiny, user)
    assert (updated.returncode, updated.stderr) == (0, "spark-build: updating .venv\n")
    assert start(tiny, user).stderr == ""


@pytest.mark.slow  # makes an environment of its own
def test_a_killed_installation_is_repaired(tiny: Path, user: dict[str, str]) -> None:
    first = processes.start(
        [tiny / "spark-build"],
        env=user,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    wait_for((tiny / ".venv/installing").exists)
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    assert not (tiny / ".venv/installed").exists()

    repaired = start(tiny, user, "on it goes")

    assert repaired.returncode == 0, repaired.stderr
    assert json.loads(repaired.stdout)["arguments"] == ["on it goes"]
    assert start(tiny, user).stderr == ""


def test_of_two_at_once_one_waits(started: Ready) -> None:
    first, second = started.first, started.second
    assert (first.returncode, second.returncode) == (0, 0)
    assert "setting up" in first.stderr
    assert second.stderr == "spark-build: another start is setting up .venv: waiting for it\n"
    assert json.loads(second.stdout)["arguments"] == ["second"]


@pytest.mark.parametrize("python", ["/no/such/python", "false"])
def test_a_wrong_python_is_refused(tiny: Path, user: dict[str, str], python: str) -> None:
    done = start(tiny, user | {"SPARK_BUILD_PYTHON": python})

    assert done.returncode == 4
    assert done.stderr.splitlines() == [
        f"spark-build: SPARK_BUILD_PYTHON={python} is no Python 3.11 or newer: correct it or unset it"
    ]
    assert not (tiny / ".venv").exists()


def install_packages(tmp_path: Path, *, user_id: int, apt: str, sudo: str = "exit 1") -> tuple[int, str, str]:
    """Exit code, stderr and the apt-get calls of install_packages on a machine that is made up."""
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    scripts = {"id": f"echo {user_id}", "sudo": sudo, "apt-get": f'echo "$@" >>{tmp_path}/calls; {apt}'}
    for name, body in scripts.items():
        (bin_ / name).write_text(f"#!/bin/sh\n{body}\n")
        (bin_ / name).chmod(0o755)
    script = f"here={tmp_path}; . {ROOT}/tools/setup.sh; install_packages python3.11-venv g++"
    done = subprocess.run(
        ["sh", "-euc", script],
        env={"PATH": f"{bin_}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    calls = tmp_path / "calls"
    return done.returncode, done.stderr, calls.read_text() if calls.exists() else ""


def test_without_rights_the_line_to_type_is_shown(tmp_path: Path) -> None:
    code, said, calls = install_packages(tmp_path, user_id=1000, apt="exit 0")

    assert code == 4
    assert said.splitlines()[-1] == "sudo apt-get update && sudo apt-get install -y python3.11-venv g++"
    assert calls == ""


def test_sudo_that_asks_nothing_is_used(tmp_path: Path) -> None:
    run_it = 'shift; exec "$@"'  # sudo -n COMMAND
    code, _, calls = install_packages(tmp_path, user_id=1000, apt="exit 0", sudo=run_it)

    assert code == 0
    assert calls.endswith("install python3.11-venv g++\n")


def test_missing_package_lists_are_fetched(tmp_path: Path) -> None:
    no_lists_yet = f'case "$*" in *update) touch {tmp_path}/lists ;; *) [ -e {tmp_path}/lists ] ;; esac'
    code, said, calls = install_packages(tmp_path, user_id=0, apt=no_lists_yet)

    assert code == 0
    assert said == "spark-build: installing system packages: python3.11-venv g++\n"
    assert [line.split()[-1] for line in calls.splitlines()] == ["g++", "update", "g++"]


def test_apt_that_fails_is_quoted(tmp_path: Path) -> None:
    code, said, _ = install_packages(tmp_path, user_id=0, apt="echo E: no space; exit 100")

    assert code == 4
    assert "E: no space" in said
    assert "mend what it says above" in said.splitlines()[-1]


@pytest.mark.slow
def test_this_project_starts_offline_from_a_prepared_folder(
    project: Path, all_wheels: Path, tmp_path: Path
) -> None:
    user = environment(tmp_path / "home", all_wheels)
    first = start(project, user, "--help")
    again = start(project, user, "--help")
    wrong = start(project, user, "no-such-command")

    assert first.returncode == 0, first.stderr
    assert first.stderr == "spark-build: setting up .venv (once, about half a minute)\n"
    assert first.stdout.startswith("Usage: ")
    assert (again.returncode, again.stdout, again.stderr) == (0, first.stdout, "")
    assert wrong.returncode == 2


def test_the_launcher_says_how_to_prepare_a_folder() -> None:
    assert " ".join(PREPARE[1:]) in (ROOT / "spark-build").read_text()
