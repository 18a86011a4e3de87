from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_build.wheels.audit import as_vendor
from spark_build.wheels.model import Code, DeviceCode
from spark_build.wheels.rules_device import FITS, DeviceDemand, best, device_findings, fit, listed, order
from tests.helpers.devicefacts import SPARK, code, holding, said, wheel
from tests.helpers.wheels import blocks


# What NVIDIA's tables say of the architectures that nvcc 13.0 offers.
@pytest.mark.parametrize(
    ("target", "capability", "how"),
    [
        ("sm_121", "12.1", "native"),
        ("sm_121a", "12.1", "native"),
        ("sm_121f", "12.1", "native"),
        ("sm_120f", "12.1", "family"),
        ("sm_120", "12.1", "older"),
        ("sm_120a", "12.1", "none"),
        ("sm_121a", "12.0", "none"),
        ("sm_121", "12.0", "none"),
        ("sm_121f", "12.0", "none"),
        ("sm_110", "12.1", "none"),
        ("sm_100f", "10.3", "family"),
        ("sm_100f", "11.0", "none"),
        ("sm_100a", "10.3", "none"),
        ("sm_90a", "9.0", "native"),
        ("sm_90a", "12.1", "none"),
        ("sm_80", "8.9", "older"),
        ("sm_80", "9.0", "none"),
        ("compute_75", "12.1", "jit"),
        ("compute_121", "12.1", "jit"),
        ("compute_121", "12.0", "none"),
        ("compute_90a", "10.0", "none"),
        ("compute_121a", "12.1", "jit"),
        ("compute_120f", "12.1", "jit"),
        ("compute_100f", "12.1", "none"),
        ("lto_121", "12.1", "none"),
        ("kind16_121", "12.1", "none"),
        ("sm_1", "12.1", "none"),
    ],
)
def test_what_runs_where(target: str, capability: str, how: str) -> None:
    assert fit(target, capability) == how


MAJORS, MINORS = st.integers(5, 30), st.integers(0, 9)
VARIANTS = st.sampled_from(["", "a", "f"])
TARGETS = st.builds(
    lambda kind, major, minor, variant: f"{kind}_{major}{minor}{variant}",
    st.sampled_from(["sm", "compute"]),
    MAJORS,
    MINORS,
    VARIANTS,
)


@given(MAJORS, MINORS, MINORS)
def test_what_runs_goes_on_running_on_higher_minors(major: int, minor: int, more: int) -> None:
    low, high = f"{major}.{minor}", f"{major}.{min(9, minor + more)}"
    for prefix in ("sm", "compute"):
        for variant in ("", "f"):
            target = f"{prefix}_{major}{minor}{variant}"
            assert fit(target, low) != "none"
            assert fit(target, high) != "none"
            assert fit(target, f"{major + 1}.0") == ("jit" if target == f"compute_{major}{minor}" else "none")


@given(TARGETS, MAJORS, MINORS)
def test_the_rules_of_compatibility(target: str, major: int, minor: int) -> None:
    """Said once more in other words: by number, then by variant."""
    number = int(re.sub(r"\D", "", target))
    wanted = major * 10 + minor
    how = fit(target, f"{major}.{minor}")
    if target.endswith("a"):
        allowed = number == wanted
    elif target.startswith("sm") or target.endswith("f"):
        allowed = number // 10 == major and number <= wanted
    else:
        allowed = number <= wanted
    assert (how != "none") == allowed
    assert (how == "jit") == (allowed and target.startswith("compute"))
    assert (how == "native") == (allowed and target.startswith("sm") and number == wanted)


@given(st.lists(TARGETS, max_size=6), MAJORS, MINORS)
def test_the_best_decides(targets: list[str], major: int, minor: int) -> None:
    capability = f"{major}.{minor}"
    found = best(targets, capability)
    assert all(FITS.index(found) <= FITS.index(fit(one, capability)) for one in targets)
    assert found == "none" or found in {fit(one, capability) for one in targets}
    wanted = DeviceDemand(capabilities=(capability,), needed=True, elsewhere=False)
    rules = {one.rule for one in device_findings(wheel(holding(*targets)), wanted)}
    assert ("device-code" in rules) == (found == "none")
    assert blocks(device_findings(wheel(holding(*targets)), wanted)) == (found == "none")


@given(st.text(max_size=20), st.sampled_from(["12.1", "9.0"]))
def test_any_name_is_answered(name: str, capability: str) -> None:
    assert fit(name, capability) in FITS
    assert listed([name])


