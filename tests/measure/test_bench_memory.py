"""Room for a KV cache, and how a run waits for a temperature."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_build.events import Event, Note
from spark_build.measure.bounds import MODELS, free_memory, kv_room
from spark_build.measure.telemetry import CpuProbe, cool_down, thermometer


def test_room_for_tokens() -> None:
    small, large = MODELS
    assert small.token_bytes == 131072  # 2 x 32 layers x 8 heads x 128 numbers x 2 bytes
    free = 8.03e9 * 2 / 0.9
    assert kv_room(free, small) == 0
    assert kv_room(free + 131072 * 1000 / 0.9 + 1, small) == 1000
    assert kv_room(free, small, weights=0.5) > 0  # NVFP4 leaves room
    assert kv_room(119 * 2**30, large) == 0  # 141 GB of weights
    assert kv_room(119 * 2**30, large, weights=0.5) == (int(119 * 2**30 * 0.9 - 35.3e9) // 327680)


def test_whose_word_counts() -> None:
    both = {"device_free_mib": 100.0, "memavailable_mib": 20.0}
    assert free_memory([(0.0, both), (1.0, {})], "cuda") == 100 * 2**20
    assert free_memory([(0.0, both)], "cpu") == 20 * 2**20
    assert free_memory([(0.0, {"memavailable_mib": 20.0})], "cuda") == 20 * 2**20  # unified memory
    assert free_memory([(0.0, {})], "cuda") is None
    assert free_memory([], "cpu") is None


def test_what_the_kernel_counts() -> None:
    sample = CpuProbe().sample()
    assert 0 < sample["memfree_mib"] <= sample["memtotal_mib"]
    assert 0 < sample["memavailable_mib"] <= sample["memtotal_mib"]
    assert {"cached_mib", "shmem_mib"} <= set(sample)
    assert sample.get("cgroup_mib", 1) > 0


def falling(*values: float | None) -> Iterator[float | None]:
    yield from values
    while True:
        yield values[-1]


@pytest.mark.parametrize(
    ("degrees", "told", "notes", "pauses"),
    [
        ((50.0,), "", 0, 0),
        ((71.4, 66.0, 60.0), "", 1, 2),
        ((80.0,), "still 80 °C after 30 s of waiting for 60 °C", 3, 15),
        ((None,), "no temperature can be read here: no cool-down", 0, 0),
    ],
)
def test_cooling_down(degrees: tuple[float | None, ...], told: str, notes: int, pauses: int) -> None:
    values, events, paused = falling(*degrees), list[Event](), list[float]()
    found = cool_down(lambda: next(values), 60.0, events.append, limit=30.0, pause=paused.append)
    assert (found, len(events), len(paused)) == (told, notes, pauses)
    if events:
        assert isinstance(events[0], Note)
        assert "waiting for 60 °C" in events[0].message


def test_the_hottest_zone_counts(tmp_path: Path) -> None:
    assert thermometer("cpu", tmp_path)() is None
    for zone, text in (("thermal_zone0", "41000"), ("thermal_zone1", "57500"), ("thermal_zone2", "x")):
        (tmp_path / zone).mkdir()
        (tmp_path / zone / "temp").write_text(f"{text}\n")
    assert thermometer("cpu", tmp_path)() == 57.5
