"""Conditions, variants and labels of a recipe."""

from __future__ import annotations

import dataclasses

import pytest

from spark_build.core.recipes.evaluate import NINJA, evaluate, holds, label
from spark_build.errors import RecipeError
from spark_build.model.recipe import (
    Build,
    Feature,
    Naming,
    Pin,
    Recipe,
    Source,
    System,
    Target,
    Train,
    Variable,
    Variant,
    When,
)

CPU = Target(name="host-cpu", summary="s", platform="linux-x86_64", python="cp311")
GB10 = Target(
    name="gb10", summary="s", platform="linux-aarch64", python="cp312", cuda_architectures=("12.1",), cuda="13.0"
)  # fmt: skip
TRAIN = Train(name="2.13", summary="s", components={}, revision=2)
EXTRA = Source(kind="archive", url="https://example.org/x.tar.gz", sha256="a" * 64)
PIN = Pin(version="1.0", sources=(), extra_sources={"absl": EXTRA, "json": EXTRA})
RECIPE = Recipe(
    name="demo",
    distribution="demo",
    summary="s",
    kind="pep517",
    build=Build(
        requires=("Py-Bind11==2.0", "wheel==1.0"),
        env={"A": Variable(value="1", why="w"), "B": Variable(value="{extra:absl}", why="w")},
        variants=(
            Variant(
                when=When(platforms=("linux-aarch64",)),
                requires=("py_bind11==3.0", "ninja==1.0"),
                env={"A": Variable(value="2", why="w")},
                apt=("libacl", "g++"),
            ),
        ),
    ),
    system=System(apt=("g++",)),
    features=(Feature(name="USE_CUDA", when=When(cuda=True)), Feature(name="ALWAYS")),
    wheel=Naming(version="{version}+{label}"),
)


def test_a_variant_replaces_what_has_the_same_name() -> None:
    here = evaluate(RECIPE, PIN, CPU, TRAIN)
    there = evaluate(RECIPE, PIN, GB10, TRAIN)
    assert here.requires == (NINJA, "Py-Bind11==2.0", "wheel==1.0")
    assert there.requires == ("ninja==1.0", "py_bind11==3.0", "wheel==1.0")
    assert (here.env["A"].value, there.env["A"].value) == ("1", "2")
    assert (here.apt, there.apt) == (("g++",), ("g++", "libacl"))


def test_features_have_conditions() -> None:
    assert [one.name for one in evaluate(RECIPE, PIN, CPU, TRAIN).features] == ["ALWAYS"]
    assert [one.name for one in evaluate(RECIPE, PIN, GB10, TRAIN).features] == ["USE_CUDA", "ALWAYS"]


def test_labels_tell_our_builds_apart() -> None:
    assert label(GB10, TRAIN) == "cu130.spark2"
    assert evaluate(RECIPE, PIN, CPU, TRAIN).wheel_version == "1.0+cpu.spark2"


def test_only_extra_sources_that_are_referred_to() -> None:
    assert list(evaluate(RECIPE, PIN, CPU, TRAIN).extra_sources) == ["absl"]


def test_a_wheel_version_of_unknown_parts() -> None:
    wrong = dataclasses.replace(RECIPE, wheel=Naming(version="{version}+{jobs}"))
    with pytest.raises(RecipeError, match="jobs"):
        evaluate(wrong, PIN, CPU, TRAIN)


@pytest.mark.parametrize(
    ("when", "cpu", "gb10"),
    [
        (When(), True, True),
        (When(cuda=True), False, True),
        (When(cuda=False), True, False),
        (When(trains=("2.9", "2.13")), True, True),
        (When(trains=("2.9",)), False, False),
        (When(platforms=("linux-aarch64",), cuda=False), False, False),
    ],
)
def test_all_that_is_given_must_hold(when: When, cpu: bool, gb10: bool) -> None:
    assert (holds(when, CPU, TRAIN), holds(when, GB10, TRAIN)) == (cpu, gb10)
