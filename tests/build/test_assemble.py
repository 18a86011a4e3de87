"""A prefix of several vendor's wheels: a CUDA toolkit in small, for another platform, then compiled with."""

from __future__ import annotations

import ctypes
import hashlib
import json
import platform
import subprocess
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from spark_build.wheels.elf import read_library
from tests.conftest import PROJECT, RECIPE, Root, make_root

HERE = f"linux-{platform.machine()}"
THERE = {"linux-x86_64": "linux-aarch64", "linux-aarch64": "linux-x86_64"}[HERE]
CUDA = """\
name = "cuda"
distribution = "cuda-toolkit"
summary = "a toolkit in small"
kind = "assemble"

[build]

[prefix]
copy = { "nvidia/cu13" = ".", "nvidia/cudnn" = "." }
links = { "lib64" = "lib" }
unversioned = ["lib"]

[[prefix.stubs]]
library = "lib/stubs/libcuda.so"
soname = "libcuda.so.1"
header = "include/cuda.h"
functions = "cu"
answer = 34

[requires]
cuda = true
"""
HEADER = """\
/* cuNever(1); */
#define __CUDA_API_PTDS(api) api ## _ptds
#define cuMemAlloc cuMemAlloc_v2
#define cuMemcpy __CUDA_API_PTDS(cuMemcpy)
typedef int (*CUcallback)(int);
int cuInit(unsigned int flags);
int cuMemAlloc(void **, int);
int cuMemcpy(void *, void *, int);
"""
TARGET = """\
name = "{name}"
summary = "a GPU"
platform = "{platform}"
python = "host"
cuda_architectures = ["12.1"]
cuda = "13.0"
"""
NVCC = "#!/bin/sh\necho 'Cuda compilation tools, release 13.0, V13.0.88'\n"
COMPILER = {
    "nvidia/cu13/bin/nvcc": NVCC,
    "nvidia/cu13/bin/nvcc.profile": "TOP = ..\n",
    "nvidia/cu13/include/cuda.h": HEADER,
    "nvidia/cu13/.metadata/notes": "of the vendor's own build",
}
LIBRARY = {"nvidia/cudnn/lib/libcudnn.so.9": "library", "nvidia/cudnn/include/cudnn.h": "#define CUDNN 9\n"}


def write_wheel(
    folder: Path, project: str, files: Mapping[str, str], *, executable: str = "", platform: str = HERE
) -> tuple[str, str]:
    """A vendor's wheel with a licence; (its line of a train's sources, its file name)."""
    name = project.replace("-", "_")
    filename = f"{name}-1.2-py3-none-manylinux_2_17_{platform.removeprefix('linux-')}.whl"
    info = f"{name}-1.2.dist-info"
    papers = {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {project}\nVersion: 1.2\n",
        f"{info}/licenses/License.txt": f"the terms of {project}",
        f"{info}/RECORD": "",
    }
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / filename, "w") as wheel:
        for path, text in {**files, **papers}.items():
            member = zipfile.ZipInfo(path)
            member.external_attr = (0o100755 if path == executable else 0o100644) << 16
            wheel.writestr(member, text)
    sha256 = hashlib.sha256((folder / filename).read_bytes()).hexdigest()
    pinned = f'project = "{project}", filename = "{filename}", sha256 = "{sha256}"'
    return f'{{ kind = "wheel", {pinned}, platform = "{platform}" }}', filename


@pytest.fixture
def root(tmp_path: Path) -> Root:
    """A root with the toolkit's recipe and two targets, this machine's platform and the other one."""
    root = make_root(tmp_path)
    (root.folder / "recipes/targets").mkdir()
    for name, where in (("here", HERE), ("there", THERE)):
        text = TARGET.format(name=name, platform=where)
        (root.folder / f"recipes/targets/{name}.toml").write_text(text)
    (root.folder / "recipes/cuda.toml").write_text(CUDA)
    return root


