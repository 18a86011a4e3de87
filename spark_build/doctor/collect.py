"""Collect the facts that the checks judge, also which package indexes answer."""

from __future__ import annotations

import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from email.utils import parsedate_to_datetime
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from spark_build.build import compiler_cache
from spark_build.build.environment import no_folder
from spark_build.doctor import checks_build, probe
from spark_build.doctor.model import (
    Basics,
    Cluster,
    Driver,
    Facts,
    GpuFacts,
    HostLibrary,
    IndexAnswer,
    IndexFacts,
    Link,
    Nvcc,
    PlanRequirements,
    SystemFacts,
    ToolFacts,
    Toolkit,
)
from spark_build.doctor.probe import MachineAccess
from spark_build.errors import Finding, SparkBuildError
from spark_build.machine import REASONS, Limits, Machine
from spark_build.paths import Home
from spark_build.probe import CUDA, SYSTEM_PATH
from spark_build.recipes.model import Plan

if TYPE_CHECKING:
    from spark_build.sources.http import PipConfig

PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
SYNCHRONISED = "/run/systemd/timesync/synchronized"


def collect_facts(
    access: MachineAccess,
    home: Home,
    wants: PlanRequirements,
    machine: Machine,
    *,
    indexes: Callable[[], IndexFacts],
    with_cluster: bool = False,
) -> Facts:
    """Collect all facts without changing anything. `indexes`: ask them too, which takes longest.

    Raise UsageError for a need that is to come from a folder that is not there.
    """
    _refuse_lost(access, wants.plan)
    with ThreadPoolExecutor(max_workers=8) as pool:
        asked = pool.submit(indexes)
        cards = pool.submit(_cards, access, needed=wants.is_for_gpu or bool(machine.gpus))
        kit = _absolute(wants.toolkit)
        nvccs = pool.submit(compilers, access, kit) if kit else None
        known = pool.submit(_known_packages, access, sorted(wants.packages.values()))
        found = pool.submit(tools, access)
        cluster = pool.submit(_cluster, access) if with_cluster else None
        basics = collect_basics(access, home, wants, machine)
        driver, cards_found = cards.result()
        return Facts(
            basics=basics,
            system=system(access),
            tools=found.result(),
            driver=driver,
            gpus=cards_found,
            nvccs=nvccs.result() if nvccs else (),
            toolkit=toolkit(access, machine.platform, kit, (step.recipe.name for step in wants.compiled)),
            libraries=libraries(access, machine.platform, kit or CUDA),
            gds=access.exists("/sys/module/nvidia_fs"),
            compat_allowed=probe.allows_compat(access.read("/etc/cufile.json")),
            indexes=asked.result(),
            installable=known.result(),
            cluster=cluster.result() if cluster else None,
        )


def _known_packages(access: MachineAccess, names: Sequence[str]) -> tuple[str, ...]:
    """Return those of these packages that apt could install."""
    return probe.candidates(access.ask(["apt-cache", "policy", *names]) or "") if names else ()


def _cards(access: MachineAccess, *, needed: bool) -> tuple[Driver, tuple[GpuFacts, ...]]:
    return survey_gpus(access) if needed or access.exists("/proc/driver/nvidia") else (Driver(), ())


def system(access: MachineAccess) -> SystemFacts:
    """Return the operating system and the user's session."""
    memory = probe.meminfo(access.read("/proc/meminfo"))
    environ = access.environ
    total = memory.get("SwapTotal", 0)
    synchronised = access.exists(SYNCHRONISED)
    return SystemFacts(
        os=probe.shell_values(access.read("/etc/os-release")),
        dgx=probe.shell_values(access.read("/etc/dgx-release")),
        product=access.read("/sys/class/dmi/id/product_name").strip().replace("_", " "),
        kernel=access.read("/proc/sys/kernel/osrelease").strip(),
        restart_wanted=access.exists("/run/reboot-required"),
        swap_total_mib=total,
        swap_used_mib=total - memory.get("SwapFree", total),
        pressure=probe.pressure(access.read("/proc/pressure/memory")),
        now=access.now(),
        installed=access.installed(),
        # No systemd-timesyncd here: something else may keep the time.
        synchronised=True if synchronised else False if access.exists("/run/systemd/timesync") else None,
        locale=environ.get("LC_ALL") or environ.get("LC_CTYPE") or environ.get("LANG", ""),
        locale_usable=access.locale_usable,
        encoding=access.encoding(),
        proxies={
            name: environ[name] for lower in PROXIES for name in (lower, lower.upper()) if name in environ
        },
    )


