"""What is wrong must be told, by the real command with real processes; only the driver is made up."""

import re
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from spark_build.measure.model import Arm
from spark_build.measure.statistics import balanced_order
from tests.helpers import processes
from tests.helpers.faulty_bench import (
    AS_IF_CUDA,
    CORRUPTED,
    HALF_CLOCK,
    NAN,
    SLOWED,
    command_of,
    fake_nvml,
    faulty,
    verify,
)


def gates(document: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {gate["name"]: (gate["status"], gate["evidence"]) for gate in document["burn_in"]["gates"]}


def sound(baseline: Arm) -> str:
    return f"sound={Path(baseline.python).parents[1]}"


def test_a_corrupted_product(baseline: Arm, tmp_path: Path) -> None:
    bad = faulty(tmp_path / "bad", baseline, CORRUPTED)
    code, document, _ = verify(
        tmp_path / "root", "--arm", sound(baseline), "--arm", f"bad={bad}", "--rounds", "2"
    )
    burn_in = document["burn_in"]
    assert (code, burn_in["verdict"], burn_in["indicative"]) == (9, "FUNCTIONAL-FAIL", False)
    assert "gemm.fp32.128.ab.product failed in bad" in burn_in["explanation"]
    assert [each["slot"]["arm"] for each in burn_in["round_results"]][-1] == "bad"
    assert "FUNCTIONAL-FAIL" in Path(burn_in["report"]).read_text()
    assert "gemm.fp32.128.ab.product" in Path(burn_in["report"]).with_name("report.md").read_text()


def test_a_clock_that_runs_at_half_its_speed(baseline: Arm, tmp_path: Path) -> None:
    bad = faulty(tmp_path / "bad", baseline, HALF_CLOCK)
    code, document, _ = verify(tmp_path / "root", "--arm", f"bad={bad}", "--rounds", "2", "--duration", "0.6")
    burn_in = document["burn_in"]
    assert (code, burn_in["verdict"]) == (0, "INCONCLUSIVE")  # quick: only indicative
    assert re.search(
        r"round 1 of bad\S* is invalid: FP32 128\^3 a@b: its ticks add up to", burn_in["explanation"]
    )
    assert [each["invalid"] for each in burn_in["round_results"]] == [True]


def test_an_operator_that_gives_nan(baseline: Arm, tmp_path: Path) -> None:
    bad = faulty(tmp_path / "bad", baseline, NAN, script="checks/torch.py")
    code, document, said = verify(tmp_path / "root", "--arm", sound(baseline), "--arm", f"bad={bad}")
    assert (code, document["burn_in"]["verdict"]) == (9, "FUNCTIONAL-FAIL")
    failed = [check["name"] for check in document["checks"] if check["status"] == "fail"]
    assert failed == ["torch.attention"]
    assert "torch.attention" in document["burn_in"]["explanation"]
    assert document["burn_in"]["rounds"] == 0
    assert "no round is measured" in said


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (
            {"counters": {"269": 0.001, "74": 0.9}, "processes": 2},
            {"throttling": "counters moved in 4 rounds", "GPU processes": "used the GPU in 4 of 4 rounds"},
        ),
        ({"name": "NVIDIA GB10", "clock": 620}, {"known clock": "620 MHz under load"}),
    ],
)
def test_what_the_driver_tells(
    baseline: Arm, tmp_path: Path, said: dict[str, Any], expected: dict[str, str]
) -> None:
    arm = faulty(tmp_path / "env", baseline, AS_IF_CUDA)
    env = fake_nvml(tmp_path / "driver", **said)
    code, document, _ = verify(
        tmp_path / "root",
        "--arm",
        f"a={arm}",
        "--device",
        "cuda",
        "--rounds",
        "2",
        "--duration",
        "1",
        env=env,
    )
    found = gates(document)
    assert {name for name, (status, _) in found.items() if status == "fail"} - OF_THE_MACHINE == set(
        expected
    ), found
    assert all(evidence in found[gate][1] for gate, evidence in expected.items())
    burn_in = document["burn_in"]
    assert (burn_in["verdict"], code) == ("INCONCLUSIVE", 0)  # quick: only indicative
    assert all(gate in burn_in["claim"] for gate in expected)
    assert burn_in["scope"]["driver"] == "580.1"
    page = Path(burn_in["report"]).read_text()
    assert "power, W (dashed: the limit of 700 W)" in page
    assert "aten::mm" in page  # kernels, by a run of its own


