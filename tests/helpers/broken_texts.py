"""Broken wheels: RECORD, METADATA, WHEEL, the file name, the names of files."""

from __future__ import annotations

import struct
from pathlib import Path

from tests.helpers.corpus import (
    INFO,
    MACHINE,
    METADATA,
    RECORD,
    TAG,
    VALUE,
    WHEEL,
    case,
    renamed,
    replaced,
    set_field,
    sound,
    with_bytes,
    with_entries,
    with_files,
    with_mode,
    without,
)
from tests.helpers.wheels import PYTHON, VERSION, entries_of, write_zip

with_entries(
    "wrong RECORD hash",
    "record: demo/__init__.py: content is not what RECORD says",
    lambda old: replaced(old, "demo/__init__.py", VALUE, b"VALUE = 2\n"),
    listed=False,
)
with_entries(
    "missing RECORD line",
    "record: demo/data.bin: not listed in RECORD",
    lambda old: {**old, RECORD: b"".join(x for x in old[RECORD].splitlines(True) if b"data.bin" not in x)},
    listed=False,
)
with_entries(
    "extra file", "record: demo/evil.py: not listed", lambda old: {**old, "demo/evil.py": b"x"}, listed=False
)
with_entries(
    "a listed file that is missing",
    "record: demo/data.bin: listed in RECORD, but not there",
    lambda old: without(old, "demo/data.bin"),
    listed=False,
)
with_entries(
    "a RECORD that no CSV reader takes",
    "record: RECORD: field larger",
    lambda old: {**old, RECORD: b"x" * 200_000 + b",,\n"},
    listed=False,
)
with_entries(
    "a RECORD that is no text",
    "no readable wheel: 'utf-8'",
    lambda old: {**old, RECORD: b"\xff,,\n"},
    listed=False,
)
with_entries("no RECORD", f"has no {RECORD}", lambda old: without(old, RECORD), listed=False)
with_entries("no METADATA", f"has no {METADATA}", lambda old: without(old, METADATA))
with_entries("no WHEEL", f"has no {WHEEL}", lambda old: without(old, WHEEL))
with_entries(
    "two dist-infos",
    "found demo-1.0.dist-info, other-1.dist-info",
    lambda old: {**old, "other-1.dist-info/METADATA": b""},
)
with_entries(
    "METADATA of another name",
    "name-version: METADATA names other, expected demo",
    lambda old: replaced(old, METADATA, b"Name: Demo", b"Name: Other"),
)
with_entries(
    "METADATA of another version",
    "name-version: METADATA says version 2.0",
    lambda old: replaced(old, METADATA, b"Version: 1.0", b"Version: 2.0"),
)
with_entries(
    "METADATA without a name",
    "METADATA has no name or no version",
    lambda old: replaced(old, METADATA, b"Name: Demo\n", b""),
)
with_entries(
    "METADATA without end", "METADATA of 67,108,900 bytes", lambda old: {**old, METADATA: b" " * 67_108_900}
)
with_entries(
    "METADATA of a hundred thousand names",
    "no readable wheel: 100,001 lines of metadata",
    lambda old: replaced(
        old, METADATA, b"Name:", b"".join(b"X%d: y\n" % n for n in range(100_000)) + b"\nName:"
    ),
)
with_entries(
    "a RECORD of a million rows",
    "no readable wheel: RECORD has more than 400,000 rows",
    lambda old: {**old, RECORD: b"a,,\n" * 1_000_000},
    listed=False,
)
with_entries(
    "a RECORD of half a million rows with other ends",
    "no readable wheel: RECORD has more than 400,000 rows",
    lambda old: {**old, RECORD: b"a,,\r" * 500_000},
    listed=False,
)
with_entries(
    "the dist-info of another wheel",
    "dist-info: the folder other-1.0.dist-info is not that of demo 1.0",
    lambda old: {name.replace(INFO, "other-1.0.dist-info"): data for name, data in old.items()},
)
with_entries(
    "a requirement that is none",
    "requirements: Requires-Dist: num py is no requirement",
    lambda old: replaced(old, METADATA, b"Name: Demo", b"Requires-Dist: num py\nName: Demo"),
)
with_entries(
    "tags without end",
    "no readable wheel: WHEEL stands for more than 1000 tags",
    lambda old: replaced(
        old, WHEEL, b"Tag: ", b"Tag: " + b"-".join([b".".join([b"a"] * 999)] * 3) + b"\nTag: "
    ),
)
with_entries(
    "a build tag in WHEEL only",
    "build-tag: the file name's build tag is missing, WHEEL says 7",
    lambda old: replaced(old, WHEEL, b"Tag: ", b"Build: 7\nTag: "),
)
with_entries(
    "Root-Is-Purelib with machine code",
    "purelib: WHEEL says Root-Is-Purelib: true",
    lambda old: replaced(old, WHEEL, b"Purelib: false", b"Purelib: true"),
)
renamed(
    "a tag that WHEEL does not name", "tags: the file name's tags", f"demo-1.0-py3-none-linux_{MACHINE}.whl"
)
renamed("a name that is no wheel's", "is no wheel name", "demo.whl")
renamed(
    "a file name of another project", "name-version: the file name says other 1.0", f"other-1.0-{TAG}.whl"
)
with_files(
    "a tag of another Python",
    "tags: cp39-cp39 cannot be installed",
    {},
    f"cp39-cp39-manylinux_2_34_{MACHINE}",
)
with_files("machine code under any", "tags: the platform tag is any", {}, "py3-none-any")
with_files(
    "a tag of another machine", "tags: platform tag win_amd64 is not for", {}, f"{PYTHON}-{PYTHON}-win_amd64"
)


