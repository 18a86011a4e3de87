"""Attention by each of torch's implementations and flash-attn: many new tokens (prefill), or one (decode)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from attending import REFUSED
from findings import Finding, Unsupported, recognised, verdict
from torch.nn import functional as F  # noqa: N812 - as everyone calls it
from torch.nn.attention import SDPBackend, sdpa_kernel

from workloads import NO_FP16, SIZES, Asked, Case, Run, Work, rotating, spoiled

FORMATS = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}
BACKENDS = {
    "flash": "FLASH_ATTENTION",
    "efficient": "EFFICIENT_ATTENTION",
    "cudnn": "CUDNN_ATTENTION",
    "math": "MATH",
}
REFUSALS = (*REFUSED, "only support")  # the latter is flash-attn's; whatever else goes wrong is broken
TOLERANCE = {"fp32": 1e-4, "fp16": 5e-3, "bf16": 4e-2}  # of outputs of about 1 / sqrt(tokens) .. 1
Tensors = tuple[Any, Any, Any]


@dataclass(frozen=True, kw_only=True)
class Shape:
    batch: int
    heads: int
    width: int  # of a head
    queries: int
    keys: int

    @property
    def causal(self) -> bool:
        return self.queries > 1

    def flops(self) -> float:
        """Two products of queries x keys x width; a causal one needs half, with the diagonal."""
        return self.full() * (self.keys + 1) / (2 * self.keys) if self.causal else self.full()

    def full(self) -> float:
        return 4.0 * self.batch * self.heads * self.queries * self.keys * self.width

    def moved(self, size: int) -> float:
        """Keys and values are read, queries are read and as many results written."""
        return 2.0 * self.batch * self.heads * self.width * (self.keys + self.queries) * size


def cases(asked: Asked) -> Iterator[Case]:
    tokens = asked.pick(cpu_quick=256, cpu=1024, cuda_quick=4096, cuda=8192)
    batch, heads, width = asked.pick(cpu=(2, 4, 64), cuda=(4, 16, 128))
    streams = asked.pick(cpu_quick=4, cpu=8, cuda=64)
    shapes = {
        "prefill": Shape(batch=batch, heads=heads, width=width, queries=tokens, keys=tokens),
        "decode": Shape(batch=streams, heads=heads, width=width, queries=1, keys=tokens),
    }
    for mode, shape in shapes.items():
        for dtype in ("fp32", "bf16") if asked.device == "cpu" else ("fp16", "bf16"):
            for backend in (*BACKENDS, "flash-attn"):
                yield _case(asked, mode, shape, dtype, backend)


def _case(asked: Asked, mode: str, shape: Shape, dtype: str, backend: str) -> Case:
    # Prefill is arithmetic; decode reads all keys and values for one token: that is what bounds it.
    flops, moved = shape.flops(), shape.moved(SIZES[dtype])
    unit, amount = ("FLOP/s", flops) if mode == "prefill" else ("B/s", moved)
    work = Work(name=f"attention.{mode}.{backend}.{dtype}", unit=unit, amount=amount, dtype=dtype,
                size=shape.keys, mode=mode, operation="attention", flops=flops, moved=moved)  # fmt: skip

    def prepare() -> Run:
        if asked.device == "cpu" and dtype == "fp16":
            raise Unsupported(NO_FP16)
        call = spoiled(_caller(backend, shape.causal), asked)
        if asked.device == "cpu" and backend == "flash-attn":
            raise Unsupported("flash-attn computes on GPUs only")
        generator = torch.Generator(asked.device).manual_seed(asked.seed)

        def tensor(tokens: int) -> Any:
            size = (shape.batch, shape.heads, tokens, shape.width)
            return torch.randn(size, device=asked.device, generator=generator).to(FORMATS[dtype])

        def tensors() -> Tensors:
            return tensor(shape.queries), tensor(shape.keys), tensor(shape.keys)

        sets = rotating(torch, asked.device, tensors, int(shape.moved(SIZES[dtype])))
        _tried(call, sets[0])
        return _run(work, shape, sets, call)

    return Case(work=work, prepare=prepare)


def _run(work: Work, shape: Shape, sets: list[Tensors], call: Callable[..., Any]) -> Run:
    turn = 0

    def step() -> Any:
        nonlocal turn
        turn += 1
        return call(*sets[turn % len(sets)])

    # Plain products keep all scores, which may be more memory than there is: one head after the other.
    def plain(batch: int, head: int, kind: torch.dtype) -> Any:
        one = (each[batch, head][None, None].to(kind) for each in sets[0])
        with sdpa_kernel([SDPBackend.MATH]):
            return F.scaled_dot_product_attention(*one, is_causal=shape.causal)

    def right() -> list[Finding]:
        found = call(*sets[0])
        errors = [
            (found[batch, head].float() - plain(batch, head, torch.float32)).abs().max()
            for batch, head in itertools.product(range(shape.batch), range(shape.heads))
        ]
        error = torch.stack(errors).max().item()
        good = error <= TOLERANCE[work.dtype] and found.dtype == FORMATS[work.dtype]  # NaN is not <=
        evidence = f"largest difference from FP32 {error:.2g}, output {found.dtype}"
        return [verdict(f"{work.name}.result", good, evidence)]

    return Run(step=step, count=lambda: plain(0, 0, FORMATS[work.dtype]), counted=shape.full(),
               parts=shape.batch * shape.heads, after=right, facts={"sets": len(sets)})  # fmt: skip


def _caller(backend: str, causal: bool) -> Callable[..., Any]:
    """The implementation, and nothing in its place where it cannot do it."""
    if backend == "flash-attn":
        try:
            from flash_attn import flash_attn_func
        except ModuleNotFoundError as error:
            if error.name != "flash_attn":  # installed, and broken
                raise
            raise Unsupported(f"flash-attn: {error}") from error

        def flash(query: Any, key: Any, value: Any) -> Any:
            swapped = (each.transpose(1, 2) for each in (query, key, value))
            return flash_attn_func(*swapped, causal=causal).transpose(1, 2)

        return flash
    chosen = getattr(SDPBackend, BACKENDS[backend])

    def own(query: Any, key: Any, value: Any) -> Any:
        with sdpa_kernel([chosen]):
            return F.scaled_dot_product_attention(query, key, value, is_causal=causal)

    return own


def _tried(call: Callable[..., Any], tensors: Tensors) -> None:
    try:
        call(*tensors)
    except RuntimeError as error:
        raise recognised(error, REFUSALS) from error
