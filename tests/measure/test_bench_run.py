"""The wider suite by the real command, on processors: every workload, its figure and what holds it."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from spark_build.errors import HostError
from spark_build.measure.model import Arm
from tests.conftest import CLI
from tests.helpers import processes
from tests.helpers.commands import invoke

# Threads that spin while they wait make everything ten times slower where others compute, too.
CALM = ",OMP_WAIT_POLICY=PASSIVE"
# What a case must be proved by: by its workload, else by its mode.
PROOFS = {
    "gemm": {"flops", "peak"},
    "bandwidth": {"bound"},
    "elementwise": {"bound"},
    "collectives": {"bound", "result"},
    "extensions": {"bound", "result"},
    "attention": {"flops", "peak", "result"},
    "compiled": {"flops", "peak", "result"},
    "decode": {"flops", "peak", "cache"},
    "prefill": {"result", "kv"},
    "generate": {"cache", "kv"},
    "train": {"flops", "peak", "dtype", "trains"},
    "eval": {"flops", "peak", "dtype", "eval"},
}


def command(root: Path, *arguments: str) -> list[str]:
    return [
        *CLI,
        "--root",
        str(root),
        "--train",
        "2.13",
        "--target",
        "host-cpu",
        "--json",
        "bench",
        "run",
        *arguments,
    ]


def bench(root: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    done = invoke(command(root, "--seed", "3", *arguments))
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def arm(baseline: Arm, name: str = "a", more: str = "") -> tuple[str, str]:
    return "--arm", f"{name}={Path(baseline.python).parents[1]}{CALM}{more}"


def test_a_missing_package_is_told_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "matplotlib" else find(name)
    )
    code, document = bench(tmp_path, "--workload", "gemm", "--arm", f"a={sys.prefix}")
    assert (code, document["error"]["message"]) == (HostError.exit_code, "bench run needs matplotlib")
    assert not list(tmp_path.glob("runs/*/rounds-*"))


def checks(document: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {c["name"]: (c["status"], c["evidence"]) for each in document["rounds"] for c in each["checks"]}


def failed(document: dict[str, Any]) -> set[str]:
    return {name for name, (status, _) in checks(document).items() if status == "fail"}


def test_the_whole_quick_suite(baseline: Arm, tmp_path: Path) -> None:
    code, document = bench(tmp_path, *arm(baseline, more=",NCCL_DEBUG=WARN"), "--duration", "0.3")
    found = checks(document)
    assert failed(document) == set()
    assert code == (11 if document["doubts"] else 0)  # on a busy machine
    (only,) = document["rounds"]
    figures = {each["work"]: each for each in only["figures"]}
    works = {each["name"]: each for each in document["works"]}
    # Each case has a figure that something holds, or a reason why not.
    for name, work in works.items():
        if name not in figures:
            assert found[f"{name}.run"][0] == "skipped", name
            continue
        calls = figures[name]["calls"] or [
            work["amount"] / figures[name]["rate"]
        ]  # not where others time them
        assert min(calls) <= work["amount"] / figures[name]["rate"] * 1.000001 <= max(calls) * 1.00001, name
        proofs = PROOFS.get(work["workload"]) or PROOFS[work["mode"]]
        assert proofs <= {check.removeprefix(f"{name}.") for check in found}, name
        assert figures[name]["peak"]["rss"] > 50e6
    for name in ("train", "eval"):
        assert {
            f"{model}.{name}.{dtype}"
            for model in ("bert", "nanogpt", "resnet50")
            for dtype in ("fp32", "bf16")
        } <= set(figures)
    assert {
        "compiled.eager",
        "decode.fp32.1",
        "serving.prefill.bf16.b4.c128",
        "serving.generate.int4.b1.c128",
        "attention.prefill.flash.bf16",
        "attention.decode.math.fp32",
    } <= set(figures)
    assert {"fp16", "transfer"} <= {work["dtype"] for work in works.values()} | {
        w["operation"] for w in works.values()
    }
    assert "gloo between 2 processes" in found["collectives.all_reduce.16MiB.result"][1]
    assert re.match(r"[\d.]+ TFLOP/s at \d+", found["gemm.fp32.maximum"][1])
    assert re.match(
        r"loss [\d.]+ -> [\d.e-]+ in \d+ steps; 161 of 161", found["resnet50.train.bf16.trains"][1]
    )
    folder = Path(document["folder"])
    raw = json.loads((folder / "bench.json").read_text())
    names = set(raw["rounds"][0]["samples"][0][1])
    assert {"memtotal_mib", "memfree_mib", "memavailable_mib", "cached_mib", "shmem_mib", "busy_s"} <= names
    assert "device_free_mib" not in names  # unknown is missing, never 0
    assert raw["rounds"][0]["environment"]["variables"]["NCCL_DEBUG"] == "WARN"
    assert raw["rounds"][0]["environment"]["ceilings"]["flops"]["fp32"] > 1e9
    assert (folder / "report.html").is_file()
    assert not list(tmp_path.glob("runs/unfinished-*"))


PLANTED = {
    "train:mlp": ("mlp.train.bf16.trains", r"loss .*; 0 of 8 parameters changed"),
    "dtype:mlp": ("mlp.train.bf16.dtype", r"outputs of 4 layers: torch.float32; asked for torch.bfloat16"),
    "flops:mlp": ("mlp.train.bf16.flops", r"formula 3.69\d+e\+08, torch counts 1.84\d+e\+08"),
    "formula:bandwidth": ("bandwidth.copy.64MiB.bound", r"\d+% of the [\d.]+ [TGM]?B/s of a plain one"),
    "formula:gemm": ("gemm.fp32.1024.peak", r"\d+\.\d% of [\d.]+ [TG]FLOP/s"),
    "collective:collectives": ("collectives.all_reduce.16MiB.result", r"2 of 8388608 elements wrong"),
    "hang:bert": ("bert.run", r"hung: not a word for 40 s, in bert.train.fp32|hung: not a word for 40 s"),
    "crash:nanogpt": ("nanogpt.run", r"was killed \(SIGABRT\)"),
    "killed:decode": ("decode.run", r"was killed \(SIGKILL\): out of memory\?"),
    "memory:convolution": ("convolution.eval.fp32.run", r"out of memory: "),
}


def test_planted_faults_are_found_and_the_others_go_on(baseline: Arm, tmp_path: Path) -> None:
    workloads = [fault.partition(":")[2] for fault in PLANTED]
    named = [part for name in (*dict.fromkeys(workloads), "elementwise") for part in ("--workload", name)]
    short = ("--duration", "0.1", "--timeout", "40")
    code, document = bench(tmp_path, *arm(baseline), *named, *short, "--inject", ",".join(PLANTED))
    found = checks(document)
    assert code == 9
    for check, evidence in PLANTED.values():
        assert found[check][0] == "fail", check
        assert re.match(evidence, found[check][1]), found[check]
    assert {name.partition(".")[0] for name in failed(document)} == set(workloads)
    figures = {each["work"] for each in document["rounds"][0]["figures"]}
    assert {"elementwise.add.fp32", "elementwise.mul.bf16", "mlp.train.bf16"} <= figures  # shown, and marked


def test_a_device_that_cannot_be_used_ends_the_run(baseline: Arm, tmp_path: Path) -> None:
    wished = command(tmp_path, *arm(baseline), "--workload", "gemm", "--device", "cuda", "--rounds", "3")
    done = invoke([each for each in wished if each != "--json"])
    assert done.returncode == 9
    (line,) = (each for each in done.stdout.splitlines() if each.startswith("FAILED"))
    assert re.match(r"FAILED prelude.run in a: \w+Error: .*CUDA", line)
    (log,) = (each.removeprefix("see ") for each in done.stdout.splitlines() if each.startswith("see "))
    assert "Traceback" in Path(log).read_text()


@pytest.mark.machine  # two threads are faster only where no other test uses the second processor
def test_one_thread_is_slower_than_two_or_nothing_is_said(baseline: Arm, tmp_path: Path) -> None:
    """A busy machine leaves no second processor to see it by: then the comparison must say so."""
    _, document = bench(
        tmp_path, *arm(baseline, "two", ",threads=2"), *arm(baseline, "one", ",threads=1"), "--workload", "gemm",
        "--rounds", "4", "--duration", "0.2",
    )  # fmt: skip
    assert sorted(each["slot"]["arm"] for each in document["rounds"]) == ["one"] * 4 + ["two"] * 4
    (raw,) = tmp_path.glob("runs/*/bench.json")
    command = [*CLI, "--json", "bench", "compare", str(raw)]
    done = invoke(command)
    compared = json.loads(done.stdout)
    assert {each["kind"] for each in compared["changes"]} == {"gemm"}
    slower = [each for each in compared["changes"] if each["finding"] == "slower"]
    assert not [each for each in compared["changes"] if each["finding"] == "faster"]
    words = "other processes|stolen|pressure|load|clock|surroundings"
    assert [each for each in compared["doubts"] if not re.match(words, each)] == []
    if done.returncode == 11:
        assert compared["doubts"] or not slower
    else:
        assert done.returncode == 0
        assert any(each["band"] == "above 40%" for each in slower)


def test_an_interrupted_run_goes_on(baseline: Arm, tmp_path: Path) -> None:
    wished = (*arm(baseline), "--workload", "elementwise", "--rounds", "3", "--duration", "0.1")
    process = processes.start(
        command(tmp_path, *wished), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    while process.poll() is None and not list(tmp_path.glob("runs/*/rounds-*/000-*.json")):
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 130
    (kept,) = tmp_path.glob("runs/*/rounds-*/000-*.json")
    before = kept.read_bytes()
    done = invoke(command(tmp_path, *wished))
    document = json.loads(done.stdout)
    assert "going on with the run of" in done.stderr
    assert kept.read_bytes() == before
    assert len(document["rounds"]) == 3
    assert any("a break of" in each for each in document["breaks"])


def test_what_is_refused_and_what_is_told(tmp_path: Path) -> None:
    def said(*arguments: str) -> tuple[int, dict[str, Any]]:
        return bench(tmp_path, "--arm", f"a={tmp_path}", *arguments)

    code, document = said("--workload", "nonsense")
    assert (code, document["error"]["message"]) == (2, "no workload 'nonsense'")
    assert "gemm" in document["error"]["hint"]
    code, document = said("--workload", "gemm")
    assert (code, "no environment with torch" in document["error"]["message"]) == (2, True)
    done = invoke(command(tmp_path, "--list"), check=True)
    assert len(json.loads(done.stdout)["workloads"]) == 15


def test_traces(baseline: Arm, tmp_path: Path) -> None:
    wished = (*arm(baseline), "--workload", "mlp", "--workload", "collectives")
    code, document = bench(tmp_path, *wished, "--profile", "torch")
    (found,) = document["profiles"]
    assert (code, found["problem"]) == (0, "")
    profiles = {each["work"]: each for each in found["profiles"]}
    names = {each["name"] for each in profiles["mlp.train.bf16"]["top"]}
    assert {"aten::mm", "aten::addmm"} <= names
    assert json.loads(Path(profiles["mlp.train.bf16"]["trace"]).read_text())["traceEvents"]
    assert "other processes" in profiles["collectives"]["left_out"]
    # nsys, as far as the program knows it: what it is told to do, and that it is missed where it is not.
    tool = tmp_path / "bin" / "nsys"
    tool.parent.mkdir()
    tool.write_text(
        '#!/bin/sh\necho "$@" >"$(dirname "$0")/told"\nwhile [ "${1%%/*}" ]; do shift; done\nexec "$@"\n'
    )
    tool.chmod(0o755)
    env = {**os.environ, "PATH": f"{tool.parent}:{os.environ['PATH']}"}
    said = command(tmp_path, *wished, "--profile", "nsys")
    done = subprocess.run(said, env=env, capture_output=True, text=True, check=False)
    (found,) = json.loads(done.stdout)["profiles"]
    assert found["problem"] == ""
    assert "--trace=cuda,nvtx" in (tool.parent / "told").read_text()
    assert {"work": "mlp.train.bf16", "calls": 5} in found["profiles"]
    bare = {**os.environ, "PATH": "/usr/bin:/bin"}
    if not any((Path(place) / "nsys").exists() for place in ("/usr/bin", "/bin")):
        done = subprocess.run(said, env=bare, capture_output=True, text=True, check=False)
        assert (done.returncode, "Nsight" in done.stdout) == (4, True)
