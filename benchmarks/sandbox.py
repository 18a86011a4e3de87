"""What the sandbox costs a build: processor time in bubblewrap and without any, in interleaved pairs.

Run it in a checkout on a quiet machine: .venv/bin/python benchmarks/sandbox.py [--rounds N] [--recipe NAME]
[--sdist PKG==VER]. A round is two builds, of ONNX about 4 min on two cores: ten take 40 min. --sdist takes a
smaller one, for which `recipes new` writes the recipe, such as --recipe uvloop --sdist uvloop==0.22.1.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import resource
import shutil
import statistics
import subprocess
import tempfile
from pathlib import Path

from overhead import BIN, HERE, TRAIN

WEAKER = ("bwrap", "unshare")
PR_SET_CHILD_SUBREAPER = 36


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
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([*command, "build", recipe, "--no-closure"], env=env, cwd=HERE, check=True)
    # bwrap may end before the first process of its namespace, which then is our child (become_subreaper).
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def become_subreaper() -> None:
    """Take in orphaned descendants: what they used counts only when somebody waits for them."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--recipe", default="onnx")
    parser.add_argument("--sdist", help="make the recipe of this source release first")
    parser.add_argument("--dir", help="where to build (default: a temporary folder)")
    asked = parser.parse_args()
    if shutil.which("bwrap") is None:
        raise SystemExit("bubblewrap is not installed")
    become_subreaper()
    with tempfile.TemporaryDirectory(dir=asked.dir) as folder:
        root = Path(folder, "root")
        root.mkdir()
        if asked.sdist:
            new = [str(BIN / "spark-build"), "--root", str(root), "-q", "recipes", "new", asked.recipe]
            subprocess.run([*new, "--sdist", asked.sdist], check=True, cwd=HERE)
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
