"""Each rule of `recipes lint` that one change of a shipped file breaks."""

from __future__ import annotations

import pytest

from tests.helpers.linting import changed


@pytest.mark.parametrize(
    ("file", "old", "new", "expected"),
    [
        (
            "recipes/torch.toml",
            "{arch_list:torch}",
            "12.1",
            "TORCH_CUDA_ARCH_LIST is '12.1', whatever the target is",
        ),
        (
            "recipes/flash-attn.toml",
            "{arch_list:flash_attn}",
            "12.0",
            "FLASH_ATTN_CUDA_ARCHS is '12.0', whatever the target is",
        ),
        (
            "recipes/torch.toml",
            "{arch_list:torch}",
            "{arch_list:cpp_extension}",
            "TORCH_CUDA_ARCH_LIST is read by torch, not by cpp_extension",
        ),
        (
            "recipes/torchaudio.toml",
            "[build.env.TORCH_CUDA_ARCH_LIST]",
            "[build.env.CC]",
            "TORCH_CUDA_ARCH_LIST is not set: what is built for is left to a guess",
        ),
        (
            "recipes/flash-attn.toml",
            'value = "TRUE"',
            'value = "1"',
            "FLASH_ATTENTION_FORCE_BUILD is '1': setup.py downloads a prebuilt wheel",
        ),
        (
            "recipes/torchvision.toml",
            "[build.env.FORCE_CUDA]",
            "[build.env.DEBUG]",
            "FORCE_CUDA is not set: a build without a visible GPU has no CUDA operators",
        ),
        (
            "recipes/torch.toml",
            "[build.env.PYTORCH_BUILD_NUMBER]",
            "[build.env.DEBUG]",
            "PYTORCH_BUILD_NUMBER is not set: PYTORCH_BUILD_VERSION is read only together with it",
        ),
        (
            "recipes/torch.toml",
            '[build.env.PYTORCH_BUILD_NUMBER]\nvalue = "1"',
            '[build.env.PYTORCH_BUILD_NUMBER]\nvalue = "2"',
            "PYTORCH_BUILD_NUMBER is '2': PYTORCH_BUILD_VERSION is read only together with it, and more than 1",
        ),
        (
            "recipes/triton.toml",
            'value = "+{label}"',
            'value = "+mine"',
            "wheel.version wants the label, but TRITON_WHEEL_VERSION_SUFFIX does not hand {label} to the build",
        ),
        (
            "recipes/torchvision.toml",
            "{version:torch}",
            "{version:triton}",
            "{version:triton}: this recipe has no need 'triton'",
        ),
        (
            "recipes/triton.toml",
            "{extra:nvidia}",
            "{extra:nvidea}",
            "{extra:nvidea}: triton 3.7.1 has no extra source 'nvidea' [train 2.13]",
        ),
        (
            "recipes/triton.toml",
            "{extra:nvidia}",
            "{extra:nvidea}",
            "triton: nothing uses the extra source ptxas-aarch64: no value refers to {extra:nvidia}",
        ),
        (
            "recipes/trains/2.13.toml",
            'folder = "nvidia"\ncopy = { "nvidia/cuda_cupti/',
            'folder = "cupti"\ncopy = { "nvidia/cuda_cupti/',
            "triton: nothing uses the extra source cupti-x86_64: no value refers to {extra:cupti}",
        ),
        (
            "recipes/triton.toml",
            "[build.env.TRITON_OFFLINE_BUILD]",
            "[build.env.TRITON_HOME]",
            "TRITON_OFFLINE_BUILD is not set: setup.py downloads NVIDIA's archives",
        ),
        (
            "recipes/triton.toml",
            "-DTRITON_BUILD_UT=OFF",
            "-DTRITON_BUILD_UT=ON",
            "TRITON_APPEND_CMAKE_ARGS is '-DTRITON_BUILD_UT=ON': CMake clones googletest",
        ),
        (
            "recipes/triton.toml",
            "[build.env.LLVM_SYSPATH]",
            "[build.env.TRITON_HOME]",
            "LLVM_SYSPATH is not set: setup.py downloads a prebuilt LLVM",
        ),
        (
            "recipes/triton.toml",
            '[build.env.TRITON_BUILD_PROTON]\nvalue = "OFF"',
            '[build.env.TRITON_BUILD_PROTON]\nvalue = "ON"',
            "TRITON_BUILD_PROTON is 'ON': setup.py downloads nlohmann/json [train 2.11, 2.13, 2.9]",
        ),
        (
            "recipes/onnx.toml",
            "-DFETCHCONTENT_FULLY_DISCONNECTED=ON",
            "-DX=ON",
            "CMAKE_ARGS is '-DONNX_USE_LITE_PROTO=ON -DONNX_USE_PROTOBUF_SHARED_LIBS=ON -DX=ON': CMake downloads",
        ),
        (
            "recipes/torch.toml",
            'when = { trains = ["2.15"] }',
            'when = { trains = ["2.51"] }',
            "no train is named '2.51': did you mean '2.15'?",
        ),
        (
            "recipes/trains/2.13.toml",
            'version = "3.7.1"',
            'version = "3.6.0"',
            "torch 2.13.0 requires triton==3.7.1 (the public wheel's Requires-Dist), not 3.6.0",
        ),
        (
            "recipes/trains/2.13.toml",
            'version = "0.28.0"',
            'version = "0.26.0"',
            "torchvision 0.26.0 requires torch==2.11.0 (the public wheel's Requires-Dist), not 2.13.0",
        ),
        (
            "recipes/trains/2.15.toml",
            'protobuf = "6.33.6"',
            'protobuf = "5.29.0"',
            "onnx 1.23.2 requires protobuf>=6.31.1 (the sdist's pyproject.toml), not 5.29.0",
        ),
        (
            "recipes/trains/2.13.toml",
            "1f126a6dea50d185c0781743a667390037ae88bd",
            "1f126a6d00000000000000000000000000000000",
            "triton 3.7.1 is written against LLVM 1f126a6dea50, not 1f126a6d0000",
        ),
        ("recipes/targets/gb10.toml", 'cuda = "13.0"', 'cuda = "12.8"', "CUDA 12.8 cannot compile for 12.1"),
        (
            "recipes/targets/rtx50.toml",
            '["12.0"]',
            '["12.7"]',
            "12.7 is no architecture that is known here",
        ),
    ],
)
def test_errors(file: str, old: str, new: str, expected: str) -> None:
    errors = [one for one in changed(file, old, new) if one.severity == "error"]
    assert [one for one in errors if one.message.startswith(expected)], [str(one) for one in errors]
    assert all(one.place.line > 0 for one in errors)


@pytest.mark.parametrize(
    ("file", "old", "new", "expected"),
    [
        (
            "recipes/trains/2.13.toml",
            'url = "https://github.com/pytorch/vision"',
            'url = "/srv/vision"',
            "torchvision: /srv/vision is on this machine only",
        ),
        (
            "recipes/trains/2.13.toml",
            "pytorch/releases/download/v2.13.0/pytorch-v2.13.0.tar.gz",
            "pytorch/archive/refs/tags/v2.13.0.tar.gz",
            "torch: GitHub makes this archive anew when it likes, and without submodules",
        ),
    ],
)
def test_warnings(file: str, old: str, new: str, expected: str) -> None:
    found = changed(file, old, new)
    assert [(one.severity, one.message) for one in found] == [("warning", expected)]
