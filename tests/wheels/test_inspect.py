"""`wheelhouse inspect` as a user meets it: real wheels, real code of nvcc."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import CLI, Root
from tests.helpers.commands import invoke
from tests.helpers.devicewheels import AARCH64, DATA, NATIVE_121, SM_80, small
from tests.helpers.fatbins import Made, container, elf
from tests.helpers.publicwheels import public_wheel
from tests.helpers.wheels import compiled, write_wheel
from tests.wheels.test_devicecode import FIRST, saying


def run(*arguments: object, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [*CLI, "wheelhouse", "inspect", *map(str, arguments)]
    environment = {**os.environ, "COLUMNS": "100", **(env or {})}
    return invoke(command, env=environment)


def inspected(*arguments: object) -> Any:
    done = run(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_wheel_as_json(tmp_path: Path) -> None:
    wheel = small(
        tmp_path,
        NATIVE_121,
        **{
            "kernel.cubin": (DATA / "sm_120f.cubin").read_bytes(),
            "link.fatbin": (DATA / "lto.fatbin").read_bytes(),
        },
    )
    found = inspected(wheel)
    assert (found["filename"], found["tags"], found["record_ok"]) == (wheel.name, [AARCH64], True)
    assert (found["name"], found["version"], found["size"]) == ("demo", "1.0", wheel.stat().st_size)
    assert (found["files"], found["largest"][0]["path"]) == (6, "demo/lib.so")
    libraries = {one["path"]: one for one in found["libraries"]}
    assert list(libraries) == ["demo/kernel.cubin", "demo/lib.so"]
    library = libraries["demo/lib.so"]
    assert (library["machine"], library["needed"]) == ("aarch64", [])
    assert library["sass"] == {"sm_120f": 1, "sm_121": 1, "sm_121a": 1, "sm_90a": 1}
    assert library["ptx"] == {"compute_80": 1}
    assert libraries["demo/kernel.cubin"]["sass"] == {"sm_120f": 1}
    (linkable,) = found["device_files"]
    assert (linkable["path"], linkable["lto"]) == ("demo/link.fatbin", {"lto_121": 1, "lto_90a": 1})
    assert [one for one in found["findings"] if one["severity"] == "error"] == []
    assert found["judged_by"] == {"recipe": "", "target": "", "train": ""}


def test_a_readable_page(tmp_path: Path) -> None:
    done = run(small(tmp_path, NATIVE_121))
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == f"demo-1.0-{AARCH64}.whl"
    at = lines.index("DEVICE CODE (entries by architecture)")
    assert lines[at + 1].split() == ["FILE", "sm_90a", "sm_120f", "sm_121", "sm_121a", "compute_80"]
    assert lines[at + 2].split() == ["lib.so", "1", "1", "1", "1", "1"]
    assert max(map(len, lines[at : at + 3])) <= 100
    assert any(line.startswith("FINDINGS: ") for line in lines)


def test_a_narrow_table_goes_on_below(tmp_path: Path) -> None:
    wheel = small(tmp_path, b"".join(container(Made(arch=arch)) for arch in (75, 80, 86, 90, 100, 120)))
    lines = run(wheel, env={"COLUMNS": "40"}).stdout.splitlines()
    heads = [line.split()[1:] for line in lines if line.startswith("FILE") and "sm_" in line]
    assert [one for head in heads for one in head] == [
        "sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120",
    ]  # fmt: skip
    assert len(heads) > 1


def test_files_of_one_name_are_told_apart(tmp_path: Path) -> None:
    wheel = small(
        tmp_path,
        NATIVE_121,
        **{"a/lib.so": elf([(".nv_fatbin", SM_80)]), "b/one.so": elf([(".nv_fatbin", SM_80)])},
    )
    lines = run(wheel).stdout.splitlines()
    at = lines.index("DEVICE CODE (entries by architecture)")
    assert [line.split()[0] for line in lines[at + 2 : at + 5]] == ["a/lib.so", "one.so", "demo/lib.so"]


def test_what_is_wrong_with_a_wheel_is_told(tmp_path: Path) -> None:
    library = compiled(tmp_path / "c", "lib.so", "int f(void) { return 1; }")
    wheel = write_wheel(tmp_path, {"demo/lib.so": library.read_bytes()}, record="demo/lib.so,sha256=AA,1\n")
    found = inspected(wheel)
    rules = {one["rule"]: one for one in found["findings"] if one["severity"] == "error"}
    assert {"record", "tags", "purelib"} <= rules.keys()
    assert not found["record_ok"]
    assert rules["record"]["advice"] == "fetch or build it again; do not install it"
    page = run(wheel).stdout
    assert (
        "error: purelib: WHEEL says Root-Is-Purelib: true, but demo/lib.so is machine code\n  next: " in page
    )
    assert "RECORD is wrong, see below" in page


def test_a_target_tells_how_the_code_runs(tmp_path: Path) -> None:
    wheel = small(tmp_path, container(Made(arch=120), Made(arch=90, kind=1)))
    assert not [one for one in inspected(wheel)["findings"] if one["rule"].startswith("device")]
    found = inspected(wheel, "--target", "gb10")
    (one,) = [one for one in found["findings"] if one["rule"].startswith("device")]
    assert (one["rule"], one["severity"]) == ("device-native", "warning")
    assert "runs, not native: for sm_121 it has sm_120" in one["message"]
    assert (found["judged_by"]["recipe"], found["judged_by"]["target"]) == ("", "gb10")
    assert [one["rule"] for one in inspected(wheel, "--target", "h200")["findings"]][-1] == "device-jit"


def test_names_from_inside_cannot_move_the_cursor(tmp_path: Path) -> None:
    wheel = small(tmp_path, NATIVE_121, **{"\x1b[2Jevil.so": elf([(".nv_fatbin", SM_80)])})
    done = run(wheel)
    assert done.returncode == 0
    assert "\x1b" not in done.stdout
    assert "evil.so" in done.stdout


def test_two_wheels(tmp_path: Path) -> None:
    one = small(tmp_path / "one", NATIVE_121, **{"only.txt": b"x", "same.txt": b"y", "other.txt": b"1"})
    two = small(tmp_path / "two", SM_80, **{"same.txt": b"y", "other.txt": b"2"})
    found = inspected(one, two)
    assert (found["filename"], found["other"]["filename"]) == (one.name, two.name)
    rows = {(row["kind"], row["subject"]): (row["first"], row["second"]) for row in found["differences"]}
    assert rows["device code", "demo/lib.so: sm_121"] == ("1", "")
    assert rows["device code", "demo/lib.so: sm_80"] == ("", "1")
    assert rows["file", "demo/only.txt"] == ("1 bytes", "")
    assert rows["file", "demo/other.txt"] == ("1 bytes", "1 bytes, other content")
    assert ("file", "demo/same.txt") not in rows
    assert ("file", "*.dist-info/RECORD") not in rows
    page = run(one, two).stdout
    assert "DEVICE CODE\nWHAT                     FIRST  SECOND\n" in page
    assert run(one, one).stdout.endswith("nothing differs that is looked at\n")


@pytest.mark.parametrize(
    ("name", "content", "code", "message"),
    [
        ("missing-1.0-py3-none-any.whl", None, 2, "does not exist"),
        ("folder", "", 2, "is a folder"),
        ("text.whl", b"hello", 8, "is no wheel name"),
        ("demo-1.0-py3-none-any.whl", b"hello", 8, "is no readable wheel"),
        ("demo-1.0-py3-none-any.whl", b"", 8, "is no readable wheel"),
        ("cut", None, 8, "is no readable wheel"),
        ("empty", None, 8, "expected one dist-info folder, found none"),
    ],
)
def test_bad_input(tmp_path: Path, name: str, content: bytes | str | None, code: int, message: str) -> None:
    path = tmp_path / name
    if name == "cut":
        whole = small(tmp_path, NATIVE_121)
        path = whole
        whole.write_bytes(whole.read_bytes()[:-100])
    elif name == "empty":
        path = tmp_path / "demo-1.0-py3-none-any.whl"
        zipfile.ZipFile(path, "w").close()
    elif isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        path.mkdir()
    done = run(path)
    assert (done.returncode, done.stdout) == (code, "")
    (error,) = [line for line in done.stderr.splitlines() if not line.startswith("  ")]
    assert error.startswith("error: ")
    assert message in error
    assert "Traceback" not in done.stderr


def test_a_wheel_of_the_wheelhouse(built: Root, tmp_path: Path) -> None:
    root = built.copy(tmp_path / "root")
    before = root.state()
    found = root.json("wheelhouse", "inspect", "Tiny")
    (listed,) = [one for one in root.json("wheelhouse", "list")["wheels"] if one["name"] == "tiny"]
    assert (found["filename"], found["path"]) == (listed["filename"], listed["path"])
    assert found["judged_by"] == {"recipe": "tiny", "target": "host-cpu", "train": "t"}
    assert [one for one in found["findings"] if one["severity"] == "error"] == []
    assert "judged by recipe tiny for host-cpu, train t" in root.run("wheelhouse", "inspect", "tiny").stdout
    unknown = root.run("wheelhouse", "inspect", "tinny")
    assert unknown.returncode == 2
    assert "is named 'tinny': did you mean 'tiny'?" in unknown.stderr
    assert root.state() == before


def test_nothing_published_yet(root: Root) -> None:
    done = root.run("wheelhouse", "inspect", "tiny")
    assert done.returncode == 10
    assert "nothing is published" in done.stderr


def test_a_cross_check_that_differs(tmp_path: Path) -> None:
    wheel = small(tmp_path, container(Made(arch=120)))
    (tmp_path / "bin").mkdir()
    program = saying(tmp_path / "bin", {"--list-elf": FIRST})
    path = {"PATH": f"{program.parent}:{os.environ['PATH']}"}
    same = run(wheel, "--cross-check", env=path)
    assert same.returncode == 0, same.stderr
    assert "demo/lib.so: cuobjdump lists the same" in same.stdout
    saying(tmp_path / "bin", {"--list-elf": FIRST.replace("120", "90")})
    differs = run(wheel, "--cross-check", env=path)
    assert differs.returncode == 8
    assert "  --list-elf sm_120: 1 here, 0 there" in differs.stdout
    document = json.loads(run(wheel, "--cross-check", "--json", env=path).stdout)
    assert [row["target"] for row in document["cross_check"]["demo/lib.so"]] == ["sm_120", "sm_90"]


@pytest.mark.skipif(shutil.which("cuobjdump") is not None, reason="cuobjdump is here")
def test_a_cross_check_without_cuobjdump(tmp_path: Path) -> None:
    done = run(small(tmp_path, NATIVE_121), "--cross-check")
    assert (done.returncode, done.stdout) == (4, "")
    assert "--cross-check needs cuobjdump" in done.stderr


# The vendor's wheels, which the index has: 160 and 220 MB.

MEASURED = r"""
import re, sys, threading, time, zipfile
from pathlib import Path
peak = 0
def watch():
    global peak
    while True:
        peak = max(peak, int(re.search(r"RssAnon:\s+(\d+)", Path("/proc/self/status").read_text())[1]))
        time.sleep(0.01)
