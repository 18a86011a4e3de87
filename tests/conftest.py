"""What the tests share: a small project of our own that goes through the whole journey in seconds."""

from __future__ import annotations

import functools
import gc
import hashlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from hypothesis import HealthCheck, settings

from spark_build.measure.arms import baseline_arm
from spark_build.measure.model import Arm
from spark_build.paths import Home
from spark_build.recipes.evaluation import NINJA
from tests.helpers import commands, processes, small_setuptools
from tests.helpers.commands import invoke

# readline, which pytest imports, tells its children a width: tests say theirs.
for _name in ("COLUMNS", "LINES"):
    os.environ.pop(_name, None)

# Builds of one test would get what the other tests leave: as good as nothing on two processors.
os.environ["SPARK_BUILD_NICE"] = "0"

ROOT = Path(__file__).resolve().parents[1]
# Started in the background of a script, the suite would hand SIGINT on as ignored to all that it starts.
signal.signal(signal.SIGINT, signal.default_int_handler)

# pip asks rustc for its version whenever it starts, and rustup's takes a tenth of a second to say it.
os.environ["PATH"] = os.pathsep.join(
    folder for folder in os.environ["PATH"].split(os.pathsep) if not folder.endswith("/.cargo/bin")
)

# A loaded machine makes no example wrong.
settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")

CLI = commands.CLI
SETUP = """
from setuptools import Extension, setup
setup(name="tiny", version="1.0", packages=["tiny"], ext_modules=[Extension("tiny._native", ["native.c"])])
"""
NATIVE = """
#include <Python.h>
static PyObject *answer(PyObject *self, PyObject *args) { return PyLong_FromLong(42); }
static PyMethodDef methods[] = {{"answer", answer, METH_NOARGS, ""}, {NULL, NULL, 0, NULL}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_native", "", -1, methods};
PyMODINIT_FUNC PyInit__native(void) { return PyModule_Create(&module); }
"""
# Built by setuptools itself, which has to be installed first and takes its time.
SETUPTOOLS = {
    "pyproject.toml": '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n',
    "setup.py": SETUP,
    "native.c": NATIVE,
    "tiny/__init__.py": "from tiny._native import answer\n",
}
PROJECT = {
    **SETUPTOOLS,
    "pyproject.toml": '[build-system]\nrequires = []\nbuild-backend = "setuptools"\nbackend-path = ["."]\n',
    "setuptools.py": Path(small_setuptools.__file__).read_text(),
}
RECIPE = """\
name = "tiny"
distribution = "tiny"
summary = "a small extension module"
kind = "pep517"

[build]
requires = []
memory_per_job_mib = 100
core_minutes = 0.1
disk_mib = {disk}
"""
SETUPTOOLS_PINS = ("setuptools==80.9.0", "wheel==0.45.1")
# What the small recipes of the tests are built with.
PINS = (NINJA, *SETUPTOOLS_PINS, "cmake==3.31.10", "scons==4.11.1")
SETUPTOOLS_RECIPE = RECIPE.replace("requires = []", f"requires = {json.dumps(SETUPTOOLS_PINS)}")
TRAIN = """\
name = "t"
summary = "a train for tests"

[components.tiny]
version = "1.0"
sources = [{{ kind = "sdist", project = "tiny", filename = "tiny-1.0.tar.gz", sha256 = "{sha256}" }}]
"""


def make_sdist(folder: Path, files: Mapping[str, str]) -> Path:
    """tiny-1.0.tar.gz with these files, the same bytes every time."""
    path = folder / "tiny-1.0.tar.gz"
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as tar:
        for name, text in files.items():
            member = tarfile.TarInfo(f"tiny-1.0/{name}")
            member.size, member.mtime = len(text.encode()), 1_700_000_000
            tar.addfile(member, io.BytesIO(text.encode()))
    return path


@dataclass(frozen=True, kw_only=True)
class Root:
    """A folder for --root with the recipe `tiny` in train `t`."""

    folder: Path
    links: Path  # where pip finds the sdist
    env: dict[str, str] = field(default_factory=dict)
    shared: bool = False  # with other tests and workers: nothing in it may be changed

    def command(self, *arguments: str) -> list[str]:
        """The command line, for this root, train and target."""
        return [*CLI, "--root", str(self.folder), "--train", "t", "--target", "host-cpu", *arguments]

    @property
    def line(self) -> str:
        """How hints begin that were asked for with this root, train and target."""
        return f"spark-build --root {self.folder} --target host-cpu --train t"

    def environment(self) -> dict[str, str]:
        """This process's environment, with our sdist to be found by pip."""
        found = (self.links, *build_wheels(), os.environ.get("PIP_FIND_LINKS", ""))
        links = " ".join(map(str, found)).strip()
        return {**os.environ, "PIP_FIND_LINKS": links, **self.env}

    def run(self, *arguments: str, process: bool = False) -> subprocess.CompletedProcess[str]:
        """Run the command line to its end: in this process unless `process` asks for one of its own."""
        return invoke(self.command(*arguments), env=self.environment(), process=process)

    def json(self, *arguments: str) -> Any:
        """Run with --json: stdout must be one JSON document."""
        done = self.run("--json", *arguments)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def state(self) -> set[str]:
        """Every file and link below the root that a command may have made; folders stay for the next one.

        What lies in the trash is left out: a process of its own deletes it, at a time of its own.
        """
        found: set[str] = set()
        for base, folders, files in os.walk(self.folder):
            folders[:] = [one for one in folders if Path(base, one) != self.folder / "build" / ".trash"]
            links = [one for one in folders if Path(base, one).is_symlink()]
            found.update(str(Path(base, one).relative_to(self.folder)) for one in (*files, *links))
        return found

    def copy(self, folder: Path) -> Root:
        """A copy of this root that is the test's own."""
        # A process in the background may be deleting what lies in the trash.
        shutil.copytree(self.folder, folder, symlinks=True, ignore=shutil.ignore_patterns(".trash"))
        return replace(self, folder=folder, shared=False)

    def recipe(self, text: str) -> None:
        """Replace the recipe."""
        assert not self.shared, "other workers read this root: change a copy"
        (self.folder / "recipes" / "tiny.toml").write_text(text)

    def train(self, text: str) -> None:
        """Replace the train."""
        assert not self.shared, "other workers read this root: change a copy"
        (self.folder / "recipes" / "trains" / "t.toml").write_text(text)


