"""Make the build environment: exactly the pinned requirements, nothing else."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

from spark_build.errors import HostError, SourceError, StageError
from spark_build.host import venv
from spark_build.host.files import remove_tree
from spark_build.host.job import Job, Outputs

NAME = "environment"


def inputs(job: Job) -> Any:
    """The pins and the interpreter."""
    return {"requires": sorted(job.step.recipe.build.requires), "python": sys.version}


def intact(job: Job, _outputs: Outputs) -> bool:
    """The environment's interpreter is still there (a system upgrade may have taken it)."""
    return venv.python_of(job.environment).exists()


def run(job: Job, _earlier: Mapping[str, Outputs]) -> Outputs:
    """Create the environment, install the pins without looking for more, check that they agree."""
    if job.target.platform != f"{sys.platform}-{_machine()}":
        raise HostError(
            f"{job.target.name} wheels are built on {job.target.platform}; this is {_machine()}",
            hint=f"run the same command on a {job.target.name}",
        )
    remove_tree(job.environment)
    venv.create(job.environment, log=job.log)
    report = job.work / "environment.json"
    arguments = ["install", "--no-deps", "--only-binary=:all:", "--report", str(report)]
    if job.offline:
        arguments.append("--no-index")
    done = venv.pip(
        job.environment, [*arguments, *job.step.recipe.build.requires], log=job.log, keep=job.keep
    )
    if done.returncode != 0:
        errors = [line for line in done.output.splitlines() if line.startswith("ERROR:")]
        raise SourceError(
            "a build requirement cannot be had: "
            + (errors[0].removeprefix("ERROR: ") if errors else done.output[-300:]),
            hint="check the network and `pip config list`, then run the same command again",
        )
    checked = venv.pip(job.environment, ["check"], log=job.log)
    if checked.returncode != 0:
        raise StageError(
            f"the recipe's build requirements contradict each other: {checked.output}",
            where=f"recipes/{job.step.recipe.name}.toml",
        )
    return {"installed": _installed(json.loads(report.read_text()))}


def _machine() -> str:
    import platform

    return platform.machine()


def _installed(report: Mapping[str, Any]) -> list[dict[str, str]]:
    """Name, version and sha256 of what pip installed: part of the provenance."""
    return [
        {
            "name": item["metadata"]["name"],
            "version": item["metadata"]["version"],
            "sha256": item["download_info"].get("archive_info", {}).get("hashes", {}).get("sha256", ""),
        }
        for item in report["install"]
    ]
