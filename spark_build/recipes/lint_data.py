"""Data for `recipes lint` from upstream's files: variables that nobody reads, requirements between wheels.

Read in the projects' own files (torch: setup.py, tools/setup_helpers/cmake.py, CMakeLists.txt, cmake/).
"""

from __future__ import annotations

# Read by CMake, compilers and build tools, whatever the project.
COMMON = (
    "AR CC CFLAGS CMAKE_ARGS CMAKE_BUILD_PARALLEL_LEVEL CMAKE_GENERATOR CMAKE_PREFIX_PATH CUDAHOSTCXX CXX "
    "CXXFLAGS LDFLAGS LD_LIBRARY_PATH MAKEFLAGS NVCC_APPEND_FLAGS NVCC_PREPEND_FLAGS PATH PKG_CONFIG_PATH "
    "PYTHONPATH SOURCE_DATE_EPOCH"
)

_EXTENSION_FOLKLORE = {
    "CMAKE_CUDA_ARCHITECTURES": "TORCH_CUDA_ARCH_LIST",
    "CUDAARCHS": "TORCH_CUDA_ARCH_LIST",
    "NVCC_FLAGS_EXTRA": "NVCC_APPEND_FLAGS, which nvcc itself reads",
}
_AUDIO_GONE = "nothing: it is gone since torchaudio 2.9 (audio#4100)"

# Component: variable that is known to be unread: what to use instead.
FOLKLORE = {
    "torch": {
        "USE_CUBLAS": "nothing: cuBLAS is used unconditionally",
        "CMAKE_CUDA_ARCHITECTURES": "TORCH_CUDA_ARCH_LIST (cmake/public/cuda.cmake ignores this one)",
        "CUDAARCHS": "TORCH_CUDA_ARCH_LIST (cmake/public/cuda.cmake ignores this one)",
        "NVCC_FLAGS_EXTRA": "TORCH_CUDA_ARCH_LIST, or NVCC_APPEND_FLAGS, which nvcc itself reads",
        "CUDA_TOOLKIT_ROOT_DIR": "CUDA_PATH and CUDA_NVCC_EXECUTABLE",
        "CUDA_ARCH_LIST": "TORCH_CUDA_ARCH_LIST",
    },
    "triton": {
        "LLVM_BUILD_DIR": "LLVM_SYSPATH",
        "LLVM_INCLUDE_DIRS": "LLVM_SYSPATH",
        "LLVM_LIBRARY_DIR": "LLVM_SYSPATH",
        "TORCH_CUDA_ARCH_LIST": "nothing: Triton compiles for the GPU it runs on",
    },
    "torchvision": {**_EXTENSION_FOLKLORE, "USE_CUDA": "FORCE_CUDA=1"},
    "torchaudio": {
        **_EXTENSION_FOLKLORE,
        "BUILD_SOX": _AUDIO_GONE,
        "FORCE_CUDA": "USE_CUDA=1",
        "USE_FFMPEG": _AUDIO_GONE,
    },
    "flash-attn": {**_EXTENSION_FOLKLORE, "FORCE_BUILD": "FLASH_ATTENTION_FORCE_BUILD=TRUE"},
}

# Component: the variable that hands our version label to its build.
LABEL_VARIABLE = {
    "torch": "PYTORCH_BUILD_VERSION",
    "torchvision": "BUILD_VERSION",
    "torchaudio": "BUILD_VERSION",
    "flash-attn": "FLASH_ATTN_LOCAL_VERSION",
    "triton": "TRITON_WHEEL_VERSION_SUFFIX",
}

# (component, its versions, what it requires, in which versions, where that is written).
REQUIRES = (
    ("torchvision", "==0.24.1", "torch", "==2.9.1", "the public wheel's Requires-Dist"),
    ("torchvision", "==0.26.0", "torch", "==2.11.0", "the public wheel's Requires-Dist"),
    ("torchvision", "==0.28.0", "torch", "==2.13.0", "the public wheel's Requires-Dist"),
    ("torchvision", "==0.29.1", "torch", ">=2.14.0", "the public wheel's Requires-Dist"),
    ("torchvision", "==0.29.2", "torch", ">=2.14.0", "the public wheel's Requires-Dist"),
    ("torchaudio", "==2.9.1", "torch", "==2.9.1", "the public wheel's Requires-Dist"),
    ("torchaudio", ">=2.11", "torch", ">=2.11", "audio#4212"),
    ("torch", "==2.9.1", "triton", "==3.5.1", "the public wheel's Requires-Dist"),
    ("torch", "==2.11.0", "triton", "==3.6.0", "the public wheel's Requires-Dist"),
    ("torch", "==2.13.0", "triton", "==3.7.1", "the public wheel's Requires-Dist"),
    ("torch", "==2.14.1", "triton", "~=3.8.0", "the public wheel's Requires-Dist"),
    ("torch", "==2.15.0", "triton", "~=3.9.0", "the public wheel's Requires-Dist"),
    ("onnx", "==1.19.1", "protobuf", ">=4.25.1", "the sdist's requirements.txt"),
    ("onnx", "==1.23.2", "protobuf", ">=6.31.1", "the sdist's pyproject.toml"),
    ("onnx", "==1.23.2", "ml-dtypes", ">=0.5.4", "the sdist's pyproject.toml"),
    ("onnx", "==1.23.2", "numpy", ">=1.23.2", "the sdist's pyproject.toml"),
    ("onnx", "==1.23.2", "typing-extensions", ">=4.7.1", "the sdist's pyproject.toml"),
)

