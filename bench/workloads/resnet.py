"""ResNet-50, trained and evaluated."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from models import resnet50
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as everyone calls it
from training import WINOGRAD, Model, cases_of

from workloads import Asked, Case


def cases(asked: Asked) -> Iterator[Case]:
    pixels = asked.pick(cpu_quick=64, cpu=224, cuda=224)
    batch = asked.pick(cpu_quick=2, cpu=16, cuda_quick=64, cuda=256)
    classes = 1000

    def flops(net: nn.Module) -> float:
        return batch * forward_flops(net, pixels)

    with torch.device("meta"):
        stem = 2.0 * 64 * 3 * 49 * (pixels // 2) ** 2 / forward_flops(resnet50(classes), pixels)
    model = Model(
        name="resnet50",
        build=lambda: resnet50(classes),
        batch=lambda: (torch.randn(batch, 3, pixels, pixels), torch.randint(classes, (batch,))),
        loss=lambda out, target: F.cross_entropy(out.float(), target),
        unit="images/s",
        amount=float(batch),
        size=pixels,
        flops=flops,
        train_flops=3.0 - stem,  # nobody asks for gradients of the images
        peak=WINOGRAD,
    )
    return cases_of(model, asked, ("train", "eval"), ("fp32", "fp16", "bf16"))


def forward_flops(net: nn.Module, pixels: int) -> float:
    """Of one image: 2 for each weight of a kernel, at each place of each of its results."""
    total = 0.0

    def add(part: nn.Module, _inputs: object, out: torch.Tensor) -> None:
        nonlocal total
        weight = part.weight
        assert isinstance(weight, torch.Tensor)
        total += 2.0 * weight[0].numel() * out[0].numel()

    parts = [each for each in net.modules() if isinstance(each, (nn.Conv2d, nn.Linear))]
    hooks = [each.register_forward_hook(add) for each in parts]
    net.eval()(torch.empty(1, 3, pixels, pixels, device="meta"))
    for hook in hooks:
        hook.remove()
    return total
