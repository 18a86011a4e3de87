"""A torch extension with CUDA kernels (tests/data/kernels) through `build`, for every GPU and without one.

Torch is the public one for processors, which has no CUDA to link with; nvcc is a real one.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from spark_build.build.stages import environment
from spark_build.measure.model import Arm
from spark_build.probe import cuda_home
from tests.conftest import Root
from tests.helpers import kernels
from tests.helpers.inspection import check
from tests.helpers.publicwheels import public_cuobjdump

HOME = cuda_home(os.environ)
pytestmark = pytest.mark.skipif(not HOME, reason="builds for CUDA want a toolkit")

TARGETS = kernels.cuda_targets()
ALL = sorted({one for architectures in TARGETS.values() for one in architectures}, key=float)


def build(root: Root, torch: Arm, target: str) -> subprocess.CompletedProcess[str]:
    """`build kernels` for a target, against that torch."""
    provide = f"torch={Path(torch.python).parents[1]}"
    with pytest.MonkeyPatch.context() as patch:
        # One for processors will do here: these kernels link with nothing of torch's half for CUDA.
        patch.setattr(environment, "lacks_cuda", lambda _site: False)
        return root.run(
            "--target", target, "--json", "build", "kernels", "--provide", provide, "--no-closure"
        )


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, baseline: Arm) -> Root:
    """A root in which the kernels were built for all GPUs at once."""
    base = tmp_path_factory.mktemp("kernels")
    root = Root(folder=base / "root", links=base / "links")
    kernels.make_root(root.folder, root.links, "2.13.0")
    done = build(root, baseline, "every-here")
    assert done.returncode == 0, done.stdout + done.stderr
    return root


def wheels(root: Root, target: str) -> list[Path]:
    return list(root.folder.glob(f"wheelhouse/views/{target}-t-*/current/*.whl"))


@pytest.fixture(scope="module")
def wheel(built: Root) -> Path:
    (found,) = wheels(built, "every-here")
    return found.resolve()


@pytest.mark.parametrize("name", TARGETS)
def test_what_is_compiled_for_each_target(built: Root, name: str) -> None:
    shown: Any = built.json("--target", f"{name}-here", "recipes", "show", "kernels")
    assert shown["env"]["TORCH_CUDA_ARCH_LIST"]["value"] == ";".join(TARGETS[name])


def test_each_file_has_code_for_each_gpu(wheel: Path) -> None:
    (library,) = check(wheel, public_cuobjdump())["libraries"]
    assert library["sass"] == {f"sm_{one.replace('.', '')}": len(kernels.sources()) for one in ALL}
    assert library["ptx"] == {}


def test_the_patch_and_the_device_code_are_in_the_papers(wheel: Path) -> None:
    papers = json.loads((wheel.parent / "provenance.json").read_text())
    assert "0001-wide.patch" in json.dumps(papers)
    audited = json.loads((wheel.parent / "audit.json").read_text())
    assert [one for one in audited["findings"] if one["rule"].startswith("device")] == []


def test_it_loads_beside_its_torch_and_refuses_a_tensor_that_is_on_no_gpu(
    built: Root, baseline: Arm, tmp_path: Path
) -> None:
    created = built.run("--target", "every-here", "env", "create", str(tmp_path / "env"), "demo-kernels")
    assert created.returncode == 0, created.stderr
    find = "import torch; print(torch.__path__[0].rpartition('/')[0])"
    site = subprocess.check_output([baseline.python, "-c", find], text=True).strip()
    use = "import torch; from demo_kernels import _C; _C.softmax(torch.ones(2, 2), 0)"
    env = {**os.environ, "PYTHONPATH": site, "LD_LIBRARY_PATH": f"{HOME}/lib64"}
    done = subprocess.run(
        [tmp_path / "env/bin/python", "-c", use], env=env, capture_output=True, text=True, check=False
    )
    assert "RuntimeError: a contiguous matrix on a GPU is wanted" in done.stderr


def test_code_for_a_smaller_sister_is_not_published_as_native(built: Root, baseline: Arm) -> None:
    """sm_120 code would run on a GB10; the recipe wants sm_121."""
    recipe = built.folder / "recipes/kernels.toml"
    text = recipe.read_text()
    recipe.write_text(text.replace("{arch_list:cpp_extension}", "12.0"))
    done = build(built, baseline, "gb10-here")
    recipe.write_text(text)
    assert done.returncode == 8, done.stdout + done.stderr
    assert "has no code for sm_121: it has sm_120" in done.stdout + done.stderr
    assert wheels(built, "gb10-here") == []
