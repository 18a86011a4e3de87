"""Arms, rounds, samples, results and comparisons."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from spark_build.events import Gate

CheckStatus = Literal["ok", "fail", "skipped"]
Role = Literal["baseline", "candidate", "control", "variant"]  # variant: measured, but decides nothing
Mode = Literal["quick", "full"]
Device = Literal["cpu", "cuda"]
VerdictWord = Literal["UPLIFT", "EQUIVALENT", "REGRESSION", "MIXED", "FUNCTIONAL-FAIL", "INCONCLUSIVE"]
RateFinding = Literal["faster", "slower", "equivalent", "unclear"]
Attribution = Literal["cublas", "build", "unresolved"]
Tick = tuple[float, float]  # seconds since the case began, FLOP/s
Sample = dict[str, float]  # one look at the machine; what cannot be read is missing, never 0
LAYOUTS = {"ab": "a@b", "linear": "F.linear", "scaled": "_scaled_mm"}
SCALED = ("fp8", "fp4")  # dtypes that only a scaled product takes


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """One functional check and what was seen."""

    name: str
    status: CheckStatus
    evidence: str
    package: str = ""  # of the recipe whose check it is


@dataclass(frozen=True, kw_only=True, slots=True)
class Arm:
    """One environment under measurement."""

    name: str
    role: Role
    python: str  # its interpreter
    origin: str  # in words: where it comes from
    versions: dict[str, str] = field(default_factory=dict)  # distribution -> installed version
    threads: int = 0  # CPU threads; 0: what the settings say
    env: dict[str, str] = field(default_factory=dict)  # added to the scrubbed environment
    image: str = ""  # of a container in which `python` is run
    engine: str = ""  # docker or podman, for an image
    swapped: tuple[str, ...] = ()  # libraries of another arm that are loaded in place of its own


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class Case:
    """One kind of work: the product of two size x size matrices."""

    dtype: str  # fp32, tf32, bf16, fp16, fp8, fp4
    size: int
    layout: str  # a key of LAYOUTS

    @property
    def product(self) -> str:
        """The call, as one writes it."""
        return LAYOUTS[self.layout]

    def __str__(self) -> str:
        return f"{self.dtype.upper()} {self.size}^3 {self.product}"


@dataclass(frozen=True, kw_only=True, slots=True)
class CommonSettings:
    """The settings that decide a run, whatever runs in it."""

    mode: Mode
    device: Device
    pairs: int  # rounds of each arm
    seed: int
    threads: int
    warmup: float  # seconds, at least; up to three times that until the rate is steady
    window: float  # seconds that count, per case
    notes: tuple[str, ...] = ()  # what was left out, and why
    patience: float | None = None  # seconds after which a round counts as hung; None: by its length
    script: str = ""  # the file that runs inside an arm
    inject: str = ""  # an error to plant, for tests of this program


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings(CommonSettings):
    """Everything that decides a burn-in; the headline is named here, before anything is measured."""

    cases: tuple[Case, ...]
    headline: Case
    tick: float  # seconds of one recorded rate
    most: int = 0  # pairs at most: more than `pairs` are measured until the headline's interval is narrow


@dataclass(frozen=True, kw_only=True, slots=True)
class Slot:
    """A place in the order of rounds; `visit` counts an arm's rounds from 0, `block` the balanced sets."""

    index: int
    visit: int
    block: int
    arm: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Measurement:
    """One case in one round. Rates in FLOP/s, over the whole window."""

    case: Case
    rate: float
    cv: float  # coefficient of variation of the window's ticks
    drop: float  # relative loss from the first to the last quarter of the window
    steady: bool  # the warm-up ended because the rate stood still, not at its cap
    busy: float | None  # share of its threads' time that the process really ran; None: not known
    clock_mhz: float | None = None  # mean over the window
    clock_cv: float | None = None  # within the window
    watts: float | None = None
    span: tuple[float, float] = (0.0, 0.0)  # start of warm-up and end of window, seconds of the round
    warmup: tuple[Tick, ...] = ()
    window: tuple[Tick, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Telemetry:
    """State of the machine while a round's windows were timed; None: cannot be read here."""

    load: float | None = None  # load average of one minute, before the round
    others: float | None = None  # share of all processors used by other processes
    steal: float | None = None  # share of all processors taken away by the hypervisor
    pressure: float | None = None  # share of time in which some task waited for a processor
    clock_mhz: float | None = None
    clock_cv: float | None = None
    throttled: float | None = None  # throttling events or seconds counted during the round
    utilisation: float | None = None  # of the GPU, 0..1
    watts: float | None = None
    limit_watts: float | None = None
    capped: float | None = None  # share of the time in which the power cap held the clocks down
    celsius: float | None = None
    other_processes: int | None = None  # on the GPU
    free_mib: int | None = None  # before the round: the memory that the device computes in
    reasons: tuple[str, ...] = ()  # why the device clocked down, in words
    performance: float | None = None  # share of the processors with that governor


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """One process launch of one arm, whatever ran. `problem` says why it did not finish."""

    slot: Slot
    launch: str  # which invocation of the program measured it
    started: str  # ISO 8601, UTC
    seconds: float
    problem: str = ""
    invalid: bool = False  # it tells what cannot be: nothing of it counts
    checks: tuple[Check, ...] = ()
    telemetry: Telemetry = field(default_factory=Telemetry)
    environment: dict[str, Any] = field(default_factory=dict)
    samples: tuple[tuple[float, Sample], ...] = ()  # (seconds of the round, what was read)
    file: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Round(Launch):
    """A launch of a burn-in."""

    killed: bool = False  # by SIGKILL from outside: out of memory, or somebody
    measurements: tuple[Measurement, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Effect:
    """A log ratio, its standard error and the degrees of freedom of that."""

    offset: float
    error: float
    freedom: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Contrast:
    """Two samples of launches. Ratios are second over first, above 1 is better; p-values two-sided."""

    paired: bool
    counts: tuple[int, int]  # launches of either; of pairs: twice the same
    ratio: float  # trimmed geometric mean of the pairs' ratios, else ratio of the geometric means
    ci95: tuple[float, float]  # by t on log ratios, or by Welch where nothing pairs the launches
    p: float  # of the same test
    rank_p: float  # Wilcoxon's signed ranks for pairs, else Mann-Whitney
    flip_p: float | None  # of the pairs' signs; a claim about pairs needs it
    tost_p: float  # small: within +-2%
    slower_p: float  # one-sided; small: slower by more than the margin
    not_slower_p: float  # one-sided; small: not slower by more than the margin
    welch_p: float
    mann_whitney_p: float
    normal_p: float | None  # Shapiro-Wilk, of log ratios or of the less normal arm; None: too few
    cohen_d: float | None  # None without any spread
    detectable: float  # smallest relative difference found 4 times out of 5
    power: float  # chance to find a difference of 5%

    def __str__(self) -> str:
        return f"{self.ratio:.3f} [{self.ci95[0]:.3f}, {self.ci95[1]:.3f}]"


@dataclass(frozen=True, kw_only=True, slots=True)
class CaseResult:
    """A case in two arms; `finding` is one word, Holm-corrected unless it is the headline."""

    case: Case
    first: str
    second: str
    role: Role  # of the second arm
    headline: bool
    comparison: Contrast
    rates: tuple[float, float]  # geometric means, FLOP/s
    ratios: tuple[float, ...]  # one for each pair, in order
    holm_p: float | None  # that it is slower beyond the margin; None for the headline, which is tested alone
    finding: RateFinding
    undecided: bool = False  # neither shown to be slower beyond the margin nor shown not to be
    per_clock: float | None = None  # ratio of the rates for each GHz; None: no clock can be read


@dataclass(frozen=True, kw_only=True, slots=True)
class Reference:
    """Known rates of a kind of device: FLOP/s, bytes/s, MHz; each with its source."""

    name: str
    device: str  # regular expression, searched in the device's name
    rates: dict[str, tuple[float, float]]  # dtype -> range in which healthy ones were seen
    nominal: dict[str, float] = field(default_factory=dict)  # dtype -> dense peak on paper
    least_size: int = 0  # smaller products are slower everywhere
    bandwidth: float | None = None
    least_clock: float | None = None  # under load; below it a device is in a hidden slow state
    bus: tuple[float, float] | None = (
        None  # bytes/s of all_reduce between nodes: least of healthy ones, on paper
    )
    sources: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """A claim: `claim` is the short form, `explanation` one sentence for people."""

    word: VerdictWord
    claim: str
    explanation: str
    indicative: bool
    attribution: Attribution | None = None
    headline: CaseResult | None = None
    slower: tuple[str, ...] = ()  # other cases that are shown to be slower beyond the margin
    undecided: tuple[str, ...] = ()  # other cases of which that is neither shown nor excluded


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredRun:
    """A run of the burn-in or the suite: arms, conditions, reference."""

    arms: tuple[Arm, ...]  # of the suite: the first is the baseline
    breaks: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()  # what was left out or prepared
    reference: Reference | None = None
    scope: dict[str, str] = field(default_factory=dict)  # device, driver, threads, ...
    folder: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class BurnIn(MeasuredRun):
    """A whole burn-in, and what follows."""

    settings: Settings
    verdict: Verdict
    cases: tuple[CaseResult, ...]
    gates: tuple[Gate, ...]
    rounds: tuple[Round, ...]
    checks: tuple[Check, ...] = ()  # of the operator battery
    kernels: dict[str, dict[str, list[str]]] = field(default_factory=dict)  # arm -> case -> names
    report: str = ""


def burn_in_json(result: BurnIn, *, raw: bool = False) -> dict[str, Any]:
    """Return the documented form of a burn-in; `raw` adds every tick of every round."""
    document = asdict(result)
    verdict = document.pop("verdict")
    headline, rounds = verdict.pop("headline"), document["rounds"]
    for each in rounds if not raw else ():
        del each["environment"], each["samples"]
        for measurement in each["measurements"]:
            del measurement["warmup"], measurement["window"]
    seen = headline["comparison"] if headline else {}
    return {
        **document,
        **verdict,
        "schema": 1,
        "verdict": verdict["word"],
        "ratio": seen.get("ratio"),
        "ci95": seen.get("ci95"),
        "rounds": len(rounds),
        "headline": str(result.settings.headline),
        "cases": [_case_json(case) for case in result.cases],
        "round_results": rounds,
    }


def _case_json(case: CaseResult) -> dict[str, Any]:
    """With the names that a comparison's numbers have in a burn-in."""
    seen = case.comparison
    named = {"pairs": seen.counts[0], "t_p": seen.p, "wilcoxon_p": seen.rank_p}
    return {**asdict(case), "comparison": {**asdict(seen), **named}}


SCHEMA = 1
# What bounds a case, told by measuring; "capacity" is no speed: what there is room for.
Kind = Literal["gemm", "convolution", "memory", "overhead", "capacity"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """One case of a workload, as the arm that ran it describes it."""

    name: str  # "gemm.fp16.4096"; unique
    workload: str  # its file in bench/workloads
    unit: str  # of the rate: FLOP/s, B/s, tokens/s, samples/s
    amount: float  # units that one call does
    dtype: str = ""
    size: int | None = None  # what a sweep goes over
    mode: str = ""  # train, eval, prefill, decode, compiled, ...
    operation: str = ""  # gemm, convolution, elementwise, copy, attention, model, collective
    flops: float | None = None  # arithmetic of one call; None: none worth counting
    moved: float | None = None  # bytes that one call must move at least


JOULES = "joules_per_unit"  # a fact of a figure: of the device, for one unit of its rate


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """One case in one round. Rates in the work's unit, times in seconds, memory in bytes."""

    work: str
    rate: float  # over the whole window
    calls: tuple[float, ...]  # seconds of single calls, at most 1,000; none where they cannot be told
    span: tuple[float, float] = (0.0, 0.0)  # start of warm-up and end of window, seconds of the round
    steady: bool = True
    peak: dict[str, float] = field(default_factory=dict)  # allocated, reserved, rss, ...; unknown: missing
    facts: dict[str, Any] = field(default_factory=dict)  # backend used, loss before and after, ...


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchRound(Launch):
    """A launch of the suite."""

    figures: tuple[Figure, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchSettings(CommonSettings):
    """Everything that decides a run of the suite."""

    workloads: tuple[str, ...]
    cool: float | None = None  # degrees Celsius to cool down to between rounds


@dataclass(frozen=True, kw_only=True, slots=True)
class Bench(MeasuredRun):
    """A whole run: raw values only; what follows from them is computed when it is shown."""

    settings: BenchSettings
    works: tuple[Work, ...]
    rounds: tuple[BenchRound, ...]


def bench_json(result: Bench) -> dict[str, Any]:
    """Return the documented form with every raw sample."""
    return {"schema": SCHEMA, "kind": "bench", **asdict(result)}


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """A sample in the unit of its values."""

    count: int
    mean: float
    std: float | None  # of the sample; None for one value
    median: float
    p95: float
    p99: float


@dataclass(frozen=True, kw_only=True, slots=True)
class CaseChange:
    """One case in two arms."""

    case: str
    unit: str
    lower: bool  # a lower value is better
    kind: Kind | None
    first: str
    second: str
    values: tuple[Summary, Summary]  # one value for each launch, in `unit`
    calls: tuple[Summary | None, Summary | None]  # seconds of one call, over all launches
    ratios: tuple[float, ...]  # of each pair, or of each launch of the second to the first's mean
    contrast: Contrast
    holm_p: float  # corrected over all cases of the two arms
    finding: RateFinding
    overhead: float  # percent of time that the second takes more; negative: less
    overhead95: tuple[float, float]
    band: str  # of `overhead`


@dataclass(frozen=True, kw_only=True, slots=True)
class ClassChange:
    """All cases that the same part of the device bounds; every case counts the same."""

    kind: Kind
    first: str
    second: str
    cases: tuple[str, ...]
    contrast: Contrast
    holm_p: float  # corrected over the classes
    finding: RateFinding


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryChange:
    """One kind of memory that one case needs more of in one arm than in the other."""

    case: str
    what: str  # allocated, reserved, rss, ...
    first: str
    second: str
    values: tuple[float, float]  # geometric means, bytes
    holm_p: float
    finding: str  # "same speed, different memory", or "different memory" where speed is not the same


@dataclass(frozen=True, kw_only=True, slots=True)
class Compared:
    """All that may be said of two or more arms."""

    arms: tuple[str, ...]  # the first is the baseline
    paired: bool
    indicative: bool  # few launches, or a quick run
    changes: tuple[CaseChange, ...]
    classes: tuple[ClassChange, ...]
    memory: tuple[MemoryChange, ...]
    doubts: tuple[str, ...]  # why nothing of it may be claimed
    left_out: tuple[str, ...] = ()  # cases that one side lacks or has in another unit, and why
    notes: tuple[str, ...] = ()
