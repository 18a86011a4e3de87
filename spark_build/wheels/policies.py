"""auditwheel's policies: what every system of a platform tag has."""

from __future__ import annotations

from functools import cache

from spark_build.wheels.rules import Policies


@cache
def symbol_policies(platform: str) -> Policies:
    """What may be needed under each manylinux tag of `platform` ("linux-aarch64"); {} if that is unknown."""
    from auditwheel.architecture import Architecture
    from auditwheel.libc import Libc
    from auditwheel.policy import WheelPolicies

    machine = platform.partition("-")[2]
    if machine not in {known.value for known in Architecture}:
        return {}
    policies = WheelPolicies(libc=Libc.GLIBC, arch=Architecture(machine))
    return {
        name: policy.symbol_versions
        for policy in policies
        if policy.symbol_versions
        for name in (policy.name, *policy.aliases)
    }


def system_libraries(platform: str) -> frozenset[str]:
    """Sonames that every manylinux system of `platform` ("linux-aarch64") has, the loader included."""
    from auditwheel.architecture import Architecture
    from auditwheel.libc import Libc
    from auditwheel.policy import WheelPolicies

    machine = platform.partition("-")[2]
    policies = WheelPolicies(libc=Libc.GLIBC, arch=Architecture(machine))
    # auditwheel's lists leave the loader out: its code accepts it before it looks there.
    loaders = {"x86_64": "ld-linux-x86-64.so.2", "aarch64": "ld-linux-aarch64.so.1"}
    loader = {loaders[machine]} if machine in loaders else set()
    return frozenset(loader).union(*(policy.whitelist for policy in policies))
