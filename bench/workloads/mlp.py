"""A training step of an MLP under autocast, as most code trains."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as everyone calls it
from training import Model, cases_of

from workloads import Asked, Case

LAYERS = 4


def cases(asked: Asked) -> Iterator[Case]:
    width = asked.pick(cpu_quick=256, cpu=1024, cuda_quick=4096, cuda=8192)
    batch = asked.pick(cpu_quick=128, cpu=512, cuda_quick=4096, cuda=8192)

    def build() -> nn.Module:
        layers: list[nn.Module] = []
        for _ in range(LAYERS):
            layers += [nn.Linear(width, width), nn.GELU()]
        return nn.Sequential(*layers[:-1])

    model = Model(
        name="mlp",
        build=build,
        batch=lambda: (torch.randn(batch, width), torch.randn(batch, width)),
        loss=lambda out, target: F.mse_loss(out.float(), target),
        unit="samples/s",
        amount=float(batch),
        size=width,
        flops=2.0 * LAYERS * batch * width**2,
        # Backward: gradients of weights and of inputs, as many again each; but nobody asks for those of
        # the first layer's input.
        train_flops=3.0 - 1.0 / LAYERS,
    )
    return cases_of(model, asked, ("train",), ("fp16", "bf16"))
