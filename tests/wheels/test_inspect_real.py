"""`inspect` of real wheels is true in every line: the vendors' wheels, which the index has."""

from __future__ import annotations

import os

import pytest

from tests.helpers.inspection import check
from tests.helpers.publicwheels import public_cuobjdump, public_wheel

pytestmark = [pytest.mark.slow, pytest.mark.network]


@pytest.mark.parametrize(
    ("requirement", "platform", "rules"),
    [
        (
            "nvidia-cusparselt-cu13==0.8.0",
            "manylinux2014_aarch64",
            {"tags", "purelib", "symbol-versions", "rpath", "build-paths"},
        ),
        (
            "nvidia-cusparselt-cu13==0.8.1",
            "manylinux2014_x86_64",
            {"purelib", "symbol-versions", "rpath", "build-paths"},
        ),
        ("onnx==1.19.1", "", set()),
        ("torch==2.13.0", "", {"rpath", "duplicates"}),
        ("scipy==1.17.1", "manylinux_2_28_x86_64", {"rpath"}),
    ],
)
def test_every_line_is_true(requirement: str, platform: str, rules: set[str]) -> None:
    found = check(public_wheel(requirement, platform), public_cuobjdump())
    if platform or os.uname().machine == "x86_64":  # what is wrong with them was looked at there
        assert {one["rule"] for one in found["findings"]} == rules


def test_as_judged_for_a_spark() -> None:
    """The vendor's wheel by its recipe: flaws of its labels do not stop it, its code runs natively."""
    wheel = public_wheel("nvidia-cusparselt-cu13==0.8.0", "manylinux2014_aarch64")
    found = check(wheel, None, "--target", "gb10", "--train", "2.9")
    assert found["judged_by"] == {"recipe": "cusparselt", "target": "gb10", "train": "2.9"}
    assert [one for one in found["findings"] if one["severity"] == "error"] == []
    assert [one for one in found["findings"] if one["rule"].startswith("device")] == []
