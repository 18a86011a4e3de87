"""Tables of other tools, and our own."""

import csv
import io

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spark_build.errors import UsageError
from spark_build.measure.comparison import compare
from spark_build.measure.csv_io import better, csv_of, size_in_bytes, trial_from_csv
from spark_build.measure.request import ResultFields
from tests.helpers import benches


def test_the_least_there_can_be() -> None:
    text = "environment,metric,value\nnative,latency_ms,10\nnative,latency_ms,12\ndocker,latency_ms,20\ndocker,latency_ms,22\n"
    trial = trial_from_csv(text, "a.csv")
    assert trial.arms == ("native", "docker")
    assert [(case.name, case.lower) for case in trial.cases] == [("latency_ms", True)]
    assert list(trial.values["docker", "latency_ms"].values()) == [20, 22]
    assert not trial.paired
    assert "every row counts as a launch" in trial.notes[0]
    assert trial.quick
    (change,) = compare(trial).changes
    assert change.contrast.ratio == pytest.approx((10 * 12) ** 0.5 / (20 * 22) ** 0.5)
    assert change.overhead == pytest.approx(91.5, abs=0.1)


def test_order_case_and_unknown_columns_do_not_matter() -> None:
    text = (
        "\ufeffVALUE;Comment;Round;Benchmark;Unit;METRIC;Env\r\n# made by hand\r\n"
        "1,5;x;1;matmul;s;time;a\r\n\r\n1,6;;2;matmul;s;time;a\r\n3,0;;1;matmul;s;time;b\r\n3,1;;2;matmul;s;time;b\r\n"
    )
    trial = trial_from_csv(text, "a.csv")
    assert trial.paired
    assert trial.values["a", "matmul time"] == {"1": 1.5, "2": 1.6}
    assert trial.contrasts == (("a", "b"),)
    assert trial.notes == ()


def test_repeats_in_one_launch_are_one_sample() -> None:
    rows = "".join(f"{arm},run{run},fps,{value}\n" for arm in "ab" for run in (1, 2, 3) for value in (10, 20))
    trial = trial_from_csv("environment,run,metric,value\n" + rows, "a.csv")
    assert trial.values["a", "fps"] == {"run1": 15, "run2": 15, "run3": 15}
    assert not trial.paired
    assert not trial.quick
    assert compare(trial).changes[0].contrast.counts == (3, 3)


def test_shaped_like_the_tools_for_native_against_container() -> None:
    """Metrics that carry their unit in the name, seconds and tokens and bytes, one file for both."""
    lines = ["Environment,Test_ID,Test,Metric,Run,Value"]
    for arm, factor in (("native", 1.0), ("container", 1.67)):
        for run in range(1, 6):
            lines += [
                f"{arm},t1,matmul 10000,execution_time_seconds,{run},{1.52 * factor + run / 1000}",
                f"{arm},t1,llm,throughput_tokens_per_sec,{run},{(120 + run / 10) / factor}",
                f"{arm},t1,llm,latency_ms,{run},{40 * factor + run / 100}",
                f"{arm},t1,llm,peak_mem_alloc_bytes,{run},{78e9 if arm == 'native' else 105e9}",
            ]
    seen = compare(trial_from_csv("\n".join(lines), "a.csv"))
    assert {each.case: (each.finding, each.band) for each in seen.changes} == {
        "matmul 10000 execution_time_seconds": ("slower", "above 40%"),
        "llm throughput_tokens_per_sec": ("slower", "above 40%"),
        "llm latency_ms": ("slower", "above 40%"),
    }
    assert [each.overhead for each in seen.changes] == pytest.approx([67, 67, 67], abs=1)
    (memory,) = seen.memory
    assert (memory.case, memory.what) == ("llm", "peak_mem_alloc_bytes")
    assert memory.values == pytest.approx((78e9, 105e9))
    assert memory.finding == "different memory"
    assert len(seen.notes) == 1
    assert "all launches of native are told before all of container" in seen.notes[0]


