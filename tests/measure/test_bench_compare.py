"""A run of known truth gives the right words."""

import dataclasses
from typing import Any

import pytest

from spark_build.errors import UsageError
from spark_build.measure.bounds import ceilings, kinds, places
from spark_build.measure.comparison import band_text, chosen, compare, exit_code, from_bench, joined
from spark_build.measure.csv_io import trial_from_csv
from spark_build.measure.model import Bench, Check, Compared, Telemetry
from spark_build.measure.report.suite_view import headline_text, of_places
from spark_build.measure.request import ResultFields
from tests.helpers import benches

SEED_STORY = {"native": {}, "container": {"gemm": 1.5, "overhead": 1 / 1.3}}


def run(**changes: Any) -> Bench:
    return benches.bench(SEED_STORY, **changes)


def compared(bench: Bench) -> Compared:
    return compare(from_bench(bench))


def test_classes_are_told_by_measuring() -> None:
    bench = benches.bench({"native": {}})
    assert {name: each.kind for name, each in places(bench, "native").items()} == benches.KINDS
    roofs = ceilings(bench)
    assert roofs.bandwidth == pytest.approx(benches.STREAM, rel=0.05)  # the copy in a cache does not count
    assert roofs.arithmetic["fp16"] == pytest.approx(benches.PEAK, rel=0.05)
    seen = places(bench, "native")
    assert seen["conv.fp16"].share == pytest.approx(0.5, rel=0.06)
    assert seen["decode"].share == pytest.approx(0.7, rel=0.06)
    assert seen["decode"].nominal == pytest.approx(0.7 * 250 / 273, rel=0.06)
    assert seen["gemm.fp16.8192"].nominal == pytest.approx(100 / 125, rel=0.06)
    assert of_places(seen)[0][1].startswith("GEMM-bound work: 2 cases reach 9")


def test_names_decide_nothing() -> None:
    """The same case at a hundredth of the speed is bounded by something else."""
    slow = benches.bench({"native": {"gemm": 1.0, "convolution": 0.01}})
    assert places(slow, "native")["model-a"].kind == "overhead"
    calm = run()
    # Where one arm runs well, the class is what bounds it there.
    mixed = benches.bench({"broken": {"convolution": 0.01}, "native": {}})
    assert places(mixed, "broken")["model-a"].kind == "overhead"
    assert kinds(mixed) == benches.KINDS
    assert {each.case: each.kind for each in compared(mixed).changes} == benches.KINDS
    renamed = {work.name: f"x{at}" for at, work in enumerate(calm.works)}
    works = tuple(dataclasses.replace(work, name=renamed[work.name], workload="x") for work in calm.works)
    rounds = tuple(
        dataclasses.replace(
            each,
            figures=tuple(dataclasses.replace(figure, work=renamed[figure.work]) for figure in each.figures),
        )
        for each in calm.rounds
    )
    other = dataclasses.replace(calm, works=works, rounds=rounds)
    assert kinds(other) == {renamed[name]: kind for name, kind in benches.KINDS.items()}


def test_without_ceilings_there_is_no_class() -> None:
    bench = benches.bench({"native": {}}, works=[work for work in benches.WORKS if work.name == "decode"])
    assert places(bench, "native")["decode"].kind is None
    rounds = tuple(
        dataclasses.replace(each, environment={"ceilings": {"copy": 0, "flops": {"fp16": -5.0, "fp32": 0}}})
        for each in bench.rounds
    )
    assert ceilings(dataclasses.replace(bench, rounds=rounds)) == ceilings(bench)


