"""Burn-ins of a cluster: what is concluded, and real ones of two processes of this machine."""

import contextlib
import datetime as dt
import json
import platform
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from spark_build import __version__
from spark_build.errors import UsageError
from spark_build.files import locked
from spark_build.measure.cluster import (
    CODES,
    ClusterRequest,
    burn_in_cluster,
    conclude,
    other_version,
    parse_nodes,
    table_of,
    why_slow,
)
from spark_build.measure.model import Arm, Reference, Telemetry
from spark_build.measure.request import BurnInRequest
from spark_build.measure.session import MeasureSite
from spark_build.measure.verdict import parse_reference
from spark_build.paths import locate
from spark_build.recipes.toml_positions import read_toml
from spark_build.reporting import Reporter, reporting
from tests.helpers.wheelhouse import eventually

ROOT = Path(__file__).resolve().parents[2]
CASE = "FP16 8192^3 a@b"


def node(name: str, rate: float = 600e12, **more: Any) -> dict[str, Any]:
    seen = {name: more.pop(name) for name in asdict(Telemetry()) if name in more}
    return {
        "name": name, "device": "H200", "torch": "2.11.0", "measured": f"{CASE}, 10 s", "rates": {CASE: rate},
        "broken": [], "gates": [], "telemetry": asdict(Telemetry(**seen)), **more,
    }  # fmt: skip


def link(bus: float = 20e9, wrong: int = 0) -> dict[str, Any]:
    return {"backend": "nccl", "problem": "", "sizes": [{"bytes": 1 << 28, "bus": bus, "wrong": wrong}]}


def met(*nodes: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"nodes": list(nodes), "missing": [], "problem": "", "link": link(), **more}


BUSY = {"name": "other processes", "status": "fail", "evidence": "70%"}
FAST = node("one", clock_mhz=1980.0)
SLOW = node("two", 500e12, clock_mhz=1500.0)


@pytest.mark.parametrize(
    ("found", "least", "word", "why"),
    [
        (met(FAST, node("two")), 18e9, "PASS", ""),
        (met(FAST, node("two")), None, "INCONCLUSIVE", "no bound known"),
        (met(FAST, node("two")), 21e9, "FAIL", "20.0 GB/s between nodes, below 21.0 GB/s (--bus-bandwidth)"),
        (met(FAST, SLOW), 18e9, "FAIL", "two reaches 83% of the fastest: clock 1500 MHz, 1980 on one"),
        (met(FAST, SLOW), None, "FAIL", "two reaches 83%"),
        (met(FAST, {**SLOW, "gates": [BUSY]}), 18e9, "INCONCLUSIVE", "two: other processes: 70%"),
        (met(FAST, node("two"), link=link(wrong=3)), 18e9, "FAIL", "all_reduce: 3 elements wrong"),
        (met(FAST, node("two", broken=["torch failed (x)"])), 18e9, "FAIL", "two: torch failed (x)"),
        (met(FAST, node("two", torch="2.9.1")), 18e9, "INCONCLUSIVE", "2.11.0 on one; 2.9.1 on two"),
        (met(FAST, node("two", rates={})), 18e9, "INCONCLUSIVE", f"two: no rate of {CASE}"),
        (met(FAST, missing=["two"], link=None), 18e9, "INCONCLUSIVE", "two did not arrive"),
        (
            met(FAST, node("two"), link={"backend": "nccl", "problem": "timed out", "sizes": []}),
            None,
            "INCONCLUSIVE",
            "all_reduce: timed out",
        ),
    ],
)
def test_what_is_concluded(found: dict[str, Any], least: float | None, word: str, why: str) -> None:
    result = conclude(found, CASE, least, None)
    assert result["verdict"] == word
    assert result["exit_code"] == {"PASS": 0, "FAIL": 9, "INCONCLUSIVE": 11}[word] == CODES[word]
    assert any(why in each for each in result["why"]) or (not why and not result["why"])


def test_nodes_of_two_versions_are_not_compared() -> None:
    """What one of an older version says has another form."""
    here, older = {"rank": 0, "name": "one", "spark_build": __version__}, {"rank": 1, "name": "two"}
    assert other_version([here]) == ""
    problem = other_version([here, older])
    assert problem.startswith("two runs another version")
    result = conclude(met(here, older, problem=problem, link=None), CASE, 18e9, None)
    assert (result["verdict"], result["why"]) == ("INCONCLUSIVE", [problem])
    assert [row[0] for row in table_of(result)[1:]] == ["one", "two"]


def test_a_slow_node_is_named_even_where_nothing_may_be_claimed() -> None:
    result = conclude(met(FAST, {**SLOW, "gates": [BUSY]}), CASE, 18e9, None)
    assert result["slowest"]["name"] == "two"
    assert table_of(result)[2][:4] == ["two", "H200", "500.0 TFLOP/s", "83.3%"]
    assert table_of(result)[2][-1] == "other processes"


