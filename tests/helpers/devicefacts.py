"""Facts about wheels with device code, for tests of the rules."""

from __future__ import annotations

from collections.abc import Mapping

from spark_build.wheels.model import Code, DeviceCode, FileKind, Library, WheelFacts
from spark_build.wheels.rules_device import DeviceDemand, device_findings

NONE = Code()
SPARK = DeviceDemand(capabilities=("12.1",), needed=True, elsewhere=False)


def code(
    path: str = "demo/_c.so",
    sass: Mapping[str, int] | None = None,
    ptx: Mapping[str, int] | None = None,
    *,
    elsewhere: Code = NONE,
    relocatable: Code = NONE,
    kind: FileKind = "elf",
    problems: tuple[str, ...] = (),
) -> DeviceCode:
    loaded = Code(containers=1, sass=dict(sass or {}), ptx=dict(ptx or {}))
    return DeviceCode(
        path=path,
        kind=kind,
        loaded=loaded,
        relocatable=relocatable,
        elsewhere=elsewhere,
        problems=problems,
    )


def holding(*targets: str, path: str = "demo/_c.so") -> DeviceCode:
    return code(
        path,
        {one: 2 for one in targets if one.startswith("sm")},
        {one: 1 for one in targets if not one.startswith("sm")},
    )


def wheel(*codes: DeviceCode, machine: str = "aarch64") -> WheelFacts:
    return WheelFacts(
        filename="demo-1.0-py3-none-linux_aarch64.whl",
        name="demo",
        version="1.0",
        build="",
        filename_tags=(),
        wheel_tags=(),
        wheel_build="",
        root_is_purelib=False,
        requires=(),
        record_problems=(),
        libraries=tuple(
            Library(path=one.path, machine=machine, needed=()) for one in codes if one.kind == "elf"
        ),
        size=1,
        device_code=codes,
    )


def said(facts: WheelFacts, wanted: DeviceDemand = SPARK) -> list[tuple[str, str]]:
    return [(one.severity, one.rule) for one in device_findings(facts, wanted)]