def test_known_truth() -> None:
    seen = compared(run())
    classes = {each.kind: each for each in seen.classes}
    assert {kind: each.finding for kind, each in classes.items()} == {
        "gemm": "faster", "memory": "equivalent", "convolution": "equivalent", "overhead": "slower",
    }  # fmt: skip
    assert classes["gemm"].contrast.ratio == pytest.approx(1.5, rel=0.02)
    assert classes["gemm"].cases == ("gemm.fp16.4096", "gemm.fp16.8192")
    low, high = classes["gemm"].contrast.ci95
    assert low < 1.5 < high
    assert high / low < 1.05
    (tiny,) = [each for each in seen.changes if each.case == "tiny.step"]
    assert (tiny.finding, tiny.band) == ("slower", "20-40%")
    assert tiny.overhead == pytest.approx(30, abs=2)
    assert band_text(tiny) == "20-40%"
    assert tiny.calls[0] is not None
    assert tiny.calls[0].count == 6 * 8
    assert tiny.calls[0].p99 >= tiny.calls[0].p95 >= tiny.calls[0].median
    assert tiny.calls[0].mean == pytest.approx(2e-4, rel=0.05)
    assert seen.indicative  # six pairs
    assert not compared(run(pairs=10)).indicative
    assert headline_text(seen)[0][1].startswith("GEMM-bound work (2 cases): container is 1.5")


def test_every_case_of_a_class_counts_the_same() -> None:
    bench = benches.bench({"native": {}, "container": {"gemm.fp16.8192": 2.0}})
    (gemm,) = [each for each in compared(bench).classes if each.kind == "gemm"]
    assert gemm.contrast.ratio == pytest.approx(2**0.5, rel=0.02)
    # A launch that has not all of them is left out: it would be the mean of other cases.
    first = next(each for each in bench.rounds if (each.slot.arm, each.slot.visit) == ("container", 0))
    lost = dataclasses.replace(first, figures=first.figures[1:])
    rounds = tuple(lost if each is first else each for each in bench.rounds)
    (gemm,) = [
        each for each in compared(dataclasses.replace(bench, rounds=rounds)).classes if each.kind == "gemm"
    ]
    assert gemm.contrast.counts == (5, 5)
    assert gemm.contrast.ratio == pytest.approx(2**0.5, rel=0.02)


def test_the_same_speed_with_other_memory_is_a_finding() -> None:
    seen = compared(run(memory={"native": 20000, "container": 46600}))
    by_case = {each.case: each for each in seen.memory}
    assert by_case["decode"].finding == "same speed, different memory"
    assert by_case["tiny.step"].finding == "different memory"
    assert (by_case["decode"].values[1] - by_case["decode"].values[0]) / 2**30 == pytest.approx(26, abs=0.3)
    assert any(line.startswith("Same speed, different memory: on ") for _, line in headline_text(seen))
    assert compared(run(memory={"native": 20000, "container": 20400})).memory == ()  # 2% is no finding
    assert compared(run(memory={"native": 100, "container": 110})).memory == ()  # nor are 10 MiB


def test_the_same_twice_is_rarely_called_different_in_any_case() -> None:
    """Of a whole run, not of one case: that is what Holm's correction is for."""
    wrong = 0
    for seed in range(40):
        seen = compared(benches.bench({"a": {}, "b": {}}, pairs=3, noise=0.02, seed=seed))
        wrong += any(each.finding in ("faster", "slower") for each in seen.changes)
    assert wrong / 40 <= 0.125


def test_exit_codes() -> None:
    seen = compared(run())
    assert exit_code(seen) == (0, "")
    code, why = exit_code(seen, 20)
    assert (code, why.startswith("slower by more than 20%: tiny.step (3")) == (9, True)
    assert exit_code(seen, 50) == (0, "no case is slower by more than 50%")
    code, why = exit_code(seen, 30)  # the truth: the interval lies on both sides
    assert (code, "cannot be excluded" in why) == (11, True)
    few = compared(run(pairs=2))
    assert {each.finding for each in few.changes} == {"unclear"}
    said = [line for _, line in headline_text(few) if "unclear" in line]
    assert said
    assert all(line.endswith("; fewer than 3 launches of each decide nothing).") for line in said)
    assert exit_code(few)[0] == 11


