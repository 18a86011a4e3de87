from __future__ import annotations

import pytest

from spark_build.recipes.evaluation import CONSUMERS, arch_list, minimum_cuda


@pytest.mark.parametrize(
    ("capabilities", "torch", "extension", "flash"),
    [
        (("12.1",), "12.0;12.1", "12.1", "121"),
        (("12.0",), "12.0", "12.0", "120"),
        (("11.0",), "11.0", "11.0", "110"),
        (("10.0",), "10.0", "10.0", "100"),
        (("9.0",), "9.0", "9.0", "90"),
        (("8.9",), "8.9", "8.9", "80"),
        (("12.1", "9.0", "12.0"), "9.0;12.0;12.1", "9.0;12.0;12.1", "90;120;121"),
        (("8.0", "8.6", "8.9"), "8.0;8.6;8.9", "8.0;8.6;8.9", "80"),
        ((), "", "", ""),
    ],
)
def test_each_consumer_has_its_spelling(
    capabilities: tuple[str, ...], torch: str, extension: str, flash: str
) -> None:
    assert [arch_list(one, capabilities) for one in CONSUMERS] == [torch, extension, flash]


@pytest.mark.parametrize(
    ("capability", "cuda"),
    [
        ("8.9", "11.8"),
        ("9.0", "11.8"),
        ("9.0a", "12.0"),
        ("10.0", "12.8"),
        ("10.0f", "12.9"),
        ("11.0", "13.0"),
        ("12.0", "12.8"),
        ("12.0a", "12.8"),
        ("12.0f", "12.9"),
        ("12.1", "12.9"),
        ("12.1a", "12.9"),
        ("12.1f+PTX", "12.9"),
        ("13.7", ""),
        ("", ""),
    ],
)
def test_minimum_cuda(capability: str, cuda: str) -> None:
    assert minimum_cuda(capability) == cuda