def test_the_order_of_architectures() -> None:
    mixed = ["lto_90a", "compute_80", "sm_120f", "sm_90", "sm_120", "kind16_1", "sm_120a"]
    assert sorted(mixed, key=order) == [
        "sm_90", "sm_120", "sm_120a", "sm_120f", "compute_80", "lto_90a", "kind16_1",
    ]  # fmt: skip


def test_native_code_is_silent() -> None:
    assert said(wheel(holding("sm_90", "sm_121", "compute_80"))) == []
    assert said(wheel(holding("sm_121a"))) == []


def test_nothing_for_the_target_is_an_error() -> None:
    (one, library) = device_findings(wheel(holding("sm_90a", "sm_120a")), SPARK)
    assert (one.severity, one.rule) == ("error", "device-code")
    assert one.message.startswith("nothing in it runs on sm_121: it has sm_90a, sm_120a; build for 12.1")
    assert (library.severity, library.rule) == ("warning", "device-library")


@pytest.mark.parametrize(
    ("codes", "message"),
    [
        ([], "no device code in any file"),
        (
            [code(relocatable=Code(containers=1, sass={"sm_121": 1}))],
            "device code only for a linker (sm_121)",
        ),
        (
            [code(elsewhere=Code(containers=1, sass={"sm_121": 1}))],
            "device code only where the CUDA runtime does not see it (sm_121)",
        ),
    ],
)
def test_a_cuda_wheel_without_device_code(codes: list[DeviceCode], message: str) -> None:
    (one,) = device_findings(wheel(*codes), SPARK)
    assert (one.severity, one.rule) == ("error", "device-code")
    assert one.message.startswith(f"{message}, and it is to run on sm_121: was it built without CUDA?")


def test_an_older_minor_runs_not_native() -> None:
    (one,) = device_findings(wheel(holding("sm_90", "sm_120")), SPARK)
    assert (one.severity, one.rule) == ("warning", "device-native")
    assert "runs, not native: for sm_121 it has sm_120; build for 12.1" in one.message


def test_family_code_is_told() -> None:
    (one,) = device_findings(wheel(holding("sm_120f", "sm_120")), SPARK)
    assert (one.severity, one.rule) == ("info", "device-native")
    assert "it has sm_120f" in one.message


def test_only_ptx_and_what_it_costs() -> None:
    (one,) = device_findings(wheel(holding("sm_90", "compute_90")), SPARK)
    assert (one.severity, one.rule) == ("warning", "device-jit")
    for word in ("only PTX for sm_121 (compute_90)", "compiles each kernel when it is first used", "cache"):
        assert word in one.message


def test_one_library_of_two_lacks_code() -> None:
    found = said(wheel(holding("sm_121"), holding("sm_90a", path="demo/_hopper.so")))
    assert found == [("warning", "device-library")]


def test_every_gpu_of_the_target_counts() -> None:
    wanted = replace(SPARK, capabilities=("9.0", "12.1"))
    found = device_findings(wheel(holding("sm_121")), wanted)
    assert [one.rule for one in found] == ["device-code", "device-library"]
    assert "runs on sm_90" in found[0].message


def test_without_a_need_nothing_is_missed() -> None:
    assert said(wheel(), replace(SPARK, needed=False)) == []
    assert said(wheel(holding("sm_90")), DeviceDemand()) == []


def test_code_elsewhere_counts_for_vendors() -> None:
    hidden = code(elsewhere=Code(containers=1, sass={"sm_121": 3}))
    assert said(wheel(hidden), replace(SPARK, elsewhere=True)) == []
    assert said(wheel(hidden)) == [("error", "device-code")]


def test_a_vendors_wheel_is_told_but_not_refused() -> None:
    found = as_vendor(device_findings(wheel(holding("sm_90")), replace(SPARK, elsewhere=True)))
    assert [(one.severity, one.rule) for one in found] == [
        ("warning", "device-code"),
        ("warning", "device-library"),
    ]
    assert not blocks(found)


def test_damage_is_an_error_once() -> None:
    damaged = replace(holding("sm_121"), problems=("at byte 3: a\nb", "at byte 9: c"))
    (one,) = device_findings(wheel(damaged), DeviceDemand())
    assert (one.severity, one.rule) == ("error", "device-damage")
    assert "at byte 3: a\\nb (and 1 more)" in one.message
    # An ELF file that cannot be read has a finding of its own already.
    assert said(wheel(damaged, machine="unreadable"), DeviceDemand()) == []
