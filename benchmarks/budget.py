"""One memory budget over two builds at once, beside fixed job counts: memory and time in one run.

Two recipes of translation units that each need some 350 MiB to compile. Their projects insist on `ninja -j8`;
`spark-build build first second --jobs 8 --memory ...` gives them a budget that fits three jobs, after one
learning run, as on a machine that has not seen them. Beside it the same two projects under ninja alone with
fixed job counts. Run it in a checkout: .venv/bin/python benchmarks/budget.py [REPEATS] [UNITS]
It needs c++, and ninja on PATH (or its folder in NINJA).
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from spark_build.paths import locate
from spark_build.resources import governor, memory

JOBS = 8
UNITS = int(sys.argv[2]) if len(sys.argv) > 2 else 6  # of each project
ENTRIES = 400_000
NAMES = ("first", "second")
FIXED = ((1, 1), (2, 1), (2, 2), (3, 3), (4, 4), (JOBS, JOBS))  # of the two projects
TRIED = 2  # times each fixed count
DECLARED = 1024  # MiB for a job, as the recipes say before anything was measured
REST = 140  # MiB of the trees that no job has: interpreters, ninja, shells
SYSTEM = "/usr/local/bin:/usr/bin:/bin"
RULE = "rule cc\n  command = c++ -O0 -c $in -o $out\n"
PROJECT = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
BACKEND = """
import base64, hashlib, os, subprocess, zipfile
def build_wheel(folder, config_settings=None, metadata_directory=None):
    subprocess.run(["ninja", "-j@JOBS@"], check=True)
    info, name = "@NAME@-1.0.dist-info", "@NAME@-1.0-py3-none-any.whl"
    files = {f"{info}/METADATA": "Metadata-Version: 2.1\\nName: @NAME@\\nVersion: 1.0\\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n"}
    sha = lambda text: base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
    rows = [f"{path},sha256={sha(text)},{len(text)}" for path, text in files.items()]
    files[f"{info}/RECORD"] = "\\n".join([*rows, f"{info}/RECORD,,"]) + "\\n"
    with zipfile.ZipFile(os.path.join(folder, name), "w") as wheel:
        for path, text in files.items():
            wheel.writestr(path, text)
    return name
"""
RECIPE = """
name = "@NAME@"
distribution = "@NAME@"
summary = "translation units that need much memory"
kind = "pep517"
[build]
requires = []
memory_per_job_mib = @DECLARED@
core_minutes = 1
disk_mib = 200
"""
PIN = """
[components.@NAME@]
version = "1.0"
sources = [{ kind = "sdist", project = "@NAME@", filename = "@NAME@-1.0.tar.gz", sha256 = "@SHA256@" }]
"""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    seconds: float
    peak_mib: int


def filled(text: str, name: str, sha256: str = "") -> str:
    values = {"NAME": name, "SHA256": sha256, "JOBS": str(JOBS), "DECLARED": str(DECLARED)}
    for key, value in values.items():
        text = text.replace(f"@{key}@", value)
    return text


def make(work: Path) -> Path:
    """The projects as folders and as sdists; the root with their recipes."""
    root = work / "root"
    (root / "recipes/trains").mkdir(parents=True)
    (work / "links").mkdir()
    pins = 'name = "t"\nsummary = "two that need much"\n'
    for name in NAMES:
        files = {"pyproject.toml": PROJECT, "backend.py": filled(BACKEND, name)}
        for unit in range(UNITS):
            table = ",".join(f"{{{row},{row * 7 % 1000}}}" for row in range(ENTRIES + unit))
            files[f"u{unit}.cpp"] = (
                f"struct Row {{ int a; int b; }};\nconstexpr Row table[] = {{{table}}};\n"
                f"int look_up{unit}(int i) {{ return table[i].b; }}\n"
            )
        files["build.ninja"] = RULE + "".join(f"build u{unit}.o: cc u{unit}.cpp\n" for unit in range(UNITS))
        sdist = work / f"links/{name}-1.0.tar.gz"
        with tarfile.open(sdist, "w:gz", compresslevel=1) as tar:
            for file, text in files.items():
                member = tarfile.TarInfo(f"{name}-1.0/{file}")
                member.size, member.mtime = len(text), 1_700_000_000
                tar.addfile(member, io.BytesIO(text.encode()))
        with tarfile.open(sdist) as tar:
            tar.extractall(work, filter="data")
        (root / f"recipes/{name}.toml").write_text(filled(RECIPE, name))
        pins += filled(PIN, name, hashlib.sha256(sdist.read_bytes()).hexdigest())
    (root / "recipes/trains/t.toml").write_text(pins)
    return root


@contextlib.contextmanager
def measured(roots: Callable[[], list[int]], into: list[int]) -> Iterator[None]:
    """The largest sum of proportional set sizes of all processes below the roots, every 50 ms."""
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.05):
            table = memory.processes()
            children = [pid for root in roots() for pid in below(table, root)]
            into.append(sum(memory.read_tree(table, pid).memory_mib for pid in children))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def below(table: dict[int, memory.Process], root: int) -> list[int]:
    """What a process started; the command itself builds nothing."""
    return [one.pid for one in table.values() if one.parent == root]


def governed(root: Path, links: Path, budget: int) -> Outcome:
    """Both recipes through the command, from their build stages' begin to their end."""
    for name in ("build", "wheelhouse"):
        shutil.rmtree(root / name, ignore_errors=True)
    command = [str(Path(sys.executable).parent / "spark-build"), "--root", str(root), "--train", "t", "-q"]
    command += ["--target", "host-cpu", "build", *NAMES, "--jobs", str(JOBS), "--memory", f"{budget}M"]
    found = f"{links} {os.environ.get('PIP_FIND_LINKS', '')}".strip()
    env = {**os.environ, "PIP_FIND_LINKS": found, "SPARK_BUILD_CACHE": "none"}
    seen = [0]
    process = subprocess.Popen([*command, "--no-closure"], env=env, stdout=subprocess.DEVNULL)
    with measured(lambda: [process.pid], seen):
        if process.wait() != 0:
            raise SystemExit("the build failed")
    newest = max(root.glob("runs/*/events.jsonl"))
    events = [json.loads(line) for line in newest.read_text().splitlines()]
    began = [one["time"] for one in events if one["event"] == "StageStarted" and one["stage"] == "build"]
    ended = [
        one["time"] for one in events if one["event"] == "StageFinished" and one["result"]["stage"] == "build"
    ]
    span = datetime.fromisoformat(max(ended)) - datetime.fromisoformat(min(began))
    return Outcome(seconds=span.total_seconds(), peak_mib=max(seen))


