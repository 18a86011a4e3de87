"""Every requirement of a plan on this machine, each with the command that mends it."""

from __future__ import annotations

import os
import platform
import shutil
from pathlib import Path

from spark_build.core import budget
from spark_build.host import caches, memory, sandbox, system
from spark_build.host.home import Home
from spark_build.host.probe import nvcc_version
from spark_build.model.machine import Diagnosis, Limits, Machine
from spark_build.model.plan import Plan

RESERVE_MIB = 512  # kept free on the disk beyond what the builds are expected to take
# Ubuntu 24.04: user namespaces only for programs with an AppArmor profile that allows them.
PROFILE = (
    r"abi <abi/4.0>,\ninclude <tunables/global>\n"
    r"profile bwrap /usr/bin/bwrap flags=(unconfined) { userns, }\n"
)
PROFILE_FIX = (
    f"printf '{PROFILE}' | sudo tee /etc/apparmor.d/bwrap && sudo apparmor_parser -r /etc/apparmor.d/bwrap"
)
# A kernel setting that forbids user namespaces: (the value that does, what mends it).
NAMESPACE_SWITCHES = {
    "kernel/apparmor_restrict_unprivileged_userns": ("1", PROFILE_FIX),
    "kernel/unprivileged_userns_clone": ("0", "sudo sysctl -w kernel.unprivileged_userns_clone=1"),
    "user/max_user_namespaces": ("0", "sudo sysctl -w user.max_user_namespaces=15000"),
}


def examine(home: Home, plan: Plan, machine: Machine, limits: Limits) -> tuple[Diagnosis, ...]:
    """Look at all that the recipes to be built ask for; nothing is changed."""
    return (
        *_target(plan, machine),
        *(_writable(folder) for folder in _distinct(home.wheelhouse, home.build, home.sources)),
        _disk(home, plan),
        _memory(plan, machine, limits),
        _python(),
        *_cuda(plan, machine),
        _packages(plan),
        _sandbox(),
        _cache(),
    )


def packages_to_install(plan: Plan) -> tuple[str, ...]:
    """System packages that the recipes to be built lack."""
    wanted = {name for step in plan.steps if step.decision == "BUILD" for name in step.evaluated.apt}
    return system.missing_packages(sorted(wanted))


def packages_to_suggest(plan: Plan) -> tuple[str, ...]:
    """System packages without which the builds work, but not as well: the sandbox, the compiler cache."""
    compiles = any(step.decision == "BUILD" and step.recipe.kind != "repack" for step in plan.steps)
    wanted = {"bubblewrap": "bwrap", "ccache": "ccache"}
    if os.environ.get(caches.CHOICE) == "none":
        del wanted["ccache"]
    absent = [name for name, program in wanted.items() if shutil.which(program) is None]
    return system.missing_packages(absent) if compiles and absent else ()


def _target(plan: Plan, machine: Machine) -> tuple[Diagnosis, ...]:
    """Whether what is to be compiled can be compiled here, for that platform and Python."""
    target = plan.target
    compiled = [
        step.recipe for step in plan.steps if step.decision == "BUILD" and step.recipe.kind != "repack"
    ]
    if compiled and target.platform != machine.platform:
        names = ", ".join(recipe.name for recipe in compiled)
        message = f"{names}: {target.name} is built on {target.platform}, and this is {machine.platform}"
        fix = f"run it on a {target.name}; `spark-build plan --target {target.name}` works anywhere"
        return (Diagnosis(check="target", status="fail", message=message, fix=fix),)
    if any(recipe.kind == "pep517" for recipe in compiled) and target.python != machine.python:
        version = f"3.{target.python.removeprefix('cp3')}"
        message = f"{target.name} wheels are for {target.python}, and this is {machine.python}"
        fix = f"SPARK_BUILD_PYTHON=python{version} ./spark-build ..."
        return (Diagnosis(check="target", status="fail", message=message, fix=fix),)
    return ()


def _distinct(*folders: Path) -> list[Path]:
    """The nearest existing ancestors, each once."""
    return sorted({_existing(folder) for folder in folders})


def _existing(folder: Path) -> Path:
    return next(path for path in (folder, *folder.parents) if path.exists())


def _writable(folder: Path) -> Diagnosis:
    if os.access(folder, os.W_OK | os.X_OK):
        return Diagnosis(check="writable", status="ok", message=f"{folder} can be written")
    return Diagnosis(
        check="writable",
        status="fail",
        message=f"{folder} cannot be written",
        fix="spark-build --root DIR ... with a folder of yours",
    )


def _disk(home: Home, plan: Plan) -> Diagnosis:
    building = [step for step in plan.steps if step.decision == "BUILD"]
    needed = sum(step.recipe.build.disk_mib for step in building) + (RESERVE_MIB if building else 0)
    place = _existing(home.build)
    free = shutil.disk_usage(place).free >> 20
    if free >= needed:
        return Diagnosis(check="disk", status="ok", message=f"{free} MiB free, {needed} MiB needed")
    return Diagnosis(
        check="disk",
        status="fail",
        message=f"{free} MiB free in {place}, the builds need {needed} MiB",
        fix="free some space, or choose another disk with --root DIR",
    )


