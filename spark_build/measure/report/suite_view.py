"""Everything that the pages of one run show, computed once."""

from __future__ import annotations

from dataclasses import dataclass

from spark_build.events import Gate
from spark_build.measure.bench import Bench, Work
from spark_build.measure.bounds import Ceilings, Place, ceilings, places
from spark_build.measure.comparing import Compared
from spark_build.measure.comparison import compare
from spark_build.measure.report.plotting import COLOURS
from spark_build.measure.report.words import Said, headline, of_places
from spark_build.measure.trial import Trial, from_bench, gates_of


@dataclass(frozen=True, kw_only=True, slots=True)
class View:
    """`places` by arm and case; `paint`: colours of the arms."""

    bench: Bench
    trial: Trial
    compared: Compared
    gates: tuple[Gate, ...]
    roofs: Ceilings
    places: dict[str, dict[str, Place]]
    paint: dict[str, str]

    @property
    def arms(self) -> tuple[str, ...]:
        """Names, the baseline first."""
        return self.trial.arms

    @property
    def title(self) -> str:
        """Who is held against whom."""
        base, *others = self.arms
        return f"{', '.join(others)} against {base}" if others else base

    @property
    def rounds(self) -> str:
        """How many rounds were asked for."""
        pairs = self.bench.settings.pairs
        return f"{pairs} round{'s' if pairs > 1 else ''} of each arm"

    @property
    def works(self) -> list[Work]:
        """The cases that any arm has a figure of."""
        known = {case for _, case in self.trial.values}
        return [work for work in self.bench.works if work.name in known]

    @property
    def remarks(self) -> list[str]:
        """What else is to be known: of the run, and of what could not be compared."""
        left_out = [f"Left out: {line}" for line in self.compared.left_out]
        return [*self.bench.notes, *self.bench.breaks, *left_out]

    @property
    def sentences(self) -> list[Said]:
        """What stands on top."""
        lines = headline(self.compared) or of_places(self.places[self.arms[0]])
        if lines:
            return lines
        if self.works:
            return [("", "No case lies on a roofline: each is held by what a plain one of its kind reaches.")]
        return [("unclear", "No case has a figure: nothing can be said.")]


def view_of(bench: Bench) -> View:
    """Compare, judge and place."""
    trial = from_bench(bench)
    return View(
        bench=bench,
        trial=trial,
        compared=compare(trial),
        gates=gates_of(bench),
        roofs=ceilings(bench),
        places={arm: places(bench, arm) for arm in trial.arms},
        paint={arm: COLOURS[at % len(COLOURS)] for at, arm in enumerate(trial.arms)},
    )
