"""What a recipe asks of device code: the table, and the findings."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark_build.errors import RecipeError
from spark_build.recipes.model import Audit, Build, DeviceRule, Recipe, Requires, Target
from spark_build.recipes.parse import parse_recipe
from spark_build.wheels.audit import as_vendor
from spark_build.wheels.model import DeviceCode
from spark_build.wheels.rules_device import DeviceDemand, demand, device_findings
from tests.helpers.devicefacts import SPARK, holding, wheel
from tests.helpers.wheels import blocks


def rule(library: str = "_c.so", **changes: tuple[str, ...]) -> DeviceRule:
    return DeviceRule(library=library, why="for a reason", **changes)


def judged(one: DeviceRule, *codes: DeviceCode) -> list[str]:
    found = device_findings(wheel(*codes), replace(SPARK, rules=(one,)))
    assert all(each.severity == "error" for each in found if each.rule == "device-required")
    return [each.message for each in found if each.rule == "device-required"]


def test_what_a_recipe_requires() -> None:
    assert judged(rule(require=("sm_121a",)), holding("sm_121", "sm_121a")) == []
    assert judged(rule("demo/*.so", require=("sm_12*",)), holding("sm_121")) == []
    (message,) = judged(rule(require=("sm_121a",)), holding("sm_121", "sm_120"))
    assert message.startswith("_c.so has no code for sm_121a: it has sm_120, sm_121; ")
    assert message.endswith("for a reason")


def test_what_a_recipe_forbids() -> None:
    assert judged(rule(forbid=("compute_*", "sm_120")), holding("sm_121", "sm_120f")) == []
    (message,) = judged(rule(forbid=("compute_*",)), holding("sm_121", "compute_80"))
    assert "must have no code for compute_*, and has compute_80" in message


def test_a_library_that_a_recipe_names() -> None:
    (message,) = judged(rule("libtorch_cuda.so"), holding("sm_121"))
    assert message.startswith("libtorch_cuda.so is not in the wheel")
    (message,) = judged(rule("_c.so"), holding("sm_121", path="demo/_other.so"), holding("sm_90"))
    assert message.startswith("_c.so has nothing that runs on sm_121: it has sm_90")


def test_a_recipes_own_wishes_hold_for_vendors() -> None:
    wanted = replace(SPARK, rules=(rule(require=("sm_121a",)),), elsewhere=True)
    assert blocks(as_vendor(device_findings(wheel(holding("sm_121")), wanted)))


GB10 = Target(name="gb10", summary="", platform="linux-aarch64", python="cp312", cuda_architectures=("12.1",))
RECIPE = Recipe(
    name="demo",
    distribution="demo",
    summary="",
    kind="pep517",
    build=Build(),
    requires=Requires(cuda=True),
    audit=Audit(device=(rule("all.so"), rule("hopper.so", architectures=("9.0",)))),
)


def test_the_demand_of_a_recipe() -> None:
    found = demand(RECIPE, GB10)
    assert (found.capabilities, found.needed, found.elsewhere) == (("12.1",), True, False)
    assert [one.library for one in found.rules] == ["all.so"]
    h200 = demand(RECIPE, replace(GB10, cuda_architectures=("9.0",)))
    assert [one.library for one in h200.rules] == ["all.so", "hopper.so"]
    assert demand(RECIPE, replace(GB10, cuda_architectures=())) == DeviceDemand()
    assert demand(replace(RECIPE, kind="repack"), GB10).elsewhere
    assert not demand(replace(RECIPE, requires=Requires()), GB10).needed
    assert not demand(replace(RECIPE, audit=Audit(host_only="it compiles")), GB10).needed


TOML = """\
name = "demo"
distribution = "demo"
summary = "s"
kind = "pep517"
[build]
[requires]
cuda = true
[[audit.device]]
library = "libdemo.so"
why = "because"
architectures = ["12.1"]
require = ["sm_121a", "sm_12*"]
forbid = ["compute_*"]
"""
WRONG = """\
name = "demo"
distribution = "demo"
summary = "s"
kind = "pep517"
[build]
[audit]
host_only = "no kernels"
[[audit.device]]
library = "../libdemo.so"
why = ""
architectures = ["13.7"]
require = ["121a", "sm_90"]
forbid = ["sm_90", "sm_*0"]
"""


def test_the_table_of_a_recipe() -> None:
    (found,) = parse_recipe(TOML, "recipes/demo.toml").audit.device
    assert found == DeviceRule(
        library="libdemo.so",
        why="because",
        architectures=("12.1",),
        require=("sm_121a", "sm_12*"),
        forbid=("compute_*",),
    )


def test_all_mistakes_of_the_table_at_once() -> None:
    with pytest.raises(RecipeError) as caught:
        parse_recipe(WRONG, "recipes/demo.toml")
    found = [(one.place.line, one.message) for one in caught.value.problems]
    wanted = [
        (7, "audit.host_only has a meaning only with requires.cuda = true"),
        (7, "audit.host_only says that there is no device code, audit.device asks for some"),
        (9, "the library '../libdemo.so' must be a relative path without '..'"),
        (10, "say what is lost without this code"),
        (11, "no capability is named '13.7': write 12.1"),
        (12, "'121a' is no architecture: write sm_121a, compute_90 or sm_12*"),
        (13, "'sm_*0' is no architecture: write sm_121a, compute_90 or sm_12*"),
        (13, "sm_90 is both required and forbidden"),
    ]
    assert found == wanted
