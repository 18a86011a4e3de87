"""The shipped patches: listed with their hashes, and flash-attention's on its real sdist (8 MB from the index)."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from packaging.version import Version

from spark_build.files import sha256_of
from spark_build.recipes.evaluation import patches_for
from spark_build.recipes.loader import Catalogue, load
from spark_build.recipes.model import Patch
from spark_build.sources.download import fetch_pinned

ROOT = Path(__file__).resolve().parent.parent.parent
PATCHES = ROOT / "patches"
TRAINS = ("2.9", "2.11", "2.13", "2.15")


@pytest.fixture(scope="module")
def shipped() -> Catalogue:
    return load([ROOT])


@pytest.fixture(scope="module")
def upstream(shipped: Catalogue, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """setup.py as upstream published it; nothing of it runs."""
    folder = tmp_path_factory.mktemp("flash-attn")
    pins = {train.components["flash-attn"].sources for train in shipped.trains.values()}
    assert len(pins) == 1
    archive = fetch_pinned(pins.pop()[0], folder=folder / "sources")
    with tarfile.open(archive) as tar:
        member = next(name for name in tar.getnames() if name.count("/") == 1 and name.endswith("/setup.py"))
        content = tar.extractfile(member)
        assert content is not None
        (folder / "setup.py").write_bytes(content.read())
    return folder / "setup.py"


def tree(upstream: Path, folder: Path) -> Path:
    folder.mkdir()
    shutil.copy(upstream, folder / "setup.py")
    return folder


def git_apply(tree: Path, patch: Patch, *options: str) -> None:
    """Plain git apply; the ceiling, because inside another repository it would skip silently."""
    done = subprocess.run(
        ["git", "apply", "--verbose", *options, str(PATCHES / patch.file)],
        cwd=tree,
        env={**os.environ, "GIT_CEILING_DIRECTORIES": str(tree.parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Skipped patch" not in done.stderr
    # Right line numbers: git apply names a hunk only when it had to look elsewhere.
    if "--check" in options:
        assert "offset" not in done.stderr


def gencode(setup: Path, cuda: str, architectures: str) -> list[str]:
    """The flags that setup.py would give nvcc: its own statements about cc_flag, alone."""
    statements: list[ast.stmt] = [
        node
        for node in ast.walk(ast.parse(setup.read_text()))
        if isinstance(node, ast.If) and "cuda_archs()" in ast.unparse(node.test)
    ]
    assert statements
    names = {
        "cc_flag": [],
        "bare_metal_version": Version(cuda),
        "Version": Version,
        "cuda_archs": lambda: architectures.split(";"),
    }
    exec(compile(ast.Module(body=statements, type_ignores=[]), str(setup), "exec"), names)
    flags = names["cc_flag"]
    assert isinstance(flags, list)
    return flags


def flash_attn_patches(shipped: Catalogue, train: str) -> Sequence[Patch]:
    return patches_for(shipped.recipe("flash-attn"), shipped.train(train))


def test_every_patch_is_listed_with_its_hash(shipped: Catalogue) -> None:
    listed = {
        patch.file: (recipe.name, patch) for recipe in shipped.recipes.values() for patch in recipe.patches
    }
    assert set(listed) == {str(path.relative_to(PATCHES)) for path in PATCHES.glob("*/*.patch")}
    for file, (recipe, patch) in listed.items():
        assert sha256_of(PATCHES / file) == patch.sha256, file
        assert file.split("/")[0] == recipe
        assert set(patch.trains) <= set(shipped.trains), file


def test_every_patch_carries_little_context(shipped: Catalogue) -> None:
    for recipe in shipped.recipes.values():
        for patch in recipe.patches:
            text = (PATCHES / patch.file).read_text()
            hunks = re.split(r"^@@ -\d+,?\d* \+\d+,?\d* @@$", text, flags=re.MULTILINE)[1:]
            assert hunks, patch.file
            for hunk in hunks:
                lines = hunk.split("diff --git", 1)[0].splitlines()[1:]
                runs = re.findall(" +", "".join(line[:1] or " " for line in lines))
                assert all(len(run) <= 2 for run in runs), (patch.file, hunk)


def test_attention_is_patched_wherever_12_1_needs_it(shipped: Catalogue) -> None:
    """torch before 2.12.1; each kernel file and both dispatchers."""
    names = {
        train: [patch.file for patch in patches_for(shipped.recipe("torch"), shipped.train(train))]
        for train in TRAINS
    }
    fix = "torch/0001-attention-sm121.patch"
    assert [train for train in TRAINS if fix in names[train]] == ["2.9", "2.11"]
    text = (PATCHES / fix).read_text()
    assert text.count("\n+#if __CUDA_ARCH__ <= 1210\n") == text.count("\n-#if __CUDA_ARCH__ <= 1200\n") == 55
    assert len(re.findall(r"^\+.*80 <= cc && cc <= 121\)", text, re.MULTILINE)) == 6
    assert len(re.findall(r"^\+\+\+ b/.*\.cu$", text, re.MULTILINE)) == 29


@pytest.mark.parametrize("train", TRAINS)
def test_flash_attn_patches_apply_and_go_back(
    shipped: Catalogue, upstream: Path, tmp_path: Path, train: str
) -> None:
    patches = flash_attn_patches(shipped, train)
    assert patches
    patched = tree(upstream, tmp_path / "tree")
    for patch in patches:
        git_apply(tree(upstream, tmp_path / Path(patch.file).stem), patch, "--check")
        git_apply(patched, patch)
    assert (patched / "setup.py").read_bytes() != upstream.read_bytes()
    subprocess.run([sys.executable, "-m", "py_compile", patched / "setup.py"], check=True)
    for patch in reversed(patches):
        git_apply(patched, patch, "--reverse")
    assert (patched / "setup.py").read_bytes() == upstream.read_bytes()


def test_flash_attn_gets_code_for_sm_121(shipped: Catalogue, upstream: Path, tmp_path: Path) -> None:
    patched = tree(upstream, tmp_path / "tree")
    for patch in flash_attn_patches(shipped, "2.13"):
        git_apply(patched, patch)
    setup = patched / "setup.py"
    native = ["-gencode", "arch=compute_121,code=sm_121"]
    assert gencode(upstream, "13.0", "121") == []
    assert gencode(setup, "13.0", "121") == native
    assert gencode(setup, "12.9", "120;121") == ["-gencode", "arch=compute_120,code=sm_120", *native]
    assert gencode(setup, "12.8", "121") == []  # nvcc 12.8 does not know it
    default = "80;90;100;120"
    assert gencode(setup, "13.0", default) == gencode(upstream, "13.0", default)


@pytest.mark.parametrize("train", TRAINS)
def test_flash_attn_language_is_that_of_the_trains_torch(
    shipped: Catalogue, upstream: Path, tmp_path: Path, train: str
) -> None:
    patched = tree(upstream, tmp_path / "tree")
    for patch in flash_attn_patches(shipped, train):
        git_apply(patched, patch)
    text = (patched / "setup.py").read_text()
    cuda = text[: text.index("if not SKIP_CUDA_BUILD and IS_ROCM")]
    wanted = (
        "-std=c++20"
        if Version(shipped.train(train).components["torch"].version) >= Version("2.14")
        else "-std=c++17"
    )
    assert re.findall(r"-std=c\+\+\d\d", cuda) == [wanted, wanted]
