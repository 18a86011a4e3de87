"""One memory budget over two builds at once, beside fixed job counts: memory and time in one run.

Two projects of translation units that each need some 350 MiB to compile are built by ninja, each told
to run 8 jobs, under a budget that fits three. First one learning run, as on a machine that has not seen
them. Run it in a checkout: .venv/bin/python bench/peers/budget.py [REPEATS]
It needs c++ and ninja 1.13 or later on PATH (or its folder in NINJA).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from spark_build.core.budget import learned
from spark_build.host import memory
from spark_build.host.governor import Governor

JOBS = 8
UNITS = 6  # of each project
ENTRIES = 400_000
FIXED = ((1, 1), (2, 1), (2, 2), (3, 3), (4, 4), (JOBS, JOBS))  # of the two projects
TRIED = 3  # times each fixed count
SYSTEM = "/usr/local/bin:/usr/bin:/bin"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    seconds: float
    peak_mib: int


def make_project(folder: Path) -> None:
    folder.mkdir()
    for unit in range(UNITS):
        table = ",".join(f"{{{row},{row * 7 % 1000}}}" for row in range(ENTRIES + unit))
        (folder / f"u{unit}.cpp").write_text(
            f"struct Row {{ int a; int b; }};\nconstexpr Row table[] = {{{table}}};\n"
            f"int look_up{unit}(int i) {{ return table[i].b; }}\n"
        )
    rules = "rule cc\n  command = c++ -O0 -c $in -o $out\n"
    (folder / "build.ninja").write_text(
        rules + "".join(f"build u{unit}.o: cc u{unit}.cpp\n" for unit in range(UNITS))
    )


@contextlib.contextmanager
def measured(roots: Callable[[], list[int]], into: list[int]) -> Iterator[None]:
    """The largest sum of proportional set sizes of all processes below the roots, every 50 ms."""
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.05):
            table = memory.processes()
            into.append(sum(memory.read_tree(table, root).memory_mib for root in roots()))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def build(
    projects: list[Path], path: str, work: Path, governor: Governor | tuple[int, int], per_job: int
) -> Outcome:
    """Both projects at once, under a governor or with a fixed number of jobs each."""
    for project in projects:
        for built in project.glob("*.o"):
            built.unlink()
        (project / ".ninja_log").unlink(missing_ok=True)
    running: dict[Path, int] = {}
    codes: list[int] = []

    def one(project: Path) -> None:
        with contextlib.ExitStack() as stack:
            count, env = JOBS, {"PATH": path}
            if isinstance(governor, tuple):
                count = governor[projects.index(project)]
            else:
                jobserver = stack.enter_context(
                    governor.stage(
                        project.name,
                        memory_per_job_mib=per_job,
                        root=lambda: running.get(project),
                        folder=work / project.name,
                    )
                )
                stack.callback(lambda: PEAKS.append(jobserver.peak_mib_per_job))
                env = jobserver.environment(path)
            command = ["ninja", f"-j{count}"]
            process = subprocess.Popen(command, cwd=project, env=env, stdout=subprocess.DEVNULL)
            running[project] = process.pid
            codes.append(process.wait())

    seen = [0]
    threads = [threading.Thread(target=one, args=(project,)) for project in projects]
    begin = time.monotonic()
    with measured(lambda: list(running.values()), seen):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    seconds = time.monotonic() - begin
    if codes != [0] * len(projects):
        raise SystemExit(f"a build failed: {codes}")
    return Outcome(seconds=seconds, peak_mib=max(seen))


PEAKS: list[int] = []  # memory of the largest job of each governed build


def main() -> None:
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    ninja = os.environ.get("NINJA") or str(Path(shutil.which("ninja") or "ninja").parent)
    path = f"{ninja}:{SYSTEM}"
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        projects = [work / "first", work / "second"]
        for project in projects:
            make_project(project)
        # Nothing is known: one GiB is declared, and the budget is one that holds three jobs of that.
        learning = build(projects, path, work / "w", Governor(cores=JOBS, memory_budget_mib=3072), 1024)
        per_job = learned(PEAKS, 1024)
        budget = 3 * per_job + 48  # ninja and the shells need some
        print(f"learning run: {learning.seconds:.1f} s, largest job {max(PEAKS)} MiB, planned {per_job} MiB")
        print(f"budget for three jobs: {budget} MiB")
        ours: list[Outcome] = []
        fixed: dict[tuple[int, int], list[Outcome]] = {count: [] for count in FIXED}
        for repeat in range(repeats):
            governor = Governor(cores=JOBS, memory_budget_mib=budget)
            ours.append(build(projects, path, work / "w", governor, per_job))
            if repeat < TRIED:  # interleaved, so that the machine's moods meet both
                for count in FIXED:
                    fixed[count].append(build(projects, path, work / "w", count, per_job))
    report(ours, fixed, budget)


def report(ours: list[Outcome], fixed: dict[tuple[int, int], list[Outcome]], budget: int) -> None:
    for count, outcomes in fixed.items():
        seconds, peak = (
            statistics.median(one.seconds for one in outcomes),
            max(one.peak_mib for one in outcomes),
        )
        print(f"ninja -j{count[0]} and -j{count[1]}: {seconds:.1f} s, {peak} MiB, {peak / budget:.2f} of it")
    within = {
        count: statistics.median(one.seconds for one in outcomes)
        for count, outcomes in fixed.items()
        if max(one.peak_mib for one in outcomes) <= budget
    }
    seconds, peak = statistics.median(one.seconds for one in ours), max(one.peak_mib for one in ours)
    over = sum(one.peak_mib > budget for one in ours)
    print(f"governor: {seconds:.1f} s, {peak} MiB, {peak / budget:.2f} of the budget")
    print(f"over the budget in {over} of {len(ours)} runs")
    best = min(statistics.median(one.seconds for one in outcomes) for outcomes in fixed.values())
    print(f"time against the best fixed count: {seconds / best:.3f}", end="")
    print(f"; against the best within the budget: {seconds / min(within.values()):.3f}" if within else "")


if __name__ == "__main__":
    main()