def tools(access: MachineAccess) -> ToolFacts:
    """Return the compiler that builds use, and the tools on the user's PATH."""
    compiler = next(iter(access.which_all("c++", SYSTEM_PATH)), "")
    kind, number = probe.compiler(access.ask([compiler, "--version"]) or "") if compiler else ("", "")
    paths = {
        name: path
        for name in ("cmake", "ninja")
        for path in access.which_all(name, access.environ.get("PATH", ""))[:1]
    }
    return ToolFacts(
        compiler=kind,
        compiler_version=number,
        cmake=_version(access, paths.get("cmake")),
        ninja=_version(access, paths.get("ninja")),
        python_headers=access.python_headers(),
        paths=paths,
    )


def _version(access: MachineAccess, path: str | None) -> str | None:
    """Return a tool's version as it prints it; "" when it does not run, None when it is missing."""
    return None if path is None else probe.tool_version(access.ask([path, "--version"]) or "")


def _cluster(access: MachineAccess) -> Cluster:
    addresses = probe.addresses(access.ask(["ip", "-j", "addr"]) or "")
    links = []
    for path in access.glob("/sys/class/infiniband/*/device/net/*"):
        parts = path.split("/")
        name, device = parts[-1], parts[4]
        mtu = access.read(f"/sys/class/net/{name}/mtu").strip()
        have, moving = addresses.get(name, ((), ()))
        links.append(
            Link(
                name=name,
                device=device,
                up=access.read(f"/sys/class/net/{name}/operstate").strip() == "up",
                mtu=int(mtu) if mtu.isdecimal() else 0,
                addresses=have,
                dynamic=moving,
            )
        )
    return Cluster(
        links=tuple(links), rdma=access.rdma(), peermem=access.exists("/sys/module/nvidia_peermem")
    )


def examine(home: Home, plan: Plan, machine: Machine, limits: Limits) -> tuple[Finding, ...]:
    """Return the findings that can stop a build of these recipes; changes nothing.

    Raise UsageError for a need that is to come from a folder that is not there.
    """
    access, wants = MachineAccess(), PlanRequirements(plan=plan, limits=limits)
    _refuse_lost(access, plan)
    return checks_build.required(collect_basics(access, home, wants, machine), wants)


def _refuse_lost(access: MachineAccess, plan: Plan) -> None:
    """Raise UsageError for a folder that is to provide a need and is not there."""
    for step in plan.steps:
        for one in step.provisions if step.decision == "BUILD" else ():
            if one.provider == "path" and not access.exists(_absolute(one.path)):
                raise no_folder(one.need, one.path)


def _absolute(where: str) -> str:
    """Return a path as builds take it; "" for none."""
    return str(Path(where).expanduser().absolute()) if where else ""


