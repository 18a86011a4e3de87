from __future__ import annotations

import contextlib
import copy
import json
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from spark_build.decoding import decoder
from spark_build.errors import RecipeError
from spark_build.recipes.model import Need, Recipe, Source, Target, Train, Variable
from spark_build.recipes.parse import (
    _adapter,
    parse_lock,
    parse_recipe,
    parse_target,
    parse_train,
    render_lock,
)
from spark_build.wheelhouse.generations import VIEW

HASH = "0123456789abcdef" * 4
COMMIT = "0123456789" * 4

RECIPE = """\
name = "demo"
distribution = "Demo"
summary = "A demonstration"
kind = "pep517"

[build]
requires = ["setuptools==80.9.0", "wheel == 0.45.1"]
core_minutes = 2

[build.env.MAX_JOBS]
value = "{jobs} {need:llvm} {version:torch} {python}"
why = "setup.py"

[[needs]]
name = "llvm"
providers = ["store", "path"]

[[patches]]
file = "demo/0001-fix.patch"
why = "because"
sha256 = "HASH"

[requires]
platforms = ["linux-aarch64"]

[verify]
checks = ["onnx"]
""".replace("HASH", HASH)

TRAIN = f"""\
name = "1.0"
summary = "A train"

[closure]
numpy = "2.3.5"

[components.demo]
version = "1.0"

[[components.demo.sources]]
kind = "sdist"
project = "demo"
filename = "demo-1.0.tar.gz"
sha256 = "{HASH}"

[[components.demo.sources]]
kind = "git"
url = "https://example.org/demo"
tag = "v1.0"
commit = "{COMMIT}"
submodules = true

[components.demo.extra_sources.data]
kind = "archive"
url = "https://example.org/data.tar.gz"
sha256 = "{HASH}"

[components.llvm]
version = "01234567"

[[components.llvm.sources]]
kind = "git"
url = "https://example.org/llvm"
commit = "{COMMIT}"
note = "no tag"

[components.late]
version = "2.0"
sources = []
unestablished = ["the commit"]
"""

TARGET = """\
name = "box"
summary = "A box"
platform = "linux-x86_64"
python = "cp312"
cuda_architectures = ["12.0", "12.1"]
cuda = "13.0"
"""


def problems(parse: Callable[[str, str], object], text: str, file: str) -> list[str]:
    """What is wrong with a text, as `line: message`."""
    with pytest.raises(RecipeError) as caught:
        parse(text, file)
    assert caught.value.exit_code == 3
    assert {problem.place.file for problem in caught.value.problems} == {file}
    return [f"{problem.place.line}: {problem.message}" for problem in caught.value.problems]


def of_recipe(old: str, new: str) -> list[str]:
    assert old in RECIPE
    return problems(parse_recipe, RECIPE.replace(old, new, 1), "recipes/demo.toml")


def of_train(old: str, new: str) -> list[str]:
    assert old in TRAIN
    return problems(parse_train, TRAIN.replace(old, new, 1), "recipes/trains/1.0.toml")


def of_target(old: str, new: str) -> list[str]:
    assert old in TARGET
    return problems(parse_target, TARGET.replace(old, new, 1), "recipes/targets/box.toml")


def test_recipe_becomes_values() -> None:
    recipe = parse_recipe(RECIPE, "recipes/demo.toml")
    assert recipe.needs == (Need(name="llvm", providers=("store", "path")),)
    assert recipe.build.requires == ("setuptools==80.9.0", "wheel == 0.45.1")
    assert recipe.build.core_minutes == 2.0
    assert isinstance(recipe.build.env["MAX_JOBS"], Variable)
    assert recipe.requires.platforms == ("linux-aarch64",)
    assert not recipe.repair.bundle


def test_train_becomes_values() -> None:
    train = parse_train(TRAIN, "recipes/trains/1.0.toml")
    demo = train.components["demo"]
    assert [source.kind for source in demo.sources] == ["sdist", "git"]
    assert demo.sources[1].submodules
    assert isinstance(demo.extra_sources["data"], Source)
    assert train.components["late"].unestablished == ("the commit",)
    assert train.closure == {"numpy": "2.3.5"}


