"""What [repair] may say in a recipe."""

from __future__ import annotations

import pytest

from spark_build.errors import RecipeError
from spark_build.recipes.model import Repair
from spark_build.recipes.parse import parse_recipe

HEAD = """\
name = "demo"
distribution = "demo"
summary = "A demonstration"
kind = "{kind}"
[build]
disk_mib = 50
[repair]
"""


def problems(text: str, kind: str = "pep517") -> list[str]:
    with pytest.raises(RecipeError) as caught:
        parse_recipe(HEAD.format(kind=kind) + text, "recipes/demo.toml")
    return [f"{problem.line}: {problem.message}" for problem in caught.value.problems]


def test_every_option() -> None:
    text = 'bundle = true\nexclude = ["libcuda.so.1", "libtorch*.so", "libc10.so"]\n'
    text += 'platform = "manylinux_2_34"\nstrip = true\nclean_rpath = true\n'
    assert parse_recipe(HEAD.format(kind="pep517") + text, "recipes/demo.toml").repair == Repair(
        bundle=True,
        exclude=("libcuda.so.1", "libtorch*.so", "libc10.so"),
        platform="manylinux_2_34",
        strip=True,
        clean_rpath=True,
    )


@pytest.mark.parametrize(
    "platform", ["manylinux2014", "manylinux_2_34_x86_64", "linux_x86_64", "auto", "musllinux_1_2"]
)
def test_a_platform_has_one_spelling(platform: str) -> None:
    assert problems(f'platform = "{platform}"\n') == [
        f"8: repair.platform must be like manylinux_2_34, without the machine, not '{platform}'"
    ]


def test_what_is_excluded_is_a_soname() -> None:
    text = (
        'exclude = [\n"libcuda.so.1",\n"libcuda.so.1",\n"/usr/lib/libx.so",\n"cuda",\n"*",\n"*.so",\n"",\n]\n'
    )
    is_none = "is no soname: write libcuda.so.1 or libtorch*.so, as NEEDED names it"
    assert problems(text) == [
        "10: 'libcuda.so.1' is excluded already",
        f"11: '/usr/lib/libx.so' {is_none}",
        f"12: 'cuda' {is_none}",
        f"13: '*' {is_none}",
        f"14: '*.so' {is_none}",
        f"15: '' {is_none}",
    ]


def test_what_has_no_meaning_in_other_kinds() -> None:
    vendor = "has no meaning in a recipe of kind repack: the vendor's wheel is kept byte for byte"
    text = 'exclude = ["libcuda.so.1"]\nstrip = true\nclean_rpath = false\n'
    assert problems(text, "repack") == [f"9: repair.strip {vendor}", f"10: repair.clean_rpath {vendor}"]
    assert problems('exclude = ["libcuda.so.1"]\n', "cmake") == [
        "8: repair.exclude has no meaning in a recipe of kind cmake: it makes no wheel"
    ]


def test_wrong_types_and_unknown_keys() -> None:
    assert problems('strip = "debug"\nexclude = "libcuda.so.1"\nclean_rpaths = true\n') == [
        "8: repair.strip must be true or false, not 'debug'",
        "9: repair.exclude must be an array, not 'libcuda.so.1'",
        "10: unknown key 'clean_rpaths' in repair: did you mean 'clean_rpath'?",
    ]
