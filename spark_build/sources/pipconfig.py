"""What `pip config list` says about where packages come from, as a value.

pip itself merges its files and PIP_* variables; this module only reads the result.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from spark_build.errors import SourceError

# As in pip: a command's own section beats [global], a variable beats both. What `pip download`
# would use comes first, because that is what stands in for it here.
SECTIONS = ("global", "install", "download", ":env:")
ALIASES = {"pypi-url": "index-url", "default-timeout": "timeout"}
OPTIONS = frozenset({
    "index-url", "extra-index-url", "find-links", "no-index", "cert", "client-cert", "proxy", "timeout",
    "trusted-host", "retries", *ALIASES,
})  # fmt: skip
YES = frozenset({"y", "yes", "t", "true", "on", "1"})
NO = frozenset({"n", "no", "f", "false", "off", "0"})

_LINE = re.compile(r"(?P<section>[^.=\s]+)\.(?P<option>[a-z0-9-]+)=(?P<value>(['\"]).*\4)\s*")


@dataclass(frozen=True, kw_only=True, slots=True)
class PipConfig:
    """Where pip looks, and how it gets there. An empty `index_url` means pip's own default."""

    index_url: str = ""
    extra_index_urls: tuple[str, ...] = ()
    find_links: tuple[str, ...] = ()
    no_index: bool = False
    cert: str = ""  # path of the only certificates to trust
    client_cert: str = ""
    proxy: str = ""
    timeout: float = 15.0  # seconds without an answer, pip's own default
    retries: int = 3
    trusted_hosts: tuple[str, ...] = ()  # host or host:port


def repeated(listing: str) -> tuple[str, ...]:
    """Keys ("global.index-url") that more than one of pip's files sets.

    Newer pips list every file's value, sorted by the files' names, which says nothing about which
    one counts: ask `pip config get` for these.
    """
    seen: set[str] = set()
    twice: dict[str, None] = {}
    for key, _ in _entries(listing):
        if key in seen:
            twice[key] = None
        seen.add(key)
    return tuple(twice)


def parse(listing: str, decided: Mapping[str, str] | None = None) -> PipConfig:
    """The configuration in the output of `pip config list`; `decided` wins for the keys it has.

    Raises SourceError for a value that pip would refuse too.
    """
    keyed = dict(_entries(listing)) | dict(decided or {})
    values: dict[str, str] = {}
    for section in SECTIONS:
        for key, value in keyed.items():
            owner, _, option = key.partition(".")
            # An empty value leaves what a weaker section says, as in pip.
            if owner == section and value:
                values[ALIASES.get(option, option)] = value
    return PipConfig(
        index_url=values.get("index-url", "").strip(),
        extra_index_urls=tuple(values.get("extra-index-url", "").split()),
        find_links=tuple(values.get("find-links", "").split()),
        no_index=_truth(values.get("no-index", "no")),
        cert=values.get("cert", ""),
        client_cert=values.get("client-cert", ""),
        proxy=values.get("proxy", ""),
        timeout=_number("timeout", values.get("timeout", "15")),
        retries=int(_number("retries", values.get("retries", "3"))),
        trusted_hosts=tuple(host.lower() for host in values.get("trusted-host", "").split()),
    )


def _entries(listing: str) -> Iterable[tuple[str, str]]:
    # Not splitlines(): a value may hold U+2028 and its like, which repr leaves alone.
    for line in listing.split("\n"):
        match = _LINE.fullmatch(line)
        if match is None or match["option"] not in OPTIONS:
            continue
        try:
            value = ast.literal_eval(match["value"])
        except (SyntaxError, ValueError):
            continue  # a line of something else that happens to look alike
        if isinstance(value, str):
            yield f"{match['section']}.{match['option']}", value


def _truth(value: str) -> bool:
    if value.lower() in YES:
        return True
    if value.lower() in NO:
        return False
    raise _refused("no-index", value, "neither yes nor no")


def _number(option: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        raise _refused(option, value, "not a number") from None
    if not 0 <= number < 1e9:
        raise _refused(option, value, "out of range")
    return number


def _refused(option: str, value: str, problem: str) -> SourceError:
    return SourceError(
        f"pip's setting {option} = {value!r} is {problem}",
        hint="python -m pip config debug   # shows which file or variable sets it",
    )
