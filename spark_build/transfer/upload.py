"""Send an export to another machine, by existing tools: ssh with rsync or tar, else what fsspec speaks.

Always a folder. What is right there already is not sent again, and at the end every file there is
compared with its hash.
"""

from __future__ import annotations

import hashlib
import re
import sys
from shlex import quote
from typing import Any
from urllib.parse import urlsplit

from spark_build.errors import HostError, SparkBuildError, UsageError
from spark_build.events import Emit, Note
from spark_build.files import CHUNK
from spark_build.sources.git_remote import shown
from spark_build.transfer.bundle import Member, Parcel, Progress
from spark_build.transfer.bundle_write import Counter

TRIES = 2  # of one file, when what arrived is not what was sent


def send(parcel: Parcel, url: str, progress: Progress, emit: Emit) -> int:
    """Send to ssh://... or to any other URL; bytes of the export."""
    scheme, found, _ = url.partition("://")
    if not found:
        raise UsageError(f"--to {url}: that is no URL", hint="a place here goes without --to")
    if url.endswith((".tar", ".tar.zst")):
        raise UsageError(
            "--to writes a folder, which can be gone on with file by file", hint=f"--to {scheme}://.../FOLDER"
        )
    if scheme == "ssh":
        from spark_build.transfer import ssh

        ssh.send(parcel, ssh.parse(url), progress, emit)
    else:
        _send_by_fsspec(parcel, url, progress, emit)
    return parcel.size


def _send_by_fsspec(parcel: Parcel, url: str, progress: Progress, emit: Emit) -> None:
    files, top = _opened(url)
    counter = Counter(progress, parcel.size)
    try:
        # The manifest last: without it nobody takes the folder for a whole export.
        for member in (*parcel.members[1:], parcel.members[0]):
            _put(files, f"{top}/{member.name}", member, counter, url)
        others = _other_wheels(files, top, parcel)
    except NotImplementedError as error:
        raise UsageError(
            f"{shown(url)} cannot be written to ({type(files).__name__})", hint="name another URL"
        ) from error
    except SparkBuildError:
        raise
    except Exception as error:  # what a file system raises is its own
        raise _failed(url, error) from error
    if others:
        emit(Note(message=f"there are other wheels, which installers would see: {', '.join(others)}"))


def _opened(url: str) -> tuple[Any, str]:
    try:
        import fsspec

        if re.search(r"(^|::)(sftp|ssh):", url):  # also behind another: simplecache::sftp://...
            from spark_build.transfer import sftp

            sftp.register()
        # One of its own: another's connection may be a torn one.
        files, path = fsspec.core.url_to_fs(url, skip_instance_cache=True)
    except ImportError as error:
        raise _lacking(url, error) from error
    except ValueError as error:  # "Protocol not known"
        raise HostError(f"--to {shown(url)}: {error}", hint="ssh://, sftp:// and s3:// are known") from error
    except Exception as error:
        raise _failed(url, error) from error
    return files, str(path).rstrip("/")


def _lacking(url: str, error: ImportError) -> HostError:
    """A module's name need not be the package's: only what fsspec itself names is to be installed."""
    cause, said = error.__cause__ or error.__context__, " ".join(str(error).split())
    if isinstance(cause, ImportError):
        name = cause.name if cause.name and re.search(rf"(?<![\w-]){cause.name}(?![\w[-])", said) else ""
    else:
        name = error.name if error.name in ("fsspec", "paramiko") else ""
    if name:
        return HostError(
            f"--to {shown(url)} needs {name}", hint=f"{quote(sys.executable)} -m pip install {name}"
        )
    hint = f"install what it names for {sys.executable}, then run the same command again"
    return HostError(f"--to {shown(url)}: {said}", hint=hint)


def _failed(url: str, error: Exception) -> HostError:
    said = " ".join(str(error).split())[:300] or type(error).__name__
    return HostError(
        f"sending to {shown(url)} failed: {said}",
        hint=_next_step(url, error),
    )


def _next_step(url: str, error: Exception) -> str:
    """By the names that paramiko and botocore give their errors: neither is imported here."""
    kind, said = type(error).__name__, str(error)
    if kind == "BadHostKeyException":
        forget = f"ssh-keygen -R {quote(_at(url)[0])}"
        where = "-f /etc/ssh/ssh_known_hosts where that file has it"
        return f"not the machine that ssh knows, or installed anew: make sure, then: {forget}  ({where})"
    if "not found in known_hosts" in said:
        login = f"ssh {_at(url)[1]}"
        return f"{login}  (once: it asks whether the key is right); then run the same command again"
    if kind == "NoCredentialsError":
        return "aws configure, or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; then the same again"
    if kind == "FileNotFoundError":
        return "make that place; then run the same command again"
    if "uthentication" in said or kind in ("PasswordRequiredException", "PermissionError"):
        return "that place must let you write with your keys; then run the same command again"
    return "run the same command again: it goes on where it stopped"


def _at(url: str) -> tuple[str, str]:
    """A node by its name in known_hosts, and as ssh takes it."""
    parts = urlsplit(re.split(r"::(?=\w+://)", url)[-1])
    host, port = parts.hostname or "", parts.port
    login = quote(f"{parts.username}@{host}" if parts.username else host)
    return (host, login) if port in (None, 22) else (f"[{host}]:{port}", f"-p {port} {login}")


def _put(files: Any, path: str, member: Member, counter: Counter, url: str) -> None:
    """Write one file and read it back; nothing is written where the right bytes are."""
    before = counter.done
    for _ in range(TRIES + 1):
        if _is_there(files, path, member):
            counter.add(before + member.size - counter.done)
            return
        counter.add(before - counter.done)
        with _created(files, path) as out:
            for chunk in member.content():
                out.write(chunk)
                counter.add(len(chunk))
    raise HostError(
        f"{member.name} does not arrive at {shown(url)}: what is read back has another sha256",
        hint="check that place, then run the same command again",
    )


def _created(files: Any, path: str) -> Any:
    """A new file, in a new folder if need be: in S3, which has none, makedirs would make the bucket."""
    try:
        return files.open(path, "wb")
    except FileNotFoundError:
        files.makedirs(path.rpartition("/")[0], exist_ok=True)
        return files.open(path, "wb")


def _is_there(files: Any, path: str, member: Member) -> bool:
    try:
        if files.size(path) != member.size:
            return False
    except FileNotFoundError:
        return False
    digest = hashlib.sha256()
    with files.open(path, "rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest() == member.sha256


def _other_wheels(files: Any, top: str, parcel: Parcel) -> list[str]:
    known = {member.name for member in parcel.members}
    names = {str(path).rpartition("/")[2] for path in files.ls(top, detail=False)}
    return sorted(name for name in names - known if name.endswith(".whl"))
