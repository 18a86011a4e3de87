from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_build.errors import RecipeError
from spark_build.recipes.evaluation import fill_placeholders

WHERE = "recipes/demo.toml: build.env.X"
NAMES = st.from_regex(r"[A-Za-z0-9_:.-]+", fullmatch=True)


def test_values_are_put_in() -> None:
    values = {"jobs": "4", "need:llvm": "/opt/llvm", "arch_list": "9.0;12.1"}
    text = "-j{jobs} -DL={need:llvm}/lib;{arch_list} {jobs}{jobs}"
    assert fill_placeholders(text, values, where=WHERE) == "-j4 -DL=/opt/llvm/lib;9.0;12.1 44"


@pytest.mark.parametrize("text", ["", "plain", "{}", "{ jobs }", "}{", "{a b}", "$<1:x>", "\\{"])
def test_what_is_no_placeholder_stays(text: str) -> None:
    assert fill_placeholders(text, {"jobs": "4"}, where=WHERE) == text


def test_an_unknown_one_names_the_known() -> None:
    with pytest.raises(RecipeError) as caught:
        fill_placeholders("{jobs} {job}", {"jobs": "4", "arch_list": ""}, where=WHERE)
    assert caught.value.message == "{job} is no placeholder; there are arch_list, jobs"
    assert caught.value.where == WHERE
    assert caught.value.exit_code == 3


def test_a_function_is_called_only_when_wanted() -> None:
    calls: list[str] = []

    def costly() -> str:
        calls.append("called")
        return "value"

    assert fill_placeholders("{cheap}", {"cheap": "1", "costly": costly}, where=WHERE) == "1"
    assert calls == []
    assert fill_placeholders("{costly}", {"cheap": "1", "costly": costly}, where=WHERE) == "value"
    assert calls == ["called"]


def test_an_empty_value_is_a_value() -> None:
    assert fill_placeholders("[{arch_list}]", {"arch_list": ""}, where=WHERE) == "[]"


@given(NAMES, st.text())
def test_values_are_taken_as_they_are(name: str, value: str) -> None:
    """Neither braces nor backslashes in a value mean anything."""
    assert fill_placeholders(f"<{{{name}}}>", {"x": "y", name: value}, where=WHERE) == f"<{value}>"
