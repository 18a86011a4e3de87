"""Reads `nvidia-smi -q -x`. Anything unexpected is unknown, never an error."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

from spark_build.doctor.model import Gpu
from spark_build.machine import REASONS


def failure(text: str) -> tuple[str, str]:
    """Why nvidia-smi gave no answer, and the version of its library where it says that."""
    library = re.search(r"NVML library version: (\d+(?:\.\d+)+)", text)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return (lines[0] if lines else "nvidia-smi gives no answer"), (library[1] if library else "")


def answer(text: str) -> tuple[str, str, tuple[Gpu, ...]] | None:
    """Driver, newest CUDA and GPUs of `nvidia-smi -q -x`; None when that is something else.

    "N/A", "Not Supported" and the like leave a value unknown.
    """
    try:
        root = ET.fromstring(text)  # noqa: S314 - the driver's own tool wrote it
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
