"""Exports to another machine: a real sshd on loopback, and what fsspec speaks."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from spark_build.errors import HostError, StoreError, UsageError
from spark_build.events import Event, Note
from spark_build.files import sha256_of
from spark_build.paths import Home
from spark_build.transfer.bundle import Bundle, pack
from spark_build.transfer.upload import parse_destination, send
from spark_build.wheelhouse import store as stores
from spark_build.wheelhouse.generations import Generation
from spark_build.wheelhouse.trust import SIGNATURE
from tests.conftest import Root
from tests.helpers.commands import hint_text
from tests.helpers.exports import import_unsigned, told_apart
from tests.helpers.wheelhouse import demo_house, eventually, home_in, make_wheel, publish, put_built

SSHD = shutil.which("sshd", path="/usr/sbin:/usr/bin") or "/usr/sbin/sshd"


@dataclass(frozen=True, kw_only=True)
class Sshd:
    """A running server; `rsh` is the ssh command that knows its key and has one it accepts."""

    port: int
    rsh: str
    log: Path

    def url(self, path: Path) -> str:
        return f"ssh://127.0.0.1:{self.port}{path}"


def start_sshd(folder: Path, *settings: str) -> tuple[subprocess.Popen[bytes], Sshd]:
    folder.mkdir(parents=True)
    for name in ("host", "user"):
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
        subprocess.run(command, check=True, timeout=60)
    shutil.copy(folder / "user.pub", folder / "authorized_keys")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    host = (folder / "host.pub").read_text().split()
    (folder / "known_hosts").write_text(f"[127.0.0.1]:{port} {host[0]} {host[1]}\n")
    lines = [
        *("ListenAddress 127.0.0.1", f"Port {port}", f"HostKey {folder / 'host'}", "StrictModes no"),
        *(f"AuthorizedKeysFile {folder / 'authorized_keys'}", "PidFile none", "UsePAM no", *settings),
        *("PasswordAuthentication no", "KbdInteractiveAuthentication no", "PermitRootLogin yes"),
        "Subsystem sftp internal-sftp",
    ]
    (folder / "sshd_config").write_text("\n".join(lines) + "\n")
    client = [
        *("IdentitiesOnly yes", f"IdentityFile {folder / 'user'}", "StrictHostKeyChecking yes"),
        *(f"UserKnownHostsFile {folder / 'known_hosts'}", "GlobalKnownHostsFile none"),
    ]
    (folder / "ssh_config").write_text("\n".join(client) + "\n")
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)  # where sshd confines what has no name yet
    log = folder / "log"
    server = subprocess.Popen([SSHD, "-D", "-f", str(folder / "sshd_config"), "-E", str(log)])

    def listens() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    assert eventually(listens, seconds=20), log.read_text() if log.exists() else "sshd did not start"
    return server, Sshd(port=port, rsh=f"ssh -F {folder / 'ssh_config'}", log=log)


@pytest.fixture(scope="module")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    server, started = start_sshd(tmp_path_factory.mktemp("sshd") / "sshd")
    yield started
    server.terminate()
    server.wait(timeout=20)


@pytest.fixture(scope="module")
def without_rsync(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    """A node that lacks rsync."""
    folder = tmp_path_factory.mktemp("bare")
    (folder / "bin").mkdir()
    for name in ("mkdir", "rm"):
        (folder / "bin" / name).symlink_to(str(shutil.which(name)))
    server, started = start_sshd(folder / "sshd", f"SetEnv PATH={folder / 'bin'}")
    yield started
    server.terminate()
    server.wait(timeout=20)


@pytest.fixture
def node(sshd: Sshd, monkeypatch: pytest.MonkeyPatch) -> Sshd:
    monkeypatch.setenv("RSYNC_RSH", sshd.rsh)
    return sshd


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> tuple[Home, Generation]:
    root = tmp_path_factory.mktemp("house")
    home, _ = demo_house(root)
    big = put_built(home.store, make_wheel(root / "d", "big", files={"big/data": os.urandom(2 << 20)}))
    return home, publish(home, [big, *demo_house(root)[1].wheels])


@pytest.fixture(scope="module")
def parcel(house: tuple[Home, Generation]) -> Bundle:
    home, generation = house
    return pack(generation, home.store)


def sent(parcel: Bundle, url: str) -> tuple[list[str], list[tuple[int, int]]]:
    """What was told, and the progress."""
    events: list[Event] = []
    progress: list[tuple[int, int]] = []
    assert send(parcel, url, lambda done, total: progress.append((done, total)), events.append) == parcel.size
    assert progress[-1] == (parcel.size, parcel.size)
    return [event.message for event in events if isinstance(event, Note)], progress


def arrived(parcel: Bundle, folder: Path, tmp_path: Path) -> None:
    names = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert names == {member.name for member in parcel.members}
    taken = import_unsigned(home_in(tmp_path / "there"), folder).generation
    assert told_apart(taken.wheels) == told_apart(parcel.wheels)


# --- ssh --------------------------------------------------------------------------------------------


def test_it_arrives(node: Sshd, parcel: Bundle, tmp_path: Path) -> None:
    place = tmp_path / "a place; with 'odd' $signs"
    notes, _ = sent(parcel, node.url(place))
    assert notes == []
    arrived(parcel, place, tmp_path)
    assert not [path for path in place.rglob("*") if path.is_symlink()]


def test_what_is_right_there_is_not_sent_again(node: Sshd, parcel: Bundle, tmp_path: Path) -> None:
    """Half of it is there; one of that half is damaged, of the same size and time."""
    sent(parcel, node.url(tmp_path / "set"))
    wheels = sorted((tmp_path / "set").glob("*.whl"))
    big = next(path for path in wheels if path.name.startswith("big"))
    times = {path: path.stat().st_ino for path in wheels[2:]}
    whole = big.read_bytes()
    was = big.stat()
    big.write_bytes(whole[:1000] + b"x" + whole[1001:])
    os.utime(big, ns=(was.st_atime_ns, was.st_mtime_ns))
    wheels[1].unlink()
    sent(parcel, node.url(tmp_path / "set"))
    assert {path: path.stat().st_ino for path in wheels[2:]} == times
    arrived(parcel, tmp_path / "set", tmp_path)


def test_the_signature_of_an_earlier_export_goes(node: Sshd, parcel: Bundle, tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / SIGNATURE).write_text("of another manifest")
    sent(parcel, node.url(tmp_path / "set"))
    arrived(parcel, tmp_path / "set", tmp_path)


def test_a_half_file_is_gone_on_with(node: Sshd, parcel: Bundle, tmp_path: Path) -> None:
    """What a broken connection leaves."""
    big = next(member for member in parcel.members if member.name.startswith("big"))
    (tmp_path / "set").mkdir()
    assert isinstance(big.source, Path)
    (tmp_path / "set" / big.name).write_bytes(big.source.read_bytes()[: big.size // 2])
    sent(parcel, node.url(tmp_path / "set"))
    arrived(parcel, tmp_path / "set", tmp_path)


def test_other_wheels_there_are_told(node: Sshd, parcel: Bundle, tmp_path: Path) -> None:
    make_wheel(tmp_path / "set", "stray")
    notes, _ = sent(parcel, node.url(tmp_path / "set"))
    assert notes == ["there are other wheels, which installers would see: stray-1.0-py3-none-any.whl"]


def test_a_damaged_wheel_is_not_passed_off(node: Sshd, tmp_path: Path) -> None:
    home, generation = demo_house(tmp_path)
    parcel = pack(generation, home.store)
    path = stores.entry_folder(home.store, generation.wheels[0].key) / generation.wheels[0].filename
    path.chmod(0o644)
    data = path.read_bytes()
    path.write_bytes(data[:50] + bytes([data[50] ^ 1]) + data[51:])
    with pytest.raises(StoreError, match="is damaged"):
        send(parcel, node.url(tmp_path / "set"), lambda *_: None, lambda _: None)


def test_a_place_that_cannot_be_written(node: Sshd, parcel: Bundle, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(HostError, match=r"sending to 127\.0\.0\.1 failed: ") as caught:
        sent(parcel, node.url(tmp_path / "file" / "set"))
    assert "same command again" in hint_text(caught.value.hint)


def test_a_node_that_does_not_know_us(
    sshd: Sshd, parcel: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RSYNC_RSH", f"{sshd.rsh} -o PubkeyAuthentication=no")
    with pytest.raises(HostError, match="Permission denied") as caught:
        sent(parcel, sshd.url(tmp_path / "set"))
    assert f"ssh -p {sshd.port} 127.0.0.1" in hint_text(caught.value.hint)


def test_a_node_without_rsync(
    without_rsync: Sshd, parcel: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RSYNC_RSH", without_rsync.rsh)
    with pytest.raises(HostError, match="rsync") as caught:
        sent(parcel, without_rsync.url(tmp_path / "set"))
    assert hint_text(caught.value.hint).startswith("both machines need rsync")


def test_nobody_listens(parcel: Bundle, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(HostError, match="Connection refused"):
        sent(parcel, f"ssh://127.0.0.1:{port}{tmp_path}/set")


@pytest.mark.parametrize(
    "url",
    [
        *("ssh://", "ssh://node", "ssh://node/", "ssh:///path", "ssh://node:port/path", "ssh://node:99999/p"),
        *("ssh://-oProxyCommand=evil/path", "ssh://-l@node/path", "ssh://no de/path"),
    ],
)
def test_urls_that_name_no_place(url: str) -> None:
    with pytest.raises(UsageError):
        parse_destination(url)


def test_urls() -> None:
    home = parse_destination("ssh://me@spark-2.local:2222/~/wheels/a%20b/")
    assert (home.login, home.port, home.path) == ("me@spark-2.local", 2222, "wheels/a b")
    six = parse_destination("ssh://me@[fd00::1]/srv/wheels")
    assert (six.login, six.rsync, six.path) == ("me@fd00::1", "me@[fd00::1]", "/srv/wheels")


def test_the_command(node: Sshd, built: Root, tmp_path: Path) -> None:
    url = node.url(tmp_path / "set")
    done = built.run("--json", "wheelhouse", "export", "--to", url, "tiny", "--without-spark-build")
    assert done.returncode == 0, done.stderr
    assert f'"file": "{url}"' in done.stdout
    subprocess.run(["sha256sum", "-c", "--quiet", "SHA256SUMS"], cwd=tmp_path / "set", check=True, timeout=60)


# --- fsspec -----------------------------------------------------------------------------------------


def test_a_file_url(parcel: Bundle, tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    url = f"file://{tmp_path}/set"
    notes, _ = sent(parcel, url)
    assert notes == []
    arrived(parcel, tmp_path / "set", tmp_path)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "set").rglob("*")}
    wheel = tmp_path / "set" / parcel.wheels[0].filename
    wheel.write_bytes(bytes(wheel.stat().st_size))
    make_wheel(tmp_path / "set", "stray")
    notes, _ = sent(parcel, url)
    assert notes == ["there are other wheels, which installers would see: stray-1.0-py3-none-any.whl"]
    assert {path for path, mtime in before.items() if path.stat().st_mtime_ns != mtime} <= {
        wheel,
        tmp_path / "set",
    }
    assert sha256_of(wheel) == parcel.wheels[0].sha256


def test_memory(parcel: Bundle) -> None:
    import fsspec

    sent(parcel, "memory://bucket/set")
    files = fsspec.filesystem("memory")
    for member in parcel.members:
        assert files.cat(f"/bucket/set/{member.name}") == b"".join(member.content())
    files.rm("/bucket", recursive=True)


def test_a_place_that_spoils_what_it_gets(parcel: Bundle, tmp_path: Path) -> None:
    """A full device takes it all and gives back nothing."""
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / parcel.wheels[0].filename).symlink_to("/dev/null")
    with pytest.raises(HostError, match="does not arrive"):
        sent(parcel, f"file://{tmp_path}/set")
    assert not (tmp_path / "set" / "manifest.json").exists()


@pytest.mark.parametrize(
    ("url", "kind", "say"),
    [
        ("nonsense://x/y", HostError, "nonsense"),
        ("folder/without/scheme", UsageError, "no URL"),
        ("memory://x/wheels.tar", UsageError, "folder"),
        ("file:///proc/nowhere/set", HostError, "failed"),
    ],
)
def test_urls_that_do_not_do(parcel: Bundle, url: str, kind: type[Exception], say: str) -> None:
    with pytest.raises(kind, match=say):
        sent(parcel, url)
