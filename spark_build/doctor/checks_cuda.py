"""Checks of driver, CUDA and GPUs."""

from __future__ import annotations

from spark_build.doctor.model import (
    Facts,
    GpuFacts,
    HostLibrary,
    PlanRequirements,
    install_line,
    repository_note,
    version,
)
from spark_build.errors import Finding, shell

# CUDA's major version -> the oldest driver that runs what it builds (CUDA's release notes).
OLDEST_DRIVER = {12: "525.60.13", 13: "580.65.06"}
# "Improved performance on NVIDIA DGX Spark for FP16/BF16 and FP8 GEMMs" (release notes of 13.0 Update 2).
SPARK_CUBLAS = (13, 1)
OLDEST_CUDNN = (9,)
CXX17 = (9,)  # gcc that compiles torch before 2.14
CXX20 = (11, 3)  # and from 2.14 on
SYSTEM_NVCC = "/usr/bin/nvcc"  # of Ubuntu's nvidia-cuda-toolkit: years behind


def driver(facts: Facts, wants: PlanRequirements) -> Finding | None:
    """Check that both halves of the driver have one version, new enough for what the toolkit builds."""
    found = facts.driver
    if not wants.is_for_gpu or not (found.module or found.libraries or found.problem):
        return None  # the check of the GPU says so
    if found.module and found.libraries and found.module != found.libraries:
        message = f"the kernel runs driver {found.module}, its libraries are {found.libraries}"
        return Finding("driver", "error", message, hint="sudo reboot")
    if found.problem:
        fix = "sudo reboot; if that does not help: sudo apt-get install --reinstall nvidia-driver-580-open"
        return Finding("driver", "error", found.problem, hint=fix)
    here = found.libraries or found.module
    cuda = facts.basics.nvcc or wants.plan.target.cuda
    oldest = OLDEST_DRIVER.get((version(cuda) or (0,))[0], "")
    if version(here) < version(oldest):
        message = f"driver {here} runs nothing that CUDA {cuda} builds: that wants {oldest} or newer"
        fix = f"sudo apt-get install -y nvidia-driver-{oldest.partition('.')[0]}-open && sudo reboot"
        return Finding("driver", "error", message, hint=fix)
    knows = f", knows CUDA {found.cuda}" if found.cuda else ""
    message = f"driver {here}{knows}"
    if found.cuda and version(cuda) > version(found.cuda):
        message += f"; code of CUDA {cuda} runs, but not PTX that it has to compile first"
    return Finding("driver", "ok", message)


def nvccs(facts: Facts, wants: PlanRequirements) -> Finding | None:
    """Check that PATH has one CUDA compiler: two versions end in headers that do not fit."""
    if not wants.is_for_gpu or not facts.nvccs:
        return None  # the check of the toolkit says so
    reachable = sorted(
        (nvcc for nvcc in facts.nvccs if nvcc.rank is not None), key=lambda nvcc: nvcc.rank or 0
    )
    taken = facts.nvccs[0]
    versions = {nvcc.version for nvcc in reachable} | {taken.version}
    said = ", ".join(f"{nvcc.version} ({nvcc.path})" for nvcc in facts.nvccs)
    if len(versions) == 1:
        return Finding("nvcc", "ok", f"nvcc {said}")
    message = f"several nvcc: {said}; builds take the first, your shell {reachable[0].path}"
    fix = f"export PATH={taken.path.removesuffix('/nvcc')}:$PATH"
    if any(nvcc.path == SYSTEM_NVCC for nvcc in reachable):
        fix = "sudo apt-get remove nvidia-cuda-toolkit"
    return Finding("nvcc", "warning", message, hint=fix)


def headers(facts: Facts, wants: PlanRequirements) -> Finding | None:
    """Check the toolkit's headers and libraries for this processor (targets/sbsa-linux, x86_64-linux)."""
    if not wants.toolkit or not facts.basics.nvcc:
        return None
    found = facts.toolkit
    number = "-".join(facts.basics.nvcc.split(".")[:2])
    package = f"cuda-toolkit-{number}"
    status = wants.severity(needed=wants.cuda)
    if found.foreign:
        message = f"libraries of another processor in {found.folder}: {', '.join(found.foreign)}"
        return Finding("cuda-headers", status, message, hint=wants.toolkit_fix(install_line([package])))
    if found.missing:
        nvshmem = [name for name in found.missing if "nvshmem" in name]  # in no package of the toolkit
        packages = [package] if len(nvshmem) < len(found.missing) else []
        lines = [install_line(packages)] if packages else []
        lines += [f"put NVSHMEM's files into {found.folder}"] if nvshmem else []
        message = f"{found.folder} lacks {', '.join(found.missing)}{repository_note(packages)}"
        return Finding("cuda-headers", status, message, hint=wants.toolkit_fix("; then ".join(lines)))
    return Finding("cuda-headers", "ok", f"headers and libraries in {found.folder}")


