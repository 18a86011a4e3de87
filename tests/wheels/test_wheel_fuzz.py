"""Bytes flipped at random: readers give facts or one typed error, in bounded time and memory.

Each reader of zips gets 200 inputs, those of libraries and of device code ten times as many; ./run-tests --soak
gives 1,000, or what SPARK_BUILD_FUZZ says. The seed is fixed.
"""

from __future__ import annotations

import gc
import io
import os
import random
import resource
import time
import warnings
from collections import Counter
from pathlib import Path

import pytest

from spark_build.errors import AuditError
from spark_build.wheels import device_code
from spark_build.wheels.audit import audit
from spark_build.wheels.elf import read_library
from spark_build.wheels.reader import content_digest, facts_and_digest
from spark_build.wheels.repair import symbol_policies, system_libraries
from spark_build.wheels.rules import AuditExpectation
from tests.helpers.corpus import library, sound
from tests.helpers.devicewheels import DATA, NATIVE_121, SM_80
from tests.helpers.fatbins import elf
from tests.helpers.wheels import PYTHON, entries_of, write_zip

COUNTS = [200, pytest.param(int(os.environ.get("SPARK_BUILD_FUZZ", "1000")), marks=pytest.mark.soak)]
SEED = 20250615
PATIENCE = 5.0  # seconds for one input; the wheel has 20 KB
GROWTH = 64 << 10  # KiB of resident memory over the whole run
INTERESTING = (0, 1, 0x7F, 0x80, 0xFF)

pytestmark = pytest.mark.parametrize("count", COUNTS)


def damaged(data: bytes, random_: random.Random) -> bytes:
    """One to eight bytes changed, sometimes a piece cut out or doubled."""
    raw = bytearray(data)
    for _ in range(random_.randint(1, 8)):
        at = random_.randrange(len(raw))
        raw[at] = random_.choice(INTERESTING) if random_.random() < 0.5 else random_.randrange(256)
    kind = random_.random()
    if kind < 0.1:
        del raw[random_.randrange(len(raw)) :]
    elif kind < 0.15:
        start = random_.randrange(len(raw))
        raw[start:start] = raw[start : start + random_.randrange(64)]
    return bytes(raw)


def look(wheel: Path, original: str) -> str:
    """What a user would see: a refusal, errors, or nothing to complain of in what is still the original."""
    try:
        facts, digest = facts_and_digest(wheel)
    except AuditError as error:
        one_line = "\n" not in error.message
        return "refused" if one_line else "torn"
    assert content_digest(wheel) == digest
    found = audit(
        facts,
        AuditExpectation(
            distribution="demo",
            version="1.0",
            platform="linux-x86_64",
            python=PYTHON,
            provided=(),
            system_libraries=system_libraries("linux-x86_64"),
            policies=symbol_policies("linux-x86_64"),
        ),
    )
    assert not any("\n" in one.message for one in found)
    if any(one.severity == "error" for one in found):
        return "error"
    return "sound" if digest == original else "deceived"


class Watch:
    """Time of each input, memory over all of them."""

    def __init__(self, count: int) -> None:
        self.count, self.start, self.slowest = count, time.monotonic(), 0.0
        self.before = self.files = 0

    def done(self, number: int) -> None:
        now = time.monotonic()
        self.slowest, self.start = max(self.slowest, now - self.start), now
        assert self.slowest < PATIENCE, f"input {number} took {self.slowest:.1f} s"
        if number == self.count // 10:  # caches are warm
            self.before, self.files = self._memory(), len([*Path("/proc/self/fd").iterdir()])

    def end(self) -> None:
        assert self._memory() - self.before < GROWTH
        assert len([*Path("/proc/self/fd").iterdir()]) <= self.files + 1

    @staticmethod
    def _memory() -> int:
        gc.collect()
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


