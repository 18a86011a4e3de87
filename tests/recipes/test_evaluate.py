"""Conditions, variants and labels of a recipe."""

from __future__ import annotations

import dataclasses

import pytest

from spark_build.errors import RecipeError
from spark_build.recipes.evaluation import NINJA, evaluate, for_target, holds, label
from spark_build.recipes.model import (
    Build,
    Cmake,
    Feature,
    Naming,
    Need,
    Option,
    Pin,
    Recipe,
    Requires,
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
    options={"blas": Option(value="OpenBLAS", why="w"), "march": Option(value="", why="w")},
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


def test_extra_sources_that_share_a_folder_are_those_of_the_platform() -> None:
    tools = {
        f"tool-{number}": dataclasses.replace(EXTRA, platform=platform, folder="vendor")
        for number, platform in enumerate(("linux-x86_64", "linux-aarch64", ""))
    }
    build = Build(place={"backend": Variable(value="{extra:vendor}/bin", why="w")})
    recipe = dataclasses.replace(RECIPE, build=build)
    pin = dataclasses.replace(PIN, extra_sources=tools)
    assert list(evaluate(recipe, pin, CPU, TRAIN).extra_sources) == ["tool-0", "tool-2"]
    assert list(evaluate(recipe, pin, GB10, TRAIN).extra_sources) == ["tool-1", "tool-2"]


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
        (When(options={"blas": "OpenBLAS"}), True, True),
        (When(options={"blas": "MKL"}), False, False),
        (When(options={"blas": "OpenBLAS"}, cuda=True), False, True),
    ],
)
def test_all_that_is_given_must_hold(when: When, cpu: bool, gb10: bool) -> None:
    assert (holds(when, RECIPE, CPU, TRAIN), holds(when, RECIPE, GB10, TRAIN)) == (cpu, gb10)


# --- variables, flags, needs and costs on a condition -----------------------------------------------


def only_with_cuda(value: str) -> Variable:
    return Variable(value=value, why="w", when=When(cuda=True))


def test_a_variable_is_set_only_where_its_condition_holds() -> None:
    variant = Variant(when=When(platforms=("linux-x86_64",)), env={"A": only_with_cuda("3")})
    build = Build(env={"A": Variable(value="1", why="w"), "B": only_with_cuda("2")}, variants=(variant,))
    recipe = dataclasses.replace(RECIPE, build=build)
    here, there = evaluate(recipe, PIN, CPU, TRAIN).env, evaluate(recipe, PIN, GB10, TRAIN).env
    # A variant's variable that does not count leaves that of [build] alone.
    assert {name: one.value for name, one in here.items()} == {"A": "1"}
    assert {name: one.value for name, one in there.items()} == {"A": "1", "B": "2"}


def test_an_option_reaches_variables_definitions_and_flags() -> None:
    blas = Variable(value="{option:blas} {jobs}", why="w")
    recipe = dataclasses.replace(
        RECIPE,
        build=Build(env={"BLAS": blas}, compile_flags=("-march={option:march}", "-DB={option:blas}")),
        cmake=Cmake(define={"BLAS": blas}),
    )
    found = evaluate(recipe, PIN, CPU, TRAIN)
    assert found.env["BLAS"].value == "OpenBLAS {jobs}"
    assert found.compile_flags == ("-DB=OpenBLAS",)  # that of an empty option is left out
    assert for_target(recipe, CPU, TRAIN).cmake.define["BLAS"].value == "OpenBLAS {jobs}"
    chosen = {**RECIPE.options, "march": Option(value="x86-64-v3", why="w")}
    newer = evaluate(dataclasses.replace(recipe, options=chosen), PIN, CPU, TRAIN)
    assert newer.compile_flags == ("-march=x86-64-v3", "-DB=OpenBLAS")


def test_a_recipe_without_cuda_has_its_own_needs_costs_and_default() -> None:
    without = Variant(
        when=When(cuda=False), default=False, memory_per_job_mib=1600, disk_mib=8192, apt=("a",), dnf=("d",)
    )
    recipe = dataclasses.replace(
        RECIPE,
        build=Build(memory_per_job_mib=4096, core_minutes=7, disk_mib=40960, variants=(without,)),
        requires=Requires(cuda=True, cpu=True),
        needs=(Need(name="cusparselt", when=When(cuda=True)), Need(name="numpy")),
    )
    here, there = for_target(recipe, CPU, TRAIN), for_target(recipe, GB10, TRAIN)
    assert (here.default, here.requires.cuda, [one.name for one in here.needs]) == (False, False, ["numpy"])
    assert (there.default, there.requires.cuda) == (True, True)
    assert [one.name for one in there.needs] == ["cusparselt", "numpy"]
    costs = [(one.memory_per_job_mib, one.core_minutes, one.disk_mib) for one in (here.build, there.build)]
    assert costs == [(1600, 7, 8192), (4096, 7, 40960)]
    evaluated = evaluate(here, PIN, CPU, TRAIN)
    assert (evaluated.apt, evaluated.dnf) == (("g++", "a"), ("d",))
    assert not for_target(dataclasses.replace(recipe, requires=Requires(cuda=True)), GB10, TRAIN).requires.cpu
