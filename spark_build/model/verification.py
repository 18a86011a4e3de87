"""Verification as values: checks, arms, rounds, cases, gates and the verdict over them."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

CheckStatus = Literal["ok", "fail", "skipped"]
GateStatus = Literal["ok", "warn", "fail", "unknown"]
Role = Literal["baseline", "candidate", "control"]
Mode = Literal["quick", "full"]
Device = Literal["cpu", "cuda"]
VerdictWord = Literal["UPLIFT", "EQUIVALENT", "REGRESSION", "FUNCTIONAL-FAIL", "INCONCLUSIVE"]
Attribution = Literal["cublas", "build", "unresolved"]
Tick = tuple[float, float]  # seconds since the case began, FLOP/s


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """One functional check and what was seen."""

    name: str
    status: CheckStatus
    evidence: str


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


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class Case:
    """One kind of work: the product of two size x size matrices."""

    dtype: str  # fp32, tf32, bf16, fp16
    size: int
    layout: str  # ab: a @ b; linear: F.linear

    def __str__(self) -> str:
        product = "a@b" if self.layout == "ab" else "F.linear"
        return f"{self.dtype.upper()} {self.size}^3 {product}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """Everything that decides a run; the headline is named here, before anything is measured."""

    mode: Mode
    device: Device
    cases: tuple[Case, ...]
    headline: Case
    pairs: int
    seed: int
    threads: int
    warmup: float  # seconds, at least; up to three times that until the rate is steady
    window: float  # seconds that count
    tick: float  # seconds of one recorded rate
    script: str  # the file that runs inside an arm
    notes: tuple[str, ...] = ()  # what was left out, and why
    inject: str = ""  # an error to plant, for tests of this program


@dataclass(frozen=True, kw_only=True, slots=True)
class Slot:
    """A place in the order of rounds; `visit` counts an arm's rounds from 0."""

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
    warmup: tuple[Tick, ...] = ()
    window: tuple[Tick, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Telemetry:
    """What the machine did while a round's windows were timed; None: cannot be read here."""

    load: float | None = None  # load average of one minute, before the round
    others: float | None = None  # share of all processors used by other processes
    steal: float | None = None  # share of all processors taken away by the hypervisor
    pressure: float | None = None  # share of time in which some task waited for a processor
    clock_mhz: float | None = None
    clock_cv: float | None = None
    throttled: float | None = None  # throttling events or seconds counted during the round
    utilisation: float | None = None  # of the GPU, 0..1
    watts: float | None = None
    celsius: float | None = None
    other_processes: int | None = None  # on the GPU
    free_mib: int | None = None  # before the round: the memory that the device computes in
    reasons: tuple[str, ...] = ()  # why the device clocked down, in words


@dataclass(frozen=True, kw_only=True, slots=True)
class Round:
    """One process launch of one arm. `problem` says why a round did not finish."""

    slot: Slot
    launch: str  # which invocation of the program measured it
    started: str  # ISO 8601, UTC
    seconds: float
    problem: str = ""
    killed: bool = False  # by SIGKILL from outside: out of memory, or somebody
    measurements: tuple[Measurement, ...] = ()
    checks: tuple[Check, ...] = ()
    telemetry: Telemetry = field(default_factory=Telemetry)
    environment: dict[str, Any] = field(default_factory=dict)
    file: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """Statistics of paired rates. Ratios are second over first; p-values two-sided."""

    pairs: int
    ratio: float  # geometric mean
    ci95: tuple[float, float]  # t-based, on log ratios
    t_p: float
    wilcoxon_p: float
    tost_p: float  # for a difference of at least +-2%
    welch_p: float
    mann_whitney_p: float
    cohen_d: float | None  # of the two samples of log rates; None without any spread
    detectable: float  # smallest relative difference found 4 times out of 5 at this spread


@dataclass(frozen=True, kw_only=True, slots=True)
class CaseResult:
    """A case in two arms; `finding` is one word, Holm-corrected unless it is the headline."""

    case: Case
    first: str
    second: str
    role: Role  # of the second arm
    headline: bool
    comparison: Comparison
    rates: tuple[float, float]  # geometric means, FLOP/s
    ratios: tuple[float, ...]  # one for each pair, in order
    holm_p: float | None  # None for the headline, which is tested alone
    finding: Literal["faster", "slower", "equivalent", "unclear"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Gate:
    """A condition under which a number means something; `fail` makes a run INCONCLUSIVE."""

    name: str
    status: GateStatus
    evidence: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """What may be claimed. `claim` is the short form, `explanation` one sentence for people."""

    word: VerdictWord
    claim: str
    explanation: str
    indicative: bool
    attribution: Attribution | None = None
    headline: CaseResult | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class BurnIn:
    """A whole burn-in: what was measured, under which conditions, and what follows."""

    settings: Settings
    arms: tuple[Arm, ...]
    verdict: Verdict
    cases: tuple[CaseResult, ...]
    gates: tuple[Gate, ...]
    rounds: tuple[Round, ...]
    breaks: tuple[str, ...] = ()
    scope: dict[str, str] = field(default_factory=dict)  # device, driver, threads, ...
    folder: str = ""
    report: str = ""


def burn_in_json(result: BurnIn, *, raw: bool = False) -> dict[str, Any]:
    """The documented form of a burn-in; `raw` adds every tick of every round."""
    headline = result.verdict.headline
    rounds = [asdict(each) for each in result.rounds]
    if not raw:
        for each in rounds:
            del each["environment"]
            for measurement in each["measurements"]:
                del measurement["warmup"], measurement["window"]
    return {
        "schema": 1,
        "verdict": result.verdict.word,
        "claim": result.verdict.claim,
        "explanation": result.verdict.explanation,
        "indicative": result.verdict.indicative,
        "ratio": headline.comparison.ratio if headline else None,
        "ci95": list(headline.comparison.ci95) if headline else None,
        "attribution": result.verdict.attribution,
        "rounds": len(result.rounds),
        "gates": [asdict(gate) for gate in result.gates],
        "headline": str(result.settings.headline),
        "arms": [asdict(arm) for arm in result.arms],
        "cases": [asdict(case) for case in result.cases],
        "breaks": list(result.breaks),
        "scope": result.scope,
        "settings": asdict(result.settings),
        "round_results": rounds,
        "folder": result.folder,
        "report": result.report,
    }