def make_root(base: Path, files: Mapping[str, str] = PROJECT, *, disk: int = 50) -> Root:
    """A root in `base`/root, its sdist in `base`/links."""
    sdist = make_sdist(base / "links", files)
    root = Root(folder=base / "root", links=base / "links")
    (root.folder / "recipes" / "trains").mkdir(parents=True)
    root.recipe((RECIPE if "setuptools.py" in files else SETUPTOOLS_RECIPE).format(disk=disk))
    root.train(TRAIN.format(sha256=hashlib.sha256(sdist.read_bytes()).hexdigest()))
    return root


_shared: list[Path] = []  # the folder of the whole run


@functools.cache
def build_wheels() -> tuple[Path, ...]:
    """A folder with the wheels of PINS, downloaded once: else each root would ask pip for them, half a second."""
    if not _shared:
        return ()
    folder = _shared[0] / "build-wheels"
    with first(folder) as mine:
        if mine:
            command = [sys.executable, "-m", "pip", "--quiet", "download", "--no-deps", "--only-binary=:all:"]
            folder.mkdir(exist_ok=True)
            subprocess.run([*command, "--dest", str(folder), *PINS], check=False)  # only saves time
    return (folder,)


@pytest.fixture(scope="session", autouse=True)
def shared_folder(common: Path) -> None:
    _shared.append(common)


@pytest.fixture(autouse=True)
def no_process_outlives_its_test() -> Iterator[None]:
    yield
    processes.end_all()


@pytest.fixture
def root(tmp_path: Path) -> Root:
    """A fresh root; nothing was built in it."""
    return make_root(tmp_path)


@pytest.fixture
def setuptools_root(tmp_path: Path) -> Root:
    """A fresh root whose recipe is built by setuptools, which it pins."""
    return make_root(tmp_path, SETUPTOOLS)


@pytest.fixture(scope="session")
def common(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The temporary folder of the whole run, whatever number of workers it has."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@contextmanager
def first(folder: Path) -> Iterator[bool]:
    """True for the one worker that must fill `folder`; the others wait until that is done."""
    with FileLock(f"{folder}.lock"):
        done = folder.with_name(f"{folder.name}.done")
        yield not done.exists()
        done.touch()


@pytest.fixture(scope="session")
def built(common: Path) -> Root:
    """A root in which `all` has run. Tests must leave it as it is."""
    base = common / "built"
    with first(base) as mine:
        if mine:
            done = make_root(base, SETUPTOOLS).run("all")
            assert done.returncode == 0, done.stdout + done.stderr
        return Root(folder=base / "root", links=base / "links", shared=True)


@pytest.fixture(scope="session")
def torch_home(common: Path) -> Home:
    """Folders in which the public torch for processors is installed once, for both parts of a run."""
    state = Path(os.environ.get("TESTS_SHARED", common)) / "torch"
    return Home(
        data=(ROOT,),
        wheelhouse=state / "wheelhouse",
        build=state / "build",
        sources=state / "sources",
        runs=state / "runs",
        cache=state / "cache",
    )


@pytest.fixture(scope="session")
def baseline(torch_home: Home) -> Arm:
    """A real torch for processors. Tests must leave it as it is."""
    torch_home.build.mkdir(parents=True, exist_ok=True)
    with FileLock(torch_home.build / "tests.lock"):
        return baseline_arm(torch_home, "2.13", torch_home.build / "baseline", lambda _: None)


LONGER = {"slow": 1800, "torch": 1800, "network": 900, "machine": 600, "soak": 3600}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what uses the public torch, and give what is marked as long more time than the others."""
    for item in items:
        if "baseline" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.torch)
        names = {mark.name for mark in item.iter_markers()}
        if names & LONGER.keys() and "timeout" not in names:
            item.add_marker(pytest.mark.timeout(max(LONGER[name] for name in names & LONGER.keys())))
    # Files that take long come first: at the end one worker would be busy with them and the others idle.
    long = {item.path for item in items for name in LONGER if item.get_closest_marker(name)}
    items.sort(key=lambda item: item.path not in long)


def pytest_collection_finish() -> None:
    # A million objects that stay: the collector need not look at them again and again.
    gc.freeze()


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say at the end of the second part of a run (see run-tests) what came of its first."""
    shared = os.environ.get("TESTS_SHARED", "")
    if not shared or "PYTEST_XDIST_WORKER" in os.environ:
        return
    path, stats = Path(shared, "first-part"), terminalreporter.stats
    if path.exists():
        terminalreporter.section("the part before, side by side")
        terminalreporter.write(path.read_text())
        return
    counts = [f"{len(stats[name])} {name}" for name in sorted(stats) if name and name != "warnings"]
    bad = [f"{name.upper()} {one.nodeid}" for name in ("failed", "error") for one in stats.get(name, [])]
    path.write_text("\n".join([", ".join(counts), *bad, ""]))
