"""What stands beside a figure in the table of a run."""

from __future__ import annotations

import dataclasses
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spark_build.measure import suite
from spark_build.measure.comparison import held_by
from spark_build.measure.model import Check, Telemetry
from tests.helpers.benches import bench
from tests.helpers.commands import CLI, invoke


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


@pytest.mark.parametrize(
    ("changes", "code", "said"),
    [
        ({}, 0, ""),
        (
            {"telemetry": Telemetry(others=0.9)},
            11,
            "not to be believed: other processes: 90.0% of the processors",
        ),
        ({"invalid": True, "problem": "is invalid: a rate"}, 11, "of mine: is invalid: a rate"),
        ({"problem": "hung"}, 9, "hung"),
    ],
)
def test_a_run_says_what_is_wrong_with_it(
    changes: dict[str, Any], code: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = bench({"mine": {}}, pairs=2)
    rounds = tuple(dataclasses.replace(each, **changes) for each in made.rounds)
    measured = dataclasses.replace(made, rounds=rounds)
    monkeypatch.setattr(suite, "measure_suite", lambda *_: measured)
    general = ["--root", str(tmp_path), "--train", "2.13", "--target", "host-cpu"]
    done = invoke([*CLI, *general, "bench", "run", "--arm", f"mine={tmp_path}"])
    assert done.returncode == code
    assert said in done.stdout
    assert ("unbounded" in done.stdout) == ("telemetry" in changes)
    # As in the report, no figure of a round that failed or is invalid is shown.
    assert bool(re.search(r"^gemm.fp16.8192 +- *$", done.stdout, re.MULTILINE)) == ("problem" in changes)
    document = json.loads(invoke([*CLI, *general, "--json", "bench", "run", "--arm", "mine=x"]).stdout)
    assert (document["exit_code"], bool(document["doubts"])) == (code, code == 11)
