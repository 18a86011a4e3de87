from __future__ import annotations

import io
import struct
import zipfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_build.errors import AuditError
from spark_build.wheels.elf import read_library
from spark_build.wheels.reader import content_digest, facts_and_digest, read_facts
from tests.helpers.wheels import PURE, compiled, entries_of, record_of, row, write_wheel, write_zip

INFO = "demo-1.0.dist-info"
RECORD = f"{INFO}/RECORD"
LINUX = "cp311-cp311-linux_x86_64"


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("wheelfile")


@pytest.fixture(scope="module")
def library(workshop: Path) -> bytes:
    """A real library that needs libm by name."""
    source = "double cos(double); double half(double x) { return cos(x) / 2; }"
    return compiled(workshop, "libhalf.so", source, "-Wl,--no-as-needed", "-lm").read_bytes()


def for_machine(library: bytes, code: int) -> bytes:
    """The same file with another e_machine."""
    return library[:18] + struct.pack("<H", code) + library[20:]


def problems(path: Path) -> tuple[str, ...]:
    return read_facts(path).record_problems


def problems_or_refusal(path: Path) -> tuple[str, ...]:
    """The same; for a wheel too damaged to look at, the one line that says so."""
    try:
        return problems(path)
    except AuditError as error:
        return (error.message,)


def with_record(folder: Path, text: str) -> Path:
    return write_wheel(folder, record=text)


def sound_record(folder: Path) -> str:
    return dict(entries_of(write_wheel(folder)))[RECORD].decode()


def test_facts_of_a_real_wheel(tmp_path: Path, library: bytes) -> None:
    files = {**PURE, "demo/_half.so": library}
    wheel = write_wheel(tmp_path, files, tag="cp311-cp311-linux_x86_64", build="1_ab", requires=["numpy>=2"])
    facts = read_facts(wheel)
    assert (facts.filename, facts.name, facts.version) == (wheel.name, "demo", "1.0")
    assert (facts.build, facts.wheel_build) == ("1_ab", "1_ab")
    assert facts.filename_tags == facts.wheel_tags == (LINUX,)
    assert facts.root_is_purelib is False
    assert facts.requires == ("numpy>=2",)
    assert facts.record_problems == ()
    assert facts.size == wheel.stat().st_size
    (found,) = facts.libraries
    assert found.path == "demo/_half.so"
    assert "libm.so.6" in found.needed
    assert (found.sass, found.ptx) == ({}, {})


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_a_long_description_is_no_header(tmp_path: Path, end: str) -> None:
    """Lines may end as the email parser takes them."""
    readme = [f"line {number} of the readme" for number in range(300)]
    lines = ["Metadata-Version: 2.1", "Name: demo", "Version: 1.0", "Requires-Dist: other", "", *readme]
    wheel = write_wheel(tmp_path)
    entries = {**dict(entries_of(wheel)), f"{INFO}/METADATA": end.join(lines).encode()}
    del entries[RECORD]
    write_zip(wheel, [*entries.items(), (RECORD, record_of(entries, RECORD).encode())])
    facts = read_facts(wheel)
    assert (facts.requires, facts.record_problems) == (("other",), ())


def test_compressed_tags_are_expanded(tmp_path: Path) -> None:
    facts = read_facts(write_wheel(tmp_path, tag="py2.py3-none-any"))
    assert facts.filename_tags == facts.wheel_tags == ("py2-none-any", "py3-none-any")
    assert facts.root_is_purelib is True


def test_elf_is_found_by_content_not_by_name(tmp_path: Path, library: bytes, workshop: Path) -> None:
    program = compiled(workshop, "tool", "int main(void) { return 0; }", program=True).read_bytes()
    files = {
        "demo-1.0.data/scripts/tool": program,
        "demo/plugin.weights": library,
        "demo/not.so": b"import this",
    }
    facts = read_facts(write_wheel(tmp_path, files, tag=LINUX, executable=["demo-1.0.data/scripts/tool"]))
    assert [found.path for found in facts.libraries] == ["demo-1.0.data/scripts/tool", "demo/plugin.weights"]
    assert all("libc.so.6" in found.needed for found in facts.libraries)


