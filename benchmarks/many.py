"""A wheelhouse of very many small wheels: how long each command takes, and how that grows.

Run it in a checkout: .venv/bin/python benchmarks/many.py [COUNT ...]   (default: 100 1000 10000)
Makes real wheels of a kilobyte as store entries, publishes them all, and then times, in one process:
with one generation: reading it, the shallow check, the whole commands `list` and `check`, what the next build
asks of the store (the next serial, without its index and with it); then publishing one more, what changed
against the one before, rolling back; with six generations `generations`, the check, and a collection of one.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from spark_build.paths import locate
from spark_build.wheelhouse import generations, store
from spark_build.wheelhouse.fsck import check
from spark_build.wheelhouse.gc import collect, generation_changes
from spark_build.wheelhouse.store import RECORD, entry_folder
from spark_build.wheels.model import StoredWheel

MOMENT = (2020, 1, 1, 0, 0, 0)
VIEW = f"host-cpu-t-cp{sys.version_info.major}{sys.version_info.minor}"
ROUNDS = 5


def make_entry(store: Path, number: int) -> StoredWheel:
    """A public wheel in the store, without the fsyncs that would take minutes here."""
    name, version = f"small{number}", "1.0"
    filename, info = f"{name}-{version}-py3-none-any.whl", f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": f"VALUE = {number}\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: many\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    rows = []
    for path, text in files.items():
        sha = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        rows.append(f"{path},sha256={sha},{len(text)}\n")
    files[f"{info}/RECORD"] = "".join([*rows, f"{info}/RECORD,,\n"])
    made = store / "making.whl"
    with zipfile.ZipFile(made, "w") as archive:
        for path, text in files.items():
            archive.writestr(zipfile.ZipInfo(path, MOMENT), text)
    content = made.read_bytes()
    key = hashlib.sha256(content).hexdigest()
    folder = entry_folder(store, key)
    folder.mkdir(parents=True)
    made.rename(folder / filename)
    wheel = StoredWheel(
        name=name, version=version, filename=filename, sha256=key, size=len(content), key=key, origin="public"
    )
    record = {
        "schema": 1,
        "name": name,
        "version": version,
        "filename": filename,
        "sha256": key,
        "size": len(content),
        "origin": "public",
        "requires": [],
        "recipe": "",
        "content_digest": key,
        "prefix": False,
        "papers": {},
        "committed": "2026-01-01T00:00:00+00:00",
    }
    (folder / RECORD).write_text(json.dumps(record, indent=1))
    return wheel


@dataclass(frozen=True)
class Times:
    """Seconds of the fastest of a few rounds: other work on the machine only makes it slower."""

    wall: float
    processor: float


def clock() -> tuple[float, float]:
    """Now, and what this process and its children have used of processors."""
    used = os.times()
    return time.perf_counter(), used.user + used.system + used.children_user + used.children_system


def fastest(work: Callable[[], object], rounds: int = ROUNDS) -> Times:
    """Wall and processor time, each at its best."""
    walls, processors = [], []
    for _ in range(rounds):
        (wall, processor) = clock()
        work()
        now = clock()
        walls.append(now[0] - wall)
        processors.append(now[1] - processor)
    return Times(min(walls), min(processors))


def command(root: Path, *words: str) -> Callable[[], object]:
    options = ["--root", str(root), "--target", "host-cpu", "--train", "t", "--json"]
    line = [sys.executable, "-m", "spark_build", *options, "wheelhouse", *words]
    return lambda: subprocess.run(line, check=True, capture_output=True, timeout=600)


def make_train(root: Path) -> None:
    """The least that a command line needs to know of recipes."""
    (root / "recipes" / "trains").mkdir(parents=True)
    (root / "recipes" / "none.toml").write_text(
        'name = "none"\ndistribution = "none"\nsummary = "none"\nkind = "pep517"\n'
        "[build]\nmemory_per_job_mib = 1\ncore_minutes = 1\ndisk_mib = 1\n"
    )
    (root / "recipes" / "trains" / "t.toml").write_text('name = "t"\nsummary = "none"\n[components]\n')


def measure(root: Path, count: int) -> dict[str, Times]:
    home = locate(str(root))
    home.store.mkdir(parents=True)
    make_train(root)
    wheels = [make_entry(home.store, number) for number in range(count + ROUNDS)]
    view = home.views / VIEW
    generations.publish(view, home.store, lambda _: (wheels[:count], ""))
    more = iter(wheels[count:])

    def publish() -> None:
        generations.publish(view, home.store, lambda old: ([*(old.wheels if old else ()), next(more)], ""))

    def compare() -> None:
        now, before = (generations.read(view / "generations" / str(number)) for number in (2, 1))
        assert len(generation_changes(before.wheels, now.wheels)) == 1

    def whole() -> None:
        assert check(home, deep=False, repair=False, told=lambda _done, _total: None) == ()

    def gc() -> None:
        folder = view / "generations" / str(min(generations.numbers(view)))
        os.utime(folder, (0, 0))
        done = collect(home, keep=1, older_than=3600, grace=0, dry_run=False)
        assert len(done.taken) == 1

    def first() -> None:
        (home.store / store.INDEX).unlink(missing_ok=True)
        store.next_serial(home.store, "small1", "1.0")

    return {
        "read current": fastest(lambda: generations.current(view)),
        "check": fastest(whole),
        "$ list": fastest(command(root, "list")),
        "$ check": fastest(command(root, "check")),
        "serial, no index": fastest(first),
        "serial": fastest(lambda: store.next_serial(home.store, "small1", "1.0")),
        "publish one more": fastest(publish),
        "changes": fastest(compare),
        "rollback": fastest(lambda: generations.rollback(view, None), 1),
        "$ generations (6)": fastest(command(root, "generations")),
        "check (6)": fastest(whole),
        "gc of one": fastest(gc, 3),
    }


def main(counts: list[int]) -> None:
    columns = []
    for count in counts:
        with tempfile.TemporaryDirectory() as folder:
            columns.append(measure(Path(folder), count))
    heads = [f"{count:>9} {'(cpu)':>8}" for count in counts]
    print("seconds".ljust(18), *heads)
    for name in columns[0]:
        cells = [f"{column[name].wall:9.3f} {column[name].processor:8.3f}" for column in columns]
        print(name.ljust(18), *cells)


if __name__ == "__main__":
    main([int(word) for word in sys.argv[1:]] or [100, 1000, 10000])
