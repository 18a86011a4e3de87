"""Signatures of exports by `ssh-keygen -Y`, and who is trusted: `trust/allowed_signers` of the wheelhouse."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import re
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any, BinaryIO

from spark_build.errors import HostError, StoreError, UsageError, ours, shell
from spark_build.files import locked, make_folder, write_atomically
from spark_build.process import capture

NAMESPACE = "spark-build"  # a signature made for git or for mail is none for us
SIGNATURE = "manifest.json.sig"
UNSIGNED = "unsigned"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,63}")  # no pattern of ssh's, nothing to escape
_KEY = r"(?:ssh|ecdsa|sk)-[A-Za-z0-9@.-]+ [A-Za-z0-9+/]+={0,2}"
_PUBLIC = re.compile(rf"({_KEY})(?:[ \t][^\n]*)?\n?")
_LINE = re.compile(rf"([^\s#]\S*)\s+(?:.*?\s)?({_KEY})(?:\s.*)?")


@dataclass(frozen=True, kw_only=True, slots=True)
class Signer:
    """Signer of a file: `name` is "" for a key that is not trusted; `key`: "ssh-ed25519 AAAA..."."""

    name: str
    key: str

    @property
    def fingerprint(self) -> str:
        """Return what `ssh-keygen -l` prints of the key."""
        digest = hashlib.sha256(base64.b64decode(self.key.split()[1])).digest()
        return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


def file_of(wheelhouse: Path) -> Path:
    """Return the file of trusted signers, in the format of ssh-keygen(1), ALLOWED SIGNERS."""
    return wheelhouse / "trust" / "allowed_signers"


def signers(wheelhouse: Path) -> tuple[Signer, ...]:
    """Return all trusted signers, in the file's order."""
    return tuple(one for line in _lines(file_of(wheelhouse)) if (one := _signer_of(line)))


def _lines(file: Path) -> list[str]:
    """Return the file's lines, split where ssh-keygen splits them; a comment may be in any encoding."""
    try:
        lines = file.read_bytes().decode(errors="surrogateescape").split("\n")
    except FileNotFoundError:
        return []
    return lines if lines[-1] else lines[:-1]


def _signer_of(line: str) -> Signer | None:
    """Return the signer of a line; None for a comment. ssh-keygen passes over blanks before it, too."""
    found = _LINE.fullmatch(line.strip())
    return Signer(name=found[1].split(",")[0], key=found[2]) if found else None


def is_trusted(wheelhouse: Path, record: Mapping[str, Any]) -> bool:
    """Return whether an entry's record names a signer that is trusted now, with the same key."""
    signer = Signer(name=str(record.get("imported", "")), key=str(record.get("signer_key", "")))
    return bool(signer.key) and signer in signers(wheelhouse)


def read_signer(wheelhouse: Path, name: str, file: Path) -> Signer:
    """Return the public key in a file under a name that it can be trusted by. Raise UsageError."""
    if not NAME.fullmatch(name) or name == UNSIGNED:
        raise UsageError(f"{name!r} is no name for a signer", hint="letters, digits and . _ @ + - make one")
    try:
        read = _PUBLIC.fullmatch(file.read_text())
        kind, _, blob = read[1].partition(" ") if read else ("", "", "")
        if _string(base64.b64decode(blob)).decode() != kind:
            raise ValueError("another kind of key")
        signer = Signer(name=name, key=f"{kind} {blob}")
    except (OSError, ValueError) as error:
        is_there = not isinstance(error, FileNotFoundError)
        raise UsageError(
            f"{file} holds no public key of ssh" if is_there else f"there is no file {file}",
            hint=f"ssh-keygen -t ed25519 -f {name} makes {name}.pub",
        ) from error
    others = (one.name for one in signers(wheelhouse) if one.key == signer.key and one.name != name)
    if other := next(others, ""):
        raise UsageError(f"that key is trusted as {other}", hint=ours("wheelhouse trust remove", other))
    return signer


def add(wheelhouse: Path, name: str, file: Path) -> Signer:
    """Trust the public key in a file under a name, beside other keys of that name. Raise UsageError."""
    signer = read_signer(wheelhouse, name, file)
    if signer not in signers(wheelhouse):
        with _changing(wheelhouse) as lines:
            lines.append(f'{name} namespaces="{NAMESPACE}" {signer.key}')
    return signer


