"""The models of the suite, with random weights: nothing is downloaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as everyone calls it


class Bottleneck(nn.Module):
    """ResNet's block of three convolutions around a shortcut; the second one takes the stride."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        out = 4 * width
        self.body = nn.Sequential(
            nn.Conv2d(channels, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
            nn.Conv2d(width, out, 1, bias=False), nn.BatchNorm2d(out),
        )  # fmt: skip
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != out:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out)
            )

    def forward(self, values: Any) -> Any:
        return F.relu(self.body(values) + self.shortcut(values))


def resnet50(classes: int) -> nn.Module:
    """Stages of 3, 4, 6 and 3 blocks."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
    ]  # fmt: skip
    channels = 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        width = 64 << stage
        for block in range(blocks):
            layers.append(Bottleneck(channels, width, 2 if stage and not block else 1))
            channels = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A transformer's; `width` is a multiple of `heads`."""

    layers: int
    width: int
    heads: int
    vocabulary: int
    context: int
    causal: bool

    def flops(self, batch: int, tokens: int, context: float | None = None) -> float:
        """Of one forward pass over `tokens` new positions that each see `context` (default: tokens).

        A layer multiplies each token with 12 width^2 weights (4 around the attention, 8 in the MLP), the
        head with width x vocabulary; 2 FLOPs for each. Attention is two products of width x context for
        a token. Masked positions count as well, as they do in all published figures.
        """
        weights = 12 * self.layers * self.width**2 + self.width * self.vocabulary
        attention = 2 * self.layers * self.width * (tokens if context is None else context)
        return 2.0 * batch * tokens * (weights + attention)


class Block(nn.Module):
    """Attention and MLP, each after a LayerNorm and beside a residual path."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width = shape.width
        self.shape = shape
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, values: Any, cache: Any = None, position: int = 0, mask: Any = None) -> Any:
        """`cache`: keys and values of this layer (2, batch, heads, context, width of a head).

        With a `mask` of its positions the whole cache is looked at.
        """
        batch, tokens, width = values.shape
        parts = self.qkv(self.first(values)).view(batch, tokens, 3, self.shape.heads, -1)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        if cache is not None:
            cache[0, :, :, position : position + tokens] = key
            cache[1, :, :, position : position + tokens] = value
            key, value = cache if mask is not None else cache[:, :, :, : position + tokens]
        causal = self.shape.causal and mask is None
        seen = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=causal)
        values = values + self.out(seen.transpose(1, 2).reshape(batch, tokens, width))
        return values + self.mlp(self.second(values))


class Transformer(nn.Module):
    """Encoder or decoder: the mask is the difference. Takes token numbers, gives scores of tokens."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.tokens = nn.Embedding(shape.vocabulary, shape.width)
        self.positions = nn.Embedding(shape.context, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.last = nn.LayerNorm(shape.width)
        self.head = nn.Linear(shape.width, shape.vocabulary, bias=False)

    def forward(self, numbers: Any, caches: Any = None, position: int = 0) -> Any:
        places = torch.arange(position, position + numbers.shape[1], device=numbers.device)
        values = self.tokens(numbers) + self.positions(places)
        mask = None
        if caches is not None and numbers.shape[1] == 1:
            # Of one shape for all positions: for each new length of keys cuDNN would plan anew, which takes
            # ten times as long as the token (40 ms, seen on an H200).
            mask = (torch.arange(self.shape.context, device=numbers.device) <= position)[None, None, None]
        for index, block in enumerate(self.blocks):
            values = block(values, None if caches is None else caches[index], position, mask)
        return self.head(self.last(values))
