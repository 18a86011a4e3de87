"""Are causal-conv1d's convolutions right, forward, backward and step by step? Each against sums in FP64."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
# This file has the name of a package, for which its folder must not stand in.
sys.path[:] = [str(HERE.parent), *(entry for entry in sys.path if Path(entry or ".").resolve() != HERE)]

from judging import PREFIX, Skip, inside, run  # noqa: E402 - the path comes first

# Batch, channels, length: shorter than the kernel, odd, longer than one block of threads takes.
SHAPES = ((1, 8, 1), (2, 8, 3), (2, 64, 129), (1, 24, 2049))
WIDTHS = (2, 3, 4)


def check_import() -> str:
    import causal_conv1d

    assert inside(causal_conv1d.__file__, PREFIX), f"{causal_conv1d.__file__} is not inside {PREFIX}"
    return f"causal-conv1d {causal_conv1d.__version__} from inside the environment"


def need_gpu() -> None:
    import torch

    if not torch.cuda.is_available():
        raise Skip("no GPU here")


def plain(
    x: Any, weight: Any, bias: Any = None, *, silu: bool = False, before: Any = None, sequence: Any = None
) -> Any:
    """Sum over the kernel, place by place; `before`: what came earlier, `sequence`: whose place each is."""
    import torch

    width, length = weight.shape[1], x.shape[2]
    past = torch.zeros_like(x[:, :, : width - 1]) if before is None else before
    if past.shape[2] < width - 1:
        past = torch.cat([x.new_zeros(*x.shape[:2], width - 1 - past.shape[2]), past], dim=2)
    padded = torch.cat([past, x], dim=2)
    total = torch.zeros_like(x)
    for place in range(width):
        part = padded[:, :, place : place + length]
        if sequence is not None:
            shift = width - 1 - place
            same = torch.zeros_like(sequence, dtype=torch.bool)
            same[:, shift:] = sequence[:, shift:] == sequence[:, : length - shift]
            part = part * same[:, None]
        total = total + part * weight[:, place, None]
    if bias is not None:
        total = total + bias[:, None]
    return total * torch.sigmoid(total) if silu else total


def numbers(shape: tuple[int, int, int], width: int) -> tuple[Any, Any, Any]:
    from numerics import normal

    return normal(*shape), normal(shape[1], width, seed=1) / width, normal(shape[1], seed=2)


def channels_last(x: Any) -> Any:
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def check_reference() -> str:
    """What the results are compared with, against torch's own convolution; needs no GPU."""
    import torch
    from numerics import Errors

    errors = Errors()
    for shape, width in itertools.product(SHAPES, WIDTHS):
        x, weight, bias = numbers(shape, width)
        padded = torch.nn.functional.pad(x, (width - 1, 0))
        found = torch.nn.functional.conv1d(padded, weight[:, None], bias, groups=shape[1])
        errors.compare(f"{shape} {width}", found, plain(x, weight, bias))
        errors.compare(
            f"silu {shape} {width}", torch.nn.functional.silu(found), plain(x, weight, bias, silu=True)
        )
        half = shape[2] // 2
        sequence = (torch.arange(shape[2]) >= half).int().expand(shape[0], -1)
        parts = [plain(part, weight, bias) for part in (x[:, :, :half], x[:, :, half:]) if part.shape[2]]
        errors.compare(
            f"two sequences {shape}", plain(x, weight, bias, sequence=sequence), torch.cat(parts, dim=2)
        )
        if half >= width:
            later = plain(x[:, :, half:], weight, bias, before=x[:, :, half - width + 1 : half])
            errors.compare(f"continued {shape}", later, plain(x, weight, bias)[:, :, half:])
    return str(errors)


def check_convolution() -> str:
    """Both layouts, with and without a bias and SiLU; gradients of all inputs."""
    need_gpu()
    from causal_conv1d import causal_conv1d_fn
    from numerics import FLOATS, Errors, differentiate, short

    errors = Errors()
    for shape, width, dtype, silu, last in itertools.product(
        SHAPES, WIDTHS, FLOATS, (False, True), (False, True)
    ):

        def operator(x: Any, weight: Any, bias: Any = None, last: bool = last, silu: bool = silu) -> Any:
            moved = channels_last(x) if last else x
            return causal_conv1d_fn(moved, weight, bias, activation="silu" if silu else None)

        def exact(x: Any, weight: Any, bias: Any = None, silu: bool = silu) -> Any:
            return plain(x, weight, bias, silu=silu)

        x, weight, bias = numbers(shape, width)
        name = f"{short(dtype)} {shape} width {width}{' silu' * silu}{' channels last' * last}"
        differentiate(errors, name, operator, exact, x, weight, bias, dtype=dtype)
        differentiate(errors, f"{name}, no bias", operator, exact, x, weight, dtype=dtype)
    return str(errors)


