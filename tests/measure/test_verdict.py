import dataclasses
import json
import math
import random
from collections.abc import Sequence
from typing import Any

import pytest

from spark_build.events import Gate
from spark_build.measure.model import (
    Arm,
    BurnIn,
    Case,
    CaseResult,
    Check,
    Device,
    Measurement,
    Mode,
    Round,
    Settings,
    Telemetry,
    Verdict,
    burn_in_json,
)
from spark_build.measure.statistics import balanced_order
from spark_build.measure.verdict import assess, exit_code, name_headline

FP32 = Case(dtype="fp32", size=2048, layout="ab")
BF16 = Case(dtype="bf16", size=2048, layout="ab")
QUIET = Telemetry(others=0.01, steal=0.0, clock_mhz=2600, clock_cv=0.0, throttled=0, free_mib=9000)
A = Arm(name="public", role="baseline", python="p", origin="")
B = Arm(name="wheelhouse", role="candidate", python="w", origin="")
AGAIN = Arm(name="public-again", role="control", python="p", origin="")


def settings(*, mode: Mode = "full", device: Device = "cpu", pairs: int = 10) -> Settings:
    return Settings(
        mode=mode, device=device, cases=(FP32, BF16), headline=FP32, pairs=pairs, seed=1, threads=2,
        warmup=1, window=1, tick=0.1, script="gemm.py",
    )  # fmt: skip


def measured(
    arms: Sequence[Arm], given: Settings, factors: dict[str, float], noise: float, seed: int = 0
) -> list[Round]:
    """Rounds whose arm runs at `factors` of the usual rate, with relative `noise`."""
    chance = random.Random(seed)
    rounds = []
    for slot in balanced_order([arm.name for arm in arms], given.pairs, given.seed):
        rate = 1e11 * factors.get(slot.arm, 1.0)
        found = tuple(
            Measurement(
                case=case,
                rate=rate * math.exp(chance.gauss(0, noise)),
                cv=0.01,
                drop=0,
                steady=True,
                busy=0.99,
            )
            for case in given.cases
        )
        rounds.append(
            Round(
                slot=slot,
                launch="1",
                started="2026-01-01T00:00:00+00:00",
                seconds=1,
                measurements=found,
                telemetry=QUIET,
            )
        )
    return rounds


def judged(
    arms: Sequence[Arm], given: Settings, rounds: Sequence[Round], checks: Sequence[Check] = ()
) -> tuple[Verdict, tuple[CaseResult, ...], dict[str, Gate]]:
    verdict, cases, gates = assess(given, arms, len(arms) * given.pairs, rounds, (), checks)
    return verdict, cases, {gate.name: gate for gate in gates}


def replaced(rounds: list[Round], at: int, **changes: object) -> list[Round]:
    return [*rounds[:at], dataclasses.replace(rounds[at], **changes), *rounds[at + 1 :]]  # type: ignore[arg-type] # by name


def everywhere(rounds: list[Round], **changes: object) -> list[Round]:
    telemetry = dataclasses.replace(QUIET, **changes)  # type: ignore[arg-type] # by name
    return [dataclasses.replace(each, telemetry=telemetry) for each in rounds]


def unread(found: Sequence[Measurement]) -> tuple[Measurement, ...]:
    return tuple(dataclasses.replace(each, busy=None) for each in found)


@pytest.mark.parametrize(
    ("factor", "noise", "word", "code"),
    [
        (1.5, 0.01, "UPLIFT", 0),
        (0.9, 0.01, "REGRESSION", 9),
        (1.0, 0.005, "EQUIVALENT", 0),
        (1.0, 0.2, "INCONCLUSIVE", 11),
    ],
)
def test_words_and_exit_codes(factor: float, noise: float, word: str, code: int) -> None:
    arms, given = (A, B, AGAIN), settings()
    verdict, _, _ = judged(arms, given, measured(arms, given, {"wheelhouse": factor}, noise, 3))
    assert (verdict.word, exit_code(verdict), verdict.indicative) == (word, code, False)
    assert verdict.claim.startswith(word)
    assert verdict.attribution == ("unresolved" if word in ("UPLIFT", "REGRESSION") else None)


