"""Upload bundles: fsspec, ssh."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any
from urllib.parse import unquote, urlsplit

from spark_build.errors import (
    AGAIN,
    GOES_ON,
    Hint,
    HintStep,
    HostError,
    SparkBuildError,
    UsageError,
    pip_install,
)
from spark_build.events import Emit, Note
from spark_build.files import CHUNK
from spark_build.process import Completed, by_lines, run
from spark_build.sources.git_remote import display_url
from spark_build.transfer.bundle import Bundle, Member, Progress
from spark_build.transfer.bundle_write import Counter
from spark_build.wheelhouse.trust import SIGNATURE

TRIES = 2  # of one file, when what arrived is not what was sent
REQUESTS = 64  # of 32 KiB, on their way at once by sftp
KNOWN_HOSTS = "/etc/ssh/ssh_known_hosts"  # what a cluster's administrator keeps


def send(parcel: Bundle, url: str, progress: Progress, emit: Emit) -> int:
    """Send to ssh://... or to any other URL; bytes of the export."""
    scheme, found, _ = url.partition("://")
    if not found:
        raise UsageError(f"--to {url}: that is no URL", hint="a place here goes without --to")
    if url.endswith((".tar", ".tar.zst")):
        raise UsageError(
            "--to writes a folder, which can be gone on with file by file", hint=f"--to {scheme}://.../FOLDER"
        )
    if scheme == "ssh":
        send_by_ssh(parcel, parse_destination(url), progress, emit)
    else:
        _send_by_fsspec(parcel, url, progress, emit)
    return parcel.size


def _send_by_fsspec(parcel: Bundle, url: str, progress: Progress, emit: Emit) -> None:
    files, top = opened(url)
    counter = Counter(progress, parcel.size)
    try:
        if not _is_signed(parcel) and files.exists(f"{top}/{SIGNATURE}"):
            files.rm_file(f"{top}/{SIGNATURE}")
        # The manifest last: without it nobody takes the folder for a whole export.
        for member in (*parcel.members[1:], parcel.members[0]):
            _put(files, f"{top}/{member.name}", member, counter, url)
        there = {str(path).rpartition("/")[2] for path in files.ls(top, detail=False)}
    except NotImplementedError as error:
        raise UsageError(
            f"{display_url(url)} cannot be written to ({type(files).__name__})", hint="name another URL"
        ) from error
    except SparkBuildError:
        raise
    except Exception as error:  # what a file system raises is its own
        raise _failed(url, error) from error
    _tell_of_others(there, parcel, emit)


def _tell_of_others(there: Collection[str], parcel: Bundle, emit: Emit) -> None:
    """Tell which wheels lie there besides."""
    known = {member.name for member in parcel.members}
    others = sorted(name for name in there if name.endswith(".whl") and name not in known)
    if others:
        emit(Note(message=f"there are other wheels, which installers would see: {', '.join(others)}"))


def _is_signed(parcel: Bundle) -> bool:
    return any(member.name == SIGNATURE for member in parcel.members)


def opened(url: str) -> tuple[Any, str]:
    """Return the file system of a URL and the path in it. Raises HostError."""
    try:
        import fsspec

        if re.search(r"(^|::)(sftp|ssh):", url):  # also behind another: simplecache::sftp://...
            _register_sftp()
        # One of its own: another's connection may be a torn one.
        files, path = fsspec.core.url_to_fs(url, skip_instance_cache=True)
    except ImportError as error:
        raise _lacking(url, error) from error
    except ValueError as error:  # "Protocol not known"
        raise HostError(
            f"--to {display_url(url)}: {error}", hint="ssh://, sftp:// and s3:// are known"
        ) from error
    except Exception as error:
        raise _failed(url, error) from error
    return files, str(path).rstrip("/")


