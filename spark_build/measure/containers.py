"""Rounds inside containers: which engine, and the command that runs one."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from spark_build.errors import HostError, UsageError
from spark_build.measure.model import Arm, Device
from spark_build.process import capture

ENGINES = ("docker", "podman")
PYTHON = "python3"  # what images of PyTorch call theirs


def container_arm(name: str, image: str) -> Arm:
    """The Python of an image, which must be here already: a download is no part of a measurement.

    Raises HostError without docker or podman, UsageError for an unknown image.
    """
    engine = next((each for each in ENGINES if shutil.which(each)), "")
    if not engine:
        raise HostError(f"{name}: a container needs docker or podman", hint="spark-build doctor")
    if capture([engine, "image", "inspect", image]) is None:
        raise UsageError(f"{name}: {engine} has no image {image}", hint=f"{engine} pull {image}")
    return Arm(
        name=name, role="baseline", python=PYTHON, origin=f"container {image}", image=image, engine=engine
    )


def wrap(
    arm: Arm,
    command: Sequence[str],
    *,
    device: Device,
    env: Mapping[str, str],
    script: Path,
    place: Path,
    name: str,
) -> list[str]:
    """The command that runs `command` in the arm's image: own network none, scripts read-only.

    `script`'s folder and `place` have the same paths inside, `name` lets the container be removed.
    """
    gpus = {"docker": ["--gpus", "all"], "podman": ["--device", "nvidia.com/gpu=all"]}[arm.engine]
    variables = [part for key, value in env.items() for part in ("--env", f"{key}={value}")]
    return [
        arm.engine, "run", "--rm", "--init", "--name", name, "--network", "none", "--ipc", "host",
        *(gpus if device == "cuda" else []),
        "--volume", f"{script.parent}:{script.parent}:ro", "--volume", f"{place}:{place}",
        "--workdir", str(place), *variables, "--entrypoint", "", arm.image, *command,
    ]  # fmt: skip


def remove(arm: Arm, name: str) -> None:
    """Remove a container that may have outlived its client; one that is gone is fine."""
    capture([arm.engine, "rm", "--force", name], check=False)