def libraries(facts: Facts, wants: PlanRequirements) -> tuple[Finding, ...]:
    """Check the libraries beside a toolkit given by path: their headers, files and versions."""
    judges = {"cuDNN": _cudnn, "cuBLAS": _cublas, "cuFile": _cufile, "NCCL": _nccl}
    if not wants.toolkit:
        return ()
    findings = []
    for name, judged in judges.items():
        found = facts.libraries.get(name, HostLibrary())
        numbers = [version for version in (*found.headers.values(), *found.files.values()) if version]
        known = numbers[0] if numbers else "of unknown version"
        findings.append(_lacking(facts, wants, name, found) or judged(facts, wants, found, known))
    return tuple(findings)


def _lacking(facts: Facts, wants: PlanRequirements, name: str, found: HostLibrary) -> Finding | None:
    """Return the finding where a library cannot be built with."""
    package = wants.packages.get(name, "")
    linkable = any(path.endswith(".so") for path in found.files)
    lacks = [what for what, there in (("headers", found.headers), ("library", linkable)) if not there]
    if len(lacks) == 2 and not package:
        return Finding(name.lower(), "ok", f"{name} is not there; this plan does not need it")
    if not lacks:
        return None
    line = install_line([package]) if package else ""
    fix = shell(line, safe=True) if package in facts.installable else line and wants.toolkit_fix(line)
    message = f"{name}: {' and '.join(lacks)} missing{repository_note([package])}"
    return Finding(name.lower(), wants.severity(needed=bool(package)), message, hint=fix)


def _cudnn(_facts: Facts, wants: PlanRequirements, _found: HostLibrary, number: str) -> Finding:
    """Check for cuDNN 9."""
    if version(number) and version(number) < OLDEST_CUDNN:
        message = f"cuDNN {number}, and CUDA 13 wants 9 or newer"
        status = wants.severity(needed="cuDNN" in wants.packages)
        return Finding("cudnn", status, message, hint=install_line(["libcudnn9-dev-cuda-13"]))
    return Finding("cudnn", "ok", f"cuDNN {number}")


def _cublas(_facts: Facts, wants: PlanRequirements, _found: HostLibrary, number: str) -> Finding:
    """Check, on a Spark, that cuBLAS is the fast one there."""
    if "12.1" in wants.plan.target.cuda_architectures and version(number)[:2] < SPARK_CUBLAS:
        message = (
            f"cuBLAS {number}: matrix products are much faster on GB10 from 13.1 on (CUDA 13.0 Update 2)"
        )
        fix = install_line(["--only-upgrade", "libcublas-dev-13-0"])
        return Finding("cublas", "warning", message, hint=fix)
    return Finding("cublas", "ok", f"cuBLAS {number}")


def _cufile(facts: Facts, _wants: PlanRequirements, _found: HostLibrary, number: str) -> Finding:
    """Check whether cuFile is direct or copies through the processor's memory."""
    if facts.gds:
        return Finding("cufile", "ok", f"cuFile {number}; GPUDirect Storage is loaded (nvidia-fs)")
    if facts.compat_allowed is False:
        message = f"cuFile {number} works nowhere: there is no nvidia-fs, and cufile.json forbids compat mode"
        fix = "set allow_compat_mode to true in /etc/cufile.json"
        return Finding("cufile", "warning", message, hint=fix)
    message = (
        f"cuFile {number} in compat mode: without nvidia-fs files are read through the processor's memory"
    )
    return Finding("cufile", "ok", message)


def _nccl(_facts: Facts, _wants: PlanRequirements, found: HostLibrary, number: str) -> Finding:
    """Check that NCCL is there in one version."""
    places = {path: value for path, value in {**found.headers, **found.files}.items() if value}
    if len({*places.values()}) == 1:
        return Finding("nccl", "ok", f"NCCL {number}")
    said = ", ".join(f"{value} ({path})" for path, value in places.items())
    fix = "remove the copies that are not from the package libnccl-dev (dpkg -S PATH shows it)"
    return Finding("nccl", "warning", f"several NCCL: {said}", hint=fix)


def compiler(facts: Facts, wants: PlanRequirements) -> Finding | None:
    """Check for a C++ compiler that supports the recipes' standard and nvcc accepts."""
    tools, limits = facts.tools, facts.toolkit
    needed = bool(wants.compiled)
    status = wants.severity(needed=needed)
    if not tools.compiler:
        fix = install_line(["g++"])
        return Finding("compiler", status, "no C++ compiler", hint=shell(fix, safe=facts.basics.has_apt))
    here, said = version(tools.compiler_version), f"{tools.compiler} {tools.compiler_version}"
    oldest, standard = (CXX20, "C++20") if version(wants.torch) >= (2, 14) else (CXX17, "C++17")
    if tools.compiler == "gcc" and here < oldest:
        message = f"{said} is too old for {standard}"
        return Finding("compiler", status, message, hint=_take_gcc(13))
    newest = limits.newest_gcc if tools.compiler == "gcc" else limits.before_clang and limits.before_clang - 1
    if wants.is_for_gpu and newest and here[:1] > (newest,):
        message = f"{said} is newer than nvcc {facts.basics.nvcc} takes (up to {newest})"
        fix = _take_gcc(limits.newest_gcc) if limits.newest_gcc else ""
        return Finding("compiler", wants.severity(needed=wants.cuda), message, hint=fix)
    return Finding("compiler", "ok", said)


