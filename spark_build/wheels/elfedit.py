"""Changes to finished libraries: symbols taken out, and folders of other machines out of RPATHs.

Neither may touch what the loader reads besides, or code for GPUs: both are read before and after.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

from elftools.elf.elffile import ELFFile

from spark_build.errors import AuditError
from spark_build.process import run
from spark_build.wheels import device_code
from spark_build.wheels.device import Code
from spark_build.wheels.elf import read_library
from spark_build.wheels.model import Library
from spark_build.wheels.rules import beside_library

_LOADED = ("ET_EXEC", "ET_DYN")  # programs and shared libraries: a linker needs the symbols of the rest


@dataclass(frozen=True, kw_only=True, slots=True)
class Tools:
    """Where strip and patchelf run: their variables, and the log they write to."""

    env: Mapping[str, str]
    log: BinaryIO | None = None


def strip(file: Path, name: str, tools: Tools) -> dict[str, int]:
    """Debug sections and symbols go; the size in bytes before and after, {} where there were none.

    `name`: what the file is called in an error. AuditError when strip fails or changes more.
    """
    with file.open("rb") as stream:
        if ELFFile(stream).header["e_type"] not in _LOADED:
            return {}
    before = file.stat().st_size
    _change(file, name, ["strip", "--strip-unneeded", str(file)], tools, lambda library: library)
    after = file.stat().st_size
    return {"before": before, "after": after} if after < before else {}


def clean_rpath(file: Path, name: str, tools: Tools) -> int:
    """What its RPATH or RUNPATH names besides $ORIGIN goes; the number of entries that went."""
    with file.open("rb") as stream:
        entries = read_library(name, stream).host.rpaths
        tables: Any = ELFFile(stream).iter_segments("PT_DYNAMIC")
        tags = {tag.entry.d_tag for table in tables for tag in table.iter_tags()}
    kept = tuple(dict.fromkeys(entry for entry in entries if beside_library(entry)))
    if len(kept) == len(entries):
        return 0
    # patchelf makes a RUNPATH of an RPATH, which the loader searches at another time, unless told not to.
    force = ["--force-rpath"] if "DT_RUNPATH" not in tags else []
    setting = ["--set-rpath", ":".join(kept)] if kept else ["--remove-rpath"]
    _change(
        file,
        name,
        ["patchelf", *force, *setting, str(file)],
        tools,
        lambda library: replace(library, host=replace(library.host, rpaths=kept)),
    )
    return len(entries) - len(kept)


def _change(
    file: Path, name: str, command: list[str], tools: Tools, expected: Callable[[Library], Library]
) -> None:
    """Run a command that changes the file into what is `expected` of it and nothing else."""
    library, code = _seen(file)
    done = run(command, env=tools.env, log=tools.log)
    if done.returncode != 0:
        said = done.output.strip().splitlines()[-1:] or ["no reason given"]
        raise AuditError(f"{command[0]} fails on {name}: {said[0]}", log=getattr(tools.log, "name", None))
    if _seen(file) != (expected(library), code):
        raise AuditError(
            f"{command[0]} would change more of {name} than it should",
            hint="leave it out: [repair] strip or clean_rpath = false in the recipe",
        )


def _seen(file: Path) -> tuple[Library, tuple[Code, ...]]:
    """What the loader reads of a file, and its device code."""
    with file.open("rb") as stream:
        library = read_library("", stream)
        code = device_code.read(stream, "")
    return library, (code.loaded, code.relocatable, code.elsewhere)
