"""Git over the network: URLs, transports and remote tags."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from spark_build.errors import AGAIN, Hint, HostError, SourceError, rm
from spark_build.process import by_lines, run
from spark_build.reporting import reporter

_LISTED_TAG = re.compile(r"([0-9a-f]{40})\trefs/tags/(.+?)(\^\{\})?")


def remote_tags(url: str) -> dict[str, str]:
    """Return all tags with the full commit of each. Raises SourceError when no server answers."""
    try:
        check_address(url)
        # No repository of ours takes part, and a person waits.
        access = GitAccess(pause=lambda _: None)
        remote = GitRemote(url=url, local=is_local(url), mirror=Path("/nonexistent"), access=access)
        lines = remote.ask("ls-remote", "--tags")
    except (BadAddressError, GitUnavailableError) as error:
        raise SourceError(f"cannot read the tags of {display_url(url)}: {error}") from error
    except SourceError as error:
        # What git itself said is in brackets; the sentence before says what it means.
        raise SourceError(
            error.message.partition(" (")[0], hint=f"git ls-remote --tags {display_url(url)}"
        ) from error
    direct: dict[str, str] = {}
    peeled: dict[str, str] = {}
    for found in filter(None, map(_LISTED_TAG.fullmatch, lines)):
        (peeled if found[3] else direct)[found[2]] = found[1]
    return direct | peeled  # an annotated tag is an object of its own, which names the commit


RETRIES = 3
BACK_OFF = 0.5  # seconds before the first retry, doubled before each further one
STALLED = 120  # seconds without a byte

# Of the GIT_* variables only those that say how to reach a server.
_KEPT = re.compile(
    r"GIT_(SSL_\w+|SSH|SSH_COMMAND|SSH_VARIANT|PROXY_\w+|HTTP_\w+|EXEC_PATH|CONFIG_(GLOBAL|SYSTEM|NOSYSTEM))"
)
_CONFIG = {
    "core.hooksPath": "/dev/null",
    "core.fsmonitor": "false",
    "core.alternateRefsCommand": "true",
    "credential.interactive": "false",
    "fetch.recurseSubmodules": "false",
    "fetch.unpackLimit": "1",  # packs are synced to disk, loose objects are not
    "fetch.writeCommitGraph": "false",
    "gc.auto": "0",
    "maintenance.auto": "false",
    "http.lowSpeedLimit": "1",
    "http.lowSpeedTime": str(STALLED),
    "protocol.ext.allow": "never",
}
_PERCENT = re.compile(r"(?:remote: )?[A-Z][\w ]+:\s+\d+% \((\d+)/(\d+)\)")
_RECEIVING = ("Receiving objects", "Resolving deltas")

# In this order: (what git or ssh prints, what it means, the next thing to do, worth another try).
_CAUSES: tuple[tuple[str, str, Hint | str, bool], ...] = (
    (
        (
            r"could not read (Username|Password)|unable to get password|terminal prompts disabled"
            r"|[Aa]uthentication failed|Permission denied \(|returned error: 40[137]"
            r"|Host key verification failed"
        ),
        "there is no such repository, or it wants a login",
        "check the source's url; set up a credential helper or an ssh key that works without questions",
        False,
    ),
    (
        (
            r"not found|does not appear to be a git repository|does not exist|returned error: (404|410)"
            r"|not a git repository|access denied or repository not exported"
        ),
        "there is no such repository",
        "check the source's url",
        False,
    ),
    (
        r"certificate problem|certificate verification failed|server certificate|CAfile",
        "its certificate is not trusted",
        "set http.sslCAInfo in your git configuration, or GIT_SSL_CAINFO",
        False,
    ),
    (
        r"transport '\w+' not allowed",
        "its address leads to a place that is not allowed",
        "check the source's url",
        False,
    ),
    (
        r"[Cc]ould not resolve|name resolution|unable to look up",
        "the name cannot be resolved",
        "check the network; --offline works with what is here",
        True,
    ),
    (
        (
            r"[Cc]onnection refused|[Ff]ailed to connect|unable to connect|[Nn]o route to host"
            r"|[Nn]etwork is unreachable|timed out|too slow|[Cc]onnection reset|hung up|early EOF"
            r"|unexpected disconnect|RPC failed|index-pack|SSL_|gnutls|handshake|Couldn't connect"
            r"|Empty reply|returned error: (408|429|5\d\d)|Recv failure|[Cc]onnection closed"
        ),
        "no connection to the server, or it broke off",
        Hint("check the network, then ", AGAIN),
        True,
    ),
)


class GitUnavailableError(Exception):
    """A request that the server refuses or cannot serve; the text is git's message."""


