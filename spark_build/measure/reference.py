"""Is this normal? What was seen on other devices of the same kind, and how a rate compares with it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from spark_build.errors import UsageError
from spark_build.measure.model import Case, Reference

SCHEMA = 1
TERA, GIGA = 1e12, 1e9


def parse_reference(raw: Mapping[str, Any], where: str) -> Reference:
    """A reference from its TOML document; rates there are TFLOP/s, bandwidth GB/s. Raises UsageError."""
    try:
        if raw["schema"] != SCHEMA:
            raise ValueError(f"schema is not {SCHEMA}")
        rates = {name: (float(low) * TERA, float(high) * TERA) for name, (low, high) in raw["tflops"].items()}
        if backwards := [name for name, (low, high) in rates.items() if not 0 < low <= high]:
            raise ValueError(f"tflops.{backwards[0]}: low, then high")
        re.compile(raw["device"])
        bandwidth, clock = raw.get("bandwidth_gbs"), raw.get("least_clock_mhz")
        return Reference(
            name=str(raw["name"]),
            device=str(raw["device"]),
            rates=rates,
            nominal={name: float(value) * TERA for name, value in raw.get("nominal_tflops", {}).items()},
            least_size=int(raw.get("least_size", 0)),
            bandwidth=None if bandwidth is None else float(bandwidth) * GIGA,
            least_clock=None if clock is None else float(clock),
            sources=tuple(str(each) for each in raw["sources"]),
        )
    except (KeyError, TypeError, ValueError, re.error) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise UsageError(
            f"not a reference of this schema: {what}",
            where=where,
            hint="name, device, sources, [tflops] dtype = [low, high]; docs/verdict.md has an example",
        ) from error


def reference_for(references: Sequence[Reference], device: str) -> Reference | None:
    """The first whose pattern is found in the device's name."""
    return next((each for each in references if re.search(each.device, device)), None)


def placed(reference: Reference | None, case: Case, rate: float) -> str:
    """Where a rate (FLOP/s) lies: "as known", "15% below what is known", ...; empty without a reference."""
    if reference is None or case.dtype not in reference.rates or case.size < reference.least_size:
        return ""
    low, high = reference.rates[case.dtype]
    if rate < low:
        return f"{1 - rate / low:.0%} below what {reference.name} is known for"
    if rate > high:
        return f"{rate / high - 1:.0%} above what {reference.name} is known for"
    return f"as known of {reference.name}"
