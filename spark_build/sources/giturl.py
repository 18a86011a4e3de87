"""Addresses of git repositories: what may be shown of them, and where a submodule's leads.

A .gitmodules file is written by strangers; what it names is checked before git sees it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass

REMOTE_SCHEMES = ("https", "http", "ssh", "git")
_RELATIVE = ("./", "../")

_USERINFO = re.compile(r"([a-z][a-z0-9+.-]*://)[^/\s]*@", re.IGNORECASE)
_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*)://", re.IGNORECASE)
_SCP = re.compile(r"[\w.@-]+:(?!:)")  # git@host:path; two colons would name a transport helper
_TAG = re.compile(r"(?![-/.])(?!.*(\.\.|//|@\{))[^\x00-\x20\x7f~^:?*\[\\]+(?<![/.])")
_UNPRINTABLE = re.compile(r"[\x00-\x20\x7f]|%0[0-9a-f]|%1[0-9a-f]", re.IGNORECASE)


class BadAddressError(ValueError):
    """An address or a path that is not acceptable; the text says why."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Submodule:
    """Another repository inside a tree: where it lies, where it comes from, which commit."""

    path: str
    url: str
    commit: str
    relative: str = ""  # how .gitmodules says it when it goes by the superproject's address


def shown(url: str) -> str:
    """What may be shown of an address: no user, no password."""
    return redacted(url)


def redacted(text: str) -> str:
    """A text that git printed, without the credentials of any address in it."""
    return _USERINFO.sub(r"\1", text)


def is_local(url: str) -> bool:
    """Whether an address is a place on this machine."""
    return url.startswith(("/", "file://"))


def mirror_name(url: str) -> str:
    """Folder of a repository's mirror; the same whatever the credentials are."""
    plain = shown(url).rstrip("/")
    name = re.sub(r"[^\w.-]", "_", re.split(r"[/:]", plain)[-1].removesuffix(".git")) or "repository"
    return f"{hashlib.sha256(plain.encode(errors='surrogateescape')).hexdigest()[:16]}-{name[:60]}.git"


def check_address(url: str) -> None:
    """Raise BadAddressError for what git could take for an option, a helper program or two lines."""
    if not url or url.startswith("-"):
        raise BadAddressError(f"{url!r} is no address")
    if _UNPRINTABLE.search(url):
        raise BadAddressError("its address holds a space or a control character")
    scheme = _SCHEME.match(url)
    if scheme is None:
        if not url.startswith("/") and not _SCP.match(url):
            raise BadAddressError(f"{shown(url)!r} is no address that can be fetched from")
        return
    if scheme[1].lower() not in (*REMOTE_SCHEMES, "file"):
        raise BadAddressError(f"cannot fetch from {scheme[1]}: addresses")
    host = url[scheme.end() :].partition("/")[0].rpartition("@")[2]
    if host.startswith("-") or (not host and scheme[1].lower() != "file"):
        raise BadAddressError(f"{shown(url)!r} names no host")


def check_tag(tag: str) -> None:
    """Raise BadAddressError for what cannot be a tag's name; "" is none, which is fine."""
    if tag and not _TAG.fullmatch(tag):
        raise BadAddressError(f"{tag!r} is no name of a tag")


def resolve(base: str, url: str) -> str:
    """A submodule's address, relative ones ("../other.git") against the superproject's `base`."""
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
            raise BadAddressError(f"the address {url!r} leads above {shown(base)}")
    return root + "/".join(parts)


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")]


def _split(url: str) -> tuple[str, str]:
    """What stays of an address whatever is added to it, and the path below it."""
    scheme = _SCHEME.match(url)
    if scheme is not None:
        host, _, path = url[scheme.end() :].partition("/")
        return f"{scheme[0]}{host}/", path
    if url.startswith("/"):
        return "/", url[1:]
    host, colon, path = url.partition(":")
    return host + colon, path


def check_path(path: str) -> None:
    """Raise BadAddressError for a path in a tree that leads out of it, or into a repository's own files."""
    if not path or path.startswith(("-", "/")) or ".." in _parts(path) or "\0" in path:
        raise BadAddressError(f"the path {path!r} is not acceptable")
    if any(part.lower().rstrip(" .") == ".git" for part in _parts(path)):
        raise BadAddressError(f"the path {path!r} is one of git's own")


def submodules(base: str, config: Mapping[str, str], links: Mapping[str, str]) -> tuple[Submodule, ...]:
    """The submodules of a tree: `config` from its .gitmodules, `links` path -> recorded commit.

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
            _check_submodule(base, resolve(base, options["url"]), options.get("path", name))
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
        found.append(Submodule(path=path, url=resolve(base, url), commit=commit, relative=relative))
    return tuple(found)


def _check_submodule(base: str, url: str, path: str) -> None:
    try:
        check_address(url)
    except BadAddressError as error:
        raise BadAddressError(f"the submodule {path!r} is not acceptable: {error}") from None
    if is_local(url) and not is_local(base):
        raise BadAddressError(f"the submodule {path!r} names a place on this machine")