def test_target_becomes_values() -> None:
    target = parse_target(TARGET, "recipes/targets/box.toml")
    assert target.cuda_architectures == ("12.0", "12.1")
    host = 'name = "h"\nsummary = ""\nplatform = "host"\npython = "host"\n'
    assert parse_target(host, "recipes/targets/h.toml").cuda == ""


def test_all_mistakes_of_all_kinds_at_once() -> None:
    """What concerns several values is looked at once the shape is right."""
    text = RECIPE.replace("[[needs]]", "[[need]]").replace('"linux-aarch64"', '"linux-arm"')
    text = text.replace("core_minutes = 2", 'core_minutes = "2"').replace("wheel == ", "wheel>=")
    with pytest.raises(RecipeError, match=r"^recipes/demo.toml has 4 problems$") as caught:
        parse_recipe(text, "recipes/demo.toml")
    assert caught.value.where == "recipes/demo.toml:7"
    assert [str(problem) for problem in caught.value.problems] == [
        "recipes/demo.toml:7: 'wheel>=0.45.1' is no exact pin: write wheel==version",
        "recipes/demo.toml:8: build.core_minutes must be a number, not '2'",
        "recipes/demo.toml:14: unknown key 'need': did you mean 'needs'?",
        "recipes/demo.toml:24: platform must be one of linux-x86_64, linux-aarch64, not 'linux-arm'",
    ]
    shaped = RECIPE.replace('name = "llvm"', 'name = "demo"').replace("wheel == ", "wheel>=")
    assert len(problems(parse_recipe, shaped, "recipes/demo.toml")) == 3


def test_misspelt_key_is_not_also_missing() -> None:
    assert of_recipe("summary", "sumary") == ["3: unknown key 'sumary': did you mean 'summary'?"]


@pytest.mark.parametrize("target", ["", "-c", "A=1", "a b"])
def test_a_target_of_scons_is_a_file_and_no_option(target: str) -> None:
    found = of_recipe('kind = "pep517"\n', f'kind = "scons"\nscons.targets = ["{target}"]\n')
    assert [one for one in found if f"'{target}' is no target of scons" in one], found


def test_key_that_is_near_nothing_lists_the_known_ones() -> None:
    found = of_recipe('why = "setup.py"', 'why = "setup.py"\nzzz = 1')
    assert found == ["13: unknown key 'zzz' in build.env.MAX_JOBS (known: value, when, why)"]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ('summary = "A demonstration"\n', "", "1: missing key 'summary'"),
        ('why = "setup.py"', "", "10: missing key 'why' in build.env.MAX_JOBS"),
        (
            '"pep517"',
            '"pep518"',
            "4: kind must be one of pep517, cmake, scons, repack, assemble, not 'pep518'",
        ),
        ('name = "demo"', 'name = "other"', "1: name is 'other', but the file is named 'demo.toml'"),
        ('"Demo"', "5", "2: distribution must be a string, not the number 5"),
        ('"Demo"', "2024-01-01", "2: distribution must be a string, not the date or time 2024-01-01"),
        ('["onnx"]', '"onnx"', "27: verify.checks must be an array, not 'onnx'"),
        ('["onnx"]', '["../onnx"]', "27: '../onnx' is no name of a check: bench/checks/<name>.py"),
        ("core_minutes = 2", "core_minutes = nan", "8: build.core_minutes must be more than 0"),
        ("core_minutes = 2", "core_minutes = inf", "8: build.core_minutes must be more than 0"),
        ("core_minutes = 2", "disk_mib = 0", "8: build.disk_mib must be more than 0"),
        (
            "core_minutes = 2",
            "disk_mib = 1.5",
            "8: build.disk_mib must be a whole number, not the number 1.5",
        ),
        ("core_minutes = 2", "disk_mib = true", "8: build.disk_mib must be a whole number, not true"),
        ("wheel == 0.45.1", "-r x", "7: '-r x' is no requirement: write name==version"),
        ("wheel == 0.45.1", "wheel==0.*", "7: 'wheel==0.*' is no exact pin: write wheel==version"),
        ("wheel == 0.45.1", "wheel==1; a", "7: 'wheel==1; a' is no requirement: write name==version"),
        ("wheel == 0.45.1", "Setuptools==1", "7: setuptools is pinned twice"),
        (".MAX_JOBS]", '."MAX JOBS"]', "10: 'MAX JOBS' is no name of an environment variable"),
        ('why = "setup.py"', 'why = ""', "12: say why MAX_JOBS is set: name the file that reads it"),
        ('name = "llvm"', 'name = "demo"', "15: demo cannot need itself"),
        (
            'name = "llvm"',
            'name = "L_v"',
            "15: the name 'L_v' must be in lower case, words joined by '-': 'l-v'",
        ),
        ('["store", "path"]', "[]", "16: the need 'llvm' has no provider: store, public or path"),
        (
            '["store", "path"]',
            '["store", "path"]\nversions = "2.4 or so"',
            "17: '2.4 or so' does not say which versions will do: \">=2.4,<3\"",
        ),
        ('"path"]', '"disk"]', "16: needs[0].providers[1] must be one of store, public, path, not 'disk'"),
        ("demo/0001", "../0001", "19: '../0001-fix.patch' must be a path below patches/"),
        (HASH, HASH[1:], "21: sha256 must be 64 hexadecimal digits in lower case"),
    ],
)
def test_wrong_recipe(old: str, new: str, expected: str) -> None:
    assert expected in of_recipe(old, new)


