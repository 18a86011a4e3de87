"""`recipes lint`, `show` and `schema` as a user meets them; twelve broken sets of files."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import CLI
from tests.helpers.broken import BROKEN, TRAIN
from tests.helpers.commands import invoke

ROOT = Path(__file__).resolve().parent.parent.parent


def run(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return invoke([*CLI, "--root", str(root), *arguments])


def document(root: Path, *arguments: str) -> Any:
    done = run(root, "--json", *arguments)
    assert done.returncode in (0, 3), done.stderr
    return json.loads(done.stdout)


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / "recipes" / f"{name}.toml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize("case", BROKEN)
def test_broken_files_are_told_all_at_once(case: str, tmp_path: Path) -> None:
    files, expected = BROKEN[case]
    done = run(write(tmp_path, files), "recipes", "lint", "-q")
    assert done.stdout.splitlines() == expected
    assert done.returncode == 3
    assert done.stderr == ""


def test_there_are_twelve() -> None:
    assert len(BROKEN) >= 12


def test_shipped_files_are_sound(tmp_path: Path) -> None:
    done = run(tmp_path, "recipes", "lint")
    assert done.returncode == 0, done.stdout
    assert all(": warning: " in line for line in done.stdout.splitlines())
    assert done.stderr.startswith("0 errors, ")


def test_lint_of_some_recipes(tmp_path: Path) -> None:
    files = {**BROKEN["the seed's extensions"][0], **BROKEN["targets"][0]}
    done = run(write(tmp_path, files), "recipes", "lint", "-q", "torchvision")
    assert done.returncode == 3
    assert {line.partition(":")[0] for line in done.stdout.splitlines()} == {"recipes/torchvision.toml"}
    assert run(tmp_path, "recipes", "lint", "onnx").returncode == 0
    unknown = run(tmp_path, "recipes", "lint", "onx")
    assert unknown.returncode == 2
    assert "no recipe is named 'onx': did you mean 'onnx'?" in unknown.stderr


def test_lint_as_json(tmp_path: Path) -> None:
    found = document(write(tmp_path, BROKEN["the seed's torch"][0]), "recipes", "lint")["findings"]
    keys = {"severity", "file", "line", "message", "hint", "recipe"}
    assert all(set(one) == keys for one in found)
    assert {one["severity"] for one in found} == {"error", "warning"}
    (cublas,) = [one for one in found if "CUBLAS" in one["message"]]
    assert (cublas["file"], cublas["line"], cublas["recipe"]) == ("recipes/torch.toml", 6, "torch")


def test_the_same_problems_stop_a_plan(tmp_path: Path) -> None:
    files, expected = BROKEN["loose pins"]
    done = run(write(tmp_path, files), "plan", "--target", "gb10")
    assert done.returncode == 3
    assert [line.strip() for line in done.stderr.splitlines()[1:]] == expected


def test_show_has_a_reason_beside_every_variable(tmp_path: Path) -> None:
    for recipe in ("torch", "torchvision", "torchaudio", "flash-attn", "triton", "onnx"):
        shown = document(tmp_path, "recipes", "show", recipe, "--target", "gb10", "--train", "2.13")
        assert shown["env"]
        assert all(one["why"] for one in shown["env"].values()), recipe
        assert shown["notes"] or recipe == "torchvision"


def test_show_evaluates_target_and_train(tmp_path: Path) -> None:
    gb10 = document(tmp_path, "recipes", "show", "torch", "--target", "gb10", "--train", "2.9")
    assert gb10["wheel_version"] == "2.9.1+cu130.spark1"
    assert gb10["env"]["TORCH_CUDA_ARCH_LIST"]["value"] == "12.0;12.1"
    assert gb10["env"]["TORCH_CUDA_ARCH_LIST"]["template"] == "{arch_list:torch}"
    assert gb10["env"]["USE_MKLDNN_ACL"]["value"] == "ON"
    assert gb10["env"]["CUSPARSELT_ROOT_DIR"]["value"] == "{need:cusparselt}"
    assert [one["name"] for one in gb10["features"]].count("USE_MKLDNN_ACL") == 1
    assert [one["file"].partition("/")[0] for one in gb10["patches"]] == ["torch", "torch"]
    assert {one["name"]: one["coupling"] for one in gb10["needs"]} == {
        "acl": "content",
        "cuda": "content",
        "cusparselt": "content",
        "triton": "version",
    }
    h200 = document(tmp_path, "recipes", "show", "torch", "--target", "h200", "--train", "2.15")
    assert h200["env"]["TORCH_CUDA_ARCH_LIST"]["value"] == "9.0"
    assert "USE_MKLDNN_ACL" not in h200["env"]
    assert h200["patches"] == []
    assert "scikit-build-core==1.1.1" in h200["requires"]
    assert not any(text.startswith("scikit-build-core") for text in gb10["requires"])


def test_newer_triton_is_told_what_its_cmake_files_ask_for(tmp_path: Path) -> None:
    new = document(tmp_path, "recipes", "show", "triton", "--target", "gb10", "--train", "2.15")["env"]
    assert new["TRITON_BUILD_NVIDIA_GSAN_RUNTIME"]["value"] == "OFF"
    assert new["JSON_SYSPATH"]["template"] == "{need:llvm}"
    old = document(tmp_path, "recipes", "show", "triton", "--target", "gb10", "--train", "2.13")["env"]
    assert not old.keys() & {"TRITON_BUILD_NVIDIA_GSAN_RUNTIME", "JSON_SYSPATH"}


def test_show_of_a_variant_that_replaces(tmp_path: Path) -> None:
    old = document(tmp_path, "recipes", "show", "onnx", "--target", "host-cpu", "--train", "2.13")
    new = document(tmp_path, "recipes", "show", "onnx", "--target", "host-cpu", "--train", "2.15")
    assert "protobuf==6.33.6" in old["requires"]
    assert [text for text in new["requires"] if text.startswith("protobuf")] == ["protobuf==6.31.1"]
    assert "pybind11_DIR" in old["env"]["CMAKE_ARGS"]["value"]
    assert "pybind11_DIR" not in new["env"]["CMAKE_ARGS"]["value"]
    assert (old["wheel_version"], new["wheel_version"]) == ("1.19.1", "1.23.2")


def test_show_in_text(tmp_path: Path) -> None:
    done = run(tmp_path, "recipes", "show", "flash-attn", "--target", "gb10", "--train", "2.13", "--env")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert all("  # " in line for line in lines)
    assert [line.split("  #")[0].rstrip() for line in lines if line.startswith("FLASH_ATTN_CUDA")] == [
        "FLASH_ATTN_CUDA_ARCHS=121"
    ]
    whole = run(tmp_path, "recipes", "show", "cusparselt", "--target", "h200").stdout
    assert "  links: lib/libcusparseLt.so libcusparseLt.so.0\n" in whole
    assert "  makes nvidia-cusparselt-cu13 0.8.1\n" in whole
    every = (
        "bundle = true\nplatform = 'manylinux_2_39'\nstrip = true\nclean_rpath = true\nexclude = ['libx.so']"
    )
    onnx = (ROOT / "recipes/onnx.toml").read_text()
    write(tmp_path, {"onnx": re.sub("bundle = true.*", lambda _: every, onnx)})
    (asked,) = re.findall(
        r"^repair:\n((?:  .*\n)+)", run(tmp_path, "recipes", "show", "onnx").stdout, re.MULTILINE
    )
    assert asked.splitlines() == [
        "  bundle: true",
        "  exclude: libx.so",
        "  platform: manylinux_2_39",
        "  strip: true",
        "  clean_rpath: true",
    ]
    cmake = run(tmp_path, "recipes", "show", "llvm", "--target", "h200").stdout
    assert "  define: LLVM_TARGETS_TO_BUILD: host;NVPTX;AMDGPU  # " in cmake


def test_show_of_what_the_train_lacks(tmp_path: Path) -> None:
    write(tmp_path, {"trains/mine": TRAIN})
    done = run(tmp_path, "recipes", "show", "onnx", "--train", "mine")
    assert done.returncode == 2
    assert "train mine has no version of onnx" in done.stderr
    assert "trains that have one: 2.11, 2.13, 2.15, 2.9" in done.stderr


def test_schema_is_the_committed_one(tmp_path: Path) -> None:
    for kind in ("recipe", "train", "target"):
        done = run(tmp_path, "recipes", "schema", kind)
        assert done.stdout == (ROOT / "recipes" / "schema" / f"{kind}.schema.json").read_text()
    assert run(tmp_path, "recipes", "schema").stdout == run(tmp_path, "recipes", "schema", "recipe").stdout


def test_a_mistyped_command(tmp_path: Path) -> None:
    done = run(tmp_path, "recipes", "lnt")
    assert done.returncode == 2
    assert done.stderr == "error: no command 'recipes lnt'; did you mean lint?\n"


def test_help_of_the_group_imports_nothing_heavy() -> None:
    command = [sys.executable, "-X", "importtime", *CLI[1:], "recipes", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    imported = {line.rsplit("|", 1)[-1].strip() for line in done.stderr.splitlines() if "|" in line}
    assert not imported & {"pydantic", "rich", "requests", "packaging", "spark_build.build.scheduler"}
    assert "  lint " in done.stdout