def test_the_reference_has_the_bound_of_a_spark() -> None:
    spark = parse_reference(read_toml((ROOT / "bench/reference/gb10.toml").read_text()), "gb10.toml")
    assert spark.bus == (18e9, 25e9)
    two = (FAST, node("two"))
    assert conclude(met(*two), CASE, None, spark)["verdict"] == "PASS"
    low = conclude(met(*two, link=link(12e9)), CASE, None, spark)
    assert (low["verdict"], low["bound_of"]) == ("FAIL", "known of GB10")
    beyond = conclude(met(*two, link=link(28e9)), CASE, None, spark)
    assert (beyond["verdict"], "on paper" in beyond["why"][0]) == ("INCONCLUSIVE", True)
    without = Reference(name="H200", device="H200", rates={})
    assert conclude(met(*two), CASE, None, without)["verdict"] == "INCONCLUSIVE"


@pytest.mark.parametrize(
    ("seen", "reason"),
    [
        ({"throttled": 2.0}, "throttled"),
        (
            {"capped": 0.9, "reasons": ("SW power cap",)},
            "clocks held down for 90% of the time by SW power cap",
        ),
        ({"limit_watts": 400.0}, "power limit 400 W, 700 on one"),
        ({"clock_mhz": 1500.0}, "clock 1500 MHz, 1980 on one"),
        ({"celsius": 88.0}, "88 °C, 60 on one"),
        ({"others": 0.3}, "other processes took 30% of the processors"),
        ({"steal": 0.2}, "the host took 20% of the processors"),
        ({"other_processes": 1}, "1 other processes on the GPU"),
        ({"free_mib": 500}, "only 500 MiB of memory free"),
        ({}, "no reason seen"),
    ],
)
def test_why_a_node_is_slow(seen: dict[str, Any], reason: str) -> None:
    healthy = {"limit_watts": 700.0, "clock_mhz": 1980.0, "celsius": 60.0, "free_mib": 100_000}
    assert why_slow(node("two", **{**healthy, **seen}), node("one", **healthy)).startswith(reason)


def test_a_name_that_cannot_be_one_is_another_machine() -> None:
    with pytest.raises(UsageError, match="which of them is this machine"):
        parse_nodes("a..b,c", None, None)


def test_nodes_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_build.measure.cluster._is_here", lambda host: host == "two")
    found = parse_nodes("one:29500,two,three", None, None)
    assert (found.hosts, found.port, found.rank) == (("one", "two", "three"), 29500, 1)
    assert parse_nodes("one,[fe80::1]", 1, None).port == 29400
    assert parse_nodes("one,one", 0, None).names == ("one#0", "one#1")
    for text, rank in (("two", 0), ("one,two:29500", 0), ("one,,two", 0), ("one,three", None), ("one,two", 2),
                       ("two,two", None), ("one,two;ls", 0), ("one:0,two", 0), ("one:65536,two", 0)):  # fmt: skip
        with pytest.raises(UsageError):
            parse_nodes(text, rank, None)


def test_a_second_burn_in_of_the_same_rank_waits(tmp_path: Path) -> None:
    """Two at once would measure each other; ranks of one machine must meet."""

    class WaitsError(Exception):
        pass

    def heard(message: str) -> None:
        if message.startswith("waiting for another spark-build: burn-in"):
            raise WaitsError

    home = locate(str(tmp_path))
    site = MeasureSite(home=home, train="t", generation=None, emit=lambda _: None)
    wish = BurnInRequest(device="cpu", quick=True, arm=(f"x={tmp_path}",))
    with (
        reporting(Reporter(heard)),
        locked(home.runs / f".cluster-{platform.node()}-1.lock", purpose="burn-in"),
    ):
        for rank, expected in ((1, WaitsError), (0, UsageError)):
            request = ClusterRequest(hosts=("one", "two"), port=1, rank=rank)
            with pytest.raises(expected):
                burn_in_cluster(site, wish, request, (), tmp_path / "run")


def test_this_machine_is_known_by_its_addresses() -> None:
    assert parse_nodes("192.0.2.1,127.0.0.1", None, None).rank == 1


def free_port() -> int:
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as server:
        return int(server.getsockname()[1])


def start(root: Path, arm: Arm, nodes: str, rank: int, *more: str) -> int:
    """Run one node in a root of its own; return how it ended."""
    root.mkdir()
    (root / "began").touch()
    words = [
        "--root",
        str(root),
        "verify",
        "--burn-in",
        "--device",
        "cpu",
        "--nodes",
        nodes,
        "--rank",
        str(rank),
    ]
    words += ["--arm", f"torch={Path(arm.python).parents[1]}", "--size", "64", *more]
    command = [sys.executable, "-m", "spark_build", *words]
    with (root / "said").open("w") as said:
        return subprocess.run(command, stdout=said, stderr=said, timeout=300, check=False).returncode


