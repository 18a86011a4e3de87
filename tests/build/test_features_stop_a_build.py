"""A feature that CMake drops silently stops the build at its line in the summary, before the compile."""

from __future__ import annotations

import hashlib
import time
from pathlib import Path

import pytest

from tests.conftest import TRAIN, Root, make_root

CMAKELISTS = """
cmake_minimum_required(VERSION 3.20)
project(tiny CXX)
option(USE_CUDNN "" ON)
find_package(NoSuchCudnn QUIET)
if(NOT NoSuchCudnn_FOUND)
  message(WARNING "Cannot find cuDNN library. Turning the option off")
  set(USE_CUDNN {value})
endif()
message(STATUS "  USE_CUDNN             : ${{USE_CUDNN}}")
if({hang})
  execute_process(COMMAND sleep 120)
endif()
add_library(tiny STATIC tiny.cpp)
install(TARGETS tiny ARCHIVE DESTINATION lib)
"""
RECIPE = """\
name = "tiny"
distribution = "tiny"
summary = "a small library"
kind = "cmake"

[build]
requires = ["cmake==3.31.10", "ninja==1.13.2"]
memory_per_job_mib = 100
core_minutes = 0.1
disk_mib = 50

[[features]]
name = "{feature}"
why = "off with a warning"
"""
# A setup.py that prints, like torchvision's, before it would compile.
PYTHON = {
    "pyproject.toml": '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n',
    "setup.py": 'import time\nfrom setuptools import setup\nprint("BUILD_CUDA_SOURCES = False", flush=True)\n'
    'time.sleep(120)\nsetup(name="tiny", version="1.0")\n',
}  # fmt: skip


def project(base: Path, *, value: str, hang: bool, feature: str = "USE_CUDNN") -> Root:
    files = {
        "CMakeLists.txt": CMAKELISTS.format(value=value, hang="ON" if hang else "OFF"),
        "tiny.cpp": "int f() { return 1; }\n",
    }
    root = make_root(base, files)
    root.recipe(RECIPE.format(feature=feature))
    sdist = hashlib.sha256((root.links / "tiny-1.0.tar.gz").read_bytes()).hexdigest()
    root.train(TRAIN.format(sha256=sdist))
    return root


def test_a_dropped_feature_stops_before_the_compile(tmp_path: Path) -> None:
    root = project(tmp_path, value="OFF", hang=True)
    start = time.monotonic()
    done = root.run("build", "tiny")
    assert done.returncode == 7, done.stderr
    assert time.monotonic() - start < 60
    (error,) = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    assert "the build would lack USE_CUDNN: the configure summary says OFF, not ON" in error
    assert "Cannot find cuDNN library. Turning the option off" in error
    (log,) = root.folder.glob("build/tiny/*/build.log")
    assert "ninja -C" not in log.read_text()


def test_a_dropped_feature_of_a_python_project(tmp_path: Path) -> None:
    root = make_root(tmp_path, PYTHON)
    text = (root.folder / "recipes" / "tiny.toml").read_text()
    root.recipe(text + '\n[[features]]\nname = "BUILD_CUDA_SOURCES"\nvalue = "True"\n')
    start = time.monotonic()
    done = root.run("build", "tiny")
    assert done.returncode == 7, done.stderr
    assert time.monotonic() - start < 60
    (error,) = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    assert error.startswith("error: tiny: the build would lack BUILD_CUDA_SOURCES")


@pytest.mark.parametrize(("feature", "warned"), [("USE_CUDNN", False), ("USE_NCCL", True)])
def test_a_feature_that_is_there_or_never_named(tmp_path: Path, feature: str, warned: bool) -> None:
    root = project(tmp_path, value="ON", hang=False, feature=feature)
    done = root.run("build", "tiny", "--no-closure")
    assert done.returncode == 0, done.stderr
    (log,) = root.folder.glob("wheelhouse/store/*/*/build.log")
    assert (f"warning: nothing was printed about the expected feature {feature}" in log.read_text()) is warned
