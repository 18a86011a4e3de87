"""What the sandbox costs a build: processor time in bubblewrap and without any, in interleaved pairs.

Run it in a checkout on a quiet machine: .venv/bin/python benchmarks/sandbox.py [--rounds N] [--recipe NAME]
A round is two builds, of ONNX about 4 min on two cores: ten take 40 min.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import tempfile
from pathlib import Path

from overhead import BIN, HERE, TRAIN

WEAKER = ("bwrap", "unshare")


def path_without(names: tuple[str, ...], folder: Path) -> str:
    """Return a PATH with all that is on ours but these programs."""
    folder.mkdir()
    for place in reversed(os.get_exec_path()):
        for program in Path(place).glob("*"):
            (folder / program.name).unlink(missing_ok=True)
            if program.name not in names:
                (folder / program.name).symlink_to(program)
    return str(folder)


def processor(root: Path, recipe: str, env: dict[str, str]) -> float:
    """Return the seconds of processors of one build from fetched sources, without a compiler cache."""
    for name in ("wheelhouse", "build"):
        shutil.rmtree(root / name, ignore_errors=True)
    command = [str(BIN / "spark-build"), "--root", str(root), "--target", "host-cpu", "--train", TRAIN, "-q"]
    with subprocess.Popen([*command, "build", recipe, "--no-closure"], env=env, cwd=HERE) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"the build failed: exit code {process.returncode}")
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--recipe", default="onnx")
    parser.add_argument("--dir", help="where to build (default: a temporary folder)")
    asked = parser.parse_args()
    if shutil.which("bwrap") is None:
        raise SystemExit("bubblewrap is not installed")
    with tempfile.TemporaryDirectory(dir=asked.dir) as folder:
        root = Path(folder, "root")
        root.mkdir()
        boxed = {**os.environ, "SPARK_BUILD_CACHE": "none"}
        bare = {**boxed, "PATH": path_without(WEAKER, Path(folder, "bin"))}
        processor(root, asked.recipe, boxed)  # fetches, and warms the disk's cache
        ratios = []
        for number in range(asked.rounds):
            pair = [
                (box, processor(root, asked.recipe, box))
                for box in ((boxed, bare), (bare, boxed))[number % 2]
            ]
            inside, outside = (next(cost for box, cost in pair if box is env) for env in (boxed, bare))
            ratios.append(inside / outside)
            print(f"{inside:.1f} s in the sandbox, {outside:.1f} s without: {ratios[-1]:.4f}", flush=True)
        spread = f"{min(ratios):.4f} to {max(ratios):.4f}"
        print(f"median of {len(ratios)} pairs: {statistics.median(ratios):.4f} ({spread})")


if __name__ == "__main__":
    main()
