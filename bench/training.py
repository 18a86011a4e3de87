"""Models that are trained or evaluated, and the proof of it.

Training: the optimiser must change the parameters and the loss must fall. A number format: the products'
outputs must have it. Evaluation: nothing may carry a gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from findings import Finding, Unsupported, verdict
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from workloads import NO_FP16, SIZES, Asked, Case, Run, Work

FORMATS = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
LEAST_STEPS = 6  # of training, before the loss must have fallen
# Fewest multiplications of Winograd's way for 3 x 3 kernels, F(2x2, 3x3): 4 in place of 9 for a result.
WINOGRAD = 2.25
RATE = 3e-4  # of learning: small enough for every model here


@dataclass(frozen=True, kw_only=True)
class Model:
    """What a workload says about its model; one call is one batch."""

    name: str
    build: Callable[[], nn.Module]
    batch: Callable[[], tuple[Any, Any]]  # inputs, targets
    loss: Callable[[Any, Any], Any]
    unit: str
    amount: float
    flops: Callable[[nn.Module], float] | float  # of one forward pass
    train_flops: float  # of forward and backward pass, for one of forward
    size: int | None = None
    operation: str = "model"
    moved: float | None = None  # values, not bytes, that a forward pass moves at least; None: who knows
    peak: float = 1.0


def cases_of(model: Model, asked: Asked, modes: tuple[str, ...], formats: tuple[str, ...]) -> Iterator[Case]:
    """Each mode (train, eval) in each number format; training keeps FP32 weights and uses autocast."""
    for mode in modes:
        for dtype in formats:
            yield _case(model, asked, mode, dtype)


def _case(model: Model, asked: Asked, mode: str, dtype: str) -> Case:
    with torch.device("meta"):
        forward = model.flops(model.build()) if callable(model.flops) else model.flops
    flops = forward * (model.train_flops if mode == "train" else 1.0)
    work = Work(name=f"{model.name}.{mode}.{dtype}", unit=model.unit, amount=model.amount, dtype=dtype,
                size=model.size, mode=mode, operation=model.operation, flops=flops,
                moved=None if model.moved is None else model.moved * SIZES[dtype])  # fmt: skip

    def prepare() -> Run:
        if asked.device == "cpu" and dtype == "fp16":
            raise Unsupported(NO_FP16)
        if dtype == "bf16" and asked.device == "cuda" and not torch.cuda.is_bf16_supported():
            raise Unsupported("this GPU has no BF16")
        return _training(model, asked, work) if mode == "train" else _evaluation(model, asked, work)

    return Case(work=work, prepare=prepare)


def exactly(device: str, dtype: str) -> AbstractContextManager[Any]:
    """Autocast to `dtype`; nothing for FP32, which must not quietly become TF32 either."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    return nullcontext() if dtype == "fp32" else torch.autocast(device, FORMATS[dtype])


def applied(model: nn.Module, call: Callable[[], object], work: Work) -> Finding:
    """Whether the outputs of all products and convolutions of one call have the format asked for."""
    seen: set[str] = set()
    watched = [part for part in model.modules() if isinstance(part, (nn.Linear, nn.Conv2d))]
    hooks = [part.register_forward_hook(lambda _m, _i, out: seen.add(str(out.dtype))) for part in watched]
    call()
    for hook in hooks:
        hook.remove()
    wanted = str(FORMATS[work.dtype])
    evidence = f"outputs of {len(watched)} layers: {', '.join(sorted(seen))}; asked for {wanted}"
    return verdict(f"{work.name}.dtype", seen == {wanted}, evidence)


def _made(model: Model, asked: Asked) -> tuple[nn.Module, Any, Any]:
    torch.manual_seed(asked.seed)
    inputs, targets = (each.to(asked.device) for each in model.batch())
    return model.build().to(asked.device), inputs, targets


def _training(model: Model, asked: Asked, work: Work) -> Run:
    net, inputs, targets = _made(model, asked)
    net.train()
    begin = [each.detach().clone() for each in net.parameters()]
    optimiser = torch.optim.AdamW(net.parameters(), lr=RATE)
    scaler = torch.amp.GradScaler(asked.device, enabled=work.dtype == "fp16")
    losses: list[Any] = []
    kept = "fp32" if "dtype" in asked.inject else work.dtype

    def forward_backward() -> Any:
        optimiser.zero_grad(set_to_none=True)
        with exactly(asked.device, kept):
            loss = model.loss(net(inputs), targets)
        scaler.scale(loss).backward()
        return loss.detach()

    def step() -> None:
        losses[1:] = [forward_backward()]
        if "train" not in asked.inject:
            scaler.step(optimiser)
            scaler.update()
        nonlocal steps
        steps += 1

    steps = 0
    format_check = applied(net, lambda: losses.append(forward_backward()), work)

    def trained() -> list[Finding]:
        while steps < LEAST_STEPS:
            step()
        first, last = (float(each) for each in losses)
        changed = sum(not torch.equal(a, b) for a, b in zip(begin, net.parameters(), strict=True))
        good = changed == len(begin) and math.isfinite(last) and last < first
        evidence = (
            f"loss {first:.4g} -> {last:.4g} in {steps} steps; {changed} of {len(begin)} parameters changed"
        )
        return [format_check, verdict(f"{work.name}.trains", good, evidence)]

    count = counted(forward_backward)
    return Run(step=step, count=count, peak=model.peak, after=trained)


def _evaluation(model: Model, asked: Asked, work: Work) -> Run:
    net, inputs, _ = _made(model, asked)
    exactly(asked.device, "fp32")
    net.eval()
    if "dtype" not in asked.inject:
        net.to(FORMATS[work.dtype])
    if inputs.is_floating_point():
        inputs = inputs.to(next(net.parameters()).dtype)

    def step() -> Any:
        with torch.no_grad():
            return net(inputs)

    def proved() -> list[Finding]:
        out = step()
        grads = sum(each.grad is not None for each in net.parameters())
        wild = int((~torch.isfinite(out)).sum())
        good = not out.requires_grad and not grads and not wild
        evidence = f"output asks for gradients: {out.requires_grad}; {grads} gradients; {wild} not finite"
        return [applied(net, step, work), verdict(f"{work.name}.eval", good, evidence)]

    return Run(step=step, count=counted(step), peak=model.peak, after=proved)


def counted(step: Callable[[], object]) -> Callable[[], object]:
    """`step` with attention as plain products, which torch's counter knows on every device."""

    def call() -> object:
        with sdpa_kernel([SDPBackend.MATH]):
            return step()

    return call