def collect_basics(access: MachineAccess, home: Home, wants: PlanRequirements, machine: Machine) -> Basics:
    """Collect the facts that decide whether a build may start."""
    folders = sorted({_existing(folder) for folder in (home.wheelhouse, home.build, home.sources)})
    place = _existing(home.build)
    with ThreadPoolExecutor() as pool:  # each of them starts a program and waits
        sandbox, caching = pool.submit(access.sandbox), pool.submit(access.cache, home)
        missing = access.missing_packages(_packages(wants.plan))
        nvcc = _nvcc(access, _absolute(wants.toolkit))
        found, cache = sandbox.result(), caching.result()
    short = checks_build.largest_job(wants)[1] > checks_build.room(machine, wants)
    where = ", with a remote cache; it compiles outside the sandbox" if cache.remote else ""
    where = f" with {cache.shared}, shared" if cache.shared else where
    where = f"; objects are not shared: {cache.unshared}" if cache.unshared else where
    return Basics(
        machine=machine,
        python=access.python,
        folders={str(folder): os.access(folder, os.W_OK | os.X_OK) for folder in folders},
        disk_free_mib=access.free_mib(place),
        disk_place=str(place),
        nvcc=nvcc,
        missing_packages=missing,
        has_apt=bool(access.which_all("apt-get", access.environ.get("PATH", SYSTEM_PATH))),
        sandbox=found.kind,
        sandbox_limits=found.limits,
        has_bubblewrap=bool(access.which_all("bwrap", access.environ.get("PATH", SYSTEM_PATH))),
        forbids_namespaces={
            name: value
            for name in checks_build.NAMESPACE_SWITCHES
            if (value := access.read(f"/proc/sys/{name}").strip())
        },
        may_namespaces=access.uid == 0 or found.kind == "bubblewrap",
        has_profile=bool(access.glob("/etc/apparmor.d/bwrap*")),
        cache="" if cache.kind == "none" else f"{cache.kind} {cache.version}{where}",
        cache_reason=cache.reason,
        cache_unwanted=access.environ.get(compiler_cache.CHOICE) == "none",
        largest_users=access.largest_users() if short else (),
    )


def _nvcc(access: MachineAccess, home: str) -> str:
    return probe.nvcc(access.ask([f"{home}/bin/nvcc", "--version"]) or "")[0] if home else ""


def _packages(plan: Plan) -> list[str]:
    return sorted({name for step in plan.steps if step.decision == "BUILD" for name in step.evaluated.apt})


def _existing(folder: Path) -> Path:
    return next(path for path in (folder, *folder.parents) if path.exists())


def packages_to_install(plan: Plan) -> tuple[str, ...]:
    """Return the missing system packages that the recipes to be built need."""
    return probe.missing_packages(_packages(plan))


def packages_to_suggest(plan: Plan) -> tuple[str, ...]:
    """Return missing system packages that builds only profit from: sandbox, compiler cache."""
    compiles = any(step.decision == "BUILD" and step.recipe.is_compiled for step in plan.steps)
    wanted = {"bubblewrap": "bwrap", "ccache": "ccache"}
    if os.environ.get(compiler_cache.CHOICE) == "none":
        del wanted["ccache"]
    absent = [name for name, program in wanted.items() if shutil.which(program) is None]
    return probe.missing_packages(absent) if compiles and absent else ()


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
# Recipe: what it alone looks for in the toolkit, and builds without where it lacks.
WANTED_BY = {
    "torch": ("include/nvshmem.h", "lib/libnvshmem_device.a", "lib/libnvshmem_host.so"),
    "torchvision": ("include/nvjpeg.h",),
}
# Name: the header that has the version, its macros, the library.
LIBRARIES = {
    "cuDNN": ("cudnn_version.h", ("CUDNN_MAJOR", "CUDNN_MINOR", "CUDNN_PATCHLEVEL"), "libcudnn"),
    "cuBLAS": ("cublas_api.h", ("CUBLAS_VER_MAJOR", "CUBLAS_VER_MINOR", "CUBLAS_VER_PATCH"), "libcublas"),
    "cuFile": ("cufile.h", (), "libcufile"),
    "NCCL": ("nccl.h", ("NCCL_MAJOR", "NCCL_MINOR", "NCCL_PATCH"), "libnccl"),
}


def compilers(access: MachineAccess, home: str) -> tuple[Nvcc, ...]:
    """Return every nvcc: of the builds' toolkit, on the user's PATH, in other toolkits."""
    shell = access.which_all("nvcc", access.environ.get("PATH", ""))
    every = [*access.which_all("nvcc", f"{home}/bin"), *shell, *access.glob("/usr/local/cuda*/bin/nvcc")]
    distinct = {access.real(path): path for path in reversed(every)}
    paths = [path for path in dict.fromkeys(every) if distinct[access.real(path)] == path]
    with ThreadPoolExecutor() as pool:
        answers = pool.map(lambda path: probe.nvcc(access.ask([path, "--version"]) or "")[1], paths)
        versions = dict(zip(paths, answers, strict=True))
    ranks = {access.real(path): rank for rank, path in reversed(list(enumerate(shell)))}
    return tuple(
        Nvcc(path=path, version=number, rank=ranks.get(access.real(path)))
        for path, number in versions.items()
        if number
    )


