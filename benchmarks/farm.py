"""What a farm costs: ten thousand planned recipes over a hundred workers that only sleep, and local:1.

`.venv/bin/python benchmarks/farm.py simulate [RECIPES] [WORKERS]` runs a real scheduler, a process with that
many real Dask workers, and the client's own loop over a plan of random needs; a build sleeps 1 to 6 s.
It prints the makespan beside max(critical path, work / workers), processor time and memory.
`.venv/bin/python benchmarks/farm.py local [SECONDS] [REPEATS]` builds a recipe that takes so long, in turns
as usual and by --farm local:1, each time in a fresh root.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from spark_build import probe
from spark_build.build import scheduler
from spark_build.build.context import Context, resolve_context
from spark_build.build.plan import critical_paths
from spark_build.build.recipe_build import result_of
from spark_build.events import RecipeResult
from spark_build.farm import nodes
from spark_build.farm.client import Farm
from spark_build.farm.task import Task, TaskAnswer
from spark_build.paths import locate
from spark_build.recipes.loader import load
from spark_build.recipes.model import Build, Estimate, Evaluated, Pin, Plan, Provision, Recipe, Step

CLI = (sys.executable, "-m", "spark_build")
NEAR = 300  # a recipe needs some of so many before it


def sleep(raw: Mapping[str, Any]) -> TaskAnswer:
    """Be a build that takes the seconds that its name ends in."""
    import time

    time.sleep(float(raw["recipe"].partition("-")[2]))
    return TaskAnswer(worker="", address="")


class Sleeping(Farm):
    """A farm whose answers bring no wheels."""

    def _taken(self, step: Step, answer: TaskAnswer) -> RecipeResult:
        del answer
        return result_of(step, "built")


def planned(count: int, setting: Context) -> Plan:
    """A plan of so many recipes with up to three needs each."""
    chance, steps = random.Random(1), []
    nothing = Evaluated(
        requires=(),
        env={},
        apt=(),
        dnf=(),
        compile_flags=(),
        features=(),
        extra_sources={},
        label="",
        wheel_version="1",
    )
    for number in range(count):
        seconds = round(chance.uniform(1, 6), 2)
        near = steps[max(0, number - NEAR) :]
        needs = chance.sample(near, min(len(near), chance.choice((0, 0, 1, 1, 2, 3))))
        name = f"r{number}-{seconds}"
        steps.append(
            Step(
                recipe=Recipe(name=name, distribution=name, summary="", kind="pep517", build=Build()),
                pin=Pin(version="1", sources=()),
                evaluated=nothing,
                decision="BUILD",
                reasons=(),
                key="",
                declared={},
                provisions=tuple(
                    Provision(
                        need=one.recipe.name,
                        distribution="",
                        provider="store",
                        coupling="content",
                        version="1",
                    )
                    for one in needs
                ),
                estimate=Estimate(seconds=seconds, memory_mib=1, memory_per_job_mib=1, disk_mib=1, jobs=1),
            )
        )
    return Plan(target=setting.target, train=setting.train, steps=tuple(steps))


async def serve_workers(address: str, folder: Path, count: int) -> None:
    """Be so many workers in one process."""
    resources, keeping = nodes.abilities(probe.probe()), nodes.security(folder)
    site = nodes.Workplace(home=locate(None), program=(), record_in="")
    workers = [
        nodes.BuildWorker(address, site, resources=resources, security=keeping, name=str(number))
        for number in range(count)
    ]
    await asyncio.gather(*workers)
    print("ready", flush=True)
    await asyncio.gather(*(worker.finished() for worker in workers))


def used(pid: int) -> tuple[float, int]:
    """Processor seconds, and peak memory in MiB, of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    peak = re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"), int(peak[1]) // 1024 if peak else 0