threading.Thread(target=watch, daemon=True).start()
from spark_build.cli.main import main
code = main(["wheelhouse", "inspect", sys.argv[1]])
print(code, peak, time.process_time(), file=sys.stderr)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("version", "platform", "machine", "native"),
    [("0.8.0", "manylinux2014_aarch64", "aarch64", 20), ("0.8.1", "manylinux2014_x86_64", "x86_64", 20)],
)
def test_cusparselt(version: str, platform: str, machine: str, native: int) -> None:
    wheel = public_wheel(f"nvidia-cusparselt-cu13=={version}", platform)
    found = inspected(wheel)
    (library,) = found["libraries"]
    assert (library["path"], library["machine"]) == ("nvidia/cusparselt/lib/libcusparseLt.so.0", machine)
    assert (library["sass"]["sm_121"], library["problems"], found["record_ok"]) == (native, [], True)
    assert library["elsewhere"]["containers"] > 0
    assert {one["source"] for one in found["needed"]} == {"system"}
    errors = {one["rule"] for one in found["findings"] if one["severity"] == "error"}
    assert "purelib" in errors  # it says so itself
    target = {"aarch64": "gb10", "x86_64": "h200"}[machine]
    judged = inspected(wheel, "--target", target, "--train", "2.13" if version == "0.8.1" else "2.9")
    assert judged["judged_by"]["recipe"] == "cusparselt"
    assert not [
        one for one in judged["findings"] if one["severity"] == "error" and one["rule"] != "name-version"
    ]
    assert not [one for one in judged["findings"] if one["rule"].startswith("device")]
    done = subprocess.run([sys.executable, "-c", MEASURED, wheel], capture_output=True, text=True, check=True)
    code, kibibytes, _ = done.stderr.split()[-3:]
    assert code == "0"
    assert int(kibibytes) < 150 << 10
