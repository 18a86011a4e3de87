"""Whether more or less is better, told by a unit or by what a metric is called."""

from __future__ import annotations

import re
from typing import Literal

Better = Literal["higher", "lower", "memory"]
TIMES = frozenset(
    (
        "ns",
        "us",
        "µs",
        "ms",
        "s",
        "sec",
        "secs",
        "second",
        "seconds",
        "msec",
        "millisecond",
        "milliseconds",
        "min",
        "minute",
        "minutes",
        "h",
    )
)
BYTES = frozenset(("b", "byte", "bytes", "kb", "mb", "gb", "tb", "kib", "mib", "gib", "tib"))
FACTORS = {"": 1, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
SPEEDS = frozenset(
    (
        "throughput",
        "bandwidth",
        "speed",
        "rate",
        "tflops",
        "gflops",
        "mflops",
        "flops",
        "fps",
        "gbps",
        "mbps",
        "ips",
        "qps",
        "bogo",
        "score",
    )
)
SLOWNESS = frozenset(("time", "latency", "duration", "elapsed", "ttft", "tpot", "itl"))


def better(unit: str, metric: str) -> Better | None:
    """By the unit, else by the metric's words, such as latency_ms; None: nobody can tell."""
    return _by_unit(unit) if unit.strip() else _by_name(metric)


def size_in_bytes(value: float, unit: str) -> float:
    """An amount of memory in a unit that `better` calls memory."""
    prefix = re.sub(r"b$|bytes?$", "", unit.strip().lower())
    return value * FACTORS.get(prefix, 1)


def _by_unit(unit: str) -> Better | None:
    text = unit.strip().lower()
    if re.search(r"/\s*(s|ms|sec|second|min|minute|h)$|\bper[ _]s|flops$|^(k|m|g|t)?bps$|^fps$|^hz$", text):
        return "higher"
    if text in TIMES or re.fullmatch(rf"({'|'.join(sorted(TIMES))})\s*/\s*\w+|joules?|j", text):
        return "lower"
    return "memory" if text in BYTES else None


def _by_name(metric: str) -> Better | None:
    words = [word for word in re.split(r"[^a-zµ]+", metric.lower()) if word]
    if not words:
        return None
    if "per" in words and words[-1] in TIMES:
        return "higher"
    if words[-1] in TIMES:
        return "lower"
    if words[-1] in BYTES:
        return "memory"
    if any(word in SLOWNESS for word in words):
        return "lower"
    return "higher" if any(word in SPEEDS for word in words) else None
