"""The table "Is this normal?" of report.html."""

from __future__ import annotations

import re

from spark_build.measure.model import Arm, BurnIn, Case, Measurement, Reference, Round, Settings, Slot
from spark_build.measure.report.burn_in_report import normal
from spark_build.measure.report.page import Report
from spark_build.measure.verdict import assess

CASE = Case(dtype="fp16", size=8192, layout="ab")
ARM = Arm(name="mine", role="baseline", python="p", origin="")
H200 = Reference(
    name="H200",
    device="H200",
    rates={"fp16": (5e14, 7.6e14)},
    nominal={"fp16": 9.89e14},
    bandwidth=4.8e12,
    sources=("somebody's table",),
)


def cells(measured: Measurement, known: Reference | None) -> list[str]:
    settings = Settings(
        mode="full", device="cuda", cases=(CASE,), headline=CASE, pairs=10, seed=1, threads=1,
        warmup=1, window=1, tick=0.1, script="gemm.py",
    )  # fmt: skip
    slot = Slot(index=0, visit=0, block=0, arm="mine")
    rounds = (Round(slot=slot, launch="", started="", seconds=1, measurements=(measured,)),)
    verdict, cases, gates = assess(settings, (ARM,), 1, rounds, ())
    result = BurnIn(
        settings=settings,
        arms=(ARM,),
        verdict=verdict,
        cases=cases,
        gates=gates,
        rounds=rounds,
        reference=known,
    )
    report = Report(
        name="", claim="", tone="", indicative=False, said=(), scope={}, sections=[("", [normal(result)])]
    )
    page = report.html().rpartition("</section>")[0]
    return [*re.findall(r"<td[^>]*>(.*?)</td>", page), page.rpartition("<p")[2].partition(">")[2]]


def test_a_known_device() -> None:
    measured = Measurement(
        case=CASE, rate=6.4e14, cv=0, drop=0, steady=True, busy=None, clock_mhz=1600, watts=640
    )
    assert cells(measured, H200) == [
        "FP16 8192^3 a@b<br><small>mine</small>",
        "640.0 TFLOP/s",
        "400.0 TFLOP/s",
        "1.0 TFLOP/s",
        "500 to 760 TFLOP/s",
        "as known of H200",
        "65% of 989 TFLOP/s",
        "Sources: somebody's table. Memory: 4800 GB/s nominal.</p>".replace("'", "&#39;"),
    ]


def test_what_nobody_told_is_unknown() -> None:
    measured = Measurement(case=CASE, rate=6.4e14, cv=0, drop=0, steady=True, busy=None)
    found = cells(measured, None)
    assert found[2:7] == ["unknown", "unknown", "unknown", "-", "unknown"]
    assert "a file in wheelhouse/reference/ changes that" in found[-1]
