"""Remote stores: signed exports of one build each, under its build key, at any URL.

`entries/<kk>/<build key>/<signer>.tar` below the URL is one entry: written whole under another name, then
renamed, never changed. Its name says whose signature to look for, so nothing has to be listed, and a plain
web server will do.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import json
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar, cast
from urllib.parse import urlsplit

from spark_build.decoding import decoder
from spark_build.errors import AGAIN, Hint, HostError, SparkBuildError, StoreError, UsageError, ours, shell
from spark_build.files import locked, open_made, write_atomically
from spark_build.paths import Home, path_given
from spark_build.recipes.model import Provision, Target
from spark_build.reporting import reporter
from spark_build.wheelhouse import generations, trust
from spark_build.wheelhouse import store as stores
from spark_build.wheelhouse.generations import Generation
from spark_build.wheels.model import StoredWheel

if TYPE_CHECKING:  # every command that plans imports this module: what packs and proves takes longer
    from spark_build.transfer.bundle import Bundle

FILE = "remotes.json"
ENTRIES = "entries"
PART = ".part"
_ENTRY = re.compile(rf"{ENTRIES}/[0-9a-f]{{2}}/([0-9a-f]{{64}})/([0-9a-f]{{32}})\.tar(\.[0-9a-f]+)?(\.part)?")
T = TypeVar("T")
PAUSES = (1.0, 5.0)  # seconds before a remote store that failed is asked again
HEAD, WHOLE = 1 << 18, 1 << 23  # bytes that a file system may fetch at once


@dataclass(frozen=True, kw_only=True, slots=True)
class Remote:
    """A remote store; `key`: path of the ssh key that signs what is pushed, `signer`: its public key.

    asked: signature by that key over `_wish`: a list that came with somebody's folder signs nothing.
    """

    name: str
    url: str
    push: bool = False
    key: str = ""
    signer: str = ""
    asked: str = ""

    @property
    def folder(self) -> Path | None:
        """Return the folder that it is, None for other places."""
        scheme, _, path = self.url.partition("://")
        return Path(path) if scheme == "file" else None


@dataclass(frozen=True, kw_only=True, slots=True)
class RemoteEntry:
    """A build that a remote store has, as its signed record tells."""

    remote: str
    signer: str
    version: str
    content_digest: str

    def told(self, one: Provision) -> str:
        """Return what of it goes into the build keys of what needs it."""
        return self.content_digest if one.coupling == "content" else self.version


@dataclass(frozen=True, kw_only=True, slots=True)
class RemoteFile:
    """A file that gc removes from a remote store."""

    name: str
    size: int


def configured(wheelhouse: Path) -> tuple[Remote, ...]:
    """Return the remote stores in the order in which they are asked. Raises UsageError for a damaged list."""
    path = wheelhouse / FILE
    try:
        found = tuple(map(decoder(Remote), json.loads(path.read_text())["remotes"]))
        for one in found:
            one.url.encode()
            _check(one.name, one.url)
    except FileNotFoundError:
        return ()
    except (OSError, ValueError, LookupError, TypeError, UsageError) as error:
        raise UsageError(
            f"the list of remote stores cannot be read: {error}",
            where=str(path),
            hint="mend that entry, or remove the file and add the stores again",
        ) from error
    return found


def _check(name: str, url: str) -> None:
    """Raise UsageError for a name or a URL that is none."""
    if not trust.NAME.fullmatch(name):
        raise UsageError(f"{name!r} is no name for a remote store", hint="use letters, digits, . _ @ + -")
    # fsspec opens a chain of them by what stands in a file of the last, and file:// by the name of local://.
    chained = "::" in url and not url.startswith(("http://", "https://"))
    if "://" not in url or chained or url.startswith("local:") or not _can_be_split(url):
        raise UsageError(
            f"{url!r} is no URL for a remote store", hint="/folder, sftp://..., s3://..., https://..."
        )


def _can_be_split(url: str) -> bool:
    try:
        urlsplit(url)
    except ValueError:  # sftp://[abc/x
        return False
    return True


def add(wheelhouse: Path, name: str, url: str, *, push: bool, key: Path | None) -> Remote:
    """Add a remote store; a `key` must sign. Raises UsageError."""
    if "://" not in url:
        url = f"file://{path_given(url, name).absolute()}"
    url = url.rstrip("/")
    _check(name, url)
    parts = urlsplit(url)
    if parts.password:
        raise UsageError("the list of remote stores keeps no password", hint="ssh keys, ~/.netrc, ~/.aws do")
    folder = Path(url.partition("://")[2])  # not of `parts`: # and ? are letters of it
    if parts.scheme == "file" and not folder.is_dir():
        raise UsageError(f"there is no folder {folder}", hint=shell("mkdir", "-p", folder))
    if key and parts.scheme in ("http", "https"):
        raise UsageError(f"{parts.scheme}:// is only read", hint="push to the same place by another URL")
    if push and not key:
        raise UsageError("what is pushed is signed: with which key?", hint="--sign ~/.ssh/id_ed25519")
    asked = trust.sign(_wish(wheelhouse, url), key) if key else b""
    signer = trust.key_of(asked) if key else ""
    own = str(key.absolute()) if key else ""
    made = Remote(name=name, url=url, push=push, key=own, signer=signer, asked=asked.decode())
    with locked(wheelhouse / f".{FILE}.lock", purpose="changing the remote stores"):
        known = configured(wheelhouse)
        if any(one.name == name for one in known):
            raise UsageError(f"{name} is a remote store already", hint=ours("remotes remove", name))
        _write(wheelhouse, [*known, made])
    return made


def _wish(wheelhouse: Path, url: str) -> bytes:
    """Return what the owner of a key signs once, so that it may sign what is pushed from here to there."""
    return f"push what is built in {wheelhouse.resolve()} to {url}\n".encode()


def remove(wheelhouse: Path, name: str) -> None:
    """Forget a remote store; what is in it stays there. Raises UsageError for an unknown one."""
    with locked(wheelhouse / f".{FILE}.lock", purpose="changing the remote stores"):
        gone = named(wheelhouse, name)
        _write(wheelhouse, [one for one in configured(wheelhouse) if one != gone])


def named(wheelhouse: Path, name: str) -> Remote:
    """Return the remote store of this name. Raises UsageError."""
    found = {one.name: one for one in configured(wheelhouse)}
    if name not in found:
        there = f"there are {', '.join(found)}" if found else ours("remotes add NAME URL")
        raise UsageError(f"there is no remote store {name!r}", hint=there)
    return found[name]


def _write(wheelhouse: Path, remotes: list[Remote]) -> None:
    rows = [asdict(one) for one in remotes]
    write_atomically(wheelhouse / FILE, json.dumps({"schema": 1, "remotes": rows}, indent=1) + "\n")


class Remotes:
    """The remote stores of a wheelhouse as a command asks them; a failed one is skipped until `forget`."""

    def __init__(self, home: Home) -> None:
        self.offline = False
        self._home = home
        self._places: dict[str, _Place] = {}
        self._gone: set[str] = set()
        self._found: dict[str, RemoteEntry | None] = {}
        # Builds run side by side, and not every file system may be used by two threads.
        self._lock = threading.RLock()

    @functools.cached_property
    def _remotes(self) -> tuple[Remote, ...]:
        return configured(self._home.wheelhouse)

    def find(self, build_key: str) -> RemoteEntry | None:
        """Return the build under this key that a trusted signer vouches for; only its beginning is read."""
        from spark_build.transfer.bundle_import import peek_entry

        def look(remote: Remote, path: Path, file: BinaryIO) -> RemoteEntry:
            signer, record = peek_entry(self._home, path, file, build_key)
            version, content = str(record["version"]), str(record["content_digest"])
            return RemoteEntry(
                remote=remote.name, signer=signer.name, version=version, content_digest=content
            )

        with self._lock:
            if build_key not in self._found:
                self._found[build_key] = self._first(build_key, HEAD, look)
            return self._found[build_key]

    def fetch(self, build_key: str, target: Target, *, audited: bool = False) -> StoredWheel | None:
        """Commit the build under this key as an import of its signer's; None where no remote store has it.

        audited: as `import_entry` has it.
        """
        from spark_build.transfer.bundle_import import import_entry

        def take(remote: Remote, path: Path, file: BinaryIO) -> StoredWheel:
            wheel = import_entry(self._home, path, file, build_key, target, audited=audited)
            reporter().message(f"fetched {wheel.filename} from {remote.name}: {wheel.shown_origin}")
            return wheel

        with self._lock:
            return self._first(build_key, WHOLE, take)

    def fetch_anew(self, build_key: str, target: Target) -> StoredWheel | None:
        """Do as `fetch` does, and ask again those that failed."""
        with self._lock:
            for pause in (0.0, *PAUSES):
                time.sleep(pause)
                self.forget()
                wheel = self.fetch(build_key, target)
                if wheel is not None or not self._gone:
                    return wheel
        return None

    def forget(self) -> None:
        """Forget what was found and which failed."""
        with self._lock:
            for known in (self._places, self._gone, self._found):
                known.clear()

    def push_all(self, generation: Generation) -> None:
        """Push a generation's builds wherever that is wanted; a failure costs a warning."""
        for remote in self._remotes:
            if remote.push and self._may_ask(remote):
                try:
                    self.push(remote, generation)
                except SparkBuildError as error:
                    told = f"warning: nothing more is pushed to {remote.name}: {error.message}"
                    reporter().message(told)

    def push(self, remote: Remote, generation: Generation) -> tuple[StoredWheel, ...]:
        """Push the builds of a generation that are not there; returns these. Raises HostError or UsageError.

        What was only imported here its own builder pushes; a prefix never leaves this machine.
        """
        again = Hint(ours("remotes remove", remote.name), ", then add it again with --sign KEY")
        if not remote.key:
            raise UsageError(f"{remote.name} is only read: no key signs for it", hint=again)
        if not self._is_asked_for(remote):
            told = (
                f"{remote.key} signs nothing for {remote.name}: its owner did not ask for that in this folder"
            )
            raise UsageError(told, hint=again)
        pushed = []
        with self._lock:
            for wheel in generation.wheels:
                entry = stores.read(self._home.store, wheel.key) if wheel.origin == "built" else None
                if entry is None or entry.prefix is not None:
                    continue
                name = entry_name(wheel.key, remote.signer)
                with _told(remote):
                    if self._place(remote).exists(name):
                        continue
                    self._place(remote).write(name, self._packed(remote, generation, wheel))
                pushed.append(wheel)
                reporter().message(f"pushed {wheel.filename} to {remote.name}")
        return tuple(pushed)

    def _is_asked_for(self, remote: Remote) -> bool:
        """Return whether the owner of the key wants it; the list may have come with somebody's folder."""
        wish = _wish(self._home.wheelhouse, remote.url)
        try:
            return trust.verify(self._home.wheelhouse, wish, remote.asked.encode()).key == remote.signer
        except StoreError:
            return False

    def _packed(self, remote: Remote, generation: Generation, wheel: StoredWheel) -> Bundle:
        """Return the export of one wheel; its record comes first, for those who only plan."""
        from spark_build.transfer.bundle import pack

        # Number 0: taken in by hand as an export, it replaces nothing.
        alone = replace(generation, number=0, closure_key="")
        bundle = pack(alone, self._home.store, wheels=[wheel], key=Path(remote.key))
        manifest, signature, *others = bundle.members
        if trust.key_of(b"".join(signature.content())) != remote.signer:
            told = f"{remote.key} is another key than {remote.name} was added with"
            raise UsageError(told, hint=Hint(ours("remotes remove", remote.name), ", then add it again"))
        others.sort(key=lambda one: (not one.name.endswith(f"/{stores.RECORD}"), one.name == wheel.filename))
        return replace(bundle, members=(manifest, signature, *others))

    def collect(self, remote: Remote, *, older_than: float, dry_run: bool) -> tuple[RemoteFile, ...]:
        """Remove entries of this remote store's own signer that no generation here names; returns them.

        Younger ones than `older_than` seconds stay. Raises HostError, UsageError; StoreError before anything
        is removed when a manifest cannot be read.
        """
        if not remote.signer:
            raise UsageError(f"nothing in {remote.name} was pushed from here")
        needed = {
            wheel.key
            for view in self._home.views.glob("*")
            for number in generations.numbers(view)
            for wheel in generations.read(view / "generations" / str(number)).wheels
        }
        going, own = [], _name_of(remote.signer)
        with self._lock, _told(remote):
            for name, size, changed in self._place(remote).files():
                found = _ENTRY.fullmatch(name)
                mine = found is not None and found[2] == own and (found[4] or found[1] not in needed)
                if mine and changed < time.time() - older_than:
                    going.append(RemoteFile(name=name, size=size))
            for one in () if dry_run else going:
                self._place(remote).remove(one.name)
        return tuple(going)

    def _may_ask(self, remote: Remote) -> bool:
        local = remote.url.startswith("file:")
        return remote.name not in self._gone and (local or not self.offline)

    def _place(self, remote: Remote) -> _Place:
        return self._places.setdefault(remote.name, _Place(remote.url))

    def _first(self, build_key: str, block: int, use: Callable[[Remote, Path, BinaryIO], T]) -> T | None:
        """Return the result for the first entry that is whole; one that is not costs a warning."""
        signers = trust.signers(self._home.wheelhouse) if self._remotes else ()
        for remote in self._remotes:
            for signer in signers:
                if not self._may_ask(remote):
                    break
                name = entry_name(build_key, signer.key)
                try:
                    with _told(remote, looking=True), self._place(remote).reading(name, block) as file:
                        return use(remote, Path(remote.name, name), file)
                except FileNotFoundError:
                    continue
                except SparkBuildError as error:
                    if isinstance(error, HostError):
                        self._gone.add(remote.name)
                    reporter().message(f"warning: {error.message}; going on without it")
        return None


