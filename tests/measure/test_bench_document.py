import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_build.errors import UsageError
from spark_build.measure.model import (
    Arm,
    Bench,
    BenchRound,
    BenchSettings,
    Check,
    Figure,
    Reference,
    Slot,
    Telemetry,
    Work,
    bench_json,
)
from spark_build.measure.suite import bench_from_json
from tests.helpers import benches
from tests.helpers.commands import hint_text

words = st.text(max_size=6)
names = words.filter(str.isprintable)
numbers = st.floats(allow_nan=False, allow_infinity=False)
positive = st.floats(1e-9, 1e18)
some = st.none() | numbers
counts = st.none() | st.floats(0, 1e18)
anything = st.dictionaries(
    words, st.recursive(st.none() | st.booleans() | st.integers(-9, 9) | numbers | words,
                        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(words, inner, max_size=2)),
    max_size=2,
)  # fmt: skip
readings = st.dictionaries(words, numbers, max_size=2)
checks = st.builds(Check, name=words, status=st.sampled_from(["ok", "fail", "skipped"]), evidence=words)


def many(of: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(of, max_size=2).map(tuple)


works = st.builds(
    Work, name=names, workload=words, unit=words, amount=positive, dtype=words, mode=words, operation=words,
    size=st.none() | st.integers(0, 9), flops=counts, moved=counts,
)  # fmt: skip
telemetry = st.builds(
    Telemetry, load=some, watts=some, free_mib=st.none() | st.integers(0, 9), reasons=many(words)
)
bench_settings = st.builds(
    BenchSettings, mode=st.sampled_from(["quick", "full"]), device=st.sampled_from(["cpu", "cuda"]),
    workloads=many(words), pairs=st.integers(1, 9), seed=st.integers(0, 9), threads=st.integers(1, 9), warmup=numbers,
    window=numbers, cool=some, patience=some, script=words, inject=words, notes=many(words),
)  # fmt: skip
arms = st.builds(
    Arm, name=names, role=st.sampled_from(["baseline", "candidate", "control", "variant"]), python=words, origin=words,
    versions=st.dictionaries(words, words, max_size=2), env=st.dictionaries(words, words, max_size=1),
    threads=st.integers(0, 9), image=words, engine=words, swapped=many(words),
)  # fmt: skip
references = st.builds(
    Reference, name=words, device=words, rates=st.dictionaries(words, st.tuples(numbers, numbers), max_size=2),
    nominal=readings, least_size=st.integers(0, 9), bandwidth=some, least_clock=some, sources=many(words),
)  # fmt: skip


@st.composite
def runs(draw: st.DrawFn) -> Bench:
    known = draw(st.lists(works, min_size=1, max_size=2))
    named = draw(st.lists(arms, min_size=1, max_size=2))
    figures = st.builds(
        Figure, work=st.sampled_from([work.name for work in known]), rate=st.floats(0, 1e18), calls=many(numbers),
        span=st.tuples(numbers, numbers), steady=st.booleans(), peak=readings, facts=anything,
    )  # fmt: skip
    slots = st.builds(
        Slot, index=st.integers(0, 9), visit=st.integers(0, 9), block=st.integers(0, 9),
        arm=st.sampled_from([arm.name for arm in named]),
    )  # fmt: skip
    rounds = st.builds(
        BenchRound, slot=slots, launch=words, started=words, seconds=numbers, problem=words, figures=many(figures),
        checks=many(checks), telemetry=telemetry, environment=anything,
        samples=many(st.tuples(numbers, readings)), file=words,
    )  # fmt: skip
    return draw(
        st.builds(
            Bench, settings=bench_settings, arms=st.just(tuple(named)), works=st.just(tuple(known)), rounds=many(rounds),
            breaks=many(words), notes=many(words), reference=st.none() | references,
            scope=st.dictionaries(words, words, max_size=2), folder=words,
        )
    )  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(runs())
def test_there_and_back(bench: Bench) -> None:
    assert bench_from_json(json.loads(json.dumps(bench_json(bench)))) == bench


def test_a_whole_run_there_and_back() -> None:
    bench = benches.bench({"native": {}, "container": {"gemm": 1.5}})
    assert bench_from_json(json.loads(json.dumps(bench_json(bench)))) == bench


def document() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(bench_json(benches.bench({"native": {}}, pairs=2))))
    return found


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda raw: raw.pop("kind"), "no run of the suite"),
        (lambda raw: raw.update(kind="burn-in"), "no run of the suite"),
        (lambda raw: raw.update(schema=2), "schema 2; this program knows 1"),
        (lambda raw: raw.pop("arms"), r"arms: Field required|arms: Missing"),
        (lambda raw: raw.update(arms=[]), "without arms"),
        (lambda raw: raw.update(colour="red"), "colour: "),
        (lambda raw: raw["rounds"][1]["figures"][0].update(rate="fast"), r"rounds\.1\.figures\.0\.rate: "),
        (lambda raw: raw["rounds"][1]["figures"][0].update(rate=True), r"rounds\.1\.figures\.0\.rate: "),
        (lambda raw: raw["rounds"][0]["figures"][2].update(work="x"), "round 1 has an unknown case 'x'"),
        (lambda raw: raw["rounds"][0]["slot"].update(arm="x"), "round 1 is of an unknown arm 'x'"),
        (lambda raw: raw["works"][0].update(amount=0), r"gemm\.fp16\.4096: an amount of 0"),
        (
            lambda raw: raw["rounds"][1]["figures"][0].update(rate=-1.0),
            r"round 2, gemm\.fp16\.4096: a rate of -1",
        ),
        (lambda raw: raw["rounds"][1]["figures"][0].update(rate=1e101), r"a rate of 1e\+101"),
        (
            lambda raw: raw["rounds"][1]["figures"][0].update(rate=float("nan")),
            r"rounds\.1\.figures\.0\.rate: ",
        ),
        (lambda raw: raw["settings"].update(mode="slow"), r"settings\.mode: "),
        (lambda raw: raw["works"][0].update(flops=-1e9), r"gemm\.fp16\.4096: -1000000000.0 FLOP"),
        (lambda raw: raw["works"][0].update(moved=-1.0), r"-1\.0 bytes moved"),
        (lambda raw: raw["works"][0].update(moved=1e300), r"1e\+300 bytes moved"),
        (
            lambda raw: raw["rounds"][1]["figures"][0].update(facts={"flops_by": {"gemm": "x"}}),
            r"round 2, gemm\.fp16\.4096: flops_by is no number",
        ),
        (
            lambda raw: raw["rounds"][1]["figures"][0].update(facts={"flops_by": {"gemm": -1}}),
            "flops_by is no number",
        ),
        (lambda raw: raw["rounds"][1]["figures"][0].update(facts={"flops_by": [1]}), "flops_by is no number"),
        (lambda raw: raw["arms"][0].update(name="a\x1b[2J"), r"a name with control characters: a\\x1b\[2J"),
        (lambda raw: raw.update({"a\x1b": 1}), r"^a\\x1b: "),
    ],
)
def test_what_is_no_run_is_refused_with_the_place(change: Any, problem: str) -> None:
    raw = document()
    change(raw)
    with pytest.raises(UsageError, match=problem) as caught:
        bench_from_json(raw, "runs/x/bench.json")
    assert caught.value.where == "runs/x/bench.json"
    assert caught.value.hint


def test_a_burn_in_is_sent_to_its_own_command() -> None:
    with pytest.raises(UsageError, match="no run of the suite") as caught:
        bench_from_json({"schema": 1, "verdict": "EQUIVALENT"})
    assert "verify compare" in hint_text(caught.value.hint)


@pytest.mark.parametrize("raw", [None, 3, "bench", [], {}])
def test_nor_is_anything_else(raw: object) -> None:
    with pytest.raises(UsageError, match="no run"):
        bench_from_json(raw)
