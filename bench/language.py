"""What encoder and decoder share: batches of random tokens, and the loss over all of them."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from models import Shape, Transformer
from torch.nn import functional as F  # noqa: N812 - as everyone calls it
from training import Model, cases_of
from workloads import Asked, Case


def language_model(name: str, shape: Shape, batch: int, asked: Asked) -> Iterator[Case]:
    """Train and eval in FP32, FP16 and BF16; one call is `batch` full contexts."""
    size = (batch, shape.context)
    model = Model(
        name=name,
        build=lambda: Transformer(shape),
        batch=lambda: (torch.randint(shape.vocabulary, size), torch.randint(shape.vocabulary, size)),
        loss=lambda out, target: F.cross_entropy(out.float().flatten(0, 1), target.flatten()),
        unit="tokens/s",
        amount=float(batch * shape.context),
        size=shape.width,
        flops=shape.flops(batch, shape.context),
        train_flops=3.0,  # backward: gradients of weights and of inputs, as many again each
    )
    return cases_of(model, asked, ("train", "eval"), ("fp32", "fp16", "bf16"))
