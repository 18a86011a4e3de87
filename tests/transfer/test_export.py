"""What is in an export, and an export that was interrupted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from spark_build.errors import StoreError, UsageError
from spark_build.paths import Home
from spark_build.transfer.bundle import Bundle, pack, pins_of, select
from spark_build.transfer.bundle_write import write_archive, write_folder
from spark_build.wheelhouse import store as stores
from spark_build.wheelhouse.generations import Generation
from tests.helpers.commands import hint_text
from tests.helpers.exports import import_unsigned, members, told_apart
from tests.helpers.wheelhouse import (
    demo_house,
    hear,
    home_in,
    make_wheel,
    publish,
    put_built,
    put_public,
    snapshot,
    start,
)

KINDS = ["wheels.tar", "wheels.tar.zst"]


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> tuple[Home, Generation]:
    return demo_house(tmp_path_factory.mktemp("house"))


@pytest.fixture(scope="module")
def parcel(house: tuple[Home, Generation]) -> Bundle:
    home, generation = house
    return pack(generation, home.store, python="cp311")


@pytest.fixture(scope="module")
def whole(parcel: Bundle, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Each kind of archive, written without interruption."""
    folder = tmp_path_factory.mktemp("whole")
    for kind in KINDS:
        write_archive(parcel, folder / kind)
    return {kind: (folder / kind).read_bytes() for kind in KINDS}


# --- what is in it ----------------------------------------------------------------------------------


def test_packages_come_with_what_they_require(house: tuple[Home, Generation], tmp_path: Path) -> None:
    home, generation = house
    chosen, missing = select(generation.wheels, ["demo[x]"], {"python_version": "3.11", "extra": ""})
    assert [wheel.name for wheel in chosen] == ["demo", "helper", "more"]
    assert missing == ()
    write_archive(pack(generation, home.store, wheels=chosen), tmp_path / "some.tar")
    arrived = import_unsigned(home_in(tmp_path), tmp_path / "some.tar").generation
    assert [wheel.name for wheel in arrived.wheels] == ["demo", "helper", "more"]
    with pytest.raises(UsageError, match="no nothing") as caught:
        select(generation.wheels, ["nothing", "demo"], {})
    assert hint_text(caught.value.hint) == "there are demo, helper, lonely, more"


def test_the_sums_are_those_of_sha256sum(parcel: Bundle, tmp_path: Path) -> None:
    write_folder(parcel, tmp_path / "set")
    command = ["sha256sum", "--check", "--quiet", "SHA256SUMS"]
    subprocess.run(command, cwd=tmp_path / "set", check=True, timeout=60)
    listed = (tmp_path / "set" / "SHA256SUMS").read_text().splitlines()
    files = [path for path in (tmp_path / "set").rglob("*") if path.is_file()]
    assert len(listed) == len(files) - 2  # itself, and the manifest, which lists it
    with (tmp_path / "set" / parcel.wheels[0].filename).open("ab") as file:
        file.write(b"x")
    assert subprocess.run(command, cwd=tmp_path / "set", check=False, timeout=60).returncode == 1


@pytest.mark.parametrize("tool", ["pip", "uv"])
def test_the_commands_of_install_txt_work(parcel: Bundle, tmp_path: Path, tool: str) -> None:
    write_folder(parcel, tmp_path / "set")
    start_with = "uv pip install" if tool == "uv" else "python3.11 -m pip install"
    lines = [line.strip() for line in (tmp_path / "set" / "INSTALL.txt").read_text().splitlines()]
    plain, hashed = [line for line in lines if line.startswith(start_with)]
    assert "--require-hashes" in hashed
    options = ["--without-pip"] if tool == "uv" else []
    subprocess.run([sys.executable, "-m", "venv", *options, str(tmp_path / "env")], check=True, timeout=120)
    binaries = tmp_path / "env" / "bin"
    if not (binaries / "python3.11").exists():
        (binaries / "python3.11").symlink_to("python")
    scrubbed = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "UV_"))}
    path = f"{binaries}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = {**scrubbed, "PATH": path, "VIRTUAL_ENV": str(tmp_path / "env"), "PIP_CONFIG_FILE": os.devnull}
    for command, code in (
        (plain, "import demo; print(demo.BUILD)"),
        (hashed, "import demo, lonely; print(demo.BUILD)"),
    ):
        subprocess.run(command, shell=True, cwd=tmp_path / "set", env=env, check=True, timeout=120)
        shown = subprocess.check_output([str(binaries / "python"), "-c", code], text=True)
        assert shown == "1_0123abcd\n"