def test_a_damaged_library_is_read_or_told(workshop: Path, count: int) -> None:
    data, random_, watch = library(workshop), random.Random(SEED), Watch(10 * count)
    seen: Counter[str] = Counter()
    for number in range(10 * count):
        # The header and the segment table, or a piece anywhere: tables, names, versions.
        start = 0 if random_.random() < 0.3 else random_.randrange(len(data))
        end = start + (1024 if random_.random() < 0.5 else 64)
        some = data[:start] + damaged(data[start:end], random_) + data[end:]
        found = read_library("a.so", io.BytesIO(some))
        seen[found.machine] += 1
        watch.done(number)
    watch.end()
    print(dict(seen.most_common(5)), f"slowest {watch.slowest:.3f} s")
    assert seen["unreadable"] > count // 2
    assert seen["x86_64"] + seen["aarch64"] > count // 2


def test_damaged_device_code_is_listed_or_told(workshop: Path, count: int) -> None:
    """What nvcc made, alone, in objects and in a library with both kinds of sections."""
    made = [
        path.read_bytes() for path in sorted(DATA.iterdir()) if path.suffix in (".fatbin", ".o", ".cubin")
    ]
    whole = [*made, elf([(".nv_fatbin", NATIVE_121), ("__nv_relfatbin", SM_80)])]
    random_, watch = random.Random(SEED + 3), Watch(10 * count)
    seen: Counter[str] = Counter()
    for number in range(10 * count):
        data = random_.choice(whole)
        # Headers stand before each piece of code, and tables at the end.
        start = random_.choice((0, 0, random_.randrange(len(data)), max(0, len(data) - 1024)))
        end = start + random_.choice((64, 256, 1024))
        some = data[:start] + damaged(data[start:end], random_) + data[end:]
        code = device_code.read_or_tell(io.BytesIO(some), "a.so")
        assert not any("\n" in problem for problem in code.problems)
        seen["told" if code.problems else "empty" if code.empty else "listed"] += 1
        watch.done(number)
    watch.end()
    print(dict(seen), f"slowest {watch.slowest:.3f} s")
    assert seen["told"] > count
    assert seen["listed"] > count


def test_a_damaged_zip_is_read_or_refused(workshop: Path, count: int) -> None:
    wheel = sound(workshop / "zip", workshop)
    original = content_digest(wheel)
    data, random_, watch = wheel.read_bytes(), random.Random(SEED + 1), Watch(count)
    # Most bytes are compressed code, which all look alike: take the tables as often as everything else.
    directory = data.find(b"PK\x01\x02")
    seen: Counter[str] = Counter()
    for number in range(count):
        if random_.random() < 0.5:
            wheel.write_bytes(data[:directory] + damaged(data[directory:], random_))
        else:
            wheel.write_bytes(damaged(data, random_))
        seen[look(wheel, original)] += 1
        watch.done(number)
    watch.end()
    print(dict(seen), f"slowest {watch.slowest:.3f} s")
    assert not seen["torn"]
    assert not seen["deceived"]
    assert seen["refused"] > count // 2


def test_a_damaged_file_in_a_zip_is_told(workshop: Path, count: int) -> None:
    wheel = sound(workshop / "members", workshop)
    original = content_digest(wheel)
    entries, random_, watch = dict(entries_of(wheel)), random.Random(SEED + 2), Watch(count)
    seen: Counter[str] = Counter()
    for number in range(count):
        name = random_.choice(list(entries))
        # Names, too: what RECORD lists and what the zip holds.
        changed = {
            (damaged(key.encode(), random_).decode(errors="replace").replace("\0", "") or "x")
            if key == name and random_.random() < 0.2
            else key: damaged(data, random_) if key == name else data
            for key, data in entries.items()
        }
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            write_zip(wheel, list(changed.items()), compression=0)
        seen[look(wheel, original)] += 1
        watch.done(number)
    watch.end()
    print(dict(seen), f"slowest {watch.slowest:.3f} s")
    assert not seen["torn"]
    assert not seen["deceived"]
    assert seen["sound"] < count // 50
