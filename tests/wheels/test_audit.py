from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from spark_build.errors import Finding
from spark_build.recipes.model import External
from spark_build.wheels.audit import RULES, audit
from spark_build.wheels.model import HostCode, Library, WheelFacts
from spark_build.wheels.rules import HOST_RULES, PACKAGING_RULES, AuditExpectation

LINUX = "cp311-cp311-linux_x86_64"
MANYLINUX = "cp311-cp311-manylinux_2_28_x86_64"
SYSTEM = frozenset({"libc.so.6", "libm.so.6", "ld-linux-x86-64.so.2"})
SOUND = WheelFacts(
    filename=f"demo_pkg-1.0-1_ab-{MANYLINUX}.whl",
    name="demo-pkg",
    version="1.0",
    build="1_ab",
    filename_tags=(MANYLINUX,),
    wheel_tags=(MANYLINUX,),
    wheel_build="1_ab",
    root_is_purelib=False,
    requires=(),
    record_problems=(),
    libraries=(Library(path="demo/_c.so", machine="x86_64", needed=("libc.so.6", "libm.so.6")),),
    size=1000,
)


def facts(**changes: Any) -> WheelFacts:
    return dataclasses.replace(SOUND, **changes)


def tagged(*tags: str, **changes: Any) -> WheelFacts:
    joined = tags[0] if len(tags) == 1 else "py2.py3-none-any"
    changes = {"filename_tags": tags, "wheel_tags": tags, **changes}
    return facts(filename=f"demo_pkg-1.0-1_ab-{joined}.whl", **changes)


def library(path: str = "demo/_c.so", machine: str = "x86_64", needed: tuple[str, ...] = ()) -> WheelFacts:
    return facts(libraries=(*SOUND.libraries, Library(path=path, machine=machine, needed=needed)))


def abi3(python: str, symbol: str) -> WheelFacts:
    one = Library(path="demo/_c.so", machine="x86_64", needed=(), host=HostCode(python_symbols=(symbol,)))
    return tagged(f"{python}-abi3-manylinux_2_28_x86_64", libraries=(one,))


NCCL = "libnccl.so.2"
LED = ("$ORIGIN/../../nvidia/nccl/lib", "${ORIGIN}/../../nvidia/cu13/lib", "$ORIGIN")
BESIDE = (
    External(distribution="nvidia-nccl-cu13", folder="nvidia/nccl/lib", libraries=("libnccl.so.*",)),
    External(distribution="cuda-toolkit[cublas]", folder="nvidia/cu13/lib", libraries=("libcublas*.so.*",)),
)


def external(
    soname: str, *, rpath: tuple[str, ...], requires: str = "", path: str = "demo/lib/_x.so"
) -> WheelFacts:
    """A wheel with a library that needs one of another distribution's."""
    code = HostCode(rpaths=rpath)
    one = Library(path=path, machine="x86_64", needed=(soname,), host=code)
    return facts(libraries=(*SOUND.libraries, one), requires=(requires,) if requires else ())


def findings(wheel: WheelFacts, **changes: Any) -> tuple[Finding, ...]:
    expected: dict[str, Any] = {
        "distribution": "Demo.Pkg",
        "version": "1.0",
        "platform": "linux-x86_64",
        "python": "cp311",
        "provided": ("libcuda.so.1", "libcublas*", "libnccl.so.*"),
        "system_libraries": SYSTEM,
        **changes,
    }
    return audit(wheel, AuditExpectation(**expected))


def test_a_sound_wheel_has_no_findings() -> None:
    assert findings(SOUND) == ()


