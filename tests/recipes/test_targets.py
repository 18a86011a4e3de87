from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from spark_build.machine import Gpu, Machine
from spark_build.recipes.evaluation import detect_target, resolve_target, view_name
from spark_build.recipes.loader import load
from spark_build.recipes.model import Target

SHIPPED = load([Path(__file__).parents[2]]).targets
SPARK = Machine(
    platform="linux-aarch64",
    python="cp312",
    cores=20,
    memory_mib=122_000,
    available_mib=110_000,
    gpus=(Gpu(name="NVIDIA GB10", capability="12.1"),),
)
SERVER = dataclasses.replace(SPARK, platform="linux-x86_64", gpus=())


def with_gpu(name: str, capability: str, machine: Machine = SERVER) -> Machine:
    return dataclasses.replace(machine, gpus=(Gpu(name=name, capability=capability),))


def test_a_spark_is_known_by_its_gpu() -> None:
    target = detect_target(SHIPPED, SPARK)
    assert target == SHIPPED["gb10"]
    assert target.cuda_architectures == ("12.1",)


@pytest.mark.parametrize(
    ("name", "capability", "expected"),
    [
        ("NVIDIA H200", "9.0", "h200"),
        ("NVIDIA H100 80GB HBM3", "9.0", "h200"),
        ("NVIDIA GH200 480GB", "9.0", "h200"),  # not by its name, by its capability
        ("NVIDIA GeForce RTX 5070 Ti", "12.0", "rtx50"),
        ("NVIDIA RTX PRO 6000 Blackwell", "12.0", "rtx50"),
        ("NVIDIA L4", "8.9", "cuda-sm89"),
        ("NVIDIA B200", "10.0", "cuda-sm100"),
        # A GB10 that is not in an aarch64 machine is none we know: only the capability counts.
        ("NVIDIA GB10", "12.1", "cuda-sm121"),
    ],
)
def test_on_a_server_the_gpu_decides(name: str, capability: str, expected: str) -> None:
    target = detect_target(SHIPPED, with_gpu(name, capability))
    assert target.name == expected
    assert target.platform == "linux-x86_64"
    assert target.cuda_architectures == (capability,)
    assert target.python == "cp312"


def test_a_longer_name_is_another_gpu() -> None:
    found = detect_target(SHIPPED, with_gpu("NVIDIA GB100", "10.0", SPARK))
    assert (found.name, found.platform) == ("cuda-sm100", "linux-aarch64")


def test_a_capability_of_another_platform_does_not_count() -> None:
    """h200 is for x86_64; a Grace Hopper is not."""
    assert detect_target(SHIPPED, with_gpu("NVIDIA GH200 480GB", "9.0", SPARK)).name == "cuda-sm90"


def test_without_a_gpu_it_is_the_cpu() -> None:
    target = detect_target(SHIPPED, SERVER)
    assert (target.name, target.platform, target.python) == ("host-cpu", "linux-x86_64", "cp312")
    assert target.cuda_architectures == ()


@pytest.mark.parametrize(
    "machine", [SPARK, SERVER, with_gpu("NVIDIA L4", "8.9"), with_gpu("NVIDIA H200", "9.0")]
)
def test_the_wheels_are_for_the_python_that_runs(machine: Machine) -> None:
    assert detect_target(SHIPPED, dataclasses.replace(machine, python="cp313")).python == "cp313"


def test_of_several_gpus_the_first_counts() -> None:
    both = dataclasses.replace(
        SERVER, gpus=(Gpu(name="NVIDIA L4", capability="8.9"), Gpu(name="NVIDIA H200", capability="9.0"))
    )
    assert detect_target(SHIPPED, both).name == "cuda-sm89"


def test_a_target_of_ones_own_for_this_machine() -> None:
    """platform = "host" with a GPU's name in it fits wherever that GPU is."""
    own = Target(
        name="mine",
        summary="s",
        platform="host",
        python="host",
        cuda_architectures=("8.9",),
        gpu_names=("NVIDIA L4",),
    )
    found = detect_target({**SHIPPED, "mine": own}, with_gpu("NVIDIA L4", "8.9"))
    assert found == dataclasses.replace(own, platform="linux-x86_64", python="cp312")


def test_resolve_leaves_what_is_said() -> None:
    assert resolve_target(SHIPPED["gb10"], SERVER) == SHIPPED["gb10"]
    host = resolve_target(SHIPPED["host-cpu"], SPARK)
    assert (host.platform, host.python) == ("linux-aarch64", "cp312")


def test_a_view_tells_target_train_and_abi() -> None:
    assert view_name(SHIPPED["gb10"], "2.13") == "gb10-2.13-cp312"
