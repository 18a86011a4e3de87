"""Run the wider suite; write and read bench.json."""

from __future__ import annotations

import ast
import contextlib
import json
import shlex
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from types import GenericAlias
from typing import Any, Literal

from pydantic import ConfigDict, TypeAdapter, ValidationError

from spark_build.errors import Hint, HostError, UsageError, ours
from spark_build.events import Emit, Note
from spark_build.files import write_atomically
from spark_build.measure import session
from spark_build.measure.comparison import LARGEST
from spark_build.measure.csv_io import csv_of
from spark_build.measure.model import (
    SCHEMA,
    Arm,
    Bench,
    BenchRound,
    BenchSettings,
    Device,
    Figure,
    Mode,
    Reference,
    bench_json,
)
from spark_build.measure.report.suite_report import suite_report
from spark_build.measure.report.suite_view import SuiteView
from spark_build.measure.request import ArmWish, SuiteRequest
from spark_build.measure.rounds import (
    Program,
    bare,
    command_of,
    read_suite_round,
    run_rounds,
    variables_of,
    works_of,
)
from spark_build.measure.statistics import drawn_order
from spark_build.measure.telemetry import cool_down, prepare_memory, thermometer
from spark_build.measure.verdict import reference_for
from spark_build.process import run
from spark_build.text import printable

ROUNDS = {"quick": 1, "full": 3}  # of each arm; with several arms a quick run has two
# warm-up and window of one case, in seconds
PROTOCOL: dict[tuple[Device, Mode], tuple[float, float]] = {
    ("cpu", "quick"): (0.2, 0.4),
    ("cpu", "full"): (5.0, 30.0),
    ("cuda", "quick"): (0.5, 1.0),
    ("cuda", "full"): (5.0, 30.0),
}
START = 120.0  # seconds until the first case of a workload, or for a model to be compiled
MOST_CASES = 60  # of one workload, for the last resort against a script that hangs
PRELUDE = "prelude.run"  # of the script: that the device can be used at all


def workloads_of(script: Path) -> dict[str, str]:
    """Return name -> what it is, as its file says it; read, not imported: torch is not here."""
    files = sorted((script.parent / "workloads").glob("[!_]*.py"))
    return {file.stem: (ast.get_docstring(ast.parse(file.read_text())) or "") for file in files}


def plan_suite(wish: SuiteRequest, script: Path) -> BenchSettings:
    """Return a run's settings. Raises UsageError for an unknown workload."""
    known = workloads_of(script)
    if unknown := [name for name in wish.workload if name not in known]:
        raise UsageError(f"no workload {unknown[0]!r}", hint=f"there are {', '.join(known)}")
    several = 2 if len(wish.arm) > 1 else 1
    return BenchSettings(
        **session.common_settings(wish, script, *PROTOCOL[wish.computes, wish.mode]),
        workloads=tuple(dict.fromkeys(wish.workload)) or tuple(known),
        pairs=wish.rounds or max(several, ROUNDS[wish.mode]),
        cool=wish.cool,
        inject=wish.inject,
    )


def arms_of(site: session.MeasureSite, folder: Path, wish: SuiteRequest) -> list[Arm]:
    """Return the arms asked for; by default the wheelhouse's environment or else the public one."""
    own = session.WHEELHOUSE if session.has_torch(site.generation) else session.PUBLIC
    return session.arms_of(site, folder, wish, (own,))


