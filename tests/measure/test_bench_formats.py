"""Other tools' results. Files in tests/data/results are of hyperfine 1.15, Google Benchmark 1.7.1, pytest-benchmark 5."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from spark_build.errors import UsageError
from spark_build.measure.comparison import Trial, compare, exit_code, joined
from spark_build.measure.csv_io import trial_from_csv
from spark_build.measure.formats import FORMS, read_results
from spark_build.measure.report.suite_view import finding_text
from spark_build.measure.request import ResultFields
from tests.helpers.commands import CLI, hint_text, invoke

DATA = Path(__file__).parent.parent / "data" / "results"


def read(file: Path, *arms: str, alone: bool = True, **given: Any) -> Trial:
    """Of a file, with its fields named."""
    return read_results(file, alone=alone, arms=arms, named=ResultFields(**given))[0]


def written(folder: Path, name: str, *documents: Any) -> Path:
    """A file with one JSON document on each line."""
    file = folder / name
    file.parent.mkdir(exist_ok=True, parents=True)
    file.write_text("\n".join(map(json.dumps, documents)))
    return file


def test_hyperfine() -> None:
    trial = read(DATA / "hyperfine.json")
    assert trial.contrasts == (("sleep 0.01", "sleep 0.02"),)
    assert next(iter(trial.values["sleep 0.01", "time"].values())) == 0.011347058
    assert not trial.quick  # every time is a process
    (change,) = compare(trial).changes
    assert (change.finding, change.lower, change.unit) == ("slower", True, "s")
    assert "all launches of sleep 0.01 are told before all of sleep 0.02" in trial.notes[0]
    two = read(DATA / "hyperfine.json", alone=False)
    assert (two.arms, [case.name for case in two.cases]) == (
        ("hyperfine",),
        ["sleep 0.01 time", "sleep 0.02 time"],
    )


def test_a_command_that_failed_takes_the_claims_away(tmp_path: Path) -> None:
    raw = json.loads((DATA / "hyperfine.json").read_text())
    raw["results"][1]["exit_codes"][2] = 3
    assert read(written(tmp_path, "a.json", raw)).doubts == ("sleep 0.02 ended with 3 in 1 runs",)


def test_google_benchmark() -> None:
    trial = read(DATA / "google-benchmark.json")
    names = [case.name for case in trial.cases]
    assert names == ["BM_sum/64 real_time", "BM_sum/1024 real_time", "BM_empty real_time"]
    assert trial.left_out == ("BM_err: no such device",)
    assert len(trial.values["google-benchmark", "BM_sum/64 real_time"]) == 3  # and no mean of them
    assert trial.quick
    assert [case.unit for case in trial.cases] == ["us", "us", "ns"]
    processor = read(DATA / "google-benchmark.json", value="cpu_time")
    assert (
        processor.values["google-benchmark", "BM_sum/64 cpu_time"].values()
        != trial.values["google-benchmark", "BM_sum/64 real_time"].values()
    )
    with pytest.raises(UsageError, match="real_time in ns here, and in us at"):
        read(DATA / "google-benchmark.json", "run_name")


def test_a_date_in_another_form_is_none(tmp_path: Path) -> None:
    raw = json.loads((DATA / "google-benchmark.json").read_text())
    dated = read(written(tmp_path, "a.json", raw)).when
    raw["context"]["date"] = "2015/03/17-18:40:25"  # as older versions write it
    assert all(map(math.isnan, read(written(tmp_path, "a.json", raw)).when.values()))
    assert set(dated.values()) == {1795360700.0}


def test_pytest_benchmark() -> None:
    trial = read(DATA / "pytest-benchmark.json")
    assert [case.name for case in trial.cases] == [
        "test_b.py::test_sum[10] time",
        "test_b.py::test_sum[100] time",
    ]
    means = list(trial.values["pytest-benchmark", "test_b.py::test_sum[10] time"].values())
    assert len(means) == 10  # of twelve calls in one process
    assert means[0] == 2.412172920151573e-07
    assert trial.quick


def test_a_number_beyond_all_numbers_is_refused(tmp_path: Path) -> None:
    """JSON has integers without end, and no float takes one of 400 digits."""
    file = tmp_path / "a.json"
    file.write_text((DATA / "pytest-benchmark.json").read_text().replace("2.412172920151573e-07", "9" * 400))
    with pytest.raises(UsageError):
        read(file)


def nvbench(seconds: float, *, skipped: bool = False) -> dict[str, Any]:
    """What nvbench --json writes of a benchmark with one axis; numbers are strings."""

    def summary(tag: str, value: str) -> dict[str, Any]:
        return {
            "tag": tag,
            "name": "GPU Time",
            "data": [{"name": "value", "type": "float64", "value": value}],
        }

    found = [summary("nv/cold/time/cpu/mean", "0.5"), summary("nv/cold/time/gpu/mean", str(seconds))]
    state = {
        "name": "Device=0 BlockSize=2^8", "device": 0, "is_skipped": skipped, "skip_reason": "Deadlock",
        "axis_values": [{"name": "BlockSize", "type": "int64", "value": "256"}],
        "summaries": [] if skipped else found,
    }  # fmt: skip
    return {
        "devices": [{"id": 0, "name": "GPU"}],
        "benchmarks": [{"name": "copy", "axes": [], "states": [state]}],
    }


def test_nvbench_in_folders(tmp_path: Path) -> None:
    for arm, scale in (("native", 1.0), ("docker", 1.5)):
        for run in range(4):
            written(tmp_path / arm, f"{run}.json", nvbench(scale * (1e-6 + run * 1e-9)))
    native, docker = (read(tmp_path / arm, alone=False) for arm in ("native", "docker"))
    assert next(iter(native.values["native", "copy BlockSize=256 time"].values())) == 1e-6
    seen = compare(joined(native, docker))
    assert seen.changes[0].contrast.counts == (4, 4)
    assert exit_code(seen)[0] == 11  # nobody knows what lay between the two
    with pytest.raises(UsageError, match="copy BlockSize=256: Deadlock"):
        read(written(tmp_path, "skipped.json", nvbench(1, skipped=True)))


def serving(label: str, number: int, *, completed: int = 100) -> dict[str, Any]:
    """What `vllm bench serve --save-result` leaves; --append-result writes one on each line."""
    return {
        "date": f"20261122-1518{number:02d}", "backend": "vllm", "label": label, "model_id": "m", "num_prompts": 100,
        "request_rate": "inf", "burstiness": 1.0, "max_concurrency": None, "duration": 10.1, "completed": completed,
        "total_input_tokens": 1000, "request_throughput": 9.9, "request_goodput": None, "output_throughput": 434.4,
        "total_token_throughput": 868.8, "mean_ttft_ms": 72.7 + number / 100, "std_ttft_ms": 3.0, "p99_ttft_ms": 109.9,
        "mean_tpot_ms": 7.0, "p99.9_itl_ms": 9.0,
    }  # fmt: skip


def test_vllm(tmp_path: Path) -> None:
    one = [serving("native", at) for at in range(4)]
    trial = read(written(tmp_path, "native.json", *one))
    units = {case.name: (case.unit, case.lower) for case in trial.cases}
    assert units == {
        "request_throughput": ("req/s", False), "output_throughput": ("tokens/s", False),
        "total_token_throughput": ("tokens/s", False), "mean_ttft_ms": ("ms", True), "p99_ttft_ms": ("ms", True),
        "mean_tpot_ms": ("ms", True), "p99.9_itl_ms": ("ms", True),
    }  # fmt: skip
    assert len(trial.values["native", "mean_ttft_ms"]) == 4
    both = [serving("abba"[at % 4], at) for at in range(12)]
    labelled = read(written(tmp_path, "both.json", *both), "label")
    assert (labelled.arms, labelled.doubts, labelled.notes) == (("a", "b"), (), ())
    lost = read(written(tmp_path, "lost.json", serving("a", 0, completed=98)))
    assert lost.doubts == ("2 of 100 requests failed",)


def test_dates_tell_what_was_measured_in_turn(tmp_path: Path) -> None:
    def pair(first: range, second: range) -> Trial:
        files = [written(tmp_path, f"{name}.json", *(serving("", at) for at in numbers))
                 for name, numbers in (("native", first), ("docker", second))]  # fmt: skip
        return joined(*(read(file, alone=False) for file in files))

    assert pair(range(0, 20, 2), range(1, 20, 2)).doubts == ()
    assert "variance from day to day unknown" in pair(range(10), range(10, 20)).doubts[0]
    # One launch of each lies among the other's: that is not in turn.
    overlapping = pair(range(10), range(8, 18))
    assert "variance from day to day unknown" in overlapping.doubts[0]


INFERENCE = """:::MLLOG {"key": "result_validity", "value": "VALID", "time_ms": 273.0, "namespace": "mlperf::logging"}
:::MLLOG {"key": "result_samples_per_second", "value": 1234.5, "time_ms": 273.0, "namespace": "mlperf::logging"}
:::MLLOG {"key": "result_tokens_per_second", "value": 99.5, "time_ms": 273.0, "namespace": "mlperf::logging"}
:::MLLOG {"key": "result_99.00_percentile_latency_ns", "value": 31329862, "time_ms": 273.0}
:::MLLOG {"key": "result_min_duration_met", "value": true, "time_ms": 273.0}
"""
TRAINING = """some line
0: :::MLLOG {"namespace": "", "time_ms": 1000, "event_type": "INTERVAL_START", "key": "run_start", "value": null}
0: :::MLLOG {"time_ms": 1500, "key": "tracked_stats", "value": {"throughput": 5013.9}, "metadata": {"step": 1}}
0: :::MLLOG {"time_ms": 6754, "key": "run_stop", "value": null, "metadata": {"status": "success"}}
"""


def test_mlperf(tmp_path: Path) -> None:
    file = tmp_path / "detail.txt"
    file.write_text(INFERENCE)
    trial = read(file)
    assert {case.name: (case.unit, case.lower) for case in trial.cases} == {
        "samples_per_second": ("samples/s", False), "tokens_per_second": ("tokens/s", False),
        "99.00_percentile_latency_ns": ("ns", True),
    }  # fmt: skip
    file.write_text(INFERENCE.replace('"VALID"', '"INVALID"'))
    assert "INVALID" in read(file).doubts[0]
    file.write_text(TRAINING)
    trial = read(file)
    assert trial.values["detail", "time to train"] == {"1": 5.754}
    assert trial.values["detail", "throughput"] == {"1": 5013.9}
    file.write_text(TRAINING.replace("success", "aborted"))
    assert read(file).doubts == ("run 1 ended as aborted",)


def test_any_records(tmp_path: Path) -> None:
    nested = {
        "host": "x",
        "runs": [
            {"env": {"name": "native"}, "results": [{"bench": "gemm", "times": [1.0, 1.1, 1.2]}]},
            {"env": {"name": "docker"}, "results": [{"bench": "gemm", "times": [2.0, 2.1, 2.2]}]},
        ],
    }
    file = written(tmp_path, "a.json", nested)
    trial = read(file, "env.name", case="bench", value="times", unit="ms")
    assert trial.arms == ("native", "docker")
    assert list(trial.values["docker", "gemm times"].values()) == [2.0, 2.1, 2.2]
    assert trial.cases[0].lower
    with pytest.raises(UsageError, match="no field with the value is known") as caught:
        read(file, "env.name")
    assert "give --value, one of times" in hint_text(caught.value.hint)
    with pytest.raises(UsageError, match="no field 'speed'"):
        read(file, value="speed")
    flat = [
        {"Environment": arm, "metric": "fps", "value": 10 + at, "run": at} for at in range(3) for arm in "ab"
    ]
    assert read(written(tmp_path, "b.json", flat)).values["b", "fps"] == {"0": 10, "1": 11, "2": 12}


def test_results_are_hyperfines_only_with_commands(tmp_path: Path) -> None:
    for name, results in (("a", [{"fps": 10.0}, {"fps": 11.0}]), ("b", {"fps": 10.0})):
        assert read(written(tmp_path, f"{name}.json", {"results": results}), value="fps").cases
    with pytest.raises(UsageError, match="no list of records with numbers"):
        read(written(tmp_path, "c.json", {"results": []}))


def test_a_field_of_two_records_is_named_in_whole(tmp_path: Path) -> None:
    file = written(tmp_path, "a.json", [{"warmup": {"mean": 9.0}, "stats": {"mean": 1.0}}] * 2)
    with pytest.raises(UsageError, match=r"'mean' may be warmup\.mean or stats\.mean"):
        read(file, value="mean")
    (values,) = read(file, value="stats.mean").values.values()
    assert set(values.values()) == {1.0}


def test_a_unit_of_a_table_may_be_given_itself(tmp_path: Path) -> None:
    rows = [
        f"{arm},latency,{value + run},{run}" for run in range(4) for arm, value in (("a", 100), ("b", 50))
    ]
    file = tmp_path / "a.csv"
    file.write_text("\n".join(["environment,case,value,run", *rows]))
    trial, _ = read_results(file, alone=True, arms=(), named=ResultFields(value="value", unit="ms"))
    (change,) = compare(trial).changes
    assert (change.unit, change.lower, change.finding) == ("ms", True, "faster")


@pytest.mark.parametrize("field", ["case", "value"])
def test_a_column_that_is_not_there_is_told(field: str, tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text("environment,metric,value,run\na,fps,1,1\na,fps,1,2\n")
    speed: dict[str, Any] = {field: "speed"}
    with pytest.raises(UsageError, match="no column 'speed'; there are environment, metric, value, run"):
        read_results(file, alone=True, arms=(), named=ResultFields(**speed))


def test_columns_of_a_table_are_named(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text(
        "system,kernel,tflops,env,run\nold,gemm,10,x,1\nold,gemm,11,x,2\nnew,gemm,12,x,1\nnew,gemm,13,x,2\n"
    )
    trial, arms = read_results(
        file, alone=True, arms=("system",), named=ResultFields(case="kernel", value="tflops")
    )
    assert (trial.arms, arms) == (("old", "new"), ())
    assert trial.values["new", "gemm tflops"] == {"1": 12, "2": 13}


def table(metric: str, unit: str, first: float, second: float) -> str:
    rows = [f"{arm},{metric},{value + run / 1000},{unit},{run}" for run in range(4) for arm, value in (("a", first), ("b", second))]  # fmt: skip
    return "\n".join(["environment,metric,value,unit,run", *rows])


def test_a_smaller_cache_is_not_less_memory_needed(tmp_path: Path) -> None:
    text = table("KV cache", "GiB", 40, 20)
    seen = compare(trial_from_csv(text, "a.csv"))
    assert seen.memory == ()
    assert [(each.kind, each.lower, each.finding) for each in seen.changes] == [("capacity", False, "slower")]
    assert exit_code(seen, 5)[0] == 11  # nothing was timed
    timed = "\n".join([text, *table("fps", "fps", 10, 10).splitlines()[1:]])
    assert exit_code(compare(trial_from_csv(timed, "a.csv")), 5)[0] == 0  # it takes no longer
    fewer = compare(trial_from_csv(text, "a.csv", ResultFields(lower=("KV cache",))))
    assert [(each.finding, finding_text(each)) for each in fewer.changes] == [("faster", "less")]
    assert compare(trial_from_csv(table("peak KV cache", "GiB", 40, 20), "a.csv")).memory != ()
    file = tmp_path / "a.csv"
    file.write_text(text)
    said = invoke([*CLI, "bench", "compare", str(file)]).stdout
    assert "0.500" in said
    assert "1 case: 1 less" in said
    assert "slower" not in said
    options = ["--arm", "environment", "--higher-is-better", "KV cache", "--json"]
    document = json.loads(invoke([*CLI, "bench", "compare", str(file), *options]).stdout)
    assert (document["exit_code"], document["changes"][0]["kind"]) == (0, "capacity")


def test_more_is_better_where_it_is_said() -> None:
    text = table("loss", "points", 4.0, 2.0)
    assert "loss: more is taken as better" in trial_from_csv(text, "a.csv").notes[0]
    said = trial_from_csv(text, "a.csv", ResultFields(higher=("loss",)))
    assert said.notes == ()
    assert not said.cases[0].lower
    assert (
        trial_from_csv(table("latency", "ms", 4.0, 2.0), "a.csv", ResultFields(higher=("latency",)))
        .cases[0]
        .lower
        is False
    )
    with pytest.raises(UsageError, match="--higher-is-better speed: no such metric"):
        trial_from_csv(text, "a.csv", ResultFields(higher=("speed",)))


def test_drift_takes_claims_from_arms_measured_one_after_the_other() -> None:
    rows = [f"{arm},fps,{100 - 2 * at},{at}" for at, arm in enumerate("a" * 8 + "b" * 8)]
    text = "\n".join(["environment,metric,value,run", *rows])
    seen = compare(trial_from_csv(text, "a.csv"))
    assert [finding.finding for finding in seen.changes] == ["slower"]
    assert "all launches of a are told before all of b" in seen.doubts[0]
    assert "fps of a drifts: -" in seen.doubts[1]
    turns = [f"{arm},fps,{100 - 2 * at},{at}" for at, arm in enumerate("ab" * 8)]
    in_turn = trial_from_csv("\n".join(["environment,metric,value,run", *turns]), "a.csv")
    assert in_turn.doubts == ()
    assert in_turn.notes[0].startswith("fps of a drifts")


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[1",
        "[" * 700 + "{}" + "]" * 700,
        '{"a": 1}\n{',
        '{"results": [{"command": "x"}]}',
        '{"benchmarks": 1, "context": {}}',
    ],
)
def test_an_unreadable_file_says_which_forms_there_are(tmp_path: Path, text: str) -> None:
    file = tmp_path / "a.json"
    file.write_text(text)
    with pytest.raises(UsageError) as caught:
        read(file)
    assert hint_text(caught.value.hint) == FORMS
    assert str(file) in str(caught.value.where)
    for tool in (
        "hyperfine",
        "pytest-benchmark",
        "Google Benchmark",
        "nvbench",
        "vllm",
        "MLPerf",
        "CSV",
        "--value",
    ):
        assert tool in FORMS
