"""Checks of `doctor --cluster`: what several machines that compute together need."""

from __future__ import annotations

from spark_build.doctor.model import Cluster, Facts, Library, Link
from spark_build.doctor.wants import Wants, install_line, version
from spark_build.machine import Diagnosis

NCCL = (2, 28, 3)  # the first that knows a Spark's network
MTU = 9000
PER_PORT = 2  # a Spark's socket for the cable is two interfaces of half its speed each


def nccl(facts: Facts, _wants: Wants) -> Diagnosis:
    """NCCL 2.28.3 or newer."""
    found = facts.libraries.get("NCCL", Library())
    numbers = [one for one in (*found.files.values(), *found.headers.values()) if one]
    wanted = ".".join(map(str, NCCL))
    fix = install_line(["libnccl2", "libnccl-dev"])
    if not numbers:
        message = f"no NCCL of the system; {wanted} or newer is needed"
        return Diagnosis(check="cluster-nccl", status="fail", message=message, fix=fix)
    oldest = min(numbers, key=version)
    if version(oldest) >= NCCL:
        return Diagnosis(check="cluster-nccl", status="ok", message=f"NCCL {oldest}")
    message = f"NCCL {oldest}, and {wanted} or newer is needed"
    return Diagnosis(check="cluster-nccl", status="fail", message=message, fix=fix)


def links(facts: Facts, _wants: Wants) -> Diagnosis:
    """Both interfaces of the cable are up: one alone has half the speed."""
    found = _cluster(facts)
    up = _up(found)
    if len(up) >= PER_PORT:
        said = ", ".join(f"{one.name} ({one.device})" for one in up)
        return Diagnosis(check="cluster-links", status="ok", message=f"RoCE is up on {said}")
    if not found.links:
        message = "no network card that speaks RDMA: machines talk over plain TCP"
        return Diagnosis(check="cluster-links", status="fail", message=message, fix="rdma link show")
    down = ", ".join(one.name for one in found.links if not one.up)
    message = f"{len(up)} of {PER_PORT} RoCE interfaces are up (down: {down})"
    fix = "plug the cable in at both ends; sudo ip link set NAME up"
    return Diagnosis(check="cluster-links", status="fail", message=message, fix=fix)


def mtu(facts: Facts, _wants: Wants) -> Diagnosis | None:
    """Jumbo frames on all of them."""
    up = _up(_cluster(facts))
    if not up:
        return None
    small = [one for one in up if one.mtu < MTU]
    if not small:
        return Diagnosis(check="cluster-mtu", status="ok", message=f"{MTU} bytes on all RoCE interfaces")
    said = ", ".join(f"{one.name} {one.mtu}" for one in small)
    fix = "; ".join(f"sudo ip link set {one.name} mtu {MTU}" for one in small)
    return Diagnosis(
        check="cluster-mtu",
        status="fail",
        message=f"MTU {said}, and {MTU} is wanted",
        fix=f"{fix} (and mtu: {MTU} in /etc/netplan, on every machine)",
    )


def addresses(facts: Facts, _wants: Wants) -> Diagnosis | None:
    """Addresses that stay."""
    up = _up(_cluster(facts))
    if not up:
        return None
    without = [one.name for one in up if not one.addresses]
    moving = [one.name for one in up if one.addresses and set(one.addresses) <= set(one.dynamic)]
    if not without and not moving:
        said = ", ".join(f"{one.name} {one.addresses[0]}" for one in up)
        return Diagnosis(check="cluster-addresses", status="ok", message=f"static: {said}")
    problems = [f"{name} has none" for name in without]
    problems += [f"{name} has one from DHCP or of its own making" for name in moving]
    fix = "give each a static address in /etc/netplan/40-cx7.yaml, then: sudo netplan apply"
    return Diagnosis(check="cluster-addresses", status="fail", message="; ".join(problems), fix=fix)


def rdma(facts: Facts, _wants: Wants) -> Diagnosis:
    """GPUDirect RDMA as the driver answers; a Spark has none, and must not be thought to."""
    found = _cluster(facts)
    spark = any("GB10" in one.name for one in facts.basics.machine.gpus)
    if found.rdma is None:
        return Diagnosis(
            check="cluster-rdma", status="warn", message="the driver cannot be asked for GPUDirect RDMA"
        )
    if spark and not found.rdma:
        message = "no GPUDirect RDMA, as expected on a Spark: NCCL goes through the memory that both share"
        return Diagnosis(check="cluster-rdma", status="ok", message=message)
    if found.rdma and (found.peermem or spark):
        message = "the driver offers GPUDirect RDMA" + (
            ", which is new on a Spark: measure it" if spark else ""
        )
        return Diagnosis(check="cluster-rdma", status="ok", message=message)
    if found.rdma:
        message = "the GPU could do GPUDirect RDMA, but nvidia-peermem is not loaded"
        return Diagnosis(
            check="cluster-rdma", status="warn", message=message, fix="sudo modprobe nvidia-peermem"
        )
    return Diagnosis(check="cluster-rdma", status="warn", message="the driver offers no GPUDirect RDMA")


def _cluster(facts: Facts) -> Cluster:
    return facts.cluster or Cluster(links=(), rdma=None, peermem=False)


def _up(cluster: Cluster) -> list[Link]:
    return [one for one in cluster.links if one.up]
