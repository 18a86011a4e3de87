"""What memory is free, and how many tokens of a model would find room in it: plain arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spark_build.measure.model import Sample

RESERVE = 0.1  # of the free memory, for activations and what an allocator cannot use


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelShape:
    """What of a model takes memory."""

    name: str
    parameters: float
    layers: int
    kv_heads: int
    head_width: int

    def token_bytes(self, width: float = 2.0) -> float:
        """Keys and values of one token, `width` bytes for each number."""
        return 2 * self.layers * self.kv_heads * self.head_width * width


MODELS = (
    ModelShape(name="Llama 3.1 8B", parameters=8.03e9, layers=32, kv_heads=8, head_width=128),
    ModelShape(name="Llama 3.3 70B", parameters=70.6e9, layers=80, kv_heads=8, head_width=128),
)


def kv_room(free: float, shape: ModelShape, *, weights: float = 2.0, cache: float = 2.0) -> int:
    """Tokens of KV cache that fit into `free` bytes beside the weights; 0 where those do not fit.

    `weights`, `cache`: bytes for each number of either.
    """
    left = free * (1 - RESERVE) - shape.parameters * weights
    return max(0, int(left // shape.token_bytes(cache)))


def free_memory(samples: Sequence[tuple[float, Sample]], device: str) -> float | None:
    """Bytes that were free before anything ran: the device's own word, else what the kernel can give.

    None when neither was read. On unified memory the device's driver knows of no memory of its own.
    """
    if not samples:
        return None
    first = samples[0][1]
    names = ("device_free_mib", "memavailable_mib") if device == "cuda" else ("memavailable_mib",)
    return next((first[name] * 2**20 for name in names if name in first), None)
