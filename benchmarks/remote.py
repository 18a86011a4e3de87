"""What a hit in a remote store costs beside one here: a wheel of 200 MB, in a folder as remote store.

`.venv/bin/python benchmarks/remote.py [FOLDER] [ROUNDS]` fetches it in fresh roots, in turns with a plain
copy that is synced and hashed, all in one process. FOLDER should be a tmpfs, so that no disk is measured.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from spark_build.recipes.model import Target
from spark_build.transfer import remote
from spark_build.transfer.remote import Remotes
from spark_build.wheelhouse import store, trust
from tests.helpers.exports import make_key
from tests.helpers.wheelhouse import VIEW, home_in, make_wheel, publish, put_built

SIZE = 200_000_000  # bytes: half of them random, half as code compresses


def copy_and_hash(wheel: Path, folder: Path) -> None:
    """Do what everybody must who takes a file from elsewhere."""
    folder.mkdir()
    shutil.copyfile(wheel, folder / wheel.name)
    with (folder / wheel.name).open("rb") as file:
        os.fsync(file.fileno())
        hashlib.file_digest(file, "sha256")


def cost(work: Callable[[], object]) -> tuple[float, float]:
    """Seconds, and those of processors."""
    start, busy = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - start, time.process_time() - busy


def main(folder: Path, rounds: int) -> None:
    """Print the medians."""
    house, key = home_in(folder / "house"), make_key(folder, "me")
    noise = os.urandom(SIZE // 2)
    code = (Path(sys.executable).resolve().read_bytes() * 50)[: SIZE // 2]
    built = make_wheel(folder / "dist", "big", files={"big/a.bin": noise, "big/b.bin": code})
    wheel = put_built(house.store, built)
    (folder / "lab").mkdir()
    url = f"file://{folder / 'lab'}"
    Remotes(house).push(remote.add(house.wheelhouse, "lab", url, push=True, key=key), publish(house, [wheel]))
    here = Target(name="host-cpu", summary="", platform="linux-x86_64", python=VIEW.rpartition("-")[2])
    source = store.entry_folder(house.store, wheel.key) / wheel.filename
    found: dict[str, list[tuple[float, float]]] = {"copy and hash": [], "remote hit": [], "local hit": []}
    for number in range(rounds):
        there = home_in(folder / f"there{number}")
        trust.add(there.wheelhouse, "me", folder / "me.pub")
        remote.add(there.wheelhouse, "lab", url, push=False, key=None)
        found["copy and hash"].append(cost(lambda at=folder / f"copy{number}": copy_and_hash(source, at)))
        found["remote hit"].append(cost(lambda home=there: Remotes(home).fetch(wheel.key, here)))
        found["local hit"].append(cost(lambda: store.read(house.store, wheel.key)))
        for name in ("there", "copy"):
            shutil.rmtree(folder / f"{name}{number}")
    medians = {
        name: [round(statistics.median(column), 3) for column in zip(*rows, strict=True)]
        for name, rows in found.items()
    }
    plain, hit = medians["copy and hash"], medians["remote hit"]
    ratio = [round(mine / other, 2) for mine, other in zip(hit, plain, strict=True)]
    size = source.stat().st_size
    print(json.dumps({"bytes": size, **medians, "ratio": ratio, "load": os.getloadavg()[0]}, indent=1))


if __name__ == "__main__":
    place, *more = sys.argv[1:] or [tempfile.gettempdir()]
    with tempfile.TemporaryDirectory(prefix="remote-", dir=place) as scratch:
        main(Path(scratch), int(more[0]) if more else 5)
