from __future__ import annotations

from itertools import pairwise

from spark_build.recipes.model import Recipe, Train
from spark_build.recipes.parse import parse_recipe, parse_train
from spark_build.recipes.validation import cross_check

RECIPE = """\
name = "{name}"
distribution = "{name}"
summary = ""
kind = "pep517"
build = {{}}
"""

TRAIN = """\
name = "1.0"
summary = ""
default = true

components.demo = { version = "1", sources = [], unestablished = ["its source"] }
components.late = { version = "2", sources = [], unestablished = ["its source"] }
"""


def recipes_of(**needs: str) -> dict[str, Recipe]:
    made = {}
    for name, names in needs.items():
        own = RECIPE.format(name=name) + "".join(f'[[needs]]\nname = "{need}"\n' for need in names.split())
        made[name] = parse_recipe(own, f"recipes/{name}.toml")
    return made


def test_cross_check_is_content_with_what_fits() -> None:
    train = Train(name="1", summary="", components={}, default=True)
    assert cross_check(recipes_of(llvm="", triton="llvm", torch="triton llvm"), {"1": train}, {}) == ()


def test_cross_check_finds_needs_and_pins_without_recipe() -> None:
    train = parse_train(TRAIN, "recipes/trains/1.0.toml")
    texts = {"recipes/trains/1.0.toml": TRAIN, "recipes/triton.toml": '\n[[needs]]\nname = "lvm"\n'}
    found = cross_check(recipes_of(llvm="", demo="", triton="lvm"), {"1.0": train}, texts)
    assert [str(problem) for problem in found] == [
        "recipes/triton.toml:3: no recipe is named 'lvm': did you mean 'llvm'?",
        "recipes/trains/1.0.toml:6: no recipe is named 'late' (known: demo, llvm, triton)",
    ]


def test_cross_check_finds_circles() -> None:
    found = cross_check(recipes_of(a="b", b="c", c="a", d="a"), {}, {})
    assert len(found) == 1
    shown = found[0].message.removeprefix("the needs go round in a circle: ").split(" -> ")
    assert shown[0] == shown[-1]
    assert set(pairwise(shown)) == {("a", "b"), ("b", "c"), ("c", "a")}


def test_cross_check_wants_a_default_train() -> None:
    train = Train(name="1", summary="", components={})
    (found,) = cross_check({}, {"1": train}, {})
    assert str(found) == "recipes/trains/1.toml:1: no train is the default one"
