"""kill -9 of the command or of a compiler at random moments of a real ONNX build, then go on.

Run it in a checkout: .venv/bin/python benchmarks/kills.py [KILLS] [SEED]
Prints after how many compile steps each kill came, all compile steps against those of one clean build,
whether the wheel is the same, and how much of the machine was left running.
"""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from spark_build.resources import memory

HERE = Path(__file__).resolve().parents[1]
BIN = Path(sys.executable).parent
STEP = re.compile(r"^\[(\d+)/(\d+)\] ", re.MULTILINE)
PAUSE = (0.3, 6.0)  # seconds of compiling between two kills


def command(root: Path) -> list[str]:
    shared = ["--root", str(root), "--target", "host-cpu", "--train", "2.13", "-q"]
    return [str(BIN / "spark-build"), *shared, "build", "onnx", "--no-closure"]


def log_of(root: Path) -> Path | None:
    return next((path for path in root.glob("build/onnx/*/build.log")), None)


def steps(root: Path) -> int:
    log = log_of(root)
    return len(STEP.findall(log.read_text(errors="replace"))) if log else 0


def below(pid: int) -> list[memory.Process]:
    table = memory.processes()
    found = [table[pid]] if pid in table else []
    for one in found:
        found.extend(process for process in table.values() if process.parent == one.pid)
    return found


def kill_once(root: Path, moment: random.Random, victim: str) -> tuple[bool, str]:
    """One attempt that is hit: (did it end by itself before?, what was done)."""
    before = steps(root)
    process = subprocess.Popen(command(root), cwd=HERE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    while process.poll() is None and steps(root) == before:
        time.sleep(0.02)
    until = time.monotonic() + moment.uniform(*PAUSE)
    while process.poll() is None and time.monotonic() < until:
        time.sleep(0.02)
    if process.poll() is not None:
        return True, "it was faster"
    tree = below(process.pid)
    compilers = [one for one in tree if one.name == "cc1plus"]
    if victim == "compiler" and compilers:
        subprocess.run(["kill", "-9", str(moment.choice(compilers).pid)], check=False)
    else:
        victim = "command"
        process.kill()
    process.wait()
    end = time.monotonic() + 5
    others = [one for one in tree if one.pid != process.pid]
    while (alive := still(others)) and time.monotonic() < end:
        time.sleep(0.05)
    return (
        False,
        f"{victim} killed after {steps(root)} steps, exit code {process.returncode}, {alive} left running",
    )


def still(processes: Sequence[memory.Process]) -> int:
    found = (memory.process_of(one.pid) for one in processes)
    return sum(
        now is not None and now.started == one.started for now, one in zip(found, processes, strict=True)
    )


def digest(root: Path) -> str:
    (record,) = root.glob("wheelhouse/store/*/*/record.json")
    return str(json.loads(record.read_text())["content_digest"])


def stored_steps(root: Path) -> int:
    (log,) = root.glob("wheelhouse/store/*/*/build.log")
    return len(STEP.findall(log.read_text(errors="replace")))


def main() -> None:
    kills = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    moment = random.Random(int(sys.argv[2]) if len(sys.argv) > 2 else 1)
    with tempfile.TemporaryDirectory() as folder:
        clean, hit = Path(folder, "clean"), Path(folder, "hit")
        for root in (clean, hit):
            root.mkdir()
        subprocess.run(command(clean), cwd=HERE, check=True, stdout=subprocess.DEVNULL)
        one = stored_steps(clean)
        print(f"clean build: {one} compile steps, content {digest(clean)[:12]}", flush=True)
        done = 0
        while done < kills:
            ended, said = kill_once(hit, moment, moment.choice(["command", "compiler"]))
            if ended:
                print(f"ended after {done} kills: {said}")
                break
            done += 1
            print(f"{done}: {said}", flush=True)
        subprocess.run(command(hit), cwd=HERE, check=True, stdout=subprocess.DEVNULL)
        every = stored_steps(hit)
        print(
            f"after {done} kills: {every} compile steps in all attempts, {every / one:.3f} of one clean build"
        )
        print(f"content {digest(hit)[:12]}, {'the same' if digest(hit) == digest(clean) else 'NOT THE SAME'}")


if __name__ == "__main__":
    main()
