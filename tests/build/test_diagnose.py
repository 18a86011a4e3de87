"""Diagnoses of logs that real tools printed; tests/data/logs/README.md says how they were made."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_build.build.diagnosis import diagnose, last_command
from spark_build.build.diagnosis_table import PROBLEMS
from tests.helpers.commands import hint_text

LOGS = Path(__file__).parent.parent / "data" / "logs"
# log: (problem, place, part of the first error)
EXPECTED = {
    "abi-mismatch": ("abi-mismatch", "", "undefined reference to `take(std::__cxx11"),
    "architecture-guessed": ("architecture-guessed", "", "'compute_20'"),
    "backend-missing": ("no-module", "", "'scikit_build_core'"),
    "cache-of-another-folder": ("cmake-moved", "", "is different than the directory"),
    "certificate-git": ("certificate", "", "server certificate verification failed"),
    "certificate-pip": ("certificate", "", "confirming the ssl certificate"),
    "certificate-python": ("certificate", "", "self-signed certificate"),
    "chained-traceback": ("", "/build/a.py:2", "No such file or directory: 'first-cause'"),
    "cmake-4": ("cmake-4", "CMakeLists.txt:1", "Compatibility with CMake < 3.5"),
    "cmake-too-old": ("cmake-too-old", "CMakeLists.txt:1", "CMake 3.27 or higher"),
    "cmake-wrapper": ("cmake-wrapper", "", "'cmake'"),
    "cuda-header": ("cuda-header", "/build/a.cpp:1", "cudnn.h: No such file"),
    "cuda-mismatch": ("cuda-mismatch", "/build/setup.py:3", "'11.8', '13.0'"),
    "cuda-mismatch-deepspeed": ("cuda-mismatch", "/build/op_builder/builder.py:126", "CUDA version 13.2"),
    "cxx20": ("cxx-standard", "all.h:2", "#error C++20"),
    "deepspeed-operator": ("deepspeed-operator", "/build/setup.py:55", "async_io is asked for"),
    "disk-full": ("disk-full", "", "No space left on device"),
    "download-cmake": ("download-refused", "CMakeLists.txt:3", "file DOWNLOAD HASH mismatch"),
    "download-cmake-status": ("download-refused", "CMakeLists.txt:6", "Failed to download x.tar.gz"),
    "download-curl": ("download-refused", "", "Could not resolve host: example.invalid"),
    "download-git": ("download-refused", "", "Could not resolve host: example.invalid"),
    "download-git-ssh": ("download-refused", "", "Could not resolve hostname example.invalid"),
    "download-pip": ("download-refused", "", "No matching distribution found for numpy==2.3.5"),
    "download-requests": ("download-refused", "", "Failed to resolve 'example.invalid'"),
    "download-wget": ("download-refused", "", "unable to resolve host address"),
    "download-in-setup": ("download-refused", "", "Temporary failure in name resolution"),
    "fetchcontent-git-offline": ("download-refused", ".cmake:55", "Failed to clone repository"),
    "fetchcontent-offline": ("download-refused", "download-absl-populate.cmake:163", "Each download failed"),
    "six-offline": ("", "third_party/protobuf/cmake/libprotobuf.cmake:115", "Cannot find source file"),
    "foreign-library": ("foreign-library", "", "liba64.so: error adding symbols"),
    "gpu-memory": ("gpu-memory", "", "CUDA out of memory"),
    "hash-mismatch": ("hash-mismatch", "", "DO NOT MATCH"),
    "header-missing": ("header-missing", "/build/a.cpp:1", "hwloc.h: No such file"),
    "host-compiler-too-new": ("host-compiler-too-new", "host_config.h:137", "unsupported GNU version"),
    "jobserver-old-make": ("jobserver-old-make", "", "--jobserver-auth"),
    "killed-gcc": ("out-of-memory", "", "cc1plus"),
    "killed-nvcc": ("out-of-memory", "", "Killed"),
    "killed-nvcc-thread": ("out-of-memory", "", "'cicc' died"),
    "libcuda-import": ("libcuda-import", "", "libcuda.so.1"),
    "libcuda-link": ("libcuda-link", "", "cannot find -lcuda"),
    "library-missing": ("library-missing", "", "cannot find -lcusparseLt"),
    "library-not-loadable": ("library-not-loadable", "", "libcudnn.so.9"),
    "libstdcxx-too-old": ("libstdcxx-too-old", "", "GLIBCXX_3.4.99"),
    "make-missing-input": ("file-missing", "", "No rule to make target 'gone.o'"),
    "missing-commit": ("missing-revision", "", "not our ref"),
    "missing-tag": ("missing-revision", "", "Remote branch v9 not found"),
    "mma-needs-a": ("architecture-needs-a", "c.ptx:5", "not supported on .target 'sm_121'"),
    "moved-tag": ("moved-tag", "", "would clobber existing tag"),
    "ninja-missing-input": ("file-missing", "", "'gone.c', needed by 'out'"),
    "no-compiler": ("no-compiler", "CMakeLists.txt:2", "No CMAKE_CXX_COMPILER could be found"),
    "no-distribution": ("no-distribution", "", "nvidia-cusparselt-cu13==0.8.99"),
    "no-kernel-image": ("architecture-dropped", "", "no kernel image is available"),
    "no-module": ("no-module", "/build/setup.py:1", "'numpy'"),
    "no-ninja": ("no-ninja", "", 'corresponding to "Ninja"'),
    "no-nvcc": ("no-cuda-compiler", "CMakeDetermineCUDACompiler.cmake:603", "Failed to detect"),
    "no-torch": ("no-torch", "", "No module named 'torch'"),
    "no-version": ("no-version", "", "unable to detect version"),
    "not-a-repository": ("not-a-repository", "", "not a git repository"),
    "out-of-memory-nvcc": ("out-of-memory", "", "catastrophic error"),
    "package-config-missing": ("package-missing", "CMakeLists.txt:3", 'provided by "pybind11"'),
    "package-missing": ("package-missing", "FindPackageHandleStandardArgs.cmake:230", "Could NOT find Protobuf"),
    "pkg-resources": ("pkg-resources", "/build/setup.py:1", "'pkg_resources'"),
    "plain-error": ("", "/build/a.cpp:2", "was not declared in this scope"),
    "plain-error-make": ("", "/build/a.cpp:2", "was not declared in this scope"),
    "plain-error-nvcc": ("", "k.cu:1", 'identifier "missing_name" is undefined'),
    "plain-error-setuptools": ("", "native.c:1", "undeclared (first use in this function)"),
    "protobuf-headers": ("protobuf-headers", "a.pb.h:12", "generated by a newer version of protoc"),
    "protobuf-runtime": ("protobuf-runtime", "oldpb/google/protobuf/runtime_version.py:50", "Gencode/Runtime"),
    "ptx-version": ("ptx-too-new", "b.ptx:1", "Unsupported .version 9.9"),
    "ptxas-too-old": ("ptxas-too-old", "", "Value 'sm_129a' is not defined"),
    "python-header-missing": ("python-headers", "native.c:1", "Python.h"),
    "static-not-pic": ("static-not-pic", "", "relocation R_X86_64_32S"),
    "submodule-missing": ("submodule-missing", "CMakeLists.txt:3", "does not contain a CMakeLists.txt"),
    "submodule-unreachable": ("submodule-unreachable", "", "Failed to connect"),
    "torch-abi": ("torch-abi", "", "_ZN3c106Tensor4sizeEl"),
    "torch-without-cuda": ("torch-without-cuda", "CUDAMacros.h:9", "cuda_cmake_macros.h"),
    "torch-with-cuda": ("torch-with-cuda", "Caffe2Config.cmake:90", "Caffe2 version uses CUDA"),
    "torch-cxx-standard": ("cxx-standard", "torch/all.h:5", "C++17 or later"),
    "truncated-object": ("truncated-object", "", "cut.o: file too short"),
    "undefined-reference": ("undefined-reference", "", "undefined reference to `nothing()'"),
    "unknown-arch-in-list": ("architecture-list", "/build/setup.py:3", "Unknown CUDA arch (12.1f)"),
    "unsupported-architecture": ("architecture-unknown", "", "'compute_122a'"),
    "unsupported-architecture-option": ("architecture-unknown", "", "'sm_999'"),
    "wheel-of-another-platform": ("wrong-wheel", "", "is not a supported wheel"),
}  # fmt: skip


def read(name: str) -> str:
    return (LOGS / f"{name}.log").read_text()


@pytest.mark.parametrize("name", EXPECTED)
def test_a_real_log(name: str) -> None:
    problem, place, error = EXPECTED[name]
    found = diagnose(read(name))
    assert found is not None
    assert found.finding.rule == problem
    assert error in found.finding.message
    assert str(found.finding.place).endswith(place)
    assert bool(str(found.finding.place)) == bool(place)
    assert bool(found.explanation) == bool(found.finding.hint) == bool(problem)
    assert "{" not in found.explanation + re.sub(
        r"\{(arch_list:torch|version|extra:NAME)\}", "", hint_text(found.finding.hint)
    )


def test_every_log_and_every_problem_is_tested() -> None:
    assert {path.stem for path in LOGS.glob("*.log")} == set(EXPECTED)
    assert {problem for problem, _, _ in EXPECTED.values()} - {""} == {one.name for one in PROBLEMS}
    assert len({one.name for one in PROBLEMS}) == len(PROBLEMS)


@pytest.mark.parametrize("name", EXPECTED)
def test_after_a_successful_build_of_other_things(name: str) -> None:
    warned = "a.cpp:3:4: warning: unused\n-- Could NOT find Git\nCMake Warning at a.txt:1 (message):\n  odd\n"
    before = f"$ cmake\n{warned}$ ninja\n[1/2] Building a.o\n"
    assert diagnose(last_command(before + read(name))) == diagnose(read(name))
    assert diagnose(before + read(name)) == diagnose(read(name))


def test_colours_do_not_hide_an_error() -> None:
    coloured = "\x1b[01m\x1b[Ka.cpp:2:10:\x1b[m\x1b[K \x1b[01;31m\x1b[Kerror: \x1b[m\x1b[Kno such thing\n"
    found = diagnose(coloured)
    assert found is not None
    assert (str(found.finding.place), found.finding.message) == ("a.cpp:2", "no such thing")


def test_an_error_on_purpose_before_the_failure_is_not_the_first() -> None:
    probe = "conftest.c:1:10: error: probing for a function\n"
    found = diagnose(probe + read("plain-error"))
    assert found is not None
    assert str(found.finding.place) == "/build/a.cpp:2"


def test_memory_explains_what_came_before() -> None:
    found = diagnose(read("plain-error") + read("killed-gcc"))
    assert found is not None
    assert found.finding.rule == "out-of-memory"


@pytest.mark.parametrize(
    "log", ["", "$ true\n", "$ ninja\n[1/1] Linking a\n", "a.c:1:2: warning: error: no\n"]
)
def test_nothing_failed(log: str) -> None:
    assert diagnose(log) is None


@given(st.text())
def test_any_text_is_survived(log: str) -> None:
    diagnose(log)


@pytest.mark.parametrize(
    "line",
    [
        "A" * 1_000_000,
        "a.py:1: error: " + "lib" * 300_000,
        "a.py:1: error: " + "lib." * 300_000,
        "CMake Error at " + "a:1 () in " * 100_000,
        "CMake Error at " + ":1 (" * 100_000 + ")" * 100_000,
        "a.c:1: error: " + "#error " * 100_000 + "C++1 " * 100_000,
        "a.c:1: error: " + "detected CUDA version " * 100_000,
    ],
    ids=lambda line: line[:20],
)
def test_a_line_without_end_does_not_hold_us_up(line: str) -> None:
    """Each would take hours where a pattern tries every beginning with every end."""
    assert diagnose(f"$ make\na.c:1: error: foo\n{line}\n") is not None
    diagnose(f"$ make\n{line}\n")


def test_last_command() -> None:
    assert last_command("$ a\nx\n$ b\ny $ z\n") == "$ b\ny $ z\n"
    assert last_command("no command") == "no command"


def test_a_download_that_failed_on_purpose_is_not_what_failed() -> None:
    """As in flash-attention's setup.py, which goes on without the prebuilt wheel."""
    tried = "curl: (6) Could not resolve host: example.invalid\nwget: unable to resolve host address 'x'\n"
    for name in ("plain-error", "no-module", "no-distribution", "not-a-repository"):
        assert diagnose(tried + read(name)) == diagnose(read(name)), name


def test_what_was_downloaded_in_vain_says_what_to_do() -> None:
    found = diagnose(read("download-curl"))
    assert found is not None
    assert "may use the network only where its recipe allows it" in found.explanation
    for way in (
        "{extra:NAME}",
        "FLASH_ATTENTION_FORCE_BUILD=TRUE",
        "network = true under [build] in the recipe",
    ):
        assert way in hint_text(found.finding.hint)
