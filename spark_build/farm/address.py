"""Argument of --farm: a scheduler, machines that ssh reaches, or workers of this machine."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from spark_build.errors import UsageError
from spark_build.transfer.upload import Node, parse_destination

_ADDRESS = re.compile(r"(?:tls://)?([\w.-]+|\[[0-9A-Fa-f:.]+\]):([0-9]{1,5})", re.ASCII)


@dataclass(frozen=True, kw_only=True, slots=True)
class FarmAddress:
    """A farm that is there (`scheduler`: tls://HOST:PORT), or one of `nodes` or of `count` workers here."""

    kind: Literal["tls", "ssh", "local"]
    scheduler: str = ""
    nodes: tuple[Node, ...] = ()
    count: int = 0


def parse_address(text: str) -> FarmAddress:
    """Parse tls://HOST:PORT, ssh:HOST,HOST or local:N. Raise UsageError."""
    kind, _, rest = text.partition(":")
    if kind == "ssh":
        return FarmAddress(kind="ssh", nodes=tuple(_ssh_node(host) for host in rest.split(",")))
    if kind == "local":
        return FarmAddress(kind="local", count=_count(text, rest))
    return FarmAddress(kind="tls", scheduler=address_of(text))


def address_of(text: str) -> str:
    """Return tls://HOST:PORT. Raise UsageError for what is none, or not encrypted."""
    found = _ADDRESS.fullmatch(text)
    if not found or not 0 < int(found[2]) < 1 << 16:
        raise UsageError(f"{text!r} is no address of a farm", hint="tls://HOST:PORT, ssh:HOSTS or local:N")
    return f"tls://{found[1]}:{found[2]}"


def _count(text: str, number: str) -> int:
    """Return how many workers are to be started here; more than processors are only in each other's way."""
    most = max(2, len(os.sched_getaffinity(0)))
    if re.fullmatch("[0-9]{1,6}", number) and 0 < int(number) <= most:
        return int(number)
    raise UsageError(
        f"--farm {text}: one worker or more, and at most {most} on this machine", hint="--farm local:2"
    )


def _ssh_node(text: str) -> Node:
    with suppress(UsageError):
        if (node := parse_destination(f"ssh://{text}/-")).path == "/-":
            return node
    raise UsageError(f"--farm ssh: {text!r} is no machine", hint="--farm ssh:[USER@]HOST[:PORT],...")
