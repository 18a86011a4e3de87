"""`bench run`: the workloads in one environment or more."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from spark_build.cli import render
from spark_build.cli.hints import nothing_checked
from spark_build.cli.options import Options, Renamed, shared

if TYPE_CHECKING:
    from spark_build.measure.model import Bench, BenchRound, Check
    from spark_build.measure.suite import Wish
    from spark_build.wheelhouse.generations import Generation

Device = Literal["cpu", "cuda"]
POSITIVE = click.FloatRange(min=0, min_open=True)
MAXIMUM = ".maximum"


@click.command()
@click.option("--workload", multiple=True, metavar="NAME", help="Only this one; repeatable (--list).")
@click.option(
    "--arm",
    multiple=True,
    metavar="NAME=WHAT",
    help="Where to run; the first is the baseline: public, wheelhouse, container:IMAGE, a folder.",
)
@click.option("--quick/--full", default=None, help="Small and short, or 30 s for each case.")
@click.option("--rounds", type=click.IntRange(min=1), help="Rounds of each arm.")
@click.option("--duration", type=POSITIVE, help="Seconds of one timed window.")
@click.option(
    "--cooldown",
    "--cool",
    "cool",
    cls=Renamed,
    type=POSITIVE,
    metavar="CELSIUS",
    help="Cool down to this before each round.",
)
@click.option(
    "--timeout",
    "--patience",
    "patience",
    cls=Renamed,
    type=POSITIVE,
    help="Seconds after which a silent workload counts as hung.",
)
@click.option("--seed", type=int, help="Seed of data and order (default: random, recorded).")
@click.option("--device", type=click.Choice(["cpu", "cuda"]), help="What computes (default: target).")
@click.option("--profile", type=click.Choice(["torch", "nsys"]), help="Capture traces; no time is taken.")
@click.option("--inject", default="", hidden=True, help="Plant a fault, for tests of this program.")
@click.option("--list", "listed", is_flag=True, help="Name the workloads and stop.")
@shared
def run(
    options: Options,
    workload: tuple[str, ...],
    arm: tuple[str, ...],
    quick: bool | None,
    rounds: int | None,
    duration: float | None,
    cool: float | None,
    patience: float | None,
    seed: int | None,
    device: Device | None,
    profile: Literal["torch", "nsys"] | None,
    inject: str,
    listed: bool,
) -> int:
    """Run the workloads in one environment or more; what a figure means is proved beside it."""
    if listed:
        return _list(options)
    from spark_build.measure.arms import parse_arms
    from spark_build.measure.suite import Wish

    setting = options.setting()
    device = device or ("cuda" if setting.target.cuda_architectures else "cpu")
    quick = device == "cpu" if quick is None else quick
    wish = Wish(
        device=device,
        mode="quick" if quick else "full",
        workloads=workload,
        arms=parse_arms(arm),
        seed=seed,
        pairs=rounds,
        window=duration,
        cool=cool,
        patience=patience,
        inject=inject,
    )
    return _profile(options, wish, profile) if profile else _measure(options, wish)


def _generation(options: Options, wish: Wish) -> Generation | None:
    """The wheelhouse's, where it is needed: for no arm at all it may be missing."""
    from spark_build.cli.wheelhouse import current
    from spark_build.errors import SparkBuildError

    if wish.arms and not any(each.what == "wheelhouse" for each in wish.arms):
        return None
    try:
        return current(options)
    except SparkBuildError:
        if wish.arms:
            raise
        return None


def _measure(options: Options, wish: Wish) -> int:
    from spark_build.cli.build import running
    from spark_build.errors import NothingCheckedError, VerificationError
    from spark_build.measure import suite

    setting, generation = options.setting(), _generation(options, wish)
    with running(options, setting.home.runs) as (_, emit):
        result = suite.measure(setting.home, setting.train.name, generation, emit, wish)
    failed = _failed(result)
    measured = any(each.figures for each in result.rounds)
    code = VerificationError.exit_code if failed else 0 if measured else NothingCheckedError.exit_code
    if options.json:
        from spark_build.measure.model import bench_json

        document = bench_json(result)
        for each in document["rounds"]:  # bench.json has them
            del each["samples"], each["environment"]
        render.print_json({**document, "exit_code": code})
        return _or_nothing(code)
    _print(result)
    for each, check in failed:
        print(f"FAILED {check.name} in {each.slot.arm}: {check.evidence}")
    for file in dict.fromkeys(each.file for each, _ in failed):
        print(f"see {Path(file).with_suffix('.log')}")
    _print_memory(result)
    print(f"\nall samples: {Path(result.folder) / 'bench.json'}")
    return _or_nothing(code)


