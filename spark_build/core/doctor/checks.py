"""All checks, in the order in which they are shown."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from spark_build.core.doctor import building, cluster, cuda, gpu, system, tools
from spark_build.core.doctor.wants import Wants
from spark_build.model.facts import Basics, Facts
from spark_build.model.machine import Diagnosis

Found = Diagnosis | tuple[Diagnosis, ...] | None  # None: does not apply
Known = TypeVar("Known", Basics, Facts)
Check = Callable[[Known, Wants], Found]

# What can stop a build; asked before each one.
REQUIRED: tuple[Check[Basics], ...] = (
    building.target,
    building.writable,
    building.disk,
    building.memory,
    building.python,
    building.gpu,
    building.toolkit,
    building.packages,
    building.sandbox,
    building.cache,
)
NAMESPACES: tuple[Check[Basics], ...] = (building.namespaces,)
THOROUGH: tuple[Check[Facts], ...] = (
    system.platform,
    system.distribution,
    system.kernel,
    cuda.driver,
    cuda.nvccs,
    cuda.headers,
    cuda.cudnn,
    cuda.cublas,
    cuda.cufile,
    cuda.nccl,
    cuda.compiler,
    tools.cmake,
    tools.ninja,
    tools.python_headers,
    system.swap,
    system.pressure,
    gpu.busy,
    gpu.clocks,
    system.clock,
    system.locale,
    system.proxies,
    system.index,
)
CLUSTER: tuple[Check[Facts], ...] = (
    cluster.nccl,
    cluster.links,
    cluster.mtu,
    cluster.addresses,
    cluster.rdma,
)


def judge(checks: Iterable[Check[Known]], facts: Known, wants: Wants) -> tuple[Diagnosis, ...]:
    """The findings of these checks, those that do not apply left out."""
    found: list[Diagnosis] = []
    for check in checks:
        finding = check(facts, wants)
        if isinstance(finding, Diagnosis):
            found.append(finding)
        elif finding is not None:
            found.extend(finding)
    return tuple(found)


def required(facts: Basics, wants: Wants) -> tuple[Diagnosis, ...]:
    """What can stop a build."""
    return judge(REQUIRED, facts, wants)


def everything(facts: Facts, wants: Wants) -> tuple[Diagnosis, ...]:
    """All that is worth knowing; the cluster's part where its facts were gathered."""
    found = required(facts.basics, wants) + judge(NAMESPACES, facts.basics, wants)
    found += judge(THOROUGH, facts, wants)
    return found if facts.cluster is None else found + judge(CLUSTER, facts, wants)
