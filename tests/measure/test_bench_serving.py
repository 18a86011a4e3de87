"""The serving workload as it is shown, and the times of single calls behind its percentiles."""

import dataclasses
import importlib.util
import itertools
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spark_build.measure.comparison import from_bench
from spark_build.measure.model import JOULES, Arm, Bench, Figure
from spark_build.measure.report.suite_report import suite_report
from spark_build.measure.report.suite_view import SERVING, SuiteView, serving_rows
from spark_build.measure.rounds import read_suite_round
from tests.helpers import benches
from tests.helpers.benches import without_pictures
from tests.measure.test_plausible import suite

__all__ = ["without_pictures"]  # fixture
CALLS = tuple(0.01 if at < 97 else 0.1 for at in range(100))


def served(**facts: float) -> Bench:
    """A bench of one case, of which three in a hundred tokens take ten times as long."""
    bench = benches.bench({"native": {}}, pairs=2)
    figure = Figure(
        work=benches.SERVED.name, rate=400.0, calls=CALLS, peak={"allocated": 3 * 2.0**30, "rss": 9 * 2.0**30},
        facts={"kv_bytes": 2.0**28, "kv_bytes_per_token": 2.0**17, **facts},
    )  # fmt: skip
    rounds = tuple(dataclasses.replace(each, figures=(*each.figures, figure)) for each in bench.rounds)
    return dataclasses.replace(bench, works=(*bench.works, benches.SERVED), rounds=rounds)


def test_percentiles_are_of_single_tokens() -> None:
    bench = served()
    (row,) = serving_rows(bench, from_bench(bench))
    assert dict(zip(SERVING, row, strict=True)) == {
        "case": "serving.generate.bf16.b4.c512", "arm": "native", "time of": "next token", "p50": "10.0 ms",
        "p95": "10.0 ms", "p99": "100 ms", "tokens/s": "400", "J/token": "unknown", "peak memory": "3.0 GiB",
        "KV cache": "256.0 MiB (128.0 KiB a token)",
    }  # fmt: skip
    assert serving_rows(benches.bench({"native": {}}), from_bench(benches.bench({"native": {}}))) == []


@pytest.mark.usefixtures("without_pictures")
def test_the_reports_have_them() -> None:
    view = SuiteView(bench=served(**{JOULES: 1.5}))
    report = suite_report(view)
    text = report.markdown()
    assert (
        "| serving.generate.bf16.b4.c512 | native | next token | 10.0 ms | 10.0 ms | 100 ms | 400 | 1.50 |"
        in text
    )
    assert "## Serving" not in suite_report(SuiteView(bench=benches.bench({"native": {}}))).markdown()
    assert (
        "<td>next token</td><td class=n>10.0 ms</td><td class=n>10.0 ms</td><td class=n>100 ms</td>"
        in report.html()
    )


def test_energy_is_that_of_the_window(tmp_path: Path) -> None:
    raw = suite()
    figure = raw["report"]["figures"][0]
    before, within = figure["start"] - 1, (figure["start"] + figure["end"]) / 2
    ends = [raw["telemetry"][0], [before, {"watts": 50.0}], [within, {"watts": 250.0}], raw["telemetry"][-1]]
    raw["telemetry"] = sorted(ends, key=lambda row: row[0])
    file = tmp_path / "round.json"
    file.write_text(json.dumps(raw))
    (read,) = read_suite_round(file).figures
    assert read.facts[JOULES] == pytest.approx(250 / read.rate)