def _register_sftp() -> None:
    """Have fsspec open sftp:// and ssh:// by a class that refuses unknown keys and pipelines its packets."""
    # Imported here: paramiko is needed for these alone.
    import fsspec
    import paramiko
    from fsspec.implementations.sftp import SFTPFileSystem

    class KnownHosts(SFTPFileSystem):  # type: ignore[misc]  # fsspec has no types
        """Refuses a node whose key is not among those that ssh knows, or is another there."""

        host: str
        ssh_kwargs: dict[str, Any]

        def _connect(self) -> None:
            self.client = paramiko.SSHClient()
            self.client.load_system_host_keys()  # ~/.ssh/known_hosts; the first to name a key is believed
            with contextlib.suppress(OSError):
                self.client.load_system_host_keys(KNOWN_HOSTS)
            self.client.set_missing_host_key_policy(paramiko.RejectPolicy())
            self.client.connect(self.host, **self.ssh_kwargs)
            self.ftp = self.client.open_sftp()

        def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
            file = super()._open(path, mode, **options)
            if "r" in mode:
                file.prefetch(max_concurrent_requests=REQUESTS)
            else:
                file.set_pipelined()
            return file

    for scheme in ("sftp", "ssh"):
        fsspec.register_implementation(scheme, KnownHosts, clobber=True)


def _lacking(url: str, error: ImportError) -> HostError:
    """Return the error for a missing module, with the package to install where fsspec names one."""
    cause, said = error.__cause__ or error.__context__, " ".join(str(error).split())
    if isinstance(cause, ImportError):
        name = cause.name if cause.name and re.search(rf"(?<![\w-]){cause.name}(?![\w[-])", said) else ""
    else:
        name = error.name if error.name in ("fsspec", "paramiko") else ""
    if name:
        return HostError(f"--to {display_url(url)} needs {name}", hint=pip_install(name))
    hint = Hint(f"install what it names for {sys.executable}, then ", AGAIN)
    return HostError(f"--to {display_url(url)}: {said}", hint=hint)


def _failed(url: str, error: Exception) -> HostError:
    said = " ".join(str(error).split())[:300] or type(error).__name__
    return HostError(
        f"sending to {display_url(url)} failed: {said}",
        hint=_next_step(url, error),
    )


def _next_step(url: str, error: Exception) -> Hint | HintStep | str:
    """By the names that paramiko and botocore give their errors: neither is imported here."""
    kind, said = type(error).__name__, str(error)
    if kind == "BadHostKeyException":
        forget = f"ssh-keygen -R {quote(_at(url)[0])}"
        where = "-f /etc/ssh/ssh_known_hosts where that file has it"
        return f"not the machine that ssh knows, or installed anew: make sure, then: {forget}  ({where})"
    if "not found in known_hosts" in said:
        login = f"ssh {_at(url)[1]}"
        return Hint(f"{login}  (once: it asks whether the key is right); then ", AGAIN)
    if kind == "NoCredentialsError":
        return Hint("aws configure, or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; then ", AGAIN)
    if kind == "FileNotFoundError":
        return Hint("make that place; then ", AGAIN)
    if "uthentication" in said or kind in ("PasswordRequiredException", "PermissionError"):
        return Hint("that place must let you write with your keys; then ", AGAIN)
    return GOES_ON


def _at(url: str) -> tuple[str, str]:
    """Return a node's name in known_hosts, and as ssh takes it."""
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
        with created(files, path) as out:
            for chunk in member.content():
                out.write(chunk)
                counter.add(len(chunk))
    raise HostError(
        f"{member.name} does not arrive at {display_url(url)}: what is read back has another sha256",
        hint=Hint("check that place, then ", AGAIN),
    )


def created(files: Any, path: str) -> Any:
    """Return a new file in a new folder; in S3, where folders do not exist, makedirs would make a bucket."""
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


_SUM = re.compile(r"([0-9a-f]{64})  (?:\./)?(.+)")
_SHARE = re.compile(r"\s*([\d,.]+)\s+\d+%")


@dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    """A destination; `path` is absolute or relative to the home folder."""

    user: str
    host: str
    port: int | None
    path: str

    @property
    def login(self) -> str:
        """[user@]host, as ssh takes it."""
        return f"{self.user}@{self.host}" if self.user else self.host

    @property
    def rsync(self) -> str:
        """The same for rsync, to which a colon is the end of the host."""
        return self.login.replace(self.host, f"[{self.host}]") if ":" in self.host else self.login

    def ssh(self) -> list[str]:
        """Return the ssh command without the host; it never asks for a password."""
        base = shlex.split(os.environ.get("RSYNC_RSH", "")) or ["ssh"]
        return [*base, "-o", "BatchMode=yes", *(["-p", str(self.port)] if self.port else [])]

    def command(self, script: str, *options: str) -> list[str]:
        """Return what runs a script there, whatever the login shell is."""
        return [*self.ssh(), *options, "--", self.login, f"exec /bin/sh -c {quote(script)}"]


