import pytest

from spark_build.measure.report.charts import names_of
from spark_build.text import format_quantity, three_digits


@pytest.mark.parametrize(
    ("value", "unit", "said"),
    [
        (62.43e12, "FLOP/s", "62.4 TFLOP/s"),
        (1e12, "FLOP/s", "1.00 TFLOP/s"),
        (999e9, "B/s", "999 GB/s"),
        (1.4e11, "B", "140 GB"),
        (512, "B", "512 B"),
        (0.5128, "s", "513 ms"),
        (1.52, "s", "1.52 s"),
        (2.5e-4, "s", "250 us"),
        (7e-9, "s", "7.00 ns"),
        (120.44, "tokens/s", "120 tokens/s"),
        (10.85, "tokens/s", "10.8 tokens/s"),
        (39681.3, "samples/s", "39,681 samples/s"),
        (1_404_018.2, "tokens/s", "1,404,018 tokens/s"),
        (3e-7, "x", "3e-07 x"),
        (0, "s", "0 ns"),
        (7, "", "7.00"),
    ],
)
def test_quantities(value: float, unit: str, said: str) -> None:
    assert format_quantity(value, unit) == said


def test_the_names_of_roofs() -> None:
    peaks = {"fp16": 704.6e12, "fp32": 51.4e12, "fp8": 1174.6e12, "bf16": 711.8e12}
    assert names_of(peaks, 1e12) == {
        "fp8": "FP8 1,175",
        "bf16": "BF16 712, FP16 705",
        "fp16": "",
        "fp32": "FP32 51.4",
    }


def test_digits_without_a_unit() -> None:
    assert [three_digits(value) for value in (1174.9, 353.51, 51.44, 0.1903)] == [
        "1,175",
        "354",
        "51.4",
        "0.190",
    ]
