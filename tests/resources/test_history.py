from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import pytest

from spark_build.paths import Home, locate
from spark_build.resources import governor
from spark_build.resources.policy import BuildUsage
from tests.helpers import processes


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return locate(str(tmp_path))


def taken(peak: int, *, target: str = "gb10") -> BuildUsage:
    return BuildUsage(peak_mib_per_job=peak, seconds=1.5, target=target)


def file_of(home: Home) -> Path:
    return home.runs / "history" / "tiny.json"


def test_only_whole_builds_lower_what_is_planned(home: Home) -> None:
    def planned() -> int:
        return governor.expected_usage(home, "tiny", target="gb10", declared_mib=1000).memory_per_job_mib

    assert planned() == 1000
    part = dataclasses.replace(taken(100), seconds=0.0)
    governor.record_build(home, "tiny", part)
    assert planned() == 1000, "it failed before the large ones came"
    governor.record_build(home, "tiny", dataclasses.replace(part, peak_mib_per_job=2000))
    assert planned() == 2201
    for _ in range(5):
        governor.record_build(home, "tiny", part)
    governor.record_build(home, "tiny", taken(300))
    assert planned() == 331
    assert governor.expected_usage(home, "tiny", target="h200", declared_mib=1000).seconds is None


def peaks(home: Home, recipe: str, *, target: str | None = None) -> tuple[int, ...]:
    """The memory of each earlier build's largest job, newest last."""
    return tuple(build.peak_mib_per_job for build in governor.recorded_builds(home, recipe, target=target))


def test_nothing_is_known_at_first(home: Home) -> None:
    assert peaks(home, "tiny") == ()
    assert not home.runs.exists()


def test_builds_are_remembered_newest_last(home: Home) -> None:
    for peak in (300, 200):
        governor.record_build(home, "tiny", taken(peak))
    governor.record_build(home, "tiny", taken(900, target="h200"))
    governor.record_build(home, "other", taken(7))
    assert peaks(home, "tiny") == (300, 200, 900)
    assert peaks(home, "tiny", target="gb10") == (300, 200)
    assert governor.recorded_builds(home, "tiny")[-1] == taken(900, target="h200")
    assert peaks(home, "other") == (7,)


def test_the_oldest_are_forgotten(home: Home) -> None:
    for peak in range(governor.LENGTH + 5):
        governor.record_build(home, "tiny", taken(peak))
    assert peaks(home, "tiny") == tuple(range(5, governor.LENGTH + 5))


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "null", '{"format": 2, "builds": []}', '{"format": 1, "builds": [{"seconds": 1}]}'],
)
def test_a_damaged_file_is_no_obstacle(home: Home, content: str) -> None:
    file_of(home).parent.mkdir(parents=True)
    file_of(home).write_text(content)
    assert peaks(home, "tiny") == ()
    governor.record_build(home, "tiny", taken(5))
    assert peaks(home, "tiny") == (5,)


def test_what_a_later_version_adds_is_ignored(home: Home) -> None:
    governor.record_build(home, "tiny", taken(5))
    content = json.loads(file_of(home).read_text())
    content["builds"][0]["colour"] = "blue"
    file_of(home).write_text(json.dumps(content))
    assert peaks(home, "tiny") == (5,)


def test_processes_that_record_at_once_lose_nothing(home: Home, tmp_path: Path) -> None:
    script = """
import sys
from spark_build.resources.policy import BuildUsage; from spark_build.resources import governor
from spark_build.paths import locate
for peak in range(5):
    governor.record_build(locate(sys.argv[1]), "tiny", BuildUsage(
        peak_mib_per_job=peak, seconds=1))
"""
    running = [processes.start([sys.executable, "-c", script, str(tmp_path)]) for _ in range(4)]
    assert [process.wait(timeout=60) for process in running] == [0] * 4
    assert sorted(peaks(home, "tiny")) == sorted([*range(5)] * 4)
    assert [path.name for path in file_of(home).parent.iterdir()] == ["tiny.json"]


def test_a_row_that_cannot_be_read_is_left_out(home: Home) -> None:
    for peak in (300, 200):
        governor.record_build(home, "tiny", taken(peak))
    content = json.loads(file_of(home).read_text())
    content["builds"][0]["peak_mib_per_job"] = "many"
    file_of(home).write_text(json.dumps(content))
    assert peaks(home, "tiny") == (200,)
