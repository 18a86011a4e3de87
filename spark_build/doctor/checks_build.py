"""Checks of what a build needs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from shlex import quote
from typing import TypeVar

from spark_build.doctor.model import Basics, Facts, PlanRequirements, install_line, repository_note, version
from spark_build.errors import Finding, Hint, ours, shell
from spark_build.machine import Machine
from spark_build.resources import policy

Known = TypeVar("Known")  # what a check looks at
Check = Callable[[Known, PlanRequirements], Finding | tuple[Finding, ...] | None]  # None: does not apply
RESERVE_MIB = 512  # kept free on the disk beyond what the builds are expected to take
# Ubuntu 24.04: user namespaces only for programs with an AppArmor profile that allows them.
PROFILE = (
    r"abi <abi/4.0>,\ninclude <tunables/global>\n"
    r"profile bwrap /usr/bin/bwrap flags=(unconfined) { userns, }\n"
)
PROFILE_FIX = (
    f"printf '{PROFILE}' | sudo tee /etc/apparmor.d/bwrap && sudo apparmor_parser -r /etc/apparmor.d/bwrap"
)
APPARMOR = "kernel/apparmor_restrict_unprivileged_userns"
# A kernel setting that forbids user namespaces: (the value that does, its fix).
NAMESPACE_SWITCHES = {
    APPARMOR: ("1", PROFILE_FIX),
    "kernel/unprivileged_userns_clone": ("0", "sudo sysctl -w kernel.unprivileged_userns_clone=1"),
    "user/max_user_namespaces": ("0", "sudo sysctl -w user.max_user_namespaces=15000"),
}


def target(facts: Basics, wants: PlanRequirements) -> Finding | None:
    """Check that this machine can compile for the target's platform and Python."""
    goal, machine = wants.plan.target, facts.machine
    compiled = [step.recipe for step in wants.compiled]
    if compiled and goal.platform != machine.platform:
        names = ", ".join(recipe.name for recipe in compiled)
        message = f"{names}: {goal.name} is built on {goal.platform}, and this is {machine.platform}"
        plan = ours("plan", options=("--target", goal.name))
        fix = Hint(f"run it on a {goal.name}; this works anywhere: ", plan)
        return Finding("target", "error", message, hint=fix)
    if any(recipe.kind == "pep517" for recipe in compiled) and goal.python != machine.python:
        number = f"3.{goal.python.removeprefix('cp3')}"
        message = f"{goal.name} wheels are for {goal.python}, and this is {machine.python}"
        again = f"SPARK_BUILD_PYTHON=python{number} ./spark-build ..."
        return Finding("target", "error", message, hint=again)
    return None


def named(_facts: Basics, wants: PlanRequirements) -> tuple[Finding, ...]:
    """Check that the recipes asked for by name are built for this target at all."""
    goal = wants.plan.target.name
    return tuple(
        Finding(
            "recipe",
            "error",
            f"{step.recipe.name} cannot be built for {goal}: {'; '.join(step.reasons)}",
            hint=ours("plan", step.recipe.name, options=("--target", "gb10")),
        )
        for step in wants.plan.steps
        if step.recipe.name in wants.named and step.decision in ("SKIP", "BLOCKED")
    )


def writable(facts: Basics, _wants: PlanRequirements) -> tuple[Finding, ...]:
    """Check that we may write to the folders that we use."""
    fix = "choose a folder that you may write to: --root DIR"
    return tuple(
        Finding("writable", "ok", f"{folder} can be written")
        if may
        else Finding("writable", "error", f"{folder} cannot be written", hint=fix)
        for folder, may in facts.folders.items()
    )


def disk(facts: Basics, wants: PlanRequirements) -> Finding:
    """Check that the plan fits on the disk."""
    building = wants.building
    needed = sum(step.recipe.build.disk_mib for step in building) + (RESERVE_MIB if building else 0)
    free = facts.disk_free_mib
    if free >= needed:
        return Finding("disk", "ok", f"{free} MiB free, {needed} MiB needed")
    return Finding(
        "disk",
        "error",
        f"{free} MiB free in {facts.disk_place}, the builds need {needed} MiB",
        hint="free some space, or choose another disk with --root DIR",
    )


def largest_job(wants: PlanRequirements) -> tuple[str, int]:
    """Return the recipe with the largest compile jobs and their memory in MiB; ("", 0) without any."""
    sizes = {
        step.recipe.name: step.estimate.memory_per_job_mib
        for step in wants.compiled
        if step.estimate is not None
    }
    name = max(sizes, key=sizes.__getitem__, default="")
    return name, sizes.get(name, 0)


def room(machine: Machine, wants: PlanRequirements) -> int:
    """Return the memory that builds may use, in MiB.

    On unified memory the GPU's use is already counted: MemAvailable is without it.
    """
    return policy.room(
        budget_mib=wants.limits.memory_mib,
        available_mib=machine.available_mib,
        reserve_mib=wants.limits.reserve_mib,
        running_mib=0,
    )


