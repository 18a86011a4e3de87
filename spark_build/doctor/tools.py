"""Checks of build tools and Python's headers. Builds bring their own cmake and ninja, pinned."""

from __future__ import annotations

from shlex import quote

from spark_build.doctor.model import Facts
from spark_build.doctor.wants import Wants, install_line, version
from spark_build.machine import Diagnosis

JOBSERVER = (1, 13)  # the first ninja that speaks make's protocol for sharing jobs


def _without(facts: Facts, tool: str) -> str:
    """How to be rid of one that does not run; pip refuses to where the system owns its Python."""
    path = facts.tools.paths.get(tool, tool)
    if path.startswith(("/usr/bin/", "/bin/")):
        package = {"ninja": "ninja-build"}.get(tool, tool)
        return f"sudo apt-get install --reinstall -y {package}"
    return f"{'sudo ' if path.startswith('/usr/') else ''}rm {quote(path)}"


def cmake(facts: Facts, _wants: Wants) -> Diagnosis:
    """A cmake on PATH that does not run is found by projects that look for one."""
    found = facts.tools.cmake
    if found is None:
        return Diagnosis(check="cmake", status="ok", message="none on PATH; builds bring their own")
    if not found:
        message = "the cmake on PATH does not run (a wrapper of pip's, called outside its environment?)"
        return Diagnosis(check="cmake", status="warn", message=message, fix=_without(facts, "cmake"))
    return Diagnosis(check="cmake", status="ok", message=f"cmake {found} on PATH; builds bring their own")


def ninja(facts: Facts, _wants: Wants) -> Diagnosis:
    """Whether it takes its jobs from the budget."""
    found = facts.tools.ninja
    if found is None:
        return Diagnosis(check="ninja", status="ok", message="none on PATH; builds bring their own")
    if not found:
        message = "the ninja on PATH does not run (a wrapper of pip's, called outside its environment?)"
        return Diagnosis(check="ninja", status="warn", message=message, fix=_without(facts, "ninja"))
    if version(found) >= JOBSERVER:
        return Diagnosis(check="ninja", status="ok", message=f"ninja {found}, shares jobs (jobserver)")
    message = f"ninja {found} on PATH does not share jobs (1.13 does); builds bring one that does"
    return Diagnosis(check="ninja", status="ok", message=message)


def python_headers(facts: Facts, wants: Wants) -> Diagnosis:
    """Extension modules are compiled against them."""
    if facts.tools.python_headers:
        return Diagnosis(check="python-headers", status="ok", message="Python.h is there")
    number = ".".join(facts.basics.python.split(".")[:2])
    needed = any(step.recipe.kind == "pep517" for step in wants.compiled)
    return Diagnosis(
        check="python-headers",
        status=wants.severity(needed=needed),
        message=f"Python.h of Python {number} is missing",
        fix=install_line([f"python{number}-dev"]),
        safe=facts.basics.has_apt,
    )
