"""Checks of the system and of clusters, and the complete list of checks."""

from __future__ import annotations

from urllib.parse import urlsplit

from spark_build.doctor import checks_build, checks_cuda
from spark_build.doctor.checks_build import Check, judge
from spark_build.doctor.model import (
    Basics,
    Cluster,
    Facts,
    HostLibrary,
    Link,
    PlanRequirements,
    install_line,
    version,
)
from spark_build.errors import Finding, ours, shell

PLATFORMS = ("linux-x86_64", "linux-aarch64")
# CUDA 13's own list of distributions, of those that recipes name packages for.
SUPPORTED = {"ubuntu": ((22, 4), (24, 4), (26, 4)), "debian": ((12,), (13,))}
SPARK_KERNEL = (6, 11)  # the first that DGX OS 7 shipped for a Spark
OLDEST_KERNEL = (5, 15)  # of Ubuntu 22.04, the oldest that CUDA 13 supports
SWAPPED = 0.1  # share of the memory in swap from which the machine is short of it
PRESSURE = 10.0  # per cent of the time that something waits for memory
DAY = 86400.0
SKEW = 300.0  # seconds; certificates and signatures tolerate a few minutes
NTP = shell("sudo timedatectl set-ntp true", safe=True)


def platform(facts: Facts, _wants: PlanRequirements) -> Finding:
    """Check that recipes know this processor."""
    here = facts.basics.machine.platform
    what = f"{here}, {facts.basics.machine.cores} cores"
    if facts.system.product:
        what += f", {facts.system.product}"
    if here in PLATFORMS:
        return Finding("platform", "ok", what)
    fix = f"run it on {' or '.join(PLATFORMS)}"
    return Finding("platform", "error", f"{what}: no recipe is for that", hint=fix)


def distribution(facts: Facts, wants: PlanRequirements) -> Finding:
    """Check for DGX OS, Ubuntu or Debian in a release that CUDA supports; others may work."""
    release = facts.system.os
    name = release.get("PRETTY_NAME") or "an unknown distribution"
    if facts.system.dgx:
        number = facts.system.dgx.get("DGX_SWBUILD_VERSION") or facts.system.dgx.get("DGX_OTA_VERSION", "")
        name = f"DGX OS {number}".strip() + f" ({name})"
    known = SUPPORTED.get(release.get("ID", ""))
    number_here = version(release.get("VERSION_ID", ""))
    if known and number_here in known:
        return Finding("distribution", "ok", name)
    if known is None:
        message = f"{name}: recipes name packages of Debian, Ubuntu and DGX OS; find yours by hand"
        return Finding("distribution", "warning", message, hint=ours("recipes show NAME"))
    message = f"{name}: CUDA 13 does not support that release"
    status = wants.severity(needed=wants.cuda and number_here < known[0])
    return Finding("distribution", status, message, hint="sudo do-release-upgrade")


def kernel(facts: Facts, wants: PlanRequirements) -> Finding:
    """Check that the running kernel is new enough for the driver and is the installed one."""
    running = facts.system.kernel
    if facts.system.restart_wanted:
        message = f"Linux {running}; installed updates (kernel, driver) wait for a restart"
        return Finding("kernel", "warning", message, hint="sudo reboot")
    oldest = SPARK_KERNEL if _is_spark(facts) else OLDEST_KERNEL
    if version(running)[:2] >= oldest or not wants.is_for_gpu:
        return Finding("kernel", "ok", f"Linux {running}")
    wanted = ".".join(map(str, oldest))
    status = wants.severity(needed=wants.cuda and bool(facts.basics.machine.gpus))
    why = "the first of DGX OS 7 for a Spark" if _is_spark(facts) else "the oldest that CUDA 13 supports"
    message = f"Linux {running} is older than {wanted}, {why}"
    return Finding("kernel", status, message, hint="sudo apt-get full-upgrade && sudo reboot")


def _is_spark(facts: Facts) -> bool:
    return any("GB10" in gpu.name for gpu in facts.basics.machine.gpus)