def test_a_machine_that_was_not_fit_takes_every_claim_away() -> None:
    hot = compared(run(telemetry=Telemetry(throttled=3.0)))
    assert "throttling" in hot.doubts[0]
    assert exit_code(hot, 20)[0] == 11
    wrong = compared(run(checks=(Check(name="mlp.trains", status="fail", evidence="loss 2.3 -> 2.3"),)))
    assert wrong.doubts == (
        "mlp.trains failed in native: loss 2.3 -> 2.3",
        "mlp.trains failed in container: loss 2.3 -> 2.3",
    ) or set(wrong.doubts) == {
        "mlp.trains failed in native: loss 2.3 -> 2.3",
        "mlp.trains failed in container: loss 2.3 -> 2.3",
    }
    assert exit_code(wrong)[0] == 11
    bench = run()
    crashed = dataclasses.replace(bench.rounds[0], problem="killed by signal 9")
    seen = compared(dataclasses.replace(bench, rounds=(crashed, *bench.rounds[1:])))
    assert "killed by signal 9" in seen.doubts[0]
    assert {each.contrast.counts for each in seen.changes} == {(5, 5)}


def day(speed: float, seed: int, **mine: float) -> Bench:
    """A run on a day on which everything is so many times as fast; `mine`: and these kinds again."""
    kinds = ("gemm", "memory", "convolution", "overhead")
    arms = {
        "public": dict.fromkeys(kinds, speed),
        "mine": {kind: speed * mine.get(kind, 1.0) for kind in kinds},
    }
    return benches.bench(arms, seed=seed)


def test_two_runs_are_compared_by_the_arm_that_both_have() -> None:
    old, new = day(1.0, 2), day(1.04, 3, memory=1 / 1.5)
    seen = compare(joined(from_bench(old), from_bench(new)))
    assert not seen.paired
    assert {each.kind: each.finding for each in seen.classes} == {
        "gemm": "equivalent", "memory": "slower", "convolution": "equivalent", "overhead": "equivalent",
    }  # fmt: skip
    assert {(each.first, each.second) for each in seen.changes} == {("mine, old", "mine, new")}
    assert seen.doubts == ()
    moved = dataclasses.replace(new, scope={**new.scope, "driver": "590.2"})
    assert compare(joined(from_bench(old), from_bench(moved))).doubts == ("another driver: 580.1, now 590.2",)


def test_two_runs_without_an_arm_in_common_claim_nothing() -> None:
    old, new = (chosen(from_bench(day(speed, seed)), ["mine"]) for speed, seed in ((1.0, 2), (0.97, 3)))
    seen = compare(joined(old, new))
    assert "variance from day to day unknown" in seen.doubts[0]
    assert exit_code(seen)[0] == 11


def table(**arms: dict[str, list[float]]) -> str:
    rows = [
        f"{arm},{metric.split()[0]},{value},{metric.split()[1]},{run}"
        for arm, metrics in arms.items()
        for metric, values in metrics.items()
        for run, value in enumerate(values, 1)
    ]
    return "\n".join(["environment,metric,value,unit,run", *rows, ""])


CALM = [10.0, 10.01, 10.02, 10.01]


