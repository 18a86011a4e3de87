"""What a process holds by itself, without asking the kernel at every sample."""

from __future__ import annotations

import os

import pytest

from spark_build.resources import memory
from spark_build.resources.memory import Process, Shares, process_of

MIB = 1024  # in KiB


def process(resident_mib: int, *, pid: int = 7, started: int = 1) -> Process:
    return Process(pid=pid, parent=1, started=started, name="cc1plus", resident_kib=resident_mib * MIB)


class Kernel:
    """Half of each process is shared; counts how often it is asked."""

    def __init__(self) -> None:
        self.now = 0.0
        self.asked: list[int] = []

    def proportional(self, asked: Process) -> int:
        self.asked.append(asked.resident_kib // MIB)
        return asked.resident_kib // 2


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    kernel = Kernel()
    monkeypatch.setattr(memory, "_proportional_kib", kernel.proportional)
    return kernel


def test_it_is_asked_once_a_second_and_when_the_size_moved(kernel: Kernel) -> None:
    shares = Shares(clock=lambda: kernel.now)
    samples = [(0.0, 400), (0.2, 400), (0.4, 440), (0.6, 520), (0.8, 500), (1.7, 500), (1.8, 300)]
    found = []
    for kernel.now, resident in samples:
        found.append(shares.of([process(resident)])[7] // MIB)
    assert kernel.asked == [400, 520, 500, 300]
    assert found == [200, 200, 240, 260, 260, 250, 150]


def test_small_ones_are_taken_as_they_are(kernel: Kernel) -> None:
    assert Shares().of([process(15)]) == {7: 15 * MIB}
    assert kernel.asked == []


def test_another_process_with_the_same_id_is_another(kernel: Kernel) -> None:
    shares = Shares(clock=lambda: kernel.now)
    shares.of([process(400)])
    shares.of([process(400, started=2)])
    assert kernel.asked == [400, 400]


def test_who_is_gone_is_forgotten(kernel: Kernel) -> None:
    shares = Shares(clock=lambda: kernel.now)
    shares.of([process(400)])
    shares.of([])
    shares.of([process(400)])
    assert kernel.asked == [400, 400]


def test_the_kernel_is_read() -> None:
    held = bytearray(os.urandom(1)) * (64 << 20)
    me = process_of(os.getpid())
    assert me is not None
    (share,) = Shares().of([me]).values()
    assert len(held) // 1024 <= share <= me.resident_kib
