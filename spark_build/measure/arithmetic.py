"""What follows from bytes and bandwidth alone: number formats, and the least time of a token."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class NumberFormat:
    """`stored`: bytes of one weight with its share of scale factors."""

    name: str
    bits: int
    stored: float
    note: str = ""

    @property
    def factor(self) -> float:
        """Size relative to FP16."""
        return self.stored / 2


FORMATS = (
    NumberFormat(name="FP32", bits=32, stored=4),
    NumberFormat(name="FP16, BF16", bits=16, stored=2),
    NumberFormat(name="FP8", bits=8, stored=1),
    NumberFormat(
        name="NVFP4", bits=4, stored=0.5 + 1 / 16, note="4 bits and an FP8 scale for every 16 weights"
    ),
)


def weight_bytes(parameters: float, form: NumberFormat) -> float:
    """What the weights of a model take."""
    return parameters * form.stored


def token_floor(weights: float, bandwidth: float) -> float:
    """Least seconds for one token of one sequence: every weight (bytes) is read once, at bytes/s."""
    return weights / bandwidth
