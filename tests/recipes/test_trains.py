"""The shipped trains: their wheels accept each other, and have the patches without which a result is wrong."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

from spark_build.recipes.evaluation import patches_for
from spark_build.recipes.loader import Catalogue, load

ROOT = Path(__file__).resolve().parent.parent.parent

# Component, its versions, what it requires, in which versions: as the public wheels' Requires-Dist, the sdists'
# requirements and (torchaudio) audio#4212 say.
REQUIRES = (
    ("torchvision", "==0.24.1", "torch", "==2.9.1"),
    ("torchvision", "==0.26.0", "torch", "==2.11.0"),
    ("torchvision", "==0.28.0", "torch", "==2.13.0"),
    ("torchvision", "==0.29.1", "torch", ">=2.14.0"),
    ("torchvision", "==0.29.2", "torch", ">=2.14.0"),
    ("torchaudio", "==2.9.1", "torch", "==2.9.1"),
    ("torchaudio", ">=2.11", "torch", ">=2.11"),
    ("torch", "==2.9.1", "triton", "==3.5.1"),
    ("torch", "==2.11.0", "triton", "==3.6.0"),
    ("torch", "==2.13.0", "triton", "==3.7.1"),
    ("torch", "==2.14.1", "triton", "~=3.8.0"),
    ("torch", "==2.15.0", "triton", "~=3.9.0"),
    ("onnx", "==1.19.1", "protobuf", ">=4.25.1"),
    ("onnx", "==1.23.2", "protobuf", ">=6.31.1"),
    ("onnx", "==1.23.2", "ml-dtypes", ">=0.5.4"),
    ("onnx", "==1.23.2", "numpy", ">=1.23.2"),
    ("onnx", "==1.23.2", "typing-extensions", ">=4.7.1"),
)
# The LLVM commit in Triton's cmake/llvm-hash.txt, as found in the public wheels.
LLVM = {
    "3.5.1": "7d5de3033187c8a3bb4d2e322f5462cdaf49808f",
    "3.6.0": "f6ded0be897e2878612dd903f7e8bb85448269e5",
    "3.7.1": "1f126a6dea50d185c0781743a667390037ae88bd",
    "3.8.0": "5f07f818b51b786b0a87b4e514882600ecba112f",
    "3.9.0": "b010a18d2b648cab83c83967ff26b8fde11acdc6",
}
# Component, its versions, another with its versions, what the name of one of its patches must hold: attention
# built for 12.1 writes nothing (pytorch#176243); setup.py has no branch for 121, and asks for C++17.
PATCHES = (
    ("torch", "<2.12.1", "torch", ">0", "attention"),
    ("flash-attn", "<=2.8.3.post2", "torch", ">0", "121"),
    ("flash-attn", "<=2.8.3.post2", "torch", ">=2.14", "cxx20"),
)


@pytest.fixture(scope="module")
def shipped() -> Catalogue:
    return load([ROOT])


def test_the_wheels_of_a_train_accept_each_other(shipped: Catalogue) -> None:
    for train in shipped.trains.values():
        pins = {name: pin.version for name, pin in train.components.items()}
        known = train.closure | pins
        for component, versions, other, wanted in REQUIRES:
            if component in pins and pins[component] in SpecifierSet(versions) and other in known:
                assert known[other] in SpecifierSet(wanted), (train.name, component, other)


def test_triton_gets_its_llvm(shipped: Catalogue) -> None:
    for train in shipped.trains.values():
        commits = {source.commit for source in train.components["llvm"].sources if source.kind == "git"}
        assert commits - {""} <= {LLVM[train.components["triton"].version]}, train.name


def test_patches_are_where_a_version_needs_them(shipped: Catalogue) -> None:
    for train in shipped.trains.values():
        pins = {name: pin.version for name, pin in train.components.items()}
        for component, versions, other, wanted, name in PATCHES:
            if pins[component] in SpecifierSet(versions) and pins[other] in SpecifierSet(wanted):
                files = [patch.file for patch in patches_for(shipped.recipe(component), train)]
                assert any(re.search(name, file) for file in files), (train.name, component, name)
