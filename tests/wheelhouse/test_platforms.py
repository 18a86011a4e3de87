from __future__ import annotations

import platform
import sys

import pytest
from packaging.markers import default_environment
from packaging.tags import parse_tag

from spark_build.recipes.model import Target
from spark_build.wheels import model as wheels_model
from tests.helpers.wheels import PYTHON, tags_of

SPARK = Target(name="gb10", summary="", platform="linux-aarch64", python="cp312")


def test_markers_have_the_same_variables_as_here() -> None:
    here = Target(
        name="here",
        summary="",
        platform=f"{sys.platform}-{platform.machine()}",
        python=PYTHON,
    )
    mine, real = wheels_model.markers(here), default_environment()
    assert mine.keys() == real.keys()
    depends = {"implementation_version", "platform_release", "platform_version", "python_full_version"}
    assert {name: mine[name] for name in mine.keys() - depends} == {
        name: value for name, value in real.items() if name not in depends
    }


@pytest.mark.parametrize(
    ("tag", "fits"),
    [
        ("cp312-cp312-linux_aarch64", True),
        ("cp312-cp312-manylinux_2_39_aarch64", True),
        ("cp312-cp312-manylinux2014_aarch64", True),
        ("cp38-abi3-manylinux_2_17_aarch64", True),
        ("py3-none-any", True),
        ("py3-none-manylinux_2_28_aarch64", True),
        ("cp312-none-any", True),
        ("cp312-cp312-manylinux_2_40_aarch64", False),
        ("cp312-cp312-linux_x86_64", False),
        ("cp311-cp311-linux_aarch64", False),
        ("cp313-abi3-linux_aarch64", False),
        ("cp312-cp312-musllinux_1_2_aarch64", False),
    ],
)
def test_tags(tag: str, *, fits: bool) -> None:
    assert (not tags_of(SPARK).isdisjoint(parse_tag(tag))) == fits
