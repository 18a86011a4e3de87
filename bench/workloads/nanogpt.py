"""A decoder like nanoGPT: a token sees what came before it."""

from __future__ import annotations

from collections.abc import Iterator

from language import language_model
from models import Shape

from workloads import Asked, Case


def cases(asked: Asked) -> Iterator[Case]:
    shape = asked.pick(
        cpu_quick=Shape(layers=2, width=128, heads=4, vocabulary=1000, context=64, causal=True),
        cpu=Shape(layers=4, width=256, heads=4, vocabulary=8192, context=256, causal=True),
        cuda=Shape(layers=12, width=768, heads=12, vocabulary=50304, context=1024, causal=True),
    )
    batch = asked.pick(cpu_quick=4, cpu=8, cuda_quick=8, cuda=32)
    return language_model("nanogpt", shape, batch, asked)