def entry_name(build_key: str, signer_key: str) -> str:
    """Return where below a remote store's URL the entry lies that a signer pushed under a build key."""
    return f"{ENTRIES}/{build_key[:2]}/{build_key}/{_name_of(signer_key)}.tar"


def _name_of(signer_key: str) -> str:
    return hashlib.sha256(signer_key.encode()).hexdigest()[:32]


@contextlib.contextmanager
def _told(remote: Remote, *, looking: bool = False) -> Iterator[None]:
    """Raise HostError for whatever a file system raises; `looking`: but for a file that is not there."""
    from spark_build.sources.http import network_reason

    try:
        yield
    except SparkBuildError:
        raise
    except Exception as error:
        # A bucket that is gone is no missing file, though s3fs calls both so.
        if looking and isinstance(error, FileNotFoundError) and "bucket" not in str(error):
            raise
        raise HostError(
            f"the remote store {remote.name} cannot be used: {network_reason(error)}",
            hint=Hint(f"see that {remote.url} can be reached, then ", AGAIN),
        ) from error


class _Place:
    """The files below a URL: by fsspec, or by plain requests and only to be read."""

    def __init__(self, url: str) -> None:
        self._url = url

    @functools.cached_property
    def _opened(self) -> tuple[Any, str]:
        from spark_build.transfer.upload import opened

        try:
            files, top = opened(self._url)
        except HostError as error:
            raise HostError(error.message.removeprefix("--to "), hint=error.hint) from error
        if self._url.startswith("file:") and not Path(top).is_dir():
            raise HostError(f"{top} is not there", hint=Hint("mount it, or: ", ours("remotes remove NAME")))
        return files, top

    @contextlib.contextmanager
    def reading(self, name: str, block: int) -> Iterator[BinaryIO]:
        """Open a file to be read forward. Raises FileNotFoundError, and what the file system raises."""
        if not self._url.startswith(("http://", "https://")):
            files, top = self._opened
            if self._url.startswith("file:"):
                with _regular(Path(top, name)) as local:
                    yield cast("BinaryIO", _Forward(local))
                return
            with files.open(f"{top}/{name}", "rb", block_size=block) as file:
                yield cast("BinaryIO", _Forward(file))
            return
        from spark_build.sources.http import PipConfig, Session

        plain = {"Accept-Encoding": "identity"}
        with (
            Session(PipConfig(), retries=1) as session,
            session.ask("GET", f"{self._url}/{name}", headers=plain, stream=True) as answer,
        ):
            if answer.status_code in (404, 410):
                raise FileNotFoundError(name)
            answer.raise_for_status()
            yield cast("BinaryIO", _Forward(answer.raw))

    def exists(self, name: str) -> bool:
        """Return whether there is such a file."""
        files, top = self._opened
        return bool(files.exists(f"{top}/{name}"))

    def write(self, name: str, bundle: Bundle) -> None:
        """Write a tar: all of it under its name, or nothing."""
        from spark_build.transfer.bundle_write import stream, write_archive
        from spark_build.transfer.upload import created

        files, top = self._opened
        if self._url.startswith("file:"):
            write_archive(bundle, Path(top, name))
            return
        part = f"{top}/{name}.{secrets.token_hex(8)}{PART}"
        try:
            # By way of another name everywhere: S3 would keep what there was when this block fails.
            with created(files, part) as out:
                for data in stream(bundle.members):
                    out.write(data)
            files.mv(part, f"{top}/{name}")
        except BaseException:
            with contextlib.suppress(Exception):
                files.rm_file(part)
            raise

    def files(self) -> Iterator[tuple[str, int, float]]:
        """Yield name, bytes and time (seconds since 1970) of each file; now where a place does not tell."""
        files, top = self._opened
        for path, told in files.find(f"{top}/{ENTRIES}", detail=True).items():
            changed = told.get("LastModified") or told.get("mtime") or told.get("created") or time.time()
            seconds = changed.timestamp() if hasattr(changed, "timestamp") else float(changed)
            yield str(path).removeprefix(f"{top}/"), int(told["size"]), seconds

    def remove(self, name: str) -> None:
        """Remove a file; one that is gone is fine."""
        files, top = self._opened
        with contextlib.suppress(FileNotFoundError):
            files.rm_file(f"{top}/{name}")


def _regular(path: Path) -> BinaryIO:
    """Open a file of a shared folder. Raises StoreError for a link, which leads anywhere, or a pipe."""
    try:
        return open_made(path)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ELOOP):
            raise
        raise StoreError(f"{path} is refused: it is no regular file") from error


class _Forward:
    """A stream whose seeks only go on, by reading: neither sockets nor sftp need to do more."""

    def __init__(self, file: Any) -> None:
        self._file, self._at = file, 0

    def read(self, size: int = -1, /) -> bytes:
        data: bytes = self._file.read(size)
        self._at += len(data)
        return data

    def seek(self, offset: int, whence: int = 0, /) -> int:
        if whence or offset < self._at:
            raise ValueError("it is only read forward")
        while offset > self._at and self.read(min(offset - self._at, WHOLE)):
            pass
        return self._at

    def tell(self) -> int:
        return self._at