def test_the_claim_names_ratio_interval_and_cause() -> None:
    arms, given = (A, B, AGAIN), settings()
    verdict, _, _ = judged(arms, given, measured(arms, given, {"wheelhouse": 1.5}, 0.01))
    assert verdict.headline is not None
    seen = verdict.headline.comparison
    assert verdict.claim == (
        f"UPLIFT {seen.ratio:.3f}x [{seen.ci95[0]:.3f}, {seen.ci95[1]:.3f}], attributed to unresolved"
    )
    assert "FP32 2048^3" in verdict.explanation
    assert verdict.explanation.endswith(".")


def test_a_small_but_certain_difference_is_still_equivalent() -> None:
    arms, given = (A, B, AGAIN), settings()
    verdict, cases, _ = judged(arms, given, measured(arms, given, {"wheelhouse": 1.005}, 0.0005))
    assert cases[0].comparison.ci95[0] > 1
    assert verdict.word == "EQUIVALENT"


def test_quick_is_only_indicative() -> None:
    arms, given = (A, B, AGAIN), settings(mode="quick", pairs=6)
    verdict, _, _ = judged(arms, given, measured(arms, given, {"wheelhouse": 0.5}, 0.01))
    assert (verdict.word, verdict.indicative, exit_code(verdict)) == ("REGRESSION", True, 0)
    assert verdict.explanation.startswith("Only indicative")


def test_many_pairs_in_quick_mode_stay_indicative_and_few_in_full_mode_are() -> None:
    for mode, pairs in (("quick", 12), ("full", 8)):
        given = settings(mode=mode, pairs=pairs)  # type: ignore[arg-type] # literals in a tuple
        verdict, _, _ = judged((A, AGAIN), given, measured((A, AGAIN), given, {}, 0.001))
        assert verdict.indicative


def test_the_control_alone_says_what_could_be_told() -> None:
    given = settings()
    verdict, cases, _ = judged((A, AGAIN), given, measured((A, AGAIN), given, {}, 0.005))
    assert verdict.word == "EQUIVALENT"
    assert "says nothing about a build" in verdict.explanation
    assert f"{cases[0].comparison.detectable:.1%}" in verdict.explanation
    wide, _, _ = judged((A, AGAIN), given, measured((A, AGAIN), given, {}, 0.1))
    assert (wide.word, exit_code(wide)) == ("INCONCLUSIVE", 11)


def uneven(given: Settings, ratios: Sequence[float]) -> list[Round]:
    """Rounds in which the wheelhouse's rate is this multiple of the other's, visit by visit."""
    return [
        dataclasses.replace(
            each,
            measurements=tuple(
                dataclasses.replace(one, rate=one.rate * ratios[each.slot.visit]) for one in each.measurements
            ),
        )
        if each.slot.arm == B.name
        else each
        for each in measured((A, B, AGAIN), given, {}, 0.0)
    ]


def test_too_few_pairs_are_said_to_be_too_few() -> None:
    given = settings(mode="quick", pairs=5)
    verdict, _, _ = judged((A, B, AGAIN), given, uneven(given, (0.5, 0.51, 0.52, 0.49, 0.5)))
    assert verdict.claim == "INCONCLUSIVE (too few pairs)"
    few = "no difference can be claimed from fewer than 6 pairs (sign-flip test): --rounds 10"
    assert f"looks slower, but {few}." in verdict.explanation
    undecided = uneven(given, (0.5, 1.1, 0.9, 1.3, 1.0))
    verdict, _, _ = judged((A, B, AGAIN), given, undecided)
    assert verdict.claim == "INCONCLUSIVE (too few pairs)"
    assert f"decides nothing: {few}." in verdict.explanation
    alone, _, _ = judged((A, AGAIN), given, measured((A, AGAIN), given, {}, 0.1))
    assert few in alone.explanation
    assert "could tell" not in alone.explanation
    enough = settings(mode="quick", pairs=6)
    verdict, _, _ = judged((A, B, AGAIN), enough, uneven(enough, (0.5, 0.51, 0.52, 0.49, 0.5, 0.48)))
    assert verdict.word == "REGRESSION"