def memory(facts: Basics, wants: PlanRequirements) -> Finding:
    """Check that the largest compile job fits into the memory that builds may use."""
    limits, available = wants.limits, facts.machine.available_mib
    free = room(facts.machine, wants)
    name, size = largest_job(wants)
    message = f"builds may use {free} MiB ({available} available, {limits.reserve_mib} kept free)"
    if not name or size <= free:
        return Finding("memory", "ok", message)
    message += f"; one compile job of {name} takes up to {size} MiB"
    if limits.memory_mib is not None and free == limits.memory_mib:
        return Finding("memory", "error", message, hint=f"--memory {size}M or more")
    users = ", ".join(f"{one} ({mib} MiB)" for one, mib in facts.largest_users)
    fix = f"end what uses most ({users}), or build with --ignore-memory"
    return Finding("memory", "error", message, hint=fix)


def python(facts: Basics, _wants: PlanRequirements) -> Finding:
    """Report the interpreter that runs us; wheels are built for it."""
    return Finding("python", "ok", f"Python {facts.python}")


def gpu(facts: Basics, wants: PlanRequirements) -> Finding | None:
    """Check that this machine's GPU can run what is built for the target."""
    if not wants.is_for_gpu:
        return None
    found = ", ".join(f"{one.name} ({one.capability})" for one in facts.machine.gpus)
    if found:
        return Finding("gpu", "ok", found)
    return Finding("gpu", "warning", "no GPU here: wheels can be built, not run")


def toolkit(facts: Basics, wants: PlanRequirements) -> Finding | None:
    """Check that CUDA code is compiled with a toolkit that is new enough."""
    if not wants.is_for_gpu:
        return None
    wanted, home = wants.plan.target.cuda, wants.toolkit
    package = f"cuda-toolkit-{(wanted or '13.0').replace('.', '-')}"
    if wants.lacks_toolkit:
        names = ", ".join(wants.lacks_toolkit)
        message = f"{names}: no CUDA toolkit: CUDA_HOME names none, none is in /usr/local/cuda, and train "
        message += f"{wants.plan.train.name} has no version of the recipe cuda"
        fix = "--provide cuda=DIR, --train with one that has it, or: " + install_line([package])
        return Finding("cuda", "error", message + repository_note([package]), hint=fix)
    if not home:
        brought = wants.brings_toolkit
        if not brought:
            return None
        message = f"CUDA toolkit {brought}: the recipe cuda brings it"
        return Finding("cuda", "ok", message)
    if facts.nvcc and version(facts.nvcc) >= version(wanted):
        return Finding("cuda", "ok", f"CUDA toolkit {facts.nvcc} in {home}")
    message = (
        f"CUDA toolkit {facts.nvcc or 'missing'} in {home}, this target wants {wanted or 'one'} or newer"
    )
    message += repository_note([package])
    return Finding("cuda", "error", message, hint=wants.toolkit_fix(install_line([package])))


def packages(facts: Basics, _wants: PlanRequirements) -> Finding:
    """Check that the system packages that the recipes name are installed."""
    missing = facts.missing_packages
    if not missing:
        return Finding("packages", "ok", "all system packages are there")
    message = f"missing {', '.join(missing)}{repository_note(missing)}"
    if not facts.has_apt:
        fix = f"install what your system calls {', '.join(missing)}"
        return Finding("packages", "error", message, hint=fix)
    return Finding("packages", "error", message, hint=shell(install_line(missing), safe=True))


def sandbox(facts: Basics, _wants: PlanRequirements) -> Finding:
    """Report the sandbox; never a failure, because a build works without one and its provenance says so."""
    if facts.sandbox == "bubblewrap":
        return Finding("sandbox", "ok", "bubblewrap: no network, only files that builds need")
    safe = facts.has_apt and not facts.has_bubblewrap
    fix = (
        "allow unprivileged user namespaces (in a container: let the host's administrator do so; "
        "in a chroot: enter it by pivot_root)"
    )
    if not facts.has_bubblewrap:
        fix = install_line(["bubblewrap"]) if safe else "install what your system calls bubblewrap"
    elif fixes := _switches(facts):
        fix, safe = fixes[0][1], _is_safe(facts, fixes[0][0])
    return Finding("sandbox", "warning", facts.sandbox_limits, hint=shell(fix, safe=safe))


def _switches(facts: Basics) -> list[tuple[str, str]]:
    """Return the settings in force that forbid user namespaces, each with its fix."""
    return [
        (name, fix)
        for name, (forbidding, fix) in NAMESPACE_SWITCHES.items()
        if facts.forbids_namespaces.get(name) == forbidding
    ]


def _is_safe(facts: Basics, setting: str) -> bool:
    """Return whether a fix only creates an AppArmor profile; it never edits a profile or a sysctl."""
    return setting == APPARMOR and not facts.has_profile