def check_sequences() -> str:
    """Several sequences in one, and one that goes on from a state; gradients of the state, too."""
    need_gpu()
    import torch
    from causal_conv1d import causal_conv1d_fn
    from numerics import FLOATS, Errors, differentiate, normal, short

    errors = Errors()
    for shape, width, dtype in itertools.product(SHAPES[1:], WIDTHS, FLOATS):
        x, weight, bias = numbers(shape, width)
        bounds = torch.tensor([0, 1, shape[2] // 3, shape[2] // 2])
        sequence = torch.bucketize(torch.arange(shape[2]), bounds, right=True).int().expand(shape[0], -1)

        def parted(x: Any, weight: Any, bias: Any, sequence: Any = sequence) -> Any:
            index = sequence.to(x.device).contiguous()
            return causal_conv1d_fn(channels_last(x), weight, bias, seq_idx=index, activation="silu")

        def parted_exact(x: Any, weight: Any, bias: Any, sequence: Any = sequence) -> Any:
            return plain(x, weight, bias, silu=True, sequence=sequence)

        name = f"{short(dtype)} {shape} width {width}"
        differentiate(errors, f"sequences {name}", parted, parted_exact, x, weight, bias, dtype=dtype)
        before = normal(*shape[:2], width - 1, seed=3)

        def continued(x: Any, weight: Any, bias: Any, before: Any) -> Any:
            result, state = causal_conv1d_fn(
                channels_last(x), weight, bias, initial_states=channels_last(before),
                return_final_states=True, activation="silu",
            )  # fmt: skip
            return torch.cat([result, state], dim=2)

        def continued_exact(x: Any, weight: Any, bias: Any, before: Any) -> Any:
            state = torch.cat([before, x], dim=2)[:, :, x.shape[2] :]
            return torch.cat([plain(x, weight, bias, silu=True, before=before), state], dim=2)

        differentiate(
            errors, f"continued {name}", continued, continued_exact, x, weight, bias, before, dtype=dtype
        )
    return str(errors)


def check_steps() -> str:
    """One place after the other, with a state that moves on or goes round, in any order of the batch."""
    need_gpu()
    import torch
    from causal_conv1d import causal_conv1d_update
    from numerics import FLOATS, Errors, short, usual_device

    errors, steps = Errors(), 11
    for channels, width, dtype, kind in itertools.product(
        (8, 65), WIDTHS, FLOATS, ("moves", "round", "indexed")
    ):
        x, weight, bias = (each.to(dtype) for each in numbers((3, channels, steps), width))
        exact = plain(x.double(), weight.double(), bias.double(), silu=True)
        there = [each.to(usual_device()) for each in (x, weight, bias)]
        length = width + 2 if kind == "round" else width - 1
        states = torch.zeros(
            5 if kind == "indexed" else 3, channels, length, dtype=dtype, device=usual_device()
        )
        order = torch.tensor([4, 0, 2], dtype=torch.int32, device=usual_device())
        results = []
        for step in range(steps):
            extra: dict[str, Any] = {}
            if kind == "round":
                extra["cache_seqlens"] = torch.full((3,), step, dtype=torch.int32, device=usual_device())
            elif kind == "indexed":
                extra["conv_state_indices"] = order
            column = there[0][:, :, step].contiguous()
            results.append(causal_conv1d_update(column, states, *there[1:], activation="silu", **extra))
        name = f"{short(dtype)} {channels} channels, width {width}, {kind}"
        errors.compare(name, torch.stack(results, dim=2), exact)
        if kind == "moves":
            errors.compare(f"{name}: state", states, x[:, :, steps - width + 1 :].double())
    return str(errors)


CHECKS: dict[str, Callable[[], str]] = {
    "import": check_import,
    "reference": check_reference,
    "convolution": check_convolution,
    "sequences": check_sequences,
    "steps": check_steps,
}


if __name__ == "__main__":
    sys.exit(run(CHECKS))