def simulate(count: int, workers: int) -> None:
    """Run the plan and print what it took."""
    with tempfile.TemporaryDirectory(prefix="farm-benchmark-") as scratch:
        folder = Path(scratch)
        nodes.make_certificate(folder)
        words = ["farm", "scheduler", "--host", "127.0.0.1", "--port", "0", "--certificates", scratch]
        head = subprocess.Popen([*CLI, *words], stderr=subprocess.PIPE, text=True)
        assert head.stderr is not None
        said = ""
        while not (found := re.findall(r"scheduler is at (tls://\S+)", said)):
            said = head.stderr.readline()
            print(said, end="", file=sys.stderr)
            assert head.poll() is None
        address = found[0]
        threading.Thread(target=head.stderr.read, daemon=True).start()
        crowd = subprocess.Popen(
            [sys.executable, __file__, "workers", address, scratch, str(workers)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=scratch,
        )
        try:
            assert crowd.stdout is not None
            crowd.stdout.readline()
            measure(count, workers, address, folder, head.pid)
        finally:
            for process in (crowd, head):
                process.kill()
                process.wait()


def measure(count: int, workers: int, address: str, folder: Path, head: int) -> None:
    """Hand the plan to the farm."""
    home = locate(str(folder / "root"))
    setting = resolve_context(home, load(home.data), "host-cpu", None, {})
    plan = planned(count, setting)
    work = sum(step.estimate.seconds for step in plan.steps if step.estimate)
    bound = max(*critical_paths(plan).values(), work / workers)
    common = Task(run="", recipe="", plan_key="", train="", target="")
    farm = Sleeping(setting, plan, common, lambda _event: None)
    farm.function = sleep
    before, began = used(os.getpid())[0], used(head)[0]
    with farm.at(nodes.ReachedFarm(address=address, security=nodes.security(folder))):
        while farm.slots() < workers:
            time.sleep(0.1)
        start = time.monotonic()
        results = scheduler.build(setting, plan, lambda _event: None, None, farm)
        took = time.monotonic() - start
    assert all(result.status == "built" for result in results)
    mine, theirs = used(os.getpid()), used(head)
    row = {
        "recipes": count,
        "workers": workers,
        "critical path s": round(max(critical_paths(plan).values()), 1),
        "work / workers s": round(work / workers, 1),
        "makespan s": round(took, 1),
        "makespan / bound": round(took / bound, 3),
        "worker time lost per recipe ms": round((took * workers - work) / count * 1000, 1),
        "client ms of processor per recipe": round((mine[0] - before) / count * 1000, 2),
        "scheduler ms of processor per recipe": round((theirs[0] - began) / count * 1000, 2),
        "client MiB": mine[1],
        "scheduler MiB": theirs[1],
        "load before": round(os.getloadavg()[2], 1),
    }
    print(json.dumps(row, indent=1))


def local(seconds: float, repeats: int) -> None:
    """Build a recipe both ways and print the times."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from tests.helpers import farms
    from tests.helpers.exports import make_key

    times: dict[str, list[float]] = {"plain": [], "local:1": []}
    for number in range(repeats):
        for name, found in times.items():
            with tempfile.TemporaryDirectory(prefix="farm-benchmark-") as scratch:
                code = f"import time\n\ndef work():\n    time.sleep({seconds})"
                lab = farms.make(Path(scratch), {"a": code})
                key = make_key(Path(scratch), "me")
                words = ["remotes", "add", "lab", str(lab.remote), "--push", "--sign", str(key)]
                lab.client.json(*words, f"--trust=me={key}.pub")
                more = ["--farm", "local:1"] if name == "local:1" else []
                start = time.monotonic()
                done = replace(lab.client).run("build", "a", "--no-closure", *more, process=True)
                found.append(round(time.monotonic() - start, 2))
                assert done.returncode == 0, done.stderr
                print(number, name, found[-1], flush=True)
    plain, by_farm = (statistics.median(found) for found in times.values())
    print(json.dumps({**times, "more": f"{by_farm - plain:.2f} s, {(by_farm / plain - 1) * 100:.1f} %"}))


if __name__ == "__main__":
    what, *numbers = sys.argv[1:] or ["simulate"]
    if what == "workers":
        asyncio.run(serve_workers(numbers[0], Path(numbers[1]), int(numbers[2])))
    elif what == "local":
        local(float(numbers[0]) if numbers else 60, int(numbers[1]) if len(numbers) > 1 else 3)
    else:
        simulate(int(numbers[0]) if numbers else 10_000, int(numbers[1]) if len(numbers) > 1 else 100)
