"""Reads what files and commands of a machine say. Anything unexpected is unknown, never an error."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from xml.etree import ElementTree as ET

from spark_build.model.facts import Gpu

# Why clocks are what they are: NVML's bit, nvidia-smi's name, ours.
REASONS = (
    (0x2, "applications_clocks_setting", "applications clocks setting"),
    (0x4, "sw_power_cap", "SW power cap"),
    (0x8, "hw_slowdown", "HW slowdown"),
    (0x20, "sw_thermal_slowdown", "SW thermal slowdown"),
    (0x40, "hw_thermal_slowdown", "HW thermal slowdown"),
    (0x80, "hw_power_brake_slowdown", "HW power brake"),
)
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


def smi_failure(text: str) -> tuple[str, str]:
    """Why nvidia-smi gave no answer, and the version of its library where it says that."""
    library = re.search(rf"NVML library version: ({_NUMBER})", text)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return (lines[0] if lines else "nvidia-smi gives no answer"), (library[1] if library else "")


def smi(text: str) -> tuple[str, str, tuple[Gpu, ...]] | None:
    """Driver, newest CUDA and GPUs of `nvidia-smi -q -x`; None when that is something else.

    "N/A", "Not Supported" and the like leave a value unknown.
    """
    try:
        root = ET.fromstring(text)  # noqa: S314  the driver's own tool wrote it
    except ET.ParseError:
        return None
    if root.tag != "nvidia_smi_log":
        return None
    gpus = tuple(_gpu(node) for node in root.iter("gpu"))
    return (root.findtext("driver_version") or "", root.findtext("cuda_version") or "", gpus)


def _gpu(node: ET.Element) -> Gpu:
    def number(path: str) -> float | None:
        found = re.match(r"\s*(\d+(?:\.\d+)?)", node.findtext(path) or "")
        return float(found[1]) if found else None

    def whole(path: str) -> int | None:
        found = number(path)
        return None if found is None else int(found)

    use = number("utilization/gpu_util")
    watts = number("gpu_power_readings/instant_power_draw")
    processes = node.find("processes")
    state = (node.findtext("performance_state") or "").strip()
    return Gpu(
        name=(node.findtext("product_name") or "").strip(),
        clock_mhz=whole("clocks/sm_clock"),
        max_clock_mhz=whole("max_clocks/sm_clock"),
        watts=number("gpu_power_readings/average_power_draw") if watts is None else watts,
        limit_watts=number("gpu_power_readings/current_power_limit"),
        state=state if re.fullmatch(r"P\d+", state) else "",
        utilisation=None if use is None else use / 100,
        processes=None if processes is None else _computing(processes),
        used_mib=whole("fb_memory_usage/used"),
        reasons=tuple(
            words
            for _, name, words in REASONS
            if node.findtext(f"clocks_event_reasons/clocks_event_reason_{name}") == "Active"
        ),
    )


def _computing(processes: ET.Element) -> int:
    """Those that compute; what draws the desktop is no concern."""
    return sum("C" in (one.findtext("type") or "") for one in processes.iter("process_info"))