ASSEMBLED = """\
name = "kit"
distribution = "kit"
summary = "a toolkit"
kind = "assemble"
[build]
[prefix]
copy = { "vendor" = "." }
unversioned = ["lib"]
[[prefix.stubs]]
library = "lib/stubs/libcuda.so"
soname = "libcuda.so.1"
header = "include/cuda.h"
functions = "cu"
answer = 34
"""


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ('copy = { "vendor" = "." }\n', "", "kind assemble needs [prefix] copy"),
        ('kind = "assemble"', 'kind = "repack"', "prefix.stubs has no meaning in a recipe of kind repack"),
        (
            'kind = "assemble"',
            'kind = "repack"',
            "prefix.unversioned has no meaning in a recipe of kind repack",
        ),
        ('["lib"]', '["../lib"]', "the folder '../lib' must be a relative path without '..'"),
        ('"lib/stubs/libcuda.so"', '"/libcuda.so"', "the library '/libcuda.so' must be a relative path"),
        ('"libcuda.so.1"', '"cuda"', "'cuda' is no soname: write libcuda.so.1"),
        ('functions = "cu"', 'functions = ""', "say how the names of the functions begin"),
        ("answer = 34", "answer = 65536", "the answer must be from 0 to 65535"),
        (
            "[build]",
            "[build]\n[repair]\nbundle = true",
            "repair.bundle has no meaning in a recipe of kind assemble",
        ),
        (
            "[build]",
            "[build]\nany_target = true",
            "build.any_target has no meaning in a recipe of kind assemble",
        ),
    ],
)
def test_wrong_assembled_prefix(old: str, new: str, expected: str) -> None:
    assert parse_recipe(ASSEMBLED, "recipes/kit.toml").prefix.stubs[0].answer == 34
    with pytest.raises(RecipeError) as caught:
        parse_recipe(ASSEMBLED.replace(old, new), "recipes/kit.toml")
    assert expected in str(caught.value.problems)


def test_a_set_of_wheels_has_each_project_once_for_a_platform() -> None:
    wheel = (
        '{{ kind = "wheel", project = "{0}", filename = "{0}-{1}-py3-none-any.whl", sha256 = "'
        + "0" * 64
        + '" }}'
    )
    train = 'name = "t"\nsummary = "s"\n[components.kit]\nversion = "13.0"\nsources = [{}]\n'
    two = ", ".join([wheel.format("a", "1.0"), wheel.format("b", "2.0")])
    assert len(parse_train(train.format(two), "recipes/trains/t.toml").components["kit"].sources) == 2
    with pytest.raises(RecipeError) as caught:
        parse_train(train.format(f"{two}, {wheel.format('a', '1.1')}"), "recipes/trains/t.toml")
    assert "a is in this set already, for the same platform" in str(caught.value.problems)


def test_unknown_placeholder() -> None:
    (found,) = of_recipe("{jobs}", "{job}")
    assert found.startswith("11: unknown placeholder {job} (known: ")


