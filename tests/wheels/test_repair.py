from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import stat
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_build import venv
from spark_build.errors import AuditError
from spark_build.recipes.model import Repair
from spark_build.wheels.attestation_formats import WheelContent
from spark_build.wheels.audit import audit
from spark_build.wheels.reader import content_digest, read_facts
from spark_build.wheels.repair import repair as repair_and_tell
from spark_build.wheels.repair import system_libraries
from spark_build.wheels.rules import AuditExpectation
from tests.helpers.wheels import PURE, PYTHON, blocks, compiled, entries_of, write_wheel, write_zip

INFO = "demo-1.0.dist-info"
MACHINE = os.uname().machine
TAG = f"{PYTHON}-{PYTHON}-linux_{MACHINE}"
EPOCH = 1_750_000_000  # 2025-06-15 15:06:40 UTC
BUNDLE = Repair(bundle=True)
AS_IT_IS = Repair()
EXTENSION = """
#include <Python.h>
int answer(void);
int question(void);
static PyObject *ask(PyObject *self, PyObject *none) { return PyLong_FromLong(answer() + question()); }
static PyMethodDef methods[] = {{"ask", ask, METH_NOARGS, 0}, {0}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_core", 0, -1, methods};
PyMODINIT_FUNC PyInit__core(void) { return PyModule_Create(&module); }
"""


