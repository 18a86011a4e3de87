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
        "hour",
        "hours",
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
LESS = frozenset(("time", "latency", "duration", "elapsed", "ttft", "tpot", "itl", "error", "errors", "miss"))
ONE = ("s", "sec", "second", "min", "minute", "h", "hour")  # what a rate is counted in
FINE = frozenset(("ns", "us", "µs", "ms", "msec"))  # nobody counts anything in them
COUNTED = frozenset(
    name + end
    for name in ("tok", "token", "image", "img", "sample", "seq", "sequence", "request", "req", "query",
                 "frame", "step", "iter", "it", "item", "op", "epoch", "batch", "word")
    for end in ("", "s")
)  # fmt: skip
UNSAID = frozenset(("b", "h", "min"))  # as the last word of a name: 8B, a height, the least


def better(unit: str, metric: str) -> Better | None:
    """By the unit, else by the metric's words, such as latency_ms; None: nobody can tell."""
    return _by_unit(unit) if unit.strip() else _by_name(metric)


def size_in_bytes(value: float, unit: str) -> float:
    """An amount of memory in a unit that `better` calls memory, or by the last word of a metric's name."""
    words = _words(unit)
    prefix = re.sub(r"b$|bytes?$", "", words[-1] if words else "")
    return value * FACTORS.get(prefix, 1)


def _words(text: str) -> list[str]:
    return [word for word in re.split(r"[^a-zµ]+", text.lower()) if word]


def _by_unit(unit: str) -> Better | None:
    text = re.sub(r"(^|[ _-])per[ _-]", "/", unit.strip().lower())
    if re.search(rf"/\s*({'|'.join(ONE)}|ms|us)(?![a-z-])|flops$|^(k|m|g|t)?bps$|^fps$|^hz$", text):
        return "higher"
    if text in TIMES or re.fullmatch(rf"(.*[^a-zµ])?({'|'.join(TIMES)})\s*/.+|(joules?|j)(/.+)?", text):
        return "lower"
    return "memory" if text in BYTES else None


def _by_name(metric: str) -> Better | None:
    """None wherever a name can be read in two ways: the reader is told what was taken."""
    words = _words(metric)
    before, last = ["", "", *words][-2:]
    more, less = (not known.isdisjoint(words) for known in (SPEEDS, LESS))
    if less != (more and last not in FINE):
        return "lower" if less else "higher"
    if "/" in metric and last in FINE:
        return None  # a rate, or a path that ends in its unit
    if ("/" in metric or "per" in words) and (found := _by_unit(metric)):
        return found
    if last in UNSAID or (last in ONE and before in COUNTED | BYTES):
        return None
    if last in TIMES:
        return "lower"
    return "memory" if last in BYTES else None