def _take_gcc(number: int) -> str:
    """Return the fix that installs a gcc beside the present one and makes it c++ (builds) and gcc (nvcc)."""
    links = {"c++": "g++", "g++": "g++", "gcc": "gcc"}
    # Each on its own: slaves of c++ would vanish with the choice of an alternative that has none.
    chosen = [
        f"sudo update-alternatives --install /usr/bin/{link} {link} /usr/bin/{program}-{number} 100"
        for link, program in links.items()
    ]
    return " && ".join([install_line([f"g++-{number}"]), *chosen])


IN_USE = 0.1  # utilisation from which somebody else works
UNDER_LOAD = 0.5  # from which the clocks should be up
# Name -> MHz of the SMs that a healthy one holds under load: GB10 about 2400 (its slow power state is 500
# to 850), an H200 at its power limit 1530.
KNOWN_GOOD = {"GB10": 2400, "H200": 1530, "H100": 1530}
SLOW = 0.6  # of the known good
HARD = ("HW slowdown", "HW thermal slowdown", "SW thermal slowdown", "HW power brake")
LOCKED = "applications clocks setting"
UNPLUG = (
    "shut down, unplug the power adapter from the machine for a minute, start again"
    " (a restart alone does not help)"
)


def busy(facts: Facts, wants: PlanRequirements) -> Finding | None:
    """Report others on the GPU: they slow measurements and, on unified memory, take the builds' memory."""
    if not facts.gpus:
        return None
    used = [gpu for gpu in facts.gpus if (gpu.processes or 0) > 0 or (gpu.utilisation or 0.0) >= IN_USE]
    if not used:
        known = all(gpu.utilisation is not None for gpu in facts.gpus)
        return Finding("gpu-busy", "ok", "idle" if known else "cannot be read here")
    said = "; ".join(_use(gpu) for gpu in used)
    why = "it shares the builds' memory" if wants.plan.target.unified_memory else "do not measure now"
    fix = "end it: nvidia-smi --query-compute-apps=pid,name --format=csv"
    return Finding("gpu-busy", "warning", f"{said}: {why}", hint=fix)


def _use(gpu: GpuFacts) -> str:
    parts = [f"{gpu.processes} processes" if gpu.processes != 1 else "1 process"] if gpu.processes else []
    if gpu.utilisation is not None:
        parts.append(f"{gpu.utilisation:.0%} busy")
    return f"{gpu.name}: {', '.join(parts)}"


def clocks(facts: Facts, _wants: PlanRequirements) -> Finding | None:
    """Check power state and clocks against known good values; reports the worst GPU."""
    findings = [_clock(gpu) for gpu in facts.gpus]
    return next(
        (finding for finding in findings if finding.severity != "ok"), findings[0] if findings else None
    )


def _clock(gpu: GpuFacts) -> Finding:
    said = f"{gpu.name}: {_state(gpu)}"
    good = next((mhz for name, mhz in KNOWN_GOOD.items() if name in gpu.name), None)
    loaded = (gpu.utilisation or 0.0) >= UNDER_LOAD
    hard = [reason for reason in gpu.reasons if reason in HARD]
    if gpu.clock_mhz is not None and good is not None and loaded and gpu.clock_mhz < SLOW * good:
        message = f"{said} under load, where a healthy one runs at about {good}"
        fix = UNPLUG if "GB10" in gpu.name else "nvidia-smi -q -d PERFORMANCE,POWER shows why"
        return Finding("gpu-clocks", "warning", message, hint=fix)
    if hard:
        fix = "check the cooling and the power adapter: nvidia-smi -q -d PERFORMANCE,TEMPERATURE"
        return Finding("gpu-clocks", "warning", f"{said}, held down: {', '.join(hard)}", hint=fix)
    if LOCKED in gpu.reasons:
        fix = "sudo nvidia-smi --reset-gpu-clocks && sudo nvidia-smi --reset-applications-clocks"
        return Finding("gpu-clocks", "warning", f"{said}, limited by a setting that somebody made", hint=fix)
    if gpu.clock_mhz is None:
        return Finding("gpu-clocks", "ok", f"{said}: unknown, never taken for good")
    rest = "" if loaded else "; whether they rise shows under load only (verify --burn-in)"
    return Finding("gpu-clocks", "ok", said + rest)


def _state(gpu: GpuFacts) -> str:
    clock = "clocks cannot be read" if gpu.clock_mhz is None else f"{gpu.clock_mhz} MHz"
    if gpu.clock_mhz is not None and gpu.max_clock_mhz is not None:
        clock += f" of {gpu.max_clock_mhz}"
    power = "" if gpu.watts is None else f", {gpu.watts:.0f} W"
    if power and gpu.limit_watts is not None:
        power += f" of {gpu.limit_watts:.0f}"
    return f"{clock}{power}{', ' + gpu.state if gpu.state else ''}"