def repair(wheel: Path, out: Path, **options: Any) -> Path:
    """The finished wheel, without word of what was done."""
    return repair_and_tell(wheel, out, **options).path


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with libanswer.so.1 and libquestion.so.1, which no system has."""
    folder = tmp_path_factory.mktemp("repair")
    for name, value in (("answer", 40), ("question", 2)):
        made = compiled(
            folder,
            f"lib{name}.so.1",
            f"int {name}(void) {{ return {value}; }}",
            f"-Wl,-soname,lib{name}.so.1",
        )
        (folder / f"lib{name}.so").symlink_to(made.name)
    return folder


@pytest.fixture(scope="module")
def extension(workshop: Path) -> bytes:
    """A Python extension that needs both libraries."""
    include = sysconfig.get_path("include")
    # Some compilers drop libc from a library that calls nothing in it; auditwheel knows glibc by it.
    flags = ("-Wl,--no-as-needed", f"-I{include}", f"-L{workshop}", "-lanswer", "-lquestion")
    return compiled(workshop, "_core.so", EXTENSION, *flags).read_bytes()


@pytest.fixture(scope="module")
def files(extension: bytes) -> dict[str, bytes]:
    return {**PURE, "demo/_core.so": extension}


@pytest.fixture
def env(workshop: Path) -> dict[str, str]:
    return venv.clean_environment({"LD_LIBRARY_PATH": str(workshop)})


def rebuilt(wheel: Path, folder: Path) -> Path:
    """The same wheel in another entry order and with other times."""
    folder.mkdir()
    return write_zip(folder / wheel.name, entries_of(wheel)[::-1], moment=(2024, 2, 29, 1, 2, 4))


def audited(wheel: Path) -> list[str]:
    found = audit(
        read_facts(wheel),
        AuditExpectation(
            distribution="demo",
            version="1.0",
            platform=f"linux-{MACHINE}",
            python=PYTHON,
            provided=(),
            system_libraries=system_libraries(f"linux-{MACHINE}"),
        ),
    )
    return [f"{finding.severity} {finding.rule}: {finding.message}" for finding in found]


def test_a_bundled_wheel_works_where_nothing_is_installed(
    tmp_path: Path, files: dict[str, bytes], env: dict[str, str]
) -> None:
    wheel = write_wheel(tmp_path, files, tag=TAG)
    assert any("needs libanswer.so.1, which no wheel provides" in line for line in audited(wheel))
    log = io.BytesIO()
    done = repair(
        wheel, tmp_path / "out", repair=BUNDLE, build_tag="1_abcdef01", epoch=EPOCH, log=log, env=env
    )

    assert done.name.startswith(f"demo-1.0-1_abcdef01-{PYTHON}-{PYTHON}-manylinux")
    assert audited(done) == []
    assert b"auditwheel repair" in log.getvalue()
    assert list((tmp_path / "out").iterdir()) == [done]  # no leftovers
    bundled = [
        library.path for library in read_facts(done).libraries if library.path.startswith("demo.libs/")
    ]
    assert len(bundled) == 2

    fresh = tmp_path / "fresh"
    venv.create(fresh)
    installed = venv.pip(fresh, ["install", "--no-index", str(done)])
    assert installed.returncode == 0, installed.output
    answer = subprocess.run(
        [str(venv.python_of(fresh)), "-c", "from demo import _core; print(_core.ask())"],
        env=venv.clean_environment(),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert answer.stdout == "42\n"


def test_bundling_gives_the_same_bytes_again(
    tmp_path: Path, files: dict[str, bytes], env: dict[str, str]
) -> None:
    wheel = write_wheel(tmp_path, files, tag=TAG)
    other = rebuilt(wheel, tmp_path / "other")
    first, second, third = (
        repair(given_, tmp_path / name, repair=BUNDLE, build_tag="1", epoch=EPOCH, env=env | hostile)
        for given_, name, hostile in [
            (wheel, "first", {"PYTHONHASHSEED": "1"}),
            (wheel, "second", {"PYTHONHASHSEED": "2", "SOURCE_DATE_EPOCH": "99", "TZ": "Asia/Tokyo"}),
            (other, "third", {"AUDITWHEEL_PLAT": f"linux_{MACHINE}", "TMPDIR": str(tmp_path)}),
        ]
    )
    assert first.name == second.name == third.name
    assert first.read_bytes() == second.read_bytes() == third.read_bytes()


def test_the_result_is_what_auditwheel_makes_of_the_whole_wheel(
    tmp_path: Path, workshop: Path, files: dict[str, bytes], env: dict[str, str]
) -> None:
    """It gets only the ELF files; the rest must come through, and its own changes must win."""
    source = "int answer(void); int main(void) { return answer() != 40; }"
    tool = compiled(workshop, "tool", source, f"-L{workshop}", "-lanswer", program=True).read_bytes()
    scripts = "demo-1.0.data/scripts"
    content = {
        **files,
        f"{scripts}/tool": tool,  # auditwheel moves it and leaves a script in its place
        f"{scripts}/run": b"#!python\n",
        "demo/libtext.so": b"INPUT(-lm)\n",
        "demo/cut.so": b"\x7fELF",
        f"{INFO}/licenses/LICENSE": b"MIT\n",
    }
    wheel = write_wheel(tmp_path, content, tag=TAG, executable=[f"{scripts}/tool", f"{scripts}/run"])
    done = repair(wheel, tmp_path / "out", repair=BUNDLE, build_tag="1", epoch=EPOCH, env=env)

    whole = tmp_path / "whole"
    path = os.pathsep.join([sysconfig.get_path("scripts"), env["PATH"]])
    command = [sys.executable, "-m", "auditwheel", "repair", "--plat", "auto", "-w", str(whole), str(wheel)]
    subprocess.run(command, env=env | {"PATH": path}, check=True, capture_output=True, timeout=60)
    (expected,) = whole.glob("*.whl")
    assert done.name == expected.name.replace("-1.0-", "-1.0-1-")
    assert seen_by_installers(done) == seen_by_installers(expected)
    assert seen_by_installers(done)["demo.scripts/tool"][1]
    assert read_facts(done).record_problems == ()


def seen_by_installers(wheel: Path) -> dict[str, tuple[bytes, bool]]:
    """Content and whether it is executable, of all but the papers that name the wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return {
            info.filename: (archive.read(info), bool(info.external_attr >> 16 & 0o111))
            for info in archive.infolist()
            if not info.is_dir() and info.filename not in (f"{INFO}/RECORD", f"{INFO}/WHEEL")
        }


def test_libraries_to_bundle_are_not_loaded_by_the_tools(
    tmp_path: Path, workshop: Path, files: dict[str, bytes]
) -> None:
    """What a need brings runs nowhere outside the sandbox; python itself loads a libz."""
    need = tmp_path / "need"
    shutil.copytree(workshop, need)
    mark = tmp_path / "ran"
    evil = f'#include <stdio.h>\n__attribute__((constructor)) void run(void) {{ fopen("{mark}", "w"); }}'
    for name in ("libz.so.1", "libstdc++.so.6"):
        compiled(need, name, evil, f"-Wl,-soname,{name}")
    done = repair(
        write_wheel(tmp_path, files, tag=TAG),
        tmp_path / "out",
        repair=BUNDLE,
        build_tag="1",
        epoch=EPOCH,
        libraries=[need],
    )
    assert len([one for one in read_facts(done).libraries if one.path.startswith("demo.libs/")]) == 2
    assert not mark.exists()


