"""Data for `recipes lint` from upstream's files: readers of variables, requirements between wheels.

Read in the projects' own files (torch: setup.py, tools/setup_helpers/cmake.py, CMakeLists.txt, cmake/).
"""

from __future__ import annotations

# Read by CMake, compilers and build tools, whatever the project.
COMMON = {
    "AR": "CMake",
    "CC": "CMake, setuptools",
    "CFLAGS": "CMake, setuptools",
    "CMAKE_BUILD_PARALLEL_LEVEL": "cmake --build",
    "CMAKE_GENERATOR": "CMake",
    "CMAKE_PREFIX_PATH": "CMake",
    "CUDAHOSTCXX": "CMake",
    "CXX": "CMake, setuptools",
    "CXXFLAGS": "CMake, setuptools",
    "LD_LIBRARY_PATH": "the dynamic linker",
    "LDFLAGS": "CMake, setuptools",
    "MAKEFLAGS": "make, ninja",
    "NVCC_APPEND_FLAGS": "nvcc",
    "NVCC_PREPEND_FLAGS": "nvcc",
    "PATH": "every program",
    "PKG_CONFIG_PATH": "pkg-config",
    "PYTHONPATH": "Python",
    "SOURCE_DATE_EPOCH": "setuptools, scikit-build-core, gcc",
}

_CPP_EXTENSION = dict.fromkeys(
    ("CUDA_HOME", "CUDA_PATH", "MAX_JOBS", "TORCH_CUDA_ARCH_LIST", "USE_NINJA"),
    "torch/utils/cpp_extension.py",
)
_TORCH_OPTIONS = (
    "BUILD_BINARY BUILD_PYTHON BUILD_SHARED_LIBS USE_CUDA USE_CUDNN USE_CUDSS USE_CUFILE USE_CUSPARSELT "
    "USE_DISTRIBUTED USE_FBGEMM USE_FBGEMM_GENAI USE_FLASH_ATTENTION USE_GLOO USE_GOLD_LINKER USE_ITT "
    "USE_KINETO USE_KLEIDIAI USE_MAGMA USE_MEM_EFF_ATTENTION USE_MIMALLOC USE_MKLDNN USE_MPI USE_MSLK "
    "USE_NATIVE_ARCH USE_NCCL USE_NNPACK USE_NUMA USE_NUMPY USE_NVRTC USE_NVSHMEM USE_OPENMP "
    "USE_PRIORITIZED_TEXT_FOR_LD USE_PYTORCH_QNNPACK USE_ROCM USE_TENSORPIPE USE_UCC USE_XNNPACK USE_XPU"
)
_TRITON = (
    "DEBUG JSON_SYSPATH LLVM_SYSPATH MAX_JOBS TRITON_APPEND_CMAKE_ARGS "
    "TRITON_BUILD_NVIDIA_GSAN_RUNTIME TRITON_BUILD_PROTON TRITON_BUILD_WITH_CCACHE "
    "TRITON_BUILD_WITH_CLANG_LLD TRITON_BUILD_WITH_O1 TRITON_CUDACRT_PATH TRITON_CUDART_PATH "
    "TRITON_CUOBJDUMP_PATH TRITON_CUPTI_INCLUDE_PATH TRITON_CUPTI_LIB_BLACKWELL_PATH "
    "TRITON_CUPTI_LIB_PATH TRITON_HOME TRITON_LLVM_SYSTEM_SUFFIX TRITON_NVDISASM_PATH "
    "TRITON_OFFLINE_BUILD TRITON_PARALLEL_LINK_JOBS TRITON_PLUGIN_DIRS TRITON_PTXAS_BLACKWELL_PATH "
    "TRITON_PTXAS_PATH TRITON_REL_BUILD_WITH_ASSERTS TRITON_STABLE_ABI TRITON_WHEEL_NAME "
    "TRITON_WHEEL_VERSION_SUFFIX"
)
_FLASH_ATTN = (
    "BUILD_TARGET FLASH_ATTENTION_FORCE_BUILD FLASH_ATTENTION_FORCE_CXX11_ABI "
    "FLASH_ATTENTION_SKIP_CUDA_BUILD FLASH_ATTN_CUDA_ARCHS FLASH_ATTN_LOCAL_VERSION MAX_JOBS NVCC_THREADS"
)
_VISION = (
    "BUILD_VERSION DEBUG FORCE_CUDA FORCE_MPS NVCC_FLAGS PYTORCH_VERSION PYTORCH_VERSION_GE "
    "PYTORCH_VERSION_LT TORCHVISION_INCLUDE TORCHVISION_LIBRARY TORCHVISION_PACKAGE_NAME "
    "TORCHVISION_USE_JPEG TORCHVISION_USE_NVJPEG TORCHVISION_USE_PNG TORCHVISION_USE_WEBP TORCH_PACKAGE_NAME"
)
_AUDIO = "BUILD_ALIGN BUILD_CUDA_CTC_DECODER BUILD_RNNT TORCH_CUDA_ARCH_LIST USE_CUDA USE_OPENMP USE_ROCM"
_ONNX = (
    "CMAKE_ARGS MAX_JOBS ONNX_BUILD_TESTS ONNX_DISABLE_EXCEPTIONS ONNX_DISABLE_STATIC_REGISTRATION ONNX_ML "
    "ONNX_NAMESPACE ONNX_PREVIEW_BUILD ONNX_VERIFY_PROTO3 ONNX_WHEEL_PLATFORM_NAME"
)


