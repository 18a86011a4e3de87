"""The shipped recipes of torch, torchvision and torchaudio without CUDA."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from spark_build.build.diagnosis import FeatureWatch
from spark_build.errors import UsageError
from spark_build.recipes.evaluation import evaluate, for_target
from spark_build.recipes.loader import Catalogue, load
from spark_build.recipes.model import Evaluated, Target
from tests.helpers.linting import SHIPPED, lint_texts

ROOT = Path(__file__).resolve().parents[2]
CPU = Target(name="host-cpu", summary="s", platform="linux-x86_64", python="cp313")
NAMES = ("torch", "torchvision", "torchaudio")
TRAINS = ("2.9", "2.11", "2.13", "2.15")
# What torch 2.6.0 printed at the end of its configure step: OpenBLAS, no CUDA, distributed switched off.
SUMMARY = """\
--   BUILD_TEST            : False
--   USE_BLAS              : 1
--     BLAS                : open
--     BLAS_HAS_SBGEMM     :
--   USE_LAPACK            : 1
--     LAPACK              : open
--   USE_CUDA              : OFF
--   USE_EIGEN_FOR_BLAS    :
--   USE_MKL               :
--   USE_MKLDNN            : OFF
--   USE_NCCL              : OFF
--   USE_DISTRIBUTED       : OFF
"""


# The same lines of a build with CUDA on Arm: names and form as in summaries that were published of 2.6 and 2.7 with
# CUDA; NVSHMEM as caffe2/CMakeLists.txt prints it, before the summary.
CUDA_SUMMARY = """\
-- NVSHMEM_HOST_LIB:  '/toolkit/lib/libnvshmem_host.so'
-- NVSHMEM_DEVICE_LIB:  '/toolkit/lib/libnvshmem_device.a'
-- NVSHMEM_INCLUDE_DIR:  '/toolkit/include'
--   USE_BLAS              : 1
--     BLAS                : open
--   USE_LAPACK            : 1
--   USE_CUDA              : ON
--     USE_CUDNN           : ON
--     USE_CUSPARSELT      : ON
--     USE_CUDSS           : OFF
--     USE_CUFILE          : ON
--     USE_FLASH_ATTENTION : ON
--     USE_MEM_EFF_ATTENTION : ON
--   USE_EIGEN_FOR_BLAS    :
--   USE_MKLDNN            : ON
--   USE_MKLDNN_ACL        : ON
--   USE_NCCL              : ON
--     USE_SYSTEM_NCCL     : 1
--   USE_DISTRIBUTED       : ON
"""


@cache
def shipped() -> Catalogue:
    return load([ROOT])


def evaluated(name: str, train: str, target: Target = CPU, catalogue: Catalogue | None = None) -> Evaluated:
    pinned = shipped().trains[train]
    recipe = (catalogue or shipped()).recipe(name)
    return evaluate(recipe, pinned.components[name], target, pinned)


@pytest.mark.parametrize("train", TRAINS)
@pytest.mark.parametrize("name", NAMES)
def test_cuda_is_asked_for_only_where_there_is_cuda(name: str, train: str) -> None:
    here, there = evaluated(name, train), evaluated(name, train, shipped().target("gb10"))
    switches = {"USE_CUDA", "FORCE_CUDA"}
    said = {variable: one.value for variable, one in here.env.items()}
    assert {said[one] for one in switches & said.keys()} <= {"OFF", "0"}
    assert not [
        one
        for one in said
        if any(word in one for word in ("CUDA", "CU", "NCCL", "NVJPEG")) and one not in switches
    ]
    assert "TORCH_CUDA_ARCH_LIST" in there.env
    assert switches & there.env.keys()
    assert not [one for one in (*here.apt, *here.dnf) if "cu" in one or "nccl" in one]


def test_torch_without_cuda_is_for_who_names_it() -> None:
    train = shipped().trains["2.13"]
    for name in NAMES:
        here = for_target(shipped().recipe(name), CPU, train)
        there = for_target(shipped().recipe(name), shipped().target("gb10"), train)
        assert (here.default, here.requires.cuda) == (False, False)
        assert (there.default, there.requires.cuda) == (True, True)
    torch = for_target(shipped().recipe("torch"), CPU, train)
    assert torch.needs == ()
    assert (torch.build.disk_mib, torch.build.memory_per_job_mib) == (8192, 1600)


def test_the_features_are_those_of_a_real_configure_summary() -> None:
    features = [one for one in evaluated("torch", "2.13").features if one.name != "USE_DISTRIBUTED"]
    watch = FeatureWatch(features)
    assert [watch.see(line) for line in SUMMARY.splitlines()] == [None] * len(SUMMARY.splitlines())
    assert watch.unseen() == ()


def test_with_cuda_every_feature_has_its_line() -> None:
    watch = FeatureWatch(evaluated("torch", "2.13", shipped().target("gb10")).features)
    lines = CUDA_SUMMARY.splitlines()
    assert [watch.see(line) for line in lines] == [None] * len(lines)
    assert watch.unseen() == ()


@pytest.mark.parametrize(
    ("printed", "instead"),
    [
        ("'/toolkit/lib/libnvshmem_device.a'", "'NVSHMEM_DEVICE_LIB-NOTFOUND'"),
        ("USE_CUSPARSELT      : ON", "USE_CUSPARSELT      : OFF"),
        ("USE_MKLDNN_ACL        : ON", "USE_MKLDNN_ACL        : OFF"),
    ],
)
def test_a_library_of_cudas_that_was_not_found_ends_the_build(printed: str, instead: str) -> None:
    watch = FeatureWatch(evaluated("torch", "2.13", shipped().target("gb10")).features)
    text = CUDA_SUMMARY.replace(printed, instead)
    assert len([one for one in map(watch.see, text.splitlines()) if one]) == 1


@pytest.mark.parametrize(
    ("printed", "instead"),
    [
        ("USE_BLAS              : 1", "USE_BLAS              : 0"),
        ("    BLAS                : open", "    BLAS                : generic"),
        ("USE_LAPACK            : 1", "USE_LAPACK            : 0"),
        ("USE_EIGEN_FOR_BLAS    :", "USE_EIGEN_FOR_BLAS    : ON"),
    ],
)
def test_a_blas_that_got_lost_ends_the_build(printed: str, instead: str) -> None:
    watch = FeatureWatch(evaluated("torch", "2.13").features)
    text = SUMMARY.replace("USE_DISTRIBUTED       : OFF", "").replace(printed, instead)
    missing = [one for one in map(watch.see, text.splitlines()) if one]
    assert [one.place.subject for one in missing] == [printed.split(maxsplit=1)[0]]


def test_blas_and_architecture_are_options() -> None:
    plain = evaluated("torch", "2.13")
    assert (plain.env["BLAS"].value, plain.compile_flags) == ("OpenBLAS", ())
    assert "libopenblas-dev" in plain.apt
    chosen = shipped().with_options({("torch", "blas"): "MKL", ("torch", "march"): "x86-64-v3"})
    other = evaluated("torch", "2.13", catalogue=chosen)
    assert (other.env["BLAS"].value, other.compile_flags) == ("MKL", ("-march=x86-64-v3",))
    assert "libopenblas-dev" not in other.apt
    assert [one.value for one in other.features if one.name == "BLAS"] == ["mkl"]


@pytest.mark.parametrize(
    ("choice", "value", "expected"),
    [
        (("torch", "blass"), "MKL", "torch has no option 'blass'"),
        (("torch", "blas"), "Eigen", "choose one of OpenBLAS, MKL, NVPL"),
        (("torch", "march"), "native", "choose one of '' \\(empty\\), x86-64-v2"),  # one key, two results
        (("torhc", "blas"), "MKL", "no recipe is named 'torhc': did you mean 'torch'"),
    ],
)
def test_a_choice_that_there_is_not(choice: tuple[str, str], value: str, expected: str) -> None:
    with pytest.raises(UsageError, match=expected):
        shipped().with_options({choice: value})


def test_lint_asks_for_architectures_only_of_what_is_for_cuda() -> None:
    """A recipe of one's own for the CPU alone is sound; one for CUDA without a list is not."""
    text = 'name = "torch"\ndistribution = "torch"\nsummary = "s"\nkind = "pep517"\nbuild = {}\n'
    train = 'name = "1"\nsummary = "s"\ndefault = true\n[components.torch]\nversion = "2.13.0"\n'
    train += 'sources = []\nunestablished = ["its source"]\n'
    targets = {file: said for file, said in SHIPPED.items() if file.startswith("recipes/targets/")}
    for requires, wanted in (("", 0), ("[requires]\ncuda = true\n", 1)):
        files = {**targets, "recipes/torch.toml": text + requires, "recipes/trains/1.toml": train}
        said = [one.message for one in lint_texts(files) if one.severity == "error"]
        assert len([one for one in said if one.startswith("TORCH_CUDA_ARCH_LIST is not set")]) == wanted, said
