"""Environments with something wrong in them, and a driver library that says what a test wants."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spark_build.measure.model import Arm
from tests.conftest import CLI
from tests.helpers.commands import invoke

# Runs a script of ours in the real interpreter, after a fault was planted in its torch.
STARTER = """
import runpy, sys
at = next(n for n, word in enumerate(sys.argv) if word.endswith(".py") and n)
sys.argv = sys.argv[at:]
{fault}
runpy.run_path(sys.argv[0], run_name="__main__")
"""
CORRUPTED = """
import torch
sound = torch.mm
def mm(a, b, out=None):
    result = sound(a, b, out=out)
    result[3, 5] += 1  # one element of thousands
    return result
torch.mm = mm
"""
SLOWED = """
import torch
sound = torch.mm
def mm(a, b, out=None):
    for _ in range(7):  # as if at an eighth of the clock
        sound(a, b, out=out)
    return sound(a, b, out=out)
torch.mm = mm
"""
HALF_CLOCK = """
import time
sound = time.perf_counter
time.perf_counter = lambda: sound() / 2  # every call seems to take half as long
"""
NAN = """
import torch
sound = torch.nn.functional.scaled_dot_product_attention
torch.nn.functional.scaled_dot_product_attention = lambda *i, **o: sound(*i, **o) * float("nan")
"""
# No GPU is here: what is asked of it, the processors do. The program around it takes it for one.
AS_IF_CUDA = """
sys.argv = ["cpu" if word == "cuda" else word for word in sys.argv]
"""
NVML = '''
"""Stands in for NVIDIA's driver library: answers with what the file FAKE_NVML says."""
import json, os, time, types
NVML_CLOCK_SM, NVML_TEMPERATURE_GPU, NVML_PERF_POLICY_THERMAL = 1, 0, 1
NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_POWER_CAP = 74
NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN = 269
class NVMLError(Exception): pass
with open(os.environ["FAKE_NVML"]) as file:
    said = json.load(file)
begin = time.monotonic()
def nvmlInit():
    if said.get("absent"): raise NVMLError("Driver Not Loaded")
def nvmlDeviceGetHandleByIndex(index): return index
def nvmlDeviceGetName(device): return said.get("name", "NVIDIA Test 1")
def nvmlSystemGetDriverVersion(): return "580.1"
def nvmlDeviceGetClockInfo(device, kind): return said.get("clock", 1500)
def nvmlDeviceGetTemperature(device, kind): return 55
def nvmlDeviceGetPowerUsage(device): return 690000
def nvmlDeviceGetEnforcedPowerLimit(device): return 700000
def nvmlDeviceGetCurrentClocksEventReasons(device): return said.get("reasons", 0)
def nvmlDeviceGetUtilizationRates(device): return types.SimpleNamespace(gpu=said.get("utilisation", 99))
def nvmlDeviceGetMemoryInfo(device):
    if said.get("unified"): raise NVMLError("Not Supported")
    return types.SimpleNamespace(free=100 << 30)
def nvmlDeviceGetComputeRunningProcesses(device): return [types.SimpleNamespace(pid=-each) for each in range(said.get("processes", 1))]
def nvmlDeviceGetFieldValues(device, fields):
    pace = said.get("counters", {}).get(str(fields[0]))
    if pace is None: return [types.SimpleNamespace(nvmlReturn=3, valueType=3, value=None)]
    value = types.SimpleNamespace(ullVal=int(1e9 * (5 + pace * (time.monotonic() - begin))))
    return [types.SimpleNamespace(nvmlReturn=0, valueType=3, value=value)]
'''


def faulty(folder: Path, sound: Arm, fault: str = "", *, script: str = "gemm.py", instead: str = "") -> Path:
    """An environment whose Python is `sound`'s, but runs `script` with a fault, or does `instead`."""
    (folder / "bin").mkdir(parents=True)
    starter = folder / "starter"
    starter.write_text(STARTER.format(fault=fault))
    own = instead or f'exec "{sound.python}" -I "{starter}" "$@"'
    python = folder / "bin" / "python"
    python.write_text(
        f'#!/bin/sh\ncase "$*" in\n*{script}*) {own} ;;\n*) exec "{sound.python}" "$@" ;;\nesac\n'
    )
    python.chmod(0o755)
    return folder


def fake_nvml(folder: Path, **said: Any) -> dict[str, str]:
    """Variables under which the program finds that driver library; it answers with `said`."""
    folder.mkdir()
    (folder / "pynvml.py").write_text(NVML)
    (folder / "said.json").write_text(json.dumps(said))
    return {"PYTHONPATH": str(folder), "FAKE_NVML": str(folder / "said.json")}


def command_of(root: Path, *arguments: str) -> list[str]:
    """The command line of a short burn-in."""
    short = ["--quick", "--dtype", "fp32", "--duration", "0.15", "--seed", "7"]
    short += [] if "--size" in arguments else ["--size", "128"]
    general = ["--root", str(root), "--train", "2.13", "--target", "host-cpu", "--json"]
    return [*CLI, *general, "verify", "--burn-in", *short, *arguments]


def verify(
    root: Path, *arguments: str, env: Mapping[str, str] | None = None
) -> tuple[int, dict[str, Any], str]:
    """Run a short burn-in by the real command: exit code, its JSON, and stderr."""
    environment = {**os.environ, **(env or {})}
    command = command_of(root, *arguments)
    done = invoke(command, env=environment)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout), done.stderr
