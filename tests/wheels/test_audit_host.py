from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import pytest

from spark_build.errors import Finding
from spark_build.wheels.audit import as_vendor, audit
from spark_build.wheels.elf import explain_library
from spark_build.wheels.model import HostCode, Library, WheelFacts
from spark_build.wheels.payload import ZipEntry, file_summary
from spark_build.wheels.rules import HOST_RULES, PACKAGING_RULES, AuditExpectation
from tests.wheels.test_audit import MANYLINUX, SOUND, SYSTEM

TAG = "manylinux_2_28_x86_64"
POLICIES = {
    TAG: {"GLIBC": frozenset({"2.2.5", "2.28"}), "GLIBCXX": frozenset({"3.4"})},
    "manylinux_2_17_x86_64": {"GLIBC": frozenset({"2.2.5"}), "GLIBCXX": frozenset({"3.4"})},
}
INFO = "demo_pkg-1.0.dist-info"
FILE = 0o100644


def findings(wheel: WheelFacts, **changes: Any) -> tuple[Finding, ...]:
    expected: dict[str, Any] = {
        "distribution": "demo-pkg",
        "version": "1.0",
        "platform": "linux-x86_64",
        "python": "cp311",
        "provided": ("libtorch*.so", "libc10.so"),
        "system_libraries": SYSTEM,
        "policies": POLICIES,
        **changes,
    }
    return audit(wheel, AuditExpectation(**expected))


def holding(*libraries: Library, **changes: Any) -> WheelFacts:
    return dataclasses.replace(SOUND, libraries=libraries, **changes)


def library(
    path: str = "demo/_c.so", *, needed: tuple[str, ...] = (), sha256: str = "", **host: Any
) -> Library:
    return Library(path=path, machine="x86_64", needed=needed, host=HostCode(**host), sha256=sha256)


def packed(
    *names: str,
    modes: Mapping[str, int] | None = None,
    texts: Mapping[str, bytes] | None = None,
    dist_info: str = INFO,
    **changes: Any,
) -> WheelFacts:
    """A wheel whose zip has these files besides its dist-info."""
    modes, texts = modes or {}, texts or {}
    entries = [
        ZipEntry(name=name, size=2, packed=1, mode=modes.get(name, FILE))
        for name in ("demo/__init__.py", *names, *modes, *texts, f"{dist_info}/METADATA")
    ]
    return dataclasses.replace(
        SOUND, payload=file_summary(entries, dist_info=dist_info, texts=texts), **changes
    )


TORCHED = library(needed=("libtorch_cpu.so", "libc10.so"))
GLIBC_28, GLIBC_34 = ("libc.so.6", "GLIBC_2.28"), ("libc.so.6", "GLIBC_2.34")
OLD_TAGS = ("cp311-cp311-manylinux_2_17_x86_64", MANYLINUX)
PTH = b"import os; os.system('x')\n"
GOOD: dict[str, WheelFacts] = {
    "versions that the tag allows": holding(library(versions=(GLIBC_28, ("libstdc++.so.6", "GLIBCXX_3.4")))),
    "a kind of version that no policy knows": holding(library(versions=(("libz.so.1", "ZLIB_9"),))),
    "a version of a library inside": holding(
        library(versions=(("libx.so.1", "GLIBC_9"), ("libq.so.2", "GLIBCXX_9"))),
        library("demo.libs/libx.so.1"),
        library("demo.libs/libq-1234.so.2", soname="libq.so.2"),
    ),
    "a relative RPATH": holding(library(rpaths=("$ORIGIN", "$ORIGIN/../demo.libs", "${ORIGIN}/lib"))),
    "two libraries": holding(library(sha256="1", soname="a"), library("b.so", sha256="2", soname="b")),
    "no soname at all": holding(library(sha256="1"), library("b.so", sha256="2")),
    "the usual files": packed("demo_pkg-1.0.data/scripts/x", "demo.libs/libx.so", "demo/lib/x.so"),
    "a .pth with paths": packed(texts={"x.pth": b"demo/sub\nimportant\n"}),
    "an exact build of torch": holding(TORCHED, requires=("torch==2.13.0+cu130.spark1",)),
    "torch in Python only": holding(library(), requires=("torch",)),
    "torch is its own": holding(
        TORCHED, library("x/libtorch_cpu.so"), library("x/libc10.so"), requires=("filelock",)
    ),
    "an extra": holding(library(), requires=("numpy>=1; extra == 'x'",)),
}  # fmt: skip


