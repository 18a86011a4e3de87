"""The operator checks themselves, with a real torch: sound operators pass, and no fault goes unseen."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from spark_build.measure.checks import run_checks
from spark_build.measure.model import Arm
from tests.conftest import ROOT
from tests.helpers import planted_faults

# What no processor has; the program that plants the faults does these, too, where there is a GPU.
GPU_ONLY = {
    "torch.libraries", "torch.storage", "tensor_cores.fp8-rows", "tensor_cores.fp4", "tensor_cores.sparse-2of4",
}  # fmt: skip
# Skipped here when sound, but a fault makes them answer.
STAND_IN = {"torch.architectures", "attention.efficient", "attention.cudnn", "attention.efficient-kernels"}


@pytest.fixture(scope="module")
def found(baseline: Arm, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """All checks, sound and with every fault, in one process: importing torch takes seconds."""
    folder = tmp_path_factory.mktemp("planted")
    wanted = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder / "more")]
    subprocess.run([*wanted, "onnx", "onnxscript"], check=True)
    command = [baseline.python, "-I", "-B", planted_faults.__file__, "--out", str(folder / "out.json")]
    # Whether this processor has the instructions it names was asked by trial compilations: 15 s.
    env = {**os.environ, "TORCHINDUCTOR_VEC_ISA_OK": "1"}
    done = subprocess.run(
        [*command, "--also", str(folder / "more")], capture_output=True, text=True, check=False, env=env
    )
    assert done.returncode == 0, done.stdout + done.stderr
    document: dict[str, Any] = json.loads((folder / "out.json").read_text())
    return document


def test_sound_operators_pass(found: dict[str, Any]) -> None:
    failed = {name: each for name, each in found["sound"].items() if each["status"] == "fail"}
    assert failed == {}
    skipped = {name for name, each in found["sound"].items() if each["status"] == "skipped"}
    assert skipped == {*GPU_ONLY, *STAND_IN}
    assert all(each["evidence"] for each in found["sound"].values())
    assert "allowed" in found["sound"]["layers.convolution"]["evidence"]
    assert "no GPU here" in found["sound"]["tensor_cores.fp4"]["evidence"]


def test_every_planted_fault_is_seen(found: dict[str, Any]) -> None:
    assert found["missed"] == []
    seen = {each["name"] for each in found["planted"] if each["status"] == "fail"}
    assert seen == set(found["sound"]) - GPU_ONLY, "a check that nothing was planted for"


def test_the_faults_cover_every_check(found: dict[str, Any]) -> None:
    """Also of the scripts that need a GPU or packages which are not here."""
    covered = {fault.check for fault in planted_faults.FAULTS} | planted_faults.NEVER
    ours = {check for check in found["checks"] if check.partition(".")[0] != "onnx"}
    assert covered == ours
    assert {check.partition(".")[0] for check in found["checks"]} == set(planted_faults.SCRIPTS)


def test_a_kernel_that_was_built_for_another_gpu(found: dict[str, Any]) -> None:
    """What it prints through C is taken for what it is, even where the numbers would do."""
    said = [each["evidence"] for each in found["planted"] if each["fault"].endswith("FATAL")]
    assert len(said) == 2
    assert all("was built for sm121" in each and "pytorch#176243" in each for each in said)


def test_a_crash_names_its_check_and_keeps_the_others(tmp_path: Path) -> None:
    script = tmp_path / "crashing.py"
    script.write_text(
        f"import os, sys\nsys.path.insert(0, {str(ROOT / 'bench')!r})\nfrom judging import run\n"
        "run({'first': lambda: 'seen', 'second': os.abort, 'third': lambda: 'never'})\n"
    )
    checks = run_checks(python=Path(sys.executable), scripts=[script], work=tmp_path / "work", package="demo")
    assert [(check.name, check.status, check.package) for check in checks] == [
        ("crashing.first", "ok", "demo"),
        ("crashing.second", "fail", "demo"),
        ("crashing.run", "fail", "demo"),
    ]
    assert "during this check" in checks[1].evidence


def test_what_a_check_printed_before_it_crashed_is_kept(tmp_path: Path) -> None:
    """As a kernel of another GPU, after which the process is killed."""
    script = tmp_path / "crashing.py"
    script.write_text(
        f"import ctypes, os, sys\nsys.path.insert(0, {str(ROOT / 'bench')!r})\nfrom judging import run\n"
        f"def crash():\n    os.write(1, {planted_faults.FATAL!r})\n    os.abort()\n"
        "run({'one': crash})\n"
    )
    checks = run_checks(python=Path(sys.executable), scripts=[script], work=tmp_path / "work")
    assert [check.name for check in checks] == ["crashing.one", "crashing.run", "crashing.kernels"]
    assert "was built for sm121" in checks[2].evidence
    assert planted_faults.FATAL in (tmp_path / "work/crashing.log").read_bytes()
    assert [path.name for path in (tmp_path / "work").iterdir() if path.suffix == ".said"] == []


def test_one_fault_is_told_once(tmp_path: Path) -> None:
    script = tmp_path / "printing.py"
    script.write_text(
        f"import os, sys\nsys.path.insert(0, {str(ROOT / 'bench')!r})\nfrom judging import run\n"
        f"run({{'one': lambda: str(os.write(1, 3 * {planted_faults.FATAL!r}))}})\n"
    )
    (check,) = run_checks(python=Path(sys.executable), scripts=[script], work=tmp_path / "work")
    assert check.status == "fail"
    assert check.evidence.startswith("3 times: ")


@pytest.mark.parametrize(
    ("built", "capability", "fits"),
    [
        ("sm_121", (12, 1), "native"), ("sm_121a", (12, 1), "native"), ("sm_120", (12, 1), "runs, not native"),
        ("sm_120f", (12, 1), "runs, not native"), ("sm_120a", (12, 1), ""), ("sm_121", (12, 0), ""),
        ("sm_80", (9, 0), ""), ("sm_90a", (9, 0), "native"), ("compute_90", (12, 1), "compiled when it is loaded"),
        ("compute_120", (9, 0), ""), ("compute_90a", (12, 1), ""), ("something", (9, 0), ""),
    ],
)  # fmt: skip
def test_what_runs_on_which_gpu(
    built: str, capability: tuple[int, int], fits: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    assert planted_faults.load("torch").fitting(built, *capability) == fits


TRITON = {
    "__init__.py": "__version__ = '3.5.1'\njit = lambda function: function\n",
    "language.py": "constexpr = int\n",
    "backends/nvidia/compiler.py": """