def _all(names: str, file: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), file)


# Component: variable: the file that reads it.
READ = {
    "torch": {
        **_all(_TORCH_OPTIONS, "CMakeLists.txt"),
        **_all("BLAS TORCH_CUDA_ARCH_LIST CUDNN_INCLUDE_DIR CUDNN_LIBRARY CUDA_NVCC_EXECUTABLE MAX_JOBS "
               "MKLDNN_CPU_RUNTIME ATEN_THREADING", "tools/setup_helpers/cmake.py"),
        **_all("PYTORCH_BUILD_VERSION PYTORCH_BUILD_NUMBER", "tools/generate_torch_version.py"),
        **_all("CUDA_PATH CUDA_BIN_PATH", "cmake/Modules_CUDA_fix/upstream/FindCUDA.cmake"),
        **_all("CUSPARSELT_ROOT_DIR CUSPARSELT_INCLUDE_DIR CUSPARSELT_LIBRARY",
               "cmake/Modules/FindCUSPARSELT.cmake"),
        **_all("NCCL_ROOT NCCL_INCLUDE_DIR NCCL_LIB_DIR", "cmake/Modules/FindNCCL.cmake"),
        **_all("PYTORCH_EXTRA_INSTALL_REQUIREMENTS TORCH_PACKAGE_NAME DEBUG REL_WITH_DEB_INFO", "setup.py"),
        **_all("USE_SYSTEM_LIBS USE_SYSTEM_NCCL", "cmake/Dependencies.cmake"),
        "ACL_ROOT_DIR": "cmake/Modules/FindACL.cmake",
        "NVSHMEM_HOME": "caffe2/CMakeLists.txt",
        "BUILD_TEST": "tools/build_pytorch_libs.py",
        "CUDA_HOME": "setup.py",
        "TORCH_NVCC_FLAGS": "cmake/public/cuda.cmake",
        "USE_MKLDNN_ACL": "cmake/public/mkldnn.cmake",
    },
    "triton": _all(_TRITON, "setup.py"),
    "torchvision": {**_CPP_EXTENSION, **_all(_VISION, "setup.py")},
    "torchaudio": {
        "CUDA_HOME": "torch/utils/cpp_extension.py",
        **_all(_AUDIO, "tools/setup_helpers/extension.py"),
        **_all("BUILD_VERSION PYTORCH_VERSION", "setup.py"),
    },
    "flash-attn": {**_CPP_EXTENSION, **_all(_FLASH_ATTN, "setup.py")},
    "onnx": _all(_ONNX, "setup.py, since 1.23 scikit-build-core and CMakeLists.txt"),
    "llvm": {},
    "acl": {},
    "cuda": {},
    "cusparselt": {},
}  # fmt: skip

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

# (component, its versions, lowest CUDA, lowest CPython minor version).
TOOLCHAIN = (("torch", ">=2.15", "12.6", 11), ("torch", ">=2.9,<2.15", "12.0", 10))

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

ARCH_LISTS = {
    "torch": "TORCH_CUDA_ARCH_LIST",
    "torchvision": "TORCH_CUDA_ARCH_LIST",
    "torchaudio": "TORCH_CUDA_ARCH_LIST",
    "flash-attn": "FLASH_ATTN_CUDA_ARCHS",
}

# (component, its versions, variables, what the value of one of them must match, otherwise, what to do).
MustSet = tuple[str, str, str, str, str, str]
WITH_CUDA: tuple[MustSet, ...] = (
    (
        "torchvision", ">=0", "FORCE_CUDA", "1",
        "a build without a visible GPU has no CUDA operators, and says nothing", "set it to 1",
    ),
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
