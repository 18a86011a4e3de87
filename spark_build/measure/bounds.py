"""Physical bounds of workloads: roofline classes, arithmetic, memory."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from spark_build.measure.model import Bench, Figure, Kind, Sample, Work

LINKS = ("transfer", "collective")  # operations bounded by a link between devices, which is on no roofline
LEAST_SHARE = 0.1  # of its roof; a case that reaches less is bounded by what is no work
WORDS = {
    "gemm": "GEMM-bound",
    "convolution": "convolution-bound",
    "memory": "memory-bound",
    "overhead": "overhead-bound",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Ceilings:
    """Highest rates seen on the device in bytes/s, and FLOP/s by dtype, with the nominal ones."""

    bandwidth: float | None
    arithmetic: dict[str, float]
    nominal_bandwidth: float | None = None
    nominal: dict[str, float] = field(default_factory=dict)
    where: str = ""

    def peak(self, dtype: str) -> float | None:
        """Of a dtype; of the fastest where that one was not measured."""
        return self.arithmetic.get(dtype) or max(self.arithmetic.values(), default=None)


@dataclass(frozen=True, kw_only=True, slots=True)
class RooflinePlace:
    """A case on the roofline: FLOP/byte, FLOP/s, bytes/s; `share` of the lower roof, 0..1."""

    kind: Kind | None
    intensity: float | None
    flops: float | None
    bandwidth: float | None
    share: float | None
    roof: str = ""  # "arithmetic" or "memory": which of the two is the lower one
    nominal: float | None = None  # share of the same roof on paper


def figures(bench: Bench, work: str, arm: str | None = None) -> list[Figure]:
    """Return the figures of a case from the finished rounds (of one arm)."""
    return [
        figure
        for each in bench.rounds
        if not each.problem and arm in (None, each.slot.arm)
        for figure in each.figures
        if figure.work == work and figure.rate > 0
    ]


def ceilings(bench: Bench) -> Ceilings:
    """Return the fastest product of every dtype and the fastest of the largest copies, over all arms."""
    copies = [work for work in bench.works if work.operation == "copy" and work.moved]
    # A copy that fits into a cache says nothing about memory.
    largest = max((work.moved or 0 for work in copies), default=0.0)
    streams = [
        (work.moved or 0) * figure.rate / work.amount
        for work in copies
        if (work.moved or 0) >= largest / 2
        for figure in figures(bench, work.name)
    ]
    arithmetic: dict[str, float] = {}
    for work in bench.works:
        if work.operation == "gemm" and work.flops:
            for figure in figures(bench, work.name):
                seen = work.flops * figure.rate / work.amount
                arithmetic[work.dtype] = max(arithmetic.get(work.dtype, 0.0), seen)
    for each in bench.rounds:
        told = each.environment.get("ceilings", each.environment)
        streams += [rate for name, rate in _rates(told).items() if name == "copy"]
        for dtype, seen in _rates(told.get("flops") if isinstance(told, dict) else None).items():
            arithmetic[dtype] = max(arithmetic.get(dtype, 0.0), seen)
    known = bench.reference
    paper = f"; on paper: {known.name}" if known else ""
    return Ceilings(
        bandwidth=max(streams, default=None),
        arithmetic=arithmetic,
        nominal_bandwidth=known.bandwidth if known else None,
        nominal=dict(known.nominal) if known else {},
        where=f"measured in this run: the fastest product of each dtype, the fastest large copy{paper}",
    )


def _rates(found: object) -> dict[str, float]:
    """Return what of an arm's words are rates, by name."""
    named = found.items() if isinstance(found, dict) else ()
    return {str(name): float(rate) for name, rate in named if isinstance(rate, int | float) and rate > 0}


def place(work: Work, found: Sequence[Figure], roofs: Ceilings) -> RooflinePlace:
    """Return a case's place on the roofline, by the geometric mean of its rates."""
    if not found or work.operation in LINKS:
        return RooflinePlace(kind=None, intensity=None, flops=None, bandwidth=None, share=None)
    seconds = work.amount / statistics.geometric_mean([figure.rate for figure in found])
    flops, moved = work.flops or 0.0, work.moved or 0.0
    peak = roofs.peak(work.dtype)
    least = {
        "arithmetic": flops / peak if peak else 0.0,
        "memory": moved / roofs.bandwidth if roofs.bandwidth else 0.0,
    }
    roof = max(least, key=lambda name: least[name])
    part = least[roof] / seconds
    paper = roofs.nominal.get(work.dtype) if roof == "arithmetic" else roofs.nominal_bandwidth
    does = flops if roof == "arithmetic" else moved
    return RooflinePlace(
        kind=_kind(work, found, roof, part) if part else None,
        intensity=flops / moved if flops and moved else None,
        flops=flops / seconds if flops else None,
        bandwidth=moved / seconds if moved else None,
        share=part or None,
        roof=roof if part else "",
        nominal=does / seconds / paper if paper and does else None,
    )