def _or_nothing(code: int) -> int:
    """The exit code; that no case was finished is said."""
    from spark_build.errors import NothingCheckedError

    if code != NothingCheckedError.exit_code:
        return code
    return nothing_checked(
        "not one case was finished: this device or environment has none of these workloads",
        "name others: `spark-build bench run --list` shows them",
    )


def _failed(result: Bench) -> list[tuple[BenchRound, Check]]:
    """What failed, with its round; one without a report is a failure, too."""
    from spark_build.measure.model import Check

    checks = [(each, check) for each in result.rounds for check in each.checks]
    return [each for each in checks if each[1].status == "fail"] + [
        (each, Check(name=f"round {each.slot.index + 1}", status="fail", evidence=each.problem))
        for each in result.rounds
        if each.problem
    ]


def _print(result: Bench) -> None:
    """A row for each case: every arm's rate, and what holds it."""
    from spark_build.measure.bounds import places
    from spark_build.measure.comparison import held_by
    from spark_build.measure.statistics import geometric_mean
    from spark_build.text import quantity

    rows = []
    places_of = places(result, result.arms[0].name)
    for work in result.works:
        cells = []
        for arm in result.arms:
            rates = [
                figure.rate
                for each in result.rounds
                if each.slot.arm == arm.name
                for figure in each.figures
                if figure.work == work.name
            ]
            cells.append(quantity(geometric_mean(rates), work.unit) if rates else "-")
        rows.append([work.name, *cells, held_by(result, work.name, roof=places_of[work.name].roof)])
    render.print_table(["CASE", *(arm.name for arm in result.arms), "HELD BY"], rows)
    for each in result.rounds:
        found = [check for check in each.checks if check.name.endswith(MAXIMUM)]
        told = [f"{check.name.removesuffix(MAXIMUM)} {check.evidence}" for check in found]
        if told:
            print(f"fastest in round {each.slot.index + 1}, {each.slot.arm}: {', '.join(told)}")


def _print_memory(result: Bench) -> None:
    """What was free before each arm began, and what would have found room in it."""
    from spark_build.measure.bounds import MODELS, free_memory, kv_room
    from spark_build.text import size

    for arm in result.arms:
        rounds = [each for each in result.rounds if each.slot.arm == arm.name]
        peaks = [(figure.peak.get("rss", 0.0), figure.work) for each in rounds for figure in each.figures]
        free = free_memory(rounds[0].samples, result.settings.device) if rounds else None
        if free is None or not peaks:
            continue
        rooms = [f"{kv_room(free, model):,} tokens of {model.name}" for model in MODELS]
        most, work = max(peaks)
        print(f"memory of {arm.name}: {size(free)} free before; {size(most)} resident at most ({work})")
        print(f"  room for KV cache in it, weights and cache of 2 bytes: {', '.join(rooms)}")


def _profile(options: Options, wish: Wish, tool: Literal["torch", "nsys"]) -> int:
    """Capture traces, and say what the cases spend their time on."""
    from dataclasses import asdict

    from spark_build.cli.build import running
    from spark_build.errors import NothingCheckedError, VerificationError
    from spark_build.measure import suite
    from spark_build.measure.suite import capture, need

    need(tool, wish.arms)
    setting, generation = options.setting(), _generation(options, wish)
    with running(options, setting.home.runs) as (folder, emit):
        settings = suite.plan(wish, suite.script_of(setting.home))
        arms = suite.arms_of(setting.home, setting.train.name, generation, folder, emit, wish)
        found = capture(settings, arms, tool, folder, emit)
    captured = any(each.profiles for each in found)
    failed = any(each.problem for each in found)
    code = VerificationError.exit_code if failed else 0 if captured else NothingCheckedError.exit_code
    if options.json:
        render.print_json({"profiles": [asdict(each) for each in found], "exit_code": code})
        return _or_nothing(code)
    for each in found:
        rows = [
            [profile["work"], f"{top['share']:.0%}", top["name"][:90]]
            for profile in each.profiles
            for top in profile.get("top", [])[:3]
        ]
        render.print_table(["CASE", "TIME", "OPERATION"], rows)
        print(f"{each.problem or 'captured'}: {each.arm}, in {each.folder}")
    return _or_nothing(code)


def _list(options: Options) -> int:
    from spark_build.measure.suite import script_of, workloads_of

    known = workloads_of(script_of(options.home()))
    if options.json:
        render.print_json({"workloads": known, "exit_code": 0})
        return 0
    render.print_table(["WORKLOAD", "WHAT"], [[name, what] for name, what in known.items()])
    return 0
