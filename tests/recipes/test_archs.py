from __future__ import annotations

import pytest

from spark_build.errors import UsageError
from spark_build.recipes.evaluation import CONSUMERS, arch_list, minimum_cuda, rejected_architectures

CAPABILITIES = ("8.0", "8.6", "8.9", "9.0", "10.0", "10.3", "11.0", "12.0", "12.1")


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


@pytest.mark.parametrize("consumer", CONSUMERS)
@pytest.mark.parametrize("capability", CAPABILITIES)
def test_what_we_write_is_accepted(consumer: str, capability: str) -> None:
    assert rejected_architectures(consumer, arch_list(consumer, [capability])) == ()


@pytest.mark.parametrize(
    "text", ["12.0;12.1", "12.0 12.1", "12.0,12.1", "12.1a", "12.1f", "12.0f", "9.0a", "12.0+PTX"]
)
def test_torch_accepts(text: str) -> None:
    assert rejected_architectures("torch", text) == ()


@pytest.mark.parametrize("text", ["12.0", "12.1", "12.1a", "12.0a;12.1+PTX", "9.0a"])
def test_extensions_accept(text: str) -> None:
    assert rejected_architectures("cpp_extension", text) == ()


@pytest.mark.parametrize(
    ("consumer", "text", "expected"),
    [
        ("torch", "12.1", "12.1 without 12.0: cmake/Codegen.cmake"),
        ("torch", "9.0;12.1+PTX", "12.1 without 12.0: cmake/Codegen.cmake"),
        ("torch", "Auto", "Auto: detection turns 12.1 into 12.1(2.0)"),
        ("torch", "", "the list is empty"),
        ("torch", " ; ", "the list is empty"),
        ("torch", "121", "'121' is no architecture that is known here: did you mean '12.1'?"),
        ("torch", "9.0f", "'9.0f': there is no variant f of 9.0"),
        ("torch", "8.0a", "'8.0a': there is no variant a of 8.0"),
        ("cpp_extension", "12.1f", "'12.1f': torch/utils/cpp_extension.py refuses f"),
        ("cpp_extension", "sm_121", "'sm_121' is no architecture"),
        ("cpp_extension", "12.7", "'12.7' is no architecture"),
        ("flash_attn", "12.1", "'12.1' has no branch in setup.py and is dropped silently: write 121"),
        ("flash_attn", "89", "'89' has no branch in setup.py and is dropped silently: write 80"),
        ("flash_attn", "90;110", "'110' has no branch in setup.py and is dropped silently beside others"),
        ("flash_attn", "75", "'75' has no branch in setup.py and is dropped silently (known: 80, 90"),
    ],
)
def test_what_is_rejected_or_dropped(consumer: str, text: str, expected: str) -> None:
    (problem,) = rejected_architectures(consumer, text)
    assert problem.startswith(expected)


def test_every_problem_of_a_list_is_told() -> None:
    assert len(rejected_architectures("torch", "12.1;Auto;7")) == 3


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


def test_unknown_consumer() -> None:
    with pytest.raises(UsageError, match="no consumer of architecture lists is named 'vision'"):
        arch_list("vision", ["12.1"])
