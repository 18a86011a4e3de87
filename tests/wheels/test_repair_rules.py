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
    return [f"{problem.place.line}: {problem.message}" for problem in caught.value.problems]


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
    text = 'exclude = ["libcuda.so.1"]\nstrip = true\nclean_rpath = true\n'
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


EXTERNAL = """\
bundle = true
rpath = ["demo/lib/*.so"]
[[repair.external]]
distribution = "cuda-toolkit[cublas]"
folder = "nvidia/cu13/lib"
libraries = ["libcublas*.so.*"]
when = { cuda = true, trains = ["2.13"] }
[[repair.requires]]
requirement = "cuda-toolkit[cublas]=={version:cuda}; platform_system == 'Linux'"
why = "loaded"
[preflight]
package = "demo"
[[preflight.libraries]]
path = "demo/lib/libdemo.so"
links = ["cublas"]
"""


def test_libraries_of_other_distributions() -> None:
    recipe = parse_recipe(HEAD.format(kind="pep517") + EXTERNAL, "recipes/demo.toml")
    assert recipe.repair.outside == ("libcublas*.so.*",)
    assert recipe.preflight.libraries[0].links == ("cublas",)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (
            '"cuda-toolkit[cublas]"\n',
            '"cuda-toolkit==13"\n',
            "17: 'cuda-toolkit==13' is no name of a distribution",
        ),
        ('"nvidia/cu13/lib"', '"../lib"', "the folder below site-packages '../lib' must be a relative path"),
        ('["libcublas*.so.*"]', '["cublas"]', "'cublas' is no soname: write libnccl.so.*"),
        ('["libcublas*.so.*"]', "[]", "say which libraries it brings"),
        ('["demo/lib/*.so"]', '["/demo"]', "the file of the wheel '/demo' must be a relative path"),
        ("{version:cuda}", "{jobs}", "write {version:NAME} or {wheel:PROJECT}"),
        ("=={version:cuda}", "== or so", "is no requirement: write name==version"),
        ('why = "loaded"', 'why = ""', "say why the wheel requires it"),
        ('package = "demo"', 'package = "a-b"', "say with preflight.package what is to be imported"),
        ('["cublas"]', '["lib cublas"]', "'lib cublas' is no name for a linker"),
        ("cuda = true, ", 'platforms = ["linux-vax"], ', "platform must be one of"),
    ],
)
def test_what_is_wrong_with_them(old: str, new: str, words: str) -> None:
    assert old in EXTERNAL
    found = problems(EXTERNAL.replace(old, new))
    assert any(words.removeprefix("17: ") in one for one in found), found


def test_an_rpath_needs_a_folder_to_lead_to() -> None:
    (found,) = problems('rpath = ["demo/*.so"]\n')
    assert "repair.rpath leads to the folders of [[repair.external]], and there is none" in found


@pytest.mark.parametrize("kind", ["cmake", "repack", "assemble"])
def test_only_a_wheel_of_ours_has_a_preflight(kind: str) -> None:
    text = HEAD.format(kind=kind).replace("[repair]\n", "") + '[preflight]\npackage = "demo"\n'
    if kind == "assemble":
        text += '[prefix]\ncopy = { "a" = "b" }\n'
    with pytest.raises(RecipeError) as caught:
        parse_recipe(text, "recipes/demo.toml")
    assert f"[preflight] has no meaning in a recipe of kind {kind}" in caught.value.problems[0].message


def test_scons_says_what_it_takes() -> None:
    text = HEAD.format(kind="scons").replace("[repair]\n", "")
    with pytest.raises(RecipeError) as caught:
        parse_recipe(text, "recipes/demo.toml")
    assert "a recipe of kind scons needs [scons] copy" in caught.value.problems[0].message
    taken = '[scons]\ncopy = { "a/*.h" = "include" }\nexpect = ["include/a.h"]\n'
    assert parse_recipe(text + taken, "recipes/demo.toml").expect == ("include/a.h",)
    with pytest.raises(RecipeError) as caught:
        parse_recipe(HEAD.format(kind="cmake") + taken, "recipes/demo.toml")
    assert "[scons] has no meaning in a recipe of kind cmake" in caught.value.problems[0].message
