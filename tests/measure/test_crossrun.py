"""Two burn-ins compared, and the gate: documents of made-up rates through the real code."""

import json
import math
import random
from typing import Any

import pytest

from spark_build.errors import UsageError
from spark_build.measure.compare_runs import check_document, compare_runs, gate_run
from spark_build.measure.model import BurnIn, Check, burn_in_json
from spark_build.measure.rounds import block_order
from spark_build.measure.verdict import assess
from tests.helpers.simulated import ARMS, CASE, settings_of, simulated_round

SCOPE = {"device": "X", "threads": "2"}


def document(
    speed: float = 1.0, *, candidate: float = 1.0, seed: int = 1, noise: float = 0.01, **scope: str
) -> dict[str, Any]:
    """A run on a machine of so much speed; the candidate is so many times as fast as its baseline."""
    given = settings_of(10, seed)
    order = block_order([arm.name for arm in ARMS], 10, seed)
    chance = random.Random(seed)
    gain = {"wheelhouse": candidate}
    rounds = tuple(
        simulated_round(slot, speed * gain.get(slot.arm, 1.0) * math.exp(chance.gauss(0, noise)))
        for slot in order
    )
    verdict, cases, gates = assess(given, ARMS, len(order), rounds, ())
    made = BurnIn(
        settings=given, arms=ARMS, verdict=verdict, cases=cases, gates=gates, rounds=rounds, scope=SCOPE | scope
    )  # fmt: skip
    return json.loads(json.dumps(burn_in_json(made)))  # type: ignore[no-any-return] # a document


@pytest.mark.parametrize(("speed", "finding"), [(1.2, "faster"), (0.9, "slower"), (1.0, "equivalent")])
def test_what_changed(speed: float, finding: str) -> None:
    crossed = compare_runs(document(), document(speed, seed=2))
    assert crossed.arms == ("wheelhouse", "wheelhouse")
    assert crossed.headline is not None
    assert crossed.headline.case == str(CASE)
    assert crossed.headline.finding == finding
    assert crossed.headline.ratio == pytest.approx(speed, rel=0.01)
    assert crossed.headline.ci95[0] < crossed.headline.ratio < crossed.headline.ci95[1]
    assert crossed.doubts == ()


def test_any_arm_may_be_compared() -> None:
    old, new = document(candidate=1.5), document(seed=2, candidate=2.0)
    assert compare_runs(old, new).changes[0].finding == "faster"
    assert compare_runs(old, new, "public").changes[0].finding == "equivalent"
    with pytest.raises(UsageError, match="no arm"):
        compare_runs(old, new, "mine")


def test_another_machine_is_told() -> None:
    assert compare_runs(document(), document(device="Y")).doubts == ("another device: X, now Y",)


def test_nothing_in_common() -> None:
    other = document()
    for each in other["round_results"]:
        each["measurements"][0]["case"]["size"] = 64
    with pytest.raises(UsageError, match="share no case"):
        compare_runs(document(), other)


@pytest.mark.parametrize(
    ("speed", "noise", "words"), [(0.0, 0.05, ("faster", "slower")), (0.02, 0.01, ("equivalent",))]
)
def test_how_often_it_is_wrong(speed: float, noise: float, words: tuple[str, ...]) -> None:
    found = 0
    for seed in range(100):
        crossed = compare_runs(
            document(seed=seed, noise=noise), document(1 + speed, seed=1000 + seed, noise=noise)
        )
        found += crossed.changes[0].finding in words
    assert found / 100 <= 0.12  # 5%, and what 100 draws may add


def test_the_gate() -> None:
    assert gate_run(document(candidate=1.1), 0.98)[0] == "pass"
    assert gate_run(document(candidate=0.9), 0.98)[0] == "fail"
    assert gate_run(document(candidate=0.98), 0.98)[0] == "inconclusive"
    _, why = gate_run(document(candidate=0.9), 0.98)
    assert "wanted 0.98 or more" in why
    assert gate_run(document(seed=2), 0.95, document())[0] == "pass"
    assert gate_run(document(0.9, seed=2), 0.95, document())[0] == "fail"
    assert gate_run(document(seed=2, device="Y"), 0.95, document()) == (
        "inconclusive",
        "another device: X, now Y",
    )


def test_the_gate_believes_nothing_that_is_spoilt() -> None:
    fast = document(candidate=2.0)
    broken = fast | {"verdict": "FUNCTIONAL-FAIL", "claim": "FUNCTIONAL-FAIL"}
    assert gate_run(broken, 0.98)[0] == "fail"
    bad = [{"name": "clock", "status": "fail", "evidence": ""}]
    assert gate_run(fast | {"gates": bad}, 0.98) == ("inconclusive", "validity gates failed: clock")
    assert gate_run(fast | {"indicative": True}, 0.98)[0] == "inconclusive"
    alone = fast | {"arms": [arm for arm in fast["arms"] if arm["role"] != "candidate"]}
    assert gate_run(alone, 0.98)[0] == "inconclusive"


def test_what_is_no_burn_in() -> None:
    good = document()
    assert check_document(good, "x") is good
    wrongs: list[object] = [[], {}, {"schema": 1}]
    for wrong in wrongs:
        with pytest.raises(UsageError, match="no burn-in"):
            check_document(wrong, "x")
    with pytest.raises(UsageError, match="schema 2"):
        check_document(good | {"schema": 2}, "x")
    for name in ("gates", "round_results", "headline"):
        with pytest.raises(UsageError, match=f"a burn-in without {name}"):
            check_document({key: value for key, value in good.items() if key != name}, "x")


@pytest.mark.parametrize("rate", [math.nan, math.inf, 0.0, -1e12, None])
def test_rates_that_are_none_are_refused(rate: object) -> None:
    damaged = document()
    damaged["round_results"][3]["measurements"][0]["rate"] = rate
    with pytest.raises(UsageError, match="where a number above 0 must be"):
        check_document(damaged, "x")


def test_checks_travel_in_the_document() -> None:
    given = settings_of(2, 1)
    verdict, cases, gates = assess(given, ARMS, 0, (), (), (Check(name="a", status="fail", evidence="b"),))
    made = BurnIn(
        settings=given, arms=ARMS, verdict=verdict, cases=cases, gates=gates, rounds=(),
        checks=(Check(name="a", status="fail", evidence="b"),),
    )  # fmt: skip
    assert burn_in_json(made)["checks"] == [{"name": "a", "status": "fail", "evidence": "b", "package": ""}]
