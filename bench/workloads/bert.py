"""An encoder like BERT: every token sees every other."""

from __future__ import annotations

from collections.abc import Iterator

from language import language_model
from models import Shape

from workloads import Asked, Case


def cases(asked: Asked) -> Iterator[Case]:
    shape = asked.pick(
        cpu_quick=Shape(layers=2, width=128, heads=4, vocabulary=1000, context=64, causal=False),
        cpu=Shape(layers=4, width=256, heads=4, vocabulary=8192, context=128, causal=False),
        cuda=Shape(layers=12, width=768, heads=12, vocabulary=30522, context=512, causal=False),
    )
    batch = asked.pick(cpu_quick=4, cpu=8, cuda_quick=16, cuda=64)
    return language_model("bert", shape, batch, asked)