def test_tests_that_disagree_are_said_to_disagree() -> None:
    given = settings(mode="quick", pairs=7)
    ratios = (1.2, 1.2, 1.21, 1.22, 1.19, 0.99, 0.99)  # two of seven lie on the other side
    verdict, (headline, *_), _ = judged((A, B, AGAIN), given, uneven(given, ratios))
    seen = headline.comparison
    assert seen.flip_p is not None
    assert seen.p < 0.05 <= seen.flip_p
    assert verdict.claim == "INCONCLUSIVE (two tests disagree)"
    assert verdict.explanation.endswith(
        f"looks faster, but the sign-flip test does not agree (p = {seen.flip_p:.2f})."
    )


def test_a_control_that_differs_spoils_everything() -> None:
    arms, given = (A, B, AGAIN), settings()
    rounds = measured(arms, given, {"wheelhouse": 1.5, "public-again": 1.2}, 0.005)
    verdict, _, gates = judged(arms, given, rounds)
    assert gates["A/A control"].status == "fail"
    assert verdict.word == "INCONCLUSIVE"
    alone = measured((A, AGAIN), given, {"public-again": 1.2}, 0.005)
    assert judged((A, AGAIN), given, alone)[0].word == "INCONCLUSIVE"


@pytest.mark.parametrize(
    ("changes", "gate"),
    [
        ({"others": 0.4}, "other processes"),
        ({"steal": 0.2}, "stolen time"),
        ({"throttled": 3}, "throttling"),
        ({"clock_cv": 0.2}, "clock"),
        ({"free_mib": 100}, "memory"),
        ({"utilisation": 0.3}, "utilisation"),
        ({"other_processes": 1}, "GPU processes"),
    ],
)
def test_a_failed_gate_is_inconclusive_never_a_failure(changes: dict[str, object], gate: str) -> None:
    arms, given = (A, B, AGAIN), settings(device="cuda")
    rounds = everywhere(measured(arms, given, {"wheelhouse": 0.5}, 0.01), **changes)
    if gate == "utilisation":  # of the GPU; the share of processor time says nothing there
        rounds = [dataclasses.replace(each, measurements=unread(each.measurements)) for each in rounds]
    verdict, _, gates = judged(arms, given, rounds)
    assert gates[gate].status == "fail"
    assert (verdict.word, exit_code(verdict)) == ("INCONCLUSIVE", 11)
    assert gate in verdict.claim


def told(threads: int = 2, device: str = "X", visible: str = "0") -> dict[str, object]:
    return {
        "device": {"name": device}, "torch": {"threads": threads}, "variables": {"CUDA_VISIBLE_DEVICES": visible},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "environment", "gates_failed"),
    [
        ({"others": 0.4}, told(), {"other processes", "surroundings"}),  # the median over all arms is calm
        ({"others": 0.09}, told(), {"surroundings"}),
        ({"limit_watts": 350.0}, told(), {"surroundings"}),
        ({"performance": 0.5}, told(), {"surroundings"}),
        ({"clock_mhz": 1300.0}, told(), {"surroundings"}),
        ({"utilisation": 0.3}, told(), {"utilisation"}),
        ({"steal": 0.2}, told(), {"stolen time"}),
        ({}, told(threads=1), {"surroundings"}),
        ({}, told(device="Y"), {"surroundings"}),
        ({}, told(visible="1"), {"surroundings"}),
        ({"clock_mhz": 2100.0, "limit_watts": 699.0}, told(), set()),
    ],
)
def test_what_only_one_arm_meets_spoils_the_claim(
    changes: dict[str, Any], environment: dict[str, Any], gates_failed: set[str]
) -> None:
    arms, given = (A, B, AGAIN), settings(device="cuda")
    calm = dataclasses.replace(QUIET, limit_watts=700.0, performance=1.0, utilisation=0.95)
    rounds = [
        dataclasses.replace(
            each,
            measurements=unread(each.measurements),
            telemetry=dataclasses.replace(calm, **(changes if each.slot.arm == "wheelhouse" else {})),
            environment=environment if each.slot.arm == "wheelhouse" else told(),
        )
        for each in measured(arms, given, {"wheelhouse": 1.5}, 0.005)
    ]
    verdict, _, gates = judged(arms, given, rounds)
    assert {name for name, gate in gates.items() if gate.status == "fail"} == gates_failed
    assert verdict.word == ("INCONCLUSIVE" if gates_failed else "UPLIFT")
    assert not gates_failed or any("wheelhouse" in gates[name].evidence for name in gates_failed)


