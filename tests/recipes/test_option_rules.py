"""What a recipe may say of options and conditions."""

from __future__ import annotations

import pytest

from spark_build.errors import RecipeError
from spark_build.recipes.parse import parse_recipe

SOUND = """\
name = "demo"
distribution = "demo"
summary = "A demonstration"
kind = "pep517"
[options.blas]
value = "OpenBLAS"
choices = ["OpenBLAS", "MKL"]
why = "CMakeLists.txt"
[build]
compile_flags = ["-DB={option:blas}"]
[build.env.BLAS]
value = "{option:blas}"
why = "CMakeLists.txt"
when = { options = { blas = "MKL" } }
[[build.variants]]
when = { options = { blas = "OpenBLAS" } }
memory_per_job_mib = 100
[[needs]]
name = "torch"
when = { cuda = true }
[requires]
cuda = true
cpu = true
"""


def test_a_sound_one() -> None:
    recipe = parse_recipe(SOUND, "recipes/demo.toml")
    assert recipe.options["blas"].choices == ("OpenBLAS", "MKL")
    assert recipe.build.env["BLAS"].when.options == {"blas": "MKL"}
    assert recipe.requires.cpu


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ('value = "OpenBLAS"', 'value = "BLIS"', "6: 'BLIS' is no choice of the option blas (OpenBLAS, MKL)"),
        (
            "[options.blas]",
            '[options.Big]\nvalue = ""\nwhy = "w"\n[options.blas]',
            "5: the name of the option 'Big' must be in lower case: letters, digits and '_'",
        ),
        (
            "[options.blas]",
            '[options.big]\nvalue = ""\nwhy = ""\n[options.blas]',
            "7: say what the option big decides",
        ),
        ('"{option:blas}"', '"{option:bla}"', "12: {option:bla}: this recipe has no option 'bla' (options: blas)"),
        ("-DB={option:blas}", "-j{jobs}", "10: {jobs}: compile_flags take only {option:NAME}"),
        ('blas = "MKL" }', 'bla = "MKL" }', "14: this recipe has no option 'bla' (options: blas)"),
        ('blas = "MKL" }', 'blas = "mkl" }', "14: the option blas is never 'mkl' (choices: OpenBLAS, MKL)"),
        ('{ options = { blas = "OpenBLAS" } }', "{ options = {} }", "15: a variant without a condition: "),
        ("_mib = 100", "_mib = 0", "17: build.memory_per_job_mib must be more than 0"),
        ("{ cuda = true }\n", '{ platforms = ["sparc"] }\n', "20: platform must be one of "),
        ("cuda = true\ncpu", "cuda = false\ncpu", "23: requires.cpu has a meaning only with requires.cuda = true"),
    ],
)  # fmt: skip
def test_each_mistake_has_its_line(old: str, new: str, expected: str) -> None:
    assert old in SOUND
    with pytest.raises(RecipeError) as caught:
        parse_recipe(SOUND.replace(old, new, 1), "recipes/demo.toml")
    said = [f"{problem.place.line}: {problem.message}" for problem in caught.value.problems]
    assert len(said) == 1, said
    assert said[0].startswith(expected)


def test_a_cmake_definition_takes_no_condition() -> None:
    text = (
        SOUND.replace('"pep517"', '"cmake"')
        + '[cmake.define.A]\nvalue = "1"\nwhy = "a.cmake"\nwhen = { cuda = true }\n'
    )
    with pytest.raises(RecipeError) as caught:
        parse_recipe(text, "recipes/demo.toml")
    assert [one.message for one in caught.value.problems] == ["a CMake definition takes no condition"]