def toolkit(access: MachineAccess, platform: str, home: str, recipes: Iterable[str]) -> Toolkit:
    """Return the toolkit's contents for this processor, as these recipes want them; empty without one."""
    if not home:
        return Toolkit()
    folder = _folder(access, platform, home)
    gcc, clang = probe.host_limits(access.read(f"{folder}/include/crt/host_config.h"))
    runtime = access.glob(f"{folder}/lib/libcudart.so*")
    needed = (*NEEDED, *chain.from_iterable(WANTED_BY.get(name, ()) for name in recipes))
    return Toolkit(
        folder=folder,
        missing=tuple(path for path in needed if not access.exists(f"{folder}/{path}")),
        foreign=tuple(
            path
            for path in runtime
            if (machine := probe.elf_machine(access.head(path))) and machine != platform
        ),
        newest_gcc=gcc,
        before_clang=clang,
    )


def _folder(access: MachineAccess, platform: str, home: str) -> str:
    """Return the toolkit's folder for a processor: NVIDIA's packages have one for each."""
    folder = f"{home}/targets/{TARGETS.get(platform, 'x86_64-linux')}"
    return folder if access.exists(folder) else home


def libraries(access: MachineAccess, platform: str, home: str) -> dict[str, HostLibrary]:
    """Return headers and files of cuDNN, cuBLAS, cuFile and NCCL, in the toolkit and beside it."""
    triplet = TRIPLETS.get(platform, "")
    kit = _folder(access, platform, home)
    includes = _folders(
        access, f"{kit}/include", f"/usr/include/{triplet}", "/usr/include", "/usr/local/include"
    )
    folders = _folders(access, f"{kit}/lib", f"/usr/lib/{triplet}", "/usr/lib", "/usr/local/lib")
    return {
        name: HostLibrary(
            headers={
                f"{folder}/{header}": probe.macros(access.read(f"{folder}/{header}"), *macros)
                if macros
                else ""
                for folder in includes
                if access.exists(f"{folder}/{header}")
            },
            files={
                path: probe.version_of_file(path)
                for folder in folders
                for path in access.glob(f"{folder}/{library}.so*")
            },
        )
        for name, (header, macros, library) in LIBRARIES.items()
    }


def _folders(access: MachineAccess, *wanted: str) -> list[str]:
    """Return the folders that exist, each under one name."""
    return list(
        {access.real(folder): folder for folder in reversed(wanted) if access.exists(folder)}.values()
    )[::-1]


def survey_gpus(access: MachineAccess) -> tuple[Driver, tuple[GpuFacts, ...]]:
    """Return the driver and the state of each GPU."""
    module = probe.driver_module(access.read("/proc/driver/nvidia/version"))
    if not access.which_all("nvidia-smi", access.environ.get("PATH", "")):
        return Driver(module=module), ()
    said = access.ask(["nvidia-smi", "-q", "-x"], check=False)
    answer = parse_smi(said or "")
    if answer is None:
        problem, libraries = failure(said or "")
        return Driver(module=module, libraries=libraries, problem=problem), ()
    libraries, cuda, gpus = answer
    return Driver(module=module, libraries=libraries, cuda=cuda), gpus


def failure(text: str) -> tuple[str, str]:
    """Return the reason why nvidia-smi failed, and its library's version where it says it."""
    library = re.search(r"NVML library version: (\d+(?:\.\d+)+)", text)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return (lines[0] if lines else "nvidia-smi gives no answer"), (library[1] if library else "")


def parse_smi(text: str) -> tuple[str, str, tuple[GpuFacts, ...]] | None:
    """Return driver, newest CUDA and GPUs from `nvidia-smi -q -x`; None for any other text.

    "N/A", "Not Supported" and the like leave a value unknown.
    """
    try:
        root = ET.fromstring(text)  # noqa: S314 - the driver's own tool wrote it
    except ET.ParseError:
        return None
    if root.tag != "nvidia_smi_log":
        return None
    gpus = tuple(_gpu_of_smi(node) for node in root.iter("gpu"))
    return (root.findtext("driver_version") or "", root.findtext("cuda_version") or "", gpus)