def scrubbed() -> dict[str, str]:
    """Return an environment for git without repository and configuration variables."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("GIT_") or name == "GIT_EXEC_PATH"
    }
    return kept | {
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_NO_REPLACE_OBJECTS": "1",
        "LC_ALL": "C",
    }


@dataclass(frozen=True, kw_only=True, slots=True)
class GitAccess:
    """Settings for fetching that all repositories of one source share."""

    offline: bool = False
    log: BinaryIO | None = None
    pause: Callable[[float], None] = time.sleep


@dataclass(frozen=True, kw_only=True, slots=True)
class GitRemote:
    """A repository on a server, with its settings; `local`: the source is on this machine."""

    url: str
    local: bool
    mirror: Path
    access: GitAccess
    pass_fds: tuple[int, ...] = ()

    def ask(self, command: str, *arguments: str, what: Sequence[str] = ()) -> list[str]:
        """Return output lines of `git COMMAND ARGUMENTS URL WHAT`; network failures are retried.

        Raises SourceError for what nobody can get, UnavailableError when another way might work.
        """
        failures = 0
        while True:
            status, lines = self._once([command, *arguments, "--", display_url(self.url), *what])
            if status == 0:
                return lines
            problem = self._explain(lines)
            failures += 1
            if problem is None:
                raise GitUnavailableError(_telling(lines))
            error, again = problem
            if not again or failures > RETRIES:
                raise error
            self.access.pause(BACK_OFF * 2 ** (failures - 1))

    def _once(self, arguments: Sequence[str]) -> tuple[int, list[str]]:
        """Return the exit status and all output but progress, which is passed on."""
        args = ["git", f"--git-dir={self.mirror}", *arguments]
        self._note("$ " + shlex.join(args))
        lines: list[str] = []

        def on_line(line: str) -> None:
            match = _PERCENT.match(line)
            if match is None:
                lines.append(line)
                self._note(line)
            elif line.startswith(_RECEIVING):
                reporter().progress(int(match[1]), int(match[2]))

        done = run(by_lines(args), env=self._environment(), on_line=on_line, pass_fds=self.pass_fds)
        return done.returncode, lines

    def _note(self, line: str) -> None:
        if self.access.log is not None:
            self.access.log.write(f"{redacted(line)}\n".encode(errors="replace"))
            self.access.log.flush()

    def _environment(self) -> dict[str, str]:
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("GIT_") or _KEPT.fullmatch(name)
        }
        # The argument list shows an address without credentials; git puts them back by itself.
        secret = (
            {f"url.{self.url}.insteadOf": display_url(self.url)} if display_url(self.url) != self.url else {}
        )
        config = _CONFIG | secret
        for number, (key, value) in enumerate(config.items()):
            environment |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
        ssh = environment.get("GIT_SSH_COMMAND") or shlex.quote(environment.get("GIT_SSH", "ssh"))
        return environment | {
            "GIT_CONFIG_COUNT": str(len(config)),
            "GIT_ALLOW_PROTOCOL": ":".join((*REMOTE_SCHEMES, *(["file"] if self.local else []))),
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_ASKPASS": "true",
            "SSH_ASKPASS": "true",
            "SSH_ASKPASS_REQUIRE": "never",
            "GCM_INTERACTIVE": "never",
            "GIT_SSH_COMMAND": f"{ssh} -o BatchMode=yes -o ConnectTimeout=30",
            "LC_ALL": "C",
        }

    def _explain(self, lines: Sequence[str]) -> tuple[Exception, bool] | None:
        """Return the error for a failed command, and whether to retry; None when unknown."""
        text = "\n".join(lines)
        if "No space left on device" in text:
            return HostError(
                f"the disk is full ({self.mirror})", hint=Hint("free some space, then ", AGAIN)
            ), False
        if "unable to rename temporary" in text:  # git 2.55 finds a damaged pack in that place
            return SourceError(
                f"the mirror of {display_url(self.url)} is damaged: {_telling(lines)}",
                hint=Hint(rm(self.mirror), AGAIN, ": it is fetched again"),
            ), False
        if re.search(r"not our ref|unadvertised object|couldn't find remote ref", text):
            return None
        for pattern, meaning, hint, again in _CAUSES:
            if re.search(pattern, text):
                said = _telling(lines)
                message = f"cannot fetch {display_url(self.url)}: {meaning} ({said})"
                return SourceError(message, hint=hint), again
        return None


def _telling(lines: Sequence[str]) -> str:
    """Return the most specific line of git's output, without credentials."""
    found = [line for line in lines if line.startswith(("fatal:", "error:", "remote:", "ssh:"))]
    said = next((line for line in found if line.startswith(("fatal:", "ssh:"))), (found or [*lines, ""])[0])
    return redacted(re.sub(r"^(fatal|error): ", "", said)).strip()


