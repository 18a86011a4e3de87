"""A convolution of 3 x 3 over 64 channels: 16 x 64 x 1024 x 1024 on a GPU, smaller where it is quick."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as everyone calls it
from training import WINOGRAD, Model, cases_of

from workloads import Asked, Case

CHANNELS = 64


def cases(asked: Asked) -> Iterator[Case]:
    pixels = asked.pick(cpu_quick=64, cpu=256, cuda_quick=256, cuda=1024)
    batch = asked.pick(cpu_quick=1, cpu=4, cuda=16)
    values = float(batch * CHANNELS * pixels**2)
    # Each result is a sum over 3 x 3 places of all channels; the edges are padded, so all count.
    flops = 2.0 * 9 * CHANNELS * values
    size = (batch, CHANNELS, pixels, pixels)
    model = Model(
        name="convolution",
        build=lambda: nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, bias=False),
        batch=lambda: (torch.randn(size), torch.randn(size)),
        loss=lambda out, target: F.mse_loss(out.float(), target),
        unit="FLOP/s",
        amount=flops,
        size=pixels,
        operation="convolution",
        flops=flops,
        moved=2 * values + 9 * CHANNELS**2,
        train_flops=2.0,
        peak=WINOGRAD,
    )
    return cases_of(model, asked, ("eval",), ("fp32", "fp16", "bf16"))
