"""doctor on machines made of files, and each of its checks at the point where it begins to complain."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spark_build.doctor import checks_build, checks_cuda, checks_system, collect
from spark_build.doctor.model import (
    PACKAGES,
    Driver,
    Facts,
    GpuFacts,
    HostLibrary,
    IndexAnswer,
    IndexFacts,
    Link,
    Nvcc,
    PlanRequirements,
    install_line,
)
from spark_build.doctor.support import safe_line, write_support_bundle
from spark_build.errors import Finding, UsageError
from spark_build.machine import Limits
from tests.helpers.commands import hint_text
from tests.helpers.machines import Simulated, diagnose
from tests.helpers.wheelhouse import home_in

STACK = ("torch", "torchvision", "torchaudio", "triton", "flash-attn", "onnx")
Change = Callable[[Facts], Facts]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("machines")


@pytest.fixture(scope="module")
def spark(folder: Path) -> Facts:
    return diagnose(Simulated("spark"), folder, *STACK)[0]


@pytest.fixture(scope="module")
def wants(folder: Path) -> PlanRequirements:
    """What the whole stack needs of a Spark."""
    from spark_build.build import scheduler

    setting = Simulated("spark").setting(folder)
    return PlanRequirements(plan=scheduler.plan(setting, STACK), limits=setting.limits)


def test_a_spark_in_good_order(folder: Path) -> None:
    facts, found = diagnose(Simulated("spark"), folder, *STACK)
    assert {check: one.message for check, one in found.items() if one.severity != "ok"} == {}
    assert found["platform"].message == "linux-aarch64, 20 cores, NVIDIA DGX Spark"
    assert found["distribution"].message == "DGX OS 7.4.0 (Ubuntu 24.04.4 LTS)"
    assert "sbsa-linux" in found["cuda-headers"].message
    assert "compat mode" in found["cufile"].message
    assert "as expected on a Spark" in found["cluster-rdma"].message
    assert "208 MHz" in found["gpu-clocks"].message
    (card,) = facts.gpus
    # "Not Supported" is unknown, never 0.
    assert (card.used_mib, card.limit_watts) == (None, None)
    assert (card.processes, card.utilisation) == (0, 0.0)


def test_a_worn_spark_names_everything(folder: Path) -> None:
    _, found = diagnose(Simulated("spark-worn"), folder, *STACK)
    well = {check for check, one in found.items() if one.severity == "ok"}
    assert well == {
        "writable",
        "python",
        "gpu",
        "cuda",
        "platform",
        "distribution",
        "cluster-links",
        "cluster-rdma",
    }
    assert all(one.hint for check, one in found.items() if check not in well)
    assert "611 MHz" in found["gpu-clocks"].message
    assert "unplug" in hint_text(found["gpu-clocks"].hint)
    assert "hunter2" not in str(found)


def test_the_recorded_h200(folder: Path) -> None:
    _, found = diagnose(Simulated("h200"), folder, "flash-attn", cluster=False)
    wrong = {check: one.severity for check, one in found.items() if one.severity != "ok"}
    # flash-attn needs torch, whose disk and packages count, too.
    assert wrong == {
        "disk": "error", "packages": "error", "sandbox": "warning", "cache": "warning", "index": "error",
    }  # fmt: skip
    assert found["driver"].message == "driver 580.159.04, knows CUDA 13.0"
    assert found["gpu-clocks"].message.startswith("NVIDIA H200: 1980 MHz of 1980, 123 W of 700, P0")
    assert found["ninja"].message == "ninja 1.13.2, shares jobs (jobserver)"


def test_a_board_that_nothing_is_for(folder: Path) -> None:
    facts, found = diagnose(Simulated("bare"), folder)
    assert found["platform"].severity == "error"
    assert facts.gpus == ()
    assert not {"gpu", "cuda", "driver", "nvcc", "cudnn", "gpu-clocks"} & set(found)


def test_what_the_recipe_brings_is_not_asked_for(folder: Path) -> None:
    """With the toolkit of the recipe, nothing of NVIDIA's repository is wanted, nor looked at."""
    machine = Simulated("spark-worn", provide={}, missing_packages=["g++"])
    _, found = diagnose(machine, folder, *STACK)
    assert found["cuda"].message == "CUDA toolkit 13.0.3: the recipe cuda brings it"
    assert not {"nvcc", "cuda-headers", "cudnn", "cublas", "cufile", "nccl"} & set(found)
    assert found["packages"].message == "missing g++"