def says(file: Path, text: str) -> bool:
    return file.exists() and text in file.read_text()


def all_of(folder: Path, arm: Arm, nodes: str, ranks: tuple[int, ...], *more: str) -> list[dict[str, Any]]:
    """Run nodes, each some time after the one before waits; what each left behind, which must fit how it ended."""
    with ThreadPoolExecutor(len(ranks)) as pool:
        ends = []
        for number, rank in enumerate(ranks):
            ends.append(pool.submit(start, folder / f"root{number}", arm, nodes, rank, *more))
            said = folder / f"root{number}" / "said"
            assert eventually(partial(says, said, "waiting for"), seconds=60)
            time.sleep(2)
    found = []
    for number, end in enumerate(ends):
        (file,) = folder.glob(f"root{number}/runs/*/cluster.json")
        document = json.loads(file.read_text())
        said = folder / f"root{number}" / "said"
        assert end.result() == document["exit_code"], said.read_text()
        assert f"burn-in: {document['verdict']}" in said.read_text()
        assert all(why in said.read_text() for why in document["why"])
        found.append(document)
    return found


def test_two_nodes_meet_measure_and_say_the_same(baseline: Arm, tmp_path: Path) -> None:
    nodes = f"localhost:{free_port()},localhost"
    one, two = all_of(tmp_path, baseline, nodes, (0, 1), "--duration", "0.4", "--bus-bandwidth", "1e9")
    assert one == two
    assert [each["name"] for each in one["nodes"]] == ["localhost#0", "localhost#1"]
    assert all(each["rates"]["FP32 64^3 a@b"] > 1e6 for each in one["nodes"])
    assert one["slowest"]["name"] in ("localhost#0", "localhost#1")
    assert one["bound"] == 1e18
    assert one["verdict"] in (
        "FAIL",
        "INCONCLUSIVE",
    )  # far from the bound; two on a machine disturb each other
    assert one["link"]["backend"] == "gloo"
    for size in one["link"]["sizes"]:
        seconds = sum(size["seconds"]) / len(size["seconds"]) / size["calls"]
        algbw = size["bytes"] / seconds
        assert size["bus"] == pytest.approx(algbw * 2 * (2 - 1) / 2)
        assert size["wrong"] == 0
    assert one["bus"] == one["link"]["sizes"][-1]["bus"]
    (page,) = tmp_path.glob("root0/runs/*/cluster.md")
    assert f"**{one['verdict']}**" in page.read_text()
    (round_of_first,) = tmp_path.glob("root0/runs/*/rounds-*/*.json")
    begun = dt.datetime.fromisoformat(json.loads(round_of_first.read_text())["started"]).timestamp()
    assert begun > (tmp_path / "root1" / "began").stat().st_mtime, "it did not wait for the second"


@pytest.mark.parametrize(
    ("rank", "told"), [(0, "localhost#1 did not arrive"), (1, "localhost:{port} does not answer")]
)
def test_a_node_that_stays_away_is_named(baseline: Arm, tmp_path: Path, rank: int, told: str) -> None:
    port = free_port()
    (alone,) = all_of(tmp_path, baseline, f"localhost:{port},localhost", (rank,), "--timeout", "3")
    assert (alone["verdict"], alone["exit_code"]) == ("INCONCLUSIVE", 11)
    assert told.format(port=port) in alone["why"]
    assert alone["missing"] == [f"localhost#{1 - rank}"]
    assert alone["bus"] is None
    assert not list(tmp_path.glob("root0/runs/*/rounds-*"))  # nothing was measured


def test_two_nodes_with_one_rank_are_told(baseline: Arm, tmp_path: Path) -> None:
    nodes = f"localhost:{free_port()},localhost,localhost"
    for found in all_of(tmp_path, baseline, nodes, (0, 1, 1)):
        assert found["verdict"] == "INCONCLUSIVE"
        assert "two nodes have one rank" in found["why"][0]


def test_a_wrong_sum_is_seen(baseline: Arm, tmp_path: Path) -> None:
    own, out = tmp_path / "own.json", tmp_path / "out.json"
    own.write_text("{}")
    command = [baseline.python, "-I", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2",
               "--local-addr=localhost", str(ROOT / "bench" / "cluster.py"), "--device=cpu", f"--say={own}", "--link",
               "--inject=element", f"--out={out}"]  # fmt: skip
    subprocess.run(command, check=True, timeout=200, capture_output=True)
    assert [size["wrong"] for size in json.loads(out.read_text())["link"]["sizes"]] == [2, 2]
