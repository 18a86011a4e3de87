"""What the engine costs: ONNX through it beside the same steps by hand, interleaved; then with a warm cache.

By hand: unpack, venv, pip install of the recipe's pins, the project's own backend with the recipe's
variables, auditwheel repair. Run it in a checkout: .venv/bin/python benchmarks/overhead.py
It takes about 4 min a round on two cores, and once 3 min for the cache.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[1]
BIN = Path(sys.executable).parent
TRAIN = "2.13"


@dataclass(frozen=True, kw_only=True)
class Times:
    """Seconds of the whole way to a repaired wheel, and of the backend's part of it."""

    total: float
    build: float
    cache: str = ""


def engine(root: Path, cache: str) -> Times:
    """A build from verified sources on; what is there of an earlier one goes first."""
    for name in ("wheelhouse", "build"):
        shutil.rmtree(root / name, ignore_errors=True)
    command = [str(BIN / "spark-build"), "--root", str(root), "--target", "host-cpu", "--train", TRAIN]
    env = {**os.environ, "SPARK_BUILD_CACHE": cache}
    begin = time.perf_counter()
    said = subprocess.check_output(
        [*command, "--json", "-q", "build", "onnx", "--no-closure"], env=env, cwd=HERE, text=True
    )
    total = time.perf_counter() - begin
    (result,) = [row for row in json.loads(said)["results"] if row["recipe"] == "onnx"]
    newest = max(root.glob("runs/*/events.jsonl"))
    stages = {
        event["result"]["stage"]: event["result"]["seconds"]
        for event in map(json.loads, newest.read_text().splitlines())
        if event["event"] == "StageFinished"
    }
    return Times(total=total, build=stages["build"], cache=result.get("cache") or "")


def quietly(command: list[str], env: dict[str, str] | None = None) -> None:
    subprocess.run(command, env=env, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def by_hand(sdist: Path, work: Path, recipe: dict[str, Any], version: str) -> Times:
    """The same with the same tools."""
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    begin = time.perf_counter()
    with tarfile.open(sdist) as tar:
        tar.extractall(work, filter="data")
    source = work / f"onnx-{version}"
    newest = int(max(path.lstat().st_mtime for path in source.rglob("*")))
    quietly([sys.executable, "-m", "venv", "--without-pip", str(work / "env")])
    python = work / "env/bin/python"
    pins = recipe["build"]["requires"]
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-compile"]
    quietly([*pip, "--only-binary=:all:", "--no-deps", *pins])
    find = [str(python), "-m", "pybind11", "--cmakedir"]
    values = {"python": python, "pybind11_cmake_dir": subprocess.check_output(find, text=True).strip()}
    env = {
        "PATH": f"{python.parent}:/usr/local/bin:/usr/bin:/bin",
        "HOME": str(work),
        "SOURCE_DATE_EPOCH": str(newest),
        "CMAKE_GENERATOR": "Ninja",
        "MAX_JOBS": str(os.cpu_count()),
        "CMAKE_ARGS": recipe["build"]["env"]["CMAKE_ARGS"]["value"].format(**values),
    }
    build = [str(python), "-m", "build", "--wheel", "--no-isolation", "--outdir", str(work / "dist")]
    started = time.perf_counter()
    quietly([*build, str(source)], env)
    built = time.perf_counter() - started
    (wheel,) = (work / "dist").glob("*.whl")
    repair = [sys.executable, "-m", "auditwheel", "repair", "-w", str(work / "out"), str(wheel)]
    quietly(repair, {**env, "PATH": f"{BIN}:{env['PATH']}"})
    return Times(total=time.perf_counter() - begin, build=built)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dir", help="where to build (default: a temporary folder)")
    parser.add_argument("--part", choices=("hand", "cache", "both"), default="both")
    asked = parser.parse_args()
    recipe = tomllib.loads((HERE / "recipes/onnx.toml").read_text())
    train = tomllib.loads((HERE / f"recipes/trains/{TRAIN}.toml").read_text())
    version = train["components"]["onnx"]["version"]
    with tempfile.TemporaryDirectory(dir=asked.dir) as folder:
        root, work = Path(folder, "root"), Path(folder, "hand")
        root.mkdir()
        fetch = ["build", "onnx", "--stop-after", "fetch"]
        command = [str(BIN / "spark-build"), "--root", str(root), "--target", "host-cpu", "--train", TRAIN]
        subprocess.run([*command, "-q", *fetch], check=True, cwd=HERE, stdout=subprocess.DEVNULL)
        (sdist,) = root.glob(f"sources/*/*/onnx-{version}.tar.gz")
        if asked.part != "cache":
            beside_hand(root, lambda: by_hand(sdist, work, recipe, version), asked.rounds)
        if asked.part != "hand":
            with_cache(root, asked.rounds)


def beside_hand(root: Path, hand: Callable[[], Times], rounds: int) -> None:
    ours, theirs = [], []
    for number in range(rounds):
        for name in ("engine", "hand") if number % 2 else ("hand", "engine"):
            if name == "engine":
                ours.append(engine(root, "none"))
            else:
                theirs.append(hand())
    show("engine, no compiler cache", ours)
    show("by hand", theirs)
    compare("engine against by hand", ours, theirs)


def with_cache(root: Path, rounds: int) -> None:
    cold = engine(root, "ccache")
    warm = [engine(root, "ccache") for _ in range(rounds)]
    show("engine, empty ccache", [cold])
    show("engine, warm ccache", warm)
    compare("warm against cold", warm, [cold])


def show(name: str, times: list[Times]) -> None:
    total, build = (
        statistics.median(one.total for one in times),
        statistics.median(one.build for one in times),
    )
    spread = f"{min(one.total for one in times):.1f} to {max(one.total for one in times):.1f}"
    print(f"{name}: {total:.1f} s in all ({spread}), {build:.1f} s of it in the backend  {times[-1].cache}")


def compare(name: str, ours: list[Times], theirs: list[Times]) -> None:
    total = statistics.median(one.total for one in ours) / statistics.median(one.total for one in theirs)
    build = statistics.median(one.build for one in ours) / statistics.median(one.build for one in theirs)
    print(f"{name}: {total:.3f} in all, {build:.3f} in the backend", flush=True)


if __name__ == "__main__":
    main()