def with_name(title: str, bad: str) -> None:
    with_entries(title, f"record: {bad}: not a safe relative name", lambda old: {**old, bad: b""})


with_name("a name that climbs out", "demo/../../evil.py")
with_name("an absolute name", "/etc/evil")
with_name("a name with a backslash", "demo\\evil.py")
with_name("a folder that climbs out", "../evil/")
with_entries(
    "a folder with content",
    "record: demo/hidden/: a folder with 4 bytes in it",
    lambda old: {**old, "demo/hidden/": b"evil"},
)
with_files(
    "names that differ by case", "names: demo/Data.bin, demo/data.bin are one name", {"demo/Data.bin": b""}
)
with_files(
    "a file named like a folder",
    "places: demo/x, demo/x/ would be installed at one",
    {"demo/x": b"", "demo/x/y.py": b""},
)
with_files(
    "a .data folder without a scheme",
    "site-packages: demo-1.0.data/etc/x lies below",
    {"demo-1.0.data/etc/x": b""},
)
with_mode("a symbolic link", "entries: demo/data.bin is a symbolic link", 0o120777)
with_mode("a pipe", "entries: demo/data.bin is a pipe", 0o010644)
with_mode("set-user-ID", "entries: demo/data.bin would run with another user's rights", 0o104755)


@case("the same name twice", "record: demo/__init__.py: appears 2 times in the zip")
def _(folder: Path, workshop: Path) -> Path:
    wheel = sound(folder, workshop)
    return write_zip(wheel, [*entries_of(wheel), ("demo/__init__.py", VALUE)])


def _named(raw: bytearray, new: bytes, flags: int) -> bytearray:
    """Another name for demo/data.bin in the headers; RECORD, which names it too, is deflated."""
    set_field(raw, 6, 8, struct.pack("<H", flags), which=1)
    assert len(new) == len(b"demo/data.bin")
    return raw.replace(b"demo/data.bin", new)


with_bytes(
    "a name that is no UTF-8",
    "no readable wheel: 'utf-8'",
    lambda raw: _named(raw, b"demo/d\xff\xfea.bin", 0x800),
)
with_bytes(
    "a name in an old code page", "not listed in RECORD", lambda raw: _named(raw, b"demo/d\x81ta.bin", 0)
)


def with_commands(name: str, say: str, *lines: str) -> None:
    """A case: an entry_points.txt with these lines."""
    with_files(name, say, {f"{INFO}/entry_points.txt": "\n".join(lines).encode() + b"\n"})


