import pytest

from spark_build.model.verification import Sample
from spark_build.verify.telemetry import CpuProbe, Sampler, summarise


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


def test_the_processors_can_be_sampled_here() -> None:
    with Sampler([CpuProbe()]) as sampler:
        pass
    assert len(sampler.rows) == 2
    assert {"load", "busy_s", "processors", "free_mib"} <= sampler.rows[0][1].keys()
    assert "clock_mhz" not in CpuProbe(clocks=False).sample()