# Where other tests run beside this one:
OF_THE_MACHINE = {"other processes", "stolen time", "A/A control", "surroundings"}


def test_a_driver_that_is_not_there_leaves_unknown(baseline: Arm, tmp_path: Path) -> None:
    arm = faulty(tmp_path / "env", baseline, AS_IF_CUDA)
    env = fake_nvml(tmp_path / "driver", absent=True)
    code, document, _ = verify(
        tmp_path / "root", "--arm", f"a={arm}", "--device", "cuda", "--rounds", "2", env=env
    )
    found = gates(document)
    assert {found[name][0] for name in ("clock", "known clock", "throttling", "GPU processes")} == {"unknown"}
    assert document["burn_in"]["verdict"] in ("EQUIVALENT", "INCONCLUSIVE")
    assert code == 0


@pytest.mark.parametrize(
    ("instead", "evidence"),
    [
        ("echo out of luck; kill -SEGV $$", "crashed with exit status 139"),
        ("exec sleep 60", "hung: no end after 2 s"),
    ],
)
def test_a_round_that_crashes_or_hangs(baseline: Arm, tmp_path: Path, instead: str, evidence: str) -> None:
    bad = faulty(tmp_path / "bad", baseline, instead=instead)
    code, document, _ = verify(tmp_path / "root", "--arm", f"bad={bad}", "--rounds", "2", "--timeout", "2")
    assert (code, document["burn_in"]["verdict"]) == (9, "FUNCTIONAL-FAIL")
    assert evidence in document["burn_in"]["explanation"]
    assert document["burn_in"]["rounds"] == 1


def test_an_interrupted_burn_in_goes_on(baseline: Arm, tmp_path: Path) -> None:
    wished = ("--arm", sound(baseline), "--rounds", "2")
    process = processes.start(
        command_of(tmp_path, *wished), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    while process.poll() is None and not list(tmp_path.glob("runs/*/rounds-*/001-*.json")):
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 130
    code, document, said = verify(tmp_path, *wished)
    assert code == 0
    assert "going on with the burn-in of" in said
    assert "2 of 4 rounds are there already" in said
    assert any("a break of" in each for each in document["burn_in"]["breaks"])
    assert len(list(tmp_path.glob("runs/*/burn-in.json"))) == 1
    assert not list(tmp_path.glob("runs/unfinished-*"))


@pytest.mark.machine  # beside other tests the rounds differ so much that no difference is shown
def test_a_slow_arm_is_found(baseline: Arm, tmp_path: Path) -> None:
    """Fewer threads; and as those are no loss on a crowded machine, an eighth of the clock."""
    slowed = faulty(tmp_path / "slow", baseline, SLOWED)
    _, document, _ = verify(
        tmp_path / "root", "--arm", f"{sound(baseline)},OMP_WAIT_POLICY=PASSIVE",
        "--arm", f"slow={slowed},threads=1", "--rounds", "6", "--size", "512", "--duration", "0.5",
    )  # fmt: skip
    burn_in = document["burn_in"]
    (case,) = (each for each in burn_in["cases"] if each["second"] == "slow")
    assert case["comparison"]["ratio"] < 0.8
    assert case["finding"] == "slower"
    assert burn_in["headline"] == "FP32 512^3 a@b"
    order = [each["slot"]["arm"] for each in burn_in["round_results"]]
    assert order == [slot.arm for slot in balanced_order(["sound", "slow", "sound-again"], 6, seed=7)]
    # On a busy machine the gates rightly forbid the word; the numbers show it all the same.
    assert burn_in["verdict"] in ("REGRESSION", "INCONCLUSIVE")


@pytest.mark.machine
def test_the_same_environment_twice_gets_no_claim(baseline: Arm, tmp_path: Path) -> None:
    """Once in a hundred or more a claim may be made by chance; not twice in a row."""
    folder = Path(baseline.python).parents[1]
    for seed in ("11", "12"):
        _, document, _ = verify(
            tmp_path / seed, "--arm", f"a={folder}", "--arm", f"b={folder}", "--rounds", "6", "--seed", seed
        )
        assert document["burn_in"]["rounds"] == 18
        if document["burn_in"]["verdict"] in ("EQUIVALENT", "INCONCLUSIVE"):
            return
    pytest.fail(f"the same environment was called different twice: {document['burn_in']['claim']}")
