import dataclasses
import tomllib
from pathlib import Path
from typing import Any

import pytest

from spark_build.errors import UsageError
from spark_build.measure.model import Case
from spark_build.measure.verdict import parse_reference, place_in_reference, reference_for

SHIPPED = Path(__file__).resolve().parents[2] / "bench" / "reference"
BIG = Case(dtype="fp16", size=8192, layout="ab")
GOOD: dict[str, Any] = {
    "schema": 1, "name": "X", "device": "X1", "sources": ["seen"], "tflops": {"fp16": [60, 100]},
    "least_size": 4096,
}  # fmt: skip


def test_the_shipped_ones_are_sound() -> None:
    known = [parse_reference(tomllib.loads(file.read_text()), str(file)) for file in SHIPPED.glob("*.toml")]
    assert {each.name for each in known} >= {"GB10", "H200"}
    for each in known:
        assert each.sources
        assert all(each.nominal[dtype] >= high * 0.9 for dtype, (_, high) in each.rates.items())
    spark = reference_for(known, "NVIDIA GB10")
    assert spark is not None
    assert spark.name == "GB10"
    assert reference_for(known, "AMD EPYC") is None


def test_where_a_rate_lies() -> None:
    known = parse_reference(GOOD, "x.toml")
    assert place_in_reference(known, BIG, 80e12) == "as known of X"
    assert place_in_reference(known, BIG, 30e12) == "50% below what X is known for"
    assert place_in_reference(known, BIG, 120e12) == "20% above what X is known for"
    assert place_in_reference(None, BIG, 80e12) == ""
    assert place_in_reference(known, dataclasses.replace(BIG, dtype="fp32"), 80e12) == ""
    assert place_in_reference(known, dataclasses.replace(BIG, size=256), 1e12) == ""


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"schema": 2}, "schema"),
        ({"tflops": {"fp16": [100, 60]}}, "low, then high"),
        ({"tflops": {"fp16": 60}}, "schema"),
        ({"tflops": 5}, "schema"),
        ({"nominal_tflops": [5]}, "schema"),
        ({"device": "("}, "schema"),
        ({"sources": None}, "schema"),
    ],
)
def test_a_wrong_one_is_refused(change: dict[str, Any], problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        parse_reference(GOOD | change, "x.toml")
    with pytest.raises(UsageError, match="missing"):
        parse_reference({"schema": 1}, "x.toml")
