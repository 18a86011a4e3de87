"""What looking into a wheel costs, beside cuobjdump and unzip, interleaved in one run.

The wheel is NVIDIA's cuSPARSELt, whose one library has 274 MB. pip downloads it, and triton for its
cuobjdump, unless both are given. Run it: .venv/bin/python benchmarks/inspect_cost.py [WHEEL CUOBJDUMP]
"""

from __future__ import annotations

import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

from spark_build.wheels import device_code

ROUNDS = 5
VENDOR = ("nvidia-cusparselt-cu13==0.8.0", "--platform", "manylinux2014_aarch64")


def downloaded(folder: Path, *requirement: str) -> Path:
    pip = [sys.executable, "-m", "pip", "-q", "download", "--no-deps", "--only-binary", ":all:"]
    subprocess.run([*pip, "--dest", str(folder), *requirement], check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def wall(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def quietly(command: Sequence[str]) -> None:
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)


def anonymous(command: Sequence[str]) -> int:
    """The most anonymous memory that a command has at any of many looks, in MiB."""
    process, most = subprocess.Popen(command, stdout=subprocess.DEVNULL), 0
    done = threading.Event()

    def look() -> None:
        nonlocal most
        status = Path(f"/proc/{process.pid}/status")
        while not done.is_set():
            found = re.search(r"RssAnon:\s+(\d+)", status.read_text())
            most = max(most, int(found[1]) if found else 0)
            time.sleep(0.002)

    watcher = threading.Thread(target=look)
    watcher.start()
    # The process is waited for only when nobody looks any more: until then it is a zombie with a status.
    while not re.search(r"State:\s+Z", Path(f"/proc/{process.pid}/status").read_text()):
        time.sleep(0.01)
    done.set()
    watcher.join()
    process.wait()
    return most >> 10


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        given = [Path(argument) for argument in sys.argv[1:]]
        wheel = given[0] if given else downloaded(Path(folder, "wheel"), *VENDOR)
        with zipfile.ZipFile(wheel) as archive:
            name = max(archive.infolist(), key=lambda info: info.file_size).filename
            library = Path(archive.extract(name, folder))
        if given:
            cuobjdump = given[1]
        else:
            with zipfile.ZipFile(downloaded(Path(folder, "triton"), "triton")) as archive:
                cuobjdump = Path(archive.extract("triton/backends/nvidia/bin/cuobjdump", folder))
            cuobjdump.chmod(0o755)

        def listings() -> None:
            for option in (device_code.LIST_ELF, device_code.LIST_PTX):
                quietly([str(cuobjdump), option, str(library)])

        pairs = [(wall(lambda: device_code.read_library(library)), wall(listings)) for _ in range(ROUNDS)]
        ours, theirs = (statistics.median(column) for column in zip(*pairs, strict=True))
        print(f"a library of {library.stat().st_size / 1e6:.0f} MB: {ours:.3f} s")
        print(f"cuobjdump's two listings: {theirs:.2f} s, {theirs / ours:.1f} times as long")
        same = not device_code.cross_check(library, cuobjdump)
        print(f"both list the same: {'yes' if same else 'NO'}")
        inspect = [sys.executable, "-m", "spark_build", "wheelhouse", "inspect", str(wheel)]
        unzip = ["unzip", "-qo", str(wheel), "-d", f"{folder}/out"]
        pairs = [(wall(lambda: quietly(inspect)), wall(lambda: quietly(unzip))) for _ in range(ROUNDS)]
        ours, theirs = (statistics.median(column) for column in zip(*pairs, strict=True))
        print(f"inspect: {ours:.2f} s; unzip: {theirs:.2f} s; ratio {ours / theirs:.2f}")
        print(f"anonymous memory of inspect: {anonymous(inspect)} MiB at most")


if __name__ == "__main__":
    main()