def measure_suite(site: session.MeasureSite, wish: SuiteRequest) -> Bench:
    """Run the suite in the arms and leave its pages in a folder of `home.runs`.

    An unfinished run of the same wish is taken up again.
    """
    session.require_packages("bench run")
    script, references = session.script_of(site.home, "suite"), session.references_of(site.home)
    with session.resumed(site, wish, "run") as (folder, seed, begun):
        settings = plan_suite(replace(wish, seed=seed), script)
        arms = arms_of(site, folder, wish)
        lock = begun(settings.seed)
        order = drawn_order([arm.name for arm in arms], settings.pairs, settings.seed)
        notes = [*settings.notes, *prepare_memory(settings.device)]
        for note in notes:
            site.emit(Note(message=note))
        read = thermometer(settings.device)

        def before() -> None:
            remark = "" if settings.cool is None else cool_down(read, settings.cool, site.emit)
            if remark and remark not in notes:
                site.emit(Note(message=remark))
                notes.append(remark)

        program = program_of(settings, before, references)
        rounds, breaks = run_rounds(program, arms, order, folder, site.emit, keep=(lock,))
        scope = session.scope_of(settings, rounds)
        result = Bench(
            settings=settings,
            arms=tuple(arms),
            works=works_of(each.file for each in rounds),
            rounds=rounds,
            breaks=breaks,
            notes=tuple(notes),
            reference=reference_for(references, scope.get("device", "")),
            scope=scope,
            folder=str(folder),
        )
        write_suite_report(result, folder)
    return result


def program_of(
    settings: BenchSettings,
    before: Callable[[], None] = lambda: None,
    references: Sequence[Reference] = (),
) -> Program[BenchRound]:
    """Return the suite as a program; it ends hanging workloads itself, the limit is for all of it."""
    patience = settings.patience or START + 5 * (3 * settings.warmup + settings.window)
    options: dict[str, object] = {
        "workloads": ",".join(settings.workloads),
        "quick": int(settings.mode == "quick"),
        "patience": patience,
    }
    return Program(
        name="bench",
        script=Path(settings.script),
        settings=settings,
        options=options,
        limit=START + MOST_CASES * len(settings.workloads) * patience,
        read=partial(read_suite_round, references=references),
        stops=_useless,
        before=before,
    )


def _useless(done: BenchRound) -> bool:
    """Return whether nothing was measured, and nothing would be in another round."""
    return any(check.name == PRELUDE and check.status == "fail" for check in done.checks)


Tool = Literal["torch", "nsys"]
NSYS = ("nsys", "profile", "--trace=cuda,nvtx,cublas,cudnn", "--force-overwrite=true")
NSYS_HINT = "install Nsight Systems (developer.nvidia.com/nsight-systems), or take --profile torch"


@dataclass(frozen=True, kw_only=True, slots=True)
class Captured:
    """Traces of one arm: its command, its files, and the time by kernel of each case."""

    arm: str
    command: str
    folder: str
    problem: str = ""
    profiles: list[dict[str, Any]] = field(default_factory=list)


def need(tool: Tool, wishes: Sequence[ArmWish]) -> None:
    """Raise HostError without nsys, UsageError for containers."""
    if any(wish.image for wish in wishes):
        raise UsageError("--profile runs in environments, not in containers", hint="name a folder with --arm")
    if tool == "nsys" and shutil.which("nsys") is None:
        raise HostError("nsys is not here", hint=NSYS_HINT)


def capture(
    settings: BenchSettings, arms: Sequence[Arm], tool: Tool, folder: Path, emit: Emit
) -> list[Captured]:
    """Run each arm under `tool`; see `need`."""
    program = program_of(settings)
    program = replace(program, options={**program.options, "profile": tool})
    found = []
    for arm in arms:
        place = folder / f"profile-{arm.name}"
        place.mkdir(parents=True, exist_ok=True)
        report = place / "profiles.json"
        command = command_of(program, arm, report)
        if tool == "nsys":
            command = [*NSYS, f"--output={place / 'suite'}", *command]
        emit(Note(message=f"$ {shlex.join(command)}"))
        with (place / "log").open("wb") as log:
            done = run(command, cwd=place, env=bare(variables_of(arm)), log=log)
        profiles: list[dict[str, Any]] = []
        with contextlib.suppress(OSError, ValueError, KeyError):
            profiles = json.loads(report.read_text())["profiles"]
        problem = "" if done.returncode == 0 else f"ended with {done.returncode}: {done.output[-300:]}"
        told = {"command": shlex.join(command), "folder": str(place), "problem": problem}
        found.append(Captured(arm=arm.name, profiles=profiles, **told))
    return found


