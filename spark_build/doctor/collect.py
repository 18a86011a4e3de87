"""All that the complete doctor looks at, gathered side by side."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from spark_build.doctor import cudafiles, doctor, gpus, reading
from spark_build.doctor.model import Cluster, Driver, Facts, Gpu, Indexes, Link, System, Tools
from spark_build.doctor.probe import Access
from spark_build.doctor.wants import Wants
from spark_build.machine import Machine
from spark_build.paths import Home
from spark_build.probe import CUDA, SYSTEM_PATH

PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
SYNCHRONISED = "/run/systemd/timesync/synchronized"


def gather(
    access: Access,
    home: Home,
    wants: Wants,
    machine: Machine,
    *,
    indexes: Callable[[], Indexes],
    with_cluster: bool = False,
) -> Facts:
    """Look at everything; nothing is changed. indexes: asks them, which takes longest."""
    with ThreadPoolExecutor(max_workers=8) as pool:
        asked = pool.submit(indexes)
        cards = pool.submit(_cards, access, needed=wants.is_for_gpu or bool(machine.gpus))
        kit = wants.toolkit
        nvccs = pool.submit(cudafiles.compilers, access, kit) if kit else None
        found = pool.submit(tools, access)
        cluster = pool.submit(_cluster, access) if with_cluster else None
        basics = doctor.basics(access, home, wants, machine)
        driver, cards_found = cards.result()
        return Facts(
            basics=basics,
            system=system(access),
            tools=found.result(),
            driver=driver,
            gpus=cards_found,
            nvccs=nvccs.result() if nvccs else (),
            toolkit=cudafiles.toolkit(access, machine.platform, kit),
            libraries=cudafiles.libraries(access, machine.platform, kit or CUDA),
            gds=access.exists("/sys/module/nvidia_fs"),
            compat_allowed=reading.allows_compat(access.read("/etc/cufile.json")),
            indexes=asked.result(),
            cluster=cluster.result() if cluster else None,
        )


def _cards(access: Access, *, needed: bool) -> tuple[Driver, tuple[Gpu, ...]]:
    return gpus.survey(access) if needed or access.exists("/proc/driver/nvidia") else (Driver(), ())


def system(access: Access) -> System:
    """The operating system and the user's session."""
    memory = reading.meminfo(access.read("/proc/meminfo"))
    environ = access.environ
    total = memory.get("SwapTotal", 0)
    synchronised = access.exists(SYNCHRONISED)
    return System(
        os=reading.shell_values(access.read("/etc/os-release")),
        dgx=reading.shell_values(access.read("/etc/dgx-release")),
        product=access.read("/sys/class/dmi/id/product_name").strip().replace("_", " "),
        kernel=access.read("/proc/sys/kernel/osrelease").strip(),
        restart_wanted=access.exists("/run/reboot-required"),
        swap_total_mib=total,
        swap_used_mib=total - memory.get("SwapFree", total),
        pressure=reading.pressure(access.read("/proc/pressure/memory")),
        now=access.now(),
        installed=access.installed(),
        # No systemd-timesyncd here: something else may keep the time.
        synchronised=True if synchronised else False if access.exists("/run/systemd/timesync") else None,
        locale=environ.get("LC_ALL") or environ.get("LC_CTYPE") or environ.get("LANG", ""),
        locale_usable=access.locale_usable,
        encoding=access.encoding(),
        proxies={
            name: environ[name] for lower in PROXIES for name in (lower, lower.upper()) if name in environ
        },
    )


def tools(access: Access) -> Tools:
    """The compiler that builds take, and what the user's PATH has besides."""
    compiler = next(iter(access.which_all("c++", SYSTEM_PATH)), "")
    kind, number = reading.compiler(access.ask([compiler, "--version"]) or "") if compiler else ("", "")
    paths = {
        name: path
        for name in ("cmake", "ninja")
        for path in access.which_all(name, access.environ.get("PATH", ""))[:1]
    }
    return Tools(
        compiler=kind,
        compiler_version=number,
        cmake=_version(access, paths.get("cmake")),
        ninja=_version(access, paths.get("ninja")),
        python_headers=access.python_headers(),
        paths=paths,
    )


def _version(access: Access, path: str | None) -> str | None:
    """What a program says; empty when it does not run, None when it is not there."""
    return None if path is None else reading.tool_version(access.ask([path, "--version"]) or "")


def _cluster(access: Access) -> Cluster:
    addresses = reading.addresses(access.ask(["ip", "-j", "addr"]) or "")
    links = []
    for path in access.glob("/sys/class/infiniband/*/device/net/*"):
        parts = path.split("/")
        name, device = parts[-1], parts[4]
        mtu = access.read(f"/sys/class/net/{name}/mtu").strip()
        have, moving = addresses.get(name, ((), ()))
        links.append(
            Link(
                name=name,
                device=device,
                up=access.read(f"/sys/class/net/{name}/operstate").strip() == "up",
                mtu=int(mtu) if mtu.isdecimal() else 0,
                addresses=have,
                dynamic=moving,
            )
        )
    return Cluster(
        links=tuple(links), rdma=access.rdma(), peermem=access.exists("/sys/module/nvidia_peermem")
    )
