"""What a hit in a remote store costs beside one here: a wheel of 200 MB, in a folder as remote store.

`.venv/bin/python benchmarks/remote.py [FOLDER] [ROUNDS]` fetches it in fresh roots, in turns with a plain
copy that is synced and hashed, all in one process; and with unpacking it, which the audit after a fetch does.
FOLDER should be a tmpfs, so that no disk is measured.
"""

from __future__ import annotations

import hashlib
import json
import os
import resource
import shutil
import statistics
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from spark_build.recipes.model import Target
from spark_build.transfer import remote
from spark_build.transfer.remote import Remotes
from spark_build.wheelhouse import store, trust
from spark_build.wheels.reader import facts_and_digest
from tests.helpers.exports import make_key
from tests.helpers.wheelhouse import VIEW, home_in, make_wheel, publish, put_built

NOISE = 100_000_000  # bytes that do not compress: half of the wheel
TEXT = 480_000_000  # bytes of Python's own sources, again and again: the other half


def copy_and_hash(wheel: Path, folder: Path) -> None:
    """Do what everybody must who takes a file from elsewhere."""
    folder.mkdir()
    shutil.copyfile(wheel, folder / wheel.name)
    with (folder / wheel.name).open("rb") as file:
        os.fsync(file.fileno())
        hashlib.file_digest(file, "sha256")


def cost(work: Callable[[], object]) -> tuple[float, float]:
    """Seconds, and those of processors, of children too."""

    def busy() -> float:
        used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return sum(one.ru_utime + one.ru_stime for one in used)

    start, before = time.perf_counter(), busy()
    work()
    return time.perf_counter() - start, busy() - before


def main(folder: Path, rounds: int) -> None:
    """Print the medians."""
    house, key = home_in(folder / "house"), make_key(folder, "me")
    code = b"".join(path.read_bytes() for path in sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py")))
    files = {"big/a.bin": os.urandom(NOISE), "big/b.bin": (code * (TEXT // len(code) + 1))[:TEXT]}
    built = make_wheel(folder / "dist", "big", files=files)
    wheel = put_built(house.store, built)
    (folder / "lab").mkdir()
    url = f"file://{folder / 'lab'}"
    Remotes(house).push(remote.add(house.wheelhouse, "lab", url, push=True, key=key), publish(house, [wheel]))
    here = Target(name="host-cpu", summary="", platform="linux-x86_64", python=VIEW.rpartition("-")[2])
    source = store.entry_folder(house.store, wheel.key) / wheel.filename
    found: dict[str, list[tuple[float, float]]] = {
        "copy and hash": [],
        "remote hit": [],
        "local hit": [],
        "unpack": [],
    }
    for number in range(rounds):
        there = home_in(folder / f"there{number}")
        trust.add(there.wheelhouse, "me", folder / "me.pub")
        remote.add(there.wheelhouse, "lab", url, push=False, key=None)
        found["copy and hash"].append(cost(partial(copy_and_hash, source, folder / f"copy{number}")))
        fetch = partial(Remotes(there).fetch, wheel.key, here, audited=True)
        found["remote hit"].append(cost(fetch))
        assert store.imports_of(there.store, wheel.key)
        found["local hit"].append(cost(lambda: store.read(house.store, wheel.key)))
        found["unpack"].append(cost(lambda: facts_and_digest(source)))
        for name in ("there", "copy"):
            shutil.rmtree(folder / f"{name}{number}")
    medians = {
        name: [round(statistics.median(column), 3) for column in zip(*rows, strict=True)]
        for name, rows in found.items()
    }
    ratios = [
        [round(mine / other, 2) for mine, other in zip(hit, plain, strict=True)]
        for hit, plain in zip(found["remote hit"], found["copy and hash"], strict=True)
    ]
    middle = [statistics.median(column) for column in zip(*ratios, strict=True)]
    size = source.stat().st_size
    told = {"bytes": size, **medians, "ratio": middle, "ratios": ratios, "load": os.getloadavg()[0]}
    print(json.dumps(told, indent=1))


if __name__ == "__main__":
    place, *more = sys.argv[1:] or [tempfile.gettempdir()]
    with tempfile.TemporaryDirectory(prefix="remote-", dir=place) as scratch:
        main(Path(scratch), int(more[0]) if more else 5)