@pytest.mark.parametrize(
    ("code", "name"), [(62, "x86_64"), (183, "aarch64"), (190, "cuda"), (3, "i686"), (60000, "60000")]
)
def test_the_machine_comes_from_the_header(library: bytes, code: int, name: str) -> None:
    assert read_library("a.so", io.BytesIO(for_machine(library, code))).machine == name


def test_a_cut_library_is_unreadable_not_a_crash(tmp_path: Path, library: bytes) -> None:
    facts = read_facts(write_wheel(tmp_path, {"demo/cut.so": library[:40]}, tag=LINUX))
    assert facts.libraries[0].machine == "unreadable"
    assert facts.record_problems == ()


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_no_damage_to_an_elf_file_crashes_the_reader(library: bytes, data: st.DataObject) -> None:
    damaged = bytearray(library)
    for _ in range(data.draw(st.integers(1, 4))):
        # Headers and the first tables: what the reader follows.
        damaged[data.draw(st.integers(4, 1023))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(4, len(damaged)))
    assert read_library("a.so", io.BytesIO(bytes(damaged[:cut]))).path == "a.so"


def test_a_sound_record_has_no_problem(tmp_path: Path) -> None:
    assert problems(write_wheel(tmp_path)) == ()


def test_longer_hashes_are_as_good(tmp_path: Path) -> None:
    name = "demo/data.bin"
    text = sound_record(tmp_path / "a").replace(row(name, PURE[name]), row(name, PURE[name], "sha512"))
    assert "sha512=" in text
    assert problems(with_record(tmp_path, text)) == ()


BAD_ROWS = {
    "unlisted": ("", "not listed in RECORD"),
    "wrong hash": (row("demo/data.bin", bytes(256)), "sha256 differs"),
    "wrong size": (row("demo/data.bin", PURE["demo/data.bin"]).replace(",256", ",255"), "RECORD says 255"),
    "no size": (row("demo/data.bin", PURE["demo/data.bin"]).replace(",256", ","), "RECORD says nothing"),
    "no hash": ("demo/data.bin,,256\n", "no sha256"),
    "weak hash": (row("demo/data.bin", PURE["demo/data.bin"], "md5"), "no sha256"),
    "padded hash": (row("demo/data.bin", PURE["demo/data.bin"]).replace(",256", "=,256"), "sha256 differs"),
    "listed twice": (row("demo/data.bin", PURE["demo/data.bin"]) * 2, "more than once"),
    "size is no number": ("demo/data.bin,sha256=x,many\n", "non-integer"),
    "too short": ("demo/data.bin\n", "expected 3 elements"),
    "not there": (row("demo/data.bin", PURE["demo/data.bin"]) + "demo/gone.py,sha256=x,1\n", "not there"),
}


@pytest.mark.parametrize("case", BAD_ROWS)
def test_a_wrong_record_is_told(tmp_path: Path, case: str) -> None:
    bad, words = BAD_ROWS[case]
    text = sound_record(tmp_path / "a").replace(row("demo/data.bin", PURE["demo/data.bin"]), bad)
    assert any(words in problem for problem in problems(with_record(tmp_path, text)))


def test_signatures_need_no_row(tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path)
    digest = content_digest(wheel)
    write_zip(wheel, [*entries_of(wheel), (f"{RECORD}.jws", b"{}")])
    assert problems(wheel) == ()
    assert content_digest(wheel) == digest


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_name_twice_in_the_zip_is_told(tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path)
    write_zip(wheel, [*entries_of(wheel), ("demo/__init__.py", PURE["demo/__init__.py"])])
    assert problems(wheel) == ("demo/__init__.py: appears 2 times in the zip",)


