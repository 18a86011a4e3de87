"""Options of a burn-in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, Literal

import click

from spark_build.cli.options import Renamed

if TYPE_CHECKING:
    from spark_build.measure.session import Wish

DTYPES = ("fp16", "bf16", "tf32", "fp32", "fp8", "fp4")
LAYOUTS = {"ab": ("ab",), "linear": ("linear",), "both": ("ab", "linear")}
SWEEP = {"cpu": (256, 512, 1024, 2048), "cuda": (1024, 2048, 4096, 8192, 16384)}
Device = Literal["cpu", "cuda"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """What the options of a burn-in say."""

    arm: tuple[str, ...] = ()
    swap: str | None = None
    dtype: tuple[str, ...] = ()
    size: tuple[int, ...] = ()
    sweep: bool = False
    layout: str | None = None
    duration: float | None = None
    rounds: int | None = None
    quick: bool | None = None
    seed: int | None = None
    patience: float | None = None
    device: Device | None = None

    @property
    def said(self) -> str:
        """The first option that was given; "" when none was."""
        given = (one.name for one in fields(self) if getattr(self, one.name) not in (None, (), False))
        return next((f"--{name}" for name in given), "")

    def needs_wheelhouse(self) -> bool:
        """Whether the arms are left to us, or one of them is the wheelhouse."""
        from spark_build.measure.arms import parse_arms

        return not self.arm or any(wish.what == "wheelhouse" for wish in parse_arms(self.arm))

    def wish(self, *, cuda: bool) -> Wish:
        """As the burn-in understands it; `cuda`: whether the target has a GPU."""
        from spark_build.measure.arms import parse_arms
        from spark_build.measure.session import Wish

        if self.sweep and self.size:
            raise click.UsageError("--sweep chooses the sizes: leave --size away")
        device: Device = self.device or ("cuda" if cuda else "cpu")
        quick = device == "cpu" if self.quick is None else self.quick
        return Wish(
            device=device,
            mode="quick" if quick else "full",
            arms=parse_arms(self.arm),
            swap=self.swap or "",
            seed=self.seed,
            dtypes=self.dtype,
            sizes=SWEEP[device] if self.sweep else self.size,
            layouts=LAYOUTS[self.layout or "ab"],
            pairs=self.rounds,
            window=self.duration,
            patience=self.patience,
        )


def measuring_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of a burn-in, handed on as one Asked."""

    def command(*arguments: Any, **named: Any) -> Any:
        asked = Asked(**{one.name: named.pop(one.name) for one in fields(Asked)})
        return function(*arguments, asked=asked, **named)

    decorated: Callable[..., Any] = update_wrapper(command, function)
    positive = click.FloatRange(min=0, min_open=True)
    for declare in (
        click.option("--device", type=click.Choice(["cpu", "cuda"]), help="What computes (default: target)."),
        click.option(
            "--timeout",
            "--patience",
            "patience",
            cls=Renamed,
            type=positive,
            help="Seconds after which a round counts as hung.",
        ),
        click.option("--seed", type=int, help="Seed of data and order (default: random, recorded)."),
        click.option("--quick/--full", default=None, help="Few short rounds (indicative), or a verdict."),
        click.option(
            "--rounds", type=click.IntRange(min=2), help="Rounds of each arm; 10 or more for --full."
        ),
        click.option("--duration", type=positive, help="Seconds of one timed window."),
        click.option("--layout", type=click.Choice(list(LAYOUTS)), help="a@b (ab), F.linear, or both."),
        click.option("--sweep", is_flag=True, help="All usual sizes."),
        click.option("--size", type=click.IntRange(min=16), multiple=True, help="Rows of the matrices."),
        click.option("--dtype", type=click.Choice(DTYPES), multiple=True, help="Number formats."),
        click.option(
            "--swap", type=click.Choice(["cublas", "openmp"]), help="Swap one library: which is it?"
        ),
        click.option(
            "--arm",
            metavar="NAME=WHAT",
            multiple=True,
            help="What to measure; the first is the baseline: public, wheelhouse, container:IMAGE, a folder.",
        ),
    ):
        decorated = declare(decorated)
    return decorated