def test_every_header_that_a_toolkit_lacks_is_named(folder: Path, tmp_path: Path) -> None:
    machine = Simulated("spark")
    shutil.copytree(machine.root, tmp_path / "root", symlinks=True)
    machine.root = tmp_path / "root"
    include = machine.root / "usr/local/cuda/targets/sbsa-linux/include"
    names = ("cusparse.h", "cusolverDn.h", "cufft.h", "curand.h", "nvrtc.h", "nvJitLink.h", "cublas_v2.h")
    for name in names:
        (include / name).unlink()
    _, found = diagnose(machine, folder, *STACK)
    assert found["cuda-headers"].severity == "error"
    assert all(f"include/{name}" in found["cuda-headers"].message for name in names)


NVSHMEM = ("include/nvshmem.h", "lib/libnvshmem_device.a", "lib/libnvshmem_host.so")


@pytest.mark.parametrize(
    ("recipe", "wanted"), [("torch", NVSHMEM), ("torchvision", ("include/nvjpeg.h",)), ("flash-attn", ())]
)
def test_what_one_recipe_wants_of_the_toolkit_is_looked_for(
    recipe: str, wanted: tuple[str, ...], folder: Path, tmp_path: Path
) -> None:
    """torch drops NVSHMEM without a word, torchvision nvJPEG; neither matters to other recipes."""
    provide = (
        {"cuda": "/usr/local/cuda", "torch": "public"} if recipe != "torch" else {"cuda": "/usr/local/cuda"}
    )
    machine = Simulated("spark", provide=provide)
    shutil.copytree(machine.root, tmp_path / "root", symlinks=True)
    machine.root = tmp_path / "root"
    kit = machine.root / "usr/local/cuda/targets/sbsa-linux"
    for name in (*NVSHMEM, "include/nvjpeg.h"):
        (kit / name).unlink()
    facts, found = diagnose(machine, folder, recipe)
    assert facts.toolkit.missing == wanted
    for name in wanted:
        (kit / name).touch()
    facts, found = diagnose(machine, folder, recipe)
    assert (facts.toolkit.missing, found["cuda-headers"].severity) == ((), "ok")


def test_no_package_of_the_toolkit_brings_nvshmem(spark: Facts, wants: PlanRequirements) -> None:
    lacking = put(toolkit__missing=NVSHMEM)(spark)
    found = run(checks_cuda.headers, lacking, wants)
    assert found
    assert found.message.endswith(", ".join(NVSHMEM))
    assert "cuda=store" in hint_text(found.hint)
    for one in (found, run(checks_cuda.headers, lacking, without_cuda(wants))):
        assert one
        assert "cuda-toolkit" not in hint_text(one.hint)
        assert f"put NVSHMEM's files into {spark.toolkit.folder}" in hint_text(one.hint)


@pytest.mark.parametrize("where", ["path", "/usr/local/gone", "~/gone"])
def test_a_need_from_a_folder_that_is_not_there(where: str, folder: Path) -> None:
    machine = Simulated("spark", provide={"cuda": where})
    with pytest.raises(UsageError) as caught:
        diagnose(machine, folder, "torch")
    assert caught.value.message == f"--provide cuda={where}: there is no such folder"
    assert "cuda=DIR" in hint_text(caught.value.hint)