def test_the_users_library_path_decides_nothing(
    tmp_path: Path, workshop: Path, files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No key has these variables: under one key the bytes would be another library's."""
    mark = tmp_path / "ran"
    evil = f'#include <stdio.h>\n__attribute__((constructor)) void run(void) {{ fopen("{mark}", "w"); }}'
    monkeypatch.setenv("LD_LIBRARY_PATH", str(workshop))
    monkeypatch.setenv("LD_PRELOAD", str(compiled(tmp_path / "c", "evil.so", evil)))
    wheel = write_wheel(tmp_path, files, tag=TAG)
    with pytest.raises(AuditError, match="cannot repair"):
        repair(wheel, tmp_path / "out", repair=BUNDLE, build_tag="1", epoch=EPOCH)
    assert not mark.exists()


def test_excluded_libraries_stay_outside(
    tmp_path: Path, files: dict[str, bytes], env: dict[str, str]
) -> None:
    wheel = write_wheel(tmp_path, files, tag=TAG)
    only = Repair(bundle=True, exclude=("libanswer.so.1",))
    done = repair(wheel, tmp_path / "out", repair=only, build_tag="1", epoch=EPOCH, env=env)
    names = [name for name, _ in entries_of(done) if name.startswith("demo.libs/")]
    assert len(names) == 1
    assert names[0].startswith("demo.libs/libquestion-")
    core = next(library for library in read_facts(done).libraries if library.path == "demo/_core.so")
    assert "libanswer.so.1" in core.needed


def test_a_missing_library_is_named(tmp_path: Path, files: dict[str, bytes]) -> None:
    wheel = write_wheel(tmp_path, files, tag=TAG)
    with pytest.raises(AuditError, match=r"auditwheel cannot repair demo-1.0.*lib(answer|question)\.so\.1"):
        repair(
            wheel, tmp_path / "out", repair=BUNDLE, build_tag="1", epoch=EPOCH, env=venv.clean_environment()
        )
    assert list((tmp_path / "out").iterdir()) == []


def test_the_installed_package_gets_its_sbom(tmp_path: Path, workshop: Path) -> None:
    """auditwheel writes an SBOM for libraries that the distribution's package manager knows."""
    library = Path(f"/usr/lib/{MACHINE}-linux-gnu/libffi.so.8")
    source = "void ffi_call(void); void call(void) { ffi_call(); }"
    uses = compiled(workshop, "libuses.so", source, str(library)).read_bytes()
    wheel = write_wheel(tmp_path, {**PURE, "demo/libuses.so": uses}, tag=f"py3-none-linux_{MACHINE}")
    done = repair(wheel, tmp_path / "out", repair=BUNDLE, build_tag="1_ab", epoch=EPOCH)
    sbom = json.loads(dict(entries_of(done))[f"{INFO}/sboms/auditwheel.cdx.json"])
    assert "libffi" in sbom["components"][1]["name"]
    assert sbom["components"][0]["purl"].endswith(f"?file_name={done.name}")
    assert "serialNumber" not in sbom
    assert audited(done) == []


def test_other_sboms_lose_random_numbers_and_clock_times(tmp_path: Path) -> None:
    def one(folder: str, serial: str, clock: str) -> Path:
        sbom = {
            "bomFormat": "CycloneDX",
            "serialNumber": serial,
            "metadata": {"timestamp": clock, "tools": []},
        }
        content = {
            f"{INFO}/sboms/tool.cdx.json": json.dumps(sbom).encode(),
            f"{INFO}/sboms/x.spdx": b"no json",
        }
        wheel = write_wheel(tmp_path / folder, {**PURE, **content})
        return repair(wheel, tmp_path / folder / "out", repair=AS_IT_IS, build_tag="1", epoch=EPOCH)

    first, second = (
        one("a", "urn:uuid:1", "2026-01-01T00:00:00Z"),
        one("b", "urn:uuid:2", "2026-01-02T00:00:00Z"),
    )
    assert first.read_bytes() == second.read_bytes()
    inside = dict(entries_of(first))
    assert json.loads(inside[f"{INFO}/sboms/tool.cdx.json"]) == {
        "bomFormat": "CycloneDX",
        "metadata": {"timestamp": "2025-06-15T15:06:40Z", "tools": []},
    }
    assert inside[f"{INFO}/sboms/x.spdx"] == b"no json"


def test_without_bundling_only_the_wrapping_changes(
    tmp_path: Path, files: dict[str, bytes], env: dict[str, str]
) -> None:
    wheel = write_wheel(tmp_path, files, tag=TAG, build="7")
    done = repair(wheel, tmp_path / "out", repair=AS_IT_IS, build_tag="1_ab", epoch=EPOCH, env=env)
    assert done.name == f"demo-1.0-1_ab-{TAG}.whl"
    assert content_digest(done) == content_digest(wheel)
    facts = read_facts(done)
    assert facts.wheel_build == facts.build == "1_ab"
    assert dict(entries_of(done))[f"{INFO}/WHEEL"].count(b"Build: ") == 1
    assert facts.record_problems == ()
    assert facts.libraries == read_facts(wheel).libraries


def test_a_pure_wheel_is_left_pure_when_bundling_is_asked_for(tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path)
    done = repair(wheel, tmp_path / "out", repair=BUNDLE, build_tag="1", epoch=EPOCH)
    assert done.name == "demo-1.0-1-py3-none-any.whl"
    assert audited(done) == []


def test_the_zip_itself_is_normal(tmp_path: Path) -> None:
    script = "demo-1.0.data/scripts/run"
    content = {"zz/last.py": b"", script: b"#!python\n", "demo-1.0.dist-info.py": b"", **PURE}
    wheel = write_wheel(tmp_path, content, executable=[script])
    write_zip(wheel, [("demo/", b""), *entries_of(wheel), (f"{INFO}/RECORD.jws", b"{}")], executable=[script])
    done = repair(wheel, tmp_path / "out", repair=AS_IT_IS, build_tag="1", epoch=EPOCH)
    with zipfile.ZipFile(done) as archive:
        infos = archive.infolist()
    names = [info.filename for info in infos]
    own = [name for name in names if name.startswith(f"{INFO}/")]
    assert names == [*sorted(set(names) - set(own)), *own]
    assert own == [f"{INFO}/METADATA", f"{INFO}/WHEEL", f"{INFO}/RECORD"]
    assert {info.date_time for info in infos} == {(2025, 6, 15, 15, 6, 40)}
    assert {info.compress_type for info in infos} == {zipfile.ZIP_DEFLATED}
    assert {info.create_system for info in infos} == {3}
    assert all(not info.extra for info in infos)  # zip64 fields only where they are needed
    modes = {info.filename: info.external_attr >> 16 for info in infos}
    assert modes.pop(script) == stat.S_IFREG | 0o755
    assert set(modes.values()) == {stat.S_IFREG | 0o644}
    assert stat.S_IMODE(done.stat().st_mode) & 0o444 == 0o444
    record = dict(entries_of(done))[f"{INFO}/RECORD"].decode().splitlines()
    assert [line.partition(",")[0] for line in record] == names
    assert record[-1] == f"{INFO}/RECORD,,"


@pytest.mark.parametrize(("epoch", "year"), [(0, 1980), (-1, 1980), (10**11, 2107)])
def test_times_a_zip_cannot_express_are_clamped(tmp_path: Path, epoch: int, year: int) -> None:
    done = repair(write_wheel(tmp_path), tmp_path / "out", repair=AS_IT_IS, build_tag="1", epoch=epoch)
    with zipfile.ZipFile(done) as archive:
        assert {info.date_time[0] for info in archive.infolist()} == {year}


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_order_and_time_gives_the_same_bytes(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("order")
    extra = data.draw(st.dictionaries(st.from_regex(r"\A[a-zé]{1,8}\Z"), st.binary(max_size=100), max_size=4))
    wheel = write_wheel(folder, {**PURE, **{f"pkg/{name}": value for name, value in extra.items()}})
    first = repair(wheel, folder / "first", repair=AS_IT_IS, build_tag="1", epoch=EPOCH).read_bytes()
    year = data.draw(st.integers(1980, 2107))
    compression = data.draw(st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED]))
    shuffled = data.draw(st.permutations(entries_of(wheel)))
    write_zip(wheel, shuffled, moment=(year, 1, 2, 3, 4, 6), compression=compression)
    again = repair(wheel, folder / "second", repair=AS_IT_IS, build_tag="1", epoch=EPOCH)
    assert again.read_bytes() == first
    assert read_facts(again).record_problems == ()
    # Repairing what was repaired changes nothing more.
    assert repair(again, folder / "third", repair=AS_IT_IS, build_tag="1", epoch=EPOCH).read_bytes() == first