def fixed(work: Path, path: str, counts: tuple[int, int]) -> Outcome:
    """Both projects under ninja alone, each with a fixed number of jobs."""
    running = []
    for name in NAMES:
        for built in (*(work / f"{name}-1.0").glob("*.o"), work / f"{name}-1.0/.ninja_log"):
            built.unlink(missing_ok=True)
    seen, mine = [0], os.getpid()
    begin = time.monotonic()
    with measured(lambda: [mine], seen):
        for name, count in zip(NAMES, counts, strict=True):
            folder = work / f"{name}-1.0"
            running.append(
                subprocess.Popen(
                    ["ninja", f"-j{count}"], cwd=folder, env={"PATH": path}, stdout=subprocess.DEVNULL
                )
            )
        if any(process.wait() != 0 for process in running):
            raise SystemExit("ninja failed")
    return Outcome(seconds=time.monotonic() - begin, peak_mib=max(seen))


def main() -> None:
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    ninja = os.environ.get("NINJA") or str(Path(shutil.which("ninja") or "ninja").parent)
    path = f"{ninja}:{SYSTEM}"
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        root, links = make(work), work / "links"
        learning = governed(root, links, 3 * DECLARED + REST)
        known = [
            governor.expected_usage(locate(str(root)), name, target="host-cpu", declared_mib=DECLARED)
            for name in NAMES
        ]
        per_job = max(one.memory_per_job_mib for one in known)
        budget = 3 * per_job + REST
        print(f"learning run: {learning.seconds:.1f} s, planned from now on: {per_job} MiB for a job")
        print(f"budget for three jobs: {budget} MiB", flush=True)
        ours: list[Outcome] = []
        others: dict[tuple[int, int], list[Outcome]] = {counts: [] for counts in FIXED}
        for repeat in range(repeats):
            ours.append(governed(root, links, budget))
            if repeat < TRIED:  # interleaved, so that the machine's moods meet both
                for counts in FIXED:
                    others[counts].append(fixed(work, path, counts))
    report(ours, others, budget)


def report(ours: list[Outcome], others: dict[tuple[int, int], list[Outcome]], budget: int) -> None:
    for counts, outcomes in others.items():
        seconds = statistics.median(one.seconds for one in outcomes)
        peak = max(one.peak_mib for one in outcomes)
        print(
            f"ninja -j{counts[0]} and -j{counts[1]}: {seconds:.1f} s, {peak} MiB, {peak / budget:.2f} of it"
        )
    within = [
        statistics.median(one.seconds for one in outcomes)
        for outcomes in others.values()
        if max(one.peak_mib for one in outcomes) <= budget
    ]
    seconds, peak = statistics.median(one.seconds for one in ours), max(one.peak_mib for one in ours)
    over = sum(one.peak_mib > budget for one in ours)
    print(f"spark-build: {seconds:.1f} s, {peak} MiB, {peak / budget:.2f} of the budget")
    print(f"over the budget in {over} of {len(ours)} runs")
    best = min(statistics.median(one.seconds for one in outcomes) for outcomes in others.values())
    print(f"time against the best fixed count: {seconds / best:.3f}", end="")
    print(f"; against the best within the budget: {seconds / min(within):.3f}" if within else "")


if __name__ == "__main__":
    main()
