"""Certificates that no connection can be made with."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from spark_build.errors import HostError, UsageError
from spark_build.farm import nodes
from tests.helpers import recipe_roots
from tests.helpers.commands import hint_text
from tests.helpers.farms import Lab

DAY = dt.timedelta(days=1)


def write(folder: Path, first: dt.timedelta, last: dt.timedelta) -> Path:
    """Write a certificate that holds from then to then, counted from now."""
    key, name = (
        ec.generate_private_key(ec.SECP256R1()),
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "x")]),
    )
    now = dt.datetime.now(dt.UTC)
    made = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    made = made.serial_number(1).not_valid_before(now + first).not_valid_after(now + last)
    folder.mkdir()
    (folder / nodes.CERTIFICATE).write_bytes(
        made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    )
    plain = (serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / nodes.KEY).write_bytes(key.private_bytes(serialization.Encoding.PEM, *plain))
    return folder


@pytest.fixture
def sound(tmp_path: Path) -> Path:
    return write(tmp_path / "sound", -DAY, DAY)


def test_one_whose_time_is_over_or_to_come(tmp_path: Path, sound: Path) -> None:
    nodes.security(sound)
    for name, first, last, hint in (
        ("old", -2 * DAY, -DAY, "farm init"),
        ("new", DAY, 2 * DAY, "set this clock"),
    ):
        with pytest.raises(UsageError, match=r"holds from 20.* to 20.* UTC, and it is 20") as refused:
            nodes.security(write(tmp_path / name, first, last))
        assert hint in hint_text(refused.value.hint)


def test_what_is_no_pair(tmp_path: Path, sound: Path) -> None:
    other = write(tmp_path / "other", -DAY, DAY)
    key = (sound / nodes.KEY).read_bytes()
    for damaged in ((other / nodes.KEY).read_bytes(), b"", key[: len(key) // 2]):
        (sound / nodes.KEY).write_bytes(damaged)
        with pytest.raises(UsageError, match="damaged or no pair"):
            nodes.security(sound)
    (sound / nodes.KEY).write_bytes(key)
    (sound / nodes.CERTIFICATE).write_text("rubbish")
    with pytest.raises(UsageError, match="damaged or no pair"):
        nodes.security(sound)


def test_a_key_of_another_user(sound: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(*_: object, **_more: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("ssl.SSLContext.load_cert_chain", closed)
    with pytest.raises(HostError, match=r"farm\.key cannot be read: Permission denied"):
        nodes.security(sound)


def test_all_commands_of_a_farm_say_so_at_once(tmp_path: Path) -> None:
    old = write(tmp_path / "old", -2 * DAY, -DAY)
    root = recipe_roots.make(tmp_path, {"a": ""})
    address = "tls://127.0.0.1:1"
    lab = Lab(folder=tmp_path, client=root)
    lab.remote.mkdir()
    lab.share()
    for words in (("scheduler",), ("worker", address)):
        done = root.run("farm", *words, "--certificates", str(old))
        assert (done.returncode, "and it is 20" in done.stderr) == (2, True), done.stderr
    for words in (("doctor",), ("build", "a")):
        done = root.run(*words, "--farm", address, "--certificates", str(old))
        assert (done.returncode, "and it is 20" in done.stderr) == (2, True), done.stderr


def test_a_place_that_can_be_no_folder(tmp_path: Path) -> None:
    """A device passes for no regular file; it was a bug report."""
    for place in ("/dev/null", "/proc/farm"):
        with pytest.raises(UsageError, match=f"{place} can be no folder"):
            nodes.make_certificate(Path(place))