@pytest.mark.parametrize("case", GOOD)
def test_passes(case: str) -> None:
    assert findings(GOOD[case]) == ()


Case = tuple[str, WheelFacts, str]
BAD: dict[str, list[Case]] = {
    "symbol-versions": [
        ("error", holding(library(versions=(GLIBC_28, GLIBC_34))), f"demo/_c.so needs GLIBC_2.34, which a system of {TAG} may"),
        ("error", holding(library(versions=(("libstdc++.so.6", "GLIBCXX_3.4.30"),))), "needs GLIBCXX_3.4.30"),
        (
            "error",
            holding(
                library(versions=(GLIBC_28,)),
                filename_tags=OLD_TAGS,
                wheel_tags=OLD_TAGS,
            ),
            "needs GLIBC_2.28, which a system of manylinux_2_17_x86_64 may lack",
        ),
    ],
    "rpath": [
        ("warning", holding(library(rpaths=("/opt/x",))), "RPATH of demo/_c.so names /opt/x, which is searched"),
        ("error", holding(library(rpaths=("/run/spark-build/w/lib",))), "where a build was or anybody may write"),
        ("error", holding(library(rpaths=("/tmp/x/lib",))), "names /tmp/x/lib, where a build was or anybody"),
        ("warning", holding(library(rpaths=("/home/me/lib",))), "names /home/me/lib, a folder of the machine"),
        ("error", holding(library(rpaths=("lib",))), "names lib, which is looked for in"),
        ("error", holding(library(rpaths=("",))), "names an empty path"),
        ("error", holding(library(rpaths=("$ORIGINAL",))), "names $ORIGINAL"),
        ("warning", holding(*(library(f"{n}.so", rpaths=("/a",)) for n in range(5))), "0.so, 1.so, 2.so and 2 more"),
    ],
    "build-paths": [("warning", holding(library(leaks=("/home/me/x.c",))), "demo/_c.so holds /home/me/x.c")],
    "executable-memory": [
        ("error", holding(library(writable_code=True)), "is writable and executable"),
        ("error", holding(library(executable_stack=True)), "wants an executable stack"),
    ],
    "text-relocations": [("error", holding(library(text_relocations=True)), "compile it with -fPIC")],
    "duplicates": [
        ("warning", holding(library(sha256="1"), library("b.so", sha256="1", soname="b")), "demo/_c.so, b.so are the same"),
        ("warning", holding(library(sha256="1", soname="b"), library("b.so", sha256="2", soname="b")), "are all called b"),
    ],
    "dist-info": [
        ("error", packed(dist_info="other-1.0.dist-info"), "is not that of demo-pkg 1.0"),
        ("error", packed(dist_info="demo_pkg-1.1.dist-info"), "is not that of demo-pkg 1.0"),
    ],
    "entries": [
        ("error", packed(modes={"demo/l": 0o120777}), "demo/l is a symbolic link"),
        ("error", packed(modes={"demo/l": 0o010644}), "demo/l is a pipe"),
        ("error", packed(modes={"demo/x": 0o104755}), "demo/x would run with another user's rights"),
        ("warning", packed(modes={"demo/x": 0o100666}), "demo/x may be written by everybody"),
        (
            "warning",
            packed(modes={f"demo/{n}": 0o100666 for n in range(99)}),
            "demo/0 and others may be written by everybody",
        ),
    ],
    "names": [
        ("error", packed("demo/A.py", "demo/a.py"), "demo/A.py, demo/a.py are one name"),
        ("error", packed("demo/e\u0301", "demo/\u00e9"), "are one name"),
    ],
    "places": [
        ("error", packed("demo/x", "demo/x/y"), "demo/x, demo/x/ would be installed at one and the same place"),
        ("error", packed("demo/x", "demo_pkg-1.0.data/purelib/demo/x"), "at one and the same place"),
    ],
    "site-packages": [
        ("warning", packed("tests/__init__.py"), "tests lands in site-packages under a name that others use"),
        ("warning", packed("util.py"), "util.py lands in site-packages under a name"),
        ("error", packed("demo_pkg-1.0.data/etc/x"), "where no installer knows a place"),
        ("error", packed("demo_pkg-1.0.data/scripts"), "where no installer knows a place"),
    ],
    "startup-code": [
        ("error", packed(texts={"x.pth": PTH}), "x.pth runs code at every start"),
        ("error", packed(texts={"demo_pkg-1.0.data/purelib/x.pth": b"demo\nimport\tos\n"}), "purelib/x.pth runs code"),
    ],
    "environment": [
        ("error", packed("demo_pkg-1.0.data/data/pyvenv.cfg"), "would replace pyvenv.cfg of the environment: leave it out"),
        ("error", packed(texts={f"{INFO}/entry_points.txt": b"[console_scripts]\n../../x = demo:main\n"}), "outside of bin: '../../x'"),
    ],
    "requirements": [("error", dataclasses.replace(SOUND, requires=("num py",)), "num py is no requirement")],
    "torch-pin": [
        ("warning", holding(TORCHED, requires=("torch",)), "Requires-Dist: torch lets installers take another"),
        ("warning", holding(TORCHED, requires=("torch>=2",)), "Requires-Dist: torch>=2 lets"),
        ("warning", holding(TORCHED, requires=("torch==2.13.0",)), "pin torch==VERSION+LABEL"),
        ("warning", holding(TORCHED, requires=("torch==2.13.0+x; extra == 'y'",)), "METADATA requires none"),
        ("warning", holding(TORCHED), "demo/_c.so is linked with torch, and METADATA requires none"),
    ],
}  # fmt: skip


