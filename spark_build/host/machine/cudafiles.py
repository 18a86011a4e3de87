"""The CUDA toolkit and its libraries, as a compiler and a linker would find them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from spark_build.core.doctor import reading
from spark_build.host.machine.access import Access
from spark_build.host.probe import SYSTEM_PATH
from spark_build.model.facts import Library, Nvcc, Toolkit

HOME = "/usr/local/cuda"  # where recipes expect it
TARGETS = {"linux-aarch64": "sbsa-linux", "linux-x86_64": "x86_64-linux"}
TRIPLETS = {"linux-aarch64": "aarch64-linux-gnu", "linux-x86_64": "x86_64-linux-gnu"}
NEEDED = ("include/cuda_runtime_api.h", "include/crt/host_config.h", "lib/libcudart.so")
# Name: the header that has the version, its macros, the library.
LIBRARIES = {
    "cuDNN": ("cudnn_version.h", ("CUDNN_MAJOR", "CUDNN_MINOR", "CUDNN_PATCHLEVEL"), "libcudnn"),
    "cuBLAS": ("cublas_api.h", ("CUBLAS_VER_MAJOR", "CUBLAS_VER_MINOR", "CUBLAS_VER_PATCH"), "libcublas"),
    "cuFile": ("cufile.h", (), "libcufile"),
    "NCCL": ("nccl.h", ("NCCL_MAJOR", "NCCL_MINOR", "NCCL_PATCH"), "libnccl"),
}


def compilers(access: Access) -> tuple[Nvcc, ...]:
    """Every nvcc that builds, then the user's shell would find, then those in other toolkits."""
    shell = access.which_all("nvcc", access.environ.get("PATH", ""))
    every = [*access.which_all("nvcc", SYSTEM_PATH), *shell, *access.glob("/usr/local/cuda*/bin/nvcc")]
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


def toolkit(access: Access, platform: str) -> Toolkit:
    """What is in the folder of the toolkit for this processor."""
    folder = f"{HOME}/targets/{TARGETS.get(platform, 'x86_64-linux')}"
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


def libraries(access: Access, platform: str) -> dict[str, Library]:
    """cuDNN, cuBLAS, cuFile and NCCL: their headers and files."""
    triplet = TRIPLETS.get(platform, "")
    kit = f"{HOME}/targets/{TARGETS.get(platform, '')}"
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
