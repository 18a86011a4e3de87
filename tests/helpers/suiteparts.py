"""Parts of the wider suite, run inside an arm: what a whole run on this machine cannot show. Prints JSON."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

BENCH = Path(__file__).resolve().parents[2] / "bench"
MIB = 1 << 20


def load(name: str) -> Any:
    """A module of the arm: nothing of it is here."""
    return importlib.import_module(name)


def outcome(call: Callable[[], Any]) -> str:
    """What came of it: "returned", or the kind of error and its words."""
    try:
        call()
    except Exception as error:  # noqa: BLE001 - its kind is the answer
        return f"{type(error).__name__}: {error}"
    return "returned"


def run_of(name: str, **more: Any) -> Any:
    """One tiny case, through all of casework."""
    casework, workloads = load("casework"), load("workloads")
    work = workloads.Work(name=name, unit="FLOP/s", amount=2.0 * 64**3, dtype="fp32", flops=2.0 * 64**3)
    torch = load("torch")
    left = torch.rand(64, 64)
    run = workloads.Run(**{"step": lambda: left @ left, **more})
    given = argparse.Namespace(device="cpu", warmup=0.02, window=0.05)
    ceilings = {"copy": 1e12, "flops": {"fp32": 1e15}}
    return casework._measure(workloads.Case(work=work, prepare=lambda: run), given, ceilings, frozenset())


def memory() -> dict[str, float]:
    """MiB: before, and as the peak of a case of which counting and checking take 400 MiB more."""

    torch = load("torch")

    def much() -> Any:
        torch.ones(100 * MIB)
        return torch.rand(64, 64) @ torch.rand(64, 64)

    def after() -> list[Any]:
        much()
        return []

    kept = torch.ones(MIB)  # torch itself is there
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    figure = run_of("memory", count=much, after=after)["figure"]
    return {
        "before": int(status["VmRSS"].split()[0]) / 1024 + kept.nbytes / MIB,
        "peak": figure["peak"]["rss"] / MIB,
    }


def cpu() -> float:
    """Seconds that others report as theirs, in one window."""
    clock = iter((10.0, 17.0))
    return float(run_of("cpu", cpu=lambda: next(clock))["figure"]["cpu_seconds"])


def bounds() -> dict[str, str]:
    """Statuses of figures at half and at four times what can be."""
    casework, workloads = load("casework"), load("workloads")
    ceilings = {"copy": 1e9, "flops": {"fp32": 1e9}}
    work = workloads.Work(name="w", unit="calls/s", amount=1.0, dtype="fp32", flops=1e9, moved=1e12)
    found = {}
    for kind, full in (("peak", 1.0), ("memory", 1e-3)):
        for said, share in (("half", 0.5), ("fourfold", 4.0)):
            checks = casework._bounds(work, workloads.Run(step=lambda: None), full * share, ceilings, "cpu")
            (only,) = (each for each in checks if each["name"] == f"w.{kind}")
            found[f"{kind} {said}"] = only["status"]
    return found


def refuse(text: str) -> None:
    """As a case does that could not be compiled."""
    findings = load("findings")
    raise findings.recognised(RuntimeError(text), findings.NO_COMPILER)


def refusals() -> dict[str, str]:
    """What becomes of errors in attention and in scaled products."""
    attention, gemm = load("workloads.attention"), load("workloads.gemm")

    def said(text: str) -> Callable[..., Any]:
        def call(*_: Any, **__: Any) -> Any:
            raise RuntimeError(text)

        return call

    found = {
        name: outcome(partial(attention._tried, said(text), ()))
        for name, text in {
            "no kernel": "CUDA error: no kernel image is available for execution on the device",
            "refused": "No available kernel. Aborting execution.",
            "flash refuses": "FlashAttention only supports Ampere GPUs or newer.",
        }.items()
    }
    asked = gemm.Asked(device="cpu", quick=True, seed=0)
    sound = gemm.Operands
    for name, text in {
        "gemm refused": "Float4 is only supported for CUDA 12.8",
        "gemm broken": "no kernel image",
    }.items():
        gemm.Operands = lambda *_, text=text: SimpleNamespace(product=said(text), count=1)
        found[name] = outcome(gemm._case(asked, "fp8", 64).prepare)
    gemm.Operands = sound
    for name, text in {
        "no compiler": "backend='inductor' raised:\nInvalidCxxCompiler: No working C++ compiler found in cpp.cxx: ()",
        "no headers": "CppCompileError: C++ compile error\nmain.cpp:3:10: fatal error: Python.h: No such file or directory",
        "inductor broken": "backend='inductor' raised:\nCppCompileError: C++ compile error: undefined reference to vec",
    }.items():
        found[name] = outcome(partial(refuse, text))
    with tempfile.TemporaryDirectory() as folder:
        sys.path.insert(0, folder)
        found["flash missing"] = outcome(lambda: attention._caller("flash-attn", causal=False))
        (Path(folder) / "flash_attn.py").write_text("raise ImportError('undefined symbol: _ZN3c10')")
        found["flash broken"] = outcome(lambda: attention._caller("flash-attn", causal=False))
        sys.path.remove(folder)
    return found


def results() -> dict[str, list[str]]:
    """What is said of cases whose results are wrong."""
    asked = load("workloads").Asked(device="cpu", quick=True, seed=0, inject=frozenset({"result"}))
    found = {}
    for name in ("attention.decode.flash.bf16", "decode.fp32.1", "compiled.eager"):
        cases = load(f"workloads.{name.partition('.')[0]}").cases(asked)
        (case,) = (each for each in cases if each.work.name == name)
        found[name] = [
            f"{check['name'].removeprefix(name)} {check['status']}" for check in case.prepare().after()
        ]
    return found


def ranks() -> dict[str, Any]:
    """Three of them, one of which dies; and two that cannot even begin."""
    casework, collectives = load("casework"), load("workloads.collectives")
    case = collectives._case("all_gather", "gloo", 3, 1 << 20, spoil=False)
    given = argparse.Namespace(device="cpu", warmup=0.05, window=0.2)
    world: Any = None
    sound = collectives.World

    def kept(*of: Any) -> Any:
        nonlocal world
        world = sound(*of)
        return world

    collectives.World = kept
    run = case.prepare()
    figure = casework._time(case.work, run, given)
    found = {
        "check": run.after()[0],
        "busy": figure["cpu_seconds"] / (figure["end"] - figure["start"]),
        "amount": case.work.amount,
        "plain": run.plain(),
        "share": run.share,
        "facts": run.facts,
    }
    os.kill(world.processes[1].pid, signal.SIGKILL)
    world.processes[1].join()
    found["killed"] = outcome(run.step)
    run.close()
    found["alive"] = [each.is_alive() for each in world.processes]
    found["no GPU"] = outcome(lambda: sound("all_reduce", "nccl", 2, 1 << 20).ask("run", 1))
    return found


def most_cases() -> dict[str, int]:
    """Cases of each workload on a GPU in full; none of them is prepared."""
    casework = load("casework")
    given = argparse.Namespace(device="cuda", quick=0, seed=0, inject=[])
    names = sorted(file.stem for file in (BENCH / "workloads").glob("[!_]*.py"))
    return {name: len(casework.cases_of(name, given)) for name in names}


def apart() -> list[Any]:
    """A process that ends with an error."""

    def body(tell: Callable[[dict[str, Any]], object]) -> None:
        tell({"told": 1})
        raise ValueError("why\nand more")

    return list(load("apart").Apart(10).call(body))


def ceilings() -> dict[str, Any]:
    """What a case tells that exceeds them, and one of Winograd's kind that may."""
    casework = load("casework")
    casework._raise_ceilings = lambda known, _: known.update(copy=7.0)
    casework._share = lambda *_: 1.2
    return {"plain": run_of("a").get("ceilings"), "winograd": run_of("b", peak=2.25).get("ceilings")}