@pytest.mark.parametrize(("rule", "case"), [(rule, case) for rule, cases in BAD.items() for case in cases])
def test_is_found(rule: str, case: Case) -> None:
    severity, wheel, words = case
    found = findings(wheel)
    assert {one.rule for one in found} <= {rule}
    assert any(words in one.message and one.severity == severity for one in found), found


def test_every_rule_has_a_failing_case() -> None:
    assert set(BAD) == {name for name, _ in (*HOST_RULES, *PACKAGING_RULES)}


def test_a_vendors_labels_do_not_block_his_hazards_do() -> None:
    host = library(versions=(GLIBC_34,), rpaths=("lib",), text_relocations=True, python_symbols=("_PyNo",))
    tags = (f"cp311-abi3-{TAG}",)
    wheel = dataclasses.replace(holding(host), filename_tags=tags, wheel_tags=tags)
    found = {one.rule: one.severity for one in as_vendor(findings(wheel))}
    assert found == {
        "stable-abi": "warning", "symbol-versions": "warning", "rpath": "warning", "text-relocations": "error",
    }  # fmt: skip


def test_names_that_differ_in_case_do_not_hide_those_that_are_one() -> None:
    pairs = [name for at in range(25) for name in (f"demo/A{at}.py", f"demo/a{at}.py")]
    found = findings(packed(*pairs, "demo/z.py", "demo_pkg-1.0.data/purelib/demo/z.py"))
    (one,) = [each for each in found if each.rule == "places"]
    assert "demo/z.py would be installed at one and the same place" in one.message
    assert sum(each.rule == "names" for each in found) == 19


def test_each_needed_library_is_explained() -> None:
    needed = (
        "libc.so.6",
        "libcuda.so.1",
        "libcublas.so.13",
        "libtorch_cpu.so",
        "libcudnn.so.9",
        "liba.so",
        "libb.so",
    )
    wheel = holding(
        library(needed=(*needed, "libpython3.11.so.1.0", "libz.so")), library("d.libs/liba.so", needed=needed)
    )
    found = explain_library(wheel, system_libraries=SYSTEM, provided=("libb*", "libcuda*"))
    assert {one.soname: one.source for one in found} == {
        "liba.so": "wheel",
        "libb.so": "recipe",
        "libc.so.6": "system",
        "libcublas.so.13": "toolkit",
        "libcuda.so.1": "driver",
        "libcudnn.so.9": "package",
        "libpython3.11.so.1.0": "python",
        "libtorch_cpu.so": "stack",
        "libz.so": "missing",
    }
    by = {one.soname: one.by for one in found}
    assert by["liba.so"] == ("d.libs/liba.so", "demo/_c.so")
    assert by["libz.so"] == ("demo/_c.so",)
    assert "repair.exclude has libb*" in {one.soname: one.reason for one in found}["libb.so"]