def swap(facts: Facts, _wants: PlanRequirements) -> Finding:
    """Check swap: full swap means that memory is short; without swap only the budget limits builds."""
    total, used = facts.system.swap_total_mib, facts.system.swap_used_mib
    if used <= SWAPPED * facts.basics.machine.memory_mib:
        message = f"{used} of {total} MiB used" if total else "none: the memory budget keeps builds in bounds"
        return Finding("swap", "ok", message)
    message = f"{used} of {total} MiB used: the machine is short of memory, and builds will crawl"
    fix = "end what uses most, then: sudo swapoff -a && sudo swapon -a"
    return Finding("swap", "warning", message, hint=fix)


def pressure(facts: Facts, _wants: PlanRequirements) -> Finding:
    """Check that the kernel reports memory pressure, which steers the budget."""
    shares = facts.system.pressure
    if shares is None:
        message = "the kernel does not tell of memory pressure; builds are steered by free memory alone"
        fix = "add psi=1 to GRUB_CMDLINE_LINUX in /etc/default/grub; sudo update-grub && sudo reboot"
        return Finding("pressure", "warning", message, hint=fix)
    some, full = shares.get("some", 0.0), shares.get("full", 0.0)
    said = f"in the last 10 s something waited for memory {some:.0f}% of the time, everything {full:.0f}%"
    if some < PRESSURE:
        return Finding("pressure", "ok", said)
    fix = "end what uses most memory: ps aux --sort=-rss | head"
    return Finding("pressure", "warning", said, hint=fix)


def clock(facts: Facts, wants: PlanRequirements) -> Finding:
    """Check the time of day: certificates and build tools decide by it."""
    system = facts.system
    ahead = [answer.ahead for answer in facts.indexes.asked if answer.ahead is not None]
    if system.now < system.installed - DAY:
        days = (system.installed - system.now) / DAY
        message = f"the clock is {days:.0f} days behind the files of spark-build itself"
    elif ahead and min(map(abs, ahead)) > SKEW:
        minutes = min(ahead, key=abs) / 60
        message = f"the clock is {abs(minutes):.0f} min {'behind' if minutes > 0 else 'ahead of'} the index's"
    elif system.synchronised is False:
        message = "the clock is not synchronised"
        return Finding("time", "warning", message, hint=NTP)
    else:
        told = {True: "synchronised", None: "plausible"}[system.synchronised]
        return Finding("time", "ok", f"the clock is {told}")
    status = wants.severity(needed=bool(wants.building))
    return Finding("time", status, message, hint=NTP)


def locale(facts: Facts, _wants: PlanRequirements) -> Finding:
    """Check that file names and logs are UTF-8; builds themselves always get C.UTF-8."""
    system = facts.system
    fix = "export LC_ALL=C.UTF-8"
    if not system.locale_usable:
        message = f"the locale {system.locale} is not installed here"
        return Finding("locale", "warning", message, hint=fix)
    if system.encoding.lower().replace("-", "") != "utf8":
        message = f"{system.locale or 'no locale'}: text is {system.encoding}, not UTF-8"
        return Finding("locale", "warning", message, hint=fix)
    said = f"{system.locale or 'C'}, {system.encoding}"
    return Finding("locale", "ok", said)


def proxies(facts: Facts, _wants: PlanRequirements) -> Finding:
    """Check that the proxy variables agree."""
    found = {name: value for name, value in facts.system.proxies.items() if value}
    named = {name: value for name, value in found.items() if name.lower() != "no_proxy"}
    for name, value in named.items():
        other = found.get(name.lower() if name.isupper() else name.upper(), value)
        if other != value:
            message = f"{name.lower()} and {name.upper()} differ; tools read one or the other"
            return Finding("proxies", "warning", message, hint=f"unset {name.upper()}")
        if not _is_address(value):
            message = (
                f"{name} is no address of a proxy: it needs a scheme and a host, such as http://host:3128"
            )
            return Finding("proxies", "warning", message, hint=f"export {name}=http://HOST:PORT")
    lower = {name.lower() for name in named}
    if "http_proxy" in lower and not lower & {"https_proxy", "all_proxy"}:
        message = "http_proxy is set and https_proxy is not: indexes speak https, and go without the proxy"
        fix = 'export https_proxy="$http_proxy"'
        return Finding("proxies", "warning", message, hint=fix)
    hosts = sorted({urlsplit(value).hostname or "" for value in named.values()})
    return Finding("proxies", "ok", f"through {', '.join(hosts)}" if hosts else "none")