def _memory(plan: Plan, machine: Machine, limits: Limits) -> Diagnosis:
    """Whether the largest compile job fits into what may be used. On unified memory the GPU's use counts
    by itself: the kernel's available memory is without it."""
    sizes = {
        step.recipe.name: step.estimate.memory_per_job_mib
        for step in plan.steps
        if step.decision == "BUILD" and step.recipe.kind != "repack" and step.estimate is not None
    }
    room = budget.room(
        budget_mib=limits.memory_mib,
        available_mib=machine.available_mib,
        reserve_mib=limits.reserve_mib,
        running_mib=0,
    )
    name = max(sizes, key=sizes.__getitem__, default="")
    message = f"builds may use {room} MiB ({machine.available_mib} available, {limits.reserve_mib} kept free)"
    if not name or sizes[name] <= room:
        return Diagnosis(check="memory", status="ok", message=message)
    message += f"; one compile job of {name} takes up to {sizes[name]} MiB"
    if limits.memory_mib is not None and room == limits.memory_mib:
        return Diagnosis(
            check="memory", status="fail", message=message, fix=f"--memory {sizes[name]}M or more"
        )
    users = ", ".join(f"{one} ({mib} MiB)" for one, mib in memory.largest_users())
    fix = f"end what uses most ({users}), or build with --insist"
    return Diagnosis(check="memory", status="fail", message=message, fix=fix)


def _python() -> Diagnosis:
    return Diagnosis(check="python", status="ok", message=f"Python {platform.python_version()}")


def _cuda(plan: Plan, machine: Machine) -> tuple[Diagnosis, ...]:
    target = plan.target
    if not target.cuda_architectures:
        return ()
    gpu = ", ".join(f"{one.name} ({one.capability})" for one in machine.gpus)
    found = nvcc_version()
    return (
        Diagnosis(check="gpu", status="ok", message=gpu)
        if gpu
        else Diagnosis(check="gpu", status="warn", message="no GPU here: wheels can be built, not run"),
        _toolkit(found, target.cuda),
    )


def _toolkit(found: str, wanted: str) -> Diagnosis:
    def number(version: str) -> tuple[int, ...]:
        return tuple(int(part) for part in version.split(".") if part.isdigit())

    if found and number(found) >= number(wanted):
        return Diagnosis(check="cuda", status="ok", message=f"CUDA toolkit {found}")
    message = f"CUDA toolkit {found or 'missing'}, this target wants {wanted or 'one'} or newer"
    package = f"cuda-toolkit-{(wanted or '13.0').replace('.', '-')}"
    return Diagnosis(check="cuda", status="fail", message=message, fix=f"sudo apt-get install -y {package}")


def _packages(plan: Plan) -> Diagnosis:
    missing = packages_to_install(plan)
    if not missing:
        return Diagnosis(check="packages", status="ok", message="all system packages are there")
    if shutil.which("apt-get") is None:
        return Diagnosis(
            check="packages",
            status="fail",
            message=f"missing {', '.join(missing)}",
            fix=f"install what your system calls {', '.join(missing)}",
        )
    return Diagnosis(
        check="packages",
        status="fail",
        message=f"missing {', '.join(missing)}",
        fix=system.install_line(missing),
    )


def _sandbox() -> Diagnosis:
    """Never a failure: without one a build works, and its provenance says so."""
    chosen = sandbox.choose()
    if chosen.kind == "bubblewrap":
        return Diagnosis(check="sandbox", status="ok", message="bubblewrap keeps builds in their tree")
    return Diagnosis(check="sandbox", status="warn", message=chosen.limits, fix=_sandbox_fix())


def _sandbox_fix() -> str:
    """What makes bubblewrap work: the package, or the kernel's leave."""
    if shutil.which("bwrap") is None:
        if shutil.which("apt-get") is None:
            return "install what your system calls bubblewrap"
        return system.install_line(["bubblewrap"])
    for name, (forbidding, fix) in NAMESPACE_SWITCHES.items():
        switch = Path("/proc/sys", name)
        if switch.is_file() and switch.read_text().strip() == forbidding:
            return fix
    return "allow unprivileged user namespaces (in a container: let the host's administrator do so)"


def _cache() -> Diagnosis:
    """Never a failure: without one everything is compiled anew."""
    chosen = caches.choose(os.environ)
    if chosen.kind == "none":
        said = f"no compiler cache: {chosen.reason}"
        if os.environ.get(caches.CHOICE) == "none":
            return Diagnosis(check="cache", status="ok", message=said)
        fix = system.install_line(["ccache"]) if shutil.which("apt-get") else "install ccache"
        return Diagnosis(check="cache", status="warn", message=said, fix=fix)
    where = ", with a remote cache; it compiles outside the sandbox" if chosen.remote else ""
    return Diagnosis(check="cache", status="ok", message=f"{chosen.kind} {chosen.version}{where}")
