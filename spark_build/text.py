"""Sizes and durations as people say them."""

from __future__ import annotations

import math


def duration(seconds: float) -> str:
    """A duration as people say it: "48 s", "3 min 12 s", "2 h 05 min"."""
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def size(count: float) -> str:
    """Bytes as people say them: "17.4 MiB"."""
    value = float(count)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} GiB"


def quantity(value: float, unit: str) -> str:
    """A value with the prefix that suits it: "62.4 TFLOP/s", "1.20 ms", "118 tokens/s"."""
    if unit == "s":
        for scale, name in ((1, "s"), (1e-3, "ms"), (1e-6, "us")):
            if abs(value) >= scale:
                return f"{three_digits(value / scale)} {name}"
        return f"{three_digits(value * 1e9)} ns"
    if unit in ("FLOP/s", "B/s", "B"):
        for scale, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
            if abs(value) >= scale:
                return f"{three_digits(value / scale)} {prefix}{unit}"
    return f"{three_digits(value)} {unit}".strip()


def three_digits(value: float) -> str:
    """At least three digits that count, and no exponent where people would write none."""
    if value == 0 or not 1e-3 <= abs(value) < 1e9:
        return f"{value:.3g}"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{digits}f}"


def flops(rate: float) -> str:
    """A rate in FLOP/s with one decimal: "641.2 TFLOP/s", "190.1 GFLOP/s"."""
    return f"{rate / 1e12:.1f} TFLOP/s" if rate >= 1e12 else f"{rate / 1e9:.1f} GFLOP/s"