REMOTE_SCHEMES = ("https", "http", "ssh", "git")
_RELATIVE = ("./", "../")

_USERINFO = re.compile(r"([a-z][a-z0-9+.-]*://)[^/\s]*@", re.IGNORECASE)
_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*)://", re.IGNORECASE)
_SCP = re.compile(r"[\w.@-]+:(?!:)")  # git@host:path; two colons would name a transport helper
_TAG = re.compile(r"(?![-/.])(?!.*(\.\.|//|@\{))[^\x00-\x20\x7f~^:?*\[\\]+(?<![/.])")
_UNPRINTABLE = re.compile(r"[\x00-\x20\x7f]|%0[0-9a-f]|%1[0-9a-f]", re.IGNORECASE)


class BadAddressError(ValueError):
    """An address or a path that is not acceptable; the text gives the reason."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Submodule:
    """A repository inside a tree: its path, its address, its commit."""

    path: str
    url: str
    commit: str
    relative: str = ""  # how .gitmodules says it when it goes by the superproject's address


def display_url(url: str) -> str:
    """Return an address without user and password."""
    return redacted(url)


def redacted(text: str) -> str:
    """Return git's output without the credentials of any address in it."""
    return _USERINFO.sub(r"\1", text)


def is_local(url: str) -> bool:
    """Return whether an address is on this machine."""
    return url.startswith(("/", "file://"))


def mirror_name(url: str) -> str:
    """Return the folder name of a repository's mirror, independent of credentials."""
    plain = display_url(url).rstrip("/")
    name = re.sub(r"[^\w.-]", "_", re.split(r"[/:]", plain)[-1].removesuffix(".git")) or "repository"
    return f"{hashlib.sha256(plain.encode(errors='surrogateescape')).hexdigest()[:16]}-{name[:60]}.git"