@pytest.mark.parametrize("name", ["/etc/evil", "../evil", "demo/../../evil", "demo//evil", "./evil", "a\\b"])
def test_names_that_leave_the_folder_are_told(tmp_path: Path, name: str) -> None:
    wheel = write_wheel(tmp_path, {**PURE, name: b""})
    assert f"{name}: not a safe relative name" in problems(wheel)


def test_a_name_inside_cannot_break_the_line(tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path)
    write_zip(wheel, [*entries_of(wheel), ("demo/\x1b[2J\n.py", b"")])
    assert r"demo/\x1b[2J\n.py: not listed in RECORD" in problems(wheel)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_flipped_byte_of_any_file_is_found(workshop: Path, data: st.DataObject) -> None:
    wheel = write_wheel(workshop / "flip")
    entries = dict(entries_of(wheel))
    name = data.draw(st.sampled_from(sorted(set(entries) - {RECORD})))
    changed = bytearray(entries[name])
    changed[data.draw(st.integers(0, len(changed) - 1))] ^= data.draw(st.integers(1, 255))
    entries[name] = bytes(changed)
    write_zip(wheel, list(entries.items()))
    # METADATA that lost its name is told before RECORD is read.
    assert any(name in told or Path(name).name in told for told in problems_or_refusal(wheel))


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_flipped_byte_of_the_zip_is_found_or_means_nothing(workshop: Path, data: st.DataObject) -> None:
    compression = data.draw(st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2]))
    wheel = write_wheel(workshop / "raw")
    write_zip(wheel, entries_of(wheel), compression=compression)
    digest = content_digest(wheel)
    raw = bytearray(wheel.read_bytes())
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    wheel.write_bytes(raw)
    found = problems_or_refusal(wheel)
    assert not any("\n" in told for told in found)
    assert found or content_digest(wheel) == digest


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_the_digest_sees_content_and_nothing_else(workshop: Path, data: st.DataObject) -> None:
    wheel = write_wheel(workshop / "digest")
    other = write_wheel(workshop / "digest-built", build=data.draw(st.from_regex(r"\A[1-9][a-z_]{0,5}\Z")))
    order = data.draw(st.permutations(entries_of(other)))
    moment = (data.draw(st.integers(1980, 2107)), data.draw(st.integers(1, 12)), 3, 4, 5, 6)
    compression = data.draw(st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED]))
    write_zip(other, order, moment=moment, compression=compression)
    assert content_digest(other) == content_digest(wheel)

    name, content = data.draw(st.sampled_from(sorted(PURE.items())))
    changed = [(entry, value + b"!" if entry == name else value) for entry, value in order]
    assert content_digest(write_zip(other, changed)) != content_digest(wheel)
    renamed = [(entry + "x" if value == content else entry, value) for entry, value in order]
    assert content_digest(write_zip(other, renamed)) != content_digest(wheel)


@pytest.mark.parametrize("algorithm", ["sha256", "sha384", "sha512"])
def test_one_pass_gives_facts_and_digest(tmp_path: Path, library: bytes, algorithm: str) -> None:
    files = {**PURE, "demo/libhalf.so": library, f"{INFO}/sboms/x.json": b"{}"}
    text = dict(entries_of(write_wheel(tmp_path / "a", files)))[RECORD].decode()
    for name, data in files.items():
        text = text.replace(row(name, data), row(name, data, algorithm))
    wheel = write_wheel(tmp_path, files, record=text)
    facts, digest = facts_and_digest(wheel)
    assert facts == read_facts(wheel)
    assert facts.record_problems == ()
    assert [library.path for library in facts.libraries] == ["demo/libhalf.so"]
    assert digest == content_digest(wheel) == content_digest(tmp_path / "a" / wheel.name)


