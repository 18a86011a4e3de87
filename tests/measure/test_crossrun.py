"""Two burn-ins compared, and the gate: documents of made-up rates through the real code."""

import json
import math
import random
from typing import Any

import pytest

from spark_build.errors import UsageError
from spark_build.measure.compare_runs import check_document, compare_runs, gate_run, history_of
from spark_build.measure.model import BurnIn, Check, burn_in_json
from spark_build.measure.statistics import balanced_order
from spark_build.measure.verdict import assess
from tests.helpers.simulated import ARMS, CASE, settings_of, simulated_round

SCOPE = {"device": "X", "threads": "2"}


def document(
    speed: float = 1.0, *, candidate: float = 1.0, seed: int = 1, noise: float = 0.01, **scope: str
) -> dict[str, Any]:
    """A run on a machine of so much speed; the candidate is so many times as fast as its baseline."""
    given = settings_of(10, seed)
    order = balanced_order([arm.name for arm in ARMS], 10, seed)
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


@pytest.mark.parametrize("day", [1.0, 0.97])
@pytest.mark.parametrize(("speed", "finding"), [(1.2, "faster"), (0.9, "slower"), (1.0, "equivalent")])
def test_what_changed_whatever_the_day_was_like(speed: float, finding: str, day: float) -> None:
    crossed = compare_runs(document(noise=0.005), document(day, candidate=speed, seed=2, noise=0.005))
    assert crossed.arms == ("wheelhouse", "wheelhouse")
    assert crossed.shared == "public"
    assert crossed.headline is not None
    assert crossed.headline.case == str(CASE)
    assert crossed.headline.finding == finding
    assert crossed.headline.ratio == pytest.approx(speed, rel=0.01)
    assert crossed.headline.rates[1] / crossed.headline.rates[0] == pytest.approx(day * speed, rel=0.02)
    assert crossed.headline.ci95[0] < crossed.headline.ratio < crossed.headline.ci95[1]
    assert crossed.doubts == ()


def test_without_a_shared_arm_nothing_is_claimed() -> None:
    old, new = document(candidate=1.5), document(0.9, seed=2, candidate=2.0)
    assert compare_runs(old, new).changes[0].finding == "faster"
    alone = compare_runs(old, new, "public")  # the other arm is what was built: it may be another each time
    assert (alone.shared, alone.changes[0].finding) == ("", "unclear")
    for arm in new["arms"]:
        arm["versions"] = {"torch": "2.14.0"}
    crossed = compare_runs(old, new)
    assert (crossed.shared, crossed.changes[0].finding) == ("", "unclear")
    assert "variance from day to day unknown" in crossed.doubts[0]
    assert gate_run(new, 0.5, old) == ("inconclusive", crossed.doubts[0])
    with pytest.raises(UsageError, match="no arm"):
        compare_runs(old, new, "mine")


def test_how_much_a_machine_varies_from_run_to_run() -> None:
    days = [1.0, 1.02, 0.98, 1.03, 0.97, 1.0, 1.01, 0.99]
    runs = [document(day, seed=at, noise=0.002) for at, day in enumerate(days)]
    found = {each.arm: each for each in history_of(runs)}
    assert set(found) == {"public", "wheelhouse"}
    assert found["public"].spread == pytest.approx(0.02, abs=0.004)
    assert found["public"].rates[1] == pytest.approx(1.02e11, rel=0.01)
    assert history_of(runs[:2])[0].spread is None
    quiet = [document(seed=at, noise=0.02) for at in range(6)]
    assert (history_of(quiet)[0].spread or 0.0) < 0.008


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
            document(seed=seed, noise=noise),
            document(0.98, candidate=1 + speed, seed=1000 + seed, noise=noise),
        )
        found += crossed.changes[0].finding in words
    assert found / 100 <= 0.12  # 5%, and what 100 draws may add


def test_the_gate() -> None:
    assert gate_run(document(candidate=1.1), 0.98)[0] == "pass"
    assert gate_run(document(candidate=0.9), 0.98)[0] == "fail"
    assert gate_run(document(candidate=0.98), 0.98)[0] == "inconclusive"
    _, why = gate_run(document(candidate=0.9), 0.98)
    assert "wanted 0.98 or more" in why
    assert gate_run(document(0.9, seed=2), 0.95, document())[0] == "pass"
    assert gate_run(document(candidate=0.9, seed=2), 0.95, document(candidate=1.0))[0] == "fail"
    other = document() | {"slower": ["BF16 2048^3 a@b"]}
    assert gate_run(other, 0.98) == ("fail", "slower than the baseline beyond the tolerance: BF16 2048^3 a@b")
    undecided = document() | {"undecided": ["BF16 2048^3 a@b"]}
    assert gate_run(undecided, 0.95)[0] == "pass"
    assert gate_run(undecided, 0.95, every=True)[0] == "inconclusive"
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


@pytest.mark.parametrize(
    "damage",
    [
        {"round_results": [{}]},
        {"round_results": 5},
        {"gates": [5]},
        {"arms": {"a": 1}},
        {"scope": []},
        {"headline": []},
        {"ci95": 5},
        {"ratio": "1"},
    ],
    ids=str,
)
def test_a_document_of_another_shape_is_refused(damage: dict[str, Any]) -> None:
    """One such file among the runs must not end `verify history` as a bug of ours."""
    with pytest.raises(UsageError, match="a damaged burn-in"):
        check_document(document() | damage, "x")


def test_checks_travel_in_the_document() -> None:
    given = settings_of(2, 1)
    verdict, cases, gates = assess(given, ARMS, 0, (), (), (Check(name="a", status="fail", evidence="b"),))
    made = BurnIn(
        settings=given, arms=ARMS, verdict=verdict, cases=cases, gates=gates, rounds=(),
        checks=(Check(name="a", status="fail", evidence="b"),),
    )  # fmt: skip
    written = json.loads(json.dumps(burn_in_json(made)))
    assert written["checks"] == [{"name": "a", "status": "fail", "evidence": "b", "package": ""}]
