"""Events survive being written down, and rows of another version do no harm."""

from __future__ import annotations

import json
import typing
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_build import errors
from spark_build.errors import AGAIN, Hint, RecipeError, SparkBuildError, ours, problem, rm
from spark_build.events import (
    KINDS,
    Event,
    Note,
    Progress,
    RecipeFinished,
    RecipeResult,
    StageFinished,
    StageResult,
    decode,
    encode,
)

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
NUMBER = st.floats(allow_nan=False)
st.register_type_strategy(str, TEXT)
st.register_type_strategy(float, NUMBER)
STEPS = st.sampled_from([AGAIN, rm("a b"), ours("all", "x", options=("--train", "t"), elsewhere=True)])
HINTS = st.lists(TEXT | STEPS, min_size=1).map(lambda parts: Hint(*parts))
PROBLEMS = st.lists(st.builds(problem, st.text(), st.text(), st.integers(0)), max_size=2)


@st.composite
def an_error(draw: st.DrawFn) -> SparkBuildError:
    """An error of any kind with everything it can carry."""
    kinds = [
        one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, SparkBuildError)
    ]
    error: SparkBuildError = draw(st.sampled_from(kinds))(
        draw(TEXT), where=draw(st.none() | TEXT), hint=draw(st.none() | TEXT | HINTS)
    )
    error.log = draw(st.none() | TEXT)
    if isinstance(error, RecipeError):
        error.problems = tuple(draw(PROBLEMS))
    return error


st.register_type_strategy(SparkBuildError, an_error())


def comparable(value: Any) -> Any:
    """Equal for equal values; errors are equal by what they say."""
    if isinstance(value, SparkBuildError):
        return type(value), {**vars(value)}
    if hasattr(value, "__dataclass_fields__"):
        return type(value), {name: comparable(getattr(value, name)) for name in value.__dataclass_fields__}
    if isinstance(value, tuple):
        return tuple(comparable(one) for one in value)
    return value


@pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))
def test_every_event_comes_back_as_it_was(kind: type) -> None:
    @given(st.from_type(kind))
    def check(event: Event) -> None:
        back = decode(json.loads(json.dumps({"time": "2026-01-01T00:00:00Z", **encode(event)})))
        assert comparable(back) == comparable(event)

    check()


def test_all_events_are_known() -> None:
    assert set(KINDS.values()) == set(typing.get_args(Event))


def test_what_a_newer_version_added_is_left_out() -> None:
    assert decode({"event": "Weather", "sky": "blue"}) is None
    row = {**encode(Note(message="hello")), "colour": "red"}
    assert decode(row) == Note(message="hello")


def test_what_an_older_version_did_not_write_has_its_default() -> None:
    row = {"event": "Progress", "recipe": "onnx", "stage": "build", "done": 1, "total": 2}
    assert decode(row) == Progress(recipe="onnx", stage="build", done=1, total=2, unit="steps")


def test_an_error_of_a_newer_kind_is_an_error() -> None:
    result = RecipeResult(
        recipe="onnx", version="1", status="failed", seconds=1, error=SparkBuildError("lost")
    )
    row = json.loads(json.dumps(encode(RecipeFinished(result=result))))
    row["result"]["error"]["type"] = "WeatherError"
    event = decode(row)
    assert isinstance(event, RecipeFinished)
    assert type(event.result.error) is SparkBuildError
    assert event.result.error.message == "lost"


def test_a_hint_of_an_older_version_is_a_note() -> None:
    error = {"type": "HostError", "message": "no", "where": None, "hint": "spark-build doctor", "log": None}
    event = decode({**FINISHED, "result": {**FINISHED["result"], "error": error}})
    assert isinstance(event, StageFinished)
    assert event.result.error is not None
    assert event.result.error.hint == Hint("spark-build doctor")


FINISHED = encode(StageFinished(recipe="onnx", result=StageResult(stage="build", status="done", seconds=2)))


@pytest.mark.parametrize(
    "row",
    [
        {},
        {"event": None},
        {"event": "Note"},
        {"event": "Note", "message": 3},
        {"event": "Note", "message": None},
        {"event": "Progress", "recipe": "a", "stage": "b", "done": True, "total": 2},
        {"event": "Progress", "recipe": "a", "stage": "b", "done": "1", "total": 2},
        {"event": "Progress", "recipe": "a", "stage": "b", "done": 1, "total": 2, "unit": "miles"},
        {**FINISHED, "result": "done"},
        {**FINISHED, "result": {**FINISHED["result"], "status": ["done"]}},
        {**FINISHED, "result": {**FINISHED["result"], "error": "broken"}},
    ],
    ids=str,
)
def test_rows_that_do_not_fit_are_no_events(row: dict[str, Any]) -> None:
    assert decode(row) is None