def test_the_same_speed_with_other_memory() -> None:
    lines = ["environment,workload,metric,value,unit,run"]
    for arm, taken in (("docker", 104.92), ("chroot", 78.31)):
        for run in range(1, 7):
            lines += [
                f"{arm},llm,throughput,{121 + run % 3 / 10},tokens/s,{run}",
                f"{arm},llm,Peak Memory,{taken},GiB,{run}",
            ]
    (memory,) = compare(trial_from_csv("\n".join(lines), "a.csv")).memory
    assert memory.finding == "same speed, different memory"
    assert (memory.values[0] - memory.values[1]) / 2**30 == pytest.approx(26.61)


def test_raw_iterations_as_long_form() -> None:
    """Times of every iteration with a label, as timers write them."""
    lines = ["environment,workload,metric,unit,value"]
    lines += [
        f"{arm},GEMM 2560,time_sec,s,{0.001 * (1 + k % 3 / 100)}" for arm in ("host", "box") for k in range(9)
    ]
    seen = compare(trial_from_csv("\n".join(lines), "a.csv"))
    assert [each.finding for each in seen.changes] == ["equivalent"]
    assert "every row counts as a launch" in seen.notes[0]


@pytest.mark.parametrize(
    ("unit", "metric", "expected"),
    [
        ("ms", "anything", "lower"), ("s", "throughput", "lower"), ("us/token", "x", "lower"),
        ("FLOP/s", "x", "higher"), ("TFLOPS", "x", "higher"), ("GB/s", "x", "higher"), ("tokens/sec", "x", "higher"),
        ("images / second", "x", "higher"), ("GiB", "kv cache", "memory"), ("bytes", "x", "memory"),
        ("", "time_sec", "lower"), ("", "gb_per_s", "higher"), ("", "TTFT", "lower"), ("", "GFLOPS", "higher"),
        ("", "Execution Time", "lower"), ("", "bandwidth", "higher"), ("", "peak_mem_gib", "memory"),
        ("", "loss", None), ("points", "loss", None), ("", "", None),
        ("", "tokens/s", "higher"), ("", "images/sec", "higher"), ("", "GB/s", "higher"), ("", "tokens/s/GPU", "higher"),
        ("", "throughput (tokens/s)", "higher"), ("", "tokens per second", "higher"), ("", "tokens_per_ms", "higher"),
        ("", "tok_s", None), ("", "images_sec", None), ("", "gb_s", None), ("", "step_s", None), ("", "step_ms", "lower"),
        ("", "latency_per_token_ms", "lower"), ("", "time_per_step_s", "lower"), ("", "sec_per_iter", "lower"),
        ("", "latency/ms", "lower"), ("", "matmul/ms", None), ("", "matmul_ms", "lower"), ("", "bandwidth_test_ms", "lower"),
        ("", "throughput_llama_8b", "higher"), ("", "tokens_per_s_8B", "higher"), ("", "llama_8b", None),
        ("", "bert_h", None), ("", "accuracy_min", None), ("", "error_rate", None), ("", "peak memory (GB)", "memory"),
        ("seconds per step", "x", "lower"), ("ms per sample", "x", "lower"), ("s per sequence", "x", "lower"),
        ("s / 1000 tokens", "x", "lower"), ("J/token", "x", "lower"), ("ms", "tokens/s", "lower"),
        ("tokens per second", "x", "higher"), ("tokens_per_s", "x", "higher"), ("per second", "x", "higher"),
        ("samples/s/GPU", "x", "higher"), ("iterations per min", "x", "higher"),
    ],
)  # fmt: skip
def test_which_way_is_better(unit: str, metric: str, expected: str | None) -> None:
    assert better(unit, metric) == expected


def test_sizes() -> None:
    assert size_in_bytes(2, "GiB") == 2**31
    assert size_in_bytes(2, "GB") == 2e9
    assert size_in_bytes(2, "bytes") == 2
    assert size_in_bytes(3, "kb") == 3000
    assert size_in_bytes(3, "peak memory (GB)") == 3e9
    assert size_in_bytes(3, "peak_mem_alloc_bytes") == 3