@pytest.mark.parametrize("placeholder", ["arch_list:torch", "label", "python", "pybind11_cmake_dir"])
def test_a_prefix_for_any_target_takes_nothing_from_the_target(placeholder: str) -> None:
    text = (
        'name = "lib"\ndistribution = "lib"\nsummary = "a library"\nkind = "cmake"\n[build]\nany_target = true\n'
        f'[cmake.define.HOW]\nvalue = "-j{{jobs}} {{{placeholder}}}"\nwhy = "CMakeLists.txt"\n'
    )
    with pytest.raises(RecipeError) as caught:
        parse_recipe(text, "recipes/lib.toml")
    (problem,) = caught.value.problems
    assert f"{{{placeholder}}} differs between targets, and build.any_target is set" in str(problem)
    parse_recipe(text.replace("any_target = true", ""), "recipes/lib.toml")


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ('project = "demo"\n', "", "10: a source of kind sdist needs 'project'"),
        ('filename = "demo-1', 'filename = "demi-1', "13: 'demi-1.0.tar.gz' is no file of the project demo"),
        ('version = "1.0"', 'version = "1.1"', "13: 'demo-1.0.tar.gz' is version 1.0, but the pin says 1.1"),
        ('"demo-1.0.tar.gz"', '"../demo.exe"', "13: '../demo.exe' is no file name of an sdist"),
        (f'"{HASH}"', '"12"', "14: sha256 must be 64 hexadecimal digits in lower case"),
        (f'"{HASH}"', f'"{HASH}"\ntag = "v1"', "15: 'tag' has no meaning in a source of kind sdist"),
        ("https://example.org/demo", "ext::sh", "18: url must start with https://, "),
        (COMMIT, COMMIT[:7], "20: commit must be 40 hexadecimal digits in lower case"),
        (
            f'tag = "v1.0"\ncommit = "{COMMIT}"',
            'note = "n"\ncommit = ""',
            "16: a source of kind git needs 'commit'",
        ),
        (
            'tag = "v1.0"\n',
            "",
            "16: a source of kind git needs 'tag' (or a 'note' that says why there is none)",
        ),
        ("https://example.org/data.tar.gz", "", "23: a source of kind archive needs 'url'"),
        (
            f'"{HASH}"',
            f'"{HASH}"\nmirrors = ["https://m.example.org/demo"]',
            "15: 'mirrors' has no meaning in a source of kind sdist",
        ),
        (
            'data.tar.gz"',
            'data.tar.gz"\nmirrors = ["https://m.example.org/d", "ext::sh"]',
            "26: a mirror must start with https://, ",
        ),
        (
            'data.tar.gz"',
            'data.tar.gz"\nmirrors = ["https://example.org/data.tar.gz"]',
            "26: the mirror 'https://example.org/data.tar.gz' is named already",
        ),
        (
            'data.tar.gz"',
            'data.tar.gz"\nmirrors = "https://m.example.org/d"',
            "26: components.demo.extra_sources.data.mirrors must be an array, not 'https://m.",
        ),
        ('data.tar.gz"', 'data.tar.gz"\nfolder = "A b"', "26: the name 'A b' must be in lower case"),
        (
            'data.tar.gz"',
            'data.tar.gz"\ncopy = { "../x" = "x" }',
            "26: the path in the source '../x' must be a relative path",
        ),
        (
            'data.tar.gz"',
            'data.tar.gz"\ncopy = { x = "/x" }',
            "26: the path in the folder '/x' must be a relative path",
        ),
        ("submodules = true", 'copy = { x = "x" }', "21: 'copy' has a meaning in an extra source only"),
        ("submodules = true", 'folder = "x"', "21: 'folder' has a meaning in an extra source only"),
        ('"01234567"', '"0123456f"', "29: '0123456f' is no version"),
        ('numpy = "2.3.5"', 'numpy = "2.x"', "5: '2.x' is no version"),
        (
            'unestablished = ["the commit"]',
            "",
            "39: late has no source: pin one, or say in unestablished why",
        ),
        (
            'kind = "archive"',
            'kind = "zip"',
            "24: components.demo.extra_sources.data.kind must be one of git, ",
        ),
        ("[components.late]", '[components."La"]', "37: the name 'La' must be in lower case"),
    ],
)
def test_wrong_train(old: str, new: str, expected: str) -> None:
    found = of_train(old, new)
    assert [line for line in found if line.startswith(expected)], found


