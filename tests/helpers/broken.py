"""Broken recipes, trains and targets, with everything that `recipes lint` must say of each."""

from __future__ import annotations

from pathlib import Path

TRITON = Path(__file__).parents[2] / "recipes" / "triton.toml"
PLACED = TRITON.read_text().partition("{extra:nvidia}")[0].count("\n") + 1
HASH, COMMIT = "0" * 64, "0" * 40

HEAD = """\
name = "demo"
distribution = "demo"
summary = "A demonstration"
kind = "pep517"
[build]
"""
ENV = '[build.env.{}]\nvalue = "{}"\nwhy = "setup.py"\n'
TRAIN = 'name = "mine"\nsummary = ""\n[components]\n'
TARGET = 'name = "box"\nsummary = ""\nplatform = "linux-x86_64"\npython = "cp312"\n'

# What is wrong: the files below recipes/, and the lines that must come out.
BROKEN: dict[str, tuple[dict[str, str], list[str]]] = {
    "misspelt keys and wrong types": (
        {
            "demo": HEAD.replace("summary", "sumary").replace("pep517", "pep518")
            + 'core_minutes = "2"\nthreads_per_job = 0\nrequire = []\n[systems]\napt = []\n'
            + '[[needs]]\nname = "torch"\nproviders = ["disk"]\ncoupling = "abi"\n'
            + '[[build.variants]]\nwhen = { train = ["2.9"] }\n'
        },
        [
            "recipes/demo.toml:3: unknown key 'sumary': did you mean 'summary'?",
            "recipes/demo.toml:4: kind must be one of pep517, cmake, scons, repack, assemble, not 'pep518'",
            "recipes/demo.toml:6: build.core_minutes must be a number, not '2'",
            "recipes/demo.toml:7: build.threads_per_job must be more than 0",
            "recipes/demo.toml:8: unknown key 'require' in build: did you mean 'requires'?",
            "recipes/demo.toml:9: unknown key 'systems': did you mean 'system'?",
            "recipes/demo.toml:13: needs[0].providers[0] must be one of store, public, path, not 'disk'",
            "recipes/demo.toml:14: needs[0].coupling must be one of content, version, not 'abi'",
            "recipes/demo.toml:16: unknown key 'train' in build.variants[0].when: did you mean 'trains'?",
        ],
    ),
    "loose pins": (
        {
            "demo": HEAD
            + 'requires = [\n  "numpy>=2",\n  "wheel==0.45.1",\n  "Wheel==0.46.0",\n  "a b",\n]\n'
            + '[[build.variants]]\nwhen = { cuda = true }\nrequires = ["ninja"]\n'
        },
        [
            "recipes/demo.toml:7: 'numpy>=2' is no exact pin: write numpy==version",
            "recipes/demo.toml:9: wheel is pinned twice",
            "recipes/demo.toml:10: 'a b' is no requirement: write name==version",
            "recipes/demo.toml:14: 'ninja' is no exact pin: write ninja==version",
        ],
    ),
    "variables": (
        {
            "demo": HEAD
            + ENV.format("TWO-WORDS", "1")
            + ENV.format("A", "{arch_list}")
            + ENV.format("B", "{arch_list:vision}{need:torch}")
            + '[build.env.C]\nvalue = "{job}"\nwhy = ""\n'
        },
        [
            "recipes/demo.toml:6: 'TWO-WORDS' is no name of an environment variable",
            "recipes/demo.toml:10: {arch_list}: write {arch_list:WHO} for one of torch, cpp_extension, flash_attn",
            "recipes/demo.toml:13: {arch_list:vision}: write {arch_list:WHO} for one of torch, cpp_extension, flash_attn",
            "recipes/demo.toml:13: {need:torch}: this recipe has no need 'torch'",
            "recipes/demo.toml:16: unknown placeholder {job} (known: python, pybind11_cmake_dir, jobs, cuda_home, version, label, wheel_version, prefix, arch_list:NAME, need:NAME, version:NAME, extra:NAME, option:NAME)",
            "recipes/demo.toml:17: say why C is set: name the file that reads it",
        ],
    ),
    "needs": (
        {
            "demo": HEAD + '[[needs]]\nname = "torhc"\n[[needs]]\nname = "other"\n',
            "other": HEAD.replace("demo", "other") + '[[needs]]\nname = "demo"\n',
        },
        [
            "recipes/demo.toml:7: no recipe is named 'torhc': did you mean 'torch'?",
            "recipes/demo.toml:9: the needs go round in a circle: demo -> other -> demo",
        ],
    ),
    "needs with wrong values": (
        {
            "demo": HEAD
            + '[[needs]]\nname = "demo"\n'
            + '[[needs]]\nname = "torch"\nproviders = []\n[[needs]]\nname = "torch"\n'
        },
        [
            "recipes/demo.toml:7: demo cannot need itself",
            "recipes/demo.toml:10: the need 'torch' has no provider: store, public or path",
            "recipes/demo.toml:12: the need 'torch' is listed twice",
        ],
    ),
    "conditions": (
        {
            "demo": HEAD
            + "[[build.variants]]\nwhen = {}\n"
            + '[[build.variants]]\nwhen = { platforms = ["linux-arm64"] }\n'
            + '[[features]]\nname = "X"\nwhen = { platforms = ["windows"] }\n'
        },
        [
            "recipes/demo.toml:6: a variant without a condition: say when, or move it to [build]",
            "recipes/demo.toml:9: platform must be one of linux-x86_64, linux-aarch64, not 'linux-arm64'",
            "recipes/demo.toml:12: platform must be one of linux-x86_64, linux-aarch64, not 'windows'",
        ],
    ),
    "cmake and prefix": (
        {
            "demo": HEAD
            + '[cmake]\nsource = "../llvm"\nexpect = ["/bin/x"]\n'
            + '[cmake.define."A B"]\nvalue = "{nedd:llvm}"\nwhy = "CMakeLists.txt"\n'
            + '[prefix]\ncopy = { "/usr" = "../x" }\nlinks = { "lib/a.so" = "../a.so.0" }\n'
        },
        [
            "recipes/demo.toml:6: [cmake] has no meaning in a recipe of kind pep517",
            "recipes/demo.toml:7: the source folder '../llvm' must be a relative path without '..'",
            "recipes/demo.toml:8: the expected file '/bin/x' must be a relative path without '..'",
            "recipes/demo.toml:9: 'A B' is no name of a CMake variable",
            "recipes/demo.toml:10: unknown placeholder {nedd:llvm} (known: python, pybind11_cmake_dir, jobs, cuda_home, version, label, wheel_version, prefix, arch_list:NAME, need:NAME, version:NAME, extra:NAME, option:NAME)",
            "recipes/demo.toml:12: [prefix] has no meaning in a recipe of kind pep517",
            "recipes/demo.toml:13: the folder in the prefix '../x' must be a relative path without '..'",
            "recipes/demo.toml:13: the folder in the wheel '/usr' must be a relative path without '..'",
            "recipes/demo.toml:14: the link points to '../a.so.0', which must be the name of a file beside it",
        ],
    ),
    "names, features and patches": (
        {
            "demo": HEAD
            + '[wheel]\nversion = "{version}+{labl}"\n'
            + '[[features]]\nname = "X"\n[[features]]\nname = "X"\n'
            + f'[[patches]]\nfile = "../a.patch"\nwhy = ""\nsha256 = "{HASH[1:]}"\n'
            + '[verify]\nchecks = ["a-b"]\n',
            "other": HEAD.replace("demo", "other") + '[wheel]\nversion = "v-{label}"\n',
        },
        [
            "recipes/demo.toml:7: unknown placeholder {labl} in wheel.version (known: version, label)",
            "recipes/demo.toml:11: the feature 'X' is listed twice",
            "recipes/demo.toml:13: '../a.patch' must be a path below patches/",
            "recipes/demo.toml:14: say why the patch exists",
            "recipes/demo.toml:15: sha256 must be 64 hexadecimal digits in lower case",
            "recipes/demo.toml:17: 'a-b' is no name of a check: bench/checks/<name>.py",
            "recipes/other.toml:7: wheel.version 'v-{label}' makes no version: 'v-cu130.spark1' is none",
        ],
    ),
    "a train that pins nothing": (
        {
            "trains/mine": TRAIN
            + '[components.onnx]\nversion = "1.19.x"\n'
            + '[[components.onnx.sources]]\nkind = "git"\nurl = "onnx"\ntag = "v1"\ncommit = "abc"\n'
            + '[[components.onnx.sources]]\nkind = "archive"\nurl = "https://example.org/a.tar.gz"\n'
            + '[components.torch]\nversion = "2.9.1"\nsources = []\n'
        },
        [
            "recipes/trains/mine.toml:5: '1.19.x' is no version",
            "recipes/trains/mine.toml:8: url must start with https://, http://, ssh://, git://, file:// or /, not 'onnx'",
            "recipes/trains/mine.toml:10: commit must be 40 hexadecimal digits in lower case",
            "recipes/trains/mine.toml:11: a source of kind archive needs 'sha256'",
            "recipes/trains/mine.toml:16: torch has no source: pin one, or say in unestablished why there is none",
        ],
    ),
    "a train whose wheels contradict each other": (
        {
            "trains/mine": TRAIN
            + "".join(
                f'[components.{name}]\nversion = "{version}"\nsources = [{{ kind = "git", '
                f'url = "https://example.org/x", tag = "v", commit = "{COMMIT}" }}]\n'
                for name, version in (
                    ("torch", "2.13.0"),
                    ("torchvision", "0.26.0"),
                    ("triton", "3.6.0"),
                    ("llvm", COMMIT[:8]),
                    ("touch", "1.0"),
                )
            )
        },
        [
            "recipes/trains/mine.toml:5: torchvision 0.26.0 requires torch==2.11.0 (the public wheel's Requires-Dist), not 2.13.0",
            "recipes/trains/mine.toml:11: torch 2.13.0 requires triton==3.7.1 (the public wheel's Requires-Dist), not 3.6.0",
            "recipes/trains/mine.toml:15: triton 3.6.0 is written against LLVM f6ded0be897e, not 000000000000 (see cmake/llvm-hash.txt at its tag)",
            "recipes/trains/mine.toml:16: no recipe is named 'touch': did you mean 'torch'?",
            f"recipes/triton.toml:{PLACED}: {{extra:nvidia}}: triton 3.6.0 has no extra source 'nvidia' [train mine] (add it to the train's extra_sources)",
        ],
    ),
    "the seed's torch": (
        {
            "torch": HEAD.replace("demo", "torch")
            + "".join(
                ENV.format(name, value)
                for name, value in (
                    ("USE_CUBLAS", "1"),
                    ("TORCH_CUDA_ARCH_LIST", "12.1"),
                    ("CUDAARCHS", "121"),
                    ("TORCH_NVCC_FLAGS", "-gencode=arch=compute_121,code=sm_121"),
                    ("NVCC_FLAGS_EXTRA", "-gencode"),
                    ("CMAKE_CUDA_ARCHITECTURES", "120;121"),
                    ("PYTORCH_BUILD_VERSION", "2.9.1"),
                )
            )
            + '[wheel]\nversion = "{version}+{label}"\n'
        },
        [
            "recipes/torch.toml:1: memory-efficient attention built for 12.1 writes nothing before torch 2.12.1 (pytorch#176243): no patch for it [train 2.11, 2.9] (list one in [[patches]])",
            "recipes/torch.toml:5: PYTORCH_BUILD_NUMBER is not set: PYTORCH_BUILD_VERSION is read only together with it, and more than 1 appends .postN to the version (set it to 1)",
            "recipes/torch.toml:6: USE_CUBLAS is not read by torch (use nothing: cuBLAS is used unconditionally)",
            "recipes/torch.toml:10: TORCH_CUDA_ARCH_LIST is '12.1', whatever the target is (write {arch_list:torch})",
            "recipes/torch.toml:12: CUDAARCHS is not read by torch (use TORCH_CUDA_ARCH_LIST (cmake/public/cuda.cmake ignores this one))",
            "recipes/torch.toml:16: -gencode in TORCH_NVCC_FLAGS compiles every file for one more architecture (use TORCH_CUDA_ARCH_LIST)",
            "recipes/torch.toml:18: NVCC_FLAGS_EXTRA is not read by torch (use TORCH_CUDA_ARCH_LIST, or NVCC_APPEND_FLAGS, which nvcc itself reads)",
            "recipes/torch.toml:21: CMAKE_CUDA_ARCHITECTURES is not read by torch (use TORCH_CUDA_ARCH_LIST (cmake/public/cuda.cmake ignores this one))",
            "recipes/torch.toml:25: wheel.version wants the label, but PYTORCH_BUILD_VERSION does not hand {label} to the build",
        ],
    ),
    "the seed's extensions": (
        {
            "torchvision": HEAD.replace("demo", "torchvision")
            + ENV.format("TORCH_CUDA_ARCH_LIST", "12.1f")
            + ENV.format("USE_CUDA", "1"),
            "flash-attn": HEAD.replace("demo", "flash-attn")
            + ENV.format("FLASH_ATTN_CUDA_ARCHS", "12.1")
            + ENV.format("FORCE_BUILD", "TRUE")
            + '[[build.variants]]\nwhen = { trains = ["2.9.1"] }\n'
            + 'env.FLASH_ATTENTION_FORCE_BUILD = { value = "TRUE", why = "setup.py" }\n',
        },
        [
            "recipes/flash-attn.toml:1: setup.py asks for C++17, and the headers of torch >= 2.14 refuse less than C++20: no patch for it [train 2.15] (list one in [[patches]])",
            "recipes/flash-attn.toml:5: FLASH_ATTENTION_FORCE_BUILD is not set: setup.py downloads a prebuilt wheel (set it to TRUE)",
            "recipes/flash-attn.toml:7: FLASH_ATTN_CUDA_ARCHS is '12.1', whatever the target is (write {arch_list:flash_attn})",
            "recipes/flash-attn.toml:9: FORCE_BUILD is not read by flash-attn (use FLASH_ATTENTION_FORCE_BUILD=TRUE)",
            "recipes/flash-attn.toml:13: no train is named '2.9.1': did you mean '2.9'?",
            "recipes/torchvision.toml:5: FORCE_CUDA is not set: a build without a visible GPU has no CUDA operators, and says nothing (set it to 1)",
            "recipes/torchvision.toml:7: TORCH_CUDA_ARCH_LIST is '12.1f', whatever the target is (write {arch_list:cpp_extension})",
            "recipes/torchvision.toml:9: USE_CUDA is not read by torchvision (use FORCE_CUDA=1)",
        ],
    ),
    "targets": (
        {
            "targets/box": TARGET + 'cuda_architectures = ["12.1", "9.0"]\ncuda = "12.8"\n',
            "targets/bad": TARGET.replace('"box"', '"bad"').replace("cp312", "3.12") + 'cuda = "13"\n',
        },
        [
            "recipes/targets/bad.toml:4: python must be like cp312, or host, not '3.12'",
            "recipes/targets/bad.toml:5: cuda must be like 13.0, not '13'",
            "recipes/targets/bad.toml:5: cuda without cuda_architectures: give both, or neither for a machine without CUDA",
            "recipes/targets/box.toml:6: CUDA 12.8 cannot compile for 12.1 (12.9 or newer)",
        ],
    ),
}
