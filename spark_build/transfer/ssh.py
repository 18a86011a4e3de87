"""Send an export over ssh: by rsync where both ends have it, else by tar; proven by sha256sum there.

RSYNC_RSH, as for rsync itself, names another ssh command (`ssh -F FILE`).
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from spark_build.errors import HostError, UsageError
from spark_build.events import Emit, Note
from spark_build.process import Completed, run
from spark_build.transfer.bundle import Member, Parcel, Progress
from spark_build.transfer.bundle_write import Counter, stream

_SUM = re.compile(r"([0-9a-f]{64})  (?:\./)?(.+)")
_SHARE = re.compile(r"\s*([\d,.]+)\s+\d+%")


@dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    """Where to: `path` is absolute, or below the home folder there."""

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
        """The ssh command, but for the host. Nobody is there to type a password."""
        base = shlex.split(os.environ.get("RSYNC_RSH", "")) or ["ssh"]
        return [*base, "-o", "BatchMode=yes", *(["-p", str(self.port)] if self.port else [])]


def parse(url: str) -> Node:
    """A node from ssh://[user@]node[:port]/path; /~/path is below the home folder."""
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


def send(parcel: Parcel, node: Node, progress: Progress, emit: Emit) -> None:
    """Send what is not there yet, and prove all of it there; HostError when that fails."""
    place = _quoted(node.path)
    answer = _ask(node, f"mkdir -p -- {place} && echo rsync=$(command -v rsync)")
    counter = Counter(progress, parcel.size)
    by_rsync = any(line.startswith("rsync=/") for line in answer) and shutil.which("rsync") is not None
    (_by_rsync if by_rsync else _by_tar)(parcel, node, counter)
    wrong = _wrong(parcel, node)
    if wrong and by_rsync:
        # rsync goes by size and time: a file that was damaged there looks right to it.
        _by_rsync(parcel, node, Counter(progress, parcel.size), "--checksum")
        wrong = _wrong(parcel, node)
    if wrong:
        for member in wrong:
            for _ in member.content():  # is it our own file that is damaged?
                pass
        raise HostError(
            f"{wrong[0].name} does not arrive at {node.login}: its sha256 there is another",
            hint="check the disk there, then run the same command again",
        )
    counter.add(parcel.size - counter.done)
    known = {member.name for member in parcel.members}
    there = _ask(node, f"cd -- {place} && ls")
    others = [name for name in there if name.endswith(".whl") and name not in known]
    if others:
        emit(Note(message=f"there are other wheels, which installers would see: {', '.join(others)}"))


def _quoted(path: str) -> str:
    return shlex.quote(path)


def _ask(node: Node, script: str) -> list[str]:
    """The lines that a script prints there."""
    lines: list[str] = []
    done = run([*node.ssh(), "--", node.login, script], on_line=lines.append)
    _require(done, node)
    return lines


def _require(done: Completed, node: Node) -> None:
    if done.returncode == 0:
        return
    said = done.output.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
    port = f" -p {node.port}" if node.port else ""
    raise HostError(
        f"sending to {node.login} failed: {said[0][:300]}",
        hint=f"`ssh{port} {node.login}` must work without a password (ssh-copy-id); "
        "then run the same command again: it goes on where it stopped",
    )


def _wrong(parcel: Parcel, node: Node) -> list[Member]:
    """What is not there, or not right."""
    there = {}
    script = f"cd -- {_quoted(node.path)} && find . -type f -exec sha256sum {{}} +"
    for line in _ask(node, script):
        match = _SUM.fullmatch(line)
        if match:
            there[match[2]] = match[1]
    return [member for member in parcel.members if there.get(member.name) != member.sha256]


def _by_rsync(parcel: Parcel, node: Node, counter: Counter, *options: str) -> None:
    """A folder of links, which rsync follows: nothing is copied here."""
    with tempfile.TemporaryDirectory(prefix="spark-build-") as scratch:
        for member in parcel.members:
            path = Path(scratch, member.name)
            path.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(member.source, bytes):
                path.write_bytes(member.source)
            else:
                path.symlink_to(member.source)
        command = ["rsync", "--recursive", "--times", "--copy-links", "--partial", "--protect-args"]
        command += ["--chmod=F644", "--no-inc-recursive", "--info=progress2", *options]
        command += ["-e", shlex.join(node.ssh()), "--", f"{scratch}/", f"{node.rsync}:{node.path}/"]

        def moved(text: str) -> None:
            match = _SHARE.match(text)
            if match:
                counter.add(min(parcel.size, int(re.sub(r"\D", "", match[1]))) - counter.done)

        with _reading(moved) as descriptor:
            shell = ["sh", "-c", f'exec "$@" >/dev/fd/{descriptor}', "sh"]
            done = run([*shell, *command], keep=(descriptor,))
    _require(done, node)


@contextlib.contextmanager
def _reading(tell: Callable[[str], None]) -> Iterator[int]:
    """A descriptor to write to; what arrives is told at every line and carriage return."""
    ours, theirs = os.pipe()

    def follow() -> None:
        rest = ""
        while data := os.read(ours, 4096):
            *texts, rest = re.split(r"[\r\n]", rest + data.decode(errors="replace"))
            for text in texts:
                tell(text)

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield theirs
    finally:
        os.close(theirs)
        thread.join()
        os.close(ours)


def _by_tar(parcel: Parcel, node: Node, counter: Counter) -> None:
    """A tar of what is not right there yet, into ssh."""
    wrong = tuple(_wrong(parcel, node))
    counter.add(parcel.size - sum(member.size for member in wrong))
    theirs, ours = os.pipe()
    failures: list[BaseException] = []

    def feed() -> None:
        try:
            with os.fdopen(ours, "wb", buffering=0) as pipe:
                for data in stream(wrong):
                    _put(pipe.fileno(), data)
                    counter.add(min(len(data), parcel.size - counter.done))
        except BrokenPipeError:
            pass  # ssh says why
        except BaseException as error:  # noqa: BLE001  raised again below
            failures.append(error)

    script = f"cd -- {_quoted(node.path)} && tar -xf -"
    command = [*node.ssh(), "--", node.login, script]
    thread = threading.Thread(target=feed, daemon=True)
    thread.start()
    try:
        done = run(["sh", "-c", f'exec "$@" </dev/fd/{theirs}', "sh", *command], keep=(theirs,))
    finally:
        os.close(theirs)
        thread.join()
    if failures:
        raise failures[0]
    _require(done, node)


def _put(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