def pin(root: Root, *sources: str) -> None:
    train = (root.folder / "recipes/trains/t.toml").read_text().partition("[components.cuda]")[0]
    listed = "".join(f"  {one},\n" for one in sources)
    root.train(f'{train}\n[components.cuda]\nversion = "13.0.3"\nsources = [\n{listed}]\n')


def pin_two(root: Root, where: str = HERE) -> None:
    pin(
        root,
        write_wheel(root.links, "nvidia-cuda-nvcc", COMPILER, platform=where)[0],
        write_wheel(root.links, "nvidia-cudnn-cu13", LIBRARY, platform=where)[0],
    )


def build(root: Root, *names: str, target: str = "here") -> subprocess.CompletedProcess[str]:
    return root.run("--target", target, "build", *(names or ("cuda",)), "--no-closure")


def prefix_of(root: Root) -> Path:
    (found,) = root.folder.glob("wheelhouse/store/??/*/prefix")
    return found


def test_the_tree_of_a_toolkit(root: Root) -> None:
    pin_two(root)
    done = build(root)
    assert done.returncode == 0, done.stderr
    prefix = prefix_of(root)
    found = {str(path.relative_to(prefix)) for path in prefix.rglob("*") if not path.is_dir()}
    licences = {
        f"share/licenses/{name}-1.2/License.txt" for name in ("nvidia_cuda_nvcc", "nvidia_cudnn_cu13")
    }
    assert found == licences | {
        "bin/nvcc",
        "bin/nvcc.profile",
        "include/cuda.h",
        "include/cudnn.h",
        "lib/libcudnn.so",
        "lib/libcudnn.so.9",
        "lib/stubs/libcuda.so",
    }
    assert {name: (prefix / name).readlink().name for name in ("lib64", "lib/libcudnn.so")} == {
        "lib64": "lib",
        "lib/libcudnn.so": "libcudnn.so.9",
    }
    # A zip may forget the bit; a program in bin has it all the same, what it reads has not.
    assert subprocess.check_output([prefix / "bin/nvcc"], text=True).endswith("V13.0.88\n")
    assert not (prefix / "bin/nvcc.profile").stat().st_mode & 0o111
    assert (prefix / "share/licenses/nvidia_cudnn_cu13-1.2/License.txt").read_text().startswith("the terms")


def test_the_drivers_library_can_be_linked_with_and_says_that_it_is_none(root: Root, tmp_path: Path) -> None:
    pin_two(root)
    assert build(root).returncode == 0
    stubs = prefix_of(root) / "lib/stubs"
    source = tmp_path / "main.c"
    source.write_text(
        "int cuInit(unsigned); int cuMemAlloc_v2(); int main() { return cuInit(0) + cuMemAlloc_v2(); }"
    )
    subprocess.run(["cc", source, "-o", tmp_path / "main", f"-L{stubs}", "-lcuda"], check=True)
    with (tmp_path / "main").open("rb") as file:
        assert "libcuda.so.1" in read_library("main", file).needed
    library = ctypes.CDLL(str(stubs / "libcuda.so"))
    names = ("cuInit", "cuMemAlloc", "cuMemAlloc_v2", "cuMemcpy", "cuMemcpy_ptds")
    assert {name: getattr(library, name)() for name in names} == dict.fromkeys(names, 34)
    assert not hasattr(library, "cuNever")


def test_any_machine_makes_it_for_any_other(root: Root) -> None:
    pin_two(root, THERE)
    done = build(root, target="there")
    assert done.returncode == 0, done.stderr
    with (prefix_of(root) / "lib/stubs/libcuda.so").open("rb") as file:
        assert read_library("libcuda.so", file).machine == THERE.removeprefix("linux-")


def test_two_wheels_with_one_path_are_both_named(root: Root) -> None:
    first, one = write_wheel(root.links, "nvidia-cuda-nvcc", COMPILER)
    second, two = write_wheel(root.links, "nvidia-other", {"nvidia/cudnn/include/cuda.h": "another"})
    pin(root, first, second)
    done = build(root)
    assert done.returncode == 8, done.stderr
    assert f"include/cuda.h comes from {one} and {two}" in done.stderr
    # Also a file where another wheel has a folder.
    second, two = write_wheel(root.links, "nvidia-other", {"nvidia/cudnn/include": "a file"})
    pin(root, first, second)
    done = build(root)
    assert (done.returncode, f"from {one} and {two}" in done.stderr) == (8, True), done.stderr