def places(bench: Bench, arm: str) -> dict[str, RooflinePlace]:
    """Return all cases of one arm."""
    roofs = ceilings(bench)
    return {work.name: place(work, figures(bench, work.name, arm), roofs) for work in bench.works}


def kinds(bench: Bench) -> dict[str, Kind | None]:
    """Return each case's bound where it runs best: a slow arm must not hide the kind of work."""
    arms = [places(bench, arm.name) for arm in bench.arms]
    return {
        work.name: max((own[work.name] for own in arms), key=lambda each: each.share or 0.0).kind
        for work in bench.works
    }


def _kind(work: Work, found: Sequence[Figure], roof: str, part: float) -> Kind:
    if part < LEAST_SHARE:
        return "overhead"
    if roof == "memory":
        return "memory"
    return "convolution" if _convolved(work, found) > 0.5 else "gemm"


def _convolved(work: Work, found: Sequence[Figure]) -> float:
    """Return share of the arithmetic that convolutions do, as counted when it ran, else by the operation."""
    shares = []
    for figure in found:
        counted = figure.facts.get("flops_by")
        if isinstance(counted, dict) and (total := sum(counted.values())):
            shares.append(counted.get("convolution", 0) / total)
    return statistics.fmean(shares) if shares else float(work.operation == "convolution")


@dataclass(frozen=True, kw_only=True, slots=True)
class NumberFormat:
    """`stored`: bytes of one weight with its share of scale factors."""

    name: str
    stored: float
    note: str = ""

    @property
    def factor(self) -> float:
        """Size relative to FP16."""
        return self.stored / 2


FORMATS = (
    NumberFormat(name="FP32", stored=4),
    NumberFormat(name="FP16, BF16", stored=2),
    NumberFormat(name="FP8", stored=1),
    NumberFormat(name="NVFP4", stored=0.5 + 1 / 16, note="4 bits and an FP8 scale for every 16 weights"),
)


def weight_bytes(parameters: float, form: NumberFormat) -> float:
    """Return the bytes of a model's weights."""
    return parameters * form.stored


def token_floor(weights: float, bandwidth: float) -> float:
    """Return least seconds for one token of one sequence: every weight (bytes) is read once, at bytes/s."""
    return weights / bandwidth


RESERVE = 0.1  # of the free memory, for activations and what an allocator cannot use


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelShape:
    """Dimensions of a model that decide its memory."""

    name: str
    parameters: float
    layers: int
    kv_heads: int
    head_width: int

    @property
    def token_bytes(self) -> int:
        """Keys and values of one token, two bytes for each number."""
        return 2 * self.layers * self.kv_heads * self.head_width * 2


MODELS = (
    ModelShape(name="Llama 3.1 8B", parameters=8.03e9, layers=32, kv_heads=8, head_width=128),
    ModelShape(name="Llama 3.3 70B", parameters=70.6e9, layers=80, kv_heads=8, head_width=128),
)


def kv_room(free: float, shape: ModelShape, *, weights: float = 2.0) -> int:
    """Return tokens of KV cache that fit into `free` bytes beside the weights; 0 where those do not fit.

    weights: bytes for each of their numbers; the cache has two.
    """
    left = free * (1 - RESERVE) - shape.parameters * weights
    return max(0, int(left // shape.token_bytes))


def free_memory(samples: Sequence[tuple[float, Sample]], device: str) -> float | None:
    """Return bytes that were free before anything ran: the device's own word, else what the kernel can give.

    None when neither was read. On unified memory the device's driver knows of no memory of its own.
    """
    if not samples:
        return None
    first = samples[0][1]
    names = ("device_free_mib", "memavailable_mib") if device == "cuda" else ("memavailable_mib",)
    return next((first[name] * 2**20 for name in names if name in first), None)