CUBIN = Library(path="demo/kernel.cubin", machine="cuda", needed=())
INSIDE = facts(
    libraries=(
        Library(path="demo/_c.so", machine="x86_64", needed=("libfoo-01234567.so.1",)),
        Library(path="demo.libs/libfoo-01234567.so.1", machine="x86_64", needed=("libc.so.6",)),
    )
)
GOOD: list[tuple[str, WheelFacts, dict[str, Any]]] = [
    (
        "a local label on top",
        facts(version="1.0+cu130", filename=f"demo_pkg-1.0+cu130-1_ab-{MANYLINUX}.whl"),
        {},
    ),
    (
        "the expected local label",
        facts(version="1.0+cu130", filename=f"demo_pkg-1.0+cu130-1_ab-{MANYLINUX}.whl"),
        {"version": "1.0+cu130"},
    ),
    ("another spelling of the version", facts(version="1.0.0"), {}),
    ("abi3 of an older Python", tagged("cp38-abi3-manylinux_2_28_x86_64"), {}),
    ("any Python, this platform", tagged("py3-none-manylinux_2_28_x86_64"), {}),
    ("also for another C library", tagged("py3-none-musllinux_1_1_x86_64", "py3-none-manylinux1_x86_64"), {}),
    ("pure", tagged("py3-none-any", root_is_purelib=True, libraries=()), {}),
    ("pure, for two Pythons", tagged("py2-none-any", "py3-none-any", root_is_purelib=True, libraries=()), {}),
    ("free-threaded", tagged("cp313-cp313t-manylinux_2_28_x86_64"), {"python": "cp313t"}),
    (
        "another platform",
        tagged(
            "cp312-cp312-manylinux_2_39_aarch64",
            libraries=(Library(path="demo/_c.so", machine="aarch64", needed=("libc.so.6",)),),
        ),
        {"platform": "linux-aarch64", "python": "cp312"},
    ),
    ("no build tag at all", facts(build="", wheel_build="", filename=f"demo_pkg-1.0-{MANYLINUX}.whl"), {}),
    ("needs what is inside", INSIDE, {}),
    ("needs what the driver brings", library(needed=("libcuda.so.1",)), {}),
    ("needs what a wildcard covers", library(needed=("libcublasLt.so.13",)), {}),
    (
        "needs what a distribution brings that it requires and looks into",
        external(NCCL, rpath=LED, requires="NVIDIA_nccl_cu13==2.29.7; platform_system == 'Linux'"),
        {"external": BESIDE},
    ),
    (
        "required with this extra among others",
        external("libcublasLt.so.13", rpath=LED, requires="cuda-toolkit[cublas,cufft]==13.0.3"),
        {"external": BESIDE},
    ),
    (
        "installed from the data folder",
        external(NCCL, rpath=LED, requires="nvidia-nccl-cu13", path="d-1.data/platlib/demo/lib/_x.so"),
        {"external": BESIDE},
    ),
    ("code for the GPU", library("demo/kernel.cubin", "cuda"), {}),
    ("GPU code in a pure wheel", tagged("py3-none-any", root_is_purelib=True, libraries=(CUBIN,)), {}),
    ("a bundled library with a harmless name", library("demo.libs/libcrypt-01234567.so.1"), {}),
]  # fmt: skip


@pytest.mark.parametrize(("wheel", "changes"), [case[1:] for case in GOOD], ids=[case[0] for case in GOOD])
def test_passes(wheel: WheelFacts, changes: dict[str, Any]) -> None:
    assert findings(wheel, **changes) == ()


