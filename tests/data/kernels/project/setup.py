"""A torch extension as most are: several .cu files, compiled by torch.utils.cpp_extension."""

import os
from pathlib import Path

import torch
from setuptools import setup
from torch.utils import cpp_extension

if torch.version.cuda is None:
    # A torch for processors looks for no toolkit and has no libtorch_cuda to link; nvcc is called all the same.
    home = cpp_extension.CUDA_HOME = os.environ["CUDA_HOME"]
    kind, options = cpp_extension.CppExtension, {"libraries": ["cudart"], "library_dirs": [f"{home}/lib64"]}
else:
    kind, options = cpp_extension.CUDAExtension, {}

folder = Path(__file__).parent
sources = sorted(
    str(path.relative_to(folder)) for path in folder.glob("csrc/*") if path.suffix in (".cpp", ".cu")
)
setup(
    name="demo-kernels",
    version=f"1.0+{os.environ['DEMO_KERNELS_LOCAL_VERSION']}",
    packages=["demo_kernels"],
    ext_modules=[
        kind(
            "demo_kernels._C",
            sources,
            extra_compile_args={"cxx": ["-O1", "-g0"], "nvcc": ["-O3"]},
            **options,
        )
    ],
    cmdclass={"build_ext": cpp_extension.BuildExtension},
)
