"""Send an export to another machine, by existing tools: ssh with rsync or tar, else what fsspec speaks.

Always a folder. What is right there already is not sent again, and at the end every file there is
compared with its hash.
"""

from __future__ import annotations

import hashlib
from typing import Any

from spark_build.core.giturl import shown
from spark_build.errors import HostError, SparkBuildError, UsageError
from spark_build.host.files import CHUNK
from spark_build.host.transfer.archive import Counter
from spark_build.host.transfer.parcel import Member, Parcel, Progress
from spark_build.model.event import Emit, Note

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
        from spark_build.host.transfer import ssh

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
    except ImportError as error:
        raise HostError(
            f"--to {shown(url)} needs fsspec", hint="pip install 'spark-build[remote]'"
        ) from error
    try:
        files, path = fsspec.core.url_to_fs(url)
    except (ImportError, ValueError) as error:
        # "Unknown protocol", or which package it needs.
        raise HostError(
            f"--to {shown(url)}: {error}", hint="pip install what it names, or use ssh://"
        ) from error
    except Exception as error:
        raise _failed(url, error) from error
    return files, str(path).rstrip("/")


def _failed(url: str, error: Exception) -> HostError:
    said = " ".join(str(error).split())[:300] or type(error).__name__
    return HostError(
        f"sending to {shown(url)} failed: {said}",
        hint="run the same command again: it goes on where it stopped",
    )


def _put(files: Any, path: str, member: Member, counter: Counter, url: str) -> None:
    """Write one file and read it back; nothing is written where the right bytes are."""
    before = counter.done
    for _ in range(TRIES + 1):
        if _is_there(files, path, member):
            counter.add(before + member.size - counter.done)
            return
        counter.add(before - counter.done)
        files.makedirs(path.rpartition("/")[0], exist_ok=True)
        with files.open(path, "wb") as out:
            for chunk in member.content():
                out.write(chunk)
                counter.add(len(chunk))
    raise HostError(
        f"{member.name} does not arrive at {shown(url)}: what is read back has another sha256",
        hint="check that place, then run the same command again",
    )


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