@pytest.mark.parametrize(
    "inputs", [{"needs": ["x"]}, {"needs": {"x": []}}, {"needs": {"x": "y"}, "recipe": 1}, [1], "x", None]
)
def test_a_key_of_any_shape_is_exported(tmp_path: Path, inputs: object) -> None:
    """An import does not look into it."""
    home, generation = demo_house(tmp_path)
    for wheel in generation.built():
        file = stores.entry_folder(home.store, wheel.key) / "key.json"
        file.chmod(0o644)
        file.write_text(json.dumps({"key": wheel.key, "inputs": inputs}))
    assert pins_of(home.store, generation.wheels) == {}


def test_nvidias_terms_are_told_with_their_text(tmp_path: Path) -> None:
    home = home_in(tmp_path)
    licence = b"NVIDIA SOFTWARE LICENSE\nYou may distribute it.\n"
    vendor = make_wheel(
        tmp_path / "d",
        "nvidia-cublas",
        "13.1",
        files={"nvidia/libcublas.so.13": b"x", "nvidia_cublas-13.1.dist-info/licenses/License.txt": licence},
    )
    twin = make_wheel(
        tmp_path / "d", "nvidia-nccl", files={"nvidia_nccl-1.0.dist-info/LICENSE": licence, "nccl.py": b""}
    )
    bundler = make_wheel(tmp_path / "d", "torchish", files={"torchish/lib/libcudart.so.13": b"x"})
    plain = make_wheel(tmp_path / "d", "plain")
    wheels = [put_built(home.store, bundler), *(put_public(home.store, one) for one in (vendor, twin, plain))]
    generation = publish(home, wheels)
    write_folder(pack(generation, home.store), tmp_path / "set")
    text = (tmp_path / "set" / "NOTICE.txt").read_text()
    assert text.count(licence.decode()) == 1
    assert (
        "nvidia_cublas-13.1-py3-none-any.whl\n  licence: nvidia_cublas-13.1.dist-info/licenses/License.txt"
        in text
    )
    assert "nvidia_nccl-1.0-py3-none-any.whl\n  licence: nvidia_nccl-1.0.dist-info/LICENSE" in text
    assert "torchish-1.0-py3-none-any.whl\n  holds libraries of NVIDIA's: libcudart.so.13" in text
    assert "plain" not in text


def test_no_notice_where_nothing_is_nvidias(parcel: Bundle) -> None:
    assert "NOTICE.txt" not in {member.name for member in parcel.members}


def test_zstd_holds_the_same_tar(whole: dict[str, bytes], tmp_path: Path) -> None:
    (tmp_path / "wheels.tar.zst").write_bytes(whole["wheels.tar.zst"])
    subprocess.run(["zstd", "-q", "-d", str(tmp_path / "wheels.tar.zst")], check=True, timeout=60)
    assert (tmp_path / "wheels.tar").read_bytes() == whole["wheels.tar"]
    assert len(whole["wheels.tar.zst"]) < len(whole["wheels.tar"]) / 2
    taken = import_unsigned(home_in(tmp_path), tmp_path / "wheels.tar.zst")
    assert len(taken.generation.wheels) == 4


def test_a_folder_holds_the_same_files(parcel: Bundle, whole: dict[str, bytes], tmp_path: Path) -> None:
    (tmp_path / "wheels.tar").write_bytes(whole["wheels.tar"])
    write_folder(parcel, tmp_path / "set")
    for info, data in members(tmp_path / "wheels.tar"):
        path = tmp_path / "set" / info.name.partition("/")[2]
        assert path.read_bytes() == data
        assert not path.is_symlink()
    taken = import_unsigned(home_in(tmp_path), tmp_path / "set")
    assert told_apart(taken.generation.wheels) == told_apart(parcel.wheels)


# --- interrupted ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_whatever_lies_there_the_result_is_the_same(
    parcel: Bundle, whole: dict[str, bytes], tmp_path: Path, kind: str
) -> None:
    """What a killed one left may be longer than the whole."""
    (tmp_path / f"{kind}.part").write_bytes(whole[kind][:5000] + bytes(len(whole[kind])))
    assert write_archive(parcel, tmp_path / kind) == len(whole[kind])
    assert (tmp_path / kind).read_bytes() == whole[kind]
    assert [path.name for path in tmp_path.iterdir()] == [kind]


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_wheel_leaves_what_was_there(tmp_path: Path, kind: str) -> None:
    home, generation = demo_house(tmp_path / "house")
    parcel = pack(generation, home.store)
    path = stores.entry_folder(home.store, generation.wheels[-1].key) / generation.wheels[-1].filename
    path.chmod(0o644)
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    (tmp_path / kind).write_bytes(b"older")
    with pytest.raises(StoreError, match="is damaged"):
        write_archive(parcel, tmp_path / kind)
    assert (tmp_path / kind).read_bytes() == b"older"
    assert not (tmp_path / f"{kind}.part").exists()


