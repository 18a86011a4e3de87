"""What decides whether a build may start, gathered from this machine and judged."""

from __future__ import annotations

import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from spark_build.build import compiler_cache
from spark_build.doctor import checks_build, reading, system
from spark_build.doctor.basics import Basics
from spark_build.doctor.probe import Access
from spark_build.doctor.wants import Wants
from spark_build.machine import Diagnosis, Limits, Machine
from spark_build.paths import Home
from spark_build.probe import SYSTEM_PATH
from spark_build.recipes.model import Plan


def examine(home: Home, plan: Plan, machine: Machine, limits: Limits) -> tuple[Diagnosis, ...]:
    """Look at all that can stop a build of the recipes to be built; nothing is changed."""
    wants = Wants(plan=plan, limits=limits)
    return checks_build.required(basics(Access(), home, wants, machine), wants)


def basics(access: Access, home: Home, wants: Wants, machine: Machine) -> Basics:
    """What decides whether a build may start."""
    folders = sorted({_existing(folder) for folder in (home.wheelhouse, home.build, home.sources)})
    place = _existing(home.build)
    with ThreadPoolExecutor() as pool:  # each of them starts a program and waits
        sandbox, caching = pool.submit(access.sandbox), pool.submit(access.cache)
        missing = access.missing_packages(_packages(wants))
        nvcc = _nvcc(access, wants.toolkit)
        found, cache = sandbox.result(), caching.result()
    short = checks_build.largest_job(wants)[1] > checks_build.room(machine, wants)
    where = ", with a remote cache; it compiles outside the sandbox" if cache.remote else ""
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


def _nvcc(access: Access, home: str) -> str:
    return reading.nvcc(access.ask([f"{home}/bin/nvcc", "--version"]) or "")[0] if home else ""


def _packages(wants: Wants) -> list[str]:
    return sorted({name for step in wants.building for name in step.evaluated.apt})


def _existing(folder: Path) -> Path:
    return next(path for path in (folder, *folder.parents) if path.exists())


def packages_to_install(plan: Plan) -> tuple[str, ...]:
    """System packages that the recipes to be built lack."""
    wanted = {name for step in plan.steps if step.decision == "BUILD" for name in step.evaluated.apt}
    return system.missing_packages(sorted(wanted))


def packages_to_suggest(plan: Plan) -> tuple[str, ...]:
    """System packages without which the builds work, but not as well: the sandbox, the compiler cache."""
    compiles = any(step.decision == "BUILD" and step.recipe.is_compiled for step in plan.steps)
    wanted = {"bubblewrap": "bwrap", "ccache": "ccache"}
    if os.environ.get(compiler_cache.CHOICE) == "none":
        del wanted["ccache"]
    absent = [name for name, program in wanted.items() if shutil.which(program) is None]
    return system.missing_packages(absent) if compiles and absent else ()
