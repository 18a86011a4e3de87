import pytest

from spark_build.measure.bounds import FORMATS, token_floor, weight_bytes
from spark_build.measure.comparison import BANDS, band_of, overhead


@pytest.mark.parametrize(
    ("times", "name"),
    [
        (0.5, "below 10%"),
        (1.0, "below 10%"),
        (1.0999, "below 10%"),
        (1.1, "10-20%"),  # 10 begins a band
        (1.1999, "10-20%"),
        (1.2, "20-40%"),  # 20 begins a band
        (1.4, "20-40%"),  # 40 ends one
        (1.4001, "above 40%"),
        (9.0, "above 40%"),
    ],
)
def test_the_edges(times: float, name: str) -> None:
    """`times` the time; as ratios of speeds, which binary fractions do not hit exactly."""
    assert band_of(overhead(1 / times)).name == name
    assert band_of(overhead(100 / (100 * times))).name == name


def test_what_comes_next_is_more_the_worse_it_is() -> None:
    named = [{check.name for check in band.checks} for band in BANDS]
    assert named[0] == set()
    assert named[0] < named[1] < named[2] < named[3]
    assert named[3] == {"utilisation", "thermal", "power", "driver", "image"}
    assert BANDS[3].checks[0].name == "image"
    assert all(check.question and check.step for band in BANDS for check in band.checks)


def test_the_floor_of_a_token() -> None:
    assert token_floor(140e9, 273e9) == pytest.approx(0.513, abs=5e-4)
    fp16, fp8, fp4 = (
        next(form for form in FORMATS if form.name.startswith(name)) for name in ("FP16", "FP8", "NVFP4")
    )
    assert weight_bytes(70e9, fp16) == 140e9
    assert (fp16.factor, fp8.factor, fp4.factor) == (1, 0.5, 0.28125)  # NVFP4: a scale byte for 16 weights
    assert token_floor(weight_bytes(70e9, fp8), 273e9) == pytest.approx(0.2564, abs=1e-4)
