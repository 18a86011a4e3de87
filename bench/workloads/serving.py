"""A language model as servers run it (GQA, KV cache, CUDA graphs): prompts read, and tokens generated."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from decoder import KEPT, QUANTISED, Decoder, Shape, refuse_unsupported
from findings import Finding, Unsupported, verdict
from training import counted

from workloads import NO_FP16, Asked, Case, Run, Work, difference, spoiled

NEW = 64  # tokens that are generated after a prompt, before it begins anew
# Relative to the largest score; a prompt and single tokens are rounded differently.
TOLERANCE = {"fp32": 1e-3, "fp16": 0.02, "bf16": 0.08, "fp8": 0.2, "int4": 0.08}
# Of a product with quantised weights, relative to its largest value in FP32; FP8 rounds the inputs, too.
WEIGHTS = {"fp8": 0.06, "int4": 0.02}


def cases(asked: Asked) -> Iterator[Case]:
    shape = asked.pick(
        cpu_quick=Shape(layers=2, width=256, heads=4, kv_heads=2, hidden=768, vocabulary=1024),
        cpu=Shape(layers=4, width=512, heads=8, kv_heads=2, hidden=1536, vocabulary=8192),
        cuda_quick=Shape(layers=16, width=2048, heads=32, kv_heads=8, hidden=8192, vocabulary=128256),
        cuda=Shape(layers=32, width=4096, heads=32, kv_heads=8, hidden=14336, vocabulary=128256),
    )
    formats = ("fp32", "bf16", "int4") if asked.device == "cpu" else ("bf16", "fp16", "fp8", "int4")
    batches = asked.pick(cpu_quick=(1, 4), cpu=(1, 4, 16), cuda_quick=(1, 16), cuda=(1, 4, 16, 32))
    contexts = asked.pick(cpu_quick=(128,), cpu=(128, 512), cuda_quick=(512,), cuda=(128, 512, 2048))
    for dtype in formats:
        for batch in batches:
            # All contexts in one format, and a middle one in the others.
            for context in contexts if dtype == formats[0] else contexts[len(contexts) // 2 :][:1]:
                for mode in ("prefill", "generate"):
                    yield _case(asked, shape, mode, dtype, batch, context)


def _case(asked: Asked, shape: Shape, mode: str, dtype: str, batch: int, context: int) -> Case:
    size = 4 if dtype == "fp32" else 2
    new = context if mode == "prefill" else 1
    room = context if mode == "prefill" else context + NEW
    kept = batch * room * shape.kv_bytes(size)
    name = f"serving.{mode}.{dtype}.b{batch}.c{context}"
    work = Work(name=name, unit="tokens/s", amount=float(batch * new), dtype=dtype,
                size=context, mode=mode, operation="model", flops=shape.flops(batch, new, room),
                moved=shape.weight_bytes(dtype) + kept)  # fmt: skip
    return Case(work=work, prepare=partial(_run, asked, work, shape, batch, context, room))


class Server:
    """Sequences of one batch: prompts are read, then each grows by a token a call."""

    def __init__(self, asked: Asked, shape: Shape, dtype: str, batch: int, context: int, room: int) -> None:
        torch.manual_seed(asked.seed)
        self.net = Decoder(shape, dtype, room, asked.device).eval()
        kind = KEPT.get(dtype, torch.bfloat16)
        size = (shape.layers, 2, batch, shape.kv_heads, room, shape.head)
        self.caches = torch.zeros(size, dtype=kind, device=asked.device)
        self.prompt = torch.randint(shape.vocabulary, (batch, context), device=asked.device)
        self.places = torch.arange(context, device=asked.device)
        self.token, self.position = self.prompt[:, :1].clone(), self.places[:1].clone()
        self.context, self.left = context, 0
        self.graph: Any = None
        self.recorded: Any = None  # where the graph leaves its scores

    @torch.no_grad()
    def prefill(self) -> Any:
        """Read the prompts; the first token of each sequence is known when it is done."""
        scores = self.net(self.prompt, self.caches, self.places)
        self.token.copy_(scores.argmax(-1, keepdim=True))
        return scores

    @torch.no_grad()
    def begin(self) -> None:
        """The prompts are in the cache: the next token follows them."""
        self.position.fill_(self.context)
        self.left = NEW

    @torch.no_grad()
    def advance(self) -> Any:
        """One token for each sequence, all of it on the device; returns the scores."""
        scores = self.net(self.token, self.caches, self.position)
        self.token.copy_(scores.argmax(-1, keepdim=True))
        self.position.add_(1)
        return scores

    def step(self) -> Any:
        """Advance, by the graph where there is one; returns the scores."""
        if not self.left:
            self.begin()
        self.left -= 1
        if self.graph is None:
            return self.advance()
        self.graph.replay()
        return self.recorded

    def capture(self) -> None:
        """Record `advance` as a CUDA graph: one launch for all its kernels."""
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(3):
                self.begin()
                self.advance()
        torch.cuda.current_stream().wait_stream(aside)
        self.begin()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.recorded = self.advance()
        self.graph = graph
        self.left = 0

    @torch.no_grad()
    def difference(self, step: Any, tokens: int = 4) -> float:
        """Largest relative difference of the scores of `step` from those of the whole text at once."""
        self.prefill()
        self.left, text, worst = 0, torch.cat((self.prompt, self.token), dim=1), 0.0
        for _ in range(tokens):
            cached = step().float()
            cache = torch.zeros_like(self.caches)
            places = torch.arange(text.shape[1], device=text.device)
            whole = self.net(text, cache, places).float()
            worst = max(worst, difference(cached, whole))
            text = torch.cat((text, self.token), dim=1)
        return worst


def _run(asked: Asked, work: Work, shape: Shape, batch: int, context: int, room: int) -> Run:
    if asked.device == "cpu" and work.dtype == "fp16":
        raise Unsupported(NO_FP16)
    refuse_unsupported(work.dtype, asked.device)
    server = Server(asked, shape, work.dtype, batch, context, room)
    first = server.prefill().clone()
    generates = work.mode == "generate"
    if generates and asked.device == "cuda":
        server.capture()
    step = server.step if generates else server.prefill

    def right() -> list[Finding]:
        if generates:
            worst, limit = server.difference(spoiled(server.step, asked)), TOLERANCE[work.dtype]
            evidence = f"scores of single tokens and of the whole text differ by {worst:.2g}"
            found = [verdict(f"{work.name}.cache", worst <= limit, evidence)]
        else:
            again = spoiled(server.prefill, asked)()
            wild = int((~torch.isfinite(again)).sum())
            same = torch.allclose(again.float(), first.float(), atol=1e-3)
            evidence = (
                f"{wild} scores not finite; the first and the last time {'equal' if same else 'differ'}"
            )
            found = [verdict(f"{work.name}.result", same and not wild, evidence)]
        return found + _memory_check(work, server, shape, batch) + _weights_check(work, server)

    quantised = work.dtype in QUANTISED
    facts = {"batch": batch, "context": context, "cuda_graph": server.graph is not None,
             "kv_bytes_per_token": shape.kv_bytes(server.caches.element_size()),
             "kv_bytes": server.caches.nbytes, "weights_bytes": shape.weight_bytes(work.dtype)}  # fmt: skip
    count = server.advance if generates else server.prefill

    def at_begin() -> Any:
        server.begin()
        server.left = 0  # the next step begins anew: this one is none of its tokens
        return count()

    return Run(step=step, count=counted(at_begin), countable=not quantised, after=right, facts=facts)


@torch.no_grad()
def _memory_check(work: Work, server: Server, shape: Shape, batch: int) -> list[Finding]:
    """A prompt fills as many bytes of the cache as the formula says."""
    server.caches.zero_()
    server.prefill()
    size = server.caches.element_size()
    filled = int((server.caches != 0).any(-1).sum()) * shape.head * size
    expected = batch * server.context * shape.kv_bytes(size)
    evidence = f"a prompt fills {filled} bytes with keys and values; formula {expected}"
    return [verdict(f"{work.name}.kv", filled == expected, evidence)]


@torch.no_grad()
def _weights_check(work: Work, server: Server) -> list[Finding]:
    """A product with quantised weights against the same in FP32."""
    if work.dtype not in QUANTISED:
        return []
    layer: Any = server.net.blocks[0].attention.out
    inputs = torch.randn(4, server.net.shape.width, device=server.prompt.device).bfloat16()
    plain = layer.plain()
    exact = inputs.float() @ plain.t()
    error = (layer(inputs)[:, : len(plain)].float() - exact).abs().max().item() / exact.abs().max().item()
    evidence = f"a product differs from FP32 with these weights by {error:.2g} of its largest value"
    return [verdict(f"{work.name}.weights", error <= WEIGHTS[work.dtype], evidence)]