def timing() -> Any:
    """The module that runs inside an arm; it needs no torch itself."""
    file = Path(__file__).parents[2] / "bench" / "timing.py"
    spec = importlib.util.spec_from_file_location("timing_of_bench", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_slow_calls_are_not_lost_in_means() -> None:
    timed = timing()
    kept: list[float] = []
    batches = timed.noting((each for each in [(1.0, 1), (8.0, 4), (3.0, 1)]), kept, 1000)
    assert timed.next_tick(batches, 12.0) == (12.0, 6)
    assert kept == [1.0, 3.0]  # a batch of four says nothing of one call
    batches.close()


def test_a_long_window_keeps_some_calls_by_chance() -> None:
    kept: list[float] = []
    batches = timing().noting(((float(at), 1) for at in range(10_000)), kept, 100)
    assert sum(1 for _ in batches) == 10_000
    assert len(kept) == len(set(kept)) == 100
    assert 4000 < sum(kept) / 100 < 6000, "of the whole window"


def test_an_emptied_list_begins_anew() -> None:
    kept: list[float] = []
    batches = timing().noting((each for each in [(1.0, 1)] * 1000 + [(2.0, 1)] * 20), kept, 10)
    for at, _ in enumerate(batches, 1):
        if at == 1000:
            kept.clear()
    assert kept == [2.0] * 10


def single_calls(durations: Iterator[float], seconds: float, each: float) -> list[float]:
    """Milliseconds of calls on a GPU's clock -> what `single_calls` finds."""
    clock = [0.0]

    class Event:
        """Marks the device's clock, which each call moves on."""

        def __init__(self, **_: object) -> None:
            self.at = 0.0

        def record(self) -> None:
            self.at = clock[0]

        def synchronize(self) -> None:
            return None

        def elapsed_time(self, other: "Event") -> float:
            return other.at - self.at

    def step() -> None:
        clock[0] += next(durations)

    torch = SimpleNamespace(cuda=SimpleNamespace(Event=Event))
    found: list[float] = timing().single_calls(torch, step, seconds, 1000, each)
    return found


def test_events_of_a_gpu_tell_single_calls() -> None:
    found = single_calls(itertools.cycle([1.0, 5.0, 1.0]), 0.05, 0.0023)
    assert sum(found) >= 0.04
    assert set(found) == {0.001, 0.005}


def test_calls_of_many_seconds_do_not_fill_a_chunk() -> None:
    """A quarter of a window more, or two calls, however long they are."""
    assert single_calls(itertools.repeat(16_000.0), 7.5, 16.0) == [16.0]
    found = single_calls(itertools.repeat(1000.0), 7.5, 1.0)
    assert len(found) < 14


# Runs inside the arm. A graph replays into the tensors of its recording; between recording and replay, counting
# the operations runs the same step by itself.
SERVER = """
import json, sys
from types import SimpleNamespace
sys.path.insert(0, sys.argv[1])
import torch
from decoder import Shape
from workloads import decode, difference, serving

shape = Shape(layers=2, width=64, heads=4, kv_heads=2, hidden=96, vocabulary=128)
server = serving.Server(SimpleNamespace(seed=0, device="cpu"), shape, "fp32", 2, 16, 16 + serving.NEW)
told = {"plain": server.difference(server.step)}

server.begin()
server.recorded = scores = server.advance().clone()

def replay():
    with torch.no_grad():
        scores.copy_(server.net(server.token, server.caches, server.position))
    server.token.copy_(scores.argmax(-1, keepdim=True))
    server.position.add_(1)

server.graph = SimpleNamespace(replay=replay)
server.begin()
server.advance()
told["graph"] = server.difference(server.step)
told["not a number"] = server.difference(lambda: server.step() * float("nan"))
rounded = serving.Server(SimpleNamespace(seed=0, device="cpu"), shape, "bf16", 2, 16, 16 + serving.NEW)
told["rounded"] = rounded.difference(rounded.step) / serving.TOLERANCE["bf16"]

def forgetful():
    rounded.caches[..., :8, :] = 0
    return rounded.step()

told["forgetful"] = rounded.difference(forgetful) / serving.TOLERANCE["bf16"]
one = torch.ones(3)
told["apart"] = [difference(one, one), difference(one * 3, one), difference(one / 0, one)]
print(json.dumps({name: str(each) for name, each in told.items()}))
"""


def test_the_scores_are_those_of_the_graph_and_numbers(baseline: Arm) -> None:
    bench = Path(__file__).parents[2] / "bench"
    done = subprocess.run(
        [baseline.python, "-I", "-c", SERVER, bench], capture_output=True, text=True, check=True
    )
    told = json.loads(done.stdout)
    assert float(told["plain"]) < 1e-5
    assert float(told["graph"]) < 1e-5, "the scores are those of another step"
    assert told["not a number"] == "inf"
    assert float(told["rounded"]) < 0.5
    assert float(told["forgetful"]) > 2, "half of the keys may be missing"
    assert told["apart"] == "[0.0, 2.0, inf]"
