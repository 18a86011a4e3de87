import json
import os
import subprocess
import sys
import time
import types
from pathlib import Path

import pytest

from spark_build.measure.model import Sample
from spark_build.measure.telemetry import (
    CpuProbe,
    NvmlProbe,
    Sampler,
    families,
    prepare_memory,
    probes_for,
    summarise,
)
from tests.helpers.faulty_bench import NVML


def rows(count: int = 9, **values: float) -> list[tuple[float, Sample]]:
    """One sample a second; names ending in _s grow by their value each second."""
    return [
        (float(at), {name: value * at if name.endswith("_s") else value for name, value in values.items()})
        for at in range(count)
    ]


def test_shares_are_of_all_processors_and_without_the_arm_itself() -> None:
    found = summarise(rows(busy_s=2.5, steal_s=0.4, pressure_s=0.1, processors=4), [(2, 6)], own_rate=1.5)
    assert found.others == pytest.approx(0.25)
    assert found.steal == pytest.approx(0.1)
    assert found.pressure == pytest.approx(0.1)


def test_only_the_windows_count() -> None:
    taken = [(float(at), {"clock_mhz": 100.0 if 2 <= at <= 5 else 900.0}) for at in range(9)]
    assert summarise(taken, [(2, 5)], None).clock_mhz == 100
    assert summarise(taken, [(2, 5)], None).clock_cv == 0
    assert summarise(taken, [(2.1, 2.2)], None).clock_mhz is None


def test_what_was_not_read_is_unknown() -> None:
    found = summarise(rows(), [(0, 8)], own_rate=1)
    assert (found.others, found.steal, found.clock_mhz, found.throttled, found.other_processes) == (None,) * 5
    assert summarise([], [], None).load is None


def test_throttling_counts_over_the_whole_round() -> None:
    taken = rows(throttled=0.0)
    taken[-1][1]["throttled"] = 2.0
    assert summarise(taken, [(2, 3)], None).throttled == 2
    power_cap, thermal = rows(reasons=0x4, throttled=0.0), rows(reasons=0x40, throttled=0.0)
    assert (summarise(power_cap, [(0, 8)], None).throttled, summarise(thermal, [(0, 8)], None).throttled) == (
        0,
        1,
    )
    assert summarise(power_cap, [(0, 8)], None).reasons == ("SW power cap",)


def test_an_empty_list_of_gpu_processes_says_nothing() -> None:
    assert summarise(rows(processes=0.0), [(0, 8)], None).other_processes is None  # not even ourselves
    assert summarise(rows(processes=1.0), [(0, 8)], None).other_processes == 0
    assert summarise(rows(processes=3.0), [(0, 8)], None).other_processes == 2


def test_processes_of_one_arm_are_one() -> None:
    def kept() -> subprocess.Popen[bytes]:
        return subprocess.Popen(["cat"], stdin=subprocess.PIPE)

    with kept() as rank, kept() as other:
        assert families([rank.pid, other.pid]) == 1  # ours, though none descends from the other
        assert families([os.getpid(), rank.pid]) == 1
        assert families([rank.pid, os.getppid()]) == 1  # a family that is not ours: of a container
        assert families([rank.pid, 1 << 30, (1 << 30) + 1]) == 3  # who has ended is nobody's
        for each in (rank, other):
            assert each.stdin
            each.stdin.close()
    assert families([]) == 0


def test_the_processors_can_be_sampled_here() -> None:
    with Sampler([CpuProbe()]) as sampler:
        pass
    assert len(sampler.rows) == 2
    assert {"load", "busy_s", "processors", "free_mib"} <= sampler.rows[0][1].keys()
    assert "clock_mhz" not in CpuProbe(clocks=False).sample()


def drive(monkeypatch: pytest.MonkeyPatch, folder: Path, **said: object) -> None:
    """Let a made-up driver library answer so."""
    (folder / "said.json").write_text(json.dumps(said))
    monkeypatch.setenv("FAKE_NVML", str(folder / "said.json"))
    module = types.ModuleType("pynvml")
    exec(NVML, module.__dict__)
    monkeypatch.setitem(sys.modules, "pynvml", module)


def test_counters_are_cumulative_and_may_be_unknown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    drive(monkeypatch, tmp_path, counters={"269": 0.0, "74": 0.5})
    with Sampler([NvmlProbe()]) as sampler:
        time.sleep(0.4)
    first, last = sampler.rows[0], sampler.rows[-1]
    assert first[1]["throttled"] == last[1]["throttled"] == 5  # since the driver was loaded: no matter
    assert last[1]["capped_s"] > first[1]["capped_s"]
    found = summarise(sampler.rows, [(first[0], last[0])], None)
    assert found.throttled == 0
    assert found.capped == pytest.approx(0.5, abs=0.2)
    assert (found.watts, found.limit_watts) == (690, 700)
    drive(monkeypatch, tmp_path)
    assert not {"throttled", "capped_s"} & NvmlProbe().sample().keys()


def test_a_visible_device_is_the_one_that_is_watched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    drive(monkeypatch, tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    assert NvmlProbe().device == 3


def test_the_page_cache_goes_on_unified_memory_where_allowed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    drop = tmp_path / "drop_caches"
    monkeypatch.setattr("spark_build.measure.telemetry.DROP_CACHES", drop)
    drive(monkeypatch, tmp_path)
    assert prepare_memory("cuda") == ()
    assert not drop.exists()
    drive(monkeypatch, tmp_path, unified=True)
    assert prepare_memory("cpu") == ()
    assert "was dropped" in prepare_memory("cuda")[0]
    assert drop.read_text() == "1\n"
    monkeypatch.setattr("spark_build.measure.telemetry.DROP_CACHES", tmp_path)  # a folder cannot be written
    assert "could not be dropped" in prepare_memory("cuda")[0]


def test_without_a_driver_only_processors_and_memory_are_watched(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    drive(monkeypatch, tmp_path, absent=True)
    assert [type(probe) for probe in probes_for("cuda")] == [CpuProbe]