@pytest.mark.parametrize("commit", ['commit = ""', ""])
def test_a_tag_may_wait_for_its_commit(commit: str) -> None:
    train = parse_train(TRAIN.replace(f'commit = "{COMMIT}"', commit, 1), "recipes/trains/1.0.toml")
    git = train.components["demo"].sources[1]
    assert (git.tag, git.is_pinned) == ("v1.0", False)


@given(st.text(st.sampled_from("aZ09_.+!- /\\%\u00e9\n"), min_size=1, max_size=110))
def test_a_train_or_target_is_named_as_the_server_can_show_it(name: str) -> None:
    said = json.dumps(name)
    shown = len(name) <= 100 and VIEW.fullmatch(f"{name}-{name}-cp314t") is not None
    for parse, text in (
        (parse_train, TRAIN.replace('"1.0"', said, 1)),
        (parse_target, TARGET.replace('"box"', said, 1)),
    ):
        with contextlib.nullcontext() if shown else pytest.raises(RecipeError):
            parse(text, f"{name}.toml")


def test_entries_without_a_name_are_not_one_name_twice() -> None:
    assert of_recipe("wheel == 0.45.1", '", "') == ["7: '' is no requirement: write name==version"]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("linux-x86_64", "linux-x86", "3: platform must be one of linux-x86_64, linux-aarch64, host, not"),
        ("cp312", "3.12", "4: python must be like cp312, or host, not '3.12'"),
        ('"12.1"', '"sm_121"', "5: a CUDA architecture must be like 12.1, not 'sm_121'"),
        ('"13.0"', '"13"', "6: cuda must be like 13.0, not '13'"),
        ('cuda = "13.0"\n', "", "5: cuda_architectures without cuda: give both, or neither"),
        (
            'cuda = "13.0"\n',
            'cuda = "13.0"\ncores = 4\n',
            "7: cores without memory_mib: give both, or neither",
        ),
        ('cuda = "13.0"\n', 'cuda = "13.0"\nmemory_mib = 4\n', "7: memory_mib without cores: give both"),
        ('cuda = "13.0"\n', 'cuda = "13.0"\ncores = -3\n', "7: cores must be at least 1, not -3"),
        ('cuda = "13.0"\n', 'cuda = "13.0"\nmemory_mib = -1\n', "7: memory_mib must be at least 1, not -1"),
    ],
)
def test_wrong_target(old: str, new: str, expected: str) -> None:
    found = of_target(old, new)
    assert [line for line in found if line.startswith(expected)], found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('name = "a"\nkind pep517\n', "2: not valid TOML: Expected '=' after a key in a key/value pair"),
        ('name = "a"\n\nx = [1,\n', "3: not valid TOML: Invalid value"),
        ("a = 1\na = 2\n", "2: not valid TOML: Cannot overwrite a value"),
        ("a = " + "[" * 9999, "1: not valid TOML: nested too deeply"),
    ],
)
def test_broken_toml(text: str, expected: str) -> None:
    assert problems(parse_recipe, text, "recipes/a.toml") == [expected]


@pytest.mark.parametrize(
    "where",
    ['[system]\n{} = ["g++", "{}"]', '[[build.variants]]\nwhen = {{ cuda = true }}\n{} = ["g++", "{}"]'],
)
@pytest.mark.parametrize("manager", ["apt", "dnf"])
@pytest.mark.parametrize(
    "name",
    [
        "-oDPkg::Pre-Invoke::=reboot",
        "--force-yes",
        "g++; reboot",
        "$(reboot)",
        "/tmp/evil.deb",
        "a b",
        "lib*",
        "",
        "g++\\n",
    ],
)
def test_what_is_no_name_of_a_package_never_comes_to_root(where: str, manager: str, name: str) -> None:
    text = f'name = "demo"\ndistribution = "demo"\nsummary = ""\nkind = "pep517"\n{where.format(manager, name)}\n'
    with pytest.raises(RecipeError) as caught:
        parse_recipe(text, "recipes/demo.toml")
    assert f"is no name of a package for {manager}" in str(caught.value.problems[-1])


def test_apt_removes_no_package_by_its_name() -> None:
    text = 'name = "demo"\ndistribution = "demo"\nsummary = ""\nkind = "pep517"\n[system]\napt = ["g++", "libc6-"]\n'
    with pytest.raises(RecipeError) as caught:
        parse_recipe(text, "recipes/demo.toml")
    assert "'libc6-' is no name of a package for apt" in [one.message for one in caught.value.problems]