def test_what_two_arms_of_one_environment_are_given_is_the_claim() -> None:
    one = dataclasses.replace(B, python=A.python, threads=1)
    arms, given = (A, one, AGAIN), settings()
    rounds = [
        dataclasses.replace(each, environment=told(threads=1 if each.slot.arm == one.name else 2))
        for each in measured(arms, given, {"wheelhouse": 0.5}, 0.005)
    ]
    verdict, _, gates = judged(arms, given, rounds)
    assert gates["surroundings"].status == "ok"
    assert verdict.word == "REGRESSION"
    assert "what differs is threads (default, 1)" in verdict.explanation


def test_what_cannot_be_read_is_unknown_and_no_obstacle() -> None:
    arms, given = (A, B, AGAIN), settings(device="cuda")
    rounds = [
        dataclasses.replace(each, telemetry=Telemetry())
        for each in measured(arms, given, {"wheelhouse": 1.5}, 0.01)
    ]
    verdict, _, gates = judged(arms, given, rounds)
    assert {gates[name].status for name in ("clock", "throttling", "memory", "GPU processes")} == {"unknown"}
    assert verdict.word == "UPLIFT"


def test_a_power_cap_is_shown_but_does_not_spoil() -> None:
    given = settings(device="cuda")
    rounds = everywhere(measured((A, AGAIN), given, {}, 0.005), reasons=("SW power cap",))
    gate = judged((A, AGAIN), given, rounds)[2]["throttling"]
    assert gate.status == "warn"
    assert "SW power cap" in gate.evidence


def test_a_wrong_product_fails_whatever_its_speed_even_in_quick_mode() -> None:
    arms, given = (A, B, AGAIN), settings(mode="quick", pairs=6)
    rounds = measured(arms, given, {"wheelhouse": 2}, 0.01)
    at = next(index for index, each in enumerate(rounds) if each.slot.arm == "wheelhouse")
    wrong = Check(name="gemm.fp32.2048.ab.product", status="fail", evidence="3 elements not finite")
    verdict, _, _ = judged(arms, given, replaced(rounds, at, checks=(wrong,)))
    assert (verdict.word, verdict.indicative, exit_code(verdict)) == ("FUNCTIONAL-FAIL", False, 9)
    assert "3 elements not finite" in verdict.explanation
    assert "wheelhouse" in verdict.explanation


def test_a_failed_check_of_the_battery_fails() -> None:
    arms, given = (A, B, AGAIN), settings()
    bad = Check(name="sdpa.efficient", status="fail", evidence="NaN")
    verdict, _, _ = judged(arms, given, measured(arms, given, {"wheelhouse": 2}, 0.01), (bad,))
    assert verdict.word == "FUNCTIONAL-FAIL"


def test_a_crash_fails_but_being_killed_does_not() -> None:
    given = settings()
    rounds = measured((A, AGAIN), given, {}, 0.005)
    crash = replaced(rounds, 3, problem="crashed with exit status 139: Segmentation fault", measurements=())
    assert judged((A, AGAIN), given, crash)[0].word == "FUNCTIONAL-FAIL"
    killed = replaced(rounds, 3, problem="was killed (SIGKILL)", killed=True, measurements=())
    verdict, _, gates = judged((A, AGAIN), given, killed)
    assert verdict.word == "INCONCLUSIVE"
    assert "killed" in gates["rounds"].evidence


def test_too_few_rounds() -> None:
    given = settings()
    verdict, cases, _ = judged((A, AGAIN), given, measured((A, AGAIN), given, {}, 0.01)[:2])
    assert cases == ()
    assert verdict.word == "INCONCLUSIVE"


