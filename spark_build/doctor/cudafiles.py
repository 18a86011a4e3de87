"""The CUDA toolkit and its libraries, as a compiler and a linker would find them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from spark_build.doctor import reading
from spark_build.doctor.model import Library, Nvcc, Toolkit
from spark_build.doctor.probe import Access

TARGETS = {"linux-aarch64": "sbsa-linux", "linux-x86_64": "x86_64-linux"}
TRIPLETS = {"linux-aarch64": "aarch64-linux-gnu", "linux-x86_64": "x86_64-linux-gnu"}
# What torch and whatever includes its headers is compiled with, and the package of each where it has its own.
NEEDED = (
    *(
        f"include/{name}"
        for name in (
            "cuda.h",
            "cuda_runtime_api.h",
            "crt/host_config.h",
            "cublas_v2.h",
            "cufft.h",
            "cupti.h",
            "curand.h",
            "cusolverDn.h",
            "cusparse.h",
            "nvJitLink.h",
            "nvml.h",
            "nvrtc.h",
            "nvtx3/nvtx3.hpp",
        )
    ),
    "lib/libcudart.so",
)
# Name: the header that has the version, its macros, the library.
LIBRARIES = {
    "cuDNN": ("cudnn_version.h", ("CUDNN_MAJOR", "CUDNN_MINOR", "CUDNN_PATCHLEVEL"), "libcudnn"),
    "cuBLAS": ("cublas_api.h", ("CUBLAS_VER_MAJOR", "CUBLAS_VER_MINOR", "CUBLAS_VER_PATCH"), "libcublas"),
    "cuFile": ("cufile.h", (), "libcufile"),
    "NCCL": ("nccl.h", ("NCCL_MAJOR", "NCCL_MINOR", "NCCL_PATCH"), "libnccl"),
}


def compilers(access: Access, home: str) -> tuple[Nvcc, ...]:
    """Every nvcc: that of the toolkit of builds, those on the user's PATH, those in other toolkits."""
    shell = access.which_all("nvcc", access.environ.get("PATH", ""))
    every = [*access.which_all("nvcc", f"{home}/bin"), *shell, *access.glob("/usr/local/cuda*/bin/nvcc")]
    distinct = {access.real(path): path for path in reversed(every)}
    paths = [path for path in dict.fromkeys(every) if distinct[access.real(path)] == path]
    with ThreadPoolExecutor() as pool:
        answers = pool.map(lambda path: reading.nvcc(access.ask([path, "--version"]) or "")[1], paths)
        versions = dict(zip(paths, answers, strict=True))
    ranks = {access.real(path): rank for rank, path in reversed(list(enumerate(shell)))}
    return tuple(
        Nvcc(path=path, version=number, rank=ranks.get(access.real(path)))
        for path, number in versions.items()
        if number
    )


def toolkit(access: Access, platform: str, home: str) -> Toolkit:
    """What is in the folder of the toolkit for this processor; nothing without a toolkit."""
    if not home:
        return Toolkit()
    folder = _folder(access, platform, home)
    gcc, clang = reading.host_limits(access.read(f"{folder}/include/crt/host_config.h"))
    runtime = access.glob(f"{folder}/lib/libcudart.so*")
    return Toolkit(
        folder=folder,
        missing=tuple(path for path in NEEDED if not access.exists(f"{folder}/{path}")),
        foreign=tuple(
            path
            for path in runtime
            if (machine := reading.elf_machine(access.head(path))) and machine != platform
        ),
        newest_gcc=gcc,
        before_clang=clang,
    )


def _folder(access: Access, platform: str, home: str) -> str:
    """Where headers and libraries for a processor are: NVIDIA's packages have a folder for each."""
    folder = f"{home}/targets/{TARGETS.get(platform, 'x86_64-linux')}"
    return folder if access.exists(folder) else home


def libraries(access: Access, platform: str, home: str) -> dict[str, Library]:
    """cuDNN, cuBLAS, cuFile and NCCL: their headers and files, in the toolkit and beside it."""
    triplet = TRIPLETS.get(platform, "")
    kit = _folder(access, platform, home)
    includes = _folders(
        access, f"{kit}/include", f"/usr/include/{triplet}", "/usr/include", "/usr/local/include"
    )
    folders = _folders(access, f"{kit}/lib", f"/usr/lib/{triplet}", "/usr/lib", "/usr/local/lib")
    return {
        name: Library(
            headers={
                f"{folder}/{header}": reading.macros(access.read(f"{folder}/{header}"), *macros)
                if macros
                else ""
                for folder in includes
                if access.exists(f"{folder}/{header}")
            },
            files={
                path: reading.version_of_file(path)
                for folder in folders
                for path in access.glob(f"{folder}/{library}.so*")
            },
        )
        for name, (header, macros, library) in LIBRARIES.items()
    }


def _folders(access: Access, *wanted: str) -> list[str]:
    """Those that are there, none of them twice under another name."""
    return list(
        {access.real(folder): folder for folder in reversed(wanted) if access.exists(folder)}.values()
    )[::-1]
