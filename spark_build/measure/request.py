"""Options of measuring programs as they are typed, and the arms that --arm names."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Self

from spark_build.errors import UsageError

KINDS_OF_ARMS = ("public", "wheelhouse")
CONTAINER = "container:"
FORM = "write NAME=WHAT[,KEY=VALUE...]; WHAT is public, wheelhouse, container:IMAGE or a folder"
LAYOUTS = {"ab": ("ab",), "linear": ("linear",), "both": ("ab", "linear")}  # --layout: names of the model


@dataclass(frozen=True, kw_only=True, slots=True)
class ArmWish:
    """One arm as it was asked for; `threads` 0: what the run uses."""

    name: str
    what: str
    threads: int = 0
    env: dict[str, str] = field(default_factory=dict)

    @property
    def image(self) -> str:
        """The container's image; empty for anything else."""
        return self.what.removeprefix(CONTAINER) if self.what.startswith(CONTAINER) else ""


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasureRequest:
    """Options of any measuring program; empty or None: the default of mode and device."""

    arm: tuple[str, ...] = ()
    quick: bool | None = None
    rounds: int | None = None
    duration: float | None = None
    patience: float | None = None
    seed: int | None = None
    device: Literal["cpu", "cuda"] | None = None

    def on(self, *, cuda: bool) -> Self:
        """Return the request with a device and a mode; `cuda`: whether the target has a GPU."""
        device = self.device or ("cuda" if cuda else "cpu")
        quick = device == "cpu" if self.quick is None else self.quick
        return replace(self, device=device, quick=quick)

    @property
    def computes(self) -> Literal["cpu", "cuda"]:
        """The device that computes."""
        return self.device or "cpu"

    @property
    def mode(self) -> Literal["quick", "full"]:
        """Few short rounds, or a verdict."""
        return "quick" if self.quick else "full"

    @property
    def needs_wheelhouse(self) -> bool:
        """True when an arm is the wheelhouse, by choice or by default."""
        return not self.arm or any(wish.what == "wheelhouse" for wish in self.arms)

    @property
    def arms(self) -> tuple[ArmWish, ...]:
        """The arms in order: the first is the baseline. Raises UsageError."""
        return parse_arms(self.arm)


@dataclass(frozen=True, kw_only=True, slots=True)
class BurnInRequest(MeasureRequest):
    """Options of a burn-in."""

    swap: str | None = None  # a library to swap between the first two arms
    dtype: tuple[str, ...] = ()
    size: tuple[int, ...] = ()
    sweep: bool = False
    layout: str | None = None  # a key of LAYOUTS
    nodes: str | None = None
    rank: int | None = None
    bus_bandwidth: float | None = None  # GB/s


@dataclass(frozen=True, kw_only=True, slots=True)
class SuiteRequest(MeasureRequest):
    """Options of a run of the suite."""

    workload: tuple[str, ...] = ()
    cool: float | None = None
    inject: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class ResultFields:
    """Names of the columns or fields to take in place of the usual ones; "": the usual one.

    `lower`, `higher`: metrics for which less or more is better.
    """

    arm: str = ""
    case: str = ""
    value: str = ""
    unit: str = ""
    lower: tuple[str, ...] = ()
    higher: tuple[str, ...] = ()

    def columns(self) -> dict[str, str]:
        """Return name, in small letters -> our name for it."""
        ours = {self.arm: "environment", self.case: "workload", self.value: "value", self.unit: "unit"}
        return {name.casefold(): our for name, our in ours.items() if name}


def parse_arm(text: str) -> ArmWish:
    """One arm; a name may be left out of `public` and `wheelhouse`. Raises UsageError."""
    first, *settings = text.split(",")
    name, equals, what = first.partition("=")
    what = what if equals else name
    if not name or not what or (not equals and what not in KINDS_OF_ARMS):
        raise UsageError(f"--arm {text}: no arm", hint=FORM)
    if not re.fullmatch(r"[\w.+-]+", name):
        raise UsageError(f"--arm {text}: {name!r} is no name", hint="use letters, digits, . + - _")
    if what == CONTAINER:
        raise UsageError(f"--arm {text}: no image", hint=FORM)
    threads, env = 0, {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals or not re.fullmatch(r"[A-Za-z_]\w*", key):
            raise UsageError(f"--arm {text}: {setting!r} is no KEY=VALUE", hint=FORM)
        if key == "threads":
            if not value.isdecimal() or int(value) < 1:
                raise UsageError(f"--arm {text}: threads={value} is no number of threads")
            threads = int(value)
        else:
            env[key] = value
    return ArmWish(name=name, what=what, threads=threads, env=env)


def parse_arms(texts: Sequence[str]) -> tuple[ArmWish, ...]:
    """Return arms in order: the first is the baseline. Raises UsageError for names that are said twice."""
    wishes = tuple(parse_arm(text) for text in texts)
    names = [wish.name for wish in wishes]
    if len(set(names)) != len(names):
        raise UsageError(f"two arms have one name: {', '.join(names)}", hint=FORM)
    return wishes