def _gpu_of_smi(node: ET.Element) -> GpuFacts:
    def number(path: str) -> float | None:
        found = re.match(r"\s*(\d+(?:\.\d+)?)", node.findtext(path) or "")
        return float(found[1]) if found else None

    def whole(path: str) -> int | None:
        found = number(path)
        return None if found is None else int(found)

    use = number("utilization/gpu_util")
    watts = number("gpu_power_readings/instant_power_draw")
    processes = node.find("processes")
    state = (node.findtext("performance_state") or "").strip()
    return GpuFacts(
        name=(node.findtext("product_name") or "").strip(),
        clock_mhz=whole("clocks/sm_clock"),
        max_clock_mhz=whole("max_clocks/sm_clock"),
        watts=number("gpu_power_readings/average_power_draw") if watts is None else watts,
        limit_watts=number("gpu_power_readings/current_power_limit"),
        state=state if re.fullmatch(r"P\d+", state) else "",
        utilisation=None if use is None else use / 100,
        processes=None if processes is None else _computing(processes),
        used_mib=whole("fb_memory_usage/used"),
        reasons=tuple(
            words
            for _, name, words in REASONS
            if node.findtext(f"clocks_event_reasons/clocks_event_reason_{name}") == "Active"
        ),
    )


def _computing(processes: ET.Element) -> int:
    """Return the processes that compute, without those that draw the desktop."""
    return sum("C" in (process.findtext("type") or "") for process in processes.iter("process_info"))


PATIENCE = 2.0  # seconds for an answer
# Names are looked up without a time limit of ours.
LONGEST = PATIENCE + 1.0


def reachable(lacking: Callable[[], int]) -> IndexFacts:
    """Ask every index that pip is configured for; `lacking` is called when none answers.

    lacking: how many things a build would have to fetch.
    """
    # Imported here: a build collects facts too, and requests takes long to import.
    from spark_build.sources import http, simple_api

    try:
        found = simple_api.configured()
    except SparkBuildError as error:
        return IndexFacts(problem=error.message)
    config = replace(found.config, timeout=PATIENCE)
    answers: dict[str, IndexAnswer] = {}

    def ask(url: str) -> None:
        answers[url] = _ask_index(url, config)

    threads = [threading.Thread(target=ask, args=(url,), daemon=True) for url in found.urls]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + LONGEST
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    silent = "no answer in time"
    asked = tuple(
        answers.get(url) or IndexAnswer(where=http.host_of(url), failure=silent) for url in found.urls
    )
    links = bool(found.links)
    if all(answer.failure for answer in asked):
        return IndexFacts(asked=asked, links=links, lacking=lacking())
    return IndexFacts(asked=asked, links=links)


def _ask_index(url: str, config: PipConfig) -> IndexAnswer:
    from spark_build.sources import http

    where = http.host_of(url)
    if not http.is_remote(url):
        there = Path(http.path_of(url)).is_dir()
        return IndexAnswer(where=where, failure="" if there else "there is no such folder")
    try:
        with http.Session(config, retries=0) as session:
            answer = session.ask("HEAD", f"{url.rstrip('/')}/pip/")
    except http.NETWORK_ERRORS as error:
        return IndexAnswer(where=where, failure=http.network_reason(error))
    except SparkBuildError as error:
        return IndexAnswer(where=where, failure=error.message)
    if answer.status_code in (401, 403, 407) or answer.status_code >= 500:
        return IndexAnswer(where=where, failure=f"it answers {answer.status_code}")
    return IndexAnswer(where=where, ahead=_ahead(answer.headers.get("Date", "")))


def _ahead(date: str) -> float | None:
    """Return how far a server's clock is ahead of ours, in seconds."""
    try:
        return parsedate_to_datetime(date).timestamp() - time.time()
    except (TypeError, ValueError):
        return None