def test_names_may_begin_like_a_comment() -> None:
    rows = "#1 native,fps,10,1\n# by hand\n#1 native,fps,11,2\n#,,,\nb,fps,5,1\nb,fps,6,2\n"
    trial = trial_from_csv("# a,b\nenvironment,metric,value,run\n" + rows, "a.csv")
    assert trial.contrasts == (("#1 native", "b"),)
    assert trial.values["#1 native", "fps"] == {"1": 10, "2": 11}


@pytest.mark.parametrize("above", ["# of ours, by hand, on Monday\n", "\n \n", "# a;b;c\n,,\n#\t\n"])
@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_the_headings_say_what_separates(above: str, delimiter: str) -> None:
    text = "environment,metric,value,run\na,fps,10,1\nb,fps,?,1\n".replace(",", delimiter)
    line = 3 + above.count("\n")
    with pytest.raises(UsageError, match=r"'\?' is no number") as caught:
        trial_from_csv(above + text, "a.csv")
    assert caught.value.where == f"a.csv:{line}"
    assert trial_from_csv(above + text.replace("?", "11"), "a.csv").arms == ("a", "b")


def test_names_are_shown_on_one_line() -> None:
    text = 'environment,metric,value,unit\n"a\x1b[2J",fps,1,x\n"b\nc",fps,2,x\n'
    trial = trial_from_csv(text, "a.csv")
    assert trial.arms == (r"a\x1b[2J", r"b\nc")
    with pytest.raises(UsageError) as caught:
        trial_from_csv(text, "a.csv", ResultFields(lower=("ms",)))
    assert caught.value.message.isprintable()
    with pytest.raises(UsageError) as caught:
        trial_from_csv("environment,metric,value\na,b," + "9" * 5000, "a.csv")
    assert len(caught.value.message) < 100
    with pytest.raises(UsageError) as caught:
        trial_from_csv("environment,metric," + "x" * 5000, "a.csv")
    assert len(caught.value.message) < 150


def test_a_direction_nobody_knows_is_said_and_can_be_changed() -> None:
    text = "environment,metric,value,run\n" + "".join(
        f"{a},Loss,{v},{r}\n" for a, v in (("x", 1), ("y", 2)) for r in (1, 2, 3)
    )
    trial = trial_from_csv(text, "a.csv")
    assert trial.notes[0] == "Loss: more is taken as better; if less is, add --lower-is-better 'Loss'"
    assert compare(trial).changes[0].contrast.ratio == pytest.approx(2)
    other = trial_from_csv(text, "a.csv", ResultFields(lower=("loss",)))
    assert not any("more is taken" in note for note in other.notes)
    assert compare(other).changes[0].contrast.ratio == pytest.approx(0.5)
    with pytest.raises(UsageError, match="no such metric"):
        trial_from_csv(text, "a.csv", ResultFields(lower=("speed",)))


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        ("", None, "empty"),
        ("environment,metric,value\n", None, "without rows"),
        ("env,metric\na,b\n", 1, "no column 'value'; there are env, metric"),
        ("environment,env,metric,value\n", 1, "two columns for the environment"),
        ("environment,metric,value\na,t,1\na,t,fast\n", 3, "'fast' is no number"),
        ("environment,metric,value\na,t,nan\n", 2, "'nan' is no number"),
        ("environment,metric,value\na,t,1_0\n", 2, "'1_0' is no number"),
        ("environment,metric,value\na,t,1e999\n", 2, "too large"),
        ("environment,metric,value\na,t,1e-101\n", 2, "too small"),
        ("environment,metric,value\na,t\n", 2, "'' is no number"),
        ("environment,metric,value\na,t,1,2\n", 2, "4 values under 3 headings"),
        ("environment,metric,value\n\n#\na,time,0\n", 4, "nothing below or at 0"),
        ("environment,metric,value\n,t,1\n", 2, "no environment"),
        ("environment,metric,value\na,,1\n", 2, "no metric"),
        ("environment,metric,value,unit\na,t,1,s\nb,t,1,ms\n", 3, "t in ms here, and in s at .*:2"),
        ("environment,metric,value,round\na,t,1,1\na,t,1,\n", 3, "no round in this row"),
        ("environment,metric,value,run\na,t,1,\na,t,1,2\n", 3, "a run in this row, and none in the first"),
        (
            "environment,metric,value,run,round\na,t,1,,\na,t,1,,2\n",
            3,
            "a round in this row, and none in the first",
        ),
        ("environment,metric,value,run,round\na,t,1,,1\na,t,1,1,\n", 3, "no round in this row"),
        ("environment,metric,value,run,round\na,t,1,1,\na,t,1,,1\n", 3, "no run in this row"),
        ('environment,metric,value\n"a\nb",t,1\na,t,?\n', 4, "is no number"),
    ],
)
def test_what_cannot_be_read_is_said_with_its_line(text: str, line: int | None, problem: str) -> None:
    with pytest.raises(UsageError, match=problem) as caught:
        trial_from_csv(text, "a.csv")
    assert caught.value.where == (f"a.csv:{line}" if line else "a.csv")
    assert caught.value.hint or "too " in problem or "below" in problem


