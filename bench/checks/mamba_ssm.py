"""Are mamba-ssm's scans and layers right, forward, backward and step by step? Each against a loop in FP64."""

from __future__ import annotations

import importlib
import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
# This file has the name of a package, for which its folder must not stand in.
sys.path[:] = [str(HERE.parent), *(entry for entry in sys.path if Path(entry or ".").resolve() != HERE)]

from judging import PREFIX, Skip, inside, run  # noqa: E402 - the path comes first

# Batch, channels, size of the state, length: odd, one place, longer than a block of threads takes.
SHAPES = ((1, 4, 1, 1), (2, 6, 8, 67), (1, 8, 16, 2051), (2, 4, 64, 130))


def check_import() -> str:
    import mamba_ssm
    import selective_scan_cuda

    for module in (mamba_ssm, selective_scan_cuda):
        assert inside(module.__file__, PREFIX), f"{module.__file__} is not inside {PREFIX}"
    return f"mamba-ssm {mamba_ssm.__version__} from inside the environment"


def need_gpu() -> None:
    import torch

    if not torch.cuda.is_available():
        raise Skip("no GPU here")


def plain_scan(u: Any, step: Any, decay: Any, into: Any, out: Any, skip: Any, gate: Any, bias: Any) -> Any:
    """Mamba's recurrence, place by place; (batch, channels, length).

    `into` and `out` are B and C: (channels, state), or (batch, groups, state, length).
    """
    import torch

    functional = torch.nn.functional
    step = functional.softplus(step + bias[:, None])
    channels = u.shape[1]
    wide = [
        each.repeat_interleave(channels // each.shape[1], dim=1)
        if each.dim() == 4
        else each[None, :, :, None]
        for each in (into, out)
    ]
    state = torch.zeros(u.shape[0], *decay.shape, dtype=decay.dtype)
    results = []
    for place in range(u.shape[2]):
        at = [each[..., min(place, each.shape[-1] - 1)] for each in wide]
        here = step[:, :, place, None]
        state = torch.exp(here * decay) * state + here * at[0] * u[:, :, place, None]
        found = (state * at[1]).sum(-1)
        results.append(2 * found.real if found.is_complex() else found)
    return (torch.stack(results, dim=2) + u * skip[:, None]) * functional.silu(gate)


def scan_inputs(shape: tuple[int, int, int, int], groups: int) -> list[Any]:
    """Inputs of a scan; with no groups, B and C are the same everywhere."""
    from numerics import normal

    batch, channels, size, length = shape
    moving = (batch, groups, size, length) if groups else (channels, size)
    u, step, gate = (normal(batch, channels, length, seed=seed) for seed in (0, 1, 2))
    decay = -normal(channels, size, seed=3).abs() - 0.1
    skip, bias = normal(channels, seed=4), normal(channels, seed=5) / 4
    return [u, step / 2, decay, normal(*moving, seed=6), normal(*moving, seed=7), skip, gate, bias]


def check_reference() -> str:
    """What scans are compared with, against the closed form of one channel; needs no GPU."""
    import torch
    from numerics import Errors

    errors = Errors()
    for shape, groups in itertools.product(SHAPES, (0, 1)):
        if shape[3] > 200:  # its square is computed
            continue
        inputs = scan_inputs(shape, groups)
        u, step, decay, into, out, skip, gate, bias = inputs
        length = shape[3]
        found = plain_scan(*inputs)
        here = torch.nn.functional.softplus(step + bias[:, None])
        passed = here.cumsum(-1)
        between = (passed[:, :, :, None] - passed[:, :, None, :]).clamp(min=0)
        later = torch.ones(length, length, dtype=torch.bool).tril()
        sums = torch.zeros_like(u)
        for number in range(shape[2]):
            kernel = torch.where(later, torch.exp(between * decay[:, number, None, None]), 0.0)
            one, two = (each[:, 0, number, None] if groups else each[:, number, None] for each in (into, out))
            sums = sums + ((kernel * (here * one * u)[:, :, None, :]).sum(-1)) * two
        exact = (sums + u * skip[:, None]) * torch.nn.functional.silu(gate)
        errors.compare(f"{shape} {groups}", found, exact)
    return str(errors)


def check_scan() -> str:
    """B and C that move, in one or two groups, or stand still; gradients of all eight inputs."""
    need_gpu()
    import torch
    from mamba_ssm.ops.selective_scan_interface import selective_scan_fn
    from numerics import FLOATS, Errors, differentiate, short

    errors = Errors()
    for shape, groups, dtype in itertools.product(SHAPES, (0, 1, 2), FLOATS):
        moving = dtype if groups else torch.float32

        def operator(
            u: Any, step: Any, decay: Any, into: Any, out: Any, skip: Any, gate: Any, bias: Any,
            moving: Any = moving,
        ) -> Any:  # fmt: skip
            still = [each.to(moving) for each in (into, out)]
            rest = (skip.float(), gate, bias.float())
            return selective_scan_fn(u, step, decay.float(), *still, *rest, delta_softplus=True)

        name = f"{short(dtype)} {shape}, {groups} groups"
        differentiate(errors, name, operator, plain_scan, *scan_inputs(shape, groups), dtype=dtype)
    return str(errors)


def check_complex_scan() -> str:
    """A complex decay, as S4 has it, with B and C that stand still; gradients of the real inputs."""
    need_gpu()
    import torch
    from mamba_ssm.ops.selective_scan_interface import selective_scan_fn
    from numerics import FLOATS, Errors, differentiate, normal, short

    errors = Errors()
    for shape, dtype in itertools.product(SHAPES, FLOATS):
        u, step, decay, into, out, skip, gate, bias = scan_inputs(shape, 0)
        parts = [torch.complex(each, normal(*each.shape, seed=seed)) for seed, each in
                 ((11, decay), (12, into), (13, out))]  # fmt: skip

        def operator(u: Any, step: Any, skip: Any, gate: Any, bias: Any, parts: Any = parts) -> Any:
            there = [each.to(u.device, torch.complex64) for each in parts]
            return selective_scan_fn(u, step, *there, skip.float(), gate, bias.float(), delta_softplus=True)

        def exact(u: Any, step: Any, skip: Any, gate: Any, bias: Any, parts: Any = parts) -> Any:
            rounded = [each.to(torch.complex64).to(torch.complex128) for each in parts]
            return plain_scan(u, step, *rounded, skip, gate, bias)

        differentiate(
            errors, f"{short(dtype)} {shape}", operator, exact, u, step, skip, gate, bias, dtype=dtype
        )
    return str(errors)


def plain_heads(x: Any, step: Any, decay: Any, into: Any, out: Any, skip: Any) -> Any:
    """Mamba 2's recurrence: one decay for each head; (batch, length, heads, width)."""
    import torch

    heads, groups = x.shape[2], into.shape[2]
    into, out = (each.repeat_interleave(heads // groups, dim=2) for each in (into, out))
    step = torch.nn.functional.softplus(step)
    state = torch.zeros(x.shape[0], heads, x.shape[3], into.shape[3], dtype=x.dtype)
    results = []
    for place in range(x.shape[1]):
        here = step[:, place]
        fresh = (here[..., None] * x[:, place])[..., None] * into[:, place, :, None]
        state = torch.exp(here * decay)[..., None, None] * state + fresh
        results.append((state * out[:, place, :, None]).sum(-1))
    return torch.stack(results, dim=1) + x * skip[:, None]


def one_configuration(*modules: str) -> None:
    """Let the kernels of these modules have one configuration each.

    Triton would compile and time all of them for each shape and type, for half an hour and more.
    """
    for module in modules:
        layers = list(vars(importlib.import_module(f"mamba_ssm.ops.triton.{module}")).values())
        for layer in layers:  # grows by what is found below a decorator
            layers += [layer.fn] if hasattr(layer, "fn") else []
            if hasattr(layer, "fn") and getattr(layer, "configs", None):
                layer.configs = layer.configs[-1:]


def check_heads() -> str:
    """Mamba 2's chunks by Triton: lengths that chunks divide and do not; gradients of all inputs."""
    need_gpu()
    one_configuration("ssd_bmm", "ssd_chunk_scan", "ssd_chunk_state", "ssd_combined", "ssd_state_passing")
    import torch
    from mamba_ssm.ops.triton.ssd_combined import mamba_chunk_scan_combined
    from numerics import ALLOWED, FLOATS, Errors, differentiate, normal, short

    errors = Errors()
    for (length, heads, groups, size), dtype in itertools.product(
        ((1, 2, 1, 16), (128, 4, 2, 64), (200, 4, 1, 128)), FLOATS
    ):

        def operator(x: Any, step: Any, decay: Any, into: Any, out: Any, skip: Any) -> Any:
            return mamba_chunk_scan_combined(
                x, step, decay.float(), into, out, chunk_size=64, D=skip.float(), dt_softplus=True
            )

        inputs = (
            normal(2, length, heads, 64), normal(2, length, heads, seed=1) / 2,
            -normal(heads, seed=2).abs() - 0.1, normal(2, length, groups, size, seed=3),
            normal(2, length, groups, size, seed=4), normal(heads, seed=5),
        )  # fmt: skip
        name = f"{short(dtype)} length {length}, {heads} heads, {groups} groups, state {size}"
        # Triton multiplies matrices of FP32 in TF32, which has the digits of FP16.
        allowed = ALLOWED[torch.float16] if dtype == torch.float32 else None
        differentiate(errors, name, operator, plain_heads, *inputs, dtype=dtype, allowed=allowed)
    return str(errors)


def check_steps() -> str:
    """One place after the other with a state that is kept, as while text is generated."""
    need_gpu()
    import torch
    from mamba_ssm.ops.triton.selective_state_update import selective_state_update
    from numerics import FLOATS, Errors, short, usual_device

    errors = Errors()
    for shape, dtype in itertools.product(((2, 6, 8, 9), (3, 65, 16, 5)), FLOATS):
        inputs = [each.to(dtype) for each in scan_inputs(shape, 1)]
        exact = plain_scan(*(each.double() for each in inputs))
        u, step, decay, into, out, skip, gate, bias = (each.to(usual_device()) for each in inputs)
        state = torch.zeros(*shape[:3], dtype=torch.float32, device=usual_device())
        results = [
            selective_state_update(
                state, u[..., place].contiguous(), step[..., place].contiguous(), decay.float(),
                into[:, 0, :, place].contiguous(), out[:, 0, :, place].contiguous(), skip.float(),
                gate[..., place].contiguous(), bias.float(), dt_softplus=True,
            )
            for place in range(shape[3])
        ]  # fmt: skip
        errors.compare(f"{short(dtype)} {shape}", torch.stack(results, dim=-1), exact)
    return str(errors)


def check_layers() -> str:
    """Norms with a residual or a gate, and SwiGLU, by Triton; gradients of all inputs."""
    need_gpu()
    one_configuration("k_activations", "layer_norm")
    import torch
    from mamba_ssm.ops.triton.k_activations import SwiGLU
    from mamba_ssm.ops.triton.layer_norm import layer_norm_fn, rms_norm_fn
    from mamba_ssm.ops.triton.layernorm_gated import rmsnorm_fn
    from numerics import FLOATS, Errors, differentiate, normal, short

    silu = torch.nn.functional.silu
    errors = Errors()

    def centred(x: Any) -> Any:
        return x - x.mean(-1, keepdim=True)

    def rms(x: Any, weight: Any) -> Any:
        return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight

    for width, dtype in itertools.product((64, 129, 2048), FLOATS):
        x, other = normal(17, width) * 2 + 1, normal(17, width, seed=1)
        weight, bias = normal(width, seed=2), normal(width, seed=3)
        pairs: tuple[tuple[str, Callable[..., Any], Callable[..., Any], tuple[Any, ...]], ...] = (
            ("layer norm", lambda x, other, weight, bias: layer_norm_fn(x, weight, bias, other, eps=1e-5),
             lambda x, other, weight, bias: rms(centred(x + other), weight) + bias,
             (x, other, weight, bias)),
            ("RMS norm", lambda x, other, weight: rms_norm_fn(x, weight, None, other, eps=1e-5),
             lambda x, other, weight: rms(x + other, weight), (x, other, weight)),
            ("gated norm",
             lambda x, other, weight: rmsnorm_fn(x, weight, None, z=other, eps=1e-5, norm_before_gate=False),
             lambda x, other, weight: rms(x * silu(other), weight), (x, other, weight)),
            ("SwiGLU", lambda x, other: SwiGLU.apply(torch.cat([x, other], -1)),
             lambda x, other: silu(x) * other, (x, other)),
        )  # fmt: skip
        for name, operator, exact, inputs in pairs:
            differentiate(errors, f"{name} {short(dtype)} {width}", operator, exact, *inputs, dtype=dtype)
    return str(errors)


CHECKS: dict[str, Callable[[], str]] = {
    "import": check_import,
    "reference": check_reference,
    "scan": check_scan,
    "complex-scan": check_complex_scan,
    "heads": check_heads,
    "steps": check_steps,
    "layers": check_layers,
}


if __name__ == "__main__":
    sys.exit(run(CHECKS))
