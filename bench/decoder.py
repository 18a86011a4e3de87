"""A decoder as servers run it: grouped-query attention, RoPE, RMSNorm, SwiGLU, a KV cache; random weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from findings import Unsupported
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as everyone calls it

GROUP = 128  # weights of one scale and zero point in 4 bits
LARGEST_FP8 = 448.0  # of float8_e4m3fn
BYTES = {"fp32": 4.0, "fp16": 2.0, "bf16": 2.0, "fp8": 1.0, "int4": 0.5 + 4 / GROUP}  # of a weight
KEPT = {"fp32": torch.float32, "fp16": torch.float16}  # of all else: BF16


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A decoder's; a head has width / heads values, `kv_heads` divides `heads`."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    hidden: int
    vocabulary: int

    @property
    def head(self) -> int:
        return self.width // self.heads

    def block_weights(self) -> int:
        """Weights of the products of all layers: queries and output, keys and values, three of the MLP."""
        kv = 2 * self.width * self.kv_heads * self.head
        return self.layers * (2 * self.width**2 + kv + 3 * self.width * self.hidden)

    def flops(self, batch: int, tokens: int, seen: int) -> float:
        """Of `tokens` new positions a sequence that each see `seen`; scores of the last one alone."""
        attention = 2 * self.layers * self.width * seen
        each = tokens * (self.block_weights() + attention) + self.width * self.vocabulary
        return 2.0 * batch * each

    def kv_bytes(self, size: int = 2) -> int:
        """Keys and values of one token."""
        return 2 * self.layers * self.kv_heads * self.head * size

    def weight_bytes(self, dtype: str) -> float:
        """Of what a token reads: embeddings and head are never quantised."""
        head = self.width * self.vocabulary * (4 if dtype == "fp32" else 2)
        return self.block_weights() * BYTES[dtype] + head


class FP8Linear(nn.Module):
    """Weights in FP8 with one scale; inputs are scaled and converted at each call."""

    def __init__(self, plain: nn.Linear) -> None:
        super().__init__()
        self.weight, self.scale = _to_fp8(plain.weight.detach())

    def forward(self, values: Any) -> Any:
        flat, scale = _to_fp8(values.flatten(0, -2))
        out = torch._scaled_mm(
            flat, self.weight.t(), scale_a=scale, scale_b=self.scale, out_dtype=values.dtype
        )
        return out.view(*values.shape[:-1], -1)

    def plain(self) -> Any:
        """The weights as they count, in FP32."""
        return self.weight.float() * self.scale


def _to_fp8(values: Any) -> tuple[Any, Any]:
    scale = values.abs().amax().float().clamp(min=1e-12) / LARGEST_FP8
    return (values / scale).to(torch.float8_e4m3fn), scale


class Int4Linear(nn.Module):
    """Weights in 4 bits, GROUP of them with a scale and a zero point; torch's own kernels."""

    def __init__(self, plain: nn.Linear) -> None:
        super().__init__()
        cuda, rows = plain.weight.is_cuda, plain.weight.shape[0]
        groups = plain.weight.detach().float().view(rows, -1, GROUP)
        low, high = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
        scale = ((high - low) / 15).clamp(min=1e-6).bfloat16().float()
        zero = (low + 8 * scale).bfloat16().float()
        codes = ((groups - zero) / scale + 8).round().clamp(0, 15).int()
        self.exact = ((codes - 8) * scale + zero).view(rows, -1)[:64].clone()  # enough to be checked
        codes = codes.view(rows, -1)
        self.scales = torch.cat((scale, zero), -1).transpose(0, 1).contiguous().bfloat16()
        if cuda:
            self.codes = torch._convert_weight_to_int4pack(
                (codes[:, ::2] << 4 | codes[:, 1::2]).to(torch.uint8), 8
            )
        else:
            self.codes = torch._convert_weight_to_int4pack_for_cpu(codes, 1)
        self.multiply = torch._weight_int4pack_mm if cuda else torch._weight_int4pack_mm_for_cpu

    def forward(self, values: Any) -> Any:
        out = self.multiply(values.flatten(0, -2), self.codes, GROUP, self.scales)
        return out.view(*values.shape[:-1], -1)

    def plain(self) -> Any:
        """The first weights as they count, in FP32."""
        return self.exact


QUANTISED: dict[str, Callable[[nn.Linear], nn.Module]] = {"fp8": FP8Linear, "int4": Int4Linear}


