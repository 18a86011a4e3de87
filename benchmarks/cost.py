"""What the tool itself costs, beside the nearest bare thing, interleaved in one run.

Run it in a checkout in which `./spark-build all` has run: .venv/bin/python benchmarks/cost.py
"""

from __future__ import annotations

import hashlib
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Sequence
from pathlib import Path

from spark_build.wheelhouse import store

HERE = Path(__file__).resolve().parents[1]
BIN = Path(sys.executable).parent
ROUNDS = 10


def seconds(command: Sequence[str]) -> float:
    begin = time.perf_counter()
    subprocess.run(command, cwd=HERE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    return time.perf_counter() - begin


def fill(root: Path, count: int) -> None:
    """Put so many small wheels into a store."""
    for number in range(count):
        name, key = f"filler{number}", hashlib.sha256(str(number).encode()).hexdigest()
        wheel = root / f"{name}-1.0-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr(f"{name}.py", "")
            archive.writestr(f"{name}-1.0.dist-info/METADATA", f"Name: {name}\nVersion: 1.0\n")
        described = {
            "name": name,
            "version": "1.0",
            "origin": "built",
            "recipe": name,
            "requires": [],
            "content_digest": key,
        }
        papers = {"key.json": json.dumps({"key": key, "inputs": {}}).encode()}
        store.commit(root / "store", key=key, wheel=wheel, prefix=None, described=described, papers=papers)
        wheel.unlink()


def compare(name: str, ours: Sequence[str], bare_name: str, bare: Sequence[str]) -> None:
    pairs = [(seconds(ours), seconds(bare)) for _ in range(ROUNDS)]
    mine, other = (statistics.median(column) for column in zip(*pairs, strict=True))
    print(
        f"{name}: {mine * 1000:.0f} ms; {bare_name}: {other * 1000:.0f} ms; "
        f"{(mine - other) * 1000:+.0f} ms, ratio {mine / other:.2f}"
    )


def main() -> None:
    direct = str(BIN / "spark-build")
    bare = [str(BIN / "python"), "-c", "pass"]
    launcher = "./spark-build"
    compare("spark-build --help", [direct, "--help"], "bare interpreter", bare)
    compare("./spark-build --help", [launcher, "--help"], "without the launcher", [direct, "--help"])
    compare("spark-build all, nothing to do", [direct, "all"], "bare interpreter", bare)
    found = subprocess.check_output([direct, "wheelhouse", "path"], cwd=HERE, text=True).strip()
    with tempfile.TemporaryDirectory(dir=HERE / "wheelhouse") as folder:
        root = Path(folder, "root")
        shutil.copytree(
            HERE / "wheelhouse", root / "wheelhouse", symlinks=True, ignore=lambda *_: {Path(folder).name}
        )
        fill(root / "wheelhouse", 1000)
        full = [direct, "--root", str(root), "all"]
        compare("all with 1,000 more wheels in the store", full, "without them", [direct, "all"])
        export = [direct, "wheelhouse", "export", f"{folder}/a.tar"]
        tar = ["sh", "-c", f"tar chf '{folder}/b.tar' -C '{found}' . && sync '{folder}/b.tar'"]
        compare("wheelhouse export", export, "tar and sync", tar)


if __name__ == "__main__":
    main()
