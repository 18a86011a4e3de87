from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from spark_build.errors import RecipeError, UsageError
from spark_build.recipes.evaluation import for_target
from spark_build.recipes.loader import Catalogue, load
from spark_build.recipes.model import Source
from spark_build.recipes.parse import lock_file
from tests.helpers.commands import hint_text

ROOT = Path(__file__).resolve().parent.parent.parent
STACK = {
    "acl",
    "cuda",
    "cusparselt",
    "llvm",
    "triton",
    "torch",
    "torchvision",
    "torchaudio",
    "flash-attn",
    "onnx",
}
TARGET = 'name = "box"\nsummary = "A box"\nplatform = "host"\npython = "host"\n'


@pytest.fixture(scope="module")
def shipped() -> Catalogue:
    return load([ROOT])


def write(base: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = base / "recipes" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return base


def test_shipped_files_load(shipped: Catalogue) -> None:
    assert {name for name, recipe in shipped.recipes.items() if not recipe.in_catalogue} == STACK
    assert set(shipped.trains) == {"2.9", "2.11", "2.13", "2.15"}
    assert set(shipped.targets) == {"gb10", "thor", "rtx50", "h200", "host-cpu"}
    assert shipped.train().name == "2.13"
    assert shipped.train("2.9").name == "2.9"


def test_every_train_pins_every_recipe(shipped: Catalogue) -> None:
    for train in shipped.trains.values():
        assert set(train.components) == set(shipped.recipes), train.name


def test_the_catalogue_is_pinned_locked_and_checked(shipped: Catalogue) -> None:
    """Such a recipe brings its own pin, takes a public torch where the store has none, and has a check."""
    catalogue = [recipe for recipe in shipped.recipes.values() if recipe.in_catalogue]
    assert {
        "torch-scatter",
        "torch-sparse",
        "torch-cluster",
        "causal-conv1d",
        "mamba-ssm",
        "deepspeed",
        "gsplat",
        "transformer-engine-torch",
        "xformers",
    } <= {recipe.name for recipe in catalogue}
    for recipe in catalogue:
        assert recipe.pin is not None, recipe.name
        assert all(source.is_pinned for source in recipe.pin.sources), recipe.name
        (torch,) = [need for need in recipe.needs if need.name == "torch"]
        assert torch.providers[:2] == ("public", "store"), recipe.name
        assert (ROOT / lock_file(recipe.name)).is_file(), recipe.name
        assert recipe.verify.checks, recipe.name
        assert all((ROOT / f"bench/checks/{name}.py").is_file() for name in recipe.verify.checks), recipe.name
        # The public torch with its libraries takes 3.8 GB in the build environment.
        assert recipe.build.disk_mib >= 8192, recipe.name
        # torch/utils/cpp_extension.py reads MAX_JOBS for ninja only.
        has_ninja = any(pin.startswith("ninja==") for pin in recipe.build.requires)
        assert has_ninja == ("MAX_JOBS" in recipe.build.env), recipe.name


def test_transformer_engine_is_of_one_version(shipped: Catalogue) -> None:
    name, train = "transformer-engine-torch", shipped.train()
    newer = replace(
        train, components={**train.components, name: replace(train.components[name], version="9.9")}
    )
    recipe = for_target(shipped.recipes[name], shipped.targets["gb10"], newer)
    assert "transformer-engine==9.9" in [one.requirement for one in recipe.repair.requires]


def test_only_onnx_and_a_library_for_arm_need_no_cuda(shipped: Catalogue) -> None:
    found = [recipe.name for recipe in shipped.recipes.values() if not recipe.requires.cuda]
    assert found == ["acl", "onnx"]
    assert not shipped.recipes["acl"].default


def test_same_pin_same_source(shipped: Catalogue) -> None:
    """A version that several trains have comes from the same bytes in each."""
    seen: dict[tuple[str, str], tuple[Source, ...]] = {}
    for train in shipped.trains.values():
        for name, pin in train.components.items():
            assert seen.setdefault((name, pin.version), pin.sources) == pin.sources


def test_shared_build_requirements_agree(shipped: Catalogue) -> None:
    """numpy, protobuf: what is built against must not be newer than what the train installs."""
    for train in shipped.trains.values():
        for recipe in shipped.recipes.values():
            pins = dict(text.split("==") for text in recipe.build.requires)
            # Nothing is compiled against setuptools, and the recipes have two versions of it.
            for name in (train.closure.keys() & pins.keys()) - {"setuptools"}:
                assert pins[name] == train.closure[name], (recipe.name, train.name)


def test_all_problems_of_all_files_at_once(tmp_path: Path) -> None:
    onnx = (ROOT / "recipes" / "onnx.toml").read_text()
    files = {
        "onnx.toml": onnx.replace("[repair]", "[repare]").replace('name = "onnx"', 'name = "onx"', 1),
        "bad.toml": "name = \n",
        "latin.toml": "",
        "trains/1.toml": 'name = "1"\nsummary = 3\n',
        "targets/box.toml": TARGET + 'cuda = "13.0"\n',
    }
    write(tmp_path, files)
    (tmp_path / "recipes" / "latin.toml").write_bytes(b'name = "\xe9"\n')
    with pytest.raises(RecipeError, match=r"^5 files have 7 problems$") as caught:
        load([tmp_path, ROOT])
    line = onnx.splitlines().index("[repair]") + 1
    both = "give both, or neither for a machine without CUDA"
    assert [str(problem) for problem in caught.value.problems] == [
        "recipes/bad.toml:1: not valid TOML: Invalid value",
        "recipes/latin.toml: cannot be read: not UTF-8 text",
        "recipes/onnx.toml:1: name is 'onx', but the file is named 'onnx.toml'",
        f"recipes/onnx.toml:{line}: unknown key 'repare': did you mean 'repair'?",
        "recipes/trains/1.toml:1: missing key 'components'",
        "recipes/trains/1.toml:2: summary must be a string, not the number 3",
        f"recipes/targets/box.toml:5: cuda without cuda_architectures: {both}",
    ]


def test_first_folder_wins(tmp_path: Path) -> None:
    gb10 = TARGET.replace('"box"', '"gb10"').replace("A box", "Mine")
    write(tmp_path, {"targets/gb10.toml": gb10, "targets/box.toml": TARGET})
    both = load([tmp_path, ROOT])
    assert both.target("gb10").summary == "Mine"
    assert both.target("box").summary == "A box"
    assert set(both.recipes) == set(load([ROOT]).recipes)
    assert load([ROOT, tmp_path]).target("gb10").summary != "Mine"


def test_own_default_train_comes_first(tmp_path: Path) -> None:
    mine = 'name = "mine"\nsummary = ""\ndefault = true\n[components]\n'
    write(tmp_path, {"trains/mine.toml": mine})
    assert load([tmp_path, ROOT]).train().name == "mine"


def test_two_defaults_in_one_folder(tmp_path: Path) -> None:
    train = 'name = "a"\nsummary = ""\ndefault = true\n[components]\n'
    write(tmp_path, {"trains/a.toml": train, "trains/b.toml": train.replace('"a"', '"b"')})
    with pytest.raises(RecipeError) as caught:
        load([tmp_path])
    assert [str(problem) for problem in caught.value.problems] == [
        "recipes/trains/b.toml:3: train a is the default already"
    ]


def test_problems_between_files(tmp_path: Path) -> None:
    triton = (ROOT / "recipes" / "triton.toml").read_text()
    text = triton.replace('name = "llvm"', 'name = "llmv"').replace("{need:llvm}", "{need:llmv}")
    write(tmp_path, {"triton.toml": text})
    with pytest.raises(RecipeError) as caught:
        load([tmp_path, ROOT])
    line = text.splitlines().index('name = "llmv"') + 1
    assert [str(problem) for problem in caught.value.problems] == [
        f"recipes/triton.toml:{line}: no recipe is named 'llmv': did you mean 'llvm'?"
    ]


def test_no_recipes_at_all(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="no recipes found in") as caught:
        load([tmp_path])
    assert caught.value.hint


def test_unknown_names_suggest_near_ones(shipped: Catalogue) -> None:
    with pytest.raises(UsageError) as caught:
        shipped.recipe("onx")
    assert caught.value.exit_code == 2
    assert caught.value.message == "no recipe is named 'onx': did you mean 'onnx'?"
    assert caught.value.hint
    assert hint_text(caught.value.hint).startswith("recipes: acl, ")
    assert ", cuda, cusparselt, " in hint_text(caught.value.hint)
    with pytest.raises(UsageError, match=r"no train is named '9\.9'"):
        shipped.train("9.9")
    with pytest.raises(UsageError, match="no target is named 'GB10': did you mean 'gb10'"):
        shipped.target("GB10")