def test_the_digest_leaves_sboms_out_but_no_other_metadata(tmp_path: Path) -> None:
    plain = content_digest(write_wheel(tmp_path / "a"))
    sbom = write_wheel(tmp_path / "b", {**PURE, f"{INFO}/sboms/auditwheel.cdx.json": b"{}"})
    licence = write_wheel(tmp_path / "c", {**PURE, f"{INFO}/licenses/LICENSE": b"MIT"})
    assert content_digest(sbom) == plain
    assert content_digest(licence) != plain


def no_zip(wheel: Path) -> None:
    wheel.write_bytes(b"<html>404</html>\n")


def cut(wheel: Path) -> None:
    wheel.write_bytes(wheel.read_bytes()[:-40])


def everywhere(wheel: Path, local: int, central: int, value: int) -> None:
    """Set a byte in every local header and in every entry of the directory."""
    raw = bytearray(wheel.read_bytes())
    for magic, offset in ((b"PK\x03\x04", local), (b"PK\x01\x02", central)):
        start = raw.find(magic)
        while start >= 0:
            raw[start + offset] = value
            start = raw.find(magic, start + 1)
    wheel.write_bytes(raw)


def encrypted(wheel: Path) -> None:
    everywhere(wheel, 6, 8, 1)


def unknown_method(wheel: Path) -> None:
    everywhere(wheel, 8, 10, 99)


def odd_folder(wheel: Path) -> None:
    write_zip(wheel, [*entries_of(wheel), ("\n\x1b[2J.dist-info/METADATA", b"")])


def empty(wheel: Path) -> None:
    write_zip(wheel, [])


def without(member: str, wheel: Path) -> None:
    write_zip(wheel, [entry for entry in entries_of(wheel) if entry[0] != f"{INFO}/{member}"])


def two_folders(wheel: Path) -> None:
    write_zip(wheel, [*entries_of(wheel), ("other-1.dist-info/METADATA", b"")])


def nameless(wheel: Path) -> None:
    write_zip(wheel, [(n, b"x" if n.endswith("METADATA") else data) for n, data in entries_of(wheel)])


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (no_zip, "no readable wheel"),
        (cut, "no readable wheel"),
        (encrypted, "no readable wheel: File 'demo-1.0.dist-info/METADATA' is encrypted"),
        (unknown_method, "no readable wheel: That compression method is not supported"),
        (odd_folder, r"found \n\x1b[2J.dist-info, demo-1.0.dist-info"),
        (empty, "expected one dist-info folder, found none"),
        (two_folders, "found demo-1.0.dist-info, other-1.dist-info"),
        (nameless, "no name or no version"),
        (lambda wheel: without("METADATA", wheel), "has no demo-1.0.dist-info/METADATA"),
        (lambda wheel: without("WHEEL", wheel), "has no demo-1.0.dist-info/WHEEL"),
        (lambda wheel: without("RECORD", wheel), "has no demo-1.0.dist-info/RECORD"),
    ],
)
def test_what_is_no_wheel_is_one_clear_line(tmp_path: Path, spoil: object, words: str) -> None:
    wheel = write_wheel(tmp_path)
    assert callable(spoil)
    spoil(wheel)
    with pytest.raises(AuditError) as caught:
        read_facts(wheel)
    assert words in caught.value.message
    assert "\n" not in caught.value.message


def test_a_name_that_is_no_wheel_name(tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path).rename(tmp_path / "demo.whl")
    with pytest.raises(AuditError, match=r"demo\.whl"):
        read_facts(wheel)


def test_large_files_are_read_in_pieces(tmp_path: Path) -> None:
    big = bytes(5 << 20)
    wheel = write_wheel(tmp_path, {"demo/zeros.bin": big})
    assert problems(wheel) == ()
    assert record_of({"demo/zeros.bin": big}, RECORD) in sound_like(wheel)


def sound_like(wheel: Path) -> str:
    lines = dict(entries_of(wheel))[RECORD].decode().splitlines(keepends=True)
    return lines[0] + lines[-1]
