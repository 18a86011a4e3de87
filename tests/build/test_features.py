"""Expected features against configure summaries as projects print them."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_build.build.context import Job
from spark_build.build.diagnosis import FeatureWatch, feature_agrees, kept
from spark_build.build.stages import compilation
from spark_build.errors import Finding
from spark_build.events import Progress
from spark_build.recipes.model import Feature

CUDNN = Feature(name="USE_CUDNN", why="cuDNN not found: off with a warning")
# As PyTorch prints it.
SUMMARY = """\
-- Could NOT find NCCL (missing: NCCL_INCLUDE_DIR NCCL_LIBRARY)
CMake Warning at cmake/public/cuda.cmake:215 (message):
  Cannot find cuDNN library.  Turning the option off
Call Stack (most recent call first):
  cmake/Dependencies.cmake:44 (include)
  CMakeLists.txt:865 (include)


-- USE_CUDNN is set to 0. Compiling without cuDNN support
--
-- ******** Summary ********
--   CMake version         : 3.31.10
--   USE_CUDA              : 1
--     Split CUDA          :
--     USE_CUDNN           : {cudnn}
--     USE_CUSPARSELT      : ON
--   USE_DISTRIBUTED       : ON
--   USE_NCCL              : {nccl}
--     USE_SYSTEM_NCCL     : OFF
--   USE_MKLDNN_ACL        : OFF
""".splitlines()


def summary(cudnn: str = "ON", nccl: str = "ON") -> list[str]:
    return [line.format(cudnn=cudnn, nccl=nccl) for line in SUMMARY]


def names(*wanted: str) -> list[Feature]:
    return [Feature(name=name) for name in wanted]


def dropped_features(features: list[Feature], lines: list[str]) -> tuple[Finding, ...]:
    """Every feature that a complete log reports missing, in order of its lines."""
    watch = FeatureWatch(features)
    return tuple(missing for missing in map(watch.see, lines) if missing is not None)


def said(missing: Finding) -> str:
    """What the summary says of the feature; "" for nothing."""
    found = re.search(r"says (.*?), not ", missing.message)
    assert found is not None
    return found[1].replace("nothing", "")


def test_all_there() -> None:
    assert dropped_features(names("USE_CUDA", "USE_CUDNN", "USE_CUSPARSELT", "USE_NCCL"), summary()) == ()


def test_the_reason_is_what_was_printed_about_it() -> None:
    cudnn, nccl = dropped_features([CUDNN, *names("USE_NCCL")], summary("OFF", "OFF"))
    assert (cudnn.place.subject, said(cudnn)) == (CUDNN.name, "OFF")
    assert cudnn.message.endswith(" (USE_CUDNN is set to 0. Compiling without cuDNN support)")
    assert nccl.message == (
        "the build would lack USE_NCCL: the configure summary says OFF, not ON "
        "(Could NOT find NCCL (missing: NCCL_INCLUDE_DIR NCCL_LIBRARY))"
    )


def test_a_line_of_a_warning_is_a_reason() -> None:
    lines = [line for line in summary("OFF") if "is set to" not in line]
    (missing,) = dropped_features([CUDNN], lines)
    assert missing.message.endswith(" (Cannot find cuDNN library. Turning the option off)")


def test_a_warning_of_several_lines_is_a_reason() -> None:
    watch = FeatureWatch(names("USE_NUMA"))
    block = [
        "CMake Warning at cmake/Dependencies.cmake:905 (message):",
        "  Not compiling with NUMA.  Suppress",
    ]
    for line in [*block, "  this with -DUSE_NUMA=OFF", "", "-- next"]:
        assert watch.see(line) is None
    missing = watch.see("--   USE_NUMA : OFF")
    assert missing is not None
    assert "(Not compiling with NUMA. Suppress this with -DUSE_NUMA=OFF)" in missing.message


def test_without_a_printed_reason_the_recipe_says_why() -> None:
    (missing,) = dropped_features([CUDNN], ["-- USE_CUDNN : OFF"])
    assert "(cuDNN not found: off with a warning)" in str(missing)


def test_a_name_is_not_found_inside_of_another() -> None:
    assert dropped_features(names("NCCL", "USE_SYSTEM"), summary(nccl="OFF")) == ()
    assert (
        dropped_features(
            names("USE_CUDNN"), ["cmake -DUSE_CUDNN=0 ..", "USE_CUDNN_X : OFF", "if USE_CUDNN == 0"]
        )
        == ()
    )


def test_what_is_wanted_off() -> None:
    (missing,) = dropped_features([Feature(name="USE_SYSTEM_NCCL", value="ON")], summary())
    assert said(missing) == "OFF"
    assert dropped_features([Feature(name="USE_SYSTEM_NCCL", value="OFF")], summary()) == ()


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("BUILD_CUDA_SOURCES = True", None),
        ("BUILD_CUDA_SOURCES = False", "False"),
        ("BUILD_CUDA_SOURCES:BOOL=OFF", "OFF"),
        ("--   BUILD_CUDA_SOURCES :", ""),
        ("\x1b[32m-- BUILD_CUDA_SOURCES : OFF\x1b[0m", "OFF"),
        ("-- BUILD_CUDA_SOURCES : /usr/lib/libcudnn.so", None),
        ("-- BUILD_CUDA_SOURCES : CUDNN_LIBRARY-NOTFOUND", "CUDNN_LIBRARY-NOTFOUND"),
        ("-- BUILD_CUDA_SOURCES : ON (static)", None),
    ],
)
def test_ways_to_print_it(line: str, found: str | None) -> None:
    missing = FeatureWatch([Feature(name="BUILD_CUDA_SOURCES", value="True")]).see(line)
    assert (said(missing) if missing else None) == found


def test_a_sentence() -> None:
    features = [Feature(name="Building with CUDA ops")]
    assert dropped_features(features, ["Building with CUDA ops"]) == ()
    assert [said(one) for one in dropped_features(features, ["Building without CUDA ops"])] == ["OFF"]
    assert [said(one) for one in dropped_features(features, ["Building with CUDA ops: no"])] == ["no"]


def test_unseen() -> None:
    watch = FeatureWatch(names("USE_CUDNN", "USE_ROCM"))
    for line in summary():
        assert watch.see(line) is None
    assert [one.name for one in watch.unseen()] == ["USE_ROCM"]


@pytest.mark.parametrize(
    ("wanted", "found", "same"),
    [("ON", "1", True), ("1", "TRUE", True), ("OFF", "0", True), ("OFF", "ON", False), ("Release", "release", True),
     ("Release", "Debug", False), ("OFF", "/usr/lib", False)],
)  # fmt: skip
def test_values(wanted: str, found: str, same: bool) -> None:
    assert feature_agrees(wanted, found) is same


@given(st.lists(st.text()))
def test_any_output_is_survived(lines: list[str]) -> None:
    dropped_features([CUDNN], lines)


@pytest.mark.parametrize(
    "line",
    [
        "USE_X : a" + " " * 500_000 + "b",
        "Build with X" + " " * 500_000 + "b",
        "turning " * 200_000,
    ],
    ids=lambda line: line[:12],
)
def test_a_line_without_end_does_not_hold_us_up(line: str) -> None:
    """Each would take hours where a pattern tries every beginning with every end."""
    assert FeatureWatch(names("USE_X", "Build with X")).see(line) is None


def test_a_kept_log_is_judged_by_the_last_command_that_names_a_feature() -> None:
    features = (Feature(name="USE_A"), Feature(name="USE_B"), Feature(name="USE_C"))
    attempts = [
        "$ cmake",
        "USE_A: OFF",
        "USE_B: ON",
        "$ cmake",
        "USE_A: ON",
        "USE_B: OFF",
        "$ ninja",
        "[1/1]",
    ]
    missing, unseen = kept(features, attempts)
    assert [(one.place.subject, said(one)) for one in missing] == [("USE_B", "OFF")]
    assert [one.name for one in unseen] == ["USE_C"]
    assert kept(features[:1], [*attempts, "USE_A: ON", "USE_A: OFF"])[0], (
        "within one command each line counts"
    )


def test_a_step_with_a_number_without_end_ends_no_build() -> None:
    told: list[object] = []
    recipe = SimpleNamespace(name="tiny")
    job = cast("Job", SimpleNamespace(emit=told.append, step=SimpleNamespace(recipe=recipe)))
    for line in ("[" + "9" * 5000 + "/1] compiling", "[1/" + "9" * 5000 + "] compiling", "[3/4] compiling"):
        compilation._see(job, FeatureWatch(()), compilation._BuildProgress(), line)
    assert told == [Progress(recipe="tiny", stage="build", done=3, total=4)]
