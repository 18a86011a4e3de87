"""auditwheel's policies: what every system of a platform tag has."""

from __future__ import annotations

from functools import cache

from spark_build.core.audit_host import Policies


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
