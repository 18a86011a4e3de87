"""Make or find the environments that are measured."""

from __future__ import annotations

import json
import platform
import tomllib
from dataclasses import replace
from pathlib import Path

from spark_build import venv
from spark_build.errors import UsageError
from spark_build.events import Emit, Note
from spark_build.files import locked, write_atomically
from spark_build.measure.model import Arm, Device, Role
from spark_build.paths import Home
from spark_build.process import capture
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
print(json.dumps(found))
"""


def baseline_arm(home: Home, train: str, folder: Path, emit: Emit, *, device: Device = "cpu") -> Arm:
    """The public wheels of a train as an environment in `folder`; one with the same pins is reused.

    Raises UsageError for a train without a baseline, HostError or SourceError when the wheels
    cannot be had.
    """
    pins, backend = _baseline(home, train, device)
    key = {"schema": SCHEMA, "pins": pins, "device": device, "python": platform.python_version()}
    waiting = f"waiting for another run to finish {folder.name}"
    with locked(
        folder.with_name(f".{folder.name}.lock"),
        purpose="baseline",
        waiting=lambda _: emit(Note(message=waiting)),
    ):
        stamp = folder / STAMP
        if _read(stamp) != key or not venv.python_of(folder).exists():
            stamp.unlink(missing_ok=True)
            venv.create(folder)
            wanted = [f"{name}=={version}" for name, version in pins.items()]
            with folder.with_name(f"{folder.name}.log").open("wb") as log:
                simple_api.install(folder, wanted, backend, emit, log)
            write_atomically(stamp, json.dumps(key))
    return environment_arm("public", folder, origin=f"public wheels pinned for train {train}")


def environment_arm(name: str, folder: Path, *, origin: str = "") -> Arm:
    """An existing environment; the baseline by role. Raises UsageError when it has no torch."""
    python = venv.python_of(folder)
    answer = capture([str(python), "-I", "-c", VERSIONS, *KNOWN], env=venv.clean_environment())
    versions: dict[str, str] = json.loads(answer) if answer else {}
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


def in_role(arm: Arm, role: Role) -> Arm:
    """The same environment in another role."""
    return replace(arm, role=role)


def control_of(baseline: Arm) -> Arm:
    """The A/A control: the same environment once more under another name."""
    return replace(
        baseline, name=f"{baseline.name}-again", role="control", origin=f"A/A control: {baseline.name} again"
    )


def _baseline(home: Home, train: str, device: Device) -> tuple[dict[str, str], str]:
    file = home.find(f"bench/baseline/{train}.toml")
    if file is None:
        folders = [base / "bench" / "baseline" for base in home.data]
        known = sorted({each.stem for folder in folders for each in folder.glob("*.toml")})
        raise UsageError(f"no baseline for train {train}", hint=f"there are {', '.join(known) or 'none'}")
    raw = tomllib.loads(file.read_text())
    if raw.get("schema") != SCHEMA or raw.get("train") != train or "torch" not in raw.get("pins", {}):
        raise UsageError(
            "not a baseline of this schema", where=str(file), hint=f"schema = {SCHEMA}, train, [pins]"
        )
    return {name: str(version) for name, version in raw["pins"].items()}, str(raw["backend"][device])


def _read(stamp: Path) -> object:
    try:
        return json.loads(stamp.read_text())
    except (OSError, ValueError):
        return None