def test_a_toolkit_by_a_relative_path_or_below_home(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As builds take it, which is from the working directory."""
    monkeypatch.chdir("/usr/local")
    monkeypatch.setenv("HOME", "/usr/local")
    for where in ("./cuda", "~/cuda"):
        machine = Simulated("spark", provide={"cuda": where})
        _, found = diagnose(machine, folder, "torch")
        assert found["cuda"].severity == found["cuda-headers"].severity == "ok", where


def test_packages_of_two_repositories_are_two_commands() -> None:
    line = install_line(["g++", "libnccl-dev"])
    assert line.endswith("install -y -- g++ && sudo apt-get install -y -- libnccl-dev")
    assert install_line(["--only-upgrade", "libnccl-dev"]).endswith(
        "install -y --only-upgrade -- libnccl-dev"
    )
    assert install_line(["g++; reboot"]).endswith("install -y -- 'g++; reboot'")


def test_what_no_plan_needs_is_no_failure(folder: Path) -> None:
    """The same worn Spark, nothing to be built: a repacked wheel needs no compiler, driver or index."""
    _, building_all = diagnose(Simulated("spark-worn"), folder, *STACK)
    _, found = diagnose(Simulated("spark-worn", disk_free_mib=90000), folder, "cusparselt")
    for check in ("kernel", "python-headers"):
        assert building_all[check].severity == "error", check
        assert found[check].severity == "warning", check
    for check in ("cuda-headers", "cudnn"):
        assert building_all[check].severity == "error", check
    assert not {"cuda", "cuda-headers", "cudnn", "nvcc"} & set(
        found
    )  # nothing is compiled: no toolkit is needed


# --- each check: what makes it complain -----------------------------------------------------------


def put(**path_and_value: Any) -> Change:
    """A change of facts: put(system__kernel="5.4") replaces facts.system.kernel."""

    def change(facts: Facts) -> Facts:
        for path, value in path_and_value.items():
            facts = _put(facts, path.split("__"), value)
        return facts

    return change


def _put(holder: Any, names: list[str], value: Any) -> Any:
    inner = value if len(names) == 1 else _put(getattr(holder, names[0]), names[1:], value)
    return dataclasses.replace(holder, **{names[0]: inner})


def library(name: str, headers: dict[str, str], files: dict[str, str]) -> Change:
    """Facts in which only this is found of a library."""
    return lambda facts: dataclasses.replace(
        facts, libraries={**facts.libraries, name: HostLibrary(headers=headers, files=files)}
    )


def card(**values: Any) -> Change:
    """Facts in which the GPU is like that."""
    return lambda facts: dataclasses.replace(
        facts, gpus=tuple(dataclasses.replace(one, **values) for one in facts.gpus)
    )


def links(**values: Any) -> Change:
    """Facts in which the interfaces that are up are like that."""

    def change(facts: Facts) -> Facts:
        assert facts.cluster
        changed = tuple(dataclasses.replace(one, **values) if one.up else one for one in facts.cluster.links)
        return put(cluster__links=changed)(facts)

    return change


def index(*asked: IndexAnswer, **values: Any) -> Change:
    return put(indexes=IndexFacts(asked=asked, **values))


DEB = {"ID": "debian", "VERSION_ID": "11", "PRETTY_NAME": "Debian 11"}
NVCCS = (Nvcc(path="/usr/local/cuda/bin/nvcc", version="13.0.88", rank=1), Nvcc(path="/usr/bin/nvcc", version="12.0.140", rank=0))  # fmt: skip
SHORT = {"some": 12.0, "full": 0.0}
DOWN = Link(name="enp1s0f0np0", device="rocep1s0f0", up=False, mtu=1500)
APPARMOR = {"kernel/apparmor_restrict_unprivileged_userns": "1"}
MIB = 12_000  # memory that is available in some cases
# (check, what is changed on a Spark in good order, status, words of the message, words of what mends it)
CASES: tuple[tuple[Any, Change, str, str, str], ...] = (
    (checks_build.target, put(basics__machine__platform="linux-x86_64"), "error", "is built on linux-aarch64", "plan"),
    (checks_build.target, put(basics__machine__python="cp313"), "error", "this is cp313", "python3.12"),
    (checks_build.disk, put(basics__disk_free_mib=0), "error", "0 MiB free", "--root DIR"),
    (checks_build.memory, put(basics__machine__available_mib=MIB), "error", "one compile job of", "--ignore-memory"),
    (checks_build.gpu, put(basics__machine__gpus=()), "warning", "no GPU here", ""),
    (checks_build.toolkit, put(basics__nvcc=""), "error", "missing", "cuda-toolkit-13-0"),
    (checks_build.toolkit, put(basics__nvcc=""), "error", "in NVIDIA's apt repository only", "--provide cuda=store"),
    (checks_cuda.headers, put(toolkit__missing=("include/cusparse.h", "include/nvrtc.h")), "error", "cusparse.h, include/nvrtc.h", "cuda=store"),
    (checks_build.namespaces, put(basics__sandbox="none", basics__forbids_namespaces={}), "warning", "bubblewrap does not run", "pivot_root"),
    (checks_build.toolkit, put(basics__nvcc="12.9"), "error", "12.9", "cuda-toolkit-13-0"),
    (checks_build.packages, put(basics__missing_packages=("g++",)), "error", "missing g++", "apt-get install -y -- g++"),
    (checks_build.packages, put(basics__missing_packages=("g++",), basics__has_apt=False), "error", "g++", "what your system calls"),
    (checks_build.sandbox, put(basics__sandbox="none", basics__has_bubblewrap=False), "warning", "", "install -y -- bubblewrap"),
    (checks_build.sandbox, put(basics__sandbox="none"), "warning", "", "/etc/apparmor.d/bwrap"),
    (checks_build.sandbox, put(basics__sandbox="none", basics__forbids_namespaces={}), "warning", "", "in a container"),
    (checks_build.cache, put(basics__cache=""), "warning", "no compiler cache", "ccache"),
    (checks_build.namespaces, put(basics__may_namespaces=False), "warning", "AppArmor forbids", "apparmor_parser"),
    (checks_build.namespaces, put(basics__forbids_namespaces={"kernel/unprivileged_userns_clone": "0"}), "warning", "userns_clone = 0", "sysctl"),
    (checks_system.platform, put(basics__machine__platform="linux-riscv64"), "error", "no recipe", "linux-aarch64"),
    (checks_system.distribution, put(system__os=DEB), "error", "CUDA 13 does not support", "upgrade"),
    (checks_system.distribution, put(system__os={"ID": "ubuntu", "VERSION_ID": "25.10"}), "warning", "", "upgrade"),
    (checks_system.distribution, put(system__os={}), "warning", "by hand", "recipes show"),
    (checks_system.kernel, put(system__kernel="6.10.9-x"), "error", "older than 6.11", "reboot"),
    (checks_system.kernel, put(system__restart_wanted=True), "warning", "wait for a restart", "reboot"),
    (checks_system.swap, put(system__swap_used_mib=12_455), "warning", "short of memory", "swapoff"),
    (checks_system.pressure, put(system__pressure=None), "warning", "does not tell", "psi=1"),
    (checks_system.pressure, put(system__pressure=SHORT), "warning", "12%", "ps aux"),
    (checks_system.clock, put(system__now=1789900000.0), "error", "1 days behind", "set-ntp"),
    (checks_system.clock, index(IndexAnswer(where="a", ahead=301.0)), "error", "5 min behind", "set-ntp"),
    (checks_system.clock, index(IndexAnswer(where="a", ahead=-1200.0)), "error", "20 min ahead of", "set-ntp"),
    (checks_system.clock, put(system__synchronised=False), "warning", "not synchronised", "set-ntp"),
    (checks_system.locale, put(system__locale_usable=False), "warning", "en_US.UTF-8 is not installed", "C.UTF-8"),
    (checks_system.locale, put(system__encoding="ISO-8859-1"), "warning", "not UTF-8", "C.UTF-8"),
    (checks_system.proxies, put(system__proxies={"http_proxy": "http://a:1", "HTTP_PROXY": "http://b:1"}), "warning", "differ", "unset HTTP_PROXY"),
    (checks_system.proxies, put(system__proxies={"https_proxy": "a:3128"}), "warning", "needs a scheme", "http://HOST:PORT"),
    (checks_system.proxies, put(system__proxies={"https_proxy": "http://a:port"}), "warning", "is no address", "http://HOST:PORT"),
    (checks_system.proxies, put(system__proxies={"http_proxy": "http://u:pw@a:3128"}), "warning", "https_proxy is not", "https_proxy"),
    (checks_system.index, index(IndexAnswer(where="a", failure="refused")), "error", "a: refused", "PIP_FIND_LINKS"),
    (checks_system.index, index(IndexAnswer(where="a", failure="refused"), lacking=0), "warning", "all that the builds need", ""),
    (checks_system.index, index(IndexAnswer(where="a", failure="refused"), IndexAnswer(where="b")), "warning", "b answers", ""),
    (checks_system.index, index(), "error", "no index", "PIP_FIND_LINKS"),
    (checks_system.index, index(problem="pip cannot read"), "error", "pip cannot read", "pip config"),
    (checks_cuda.driver, put(driver=Driver(module="580.142", libraries="580.95.05")), "error", "its libraries are 580.95.05", "reboot"),
    (checks_cuda.driver, put(driver=Driver(module="580.65.05", libraries="580.65.05")), "error", "580.65.06 or newer", "nvidia-driver-580-open"),
    (checks_cuda.driver, put(driver=Driver(problem="No devices were found")), "error", "No devices were found", "reboot"),
    (checks_cuda.nvccs, put(nvccs=NVCCS), "warning", "your shell /usr/bin/nvcc", "remove nvidia-cuda-toolkit"),
    (checks_cuda.headers, put(toolkit__missing=("include/cuda_runtime_api.h",)), "error", "lacks include/cuda_runtime_api.h", "cuda-toolkit-13-0"),
    (checks_cuda.headers, put(toolkit__foreign=("lib/libcudart.so",)), "error", "another processor", "cuda-toolkit-13-0"),
    (checks_cuda.libraries, library("cuDNN", {}, {}), "error", "headers and library missing", "libcudnn9-dev-cuda-13"),
    (checks_cuda.libraries, library("cuDNN", {"h": "8.9.7"}, {"libcudnn.so": ""}), "error", "8.9.7", "libcudnn9-dev-cuda-13"),
    (checks_cuda.libraries, library("cuBLAS", {"h": "13.1.0"}, {"libcublas.so.13": ""}), "error", "cuBLAS: library missing", "libcublas-dev-13-0"),
    (checks_cuda.libraries, library("cuBLAS", {"h": "13.0.2"}, {"libcublas.so": ""}), "warning", "faster on GB10", "--only-upgrade"),
    (checks_cuda.libraries, library("cuFile", {}, {"libcufile.so": ""}), "error", "cuFile: headers missing", "libcufile-dev-13-0"),
    (checks_cuda.libraries, put(compat_allowed=False), "warning", "forbids compat mode", "allow_compat_mode"),
    (checks_cuda.libraries, library("NCCL", {}, {}), "error", "missing", "libnccl-dev"),
    (checks_cuda.libraries, library("NCCL", {"h": "2.28.3"}, {"libnccl.so": "", "libnccl.so.2.27.7": "2.27.7"}), "warning", "several NCCL", "dpkg -S"),
    (checks_cuda.compiler, put(tools__compiler="", tools__compiler_version=""), "error", "no C++ compiler", "g++"),
    (checks_cuda.compiler, put(tools__compiler_version="8.5.0"), "error", "too old for C++17", "g++-13"),
    (checks_cuda.compiler, put(tools__compiler_version="16.1.0"), "error", "up to 15", "g++-15"),
    (checks_cuda.compiler, put(tools__compiler="clang", tools__compiler_version="21.1.0"), "error", "up to 20", "g++-15"),
    (checks_build.tools, put(tools__cmake="", tools__paths={"cmake": "/home/me/my bin/cmake"}), "warning", "does not run", "rm '/home/me/my bin/cmake'"),
    (checks_build.tools, put(tools__cmake="", tools__paths={"cmake": "/usr/local/bin/cmake"}), "warning", "does not run", "sudo rm /usr/local/bin/cmake"),
    (checks_build.tools, put(tools__ninja="", tools__paths={"ninja": "/usr/bin/ninja"}), "warning", "does not run", "--reinstall -y ninja-build"),
    (checks_build.python_headers, put(tools__python_headers=False), "error", "Python 3.12", "python3.12-dev"),
    (checks_cuda.busy, card(processes=2), "warning", "2 processes", "nvidia-smi"),
    (checks_cuda.busy, card(processes=None, utilisation=0.1), "warning", "10% busy", "nvidia-smi"),
    (checks_cuda.clocks, card(clock_mhz=850, utilisation=0.5), "warning", "850 MHz", "unplug"),
    (checks_cuda.clocks, card(clock_mhz=500, utilisation=1.0), "warning", "about 2400", "unplug"),
    (checks_cuda.clocks, card(reasons=("HW power brake",)), "warning", "held down: HW power brake", "power adapter"),
    (checks_cuda.clocks, card(reasons=("applications clocks setting",)), "warning", "setting", "--reset-gpu-clocks"),
    (checks_system.nccl, library("NCCL", {}, {"libnccl.so.2.28.2": "2.28.2"}), "error", "2.28.3 or newer", "libnccl2"),
    (checks_system.nccl, library("NCCL", {}, {}), "error", "no NCCL", "libnccl2"),
    (checks_system.links, put(cluster__links=(DOWN,)), "error", "0 of 2", "cable"),
    (checks_system.links, put(cluster__links=()), "error", "no network card", "rdma"),
    (checks_system.mtu, links(mtu=8999), "error", "8999", "mtu 9000"),
    (checks_system.addresses, links(addresses=()), "error", "has none", "netplan"),
    (checks_system.addresses, links(addresses=("10.0.0.1",), dynamic=("10.0.0.1",)), "error", "DHCP", "netplan"),
    (checks_system.rdma, put(cluster__rdma=None), "warning", "cannot be asked", ""),
    (checks_system.rdma, put(basics__machine__gpus=(), cluster__rdma=True), "warning", "not loaded", "modprobe"),
    (checks_system.rdma, put(basics__machine__gpus=()), "warning", "offers no", ""),
)  # fmt: skip
BASIC = {*checks_build.REQUIRED, *checks_system.NAMESPACES}


def run(check: Any, facts: Facts, wants: PlanRequirements) -> Finding | None:
    found = check(facts.basics if check in BASIC else facts, wants)
    if isinstance(found, tuple):  # of several things: what is wrong, else the first
        found = next((one for one in found if one.severity != "ok"), found[0] if found else None)
    assert found is None or isinstance(found, Finding)
    return found


@pytest.mark.parametrize(
    ("check", "change", "status", "words", "fix"), CASES, ids=[f"{one[0].__name__}-{n}" for n, one in enumerate(CASES)]
)  # fmt: skip
def test_a_check_complains(
    check: Any, change: Change, status: str, words: str, fix: str, spark: Facts, wants: PlanRequirements
) -> None:
    before = run(check, spark, wants)
    assert before is None or before.severity == "ok"
    after = run(check, change(spark), wants)
    assert after is not None
    assert (after.severity, words in after.message, fix in hint_text(after.hint)) == (status, True, True), (
        after
    )


def test_every_check_is_among_them() -> None:
    every = {
        *checks_build.REQUIRED,
        *checks_system.NAMESPACES,
        *checks_system.THOROUGH,
        *checks_system.CLUSTER,
    }
    assert every - {checks_build.writable, checks_build.python, checks_build.named} == {
        case[0] for case in CASES
    }


@pytest.mark.parametrize(
    ("check", "change"),
    [
        (checks_system.kernel, put(system__kernel="6.11.0-1016-nvidia")),
        (checks_system.swap, put(system__swap_used_mib=12_454)),
        (checks_system.pressure, put(system__pressure={"some": 9.9, "full": 0.0})),
        (checks_system.clock, index(IndexAnswer(where="a", ahead=299.0))),
        (checks_system.clock, put(system__synchronised=None)),
        (checks_system.proxies, put(system__proxies={"http_proxy": "http://a:1", "HTTP_PROXY": "http://a:1", "https_proxy": "http://a:1", "no_proxy": "localhost"})),
        (checks_system.index, index(links=True)),
        (checks_cuda.driver, put(driver=Driver(module="580.65.06", libraries="580.65.06"))),
        (checks_cuda.driver, put(driver=Driver(module="590.44.01", libraries="590.44.01", cuda="13.1"))),
        (checks_cuda.nvccs, put(nvccs=(NVCCS[0], Nvcc(path="/usr/local/cuda-12.8/bin/nvcc", version="13.0.88", rank=None)))),
        (checks_cuda.libraries, put(gds=True, compat_allowed=False)),
        (checks_cuda.compiler, put(tools__compiler_version="15.2.0")),
        (checks_cuda.compiler, put(tools__compiler="clang", tools__compiler_version="20.1.8")),
        (checks_build.tools, put(tools__ninja="1.11.1")),
        (checks_build.tools, put(tools__cmake=None)),
        (checks_cuda.busy, card(utilisation=0.09)),
        (checks_cuda.busy, card(utilisation=None, processes=None)),
        (checks_cuda.clocks, card(clock_mhz=1440, utilisation=1.0)),
        (checks_cuda.clocks, card(clock_mhz=850, utilisation=0.4)),  # idle: nothing can be said
        (checks_cuda.clocks, card(clock_mhz=None, utilisation=1.0)),
        (checks_system.nccl, library("NCCL", {}, {"libnccl.so.2": "", "libnccl.so.2.29.1": "2.29.1"})),
        (checks_system.mtu, links(mtu=9216)),
        (checks_system.rdma, put(cluster__rdma=True)),
    ],
)  # fmt: skip
def test_a_check_is_content(check: Any, change: Change, spark: Facts, wants: PlanRequirements) -> None:
    found = run(check, change(spark), wants)
    assert found is not None
    assert found.severity == "ok", found


def test_a_recipe_asked_for_by_name_can_be_built_at_all(spark: Facts, folder: Path) -> None:
    from spark_build.build import scheduler

    setting = Simulated("spark").setting(folder)
    cpu = dataclasses.replace(setting, target=setting.catalogue.target("host-cpu"))
    wants = PlanRequirements(plan=scheduler.plan(cpu, ["flash-attn", "onnx"]), limits=setting.limits)
    assert checks_build.named(spark.basics, wants) == (), "it is not asked for by name"
    named = dataclasses.replace(wants, named=frozenset({"flash-attn"}))
    (found,) = checks_build.named(spark.basics, named)
    assert (found.rule, found.severity) == ("recipe", "error")
    assert found.message.startswith("flash-attn cannot be built for host-cpu: ")


def without_cuda(wants: PlanRequirements) -> PlanRequirements:
    """The same plan by a train that has no version of the recipe cuda."""
    components = {name: pin for name, pin in wants.plan.train.components.items() if name != "cuda"}
    train = dataclasses.replace(wants.plan.train, components=components)
    return dataclasses.replace(wants, plan=dataclasses.replace(wants.plan, train=train))


@pytest.mark.parametrize(
    ("check", "change"),
    [
        (checks_build.toolkit, put(basics__nvcc="")),
        (checks_cuda.headers, put(toolkit__missing=("include/cusparse.h",))),
    ],
)
def test_the_recipes_toolkit_is_offered_where_the_train_has_one(
    check: Any, change: Change, spark: Facts, wants: PlanRequirements
) -> None:
    found = run(check, change(spark), without_cuda(wants))
    assert found
    assert (found.severity, "cuda=store" in hint_text(found.hint)) == ("error", False), found
    assert "cuda-toolkit-13-0" in hint_text(found.hint)


def test_cxx20_is_asked_of_what_sees_the_headers_of_torch_2_15(spark: Facts, folder: Path) -> None:
    from spark_build.build import scheduler

    setting = Simulated("spark").setting(folder)
    newest = dataclasses.replace(setting, train=setting.catalogue.train("2.15"), provide={"torch": "public"})
    wants = PlanRequirements(plan=scheduler.plan(newest, ["flash-attn"]), limits=setting.limits)
    older = put(tools__compiler_version="11.2.0")(spark)
    found = run(checks_cuda.compiler, older, wants)
    assert found
    assert (found.severity, "C++20" in found.message) == ("error", True)
    found = run(checks_cuda.compiler, put(tools__compiler_version="11.3.0")(spark), wants)
    assert found
    assert found.severity == "ok"


@pytest.mark.parametrize("found", ["8.5.0", "16.1.0"])
def test_the_compiler_that_is_to_be_installed_is_the_one_that_is_found_then(
    spark: Facts, wants: PlanRequirements, tmp_path: Path, found: str
) -> None:
    """The printed commands, for real, on links as Debian's packages gcc and g++ make them."""
    finding = run(checks_cuda.compiler, put(tools__compiler_version=found)(spark), wants)
    assert finding
    install, *choose = hint_text(finding.hint).split(" && sudo update-alternatives ")
    wanted = install.rpartition("g++-")[2]
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    for number in (found.partition(".")[0], wanted):
        for program in ("g++", "gcc"):
            (bin_ / f"{program}-{number}").write_text(f"#!/bin/sh\necho {program}-{number}\n")
            (bin_ / f"{program}-{number}").chmod(0o755)
            (bin_ / program).unlink(missing_ok=True)
            (bin_ / program).symlink_to(f"{program}-{found.partition('.')[0]}")
    base = ["update-alternatives"]
    for option in ("altdir", "admindir"):
        (tmp_path / option).mkdir()
        base += [f"--{option}", str(tmp_path / option)]
    base += ["--log", str(tmp_path / "log")]
    for line in (f"--install /usr/bin/c++ c++ {bin_}/g++ 20", *choose):
        subprocess.run([*base, *line.replace("/usr/bin", str(bin_)).split()], check=True, timeout=60)
    asked = [subprocess.check_output([bin_ / name], text=True).strip() for name in ("c++", "g++", "gcc")]
    assert asked == [f"g++-{wanted}", f"g++-{wanted}", f"gcc-{wanted}"]


def test_a_memory_limit_of_ours_names_the_option(spark: Facts, wants: PlanRequirements) -> None:
    """Where the user's own --memory is what is short, it is that which must grow."""
    short = dataclasses.replace(wants, limits=Limits(cores=20, reserve_mib=0, memory_mib=500))
    found = checks_build.memory(spark.basics, short)
    assert (found.severity, hint_text(found.hint).startswith("--memory ")) == ("error", True)


def test_no_folder_that_cannot_be_written(spark: Facts, wants: PlanRequirements) -> None:
    found = checks_build.writable(put(basics__folders={"/a": True, "/b": False})(spark).basics, wants)
    assert [(one.severity, one.message) for one in found] == [
        ("ok", "/a can be written"),
        ("error", "/b cannot be written"),
    ]


def test_only_what_harms_nobody_is_safe(spark: Facts, wants: PlanRequirements) -> None:
    """--fix may install packages, add a profile and set the clock; nothing that restarts or removes."""
    commands = set()
    for check, change, *_ in CASES:
        found = run(check, change(spark), wants)
        if found and safe_line(found):
            commands.add(hint_text(found.hint).partition(" -y ")[0].split(" && ")[-1].partition(" (")[0])
    assert commands
    assert all(
        one.startswith(("sudo apt-get install", "sudo apparmor_parser", "sudo timedatectl"))
        for one in commands
    )
    kept = put(basics__sandbox="none", basics__has_profile=True)(spark)
    found = run(checks_build.sandbox, kept, wants)
    assert found
    assert not safe_line(found)  # a profile that is there is not overwritten


@pytest.mark.parametrize("name", ["cuDNN", "cuBLAS", "cuFile", "NCCL"])
def test_a_package_that_apt_does_not_know_is_not_installed_by_fix(
    name: str, spark: Facts, wants: PlanRequirements
) -> None:
    """Without NVIDIA's repository the command would fail."""
    lacking, package = library(name, {}, {})(spark), PACKAGES[name]
    found = run(checks_cuda.libraries, lacking, wants)
    assert found
    assert (safe_line(found), package in hint_text(found.hint)) == ("", True)
    assert "--provide cuda=store" in hint_text(found.hint)
    elsewhere = run(checks_cuda.libraries, lacking, without_cuda(wants))
    assert elsewhere
    assert (safe_line(elsewhere), hint_text(elsewhere.hint)) == ("", install_line([package]))
    known = run(checks_cuda.libraries, put(installable=(package,))(lacking), wants)
    assert known
    assert safe_line(known) == install_line([package])


# --- what is gathered ------------------------------------------------------------------------------


def test_one_nvcc_under_two_names_is_one(tmp_path: Path) -> None:
    paths = ("/usr/local/cuda/bin/nvcc", "/usr/local/cuda-13.0/bin/nvcc")
    said = "Cuda compilation tools, release 13.0, V13.0.88"
    machine = Simulated("spark", commands={f"{path} --version": said for path in paths})
    machine.root = tmp_path
    real = tmp_path / "usr/local/cuda-13.0/bin/nvcc"
    real.parent.mkdir(parents=True)
    real.touch(mode=0o755)
    (tmp_path / "usr/local/cuda").symlink_to("cuda-13.0")
    assert collect.compilers(machine, "/usr/local/cuda") == (
        Nvcc(path="/usr/local/cuda/bin/nvcc", version="13.0.88", rank=0),
    )


def test_apt_is_asked_which_of_the_packages_it_knows(folder: Path) -> None:
    said = (
        "libcudnn9-dev-cuda-13:\n  Installed: (none)\n  Candidate: 9.14.0.64-1\n  Version table:\n"
        "libcublas-dev-13-0:\n  Installed: (none)\n  Candidate: (none)\n  Version table:\n"
        "libnccl-dev:\n  Installed: 2.28.3-1+cuda13.0\n  Candidate: 2.28.3-1+cuda13.0\n  Version table:\n"
    )
    line = "apt-cache policy libcublas-dev-13-0 libcudnn9-dev-cuda-13 libcufile-dev-13-0 libnccl-dev"
    machine = Simulated("spark")
    machine.data["commands"][line] = said
    facts, _ = diagnose(machine, folder, "torch")
    assert facts.installable == ("libcudnn9-dev-cuda-13", "libnccl-dev")
    silent, _ = diagnose(Simulated("spark"), folder, "torch")
    assert silent.installable == ()


def test_libraries_in_two_places_are_both_seen() -> None:
    found = collect.libraries(Simulated("spark-worn"), "linux-aarch64", "/usr/local/cuda")["NCCL"]
    assert found.headers == {"/usr/include/nccl.h": "2.27.7", "/usr/local/include/nccl.h": "2.26.2"}


def test_a_driver_that_supports_nothing_knows_nothing() -> None:
    said = "<nvidia_smi_log><gpu><utilization><gpu_util>N/A</gpu_util></utilization></gpu></nvidia_smi_log>"
    _, (found,) = collect.survey_gpus(Simulated("spark", commands={"nvidia-smi -q -x": said}))
    assert found == GpuFacts(name="")


def test_a_driver_that_does_not_answer() -> None:
    said = "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 580.95\n"
    machine = Simulated("spark", commands={"nvidia-smi -q -x": said})
    driver, cards = collect.survey_gpus(machine)
    assert (driver.libraries, cards) == ("580.95", ())
    assert driver.problem == "Failed to initialize NVML: Driver/library version mismatch"
    silent = Simulated("bare")
    assert collect.survey_gpus(silent) == (Driver(), ())


def test_the_machines_are_said_to_be_what_they_are() -> None:
    readme = (Path(__file__).parents[1] / "data" / "machines" / "README.md").read_text()
    for folder in (Path(__file__).parents[1] / "data" / "machines").iterdir():
        if folder.is_dir():
            assert f"**{folder.name}**" in readme
            json.loads((folder / "machine.json").read_text())


def test_a_bundle_takes_no_log_that_a_build_planted(spark: Facts, tmp_path: Path) -> None:
    """Also in the sandbox it may write to its own src/, and without one anywhere."""
    home, outside = home_in(tmp_path), tmp_path / "outside"
    outside.write_text("a private key")
    for name in ("tiny/a/src", "tiny/b", "tiny/c", "tiny/d"):
        (home.build / name).mkdir(parents=True)
    (home.build / "tiny/a/build.log").write_text("what was built\n")
    (home.build / "tiny/a/src/build.log").symlink_to(outside)
    (home.build / "tiny/b/build.log").symlink_to(outside)
    (home.build / "tiny/c/build.log").mkdir()
    (home.build / "tiny/d/build.log").symlink_to("nowhere")
    names = write_support_bundle(tmp_path / "b.tar", home, spark, [])
    assert [name for name in names if name.startswith("logs/")] == ["logs/tiny-a.log"]
    assert b"a private key" not in (tmp_path / "b.tar").read_bytes()