@pytest.mark.parametrize("name", ["nvidia/cu13/../../../out", "nvidia/cu13/a\\b"])
def test_a_name_that_leads_out_is_refused(root: Root, name: str) -> None:
    pin_two(root)
    write = write_wheel(root.links, "nvidia-cuda-nvcc", {**COMPILER, name: "out"})
    pin(root, write[0], write_wheel(root.links, "nvidia-cudnn-cu13", LIBRARY)[0])
    done = build(root)
    assert done.returncode == 8, done.stderr
    assert "unsafe name" in done.stderr
    assert not list(root.folder.rglob("out"))


def test_a_wheel_with_another_hash_is_refused(root: Root) -> None:
    source, filename = write_wheel(root.links, "nvidia-cuda-nvcc", COMPILER)
    pin(root, source, write_wheel(root.links, "nvidia-cudnn-cu13", LIBRARY)[0])
    write_wheel(root.links, "nvidia-cuda-nvcc", {**COMPILER, "nvidia/cu13/bin/nvcc": "#!/bin/sh\nevil\n"})
    done = build(root)
    assert done.returncode == 5, done.stderr
    assert filename in done.stderr
    assert not list(root.folder.glob("wheelhouse/store/??/*"))


def test_a_wheel_that_brings_nothing_is_no_part_of_it(root: Root) -> None:
    pin_two(root)
    train = (root.folder / "recipes/trains/t.toml").read_text()
    extra = write_wheel(root.links, "nvidia-other", {"elsewhere/file": "text"})[0]
    root.train(f"{train.rstrip().removesuffix(']')}  {extra},\n]\n")
    done = build(root)
    assert done.returncode == 7, done.stderr
    assert "nvidia_other-1.2" in done.stderr
    assert "has none of the folders nvidia/cu13, nvidia/cudnn" in done.stderr


NEEDING = """
[build.env.CUDA_HOME]
value = "{need:cuda}"
why = "setup.py"

[[needs]]
name = "cuda"
providers = ["store", "path"]

[requires]
cuda = true

[audit]
host_only = "a test"
"""
# Which nvcc is found, by CUDA_HOME and on PATH, ends up in the package.
FINDING = {
    **PROJECT,
    "setup.py": "import os, shutil\n"
    "open('tiny/found.py', 'w').write(repr((os.environ['CUDA_HOME'], shutil.which('nvcc'))))\n"
    + PROJECT["setup.py"],
}


def needing(base: Path, root: Root) -> Root:
    """The root with a recipe that needs the toolkit."""
    other = make_root(base, FINDING)
    root.recipe((RECIPE + NEEDING.replace("{need", "{{need").replace("cuda}", "cuda}}")).format(disk=50))
    text = (root.folder / "recipes/trains/t.toml").read_text()
    sdist = other.links / "tiny-1.0.tar.gz"
    (root.links / sdist.name).write_bytes(sdist.read_bytes())
    old = text.partition('sha256 = "')[2][:64]
    root.env["SPARK_BUILD_CACHE"] = "none"  # whose wrapper would stand before nvcc on PATH
    root.train(text.replace(old, hashlib.sha256(sdist.read_bytes()).hexdigest()))
    return root


def wheel_of(root: Root) -> Path:
    (found,) = root.folder.glob("wheelhouse/views/here-t-*/current/tiny*.whl")
    return found.resolve()


def found_in(wheel: Path) -> tuple[str, str]:
    with zipfile.ZipFile(wheel) as archive:
        home, nvcc = eval(archive.read("tiny/found.py"))
    return home, nvcc