@pytest.mark.parametrize("kind", KINDS)
def test_interrupted_it_says_that_it_begins_anew(parcel: Bundle, tmp_path: Path, kind: str) -> None:
    def stopped(_done: int, _total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as caught:
        write_archive(parcel, tmp_path / kind, stopped)
    assert caught.value.__notes__ == ["the same command writes the archive anew"]
    assert not list(tmp_path.glob("*.part"))


EXPORTER = """
import os, signal, sys
from pathlib import Path
from spark_build.transfer.bundle_write import write_archive
from spark_build.transfer.bundle_write import write_folder
from spark_build.transfer.bundle import pack
from spark_build.wheelhouse.generations import read
def progress(done, total):
    if done * 100 > total * int(sys.argv[4]):
        print(done, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
place = Path(sys.argv[3])
write = write_folder if place.suffix == "" else write_archive
write(pack(read(Path(sys.argv[1])), Path(sys.argv[2])), place, progress)
"""


@pytest.mark.parametrize("kind", [*KINDS, "set"])
def test_killed_the_next_one_ends_it(tmp_path: Path, kind: str) -> None:
    home = home_in(tmp_path)
    wheels = [
        put_built(
            home.store, make_wheel(tmp_path / "d", f"big{n}", files={f"big{n}/data": os.urandom(3 << 20)})
        )
        for n in range(4)
    ]
    generation = publish(home, wheels)
    place = tmp_path / "out" / kind
    for share in (30, 60, 90):
        process = start(EXPORTER, generation.folder, home.store, place, share)
        assert int(hear(process)) > 0
        assert process.wait(timeout=60) == -signal.SIGKILL
        assert not (place / "manifest.json").exists()
        assert kind == "set" or not place.exists()
    parcel = pack(generation, home.store)
    if kind == "set":
        sound = {path: path.stat().st_mtime_ns for path in place.glob("*.whl")}
        assert sound
        write_folder(parcel, place)
        assert {path: path.stat().st_mtime_ns for path in sound} == sound
    else:
        write_archive(parcel, place)
    assert len(import_unsigned(home_in(tmp_path / "there"), place).generation.wheels) == 4
    assert not list((tmp_path / "out").rglob("*.part"))


# --- a folder ---------------------------------------------------------------------------------------


def test_a_folder_with_anything_else_is_left_alone(parcel: Bundle, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years")
    before = snapshot(tmp_path)
    with pytest.raises(UsageError, match=r"'thesis\.txt'"):
        write_folder(parcel, tmp_path / "mine")
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("name", ["wheel", "manifest.json"])
def test_no_link_on_a_stick_is_written_through(parcel: Bundle, tmp_path: Path, name: str) -> None:
    name = parcel.wheels[0].filename if name == "wheel" else name
    mine, stick = tmp_path / "bashrc", tmp_path / "stick"
    mine.write_text("mine")
    stick.mkdir()
    (stick / f"{name}.part").symlink_to(mine)
    write_folder(parcel, stick)
    assert mine.read_text() == "mine"
    assert not (stick / name).is_symlink()
    assert not list(stick.rglob("*.part"))


def test_a_newer_export_replaces_the_older_in_a_folder(
    house: tuple[Home, Generation], tmp_path: Path
) -> None:
    """Installers look at every wheel of the folder: none of the older may stay."""
    home, generation = house
    write_folder(pack(generation, home.store), tmp_path / "set")
    some = pack(generation, home.store, wheels=generation.wheels[:1])
    write_folder(some, tmp_path / "set")
    write_folder(some, tmp_path / "fresh")
    assert snapshot(tmp_path / "set") == snapshot(tmp_path / "fresh")


def test_the_lock_of_a_killed_export_is_no_hindrance(parcel: Bundle, tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / ".export.lock").write_text("writing set (process 1)\n")
    write_folder(parcel, tmp_path / "set")
    assert not (tmp_path / "set" / ".export.lock").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["set"]


def test_what_is_wrong_in_a_folder_is_written_anew(parcel: Bundle, tmp_path: Path) -> None:
    write_folder(parcel, tmp_path / "set")
    before = snapshot(tmp_path / "set")
    wheel = tmp_path / "set" / parcel.wheels[0].filename
    data = bytearray(wheel.read_bytes())
    data[50] ^= 1
    wheel.write_bytes(data)
    (tmp_path / "set" / "INSTALL.txt").unlink()
    write_folder(parcel, tmp_path / "set")
    assert snapshot(tmp_path / "set") == before