def other_case(factor: float, headline: float = 1.0, noise: float = 0.003, cases: int = 2) -> Verdict:
    """The verdict where every case but the headline runs at `factor` in the wheelhouse."""
    every = (FP32, *(dataclasses.replace(BF16, size=1024 + at) for at in range(cases - 1)))
    given = dataclasses.replace(settings(), cases=every)
    arms = (A, B, AGAIN)
    rounds = [
        dataclasses.replace(
            each,
            measurements=tuple(
                dataclasses.replace(m, rate=m.rate * (headline if m.case == FP32 else factor))
                for m in each.measurements
            ),
        )
        if each.slot.arm == "wheelhouse"
        else each
        for each in measured(arms, given, {}, noise)
    ]
    return judged(arms, given, rounds)[0]


@pytest.mark.parametrize("cases", [2, 40])
def test_a_case_shown_slower_decides_however_many_there_are(cases: int) -> None:
    half = other_case(0.5, cases=cases)
    assert (half.word, exit_code(half)) == ("REGRESSION", 9)
    assert half.claim.startswith("REGRESSION (slower on BF16 1024^3 a@b 0.")
    assert len(half.slower) == cases - 1
    mixed = other_case(0.9, headline=1.5, cases=cases)
    assert (mixed.word, exit_code(mixed)) == ("MIXED", 9)
    assert "Slower by more than 2%" in mixed.explanation
    both = other_case(0.9, headline=0.8, cases=cases)
    assert both.word == "REGRESSION"
    assert "; slower on BF16" in both.claim


def test_a_case_within_the_tolerance_decides_nothing_and_an_unclear_one_is_named() -> None:
    within = other_case(0.99)
    assert (within.word, within.slower, within.undecided) == ("EQUIVALENT", (), ())
    unclear = other_case(0.97, noise=0.02)
    assert (unclear.slower, unclear.undecided) == ((), ("BF16 1024^3 a@b",))
    assert "Not shown to be within 2% of the baseline, nor slower: BF16 1024^3 a@b." in unclear.explanation
    faster = other_case(1.2, noise=0.02)
    assert (faster.slower, faster.undecided) == ((), ())


def test_what_works_in_the_baseline_and_not_in_the_other_is_a_failure() -> None:
    arms, given = (A, B, AGAIN), settings()
    skipped = Check(name="gemm.bf16.2048", status="skipped", evidence="torch has no bfloat16")
    rounds = [
        dataclasses.replace(each, measurements=each.measurements[:1], checks=(skipped,))
        if each.slot.arm == "wheelhouse"
        else each
        for each in measured(arms, given, {"wheelhouse": 2}, 0.01)
    ]
    verdict, _, _ = judged(arms, given, rounds)
    assert (verdict.word, exit_code(verdict)) == ("FUNCTIONAL-FAIL", 9)
    assert (
        "BF16 2048^3 a@b works in public and not in wheelhouse (torch has no bfloat16)" in verdict.explanation
    )
    neither = [dataclasses.replace(each, measurements=each.measurements[:1]) for each in rounds]
    assert judged(arms, given, neither)[0].word == "UPLIFT"


def test_headlines() -> None:
    cases = [
        Case(dtype=d, size=n, layout=f)
        for d in ("bf16", "fp16", "fp32")
        for n in (4096, 8192, 16384)
        for f in ("ab", "linear")
    ]
    assert name_headline("cuda", cases) == Case(dtype="fp16", size=8192, layout="ab")
    assert name_headline("cpu", cases) == Case(dtype="fp32", size=16384, layout="ab")
    small = [case for case in cases if case.size == 4096 and case.dtype == "bf16"]
    assert name_headline("cuda", small) == small[0]


def test_the_documented_json() -> None:
    given = settings()
    rounds = tuple(measured((A, AGAIN), given, {}, 0.01))
    verdict, cases, gates = assess(given, (A, AGAIN), 20, rounds, ())
    result = BurnIn(settings=given, arms=(A, AGAIN), verdict=verdict, cases=cases, gates=gates, rounds=rounds)
    document = json.loads(json.dumps(burn_in_json(result)))
    assert {"verdict", "indicative", "ratio", "ci95", "attribution", "rounds", "gates"} <= document.keys()
    assert document["ci95"][0] < document["ratio"] < document["ci95"][1]
    assert document["rounds"] == 20
    assert {"name", "status", "evidence"} == document["gates"][0].keys()
    assert "window" not in document["round_results"][0]["measurements"][0]
    assert "window" in burn_in_json(result, raw=True)["round_results"][0]["measurements"][0]


