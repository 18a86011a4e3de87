"""What stands beside a figure in the table of a run."""

from __future__ import annotations

from dataclasses import replace

from spark_build.measure.comparison import held_by
from spark_build.measure.model import Check
from tests.helpers.benches import bench


def test_what_failed_in_any_round_is_shown() -> None:
    result = bench({"a": {}}, pairs=3)
    name = "gemm.fp16.4096"
    rounds = [
        replace(
            each,
            checks=(Check(name=f"{name}.peak", status="fail" if at == 0 else "ok", evidence=f"round {at}"),),
        )
        for at, each in enumerate(result.rounds)
    ]
    assert held_by(replace(result, rounds=tuple(rounds)), name) == "fail: round 0"
    assert held_by(replace(result, rounds=tuple(rounds[1:])), name) == "round 2"


def test_one_arm_is_not_held_by_what_another_showed() -> None:
    result = bench({"a": {}, "b": {}}, pairs=2)
    rounds = [
        replace(each, checks=(Check(name="x.bound", status="ok", evidence=each.slot.arm),))
        for each in result.rounds
    ]
    for arm in ("a", "b"):
        assert held_by(replace(result, rounds=tuple(rounds)), "x", arm) == arm
    assert held_by(result, "x") == ""


def test_what_memory_bounds_is_held_against_memory() -> None:
    checks = tuple(
        Check(name=f"x.{name}", status="ok", evidence=name) for name in ("flops", "peak", "memory")
    )
    result = bench({"a": {}}, pairs=1)
    result = replace(result, rounds=tuple(replace(each, checks=checks) for each in result.rounds))
    assert [held_by(result, "x", roof=roof) for roof in ("", "arithmetic", "memory")] == [
        "peak",
        "peak",
        "memory",
    ]