def _is_address(value: str) -> bool:
    try:
        parts = urlsplit(value)
        return bool(parts.scheme and parts.hostname) and parts.port != 0
    except ValueError:
        return False


def index(facts: Facts, wants: PlanRequirements) -> Finding:
    """Check that the package indexes that pip is configured for answer."""
    found = facts.indexes
    fix = "pip config list; a folder of files instead: export PIP_FIND_LINKS=DIR (docs/offline.md)"
    if found.problem:
        return Finding("index", wants.severity(needed=bool(wants.building)), found.problem, hint=fix)
    silent = [answer for answer in found.asked if answer.failure]
    answering = [answer.where for answer in found.asked if not answer.failure]
    if not found.asked:
        message = "pip is configured with no index" + (", only with find-links" if found.links else "")
        status = "ok" if found.links or found.lacking == 0 else wants.severity(needed=bool(wants.building))
        return Finding("index", status, message, hint="" if status == "ok" else fix)
    if not silent:
        return Finding("index", "ok", _answers(answering))
    said = "; ".join(f"{answer.where}: {answer.failure}" for answer in silent)
    if answering or found.lacking == 0:
        rest = f"; {_answers(answering)}" if answering else "; all that the builds need is here"
        return Finding("index", "warning", said + rest, hint=fix)
    status = wants.severity(needed=bool(wants.building))
    return Finding("index", status, said, hint=fix)


def _answers(hosts: list[str]) -> str:
    return f"{', '.join(hosts)} answer{'s' if len(hosts) == 1 else ''}"


NCCL = (2, 28, 3)  # the first that knows a Spark's network
MTU = 9000
PER_PORT = 2  # a Spark's socket for the cable is two interfaces of half its speed each


def nccl(facts: Facts, _wants: PlanRequirements) -> Finding:
    """Check for NCCL 2.28.3 or newer."""
    found = facts.libraries.get("NCCL", HostLibrary())
    numbers = [version for version in (*found.files.values(), *found.headers.values()) if version]
    wanted = ".".join(map(str, NCCL))
    fix = install_line(["libnccl2", "libnccl-dev"])
    if not numbers:
        message = f"no NCCL of the system; {wanted} or newer is needed"
        return Finding("cluster-nccl", "error", message, hint=fix)
    oldest = min(numbers, key=version)
    if version(oldest) >= NCCL:
        return Finding("cluster-nccl", "ok", f"NCCL {oldest}")
    message = f"NCCL {oldest}, and {wanted} or newer is needed"
    return Finding("cluster-nccl", "error", message, hint=fix)


def links(facts: Facts, _wants: PlanRequirements) -> Finding:
    """Check that both interfaces of the cable are up: one alone has half the speed."""
    found = _cluster(facts)
    up = _up(found)
    if len(up) >= PER_PORT:
        said = ", ".join(f"{link.name} ({link.device})" for link in up)
        return Finding("cluster-links", "ok", f"RoCE is up on {said}")
    if not found.links:
        message = "no network card that speaks RDMA: machines talk over plain TCP"
        return Finding("cluster-links", "error", message, hint="rdma link show")
    down = ", ".join(link.name for link in found.links if not link.up)
    message = f"{len(up)} of {PER_PORT} RoCE interfaces are up (down: {down})"
    fix = "plug the cable in at both ends; sudo ip link set NAME up"
    return Finding("cluster-links", "error", message, hint=fix)


