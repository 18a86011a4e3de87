"""Parts of the wider suite with a real torch, where a whole run on this machine shows nothing of them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from spark_build.measure.model import Arm
from spark_build.measure.suite import MOST_CASES

PARTS = Path(__file__).parents[1] / "helpers/suiteparts.py"


@pytest.fixture(scope="module")
def found(baseline: Arm) -> dict[str, Any]:
    """All of them, in one process."""
    done = subprocess.run(
        [baseline.python, "-I", "-B", str(PARTS)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return document


def test_a_peak_is_that_of_the_timed_calls(found: dict[str, Any]) -> None:
    assert found["memory"]["peak"] < found["memory"]["before"] + 200


def test_the_processors_time_of_all_who_work_counts(found: dict[str, Any]) -> None:
    assert found["cpu"] == 7.0
    assert found["ranks"]["busy"] > 0.3  # of three ranks; the one who asks hardly works


def test_bounds_are_bounds(found: dict[str, Any]) -> None:
    assert found["bounds"] == {
        "peak half": "ok", "peak fourfold": "fail", "memory half": "ok", "memory fourfold": "fail",
    }  # fmt: skip


def test_a_wrong_result_is_seen(found: dict[str, Any]) -> None:
    assert found["results"] == {
        "attention.decode.flash.bf16": [".result fail"],
        "decode.fp32.1": [".cache fail"],
        "compiled.eager": [".result fail"],
    }


def test_only_a_refusal_is_skipped(found: dict[str, Any]) -> None:
    kinds = {name: said.partition(":")[0] for name, said in found["refusals"].items()}
    assert kinds == {
        "no kernel": "RuntimeError", "refused": "Unsupported", "flash refuses": "Unsupported",
        "gemm refused": "Unsupported", "gemm broken": "RuntimeError",
        "no compiler": "Unsupported", "no headers": "Unsupported", "inductor broken": "RuntimeError",
        "flash missing": "Unsupported", "flash broken": "ImportError",
    }  # fmt: skip


def test_three_ranks_share_what_three_does_not_divide(found: dict[str, Any]) -> None:
    ranks = found["ranks"]
    assert ranks["check"]["status"] == "ok"
    assert ranks["check"]["evidence"].startswith(f"0 of {3 * 262143} elements wrong, gloo between 3")
    assert ranks["amount"] == pytest.approx(262143 * 4 * 2 / 3)
    assert ranks["plain"] > 0
    assert ranks["share"] == [0.01, 4.0]  # of a plain transfer that is larger
    assert ranks["facts"]["NCCL_NVLS_ENABLE"] == "0"


def test_a_rank_that_ends_is_named_and_takes_the_others_along(found: dict[str, Any]) -> None:
    ranks = found["ranks"]
    assert ranks["killed"].startswith("RuntimeError: rank 1 ended with exit status -9")
    assert ranks["alive"] == [False] * 3
    assert "rank 0 failed: " in ranks["no GPU"]
    assert "cuda" in ranks["no GPU"]


def test_the_last_resort_leaves_time_for_all_cases(found: dict[str, Any]) -> None:
    assert max(found["most_cases"].values()) <= MOST_CASES


def test_an_error_apart_is_told(found: dict[str, Any]) -> None:
    assert found["apart"] == [[{"told": 1}], "ValueError: why"]


def test_a_ceiling_that_was_raised_is_told(found: dict[str, Any]) -> None:
    assert found["ceilings"]["plain"]["copy"] == 7.0
    assert found["ceilings"]["winograd"] is None


def test_quantised_weights_count_as_they_should(found: dict[str, Any]) -> None:
    assert 0 < found["decoders"]["errors"]["int4"] < 0.02
    assert 0 < found["decoders"]["errors"]["fp8"] < 0.06


def test_rotated_positions_tell_their_distance_alone(found: dict[str, Any]) -> None:
    near, as_near, far = found["decoders"]["rope"]
    assert near == pytest.approx(as_near, abs=1e-4)
    assert near != pytest.approx(far, abs=1e-2)


def test_a_cache_that_forgets_is_seen(found: dict[str, Any]) -> None:
    right, forgetful = found["decoders"]["cache"]
    assert right < 1e-3 < forgetful
    assert found["decoders"]["kv"][0] == found["decoders"]["kv"][1]