def test_every_sample_of_a_run_is_written_and_none_is_compared() -> None:
    bench = benches.bench({"native": {}, "container": {"gemm": 1.5}}, memory={"native": 20, "container": 90})
    text = csv_of(bench)
    rows = list(csv.DictReader(text.splitlines()[1:]))
    figures = [(each, figure) for each in bench.rounds for figure in each.figures]
    told = {(each.slot.arm, figure.work, each.slot.visit + 1): figure.rate for each, figure in figures}
    rates = [row for row in rows if row["metric"] == "rate"]
    assert {
        (row["environment"], row["workload"], int(row["round"])): float(row["value"]) for row in rates
    } == told
    assert sum(row["metric"] == "call" for row in rows) == sum(len(figure.calls) for _, figure in figures)
    assert sum(row["metric"].startswith("peak ") for row in rows) == sum(len(one.peak) for _, one in figures)
    # What takes a run's claims away is not in it; older versions wrote other comments.
    for own in (text, text.replace(text.partition("\n")[0], "# scope: device=H200"), f"# doubt: x\n{text}"):
        with pytest.raises(UsageError, match="raw samples") as caught:
            trial_from_csv(own, "samples.csv")
        assert "bench.json" in str(caught.value.hint)


@pytest.mark.parametrize(
    "comment", ["# quick look at the node", "# scope: nightly", "# doubt: first run", "# quick"]
)
def test_comments_of_others_are_no_hindrance(comment: str) -> None:
    rows = "a,t,1,1\na,t,2,2\nb,t,1,1\nb,t,2,2\n"
    trial = trial_from_csv(f"{comment}\nenvironment,metric,value,run\n{rows}", "a.csv")
    assert trial.arms == ("a", "b")


cells = st.text(st.characters(codec="utf-8"), max_size=12)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.lists(cells, max_size=5), max_size=6), st.sampled_from([",", ";", "\t"]))
@example([["environment", "metric", "value"], ["a", "b", "1"]], ",")
def test_whatever_is_in_it_there_is_a_trial_or_one_clear_error(rows: list[list[str]], delimiter: str) -> None:
    out = io.StringIO()
    csv.writer(out, delimiter=delimiter).writerows(rows)
    for head in ("", f"environment{delimiter}metric{delimiter}value\n"):
        try:
            trial = trial_from_csv(head + out.getvalue(), "x.csv")
        except UsageError as error:
            if not str(error.where or "x.csv").startswith("x.csv"):
                raise
        else:
            assert trial.arms


names = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=8)


@settings(max_examples=100, deadline=None)
@given(
    st.dictionaries(
        st.tuples(names, names, st.integers(1, 4)), st.floats(1e-6, 1e12), min_size=1, max_size=12
    )
)
def test_every_value_arrives(values: dict[tuple[str, str, int], float]) -> None:
    out = io.StringIO()
    table = csv.writer(out)
    table.writerow(("Value", "environment", "workload", "metric", "unit", "round"))
    table.writerows(
        (repr(value), arm, case, "rate", "x/s", number) for (arm, case, number), value in values.items()
    )
    trial = trial_from_csv(out.getvalue(), "x.csv")
    found = {
        (arm, case.removesuffix(" rate"), int(key)): value
        for (arm, case), some in trial.values.items()
        for key, value in some.items()
    }
    assert found == values
