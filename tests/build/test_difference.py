"""What differs between the inputs of two builds."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from spark_build.build.keys import KeyDifference, key_changes, key_differences

LEAVES = st.none() | st.booleans() | st.integers() | st.text(max_size=4)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=20,
)
DOCUMENTS = st.dictionaries(st.text(max_size=3), VALUES, max_size=5)


def leaves(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, place) of a leaf."""
    places = value.items() if isinstance(value, dict) else enumerate(value)
    for place, inner in places:
        if isinstance(inner, dict | list):
            yield from leaves(inner)
        else:
            yield value, place


def test_a_plan_names_what_changed_in_a_few_words() -> None:
    before = {"toolchain": {"c++": "g++ 12.2.0", "nvcc": "13.0"}, "env": {"A": "1"}, "version": "1.0"}
    now = {"toolchain": {"c++": "g++ 13.3.0", "nvcc": "13.0"}, "env": {"A": "1"}, "version": "1.0"}
    assert key_changes(before, now) == ("toolchain.c++ changed: g++ 12.2.0 -> g++ 13.3.0",)
    assert key_changes(before, before) == ()
    more = {**now, "env": {}, "version": "2" * 100}
    assert key_changes(before, more) == (
        "env.A changed: 1 -> none",
        "toolchain.c++ changed: g++ 12.2.0 -> g++ 13.3.0",
        "1 more (`why` lists them)",
    )
    assert len(key_changes({}, {"a": "x" * 100})[0]) < 80
    assert "\x1b" not in key_changes({}, {"a": "\x1b[31mred"})[0]


@given(DOCUMENTS)
def test_equal_documents_do_not_differ(document: dict[str, Any]) -> None:
    assert key_differences(document, copy.deepcopy(document)) == ()


@given(DOCUMENTS, st.data())
def test_one_changed_leaf_is_one_difference(document: dict[str, Any], data: st.DataObject) -> None:
    changed = copy.deepcopy(document)
    places = list(leaves(changed))
    if not places:
        return
    container, place = data.draw(st.sampled_from(places))
    old, container[place] = container[place], "something else"
    (found,) = key_differences(document, changed)
    assert (found.before, found.now) == (old, "something else")


@given(DOCUMENTS, st.text(min_size=4, max_size=5), LEAVES)
def test_a_new_name_is_one_difference(document: dict[str, Any], name: str, value: Any) -> None:
    changed = {**document, name: value}
    assert key_differences(document, changed) == (KeyDifference(name, None, value),)
    assert key_differences(changed, document) == (KeyDifference(name, value, None),)


@given(st.lists(LEAVES, max_size=5), st.data())
def test_one_more_item_is_one_difference(items: list[Any], data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(items)))
    longer = [*items[:place], "the new one", *items[place:]]
    (found,) = key_differences({"requires": items}, {"requires": longer})
    assert (found.path, found.before, found.now) == (f"requires[{place}]", None, "the new one")


def test_paths() -> None:
    before = {
        "recipe": {"env": {"A": "1"}, "kind": "pep517"},
        "patches": ["x", "y"],
        "toolchain": {"c++": "12"},
    }
    now = {"recipe": {"env": {}, "kind": "cmake"}, "patches": ["x", "z"], "toolchain": {"c++": "13"}}
    assert [tuple(one) for one in key_differences(before, now)] == [
        ("patches[1]", "y", "z"),
        ("recipe.env.A", "1", None),
        ("recipe.kind", "pep517", "cmake"),
        ("toolchain.c++", "12", "13"),
    ]


def test_true_is_not_one() -> None:
    assert key_differences({"a": True}, {"a": 1}) == (KeyDifference("a", True, 1),)
