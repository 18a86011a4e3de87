"""torch.compile on and off: blocks of a decoder in evaluation, the same weights and inputs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from findings import NO_COMPILER, Finding, recognised, verdict
from models import Shape, Transformer
from training import FORMATS, counted

from workloads import Asked, Case, Run, Work, spoiled

TOLERANCE = {"fp32": 1e-3, "bf16": 0.06}  # relative to the largest score


def cases(asked: Asked) -> Iterator[Case]:
    shape = asked.pick(
        cpu_quick=Shape(layers=1, width=128, heads=4, vocabulary=1000, context=128, causal=True),
        cpu=Shape(layers=2, width=256, heads=4, vocabulary=1000, context=256, causal=True),
        cuda=Shape(layers=8, width=1024, heads=16, vocabulary=8192, context=512, causal=True),
    )
    batch = asked.pick(cpu=8, cuda_quick=8, cuda=32)
    dtype = "fp32" if asked.device == "cpu" else "bf16"
    for mode in ("eager", "compiled"):
        work = Work(name=f"compiled.{mode}", unit="tokens/s", amount=float(batch * shape.context),
                    dtype=dtype, size=shape.width, mode=mode, operation="model",
                    flops=shape.flops(batch, shape.context))  # fmt: skip
        yield Case(work=work, prepare=partial(_run, asked, work, shape, batch))


def _run(asked: Asked, work: Work, shape: Shape, batch: int) -> Run:
    torch.manual_seed(asked.seed)
    with torch.device(asked.device):
        net = Transformer(shape).to(FORMATS[work.dtype]).eval()
        numbers = torch.randint(shape.vocabulary, (batch, shape.context))
    model: Any = net
    facts: dict[str, Any] = {}
    with torch.no_grad():
        if work.mode == "compiled":
            start = time.monotonic()
            try:
                model = torch.compile(net)
                model(numbers)
            except Exception as error:  # of many kinds: no compiler, no Python headers, no Triton
                raise recognised(error, NO_COMPILER) from error
            facts["compile_seconds"] = time.monotonic() - start

    call = spoiled(model, asked)

    @torch.no_grad()
    def step() -> Any:
        return call(numbers)

    @torch.no_grad()
    def count() -> Any:
        return net(numbers)

    @torch.no_grad()
    def same() -> list[Finding]:
        expected = net(numbers).float()
        error = ((step().float() - expected).abs().max() / expected.abs().max()).item()
        good = error <= TOLERANCE[work.dtype]
        return [
            verdict(f"{work.name}.result", good, f"differs from eager by {error:.2g} of the largest score")
        ]

    return Run(step=step, count=counted(count), after=same, facts=facts)