def clocked(rounds: Sequence[Round], clocks: dict[str, Sequence[float]], cv: float = 0.01) -> list[Round]:
    """The same rounds; their windows ran at these clocks (by arm, in MHz)."""
    series = {arm: iter(values) for arm, values in clocks.items()}
    found = []
    for each in rounds:
        clock = next(series[each.slot.arm])
        windows = tuple(
            dataclasses.replace(one, clock_mhz=clock, clock_cv=cv, busy=None) for one in each.measurements
        )
        found.append(dataclasses.replace(each, measurements=windows))
    return found


# TF32 4096^3 of an H200 at its power cap (torch 2.11.0, ten rounds each), and the same with TF32 switched off.
CAPPED = (1547, 1535, 1545, 1536, 1547, 1557, 1543, 1536, 1547, 1552)
CAPPED_AGAIN = (1538, 1552, 1547, 1542, 1547, 1535, 1551, 1551, 1532, 1543)


def test_arms_that_do_other_work_may_have_other_clocks() -> None:
    arms, given = (A, B, AGAIN), settings(device="cuda")
    rounds = clocked(
        measured(arms, given, {"wheelhouse": 0.153}, 0.003),
        {"public": CAPPED, "public-again": CAPPED_AGAIN, "wheelhouse": [1980] * 10},
        cv=0.034,
    )
    verdict, _, gates = judged(arms, given, rounds)
    assert gates["clock"].status == "ok"
    assert gates["clock"].evidence.startswith("1532 to 1980 MHz, varying by 3.4% at the same work")
    assert (verdict.word, exit_code(verdict)) == ("REGRESSION", 9)


@pytest.mark.parametrize(
    ("clocks", "cv"), [([1980, 1400] * 5, 0.0), ([1980] * 10, 0.2)], ids=["between rounds", "within windows"]
)
def test_a_clock_that_moves_at_the_same_work_spoils(clocks: Sequence[float], cv: float) -> None:
    arms, given = (A, B, AGAIN), settings(device="cuda")
    steady = dict.fromkeys(("public", "public-again", "wheelhouse"), [1980.0] * 10)
    rounds = clocked(
        measured(arms, given, {"wheelhouse": 1.5}, 0.003), {**steady, "wheelhouse": clocks}, cv=cv
    )
    verdict, _, gates = judged(arms, given, rounds)
    assert gates["clock"].status == "fail"
    assert (verdict.word, exit_code(verdict)) == ("INCONCLUSIVE", 11)


def test_what_only_the_clock_makes_is_shown() -> None:
    """A tenth faster at a clock that is a tenth higher: the same for each GHz."""
    arms, given = (A, B, AGAIN), settings(device="cuda")
    steady = dict.fromkeys(("public", "public-again"), [1500.0] * 10)
    rounds = measured(arms, given, {"wheelhouse": 1.1}, 0.0)
    verdict, cases, _ = judged(arms, given, clocked(rounds, {**steady, "wheelhouse": [1650.0] * 10}))
    assert verdict.headline is not None
    assert verdict.headline.comparison.ratio == pytest.approx(1.1)
    assert verdict.headline.per_clock == pytest.approx(1.0)
    assert "for each GHz of clock 1.000" in verdict.explanation
    assert {each.per_clock for each in judged(arms, given, rounds)[1]} == {None}  # no clocks: unknown
    assert len([each for each in cases if each.per_clock]) == 4


def test_the_loss_within_a_window_is_told() -> None:
    given = settings()
    rounds = measured((A, AGAIN), given, {}, 0.005)
    falling = tuple(dataclasses.replace(one, drop=0.123) for one in rounds[3].measurements)
    gates = judged((A, AGAIN), given, replaced(rounds, 3, measurements=falling))[2]
    assert gates["steadiness"].evidence.endswith("last quarter of one: 12.3%")
