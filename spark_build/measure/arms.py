"""Arms of a measurement: what --arm means, environments, containers."""

from __future__ import annotations

import contextlib
import json
import platform
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from spark_build import venv
from spark_build.errors import HostError, UsageError, ours
from spark_build.events import Emit
from spark_build.files import locked, write_atomically
from spark_build.measure.model import Arm, Device
from spark_build.paths import Home
from spark_build.process import capture
from spark_build.recipes.toml_positions import read_toml
from spark_build.sources import simple_api

SCHEMA = 1
KNOWN = ("torch", "numpy", "torchvision", "torchaudio", "triton", "flash-attn", "onnx", "nvidia-cublas")
STAMP = "spark-build-arm.json"
LIBRARIES = """
import torch
print(*sorted({part[5] for line in open("/proc/self/maps") if len(part := line.split(None, 5)) == 6}), sep="")
"""
# What can be swapped: stems of the files, the one that needs nothing of the others first.
SWAPS = {"cublas": ("libcublasLt.so", "libcublas.so"), "openmp": ("libgomp.so", "libgomp-")}
VERSIONS = """
import importlib.metadata as m, json, sys
found = {}
for name in sys.argv[1:]:
    try: found[name] = m.version(name)
    except m.PackageNotFoundError: pass
print("\\n" + json.dumps(found))
"""


def baseline_arm(home: Home, train: str, folder: Path, emit: Emit, *, device: Device = "cpu") -> Arm:
    """Return the public wheels of a train as an environment in `folder`; reuses one with the same pins.

    Raises UsageError for a train without a baseline, HostError or SourceError when the wheels
    cannot be had.
    """
    pins, backend = _baseline(home, train, device)
    key = {"schema": SCHEMA, "pins": pins, "device": device, "python": platform.python_version()}
    with locked(folder.with_name(f".{folder.name}.lock"), purpose="baseline"):
        stamp, known = folder / STAMP, None
        with contextlib.suppress(OSError, ValueError):
            known = json.loads(stamp.read_text())
        if known != key or not venv.python_of(folder).exists():
            stamp.unlink(missing_ok=True)
            venv.create(folder)
            wanted = [f"{name}=={version}" for name, version in pins.items()]
            with folder.with_name(f"{folder.name}.log").open("wb") as log:
                simple_api.install(folder, wanted, backend, emit, log)
            venv.compile_packages(folder)
            write_atomically(stamp, json.dumps(key))
    return environment_arm("public", folder, origin=f"public wheels pinned for train {train}")


def environment_arm(name: str, folder: Path, *, origin: str = "") -> Arm:
    """Return an existing environment, by role the baseline. Raises UsageError when it has no torch."""
    python = venv.python_of(folder)
    answer = capture([str(python), "-I", "-c", VERSIONS, *KNOWN], env=venv.clean_environment())
    versions: dict[str, str] = {}
    with contextlib.suppress(LookupError, ValueError):
        versions = json.loads((answer or "").splitlines()[-1])  # its .pth files may print something before
    if "torch" not in versions:
        raise UsageError(
            f"no environment with torch in {folder}", hint="give the folder of a virtual environment"
        )
    return Arm(
        name=name,
        role="baseline",
        python=str(python.absolute()),
        origin=origin or f"environment {folder}",
        versions=versions,
    )


def derived_arm(arm: Arm, donor: Arm, library: str) -> Arm:
    """`arm` with one library of `donor`'s environment loaded in place of its own.

    The donor's files are loaded first; what asks for their names later gets them. Raises UsageError
    when the donor has no such files, or either is a container.
    """
    if arm.image or donor.image:
        raise UsageError(
            "libraries cannot be swapped into or out of a container", hint="name two environments"
        )
    answer = capture([donor.python, "-I", "-c", LIBRARIES], env=venv.clean_environment(), timeout=300) or ""
    files = [
        path for stem in SWAPS[library] for path in answer.splitlines() if Path(path).name.startswith(stem)
    ]
    if not files:
        raise UsageError(
            f"{donor.name} loads no {library} of its own", hint=f"--swap needs {library} in both arms"
        )
    return replace(
        arm,
        name=f"{arm.name}+{library}-of-{donor.name}",
        role="variant",
        origin=f"{arm.name} with {library} of {donor.name}",
        env={**arm.env, "LD_PRELOAD": ":".join(files)},
        swapped=tuple(files),
    )


def control_of(baseline: Arm) -> Arm:
    """Return the A/A control: the same environment again under another name."""
    return replace(
        baseline, name=f"{baseline.name}-again", role="control", origin=f"A/A control: {baseline.name} again"
    )


def toml_of(file: Path) -> dict[str, Any]:
    """Return the tables of a file. Raises UsageError."""
    try:
        return read_toml(file.read_text())
    except (OSError, ValueError) as error:
        raise UsageError(f"not TOML: {error}", where=str(file)) from error


def _baseline(home: Home, train: str, device: Device) -> tuple[dict[str, str], str]:
    file = home.find(f"bench/baseline/{train}.toml")
    if file is None:
        folders = [base / "bench" / "baseline" for base in home.data]
        known = sorted({each.stem for folder in folders for each in folder.glob("*.toml")})
        raise UsageError(f"no baseline for train {train}", hint=f"there are {', '.join(known) or 'none'}")
    raw = toml_of(file)
    if raw.get("schema") != SCHEMA or raw.get("train") != train or "torch" not in raw.get("pins", {}):
        raise UsageError(
            "not a baseline of this schema", where=str(file), hint=f"schema = {SCHEMA}, train, [pins]"
        )
    return {name: str(version) for name, version in raw["pins"].items()}, str(raw["backend"][device])


ENGINES = ("docker", "podman")
PYTHON = "python3"  # what images of PyTorch call theirs


def container_arm(name: str, image: str) -> Arm:
    """Return an image's Python; the image must be here, because measuring downloads nothing.

    Raises HostError without docker or podman, UsageError for an unknown image.
    """
    engine = next((each for each in ENGINES if shutil.which(each)), "")
    if not engine:
        raise HostError(f"{name}: a container needs docker or podman", hint=ours("doctor"))
    if capture([engine, "image", "inspect", image]) is None:
        raise UsageError(f"{name}: {engine} has no image {image}", hint=f"{engine} pull {image}")
    return Arm(
        name=name, role="baseline", python=PYTHON, origin=f"container {image}", image=image, engine=engine
    )


def wrap_in_container(
    arm: Arm,
    command: Sequence[str],
    *,
    device: Device,
    env: Mapping[str, str],
    script: Path,
    place: Path,
    name: str,
) -> list[str]:
    """Return the command that runs `command` in the arm's image: no network, scripts read-only.

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


def remove_container(arm: Arm, name: str) -> None:
    """Remove a container that may have outlived its client; one that is gone is fine."""
    capture([arm.engine, "rm", "--force", name], check=False)