def decoders() -> dict[str, Any]:
    """Weights in FP8 and 4 bits against FP32 on the same; RoPE by distance; what a broken cache looks like."""
    torch, decoder, serving = load("torch"), load("decoder"), load("workloads.serving")
    torch.manual_seed(0)
    plain = torch.nn.Linear(256, 128, bias=False, dtype=torch.bfloat16)
    inputs, errors = torch.randn(4, 256).bfloat16(), {}
    for name, kind in decoder.QUANTISED.items():
        layer = kind(plain)
        with torch.no_grad():
            seen, weights = layer(inputs).float(), layer.plain()
            exact = inputs.float() @ weights.t()
        errors[name] = float((seen[:, : len(weights)] - exact).abs().max() / exact.abs().max())
    shape = decoder.Shape(layers=2, width=64, heads=4, kv_heads=2, hidden=128, vocabulary=64)
    net = decoder.Decoder(shape, "fp32", 16, "cpu")
    one, other = torch.randn(2, 1, 1, 1, 16)

    def product(here: int, there: int) -> float:
        turned = [
            decoder._rotated(values, (net.cosine[at : at + 1], net.sine[at : at + 1]))
            for values, at in ((one, here), (other, there))
        ]
        return float((turned[0] * turned[1]).sum())

    asked = load("workloads").Asked(device="cpu", quick=True, seed=1)
    server = serving.Server(asked, shape, "fp32", 2, 8, 8 + serving.NEW)

    def forgetful() -> Any:
        server.caches[:, :, :, :, 3] = 0
        return server.step()

    return {
        "errors": errors,
        "rope": [product(3, 1), product(9, 7), product(9, 1)],
        "cache": [server.difference(server.step), server.difference(forgetful)],
        "kv": [shape.kv_bytes(4) * 2 * (8 + serving.NEW), server.caches.nbytes],
    }


if __name__ == "__main__":
    sys.path.insert(0, str(BENCH))
    # The first must be first: nothing may run threads before a fork.
    parts = (apart, memory, cpu, bounds, refusals, results, ranks, most_cases, ceilings, decoders)
    print(json.dumps({part.__name__: part() for part in parts}))