import os
from pathlib import Path
class Tool: pass
def get_ptxas():
    tool = Tool()
    tool.path = os.environ.get("TRITON_PTXAS_PATH") or str(Path(__file__).with_name("ptxas"))
    return tool
""",
    "backends/nvidia/ptxas": """#!/bin/sh
[ "$1" = --version ] && echo 'Cuda compilation tools, release 12.8, V12.8.93'
[ "$1" = --help ] && echo "Allowed values: 'sm_90','sm_90a','sm_120a'"
exit 0
""",
}
ASK = """
import importlib.util, json, sys
sys.path[:0] = [{bench!r}, {packages!r}]
spec = importlib.util.spec_from_file_location("check_triton", {script!r})
script = importlib.util.module_from_spec(spec)
spec.loader.exec_module(script)
from judging import judge
script.this_gpu = lambda: 121
print(json.dumps(judge("assembler", script.check_assembler)))
"""


def ask_triton(folder: Path, **env: str) -> dict[str, str]:
    """What the check says of a GB10 and a Triton of which only the assembler is there."""
    for name, text in TRITON.items():
        file = folder / "packages" / "triton" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(0o755)
    script = str(ROOT / "bench" / "checks" / "triton.py")
    code = ASK.format(bench=str(ROOT / "bench"), packages=str(folder / "packages"), script=script)
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **env}, capture_output=True, text=True, check=True
    )
    verdict: dict[str, str] = json.loads(done.stdout)
    return verdict


def test_an_assembler_that_does_not_know_the_gb10(tmp_path: Path) -> None:
    verdict = ask_triton(tmp_path)
    assert verdict["status"] == "fail"
    assert "ptxas 12.8.93 (bundled: " in verdict["evidence"]
    assert "does not know sm_121a" in verdict["evidence"]
    assert "set TRITON_PTXAS_PATH to CUDA 13's ptxas" in verdict["evidence"]


def test_an_assembler_from_elsewhere(tmp_path: Path) -> None:
    newer = tmp_path / "ptxas"
    newer.write_text(TRITON["backends/nvidia/ptxas"].replace("12.8", "13.0").replace("sm_120a", "sm_121a"))
    newer.chmod(0o755)
    verdict = ask_triton(tmp_path, TRITON_PTXAS_PATH=str(newer))
    assert verdict["status"] == "ok"
    assert verdict["evidence"] == f"ptxas 13.0.93 (TRITON_PTXAS_PATH: {newer})"


@pytest.mark.parametrize(
    ("abi", "flags", "note", "target"),
    [
        (7, 0x5A055A, b"", "sm_90"),
        (7, 0x5A0D5A, b"", "sm_90a"),
        (8, 0x6007902, b"", "sm_121"),
        (8, 0x600790A, b"", "sm_121a"),
        (8, 0x6005A04, b"\0-arch sm_90 -m 64 \0", "sm_90"),  # as ptxas 13.0.88 leaves them
        (8, 0x6005A04, b"\0-arch sm_90a -m 64 \0", "sm_90a"),
        (8, 0x6007902, b"\0-arch sm_90a -m 64 \0", "sm_121"),  # another architecture's note says nothing
    ],
)
def test_the_target_of_machine_code(
    abi: int, flags: int, note: bytes, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    script = planted_faults.load("triton")
    cubin = struct.pack("<4sBBBBB7xHHIQQQI", b"\x7fELF", 2, 1, 1, 51, abi, 2, 190, 1, 0, 0, 0, flags)
    assert script.target_of(cubin + note) == target
    with pytest.raises(AssertionError, match="machine 62"):
        script.target_of(cubin.replace(struct.pack("<HH", 2, 190), struct.pack("<HH", 2, 62)))
