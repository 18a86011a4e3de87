"""Our check of RECORD and that of the package installer agree.

Ours reads every file once, together with all else that is looked at, and tells a cut or hostile zip from a
wrong RECORD; installer's would unpack every wheel a second time and reads METADATA and RECORD whole. So both
are kept: ours in the program, installer's here as the judge of it.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from installer.sources import WheelFile

from spark_build.errors import AuditError
from spark_build.wheels.reader import read_facts
from tests.conftest import Root
from tests.helpers import broken_libraries, broken_texts, broken_zips
from tests.helpers.corpus import CASES, sound
from tests.helpers.wheels import record_of, row, write_wheel, write_zip
from tests.wheels.test_broken_wheels import errors

MODULES = (broken_texts, broken_zips, broken_libraries)  # importing one fills CASES
INFO = "demo-1.0.dist-info"
# Where installer sees nothing wrong with RECORD and we do.
STRICTER = {
    "a listed file that is missing": "installer looks at the files of the zip, not at the rows left over",
    "a folder that climbs out": "installer passes over folders",
    "a folder with content": "installer passes over folders",
    "a name that climbs out": "installer leaves it to whoever writes the file",
    "a program before the zip": "zipfile reads it",
    "a file that only a stream has": "zipfile goes by the directory at the end",
    "a second name": "zipfile goes by one of them",
    "a size that is too large": "zipfile reads up to the end of the data",
}


def installer_takes(wheel: Path) -> bool:
    try:
        with WheelFile.open(wheel) as source:
            source.validate_record()
    except Exception:  # noqa: BLE001 - whatever it is, the wheel is refused
        return False
    return True


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("workshop")


def test_both_take_the_sound_wheel(tmp_path: Path, workshop: Path) -> None:
    wheel = sound(tmp_path, workshop)
    assert installer_takes(wheel)
    assert read_facts(wheel).record_problems == ()


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("name", CASES)
def test_both_refuse_the_same_broken_wheels(name: str, tmp_path: Path, workshop: Path) -> None:
    wheel = CASES[name].make(tmp_path, workshop)
    theirs = installer_takes(wheel)
    if not theirs:  # by another rule, where it is not RECORD that is wrong
        assert errors(wheel)
    try:
        ours = not read_facts(wheel).record_problems
    except AuditError:
        return  # not even readable
    if name in STRICTER:
        assert (ours, theirs) == (False, True)
    else:
        assert (
            theirs or not ours or name in ("the dist-info of another wheel", "a file name of another project")
        )
        assert ours or not theirs


ROWS = st.lists(
    st.one_of(
        st.tuples(st.just("drop"), st.integers(0, 4), st.just("")),
        st.tuples(
            st.just("hash"),
            st.integers(0, 4),
            st.sampled_from(["", "sha256=AA", "sha256", "=x", "nohash=AA"]),
        ),
        st.tuples(st.just("size"), st.integers(0, 4), st.sampled_from(["", "0", "257", "-1", "x", "1e2"])),
        st.tuples(
            st.just("name"), st.integers(0, 4), st.sampled_from(["demo/Data.bin", "demo\\data.bin", ""])
        ),
        st.tuples(st.just("algorithm"), st.integers(0, 4), st.sampled_from(["sha384", "sha512"])),
        st.tuples(st.just("field"), st.integers(0, 4), st.just("more")),
    ),
    max_size=2,
)


@settings(max_examples=150, deadline=None)
@given(changes=ROWS)
def test_both_say_the_same_of_any_record(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[str, int, str]]
) -> None:
    """RECORD is about five files here; a row for a file that is not there is in STRICTER."""
    folder = tmp_path_factory.mktemp("record")
    wheel = write_wheel(folder)
    with zipfile.ZipFile(wheel) as archive:
        files = {info.filename: archive.read(info) for info in archive.infolist()}
    files.pop(f"{INFO}/RECORD")
    rows = [line.split(",") for line in record_of(files, f"{INFO}/RECORD").splitlines()]
    for kind, index, value in changes:
        if index >= len(rows):
            continue
        if kind == "drop":
            del rows[index]
        elif kind == "algorithm" and rows[index][0] in files:
            rows[index] = row(rows[index][0], files[rows[index][0]], value).strip().split(",")
        elif kind == "field":
            rows[index].append(value)
        elif kind in ("hash", "size", "name"):
            rows[index][{"name": 0, "hash": 1, "size": 2}[kind]] = value
    text = "".join(",".join(one) + "\n" for one in rows)
    write_zip(wheel, [*files.items(), (f"{INFO}/RECORD", text.encode())])
    names = {one[0].replace("\\", "/") for one in rows}  # as both read them
    try:
        ours = not read_facts(wheel).record_problems
    except AuditError:
        ours = False
    if names <= {*files, f"{INFO}/RECORD"}:
        assert ours == installer_takes(wheel), text
    else:
        assert not ours


@pytest.mark.parametrize(
    ("change", "say"),
    [
        (lambda text: text.replace(f"{INFO}/RECORD,,\n", ""), "does not list itself"),
        (lambda text: text.replace("RECORD,,", "RECORD,sha256=AA,3"), "states its own hash or size"),
        (lambda text: text + f"{INFO}/RECORD.jws,sha256=AA,2\n", "a signature over RECORD, and listed there"),
    ],
)
def test_what_record_says_of_itself(change: object, say: str, tmp_path: Path) -> None:
    assert callable(change)
    wheel = write_wheel(tmp_path)
    with zipfile.ZipFile(wheel) as archive:
        files = {info.filename: archive.read(info) for info in archive.infolist()}
    record = change(files.pop(f"{INFO}/RECORD").decode())
    signature = {f"{INFO}/RECORD.jws": b"{}"} if "jws" in record else {}
    write_zip(wheel, [*files.items(), *signature.items(), (f"{INFO}/RECORD", record.encode())])
    assert not installer_takes(wheel)
    (problem,) = read_facts(wheel).record_problems
    assert say in problem


def test_what_is_published_is_taken(built: Root) -> None:
    wheels = [*built.folder.glob("wheelhouse/store/??/*/*.whl")]
    assert wheels
    assert all(map(installer_takes, wheels))