def parse_destination(url: str) -> Node:
    """Parse ssh://[user@]node[:port]/path; /~/path is relative to the home folder."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise UsageError(f"{url}: {error}", hint="ssh://[USER@]NODE[:PORT]/PATH") from error
    user = parts.username or ""
    path = unquote(parts.path)
    path = path.removeprefix("/~/") if path.startswith("/~/") else path
    # A name that begins with a dash would be an option of ssh.
    sane = re.fullmatch(r"[\w.:%][\w.:%-]*", host) and re.fullmatch(r"([\w.][\w.-]*)?", user)
    if not sane or path in ("", "/") or "\n" in path:
        raise UsageError(f"--to {url}: no place on a node", hint="ssh://[USER@]NODE[:PORT]/PATH")
    return Node(user=user, host=host, port=port, path=path.rstrip("/"))


def send_by_ssh(parcel: Bundle, node: Node, progress: Progress, emit: Emit) -> None:
    """Send what is not there yet, and prove all of it there; HostError when that fails."""
    place = shlex.quote(node.path)
    # An earlier export's signature would hold for no manifest of this one.
    stale = "" if _is_signed(parcel) else f" && rm -f -- {place}/{SIGNATURE}"
    _ask(node, f"mkdir -p -- {place}{stale}")
    counter = Counter(progress, parcel.size)
    _by_rsync(parcel, node, counter)
    wrong = _wrong(parcel, node)
    if wrong:
        for member in wrong:
            for _ in member.content():  # is it our own file that is damaged?
                pass
        raise HostError(
            f"{wrong[0].name} does not arrive at {node.login}: its sha256 there is another",
            hint=Hint("check the disk there, then ", AGAIN),
        )
    counter.add(parcel.size - counter.done)
    _tell_of_others(_ask(node, f"cd -- {place} && ls"), parcel, emit)


def _ask(node: Node, script: str) -> list[str]:
    """Return the lines that a script prints on the node."""
    lines: list[str] = []
    done = run(node.command(script), on_line=lines.append)
    _require(done, node)
    return lines


def _require(done: Completed, node: Node) -> None:
    if done.returncode == 0:
        return
    said = done.output.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
    port = f" -p {node.port}" if node.port else ""
    needed = f"`ssh{port} {node.login}` must work without a password (ssh-copy-id)"
    if re.search(r"rsync.* not found", done.output):
        needed = "both machines need rsync (apt install rsync; or --to sftp://...)"
    raise HostError(
        f"sending to {node.login} failed: {said[0][:300]}", hint=Hint(f"{needed}; then ", GOES_ON)
    )


def _wrong(parcel: Bundle, node: Node) -> list[Member]:
    """Return the members that are missing or differ on the node."""
    there = {}
    script = f"cd -- {shlex.quote(node.path)} && find . -type f -exec sha256sum {{}} +"
    for line in _ask(node, script):
        match = _SUM.fullmatch(line)
        if match:
            there[match[2]] = match[1]
    return [member for member in parcel.members if there.get(member.name) != member.sha256]


def _by_rsync(parcel: Bundle, node: Node, counter: Counter) -> None:
    """Send a folder of links, which rsync follows, so that nothing is copied here."""
    with tempfile.TemporaryDirectory(prefix="spark-build-") as scratch:
        for member in parcel.members:
            path = Path(scratch, member.name)
            path.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(member.source, bytes):
                path.write_bytes(member.source)
            else:
                path.symlink_to(member.source)
        # By content: to size and time a file that was damaged there looks right.
        command = ["rsync", "--recursive", "--times", "--checksum", "--copy-links", "--partial"]
        command += ["--protect-args", "--chmod=F644", "--no-inc-recursive", "--info=progress2"]
        command += ["-e", shlex.join(node.ssh()), "--", f"{scratch}/", f"{node.rsync}:{node.path}/"]

        def moved(line: str) -> None:
            match = _SHARE.match(line)
            if match:
                counter.add(min(parcel.size, int(re.sub(r"\D", "", match[1]))) - counter.done)

        done = run(by_lines(command), on_line=moved)
    _require(done, node)
