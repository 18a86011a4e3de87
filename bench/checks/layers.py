"""Are the layers of networks right, forward and backward? Each against plain arithmetic in FP64."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from judging import run
from numerics import FLOATS, Errors, differentiate, normal, short, usual_device

F = torch.nn.functional


def plain_convolution(
    x: Any, weight: Any, bias: Any, stride: int, padding: int, dilation: int, groups: int
) -> Any:
    """As a product with the unfolded images."""
    size = weight.shape[-2:]
    height, width = (
        (x.shape[axis] + 2 * padding - dilation * (size[axis - 2] - 1) - 1) // stride + 1 for axis in (2, 3)
    )
    columns = F.unfold(x, size, dilation=dilation, padding=padding, stride=stride)
    columns = columns.reshape(x.shape[0], groups, -1, columns.shape[-1])
    kernels = weight.reshape(groups, weight.shape[0] // groups, -1)
    result = torch.einsum("goc,bgcl->bgol", kernels, columns)
    return result.reshape(x.shape[0], weight.shape[0], height, width) + bias[:, None, None]


# input, output channels, kernel, stride, padding, dilation, groups
CONVOLUTIONS = (
    (16, 32, 3, 1, 1, 1, 1),
    (16, 24, 1, 1, 0, 1, 1),
    (8, 16, 5, 2, 2, 1, 1),
    (8, 8, 3, 1, 2, 2, 1),
    (16, 16, 3, 1, 1, 1, 16),
    (3, 8, 7, 2, 3, 1, 1),
)


def check_convolution() -> str:
    """Both layouts in memory; TF32 off, so that FP32 means it."""
    errors = Errors()
    formats = {"": torch.contiguous_format, " channels last": torch.channels_last}
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        for shape, dtype, (mark, layout) in itertools.product(CONVOLUTIONS, FLOATS, formats.items()):
            source, target, kernel, stride, *_, groups = shape
            x = normal(2, source, 13, 18)
            weight = normal(target, source // groups, kernel, kernel, seed=1) / kernel

            def operator(x: Any, weight: Any, bias: Any, layout: Any = layout, rest: Any = shape[3:]) -> Any:
                return F.conv2d(
                    x.contiguous(memory_format=layout), weight.contiguous(memory_format=layout), bias, *rest
                )

            def plain(x: Any, weight: Any, bias: Any, rest: Any = shape[3:]) -> Any:
                return plain_convolution(x, weight, bias, *rest)

            what = f"{short(dtype)} {kernel}x{kernel} stride {stride}, groups {groups}{mark}"
            differentiate(errors, what, operator, plain, x, weight, normal(target, seed=2), dtype=dtype)
    return str(errors)


def plain_layer_norm(x: Any, weight: Any, bias: Any) -> Any:
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight + bias


def plain_rms_norm(x: Any, weight: Any) -> Any:
    return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight


def plain_group_norm(x: Any) -> Any:
    grouped = x.reshape(x.shape[0], 4, -1)
    centred = grouped - grouped.mean(-1, keepdim=True)
    return (centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()).reshape(x.shape)


def plain_batch_norm(x: Any) -> Any:
    centred = x - x.mean((0, 2, 3), keepdim=True)
    return centred / (centred.square().mean((0, 2, 3), keepdim=True) + 1e-5).sqrt()


def check_normalisation() -> str:
    """LayerNorm and RMSNorm of several widths, GroupNorm, BatchNorm while training."""
    errors = Errors()
    for dtype, width in itertools.product(FLOATS, (64, 129, 1000, 4096)):
        x, weight, bias = normal(17, width) * 3 + 1, normal(width, seed=1), normal(width, seed=2)
        differentiate(
            errors, f"LayerNorm {short(dtype)} {width}",
            lambda x, weight, bias, width=width: F.layer_norm(x, (width,), weight, bias, eps=1e-5),
            plain_layer_norm, x, weight, bias, dtype=dtype,
        )  # fmt: skip
        differentiate(
            errors, f"RMSNorm {short(dtype)} {width}",
            lambda x, weight, width=width: F.rms_norm(x, (width,), weight, eps=1e-5),
            plain_rms_norm, x, weight, dtype=dtype,
        )  # fmt: skip
    images = normal(4, 8, 9, 11) * 2 + 1
    for dtype in FLOATS:
        differentiate(
            errors, f"GroupNorm {short(dtype)}", lambda x: F.group_norm(x, 4, eps=1e-5), plain_group_norm,
            images, dtype=dtype,
        )  # fmt: skip
        differentiate(
            errors, f"BatchNorm {short(dtype)}",
            lambda x: F.batch_norm(x, None, None, training=True, eps=1e-5),
            plain_batch_norm, images, dtype=dtype,
        )  # fmt: skip
    return str(errors)


def plain_softmax(x: Any) -> Any:
    powers = (x - x.amax(-1, keepdim=True).detach()).exp()
    return powers / powers.sum(-1, keepdim=True)


def check_softmax() -> str:
    """Softmax, its logarithm and cross entropy, up to a large vocabulary."""
    errors = Errors()
    for dtype, width in itertools.product(FLOATS, (7, 128, 1025, 32003)):
        x = normal(5, width) * 4
        wanted = torch.arange(5) * (width // 5)
        name = f"{short(dtype)} {width}"
        differentiate(
            errors, f"softmax {name}", lambda x: torch.softmax(x, -1), plain_softmax, x, dtype=dtype
        )
        differentiate(
            errors, f"log_softmax {name}",
            lambda x: F.log_softmax(x, -1), lambda x: plain_softmax(x).log(), x, dtype=dtype,
        )  # fmt: skip
        differentiate(
            errors, f"cross_entropy {name}",
            lambda x, wanted=wanted: F.cross_entropy(x, wanted.to(x.device)),
            lambda x, wanted=wanted: -plain_softmax(x).log()[torch.arange(5), wanted].mean(), x, dtype=dtype,
        )  # fmt: skip
    return str(errors)


# Small results beside large ones: each is right by its own size. Others cancel near their zeros.
EACH = {"exp", "sigmoid", "silu", "relu"}


def plain_gelu(x: Any) -> Any:
    return x * (1 + torch.erf(x / math.sqrt(2))) / 2


def check_elementwise() -> str:
    """Activations and functions, against Python's own mathematics."""
    errors = Errors()
    functions: dict[str, tuple[Callable[[Any], Any], Callable[[float], float]]] = {
        "exp": (torch.exp, math.exp),
        "sin": (torch.sin, math.sin),
        "tanh": (torch.tanh, math.tanh),
        "erf": (torch.erf, math.erf),
        "sigmoid": (torch.sigmoid, lambda x: 1 / (1 + math.exp(-x))),
        "gelu": (F.gelu, lambda x: x * (1 + math.erf(x / math.sqrt(2))) / 2),
        "silu": (F.silu, lambda x: x / (1 + math.exp(-x))),
        "relu": (F.relu, lambda x: max(x, 0.0)),
    }
    for dtype, (name, (operator, plain)) in itertools.product(FLOATS, functions.items()):
        for length in (2, 4099):
            x = torch.linspace(-6, 6, length).to(dtype)
            exact = torch.tensor([plain(each) for each in x.double().tolist()], dtype=torch.float64)
            got = operator(x.to(usual_device()))
            errors.compare(f"{name} {short(dtype)}", got, exact)
            if name in EACH:
                there = exact != 0
                shares = got.cpu().double()[there] / exact[there]
                errors.compare(f"{name} {short(dtype)}, each", shares, torch.ones_like(shares), kind=dtype)
    for dtype in FLOATS:
        differentiate(errors, f"gelu {short(dtype)}", F.gelu, plain_gelu, normal(33, 77), dtype=dtype)
    return str(errors)


CHECKS: dict[str, Callable[[], str]] = {
    "convolution": check_convolution,
    "normalisation": check_normalisation,
    "softmax": check_softmax,
    "elementwise": check_elementwise,
}


if __name__ == "__main__":
    sys.exit(run(CHECKS))
