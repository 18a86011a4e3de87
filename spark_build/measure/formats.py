"""Read what other tools measured: their JSON, MLPerf's lines, and any JSON list of records."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import math
import re
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

from spark_build.errors import UsageError
from spark_build.files import text_of
from spark_build.measure.comparison import Trial, from_bench
from spark_build.measure.csv_io import ALIASES, USUAL, trial_from_csv, trial_from_rows
from spark_build.measure.request import ResultFields
from spark_build.measure.suite import bench_from_json

FORMS = (
    "give a bench.json of `bench run`; a CSV with environment,metric,value; JSON of hyperfine, "
    "pytest-benchmark, Google Benchmark, nvbench or `vllm bench serve`; a log with MLPerf's :::MLLOG lines; "
    "any JSON list of records (--arm, --case, --value, --unit name its fields); or a folder, each file in it "
    "a launch"
)
Row = dict[str, str]
Record = dict[str, Any]
MLLOG = ":::MLLOG "
MOST_ROWS = 1_000_000
BLOCKS = 10  # means of so many parts stand for the many repeats of one process
SERVING = re.compile(r"(mean|median|p\d+(\.\d+)?)_(ttft|tpot|itl|e2el)_ms|request_goodput|\w+_throughput")
LOADGEN = re.compile(r"result_(.*_latency_ns|.*per_sec(ond)?|qps_.*)")


def read_results(
    file: Path, *, alone: bool, arms: Sequence[str] = (), named: ResultFields = USUAL
) -> tuple[Trial, tuple[str, ...]]:
    """Return a file's or folder's trial, and those of `arms` that name arms and no field of its records.

    `alone`: no second file is compared with it. Raises UsageError for what cannot be read.
    """
    files = sorted(each for each in file.iterdir() if each.is_file()) if file.is_dir() else [file]
    texts = {each: text_of(each, FORMS) for each in files}
    if not texts:
        raise UsageError("a folder without results", where=str(file), hint=FORMS)
    first = next(iter(texts.values()))
    if not file.is_dir() and MLLOG not in first and not first.lstrip().startswith(("{", "[")):
        heads = {cell.strip().casefold() for cell in re.split("[,;\t\n]", first[:4096])}
        field = next((arm for arm in arms if arm.casefold() in heads), "")
        trial = trial_from_csv(first, str(file), replace(named, arm=field))
        return trial, tuple(arm for arm in arms if arm != field)
    documents = {each: _documents(text, str(each)) for each, text in texts.items()}
    whole = next(iter(documents.values()), [None])[0]
    if isinstance(whole, dict) and (whole.get("kind") == "bench" or {"schema", "verdict"} <= whole.keys()):
        if named != USUAL:
            raise UsageError(
                "a run of the suite says itself what is what", where=str(file), hint="leave the options out"
            )
        return from_bench(bench_from_json(whole, str(file))), tuple(arms)
    try:
        known = {name for some in documents.values() for one in some for name in _fields(one)}
    except RecursionError as error:
        raise UsageError("nested too deeply", where=str(file), hint=FORMS) from error
    field = next((arm for arm in arms if arm in known), "")
    rows = _launches(documents, file, replace(named, arm=field), alone=alone)
    return trial_from_rows(rows, str(file), named), tuple(arm for arm in arms if arm != field)


def _launches(
    documents: Mapping[Path, Sequence[Any]], file: Path, named: ResultFields, *, alone: bool
) -> Iterator[tuple[str, Row]]:
    """Yield place and row; each document of several is a launch."""
    several = sum(map(len, documents.values())) > 1
    number = 0
    for each, some in documents.items():
        for document in some:
            number += 1
            found = _rows(document, named, alone=alone and not several)
            try:
                for at, row in enumerate(islice(found, MOST_ROWS), 1):
                    if several:  # what has launches of its own keeps them
                        row["run"] = ".".join(filter(None, (str(number), row.get("run", ""))))
                    yield f"{each}, value {at}", {"environment": file.stem, **row}
            except UsageError as error:
                error.where = error.where or str(each)
                raise


def _documents(text: str, where: str) -> list[Any]:
    """Return the JSON values of a file: one, or one on each line; or the lines of an MLPerf log as one."""
    if MLLOG in text:
        lines = [line.split(MLLOG, 1)[1] for line in text.splitlines() if MLLOG in line]
        return [{MLLOG: _parsed(lines, where)}]
    try:
        return [json.loads(text)]
    except RecursionError as error:
        raise UsageError("nested too deeply", where=where, hint=FORMS) from error
    except ValueError as error:
        lines = text.splitlines()
        if len(lines) < 2 or not lines[0].rstrip().endswith(("}", "]")):
            raise UsageError(f"not JSON: {error}", where=where, hint=FORMS) from error
        return _parsed([line for line in lines if line.strip()], where)


def _parsed(lines: Sequence[str], where: str) -> list[Any]:
    found = []
    for number, line in enumerate(lines, 1):
        try:
            found.append(json.loads(line))
        except (ValueError, RecursionError) as error:
            raise UsageError(f"not JSON: {error}", where=f"{where}:{number}", hint=FORMS) from error
    return found


def _rows(document: Any, named: ResultFields, *, alone: bool) -> Iterator[Row]:
    """Yield the rows of a document, in the form of the tool that wrote it."""
    keys = frozenset(document) if isinstance(document, dict) else frozenset[str]()
    _needs, read, usual = next((tool for tool in TOOLS if keys >= tool[0]), (None, None, USUAL))
    try:
        if read is None or (read is _hyperfine and not _has_commands(document["results"])):
            yield from _listed(document, named)
        elif not named.columns():
            yield from read(document, alone=alone)
        elif read is _vllm and not replace(named, arm="").columns():
            arm = str(_flat(document)[named.arm])
            yield from ({**row, "environment": arm} for row in _vllm(document))
        else:
            given = {name: value for name, value in asdict(named).items() if value}
            usual = replace(usual, case="" if named.arm == usual.case else usual.case)
            yield from _listed(document, replace(usual, **given))
    except (LookupError, TypeError, AttributeError, ValueError, OverflowError, RecursionError) as error:
        said = f"damaged, or of a version that is not known: {type(error).__name__}: {error}"
        raise UsageError(said, hint=FORMS) from error


def _row(case: str, metric: str, value: object, unit: str, **more: str) -> Row:
    """Return a row; raise UsageError for what is no number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UsageError(f"{metric} of {case or 'all'} is {value!r}, no number", hint=FORMS)
    return {"workload": case, "metric": metric, "value": repr(value), "unit": unit, **more}


