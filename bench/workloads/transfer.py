"""Between the memories of host and device: copies, pinned and pageable, and memory that both address."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from ceilings import plain_copy
from findings import Finding, Unsupported, verdict
from surroundings import loaded_libraries
from timing import Batches, burst, cpu_batches

from workloads import Asked, Case, Run, Work

MANAGED = 83  # cudaDevAttrManagedMemory
COHERENT = 88  # cudaDevAttrPageableMemoryAccess: the GPU reads any memory of the host, as on a DGX Spark
ATTACH_GLOBAL = 1  # cudaMemAttachGlobal
ONLY_CPU = "a CPU has no memory but its own"


def cases(asked: Asked) -> Iterator[Case]:
    for size in asked.pick(cpu=(28,), cuda_quick=(28,), cuda=(20, 24, 28, 30)):
        for way in ("h2d", "d2h"):
            for kind in ("pinned", "pageable"):
                yield _copy_case(asked, way, kind, 1 << size)
    for state in ("resident", "migrating"):
        yield _unified_case(asked, state, 1 << 28)


def _work(name: str, size: int, mode: str) -> Work:
    # Counted once: what is read on one side is written on the other.
    return Work(name=f"transfer.{name}", unit="B/s", amount=float(size), size=size, mode=mode,
                operation="transfer", moved=float(size))  # fmt: skip


def _copy_case(asked: Asked, way: str, kind: str, size: int) -> Case:
    work = _work(f"{way}.{kind}.{size >> 20}MiB", size, kind)

    def prepare() -> Run:
        if asked.device == "cpu":
            raise Unsupported(ONLY_CPU)
        host = torch.randint(256, (size,), dtype=torch.uint8)
        host = host.pin_memory() if kind == "pinned" else host
        device = torch.empty(size, dtype=torch.uint8, device="cuda")
        source, target = (host, device) if way == "h2d" else (device, host)

        def step() -> None:
            target.copy_(source)
            torch.cuda.synchronize()

        def arrived() -> list[Finding]:
            target.zero_()
            device.random_(0, 256) if way == "d2h" else host.random_(0, 256)
            step()
            same = torch.equal(host, device.cpu())
            return [
                verdict(
                    f"{work.name}.content",
                    same,
                    f"{size} bytes arrive " + ("as they were", "changed")[not same],
                )
            ]

        # Pageable memory goes through a small pinned buffer; how slowly is what is measured. Small copies
        # mostly wait.
        least = 0.6 if kind == "pinned" and size >= 1 << 24 else 0.01
        return Run(
            step=step,
            batches=lambda: cpu_batches(step),
            countable=False,
            plain=plain_link(way),
            share=(least, 1.15),
            after=arrived,
        )

    return Case(work=work, prepare=prepare)


def plain_link(way: str, elements: int = 1 << 26) -> Callable[[], float]:
    """Bytes per second of one large pinned copy, by the device's clock."""
    host = torch.ones(elements).pin_memory()
    device = torch.ones(elements, device="cuda")
    source, target = (host, device) if way == "h2d" else (device, host)

    def copy() -> object:
        return target.copy_(source, non_blocking=True)

    return lambda: source.nbytes / burst(torch, "cuda", copy, 1)


class Managed:
    """Memory that host and device address alike, as a tensor of each; freed by `close`."""

    def __init__(self, size: int) -> None:
        self.runtime = _runtime()
        self.pointer = ctypes.c_void_p()
        torch.cuda.synchronize()
        code = self.runtime.cudaMallocManaged(
            ctypes.byref(self.pointer), ctypes.c_size_t(size), ATTACH_GLOBAL
        )
        if code or not self.pointer.value:
            raise Unsupported(f"cudaMallocManaged answers {code}")
        self.__cuda_array_interface__ = {
            "shape": (size // 4,), "typestr": "<f4", "data": (self.pointer.value, False), "version": 2,
        }  # fmt: skip
        self.device: Any = torch.as_tensor(self, device="cuda")
        self.host: Any = torch.frombuffer(
            (ctypes.c_char * size).from_address(self.pointer.value), dtype=torch.float32
        )

    def close(self) -> None:
        torch.cuda.synchronize()
        self.runtime.cudaFree(self.pointer)


def _runtime() -> Any:
    torch.cuda.init()
    paths = [each for each in loaded_libraries() if "libcudart.so" in each]
    if not paths:
        raise Unsupported("libcudart is not loaded as a library of its own")
    return ctypes.CDLL(paths[0])


def _has(attribute: int) -> bool:
    value = ctypes.c_int()
    return _runtime().cudaDeviceGetAttribute(ctypes.byref(value), attribute, 0) == 0 and bool(value.value)


def _unified_case(asked: Asked, state: str, size: int) -> Case:
    work = _work(f"unified.{state}", size, "unified")

    def prepare() -> Run:
        if asked.device == "cpu":
            raise Unsupported(ONLY_CPU)
        if not _has(MANAGED):
            raise Unsupported("this device has no unified memory")
        memory = Managed(size)
        memory.host.fill_(1)

        def step() -> Any:
            return memory.device.sum()

        def migrating() -> Batches:
            """The host writes, untimed; then the device reads."""
            while True:
                memory.host.add_(0)
                start = time.perf_counter()
                step().item()
                yield time.perf_counter() - start, 1

        def right() -> list[Finding]:
            memory.host.fill_(2)
            total = step().item()
            good = total == size // 4 * 2
            return [
                verdict(f"{work.name}.content", good, f"the device sums what the host wrote: {total:.0f}")
            ]

        # A device that shares the host's memory need not move anything; no other reads faster than its own.
        return Run(step=step, batches=migrating if state == "migrating" else None, countable=False,
                   plain=plain_copy(torch, "cuda"), share=(0.3 if state == "resident" else 1e-4, 1.25),
                   after=right, close=memory.close, facts={"coherent": _has(COHERENT)})  # fmt: skip

    return Case(work=work, prepare=prepare)