class Attention(nn.Module):
    """Several query heads share a head of keys and values."""

    def __init__(self, shape: Shape, linear: Callable[[int, int], nn.Module]) -> None:
        super().__init__()
        self.shape = shape
        kv = shape.kv_heads * shape.head
        self.qkv, self.out = linear(shape.width, shape.width + 2 * kv), linear(shape.width, shape.width)

    def forward(self, values: Any, rotation: Any, cache: Any, position: Any, mask: Any) -> Any:
        """`cache`: keys and values (2, batch, KV heads, context, head), written from `position` on."""
        shape, (batch, tokens, _) = self.shape, values.shape
        parts = self.qkv(values).view(batch, tokens, -1, shape.head).transpose(1, 2)
        query, key, value = parts.split((shape.heads, shape.kv_heads, shape.kv_heads), dim=1)
        query, key = _rotated(query, rotation), _rotated(key, rotation)
        cache.index_copy_(3, position, torch.stack((key, value)))
        if mask is None:
            seen = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        else:
            # One new token: the query heads of a group look at the same keys, as if they were its tokens.
            grouped = query.reshape(batch, shape.kv_heads, -1, shape.head)
            seen = F.scaled_dot_product_attention(grouped, cache[0], cache[1], attn_mask=mask)
        seen = seen.reshape(batch, shape.heads, tokens, shape.head).transpose(1, 2)
        return self.out(seen.reshape(batch, tokens, shape.width))


def _rotated(values: Any, rotation: Any) -> Any:
    """RoPE: each pair of values turned by its position's angle."""
    cosine, sine = rotation
    first, second = values.chunk(2, dim=-1)
    return torch.cat((first * cosine - second * sine, first * sine + second * cosine), dim=-1)


class Block(nn.Module):
    """Attention and a gated MLP (SwiGLU), each after an RMSNorm and beside a residual path."""

    def __init__(self, shape: Shape, linear: Callable[[int, int], nn.Module]) -> None:
        super().__init__()
        self.first, self.second = nn.RMSNorm(shape.width, eps=1e-5), nn.RMSNorm(shape.width, eps=1e-5)
        self.attention = Attention(shape, linear)
        self.gate_up, self.down = linear(shape.width, 2 * shape.hidden), linear(shape.hidden, shape.width)

    def forward(self, values: Any, *given: Any) -> Any:
        values = values + self.attention(self.first(values), *given)
        gate, up = self.gate_up(self.second(values)).chunk(2, dim=-1)
        return values + self.down(F.silu(gate) * up)


class Decoder(nn.Module):
    """Takes token numbers, gives the scores of the last position of each sequence."""

    def __init__(self, shape: Shape, dtype: str, context: int, device: str) -> None:
        super().__init__()
        self.shape, kind = shape, KEPT.get(dtype, torch.bfloat16)

        def linear(inputs: int, outputs: int) -> nn.Module:
            plain = nn.Linear(inputs, outputs, bias=False, device=device, dtype=kind)
            return QUANTISED[dtype](plain) if dtype in QUANTISED else plain

        self.tokens = nn.Embedding(shape.vocabulary, shape.width, device=device, dtype=kind)
        # As GPT's: beside the usual 1 what the layers add would hardly count, and a wrong cache not be seen.
        nn.init.normal_(self.tokens.weight, std=0.02)
        self.blocks = nn.ModuleList(Block(shape, linear) for _ in range(shape.layers))
        self.last = nn.RMSNorm(shape.width, eps=1e-5)
        for part in self.modules():
            if isinstance(part, nn.RMSNorm):
                part.to(device=device, dtype=kind)
        self.head = nn.Linear(shape.width, shape.vocabulary, bias=False, device=device, dtype=kind)
        angles = torch.arange(context, device=device)[:, None] * 5e5 ** -(
            torch.arange(0, shape.head, 2, device=device) / shape.head
        )
        self.cosine, self.sine = angles.cos().to(kind), angles.sin().to(kind)
        self.places = torch.arange(context, device=device)

    def forward(self, numbers: Any, caches: Any, position: Any) -> Any:
        """`position`: of each token (tokens), a tensor: a CUDA graph must find the next one there.

        One new token looks at the whole cache under a mask, so that all steps have one shape.
        """
        rotation = self.cosine[position], self.sine[position]
        mask = (self.places <= position)[None, None, None] if numbers.shape[1] == 1 else None
        values = self.tokens(numbers)
        for index, block in enumerate(self.blocks):
            values = block(values, rotation, caches[index], position, mask)
        return self.head(self.last(values[:, -1]))


def refuse_unsupported(dtype: str, device: str) -> None:
    """Raises Unsupported for a number format that this torch or device has not."""
    least = {"fp8": (8, 9), "int4": (8, 0), "bf16": (8, 0)}.get(dtype)
    needed = {"fp8": ("_scaled_mm", "float8_e4m3fn")}.get(dtype, ())
    if dtype == "int4":
        tail = "" if device == "cuda" else "_for_cpu"
        needed = (f"_convert_weight_to_int4pack{tail}", f"_weight_int4pack_mm{tail}")
    if missing := [name for name in needed if not hasattr(torch, name)]:
        raise Unsupported(f"torch {torch.__version__} has no {missing[0]}")
    if device == "cuda" and least and torch.cuda.get_device_capability() < least:
        have = ".".join(map(str, torch.cuda.get_device_capability()))
        raise Unsupported(f"{dtype} needs compute capability {least[0]}.{least[1]}, this device has {have}")