PTH = b"import os\n"
SITE = f"demo-1.0.data/data/lib/python{VERSION}/site-packages"
RUNS = "runs code at every start of Python"
for _name, _files in {
    "a .pth file with code": {"demo.pth": b"demo\n" + PTH},
    "code after a comment of 200 kB": {"demo.pth": b"#" * 200_000 + b"\n" + PTH},
    "code after a line that ends in CR": {"demo.pth": b"# all is well\r" + PTH},
    "code after a form feed": {"demo.pth": b"# all is well\x0c" + PTH},
    "code after a byte order mark": {"demo.pth": b"\xef\xbb\xbf" + PTH},
    "a .pth file by way of platlib": {"demo-1.0.data/platlib/demo.pth": b"demo\n"},
    "a .pth file by way of data": {f"{SITE}/demo.pth": b"demo\n"},
    "a .pth file by way of another's data": {"other-1.0.data/purelib/demo.pth": b"demo\n"},
    "a sitecustomize": {"sitecustomize.py": VALUE},
    "a usercustomize of bytecode": {"usercustomize.pyc": VALUE},
    "a sitecustomize that is a package": {"sitecustomize/__init__.py": VALUE},
    "a sitecustomize by way of data": {f"{SITE}/sitecustomize.py": VALUE},
    "a sitecustomize in a folder of a .pth file": {"demo.pth": b"demo\n", "demo/sitecustomize.py": VALUE},
}.items():
    with_files(_name, RUNS, _files)
for _name, (_say, _file) in {
    "an activate script": ("would replace bin/activate of", "demo-1.0.data/scripts/activate"),
    "an activate.fish by way of data": ("would replace bin/activate.fish", "demo-1.0.data/data/bin/activate.fish"),
    "a pyvenv.cfg": ("would replace pyvenv.cfg", "demo-1.0.data/data/pyvenv.cfg"),
    "an interpreter": (f"would replace bin/python{VERSION}", f"demo-1.0.data/scripts/python{VERSION}"),
    "a pip": ("would replace bin/pip3", "demo-1.0.data/scripts/pip3"),
    "a part of the standard library": (f"would replace lib/python{VERSION}/os.py", f"demo-1.0.data/data/lib/python{VERSION}/os.py"),
    "another distribution": ("would pass for another", "demo-1.0.data/purelib/pip-99.dist-info/METADATA"),
    "control characters": ("has a name with control characters", "demo/\x1b]0;owned\x07.py"),
    "a bidi override": ("has a name with control characters", "demo/\u202eyp.live.py"),
    "a name that is too long": ("a name of more than 255 bytes", "demo/" + "\u00e9" * 128 + ".py"),
    "a file of the wheel by way of data": ("at one and the same place", "demo-1.0.data/purelib/demo/__init__.py"),
}.items():  # fmt: skip
    with_files(f"it brings {_name}", _say, {_file: VALUE})
for _name, _command in {
    "climbs out": "../../x",
    "is absolute": "/usr/local/bin/x",
    "is absolute after a comment sign": ";/../../x",
    "is a folder above": "..",
    "has control characters": "x\x1b[2J",
    "is empty": "",
}.items():
    with_commands(
        f"a command that {_name}", "would lie outside of bin", "[console_scripts]", f"{_command} = demo:x"
    )
with_commands(
    "a command that is an interpreter", "replace bin/python3 of", "[gui_scripts]", "python3 = demo:main"
)
with_commands(
    "a command of an odd section", "replace bin/activate of", "[[console_scripts]]", " activate=demo:main"
)
with_commands(
    "a command too long",
    "has a command with a name of more than 255",
    "[console_scripts]",
    f"{'x' * 256}=demo:x",
)
with_files(
    "entry points without end", "entry_points.txt of 2,", {f"{INFO}/entry_points.txt": b"#" * 2_000_000}
)
with_entries(
    "a requirement that hides others",
    "a Requires-Dist of METADATA is no UTF-8",
    lambda old: replaced(old, METADATA, b"Version: 1.0", b"Version: 1.0\nRequires-Dist: os\xe9"),
)
