"""Exports to what fsspec speaks: a real SFTP server, and S3 as moto serves it over HTTP."""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import fsspec
import pytest
from fsspec.implementations.sftp import SFTPFileSystem
from moto.server import ThreadedMotoServer

from spark_build.errors import HostError
from spark_build.recipes.model import Target
from spark_build.transfer import remote
from spark_build.transfer.bundle import Bundle, pack
from spark_build.transfer.remote import Remotes
from spark_build.transfer.upload import _at, send
from spark_build.wheelhouse import generations, trust
from tests.conftest import Root
from tests.helpers.commands import hint_text, invoke
from tests.helpers.exports import make_key
from tests.helpers.wheelhouse import VIEW, demo_house, home_in, make_wheel, publish, put_built
from tests.transfer.test_export_remote import Sshd, arrived, sent, start_sshd

HERE = Target(name="host-cpu", summary="", platform="linux-x86_64", python=VIEW.rpartition("-")[2])


@pytest.fixture(scope="module")
def parcel(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """Small papers and wheels, and one wheel that takes several requests."""
    root = tmp_path_factory.mktemp("house")
    home, generation = demo_house(root)
    big = put_built(home.store, make_wheel(root / "d", "big", files={"big/data": os.urandom(12 << 20)}))
    return pack(publish(home, [big, *generation.wheels]), home.store)


def refused(parcel: Bundle, url: str) -> HostError:
    with pytest.raises(HostError) as caught:
        send(parcel, url, lambda *_: None, lambda _: None)
    return caught.value


def refused_when_torn(parcel: Bundle, url: str, tear: Callable[[], None]) -> HostError:
    """The connection breaks when half of it has been sent."""
    torn: list[int] = []

    def progress(done: int, total: int) -> None:
        if done > total // 2 and not torn:
            torn.append(done)
            tear()

    with pytest.raises(HostError) as caught:
        send(parcel, url, progress, lambda _: None)
    assert torn
    return caught.value


def sizes(parcel: Bundle) -> dict[str, int]:
    return {member.name: member.size for member in parcel.members}


# --- sftp -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Node:
    """A running sshd with its subsystem sftp."""

    sshd: Sshd
    pid: int

    def url(self, path: Path) -> str:
        return f"sftp://127.0.0.1:{self.sshd.port}{path}"

    def tear(self) -> None:
        """Ends all connections, not the server."""
        for pid in reversed(descendants(self.pid)):
            os.kill(pid, signal.SIGKILL)


def descendants(pid: int) -> list[int]:
    own = [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return own + [further for one in own for further in descendants(one)]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    server, started = start_sshd(tmp_path_factory.mktemp("sftp") / "sshd")
    yield Node(started, server.pid)
    server.terminate()
    server.wait(timeout=20)


@pytest.fixture
def keys(node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Our ~/.ssh: the key that the node accepts, and the node's own."""
    folder = tmp_path / "home" / ".ssh"
    folder.mkdir(parents=True)
    shutil.copy(node.sshd.log.with_name("user"), folder / "id_ed25519")
    shutil.copy(node.sshd.log.with_name("known_hosts"), folder)
    monkeypatch.setenv("HOME", str(folder.parent))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    return folder


@pytest.mark.usefixtures("keys")
def test_sftp(node: Node, parcel: Bundle, tmp_path: Path) -> None:
    """Damage of the same size and time, too: only reading it back can tell."""
    place = tmp_path / "set"
    make_wheel(place, "stray")
    notes, _ = sent(parcel, node.url(place))
    assert notes == ["there are other wheels, which installers would see: stray-1.0-py3-none-any.whl"]
    (place / "stray-1.0-py3-none-any.whl").unlink()
    wheel = place / parcel.wheels[0].filename
    was = wheel.stat()
    wheel.write_bytes(bytes(was.st_size))
    os.utime(wheel, ns=(was.st_atime_ns, was.st_mtime_ns))
    sent(parcel, node.url(place))
    arrived(parcel, place, tmp_path)


def test_the_signature_of_an_earlier_export_goes(parcel: Bundle) -> None:
    files = fsspec.filesystem("memory")
    files.pipe("/set/manifest.json.sig", b"of another manifest")
    assert send(parcel, "memory://set", lambda *_: None, lambda _: None) == parcel.size
    assert sorted(files.find("/set")) == sorted(f"/set/{one.name}" for one in parcel.members)
    files.rm("/set", recursive=True)


@pytest.mark.usefixtures("keys")
def test_sftp_as_a_remote_store(node: Node, tmp_path: Path) -> None:
    home, generation = demo_house(tmp_path / "house")
    place, key = tmp_path / "lab", make_key(tmp_path, "alice")
    store = remote.add(home.wheelhouse, "lab", node.url(place), push=True, key=key)
    (demo,) = Remotes(home).push(store, generation)
    assert Remotes(home).push(store, generation) == ()
    other = home_in(tmp_path / "other")
    trust.add(other.wheelhouse, "alice", key.with_name("alice.pub"))
    remote.add(other.wheelhouse, "lab", node.url(place), push=False, key=None)
    assert Remotes(other).find("0" * 64) is None
    assert Remotes(other).find(demo.key) is not None
    taken = Remotes(other).fetch(demo.key, HERE)
    assert taken is not None
    assert (taken.sha256, taken.imported) == (demo.sha256, "alice")
    generations.discard(generation.folder)
    (gone,) = Remotes(home).collect(store, older_than=-10, dry_run=False)
    assert gone.name == remote.entry_name(demo.key, store.signer)
    assert [path for path in place.rglob("*") if path.is_file()] == []


@pytest.mark.usefixtures("keys")
def test_sftp_goes_on_after_a_torn_connection(node: Node, parcel: Bundle, tmp_path: Path) -> None:
    place = tmp_path / "set"
    error = refused_when_torn(parcel, node.url(place), node.tear)
    assert hint_text(error.hint) == "run the same command again: it goes on where it stopped"
    times = {path: path.stat().st_mtime_ns for path in place.rglob("*") if path.is_file()}
    whole = [path for path in times if path.stat().st_size == sizes(parcel)[str(path.relative_to(place))]]
    assert place / "manifest.json" not in times
    assert 0 < len(whole) < len(parcel.members)
    sent(parcel, node.url(place))
    assert {path: path.stat().st_mtime_ns for path in whole} == {path: times[path] for path in whole}
    arrived(parcel, place, tmp_path)


def test_sftp_with_a_wrong_host_key(node: Node, keys: Path, parcel: Bundle, tmp_path: Path) -> None:
    """Another key than the known one, then none known: nothing is sent to who knows whom."""
    port, kind, _ = (keys / "known_hosts").read_text().split()
    other = (keys / "other.pub", ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(keys / "other")])
    subprocess.run(other[1], check=True, timeout=60)
    (keys / "known_hosts").write_text(f"{port} {kind} {other[0].read_text().split()[1]}\n")
    for scheme in ("simplecache::sftp", "sftp"):
        as_fsspec_comes()
        error = refused(parcel, f"{scheme}{node.url(tmp_path / 'set').removeprefix('sftp')}")
        assert "does not match" in error.message
        assert hint_text(error.hint) == (
            f"not the machine that ssh knows, or installed anew: make sure, then: ssh-keygen -R '{port}'"
            "  (-f /etc/ssh/ssh_known_hosts where that file has it)"
        )
    forget = shlex.split(hint_text(error.hint).partition("then: ")[2].partition("  (")[0])
    copy = shutil.copy(keys / "known_hosts", tmp_path / "copy")
    subprocess.run([*forget, "-f", str(copy)], check=True, timeout=60)
    assert Path(copy).read_text() == ""
    (keys / "known_hosts").unlink()
    for start in ("simplecache::sftp://me@", "sftp://me@", "simplecache::ssh://me@"):
        as_fsspec_comes()
        error = refused(parcel, f"{start}127.0.0.1:{node.sshd.port}{tmp_path / 'set'}")
        assert "not found in known_hosts" in error.message
        assert hint_text(error.hint) == (
            f"ssh -p {node.sshd.port} me@127.0.0.1  (once: it asks whether the key is right); "
            "then run the same command again"
        )
    assert not (tmp_path / "set").exists()


def as_fsspec_comes() -> None:
    """Trusting anybody, whatever was sent in this process before."""
    for scheme in ("sftp", "ssh"):
        fsspec.register_implementation(scheme, SFTPFileSystem, clobber=True)


def test_sftp_knows_what_a_cluster_knows(
    node: Node, keys: Path, parcel: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in /etc/ssh/ssh_known_hosts; where the user's own file says another key, that is believed."""

    system = tmp_path / "ssh_known_hosts"
    (keys / "known_hosts").rename(system)
    monkeypatch.setattr("spark_build.transfer.upload.KNOWN_HOSTS", str(system))
    sent(parcel, node.url(tmp_path / "set"))
    arrived(parcel, tmp_path / "set", tmp_path)
    right = system.read_text()
    other = node.sshd.log.with_name("user.pub").read_text().split()[1]
    wrong = " ".join([*right.split()[:2], other]) + "\n"
    (keys / "known_hosts").write_text(wrong)
    assert "does not match" in refused(parcel, node.url(tmp_path / "set")).message
    (keys / "known_hosts").write_text(right)
    system.write_text(wrong)
    sent(parcel, node.url(tmp_path / "set"))


@pytest.mark.parametrize(
    ("url", "name", "known"),
    [
        ("sftp://node/set", "node", "node"),
        ("sftp://me:secret@node:22/set", "node", "me@node"),
        ("filecache::sftp://me@[fe80::1]:2222/set", "[fe80::1]:2222", "-p 2222 me@fe80::1"),
    ],
)
def test_a_node_as_ssh_and_its_files_call_it(url: str, name: str, known: str) -> None:
    assert _at(url) == (name, known)


def test_sftp_without_a_key(node: Node, keys: Path, parcel: Bundle, tmp_path: Path) -> None:
    (keys / "id_ed25519").unlink()
    error = refused(parcel, node.url(tmp_path / "set"))
    assert "uthentication" in error.message
    assert "your keys" in hint_text(error.hint)


# --- S3 ---------------------------------------------------------------------------------------------


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ThreadedMotoServer]:
    monkeypatch.setenv("HOME", str(tmp_path))  # no credentials but these
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://{}:{}".format(*server.get_host_and_port()))
    yield server
    server.stop()


def bucket(name: str) -> Any:
    return boto3.resource("s3").create_bucket(Bucket=name)


@pytest.mark.usefixtures("served")
def test_s3(parcel: Bundle) -> None:
    there = bucket("whole")
    there.put_object(Key="set/stray-1.0-py3-none-any.whl", Body=b"")
    notes, _ = sent(parcel, "s3://whole/set")
    assert notes == ["there are other wheels, which installers would see: stray-1.0-py3-none-any.whl"]
    for member in parcel.members:
        found = there.Object(f"set/{member.name}").get()["Body"].read()
        assert hashlib.sha256(found).hexdigest() == member.sha256
    damaged = there.Object(f"set/{parcel.wheels[0].filename}")
    damaged.put(Body=bytes(parcel.wheels[0].size))
    sent(parcel, "s3://whole/set")
    assert hashlib.sha256(damaged.get()["Body"].read()).hexdigest() == parcel.wheels[0].sha256


def test_s3_goes_on_after_a_torn_connection(
    served: ThreadedMotoServer, parcel: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket("torn")
    refused_when_torn(parcel, "s3://torn/set", served.stop)
    served.start()
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://{}:{}".format(*served.get_host_and_port()))
    there = boto3.resource("s3").Bucket("torn")
    before = {one.key: one.last_modified for one in there.objects.all()}
    assert 0 < len(before) < len(parcel.members)
    assert "set/manifest.json" not in before
    time.sleep(1)  # S3 counts in seconds
    sent(parcel, "s3://torn/set")
    after = {one.key: one.last_modified for one in there.objects.all()}
    assert {key: after[key] for key in before} == before
    assert set(after) == {f"set/{member.name}" for member in parcel.members}


@pytest.mark.usefixtures("served")
def test_s3_that_cannot_be_written(parcel: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mistyped bucket is not made; nor does anything go without credentials."""
    error = refused(parcel, "s3://bukcet/set")
    assert "bucket does not exist" in error.message
    assert "make that place" in hint_text(error.hint)
    assert "bukcet" not in [one.name for one in boto3.resource("s3").buckets.all()]
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    error = refused(parcel, "s3://bucket/set")
    assert "nable to locate credentials" in error.message
    assert "aws configure" in hint_text(error.hint)


# --- what is not installed --------------------------------------------------------------------------


@pytest.mark.parametrize(("url", "package"), [("s3://b/set", "s3fs"), ("sftp://n/set", "paramiko")])
def test_what_is_missing_is_named(built: Root, tmp_path: Path, url: str, package: str) -> None:
    """A Python that has all but this package."""
    hidden = tmp_path / "sitecustomize.py"
    hidden.write_text(f"import sys; sys.modules[{package!r}] = None\n")
    command = built.command("wheelhouse", "export", "--to", url, "--without-spark-build")
    env = {**built.environment(), "PYTHONPATH": str(tmp_path)}
    done = invoke(command, env=env)
    assert done.returncode == 4, done.stderr
    assert f"--to {url} needs {package}" in done.stderr
    assert f"next: {sys.executable} -m pip install {package}" in done.stderr


@pytest.mark.parametrize(
    ("url", "module", "words"),
    [
        ("smb://n/share/set", "smbclient", 'SMB requires "smbprotocol"'),
        ("libarchive://set::file:///x.tar.gz", "libarchive", "LibArchive requires to be installed"),
    ],
)
def test_a_package_that_nobody_named_is_not_advised(
    parcel: Bundle, monkeypatch: pytest.MonkeyPatch, url: str, module: str, words: str
) -> None:
    """A module may be of a package with another name, and its own name may be anybody's."""
    monkeypatch.setitem(sys.modules, module, None)
    error = refused(parcel, url)
    assert words in error.message
    assert (
        hint_text(error.hint)
        == f"install what it names for {sys.executable}, then run the same command again"
    )
