"""What installers see on a target: environment markers and wheel tags, computed on any machine."""

from __future__ import annotations

from packaging.tags import Tag, compatible_tags, cpython_tags

from spark_build.recipes.model import Target

GLIBC_MINOR = 39  # Ubuntu 24.04's, which DGX OS is made of


def python_version(target: Target) -> str:
    """3.12 of cp312."""
    digits = target.python.removeprefix("cp").removesuffix("t")
    return f"{digits[0]}.{digits[1:]}"


def machine_of(target: Target) -> str:
    """aarch64 of linux-aarch64."""
    return target.platform.partition("-")[2]


def platforms(target: Target) -> list[str]:
    """The platform tags of wheels that run there, best first."""
    machine = machine_of(target)
    newer = [f"manylinux_2_{minor}_{machine}" for minor in range(GLIBC_MINOR, 16, -1)]
    return [*newer, f"manylinux2014_{machine}", f"linux_{machine}"]


def tags(target: Target) -> frozenset[Tag]:
    """The tags of wheels that CPython takes there."""
    major, _, minor = python_version(target).partition(".")
    version, names = (int(major), int(minor)), platforms(target)
    native = cpython_tags(version, abis=[target.python], platforms=names)
    return frozenset((*native, *compatible_tags(version, interpreter=target.python, platforms=names)))


def markers(target: Target) -> dict[str, str]:
    """The environment markers (PEP 508) of CPython there.

    The patch release is not known beforehand: the first one, as uv has it. Kernel and its build are unknown.
    """
    version = python_version(target)
    return {
        "implementation_name": "cpython",
        "implementation_version": f"{version}.0",
        "os_name": "posix",
        "platform_machine": machine_of(target),
        "platform_python_implementation": "CPython",
        "platform_release": "",
        "platform_system": "Linux",
        "platform_version": "",
        "python_full_version": f"{version}.0",
        "python_version": version,
        "sys_platform": "linux",
    }