def test_what_needs_it_is_built_with_it_and_an_export_has_pins_instead(root: Root, tmp_path: Path) -> None:
    pin_two(root)
    needing(tmp_path / "other", root)
    planned = root.json("--target", "here", "plan", "tiny")
    assert "stays on this machine" in " ".join(planned["steps"][0]["reasons"])
    done = build(root, "tiny")
    assert done.returncode == 0, done.stdout + done.stderr
    home, nvcc = found_in(wheel_of(root))
    assert nvcc == f"{home}/bin/nvcc"
    assert home in ("/run/spark-build/needs/cuda", str(prefix_of(root)))
    key = json.loads((wheel_of(root).parent / "key.json").read_text())
    entry = json.loads((prefix_of(root).parent / "record.json").read_text())
    assert key["inputs"]["needs"]["cuda"] == entry["content_digest"]
    assert "nvcc" not in key["inputs"]["toolchain"]

    folder = tmp_path / "export"
    assert root.run("--target", "here", "wheelhouse", "export", str(folder)).returncode == 0
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert not [path for path in files if path.name in ("nvcc", "cuda.h", "libcuda.so", "libcudnn.so.9")]
    assert not [path for path in files if path.name.startswith("nvidia_cu")]
    (pins,) = folder.rglob("cuda-13.0.3-*.pins.txt")
    sums = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in root.links.glob("nvidia*")}
    listed = [line for line in pins.read_text().splitlines() if not line.startswith("#")]
    assert listed == [
        f"{name.split('-')[0].replace('_', '-')}==1.2 --hash=sha256:{sums[name]}" for name in sorted(sums)
    ]
    told = next(folder.rglob("INSTALL.txt")).read_text()
    assert "spark-build build cuda" in told
    assert pins.name in told
    taken = Root(folder=tmp_path / "taken", links=root.links)
    done = taken.run(
        *("--target", "here", "wheelhouse", "import", "--unsigned"),
        str(next(folder.rglob("manifest.json")).parent),
    )
    assert done.returncode == 0, done.stderr
    assert not list(taken.folder.glob("wheelhouse/store/??/*/prefix"))


def test_a_train_without_one_takes_the_machines_own(root: Root, tmp_path: Path) -> None:
    """CUDA_HOME says where it is; what it is counts for the key, and --provide says it as well."""
    home = tmp_path / "my cuda"
    (home / "bin").mkdir(parents=True)
    (home / "bin/nvcc").write_text(NVCC)
    (home / "bin/nvcc").chmod(0o755)
    needing(tmp_path / "other", root)
    root.env["CUDA_HOME"] = str(home)
    done = build(root, "tiny")
    assert done.returncode == 0, done.stdout + done.stderr
    assert found_in(wheel_of(root))[0] in ("/run/spark-build/needs/cuda", str(home))
    key = json.loads((wheel_of(root).parent / "key.json").read_text())
    assert key["inputs"]["toolchain"]["nvcc"] == "13.0"

    def decision() -> Any:
        return root.json("--target", "here", "plan", "tiny")["steps"][-1]["decision"]

    assert decision() == "REUSE"
    (home / "bin/nvcc").write_text(NVCC.replace("V13.0.88", "V13.0.99"))
    assert decision() == "BUILD"


def test_a_run_that_only_configures_makes_it_for_what_reads_it(root: Root) -> None:
    pin_two(root)
    only = ("--target", "here", "--json", "build", "--stop-after", "configure")
    alone = root.run(*only, "cuda")
    assert alone.returncode == 12, alone.stderr
    (row,) = json.loads(alone.stdout)["results"]
    assert (row["status"], row["reasons"]) == ("skipped", ["only unpacked: there is nothing to configure"])
    assert not list(root.folder.glob("wheelhouse/store/??/*"))
    recipe = root.folder / "recipes/tiny.toml"
    recipe.write_text(recipe.read_text() + '\n[[needs]]\nname = "cuda"\n')
    done = root.run(*only, "tiny")
    rows = {row["recipe"]: row["status"] for row in json.loads(done.stdout)["results"]}
    assert rows == {"cuda": "built", "tiny": "failed"}
    assert (done.returncode, "nothing was checked" in done.stderr) == (12, True), done.stderr
    assert (prefix_of(root) / "bin/nvcc").is_file()
