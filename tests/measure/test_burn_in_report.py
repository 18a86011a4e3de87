"""Reports of burn-ins that went wrong, were short, or hold names from elsewhere."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Sequence
from typing import Any

import pytest

from spark_build.measure.model import Arm, BurnIn, Check, Work
from spark_build.measure.report.burn_in_report import burn_in_report
from spark_build.measure.report.charts import _sweeps
from spark_build.measure.statistics import balanced_order
from spark_build.measure.verdict import assess
from tests.helpers.simulated import ARMS, settings_of, simulated_round


def page(pairs: int, *changes: dict[str, Any], arms: Sequence[Arm] = ARMS, **more: Any) -> str:
    """The page of a burn-in of so many pairs; the first rounds changed, those behind them left out."""
    given = settings_of(pairs, 1)
    order = balanced_order([arm.name for arm in arms], pairs, 1)
    rounds = [simulated_round(slot, 1 + slot.index / 100) for slot in order]
    if changes:
        rounds = [dataclasses.replace(one, **new) for one, new in zip(rounds, changes, strict=False)]
    rounds = [dataclasses.replace(one, file=f"/runs/{one.slot.index}.json") for one in rounds]
    verdict, cases, gates = assess(given, arms, len(order), rounds, ())
    made: dict[str, Any] = {"settings": given, "verdict": verdict, "cases": cases, "gates": gates}
    return burn_in_report(
        BurnIn(arms=tuple(arms), folder="/runs", rounds=tuple(rounds), **made, **more)
    ).html()


def test_the_only_figures_are_of_a_round_that_failed() -> None:
    found = page(4, {"problem": "ended with status 139"})
    assert "<h2>Rate over time</h2>" in found
    assert "<h2>Round by round</h2>" not in found  # it shows what counts


@pytest.mark.parametrize("pairs", [2, 4])
def test_every_round_is_a_dot(pairs: int) -> None:
    (boxes,) = re.findall(r"<h2>Rates by arm</h2>(.*?)</section>", page(pairs), re.DOTALL)
    assert boxes.count("<use ") >= pairs * len(ARMS)


def test_in_how_many_rounds_a_check_was_ok() -> None:
    good, bad = Check(name="c", status="ok", evidence=""), Check(name="c", status="fail", evidence="")
    of_public = [{"checks": (bad if at == 0 else good,)} for at in range(12)]
    assert "fail, 3 of 4 rounds ok" in page(4, *of_public)


def test_no_name_ends_the_documents_element() -> None:
    hostile = "<!--<script>x</script>"
    found = page(2, notes=(hostile,), scope={"device": hostile})
    (document,) = re.findall(r'id="raw">([^<]*)</script>', found)
    assert json.loads(document)["notes"] == [hostile]
    assert hostile not in found


def test_a_dollar_is_no_formula() -> None:
    arms = [dataclasses.replace(arm, name=rf"{arm.role} a$\frac$b") for arm in ARMS]
    assert r"baseline a$\frac$b</text>" in page(2, arms=arms)


def test_a_case_meets_only_its_own_kind_at_other_sizes() -> None:
    names = {("FP16", 16), ("FP16", 32), ("FP32", 32)}
    works = [
        Work(name=f"{dtype} {size}^3 a@b", workload="gemm", unit="FLOP/s", amount=1.0, dtype=dtype, size=size)
        for dtype, size in sorted(names)
    ]
    (found,) = _sweeps(works).values()
    assert {name: [one.size for one in some] for name, some in found.items()} == {"FP16 a@b": [16, 32]}