def namespaces(facts: Basics, _wants: PlanRequirements) -> Finding:
    """Check that ordinary users may create the namespaces that sandboxes need."""
    forbidding = _switches(facts)
    if not forbidding and facts.has_bubblewrap and facts.sandbox != "bubblewrap":
        message = (
            f"no setting forbids user namespaces, and yet bubblewrap does not run: {facts.sandbox_limits}"
        )
        return Finding("namespaces", "warning", message, hint=sandbox(facts, _wants).hint)
    if not forbidding:
        tried = "bubblewrap ran" if facts.has_bubblewrap else "not tried: there is no bubblewrap"
        return Finding("namespaces", "ok", f"user namespaces are allowed ({tried})")
    name, fix = forbidding[0]
    said = f"{name.replace('/', '.')} = {facts.forbids_namespaces[name]}"
    if facts.may_namespaces and name == APPARMOR:
        message = f"{said}, and bubblewrap may have user namespaces all the same"
        return Finding("namespaces", "ok", message)
    who = (
        "AppArmor forbids user namespaces to programs without a profile" if name == APPARMOR else "forbidden"
    )
    message = f"{who} ({said})"
    return Finding("namespaces", "warning", message, hint=shell(fix, safe=_is_safe(facts, name)))


def cache(facts: Basics, _wants: PlanRequirements) -> Finding:
    """Report the compiler cache; never a failure, because without one everything is compiled anew."""
    if facts.cache:
        return Finding("cache", "ok", facts.cache)
    said = f"no compiler cache: {facts.cache_reason}"
    if facts.cache_unwanted:
        return Finding("cache", "ok", said)
    fix = install_line(["ccache"]) if facts.has_apt else "install ccache"
    return Finding("cache", "warning", said, hint=shell(fix, safe=facts.has_apt))


REQUIRED: tuple[Check[Basics], ...] = (
    named,
    target,
    writable,
    disk,
    memory,
    python,
    gpu,
    toolkit,
    packages,
    sandbox,
    cache,
)


def judge(checks: Iterable[Check[Known]], facts: Known, wants: PlanRequirements) -> tuple[Finding, ...]:
    """Return the findings of these checks, without the checks that do not apply."""
    found: list[Finding] = []
    for check in checks:
        finding = check(facts, wants)
        if isinstance(finding, Finding):
            found.append(finding)
        elif finding is not None:
            found.extend(finding)
    return tuple(found)


def required(facts: Basics, wants: PlanRequirements) -> tuple[Finding, ...]:
    """Return the findings that can stop a build."""
    return judge(REQUIRED, facts, wants)


JOBSERVER = (1, 13)  # the first ninja that speaks make's protocol for sharing jobs


def _without(facts: Facts, tool: str) -> str:
    """Return the command that reinstalls or removes a tool that does not run."""
    path = facts.tools.paths.get(tool, tool)
    if path.startswith(("/usr/bin/", "/bin/")):
        package = {"ninja": "ninja-build"}.get(tool, tool)
        return f"sudo apt-get install --reinstall -y {package}"
    return f"{'sudo ' if path.startswith('/usr/') else ''}rm {quote(path)}"


def tools(facts: Facts, _wants: PlanRequirements) -> tuple[Finding, ...]:
    """Check that cmake and ninja on PATH run, which projects find, and that ninja shares jobs."""
    found = {"cmake": facts.tools.cmake, "ninja": facts.tools.ninja}
    return tuple(_tool(facts, name, number) for name, number in found.items())


def _tool(facts: Facts, name: str, number: str | None) -> Finding:
    if number is None:
        return Finding(name, "ok", "none on PATH; builds bring their own")
    if not number:
        message = f"the {name} on PATH does not run (a wrapper of pip's, called outside its environment?)"
        return Finding(name, "warning", message, hint=_without(facts, name))
    if name == "cmake":
        return Finding(name, "ok", f"cmake {number} on PATH; builds bring their own")
    if version(number) >= JOBSERVER:
        return Finding(name, "ok", f"ninja {number}, shares jobs (jobserver)")
    message = f"ninja {number} on PATH does not share jobs (1.13 does); builds bring one that does"
    return Finding(name, "ok", message)


def python_headers(facts: Facts, wants: PlanRequirements) -> Finding:
    """Check that the headers that extension modules are compiled against are installed."""
    if facts.tools.python_headers:
        return Finding("python-headers", "ok", "Python.h is there")
    number = ".".join(facts.basics.python.split(".")[:2])
    needed = any(step.recipe.kind == "pep517" for step in wants.compiled)
    return Finding(
        "python-headers",
        wants.severity(needed=needed),
        f"Python.h of Python {number} is missing",
        hint=shell(install_line([f"python{number}-dev"]), safe=facts.basics.has_apt),
    )