def _when(date: object) -> Row:
    """Return the cell with seconds since 1970; {} for a date in no known form."""
    for form in ("%Y-%m-%dT%H:%M:%S%z", "%Y-%m-%dT%H:%M:%S.%f%z", "%Y%m%d-%H%M%S"):
        with contextlib.suppress(ValueError):
            told = dt.datetime.strptime(str(date), form)  # noqa: DTZ007 - where it has no zone, it is local
            return {"when": str(told.timestamp())}
    return {}


def _has_commands(results: object) -> bool:
    """Return whether this is hyperfine's list: others call theirs so, too."""
    return isinstance(results, list) and bool(results) and _is_record(results[0]) and "command" in results[0]


def _hyperfine(document: Record, *, alone: bool) -> Iterator[Row]:
    """Every time is a launch; alone, the commands are the arms."""
    for result in document["results"]:
        command = str(result["command"])
        own = {"environment": command} if alone and len(document["results"]) > 1 else {}
        if bad := [code for code in result.get("exit_codes", ()) if code != 0]:
            yield {"doubt": f"{command} ended with {bad[0]} in {len(bad)} runs"}
        for at, seconds in enumerate(result.get("times") or [result["mean"]], 1):
            yield _row("" if own else command, "time", seconds, "s", run=str(at), **own)