def write_suite_report(result: Bench, folder: Path) -> Path:
    """Write the pages, the raw samples and bench.json into `folder`; returns the page that people open."""
    folder.mkdir(parents=True, exist_ok=True)
    view = SuiteView(bench=result)
    write_atomically(folder / "bench.json", json.dumps(bench_json(result)))
    write_atomically(folder / "samples.csv", csv_of(result))
    report = suite_report(view)
    write_atomically(folder / "report.md", report.markdown())
    write_atomically(folder / "report.html", report.html())
    return folder / "report.html"


HINT = "give the bench.json that `bench run` wrote"


@cache
def _adapter() -> TypeAdapter[list[Bench]]:
    """Return the adapter; its list type configures every class inside."""
    listed: Any = GenericAlias(list, (Bench,))
    return TypeAdapter(listed, config=ConfigDict(extra="forbid", strict=True, allow_inf_nan=False))


def bench_from_json(raw: Any, where: str = "") -> Bench:
    """Return a run from `bench_json`'s document. Raises UsageError with the first mistake."""
    if not isinstance(raw, Mapping) or raw.get("kind") != "bench":
        burn_in = isinstance(raw, Mapping) and "verdict" in raw
        hint = Hint("of burn-ins: ", ours("verify compare")) if burn_in else HINT
        raise UsageError("this is no run of the suite", where=where, hint=hint)
    if raw.get("schema") != SCHEMA:
        said = f"a run of schema {raw.get('schema')!r}; this program knows {SCHEMA}"
        raise UsageError(said, where=where, hint="use the version that wrote it")
    fields = {name: value for name, value in raw.items() if name not in ("schema", "kind")}
    try:
        # By way of JSON: there strict mode takes arrays for tuples.
        (bench,) = _adapter().validate_json(json.dumps([fields]))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"][1:])
        more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
        said = printable(f"{place}: {first['msg']}{more}")
        raise UsageError(said, where=where, hint=HINT) from error
    if problem := next(_problems(bench), ""):
        raise UsageError(printable(problem), where=where, hint=HINT)
    return bench


def _problems(bench: Bench) -> Iterator[str]:
    """Yield names that are used and not known, and numbers that cannot be measured."""
    arms, works = {arm.name for arm in bench.arms}, {work.name for work in bench.works}
    if not arms:
        yield "a run without arms"
    yield from (f"a name with control characters: {name}" for name in arms | works if not name.isprintable())
    for work in bench.works:
        if not 0 < work.amount < LARGEST:
            yield f"{work.name}: an amount of {work.amount:g}"
        if not (_is_count(work.flops or 0) and _is_count(work.moved or 0)):
            yield f"{work.name}: {work.flops} FLOP, {work.moved} bytes moved"
    for each in bench.rounds:
        start = f"round {each.slot.index + 1}"
        if each.slot.arm not in arms:
            yield f"{start} is of an unknown arm {each.slot.arm!r}"
        for figure in each.figures:
            if figure.work not in works:
                yield f"{start} has an unknown case {figure.work!r}"
            yield from (f"{start}, {figure.work}: {problem}" for problem in _of_figure(figure))


def _of_figure(figure: Figure) -> Iterator[str]:
    if not 0 <= figure.rate < LARGEST:
        yield f"a rate of {figure.rate:g}"
    counted = figure.facts.get("flops_by", {})
    if not isinstance(counted, dict) or not all(map(_is_count, counted.values())):
        yield "flops_by is no number of FLOP for each operation"


def _is_count(value: object) -> bool:
    return isinstance(value, int | float) and 0 <= value < LARGEST