def check_address(url: str) -> None:
    """Raise BadAddressError for an address that git could take for an option, a helper or two lines."""
    if not url or url.startswith("-"):
        raise BadAddressError(f"{url!r} is no address")
    if _UNPRINTABLE.search(url):
        raise BadAddressError("its address holds a space or a control character")
    scheme = _SCHEME.match(url)
    if scheme is None:
        if not url.startswith("/") and not _SCP.match(url):
            raise BadAddressError(f"{display_url(url)!r} is no address that can be fetched from")
        return
    if scheme[1].lower() not in (*REMOTE_SCHEMES, "file"):
        raise BadAddressError(f"cannot fetch from {scheme[1]}: addresses")
    host = url[scheme.end() :].partition("/")[0].rpartition("@")[2]
    if host.startswith("-") or (not host and scheme[1].lower() != "file"):
        raise BadAddressError(f"{display_url(url)!r} names no host")


def check_tag(tag: str) -> None:
    """Raise BadAddressError for an invalid tag name; "" means no tag and is fine."""
    if tag and not _TAG.fullmatch(tag):
        raise BadAddressError(f"{tag!r} is no name of a tag")


def resolve_url(base: str, url: str) -> str:
    """Return a submodule's absolute address; relative ones ("../other.git") start from `base`."""
    if not url.startswith(_RELATIVE):
        return url
    root, path = _split(base.rstrip("/"))
    parts = _parts(path)
    for part in _parts(url):
        if part != "..":
            parts.append(part)
        elif parts:
            parts.pop()
        else:
            raise BadAddressError(f"the address {url!r} leads above {display_url(base)}")
    return root + "/".join(parts)


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")]


def _split(url: str) -> tuple[str, str]:
    """Return the fixed part of an address, and the path below it."""
    scheme = _SCHEME.match(url)
    if scheme is not None:
        host, _, path = url[scheme.end() :].partition("/")
        return f"{scheme[0]}{host}/", path
    if url.startswith("/"):
        return "/", url[1:]
    host, colon, path = url.partition(":")
    return host + colon, path


def check_path(path: str) -> None:
    """Raise BadAddressError for a path that leaves the tree or enters a repository's .git."""
    if not path or path.startswith(("-", "/")) or ".." in _parts(path) or "\0" in path:
        raise BadAddressError(f"the path {path!r} is not acceptable")
    if any(part.lower().rstrip(" .") == ".git" for part in _parts(path)):
        raise BadAddressError(f"the path {path!r} is one of git's own")


def submodules(base: str, config: Mapping[str, str], links: Mapping[str, str]) -> tuple[Submodule, ...]:
    """Return the submodules of a tree: `config` from .gitmodules, `links` path -> recorded commit.

    Left out, as git does: those marked `update = none`. Raises BadAddressError.
    """
    named: dict[str, dict[str, str]] = {}
    for key, value in config.items():
        section, _, rest = key.partition(".")
        name, dot, option = rest.rpartition(".")
        if section == "submodule" and dot:
            named.setdefault(name, {})[option.lower()] = value
    by_path = {}
    for name, options in named.items():
        if ".." in _parts(name) or name.startswith("-"):
            raise BadAddressError(f"the submodule name {name!r} is not acceptable")
        if "path" in options:
            check_path(options["path"])
            by_path[options["path"].rstrip("/")] = options
        if "url" in options:
            _check_submodule(base, resolve_url(base, options["url"]), options.get("path", name))
    found = []
    for path, commit in links.items():
        check_path(path)
        options = by_path.get(path, {})
        if options.get("update") == "none":
            continue
        if not options.get("url"):
            raise BadAddressError(f".gitmodules names no address for the submodule {path!r}")
        url = options["url"]
        relative = url if url.startswith(_RELATIVE) else ""
        found.append(Submodule(path=path, url=resolve_url(base, url), commit=commit, relative=relative))
    return tuple(found)


def _check_submodule(base: str, url: str, path: str) -> None:
    try:
        check_address(url)
    except BadAddressError as error:
        raise BadAddressError(f"the submodule {path!r} is not acceptable: {error}") from None
    if is_local(url) and not is_local(base):
        raise BadAddressError(f"the submodule {path!r} names a place on this machine")
