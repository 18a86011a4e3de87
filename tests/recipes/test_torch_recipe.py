"""The torch recipe against what was read in upstream's wheels: requirements, RPATHs, what their libraries load."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from spark_build.build.plan import StoredResult, make_plan
from spark_build.machine import Machine
from spark_build.recipes.evaluation import for_target
from spark_build.recipes.loader import Catalogue, load
from spark_build.recipes.model import Recipe
from spark_build.wheels.elf import beside_library, entry_to, leads_to
from spark_build.wheels.rules import bringer

ROOT = Path(__file__).resolve().parents[2]
LINUX = "platform_system == 'Linux'"
EXTRAS = "cublas,cudart,cufft,cufile,cupti,curand,cusolver,cusparse,nvjitlink,nvrtc,nvtx"
# Requires-Dist of the public wheels (aarch64 and x86-64 alike), but for what has nothing to do with CUDA.
PUBLIC = {
    "2.11": (
        f"cuda-toolkit[{EXTRAS}]==13.0.2; {LINUX}",
        f"cuda-bindings<14,>=13.0.3; {LINUX}",
        f"nvidia-cudnn-cu13==9.19.0.56; {LINUX}",
        f"nvidia-cusparselt-cu13==0.8.0; {LINUX}",
        f"nvidia-nccl-cu13==2.28.9; {LINUX}",
        f"nvidia-nvshmem-cu13==3.4.5; {LINUX}",
        f"triton==3.6.0; {LINUX}",
    ),
    "2.13": (
        f"cuda-toolkit[{EXTRAS}]==13.0.3; {LINUX}",
        f"cuda-bindings<14,>=13.0.3; {LINUX} and python_version < '3.15'",
        f"nvidia-cudnn-cu13==9.20.0.48; {LINUX}",
        f"nvidia-cusparselt-cu13==0.8.1; {LINUX}",
        f"nvidia-nccl-cu13==2.29.7; {LINUX}",
        f"nvidia-nvshmem-cu13==3.4.5; {LINUX}",
        f"triton==3.7.1; {LINUX}",  # upstream: and python_version < '3.15'
    ),
    "2.15": (
        f"cuda-toolkit[{EXTRAS.replace('curand,', '')}]==13.2.2; {LINUX}",
        f"cuda-bindings<14,>=13.0.3; {LINUX} and python_version < '3.15'",
        f"nvidia-cudnn-cu13==9.26.0.51; {LINUX}",
        f"nvidia-cusparselt-cu13==0.8.1; {LINUX}",
        f"nvidia-nccl-cu13==2.30.7; {LINUX}",
        f"nvidia-nvshmem-cu13==3.7.2; {LINUX}",
        f"triton==3.9.0; {LINUX}",  # upstream: ~=3.9.0 and python_version < '3.16'
    ),
}
# NEEDED of the public 2.13.0 wheel for aarch64 that NVIDIA's wheels bring.
LOADED = [
    "libcublas.so.13",
    "libcublasLt.so.13",
    "libcudart.so.13",
    "libcudnn.so.9",
    "libcufft.so.12",
    "libcufile.so.0",
    "libcupti.so.13",
    "libcurand.so.10",
    "libcusolver.so.12",
    "libcusparse.so.12",
    "libcusparseLt.so.0",
    "libnccl.so.2",
    "libnvrtc.so.13",
    "libnvshmem_host.so.3",
]
RPATH = ["cudnn", "nvshmem", "nccl", "cusparselt", "cu13"]


@pytest.fixture(scope="module")
def shipped() -> Catalogue:
    return load([ROOT])


def torch(shipped: Catalogue, train: str, target: str = "gb10") -> Recipe:
    return for_target(shipped.recipes["torch"], shipped.targets[target], shipped.trains[train])


@pytest.mark.parametrize("train", PUBLIC)
def test_it_requires_what_the_public_wheel_requires(train: str, shipped: Catalogue) -> None:
    found = {Requirement(one.requirement) for one in torch(shipped, train).repair.requires}
    assert found == {Requirement(text) for text in PUBLIC[train]}


@pytest.mark.parametrize("train", ["2.9", *PUBLIC])
def test_every_library_of_nvidias_comes_from_what_is_required(train: str, shipped: Catalogue) -> None:
    repair = torch(shipped, train).repair
    required = [Requirement(one.requirement) for one in repair.requires]
    for soname in LOADED:
        one = bringer(soname, repair.external)
        assert one is not None, soname
        wanted = Requirement(one.distribution)
        met = [it for it in required if it.name == wanted.name and wanted.extras <= it.extras]
        assert met or (train, soname) == ("2.15", "libcurand.so.10"), soname
    assert "libcuda.so.1" in repair.outside
    assert bringer("libcuda.so.1", repair.external) is None


def test_the_folders_are_looked_in_as_upstream_does(shipped: Catalogue) -> None:
    folders = list(dict.fromkeys(one.folder for one in torch(shipped, "2.13").repair.external))
    entries = [entry_to(folder, "torch/lib/libtorch_cuda.so") for folder in folders]
    assert entries == [f"$ORIGIN/../../nvidia/{name}/lib" for name in RPATH]
    assert [leads_to(entry, "torch/lib/libtorch_cuda.so") for entry in entries] == folders
    # Upstream's _C has the entries of the libraries below it, which lead out of site-packages.
    assert leads_to(entries[0], "torch/_C.so") is None
    assert entry_to(folders[0], "torch/_C.so") == "$ORIGIN/../nvidia/cudnn/lib"
    assert entry_to("torch/lib", "torch/lib/a.so") == "$ORIGIN"
    assert beside_library("${ORIGIN}/x")
    assert not beside_library("$ORIGINAL/x")


@pytest.mark.parametrize("train", ["2.9", *PUBLIC])
def test_the_stub_links_what_the_public_wheels_load(train: str, shipped: Catalogue) -> None:
    linked = {name for one in torch(shipped, train).preflight.libraries for name in one.links}
    loaded = {soname.removeprefix("lib").partition(".so")[0] for soname in LOADED}
    loaded -= {"curand"} if train == "2.15" else set()
    assert linked == loaded | {"openblas", "arm_compute", "arm_compute_graph"}


@pytest.mark.parametrize(
    ("target", "blas", "links"),
    [
        ("gb10", "NVPL", ("cudart", "cupti", "arm_compute", "arm_compute_graph")),
        ("h200", "MKL", ("cudart", "cupti")),
    ],
)
def test_another_blas_leaves_the_rest_of_the_stub(target: str, blas: str, links: tuple[str, ...]) -> None:
    catalogue = load([ROOT]).with_options({("torch", "blas"): blas})
    recipe = for_target(catalogue.recipes["torch"], catalogue.targets[target], catalogue.trains["2.13"])
    found = {one.path: one.links for one in recipe.preflight.libraries}
    assert found["torch/lib/libtorch_cpu.so"] == links
    host = replace(catalogue.targets["host-cpu"], platform="linux-aarch64", python="cp312")
    arm = for_target(catalogue.recipes["torch"], host, catalogue.trains["2.13"])
    wanted = [("arm_compute", "arm_compute_graph")] if blas == "NVPL" else []
    assert [one.links for one in arm.preflight.libraries] == wanted


def test_without_cuda_nothing_of_it_is_asked_for(shipped: Catalogue) -> None:
    host = replace(shipped.targets["host-cpu"], platform="linux-x86_64", python="cp312")
    recipe = for_target(shipped.recipes["torch"], host, shipped.trains["2.13"])
    assert (recipe.repair.external, recipe.repair.requires) == ((), ())
    assert [one.links for one in recipe.preflight.libraries] == [("openblas",)]
    assert [need.name for need in recipe.needs] == []
    arm = for_target(
        shipped.recipes["torch"], replace(host, platform="linux-aarch64"), shipped.trains["2.13"]
    )
    assert [need.name for need in arm.needs] == ["acl"]


@pytest.mark.parametrize(("target", "decision"), [("gb10", "BUILD"), ("h200", "")])
def test_arm_compute_library_is_built_for_torch_on_arm_only(
    target: str, decision: str, shipped: Catalogue
) -> None:
    chosen, train = shipped.targets[target], shipped.trains["2.13"]
    machine = Machine(
        platform=chosen.platform, python=chosen.python, cores=4, memory_mib=64000, available_mib=60000
    )

    def lookup(*_: object) -> StoredResult:
        return StoredResult("k", stored=False)

    plan = make_plan(["torch"], shipped.recipes, train, chosen, machine, lookup)
    assert {one.recipe.name: one.decision for one in plan.steps}.get("acl", "") == decision
    other = make_plan(["onnx"], shipped.recipes, train, chosen, machine, lookup, others=["acl"])
    assert {one.recipe.name: one.decision for one in other.steps}["acl"] == "SKIP"