def test_what_one_side_lacks_is_said_and_never_passes() -> None:
    lost = {"x s": CALM, "y s": CALM[:1]}
    seen = compare(trial_from_csv(table(a={"x s": CALM, "y s": CALM, "z s": CALM}, b=lost), "a.csv"))
    assert seen.left_out == ("y: two launches of each are needed, not 4 in a, 1 in b", "z: not in b")
    assert exit_code(seen) == (0, "")
    code, why = exit_code(seen, 5)
    assert (code, "y: two launches" in why, "z: not in b" in why) == (11, True, True)
    old = trial_from_csv(table(a={"x s": CALM, "y s": CALM, "z s": CALM}), "old.csv")
    new = trial_from_csv(table(a={"x s": CALM, "y ms": CALM, "w s": CALM}), "new.csv")
    seen = compare(joined(old, new))
    assert seen.left_out == ("y: in s, then in ms", "z: not in a, new", "w: not in a, old")
    assert exit_code(seen, 5)[0] == 11
    assert compare(joined(old, old)).left_out == ()
    less = trial_from_csv(
        table(a={"x s": CALM, "y s": CALM, "z s": CALM}), "new.csv", ResultFields(lower=("y",))
    )
    assert compare(joined(old, less)).left_out == ()  # seconds: less is better anyway
    then = trial_from_csv(table(base={"x s": CALM}, a={"x s": CALM}), "old.csv")
    now = trial_from_csv(table(base={"x s": CALM[:3]}, a={"x s": [30.0, 30.1, 30.2]}), "new.csv")
    assert exit_code(compare(joined(then, now)), 5)[0] == 9
    points = [
        trial_from_csv(table(a={"loss x": CALM}), "a.csv", ResultFields(lower=some))
        for some in ((), ("loss",))
    ]
    assert compare(joined(*points)).left_out == ("loss: less is better in one of the two only",)


def test_what_only_another_arm_has_is_not_missed() -> None:
    three = trial_from_csv(table(a={"x s": CALM}, b={"x s": CALM}, c={"x s": CALM, "y s": CALM}), "a.csv")
    assert compare(three).left_out == ("y: not in a",)
    assert compare(chosen(three, ("a", "c", "c"))).left_out == ("y: not in a",)
    assert compare(chosen(three, ("a", "b"))).left_out == ()
    bench = run()
    rounds = tuple(
        dataclasses.replace(each, figures=each.figures[1:]) if each.slot.arm == "container" else each
        for each in bench.rounds
    )
    assert compared(dataclasses.replace(bench, rounds=rounds)).left_out == (
        "gemm.fp16.4096: not in container",
    )
    assert compared(bench).left_out == ()
    pairs = "environment,metric,value,unit,round\n" + "".join(
        f"{arm},x,10,s,{number}\n"
        for arm, numbers in (("a", (1, 2, 3)), ("b", (3, 4, 5)))
        for number in numbers
    )
    assert compare(trial_from_csv(pairs, "a.csv")).left_out == ("x: two complete pairs are needed",)


def test_an_arm_that_one_run_lacks_is_said() -> None:
    before = trial_from_csv(table(a={"x s": CALM}, b={"x s": CALM}), "old.csv")
    other = trial_from_csv(table(a={"x s": CALM}, c={"x s": CALM}), "new.csv")
    seen = compare(joined(before, other))
    assert seen.left_out == ("all of b: only in one of the two", "all of c: only in one of the two")
    assert exit_code(seen, 5)[0] == 11
    assert compare(joined(chosen(before, "a"), chosen(other, "a"))).left_out == ()
    assert compare(joined(chosen(before, "b"), chosen(other, "c"))).left_out == ()


def test_memory_alone() -> None:
    seen = compare(trial_from_csv(table(a={"peak GiB": [1, 1, 1]}, b={"peak GiB": [9, 9, 9]}), "a.csv"))
    assert len(seen.memory) == 1
    assert exit_code(seen) == (0, "")
    assert exit_code(seen, 5) == (11, "nothing may be said: there is no speed, only memory")


def test_arms_are_chosen_by_name() -> None:
    three = from_bench(benches.bench({"a": {}, "b": {}, "c": {"gemm": 2.0}}))
    assert three.contrasts == (("a", "b"), ("a", "c"))
    seen = compare(chosen(three, ("c", "b")))
    assert {(each.first, each.second) for each in seen.changes} == {("c", "b")}
    assert next(each for each in seen.classes if each.kind == "gemm").contrast.ratio == pytest.approx(
        0.5, rel=0.02
    )
    with pytest.raises(UsageError, match="no arm 'd'"):
        chosen(three, ("d",))
    with pytest.raises(UsageError, match="no arm in common"):
        joined(three, from_bench(benches.bench({"x": {}, "y": {}})))
