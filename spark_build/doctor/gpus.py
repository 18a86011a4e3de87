"""The GPUs and their driver: through NVML where its Python package is, else through nvidia-smi."""

from __future__ import annotations

from typing import Any

from spark_build.doctor import reading, smi
from spark_build.doctor.model import Driver, Gpu
from spark_build.doctor.probe import Access
from spark_build.machine import REASONS


def survey(access: Access) -> tuple[Driver, tuple[Gpu, ...]]:
    """The driver and what each GPU does now."""
    module = reading.driver_module(access.read("/proc/driver/nvidia/version"))
    nvml = access.nvml()
    if nvml is not None:
        return _driver(nvml, module), through_nvml(nvml)
    if not access.which_all("nvidia-smi", access.environ.get("PATH", "")):
        return Driver(module=module), ()
    said = access.ask(["nvidia-smi", "-q", "-x"], check=False)
    answer = smi.answer(said or "")
    if answer is None:
        problem, libraries = smi.failure(said or "")
        return Driver(module=module, libraries=libraries, problem=problem), ()
    libraries, cuda, gpus = answer
    return Driver(module=module, libraries=libraries, cuda=cuda), gpus


def _driver(nvml: Any, module: str) -> Driver:
    number = _ask(nvml, "nvmlSystemGetCudaDriverVersion") or 0
    cuda = f"{number // 1000}.{number % 1000 // 10}" if number else ""
    return Driver(module=module, libraries=str(_ask(nvml, "nvmlSystemGetDriverVersion") or ""), cuda=cuda)


def through_nvml(nvml: Any) -> tuple[Gpu, ...]:
    """All GPUs; what NVML answers "Not Supported" to stays unknown."""
    count = _ask(nvml, "nvmlDeviceGetCount") or 0
    handles = [_ask(nvml, "nvmlDeviceGetHandleByIndex", index) for index in range(count)]
    return tuple(_gpu(nvml, handle) for handle in handles if handle is not None)


def _gpu(nvml: Any, handle: Any) -> Gpu:
    clock = getattr(nvml, "NVML_CLOCK_SM", 1)
    power, limit = (
        _ask(nvml, name, handle) for name in ("nvmlDeviceGetPowerUsage", "nvmlDeviceGetEnforcedPowerLimit")
    )
    rates = _ask(nvml, "nvmlDeviceGetUtilizationRates", handle)
    memory = _ask(nvml, "nvmlDeviceGetMemoryInfo", handle)
    running = _ask(nvml, "nvmlDeviceGetComputeRunningProcesses", handle)
    state = _ask(nvml, "nvmlDeviceGetPerformanceState", handle)
    reasons = _ask(nvml, "nvmlDeviceGetCurrentClocksEventReasons", handle) or 0
    return Gpu(
        name=str(_ask(nvml, "nvmlDeviceGetName", handle) or ""),
        clock_mhz=_ask(nvml, "nvmlDeviceGetClockInfo", handle, clock),
        max_clock_mhz=_ask(nvml, "nvmlDeviceGetMaxClockInfo", handle, clock),
        watts=None if power is None else power / 1000,
        limit_watts=None if limit is None else limit / 1000,
        state=f"P{state}" if state is not None and 0 <= state < 16 else "",  # 32: unknown
        utilisation=None if rates is None else rates.gpu / 100,
        processes=None if running is None else len(running),
        used_mib=None if memory is None else memory.used >> 20,
        reasons=tuple(words for bit, _, words in REASONS if reasons & bit),
    )


def _ask(nvml: Any, function: str, *arguments: Any) -> Any:
    """An answer of NVML; None where it is not supported, or older than the question."""
    try:
        return getattr(nvml, function)(*arguments)
    except (nvml.NVMLError, AttributeError):
        return None