HEAD = 'name = "demo"\ndistribution = "demo"\nsummary = ""\nkind = "pep517"\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"[build]\ncore_minutes = {'9' * 4000}", "a number that is too large"),
        (f"[build]\ncore_minutes = {'9' * 100_000}", "a number that is too large"),
        (f"[build]\ncore_minutes = {'_'.join('1' * 50_000)}", "a number that is too large"),
        (f"[build]\ncore_minutes = 0x{'f' * 100_000}", "a number that is too large"),
        (f"[build]\ncore_minutes = {1 << 63}", "a number that is too large"),
        (f"[build]\nx = [[{-(1 << 63) - 1}]]", "a number that is too large"),
        (f"{'.'.join('a' * 20_000)} = 1", "a key of more than 32 parts"),
        (f"[{'.'.join('a' * 20_000)}]", "a key of more than 32 parts"),
        ("x = {" + " . ".join(['"a"'] * 800) + " = 1}", "a key of more than 32 parts"),
        ("\n".join(f"{'.'.join('a' * 100)}.b{n} = 1" for n in range(500)), "a key of more than 32 parts"),
        ("".join(f"[a{'.a' * 30}]\n" + "b = " + "{b = " * 60 + "1" + "}" * 60 for _ in range(1)), "nested too deeply"),
        (f"x = {'[' * 100_000}", "nested too deeply"),
        (f"x = {'{a=' * 500}1{'}' * 500}", "nested too deeply"),
        (f'x = "{"a" * 300_000}"', "more than 262,144 characters"),
    ],
)  # fmt: skip
def test_what_nobody_means_is_refused_before_it_costs_time(text: str, said: str) -> None:
    with pytest.raises(RecipeError) as caught:
        parse_recipe(HEAD + text + "\n", "recipes/demo.toml")
    (problem,) = caught.value.problems
    assert problem.message.startswith(f"not valid TOML: {said}")


def test_twenty_thousand_unknown_keys_are_told_by_the_first_few() -> None:
    with pytest.raises(RecipeError) as caught:
        parse_recipe(HEAD + "".join(f"k{n} = 1\n" for n in range(20_000)), "recipes/demo.toml")
    assert 100 < len(caught.value.problems) < 300


RECIPES = Path(__file__).parents[2] / "recipes"
OTHERS: tuple[Any, ...] = ("", "x", "1.0", 3, -1, 2.5, True, [], ["x"], [1], {}, {"x": "y"}, {"x": 1})


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Each table or array with each of its keys."""
    for key, inner in list(value.items() if isinstance(value, dict) else enumerate(value)):
        yield value, key
        if isinstance(inner, dict | list):
            yield from places(inner)


def changed(raw: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The tables with one value replaced or left out, or one key renamed."""
    count = sum(1 for _ in places(raw))
    for place in range(count):
        for other in (*OTHERS, None):
            again = copy.deepcopy(raw)
            inside, key = list(places(again))[place]
            if other is not None:
                inside[key] = other
            elif isinstance(inside, dict):
                inside["unknown"] = inside.pop(key)
            else:
                del inside[key]
            yield again


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (RECIPE, Recipe),
        (TRAIN, Train),
        (TARGET, Target),
        ((RECIPES / "cusparselt.toml").read_text(), Recipe),
    ],
    ids=["recipe", "train", "target", "cusparselt"],
)
def test_what_is_read_without_pydantic_is_what_it_takes(text: str, kind: type) -> None:
    raw = tomllib.loads(text)
    taken = 0
    for one in (raw, *changed(raw)):
        try:
            (wanted,) = _adapter(kind).validate_json(json.dumps([one]))
        except ValidationError:
            with pytest.raises((LookupError, TypeError, ValueError)):
                decoder(kind)(one)
        else:
            assert repr(decoder(kind)(one)) == repr(wanted)
            taken += 1
    assert taken > 1


def test_a_lock_is_the_same_read_as_toml() -> None:
    for path in RECIPES.glob("locks/*.toml"):
        text = path.read_text()
        found = parse_lock(text, path.name)
        assert render_lock(found.wheels) == text, "as `recipes pin` writes it"
        assert parse_lock(f"{text}# edited\n", path.name) == found
