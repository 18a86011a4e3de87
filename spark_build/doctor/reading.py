"""Reads what files and commands of a machine say. Anything unexpected is unknown, never an error."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping

ELF_MACHINES = {62: "linux-x86_64", 183: "linux-aarch64"}
_NUMBER = r"\d+(?:\.\d+)+"


def shell_values(text: str) -> dict[str, str]:
    """NAME="value" lines, as in /etc/os-release."""
    found = {}
    for line in text.splitlines():
        name, equals, value = line.strip().partition("=")
        if not equals or not name.isidentifier():
            continue
        try:
            found[name] = " ".join(shlex.split(value))
        except ValueError:  # a quote that is not closed
            found[name] = value
    return found


def meminfo(text: str) -> dict[str, int]:
    """/proc/meminfo in MiB."""
    rows = re.findall(r"^(\S+):\s+(\d+) kB", text, re.MULTILINE)
    return {name: int(kib) // 1024 for name, kib in rows}


def pressure(text: str) -> dict[str, float] | None:
    """Averages over 10 s of /proc/pressure/*, in per cent; None when the kernel has none."""
    rows = re.findall(r"^(some|full) avg10=(\d+(?:\.\d+)?)", text, re.MULTILINE)
    return {kind: float(share) for kind, share in rows} or None


def macros(text: str, *names: str) -> str:
    """A version from a header's `#define NAME number` lines; empty unless all are there."""
    found = dict(re.findall(r"^[ \t]*#[ \t]*define[ \t]+(\w+)[ \t]+(\d+)\b", text, re.MULTILINE))
    numbers = [found[name] for name in names if name in found]
    return ".".join(numbers) if len(numbers) == len(names) else ""


def version_of_file(name: str) -> str:
    """The version in a library's file name: libnccl.so.2.28.3; empty for libnccl.so.2."""
    found = re.search(rf"\.so\.({_NUMBER})$", name)
    return found[1] if found else ""


def driver_module(text: str) -> str:
    """Version in /proc/driver/nvidia/version."""
    found = re.search(rf"Kernel Module.*?\s({_NUMBER})\s", text)
    return found[1] if found else ""


def nvcc(text: str) -> tuple[str, str]:
    """Release and version that nvcc tells: ("13.0", "13.0.88")."""
    found = re.search(rf"release (\d+\.\d+), V({_NUMBER})", text)
    return (found[1], found[2]) if found else ("", "")


def compiler(text: str) -> tuple[str, str]:
    """Kind and version of a C++ compiler from its --version."""
    first = re.sub(r"\([^)]*\)", "", text.partition("\n")[0])  # the packager's words
    found = re.search(rf"(?<![\w.-])({_NUMBER})", first)
    if not found:
        return "", ""
    return ("clang" if "clang" in first else "gcc"), found[1]


def tool_version(text: str) -> str:
    """The first version number in what a tool prints."""
    found = re.search(_NUMBER, text)
    return found[0] if found else ""


def host_limits(text: str) -> tuple[int | None, int | None]:
    """Newest gcc, and the clang from which on it is too new, by CUDA's crt/host_config.h."""
    gcc = re.search(r"gcc versions later than (\d+)", text)
    clang = re.search(r"clang version must be less than (\d+)", text)
    return (int(gcc[1]) if gcc else None), (int(clang[1]) if clang else None)


def allows_compat(text: str) -> bool | None:
    """allow_compat_mode of a cufile.json, which is JSON with comments."""
    found = re.search(r'^[^/\n]*"allow_compat_mode"\s*:\s*(true|false)', text, re.MULTILINE)
    return found[1] == "true" if found else None


def elf_machine(head: bytes) -> str:
    """The platform of a little-endian ELF file by its first bytes; empty for anything else."""
    if len(head) < 20 or head[:4] != b"\x7fELF" or head[5] != 1:
        return ""
    number = int.from_bytes(head[18:20], "little")
    return ELF_MACHINES.get(number, f"machine {number}")


def addresses(text: str) -> dict[str, tuple[tuple[str, ...], tuple[str, ...]]]:
    """Of `ip -j addr`: interface -> (its addresses, those of them that may change)."""
    try:
        rows = json.loads(text)
        return {row["ifname"]: _addresses(row.get("addr_info", [])) for row in rows}
    except (ValueError, TypeError, KeyError, AttributeError):
        return {}


def _addresses(rows: list[Mapping[str, object]]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    # Every interface gives itself an IPv6 address of its own; one of IPv4 means that nobody gave it any.
    kept = [row for row in rows if row.get("scope") != "link" or row.get("family") == "inet"]
    moving = [row for row in kept if row.get("dynamic") or str(row.get("local", "")).startswith("169.254.")]
    return tuple(str(row["local"]) for row in kept), tuple(str(row["local"]) for row in moving)