def mtu(facts: Facts, _wants: PlanRequirements) -> Finding | None:
    """Check that all links use jumbo frames."""
    up = _up(_cluster(facts))
    if not up:
        return None
    small = [link for link in up if link.mtu < MTU]
    if not small:
        return Finding("cluster-mtu", "ok", f"{MTU} bytes on all RoCE interfaces")
    said = ", ".join(f"{link.name} {link.mtu}" for link in small)
    fix = "; ".join(f"sudo ip link set {link.name} mtu {MTU}" for link in small)
    return Finding(
        "cluster-mtu",
        "error",
        f"MTU {said}, and {MTU} is wanted",
        hint=f"{fix} (and mtu: {MTU} in /etc/netplan, on every machine)",
    )


def addresses(facts: Facts, _wants: PlanRequirements) -> Finding | None:
    """Check that the links' addresses are permanent."""
    up = _up(_cluster(facts))
    if not up:
        return None
    without = [link.name for link in up if not link.addresses]
    moving = [link.name for link in up if link.addresses and set(link.addresses) <= set(link.dynamic)]
    if not without and not moving:
        said = ", ".join(f"{link.name} {link.addresses[0]}" for link in up)
        return Finding("cluster-addresses", "ok", f"static: {said}")
    problems = [f"{name} has none" for name in without]
    problems += [f"{name} has one from DHCP or of its own making" for name in moving]
    fix = "give each a static address in /etc/netplan/40-cx7.yaml, then: sudo netplan apply"
    return Finding("cluster-addresses", "error", "; ".join(problems), hint=fix)


def rdma(facts: Facts, _wants: PlanRequirements) -> Finding:
    """Report GPUDirect RDMA as the driver does; a Spark has none, and this says so."""
    found = _cluster(facts)
    spark = any("GB10" in gpu.name for gpu in facts.basics.machine.gpus)
    if found.rdma is None:
        return Finding("cluster-rdma", "warning", "the driver cannot be asked for GPUDirect RDMA")
    if spark and not found.rdma:
        message = "no GPUDirect RDMA, as expected on a Spark: NCCL goes through the memory that both share"
        return Finding("cluster-rdma", "ok", message)
    if found.rdma and (found.peermem or spark):
        message = "the driver offers GPUDirect RDMA" + (
            ", which is new on a Spark: measure it" if spark else ""
        )
        return Finding("cluster-rdma", "ok", message)
    if found.rdma:
        message = "the GPU could do GPUDirect RDMA, but nvidia-peermem is not loaded"
        return Finding("cluster-rdma", "warning", message, hint="sudo modprobe nvidia-peermem")
    return Finding("cluster-rdma", "warning", "the driver offers no GPUDirect RDMA")


def _cluster(facts: Facts) -> Cluster:
    return facts.cluster or Cluster(links=(), rdma=None, peermem=False)


def _up(cluster: Cluster) -> list[Link]:
    return [link for link in cluster.links if link.up]


NAMESPACES: tuple[Check[Basics], ...] = (checks_build.namespaces,)
THOROUGH: tuple[Check[Facts], ...] = (
    platform,
    distribution,
    kernel,
    checks_cuda.driver,
    checks_cuda.nvccs,
    checks_cuda.headers,
    checks_cuda.libraries,
    checks_cuda.compiler,
    checks_build.tools,
    checks_build.python_headers,
    swap,
    pressure,
    checks_cuda.busy,
    checks_cuda.clocks,
    clock,
    locale,
    proxies,
    index,
)
CLUSTER: tuple[Check[Facts], ...] = (
    nccl,
    links,
    mtu,
    addresses,
    rdma,
)


def everything(facts: Facts, wants: PlanRequirements) -> tuple[Finding, ...]:
    """Return the findings of all checks, those of a cluster only where its facts were gathered."""
    found = checks_build.required(facts.basics, wants) + judge(NAMESPACES, facts.basics, wants)
    found += judge(THOROUGH, facts, wants)
    return found if facts.cluster is None else found + judge(CLUSTER, facts, wants)