# Expected severity, wheel, changed expectations, words of the message; by rule.
Case = tuple[str, WheelFacts, dict[str, Any], str]
BAD: dict[str, list[Case]] = {
    "name-version": [
        ("error", SOUND, {"distribution": "other"}, "METADATA names demo-pkg, expected other"),
        ("error", SOUND, {"version": "1.1"}, "METADATA says version 1.0, expected 1.1"),
        ("error", SOUND, {"version": "1.0+cu130"}, "METADATA says version 1.0, expected 1.0+cu130"),
        ("error", facts(filename=f"other-1.0-1_ab-{MANYLINUX}.whl"), {}, "the file name says other 1.0"),
        (
            "error",
            facts(filename=f"demo_pkg-1.1-1_ab-{MANYLINUX}.whl"),
            {},
            "the file name says demo-pkg 1.1",
        ),
        (
            "error",
            facts(version="1.0+x"),
            {},
            "1.0, METADATA says demo-pkg 1.0+x",
        ),
        ("error", facts(filename="demo.whl"), {}, "Invalid wheel filename"),
        ("error", facts(version="one"), {}, "METADATA says version one, expected 1.0"),
    ],
    "tags": [
        ("error", facts(wheel_tags=(LINUX,)), {}, f"are not those of WHEEL ({LINUX})"),
        ("error", facts(wheel_tags=()), {}, "are not those of WHEEL (none)"),
        ("error", SOUND, {"python": "cp312"}, "cp311-cp311 cannot be installed on cp312"),
        ("error", SOUND, {"python": "pypy"}, "cannot be installed on pypy"),
        ("error", tagged("cp312-abi3-manylinux_2_28_x86_64"), {}, "cp312-abi3 cannot be installed on cp311"),
        ("error", tagged("cp313-cp313t-manylinux_2_28_x86_64"), {"python": "cp313"}, "cannot be installed"),
        ("error", tagged("cp311-cp311-manylinux_2_28_aarch64"), {}, "2_28_aarch64 is not for linux-x86_64"),
        ("error", tagged("cp311-cp311-musllinux_1_2_x86_64"), {}, "1_2_x86_64 is not for linux-x86_64"),
        (
            "error",
            tagged("py3-none-linux_armv7l", f"py3-none-{MANYLINUX[12:]}"),
            {},
            "linux_armv7l is not for",
        ),
        ("error", tagged("py3-none-any"), {}, "tag is any, but there is machine code inside"),
    ],
    "manylinux": [("warning", tagged(LINUX), {}, "linux_x86_64 is no manylinux tag")],
    "record": [("error", facts(record_problems=("a.py: not listed",)), {}, "a.py: not listed")],
    "build-tag": [
        ("error", facts(wheel_build="2"), {}, "the file name's build tag is 1_ab, WHEEL says 2"),
        ("error", facts(build=""), {}, "the file name's build tag is missing, WHEEL says 1_ab"),
        ("warning", facts(wheel_build=""), {}, "WHEEL does not mention the build tag 1_ab"),
    ],
    "purelib": [("error", facts(root_is_purelib=True), {}, "true, but demo/_c.so is machine code")],
    "elf-machine": [
        ("error", library("demo/_x.so", "aarch64"), {}, "demo/_x.so is for aarch64, not x86_64"),
    ],
    "elf-damage": [
        ("error", library("demo/lib_x.so.1", "unreadable"), {}, "lib_x.so.1 begins like an ELF file"),
        ("warning", library("tests/elf.bin", "unreadable"), {}, "elf.bin begins like an ELF file"),
    ],
    "stable-abi": [
        ("error", abi3("cp311", "_PyNo"), {}, "demo/_c.so uses _PyNo, not in the stable ABI"),
        ("error", abi3("cp310", "PyType_GetName"), {}, "since Python 3.11, and the tag says 3.10"),
    ],
    "libraries": [
        (
            "error",
            library("demo/_x.so", needed=("libfoo.so.1",)),
            {},
            "demo/_x.so needs libfoo.so.1, which no wheel provides: repair should bundle it",
        ),
        ("error", library(needed=("libcuda.so.1",)), {"provided": ()}, "needs libcuda.so.1, which no wheel"),
        ("error", library(needed=("libcuda.so.1",)), {"provided": ()}, "own: list it in repair.exclude"),
        ("error", SOUND, {"system_libraries": frozenset({"libc.so.6"})}, "needs libm.so.6, which no wheel"),
        ("error", library(needed=("libpython3.11.so.1.0",)), {}, "an extension module must not"),
    ],
    "external": [
        ("error", external(NCCL, rpath=LED), {"external": BESIDE}, "does not require nvidia-nccl-cu13"),
        (
            "error",
            external(NCCL, rpath=LED, requires="other; extra == 'x'"),
            {"external": BESIDE},
            "libnccl.so.2",
        ),
        (
            "error",
            external(NCCL, rpath=LED, requires="nvidia-nccl-cu13; platform_machine == 'aarch64'"),
            {"external": BESIDE},
            "does not require nvidia-nccl-cu13",
        ),
        (
            "error",
            external("libcublas.so.13", rpath=LED, requires="cuda-toolkit[cufft]==13.0.3"),
            {"external": BESIDE},
            "does not require cuda-toolkit[cublas]: libcublas.so.13 would be missing",
        ),
        (
            "error",
            external(NCCL, rpath=("$ORIGIN/../nvidia/nccl/lib",), requires="nvidia-nccl-cu13"),
            {"external": BESIDE},
            "no RPATH of demo/lib/_x.so leads to nvidia/nccl/lib, where libnccl.so.2 will be",
        ),
        (
            "error",
            external(NCCL, rpath=("/nvidia/nccl/lib",), requires="nvidia-nccl-cu13"),
            {"external": BESIDE},
            "leads to nvidia/nccl/lib",
        ),
    ],
    "bundled-system": [
        ("error", library(f"demo.libs/{name}"), {}, f"{name} is {what}")
        for name, what in {
            "ld-linux-x86-64.so.2": "the loader",
            "ld-linux-aarch64-01234567.so.1": "the loader",
            "libc.so.6": "a part of the C library",
            "libc-01234567.so.6": "a part of the C library",
            "libm-2.36.so": "a part of the C library",
            "libcuda.so.1": "a part of the GPU driver",
            "libcuda-01234567.so.1": "a part of the GPU driver",
            "libcuda.so.580.95.05": "a part of the GPU driver",
            "libnvidia-ml.so.1": "a part of the GPU driver",
        }.items()
    ],
}


@pytest.mark.parametrize(("rule", "case"), [(rule, case) for rule, cases in BAD.items() for case in cases])
def test_is_found(rule: str, case: Case) -> None:
    severity, wheel, changes, words = case
    hits = [found for found in findings(wheel, **changes) if found.rule == rule]
    assert any(words in found.message for found in hits)
    assert {found.severity for found in hits} == {severity}


def test_every_rule_has_a_failing_case() -> None:
    elsewhere = {name for name, _ in (*HOST_RULES, *PACKAGING_RULES)}
    assert set(BAD) == {name for name, _ in RULES} - elsewhere


def test_every_finding_is_reported_not_the_first() -> None:
    wheel = library("demo/_x.so", "aarch64", ("libfoo.so.1", "libbar.so.2"))
    assert [found.rule for found in findings(wheel)] == ["elf-machine", "libraries", "libraries"]


def test_a_name_inside_the_wheel_cannot_break_the_line() -> None:
    (found,) = findings(library("demo/\x1b[2J\n.so", "aarch64"))
    assert found.message == r"demo/\x1b[2J\n.so is for aarch64, not x86_64"