def test_other_build_tags_give_other_names_and_the_same_content(tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path)
    one, two = (
        repair(wheel, tmp_path, repair=AS_IT_IS, build_tag=tag, epoch=EPOCH) for tag in ("1_a", "2_b")
    )
    assert one.name != two.name
    assert content_digest(one) == content_digest(two)


def test_a_wrong_record_is_not_blessed(tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path)
    spoiled = [(n, b"VALUE = 2\n" if n == "demo/__init__.py" else data) for n, data in entries_of(wheel)]
    write_zip(wheel, spoiled)
    with pytest.raises(AuditError, match=r"demo/__init__\.py: content is not what RECORD says"):
        repair(wheel, tmp_path / "out", repair=AS_IT_IS, build_tag="1", epoch=EPOCH)


@pytest.mark.parametrize("build_tag", ["", "abc", "1-2", "_1", "1 2"])
def test_a_build_tag_that_no_file_name_can_hold_is_refused(tmp_path: Path, build_tag: str) -> None:
    with pytest.raises(AuditError, match="must begin with a digit"):
        repair(write_wheel(tmp_path), tmp_path / "out", repair=AS_IT_IS, build_tag=build_tag, epoch=EPOCH)


def test_system_libraries_know_the_loader_and_no_private_library() -> None:
    for platform, loader in (
        ("linux-x86_64", "ld-linux-x86-64.so.2"),
        ("linux-aarch64", "ld-linux-aarch64.so.1"),
    ):
        known = system_libraries(platform)
        assert {loader, "libc.so.6", "libstdc++.so.6", "libgcc_s.so.1"} <= known
        assert not {name for name in known if "cuda" in name or "protobuf" in name}


