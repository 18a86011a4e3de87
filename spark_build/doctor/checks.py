"""All checks but those that every build asks (building.REQUIRED), in the order in which they are shown."""

from __future__ import annotations

from spark_build.doctor import checks_build, checks_cuda, checks_system, cluster, gpu, tools
from spark_build.doctor.basics import Basics
from spark_build.doctor.checks_build import Check, judge
from spark_build.doctor.model import Facts
from spark_build.doctor.wants import Wants
from spark_build.machine import Diagnosis

NAMESPACES: tuple[Check[Basics], ...] = (checks_build.namespaces,)
THOROUGH: tuple[Check[Facts], ...] = (
    checks_system.platform,
    checks_system.distribution,
    checks_system.kernel,
    checks_cuda.driver,
    checks_cuda.nvccs,
    checks_cuda.headers,
    checks_cuda.cudnn,
    checks_cuda.cublas,
    checks_cuda.cufile,
    checks_cuda.nccl,
    checks_cuda.compiler,
    tools.cmake,
    tools.ninja,
    tools.python_headers,
    checks_system.swap,
    checks_system.pressure,
    gpu.busy,
    gpu.clocks,
    checks_system.clock,
    checks_system.locale,
    checks_system.proxies,
    checks_system.index,
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
    found = checks_build.required(facts.basics, wants) + judge(NAMESPACES, facts.basics, wants)
    found += judge(THOROUGH, facts, wants)
    return found if facts.cluster is None else found + judge(CLUSTER, facts, wants)
