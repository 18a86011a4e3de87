"""All checks but those that every build asks (building.REQUIRED), in the order in which they are shown."""

from __future__ import annotations

from spark_build.core.doctor import building, cluster, cuda, gpu, system, tools
from spark_build.core.doctor.building import Check, judge
from spark_build.core.doctor.wants import Wants
from spark_build.model.basics import Basics
from spark_build.model.facts import Facts
from spark_build.model.machine import Diagnosis

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


def everything(facts: Facts, wants: Wants) -> tuple[Diagnosis, ...]:
    """All that is worth knowing; the cluster's part where its facts were gathered."""
    found = building.required(facts.basics, wants) + judge(NAMESPACES, facts.basics, wants)
    found += judge(THOROUGH, facts, wants)
    return found if facts.cluster is None else found + judge(CLUSTER, facts, wants)