# Triton: the LLVM commit in its cmake/llvm-hash.txt, as found in the public wheels.
TRITON_LLVM = {
    "3.5.1": "7d5de3033187c8a3bb4d2e322f5462cdaf49808f",
    "3.6.0": "f6ded0be897e2878612dd903f7e8bb85448269e5",
    "3.7.1": "1f126a6dea50d185c0781743a667390037ae88bd",
    "3.8.0": "5f07f818b51b786b0a87b4e514882600ecba112f",
    "3.9.0": "b010a18d2b648cab83c83967ff26b8fde11acdc6",
}

# (component, its versions, condition, what must occur in the name of one of its patches, what is at stake).
# The condition is an architecture in the component's list, or another component with its versions.
NEEDED_PATCHES = (
    (
        "torch", "<2.12.1", "12.1", "attention",
        "memory-efficient attention built for 12.1 writes nothing before torch 2.12.1 (pytorch#176243)",
    ),
    (
        "flash-attn", "<=2.8.3.post2", "121", "121",
        "setup.py has no branch for 121: FLASH_ATTN_CUDA_ARCHS adds no flag for it",
    ),
    (
        "flash-attn", "<=2.8.3.post2", "torch>=2.14", r"c(xx|pp|\+\+|plusplus)?-?20",
        "setup.py asks for C++17, and the headers of torch >= 2.14 refuse less than C++20",
    ),
)  # fmt: skip

_GUESS = "what is built for is left to a guess"
# (component, its versions, variables, what the value of one of them must match, otherwise, what to do).
MustSet = tuple[str, str, str, str, str, str]
ALWAYS: tuple[MustSet, ...] = (
    (
        "torch", ">=0", "PYTORCH_BUILD_NUMBER", "[01]",
        "PYTORCH_BUILD_VERSION is read only together with it, and more than 1 appends .postN to the version",
        "set it to 1",
    ),
)  # fmt: skip
WITH_CUDA: tuple[MustSet, ...] = (
    (
        "torchvision", ">=0", "FORCE_CUDA", "1",
        "a build without a visible GPU has no CUDA operators, and says nothing", "set it to 1",
    ),
)  # fmt: skip
# The same, of a recipe that is for CUDA.
LISTS: tuple[MustSet, ...] = (
    ("torch", ">=0", "TORCH_CUDA_ARCH_LIST", ".*", _GUESS, "set it to {arch_list:torch}"),
    ("torchvision", ">=0", "TORCH_CUDA_ARCH_LIST", ".*", _GUESS, "set it to {arch_list:cpp_extension}"),
    ("torchaudio", ">=0", "TORCH_CUDA_ARCH_LIST", ".*", _GUESS, "set it to {arch_list:cpp_extension}"),
    ("flash-attn", ">=0", "FLASH_ATTN_CUDA_ARCHS", ".*", _GUESS, "set it to {arch_list:flash_attn}"),
)  # fmt: skip
# What a build downloads by itself: not told off, it fails in the sandbox or takes what nobody pinned.
DOWNLOADERS: tuple[MustSet, ...] = (
    (
        "flash-attn", ">=0", "FLASH_ATTENTION_FORCE_BUILD", "TRUE",
        "setup.py downloads a prebuilt wheel", "set it to TRUE",
    ),
    (
        "triton", ">=0", "LLVM_SYSPATH", ".+",
        "setup.py downloads a prebuilt LLVM", "set it to {need:llvm}",
    ),
    (
        "triton", ">=0", "TRITON_OFFLINE_BUILD", "(?i:ON|1|YES|TRUE|Y)",
        "setup.py downloads NVIDIA's archives", "set it to ON, and place the tools with [build.place]",
    ),
    (
        "triton", ">=0", "TRITON_APPEND_CMAKE_ARGS", r"(.*\s)?-DTRITON_BUILD_UT=(OFF|0)(\s.*)?",
        "CMake clones googletest", "add -DTRITON_BUILD_UT=OFF",
    ),
    (
        "triton", "<3.8", "TRITON_BUILD_PROTON JSON_SYSPATH", r"(?i:OFF|0|NO|FALSE|N)|\{extra:.+\}.*",
        "setup.py downloads nlohmann/json", "set it to OFF, or JSON_SYSPATH to {extra:json}",
    ),
    (
        "onnx", ">=0", "CMAKE_ARGS", r".*-DFETCHCONTENT_(FULLY_DISCONNECTED=ON|SOURCE_DIR_PROTOBUF=\S).*",
        "CMake downloads protobuf where it finds none", "add -DFETCHCONTENT_FULLY_DISCONNECTED=ON",
    ),
)  # fmt: skip