def test_findings_of_a_finished_wheel_do_not_block(tmp_path: Path, files: dict[str, bytes]) -> None:
    wheel = write_wheel(tmp_path, files, tag=TAG)
    done = repair(wheel, tmp_path / "out", repair=AS_IT_IS, build_tag="1", epoch=EPOCH)
    found = audit(
        read_facts(done),
        AuditExpectation(
            distribution="demo",
            version="1.0",
            platform=f"linux-{MACHINE}",
            python=PYTHON,
            provided=("libanswer.so.*", "libquestion.so.1"),
            system_libraries=system_libraries(f"linux-{MACHINE}"),
        ),
    )
    assert [finding.rule for finding in found] == ["manylinux"]
    assert not blocks(found)


def test_extra_files_are_made_from_the_rest_and_listed_in_record(tmp_path: Path) -> None:
    sbom = f"{INFO}/sboms/tool.spdx"
    wheel = write_wheel(tmp_path, {**PURE, sbom: b"bill", f"{INFO}/note.json": b"old"})
    seen: list[WheelContent] = []

    def note(content: WheelContent) -> bytes:
        seen.append(content)
        return b"new"

    for name in ("first", "second"):
        repair(wheel, tmp_path / name, repair=AS_IT_IS, build_tag="1", epoch=EPOCH, extra={"note.json": note})
    (first,), (second,) = ((tmp_path / name).iterdir() for name in ("first", "second"))
    assert first.read_bytes() == second.read_bytes()
    assert dict(entries_of(first))[f"{INFO}/note.json"] == b"new"
    assert read_facts(first).record_problems == ()
    given_ = seen[0]
    assert given_.metadata.startswith(b"Metadata-Version")
    assert given_.sboms == (b"bill",)
    assert given_.hashes.keys() == {*PURE, sbom, f"{INFO}/METADATA", f"{INFO}/WHEEL"}
    assert given_.hashes["demo/__init__.py"] == hashlib.sha256(PURE["demo/__init__.py"]).hexdigest()
