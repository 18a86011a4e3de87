"""NVIDIA's real wheels as a toolkit, about 2 GB: nvcc compiles for a Spark with nothing else on the machine."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.conftest import CLI

pytestmark = pytest.mark.soak

KERNEL = "#include <cub/cub.cuh>\n__global__ void twice(float *p) { p[threadIdx.x] *= 2; }\n"


def test_nvcc_of_the_assembled_toolkit_compiles_for_a_spark(tmp_path: Path) -> None:
    machine = os.uname().machine
    target = {"x86_64": "h200", "aarch64": "gb10"}[machine]
    command = [*CLI, "--root", str(tmp_path), "--target", target, "--train", "2.13", "--json"]
    done = subprocess.run([*command, "build", "cuda"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (prefix,) = tmp_path.glob("wheelhouse/store/??/*/prefix")
    source, result = tmp_path / "k.cu", tmp_path / "k.o"
    source.write_text(KERNEL)
    nvcc: list[str | Path] = [
        prefix / "bin/nvcc",
        "-gencode",
        "arch=compute_121a,code=sm_121a",
        "-c",
        source,
        "-o",
        result,
    ]
    subprocess.run(nvcc, check=True, env={"PATH": "/usr/bin:/bin"})
    said = subprocess.check_output([prefix / "bin/cuobjdump", "-lelf", result], text=True)
    assert "sm_121a.cubin" in said
    # Every target of the platform has this very toolkit.
    other = "rtx50" if machine == "x86_64" else "thor"
    command[command.index(target)] = other
    planned = json.loads(subprocess.check_output([*command, "plan", "cuda"]))
    assert [step["decision"] for step in planned["steps"]] == ["REUSE"]