def remove(wheelhouse: Path, name: str) -> tuple[Signer, ...]:
    """Trust no key of a name any more; return the signers that are gone. Raise UsageError for nobody."""
    gone = tuple(one for one in signers(wheelhouse) if one.name == name)
    if not gone:
        raise UsageError(f"nobody is trusted as {name!r}", hint=ours("wheelhouse trust list"))
    with _changing(wheelhouse) as lines:
        lines[:] = [line for line in lines if (one := _signer_of(line)) is None or one.name != name]
    return gone


@contextlib.contextmanager
def _changing(wheelhouse: Path) -> Any:
    """Give the lines of the file to edit; what is left in the list is written."""
    file = file_of(wheelhouse)
    make_folder(file.parent)
    with locked(file.parent / "lock", purpose="changing who is trusted"):
        lines = _lines(file)
        yield lines
        write_atomically(file, "".join(f"{line}\n" for line in lines).encode(errors="surrogateescape"))


def require_key(key: Path) -> None:
    """Raise HostError where nothing can be signed, UsageError where there is no such key."""
    if shutil.which("ssh-keygen") is None:
        raise HostError("ssh-keygen is missing", hint=shell("sudo apt install openssh-client"))
    if not key.is_file():
        raise UsageError(f"there is no key {key}", hint=f"ssh-keygen -t ed25519 -f {quote(str(key))}")


def sign(data: bytes, key: Path) -> bytes:
    """Return the armored signature of `data`; of a public key, ssh-agent has the other half."""
    require_key(key)
    with tempfile.TemporaryFile() as stdin:
        stdin.write(data)
        made = _ssh_keygen(stdin, "sign", "-f", str(key))
    if made is None:
        raise UsageError(
            f"ssh-keygen does not sign with {key}",
            hint=f"ssh-keygen -y -f {quote(str(key))} says why",
        )
    return made.encode()


def verify(wheelhouse: Path, data: bytes, signature: bytes) -> Signer:
    """Return who signed `data`; StoreError for a signature that is none, or of other bytes or purpose."""
    try:
        key = key_of(signature)
    except (ValueError, LookupError) as error:
        raise StoreError(f"{SIGNATURE} is no signature of ssh") from error
    known = next((one for one in signers(wheelhouse) if one.key == key), Signer(name="", key=key))
    with tempfile.TemporaryFile() as stdin, tempfile.NamedTemporaryFile() as file:
        stdin.write(data)
        file.write(signature)
        file.flush()
        allowed = ("-f", str(file_of(wheelhouse)), "-I", known.name) if known.name else ()
        step = "verify" if known.name else "check-novalidate"
        if _ssh_keygen(stdin, step, *allowed, "-s", file.name) is None:
            raise StoreError(f"its signature by {known.name or known.fingerprint} does not hold")
    return known


def _ssh_keygen(stdin: BinaryIO, step: str, *arguments: str) -> str | None:
    if shutil.which("ssh-keygen") is None:
        raise HostError("ssh-keygen is missing", hint=shell("sudo apt install openssh-client"))
    stdin.seek(0)
    # Minutes: somebody may have to type a passphrase, or touch a token.
    command = ["ssh-keygen", "-Y", step, "-n", NAMESPACE, *arguments]
    return capture(command, stdin=stdin, timeout=300)


def key_of(signature: bytes) -> str:
    """Return the public key in a signature (PROTOCOL.sshsig); it proves nothing by itself."""
    armored = re.fullmatch(
        r"-----BEGIN SSH SIGNATURE-----\n(.*)-----END SSH SIGNATURE-----\n", signature.decode(), re.DOTALL
    )
    blob = base64.b64decode(armored[1] if armored else "")
    if not blob.startswith(b"SSHSIG\0\0\0\1"):
        raise ValueError("no SSHSIG of version 1")
    blob = _string(blob[10:])
    key = f"{_string(blob).decode()} {base64.b64encode(blob).decode()}"
    if not re.fullmatch(_KEY, key):
        raise ValueError("no kind of key that ssh has")
    return key


def _string(blob: bytes) -> bytes:
    """Return the first string of ssh's wire format: four bytes of length, then so many."""
    length = int.from_bytes(blob[:4], "big")
    if not 0 < length <= len(blob) - 4:
        raise ValueError("cut short")
    return blob[4 : 4 + length]
