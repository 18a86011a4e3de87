"""Generating text: one token after the other with a cache of keys and values of fixed size."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from findings import Finding, verdict
from models import Shape, Transformer
from training import FORMATS, counted

from workloads import SIZES, Asked, Case, Run, Work, difference, spoiled

TOLERANCE = {"fp32": 1e-3, "bf16": 0.06, "fp16": 0.01}  # relative to the largest score


def cases(asked: Asked) -> Iterator[Case]:
    shape = asked.pick(
        cpu_quick=Shape(layers=4, width=256, heads=4, vocabulary=1000, context=128, causal=True),
        cpu=Shape(layers=8, width=512, heads=8, vocabulary=8192, context=512, causal=True),
        cuda_quick=Shape(layers=16, width=2048, heads=16, vocabulary=32000, context=1024, causal=True),
        cuda=Shape(layers=32, width=4096, heads=32, vocabulary=32000, context=2048, causal=True),
    )
    for dtype in ("fp32", "bf16") if asked.device == "cpu" else ("fp16", "bf16"):
        for batch in asked.pick(cpu_quick=(1,), cpu=(1, 8), cuda=(1, 16)):
            yield _case(asked, shape, dtype, batch)


def _case(asked: Asked, shape: Shape, dtype: str, batch: int) -> Case:
    prompt = shape.context // 2
    seen = shape.context  # all of the cache, with a mask
    weights = 12 * shape.layers * shape.width**2 + shape.width * shape.vocabulary
    kept = 2 * shape.layers * shape.width * batch * seen
    work = Work(name=f"decode.{dtype}.{batch}", unit="tokens/s", amount=float(batch), dtype=dtype,
                size=batch, mode="decode", operation="model", flops=shape.flops(batch, 1, seen),
                # All weights, once for all sequences, and each sequence's keys and values.
                moved=(weights + kept) * SIZES[dtype])  # fmt: skip
    return Case(work=work, prepare=lambda: _run(asked, work, shape, batch, prompt))


class Generation:
    """Sequences that grow by one token a call, and begin again after the prompt when they are full."""

    def __init__(self, asked: Asked, shape: Shape, dtype: str, batch: int, prompt: int) -> None:
        torch.manual_seed(asked.seed)
        kind = FORMATS[dtype]
        with torch.device(asked.device):
            self.net = Transformer(shape).to(kind).eval()
            self.prompt = torch.randint(shape.vocabulary, (batch, prompt))
            size = (shape.layers, 2, batch, shape.heads, shape.context, shape.width // shape.heads)
            self.caches = torch.zeros(size, dtype=kind)
        self.context = shape.context
        self.first: Any = None
        self.begin()

    @torch.no_grad()
    def begin(self) -> None:
        """Read the prompt, if it was not read; the next token follows it."""
        if self.first is None:
            self.first = self.net(self.prompt, self.caches)[:, -1:].argmax(-1)
        self.token, self.position = self.first, self.prompt.shape[1]

    @torch.no_grad()
    def step(self) -> Any:
        """One token for each sequence; returns its scores."""
        if self.position == self.context:
            self.begin()
        scores = self.net(self.token, self.caches, self.position)
        self.token, self.position = scores.argmax(-1), self.position + 1
        return scores

    @torch.no_grad()
    def difference(self, step: Callable[[], Any], tokens: int = 4) -> float:
        """Largest relative difference of the scores of `step`, with the cache, from those without one."""
        self.begin()
        text, worst = torch.cat([self.prompt, self.token], dim=1), 0.0
        for _ in range(tokens):
            cached = step()[:, -1].float()
            whole = self.net(text)[:, -1].float()
            worst = max(worst, difference(cached, whole))
            text = torch.cat([text, self.token], dim=1)
        return worst


def _run(asked: Asked, work: Work, shape: Shape, batch: int, prompt: int) -> Run:
    run = Generation(asked, shape, work.dtype, batch, prompt)

    def count() -> object:
        run.begin()
        return run.step()

    def right() -> list[Finding]:
        worst = run.difference(spoiled(run.step, asked))
        good = worst <= TOLERANCE[work.dtype]
        return [verdict(f"{work.name}.cache", good, f"scores with and without cache differ by {worst:.2g}")]

    facts = {"prompt": prompt, "context": shape.context, "kv_bytes": run.caches.nbytes,
             "weights_bytes": sum(each.nbytes for each in run.net.parameters())}  # fmt: skip
    return Run(step=run.step, count=counted(count), counted=shape.flops(batch, 1, shape.context), after=right,
               facts=facts)  # fmt: skip
