"""What stands beside a figure in the table of a run."""

from __future__ import annotations

from dataclasses import replace

from spark_build.cli.bench_run import _held
from spark_build.model.verification import Check
from tests.benches import bench


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
    assert _held(replace(result, rounds=tuple(rounds)), name) == "fail: round 0"
    assert _held(replace(result, rounds=tuple(rounds[1:])), name) == "round 2"