def _google(document: Record, **_: bool) -> Iterator[Row]:
    """Repetitions are in one process; aggregates are not taken."""
    when = _when(document["context"].get("date"))
    for each in document["benchmarks"]:
        if each.get("error_occurred"):
            yield {"left out": f"{each['name']}: {each.get('error_message', 'failed')}"}
        elif each.get("run_type", "iteration") == "iteration":
            name = each.get("run_name", each["name"])
            yield _row(name, "real_time", each["real_time"], each["time_unit"], **when)


def _pytest(document: Record, **_: bool) -> Iterator[Row]:
    """Yield means of at most ten parts of the calls, which are all in one process."""
    when = _when(document.get("datetime"))
    for each in document["benchmarks"]:
        times = each["stats"].get("data") or [each["stats"]["mean"]]
        count = min(BLOCKS, len(times))
        edges = [len(times) * at // count for at in range(count + 1)]
        for start, end in pairwise(edges):
            mean = statistics.fmean(times[start:end])
            yield _row(each["fullname"], "time", mean, "s", **when)


def _nvbench(document: Record, **_: bool) -> Iterator[Row]:
    """Cold times of the GPU where there are any, else those of batches or of the processor."""
    wanted = ("nv/cold/time/gpu/mean", "nv/batch/time/gpu/mean", "nv/cpu_only/time/cpu/mean")
    for bench in document["benchmarks"]:
        for state in bench["states"]:
            axes = [f"{axis['name']}={axis['value']}" for axis in state.get("axis_values") or ()]
            name = " ".join([bench["name"], *axes])
            if state.get("is_skipped"):
                yield {"left out": f"{name}: {state.get('skip_reason') or 'skipped'}"}
                continue
            means = {
                each["tag"]: float(value["value"])
                for each in state["summaries"]
                for value in each["data"]
                if value["name"] == "value" and each["tag"] in wanted and value["value"] is not None
            }
            if tag := next((tag for tag in wanted if tag in means), ""):
                yield _row(name, "time", means[tag], "s")


def _vllm(document: Record, **_: bool) -> Iterator[Row]:
    """Yield the metrics of one launch of the client."""
    asked, done = document.get("num_prompts"), document.get("completed")
    if isinstance(asked, int) and isinstance(done, int) and done < asked:
        yield {"doubt": f"{asked - done} of {asked} requests failed"}
    when = _when(document.get("date"))
    for name, value in document.items():
        if SERVING.fullmatch(name) and value is not None:
            unit = "ms" if name.endswith("_ms") else "req/s" if name.startswith("request") else "tokens/s"
            yield _row("", name, value, unit, **when)


def _mlperf(document: Record, **_: bool) -> Iterator[Row]:
    """Yield results of loadgen; of training the time from run_start to run_stop, and its throughput."""
    begun, runs = math.nan, 0
    for line in document[MLLOG]:
        key, value = line["key"], line.get("value")
        if key == "result_validity" and value != "VALID":
            yield {"doubt": "MLPerf's loadgen calls the result INVALID"}
        elif LOADGEN.fullmatch(key):
            unit = "ns" if key.endswith("_ns") else "queries/s" if "qps" in key else "samples/s"
            yield _row("", key.removeprefix("result_"), value, unit.replace("samples", _counted(key)))
        elif key == "run_start":
            begun = line["time_ms"]
        elif key == "run_stop":
            runs += 1
            if (status := line["metadata"].get("status", "success")) != "success":
                yield {"doubt": f"run {runs} ended as {status}"}
            yield _row("", "time to train", (line["time_ms"] - begun) / 1000, "s", run=str(runs))
        elif key == "tracked_stats" and isinstance(value, dict) and "throughput" in value:
            yield _row("", "throughput", value["throughput"], "samples/s", run=str(runs + 1))


def _counted(key: str) -> str:
    return "tokens" if "token" in key else "samples"


# What a tool's document has; its reader; its fields, of which options may take others.
TOOLS: tuple[tuple[frozenset[str], Callable[..., Iterator[Row]], ResultFields], ...] = (
    (frozenset((MLLOG,)), _mlperf, USUAL),
    (frozenset(("benchmarks", "context")), _google,
     ResultFields(case="run_name", value="real_time", unit="time_unit")),
    (frozenset(("benchmarks", "machine_info")), _pytest,
     ResultFields(case="fullname", value="stats.mean", unit="s")),
    (frozenset(("benchmarks", "devices")), _nvbench, USUAL),
    (frozenset(("request_throughput", "duration")), _vllm, USUAL),
    (frozenset(("results",)), _hyperfine, ResultFields(case="command", value="times", unit="s")),
)  # fmt: skip


def _listed(document: Any, named: ResultFields) -> Iterator[Row]:
    """Yield rows of any list of records."""
    everything = islice(_records(document, {}), MOST_ROWS)
    records = [
        each for each in everything if each.get("run_type") != "aggregate" and not each.get("error_occurred")
    ]
    names = {name: None for record in records for name in record}
    columns = {name: ALIASES[name.casefold()] for name in names if name.casefold() in ALIASES}
    chosen = {wanted: _chosen(names, wanted) for wanted in named.columns()}
    for wanted, name in chosen.items():
        if not name and wanted != named.unit.casefold():
            raise UsageError(f"no field {wanted!r}", hint=f"there are {', '.join(names) or 'no records'}")
    usual = next((name for name, ours in columns.items() if ours == "value"), "")
    value = chosen.get(named.value.casefold(), usual)
    if not value:
        numbers = [name for name in names if any(_is_number(record.get(name)) for record in records)]
        if not numbers:
            raise UsageError("no list of records with numbers", hint=FORMS)
        raise UsageError(
            "no field with the value is known", hint=f"give --value, one of {', '.join(numbers)}"
        )
    for record in records:
        row = {ours: str(record[name]) for name, ours in columns.items() if _is_plain(record.get(name))}
        for wanted, ours in named.columns().items():
            found = record.get(chosen[wanted])
            if ours != "value" and found is not None:
                row[ours] = str(found)
        row.setdefault("unit", named.unit)
        row.setdefault("metric", value.rpartition(".")[2])
        found = record.get(value)
        for number in found if isinstance(found, list) else [found]:
            if number is not None:
                yield {**row, "value": _row(row.get("workload", ""), row["metric"], number, "")["value"]}


def _records(value: Any, outer: Record) -> Iterator[Record]:
    """Yield one flat record for each innermost one: dotted names, with what stands around it."""
    if isinstance(value, list):
        for each in value:
            yield from _records(each, outer)
    if not isinstance(value, dict):
        return
    own = {**outer, **_flat(value)}
    lists = [inner for inner in value.values() if isinstance(inner, list) and any(map(_is_record, inner))]
    for inner in lists:
        yield from _records(inner, own)
    if not lists:
        yield own


def _flat(value: Record, start: str = "") -> Record:
    found: Record = {}
    for key, inner in value.items():
        if isinstance(inner, dict):
            found |= _flat(inner, f"{start}{key}.")
        elif not isinstance(inner, list) or not any(map(_is_record, inner)):
            found[f"{start}{key}"] = inner
    return found


def _fields(document: Any) -> Mapping[str, None]:
    """Return the names of all fields, whole and their last parts."""
    tool = isinstance(document, dict) and MLLOG in document
    records = [] if tool else list(islice(_records(document, {}), 1000))
    return {part: None for record in records for name in record for part in (name, name.rpartition(".")[2])}


def _chosen(names: Iterable[str], wanted: str) -> str:
    """Return the field of this whole name, else the one of this last part, in small letters; "" for none.

    Raises UsageError for several.
    """
    parts = {name: name.casefold().rpartition(".")[2] for name in names}
    found = [name for name in parts if name.casefold() == wanted]
    found = found or [name for name, part in parts.items() if part == wanted]
    if len(found) > 1:
        raise UsageError(f"{wanted!r} may be {' or '.join(found)}", hint="give one of these names in whole")
    return next(iter(found), "")


def _is_record(value: object) -> bool:
    return isinstance(value, dict)


def _is_plain(value: object) -> bool:
    return isinstance(value, str | int | float) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    if isinstance(value, list):
        return bool(value) and _is_number(value[0])
    return isinstance(value, int | float) and not isinstance(value, bool)
