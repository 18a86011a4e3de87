"""Makes of a built wheel what its recipe asks for: self-contained, lean, reproducible.

The same wheel, arguments, libraries and tools give the same bytes: a file name never means two things.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from packaging.tags import parse_tag

from spark_build.errors import AuditError
from spark_build.files import CHUNK, sync_folder
from spark_build.probe import SYSTEM_PATH
from spark_build.recipes.model import Repair
from spark_build.wheels.elfedit import Tools, clean_rpath, strip
from spark_build.wheels.graft import AUTO, bundled, compiled_part, tool_environment
from spark_build.wheels.model import WheelFacts
from spark_build.wheels.policies import symbol_policies
from spark_build.wheels.reader import opened, read_facts
from spark_build.wheels.rules import beside_library
from spark_build.wheels.writer import Extra, merged, rewrite

BUILD_TAG = re.compile(r"\d[A-Za-z0-9_.]*")
_LINUX = re.compile(r"(?:linux|manylinux(?:\d+|_\d+_\d+))_(.+)")  # the machine of a platform tag
T = TypeVar("T", dict[str, int], int)


@dataclass(frozen=True, kw_only=True, slots=True)
class Repaired:
    """A finished wheel. `changes`: what was done, for the papers; no word of it names this machine."""

    path: Path
    changes: Mapping[str, Any]


def repair(
    wheel: Path,
    out_folder: Path,
    *,
    repair: Repair,
    build_tag: str,
    epoch: int,
    log: BinaryIO | None = None,
    env: Mapping[str, str] | None = None,
    extra: Extra | None = None,
) -> Repaired:
    """Do to the wheel what the recipe asks for, nothing else, and write the final one.

    `build_tag` goes into the file name and WHEEL; `epoch` (seconds since 1970) becomes every time
    stamp; `env` (default: this process's) tells auditwheel where libraries are; `extra` files are
    made last. AuditError when the wheel is damaged, a library is missing or a tool fails.
    """
    if not BUILD_TAG.fullmatch(build_tag):
        raise AuditError(f"build tag {build_tag!r} must begin with a digit and hold no dash")
    facts = read_facts(wheel)
    if facts.record_problems:
        # Writing a new RECORD over a wrong one would bless whatever went wrong.
        raise AuditError(
            f"{wheel.name}: {facts.record_problems[0]}", hint="remove the build folder and build again"
        )
    out_folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".repair-", dir=out_folder) as folder:
        work = Path(folder)
        tools = Tools(env=tool_environment(env, work, epoch), log=log)
        layers, changes = _layers(wheel, facts, work, repair, tools)
        name, tags = _named(layers[-1].name, _plat(facts, repair.platform))
        finished = out_folder / "-".join([*name.split("-")[:2], build_tag, *name.split("-")[-3:]])
        draft = work / "draft"
        rewrite(
            layers,
            draft,
            new_name=finished.name,
            build_tag=build_tag,
            tags=tags,
            epoch=epoch,
            extra=extra or {},
        )
        draft.replace(finished)
    sync_folder(out_folder)
    before, after = ("-".join(one.name.removesuffix(".whl").split("-")[-3:]) for one in (wheel, finished))
    changes |= {"tag": {"before": before, "after": after}} if before != after else {}
    return Repaired(path=finished, changes={name: did for name, did in changes.items() if did})


def _layers(
    wheel: Path, facts: WheelFacts, work: Path, repair: Repair, tools: Tools
) -> tuple[list[Path], dict[str, Any]]:
    """The wheel and what lies over it, and what was done.

    Symbols go first, because patchelf moves what strip would find; RPATHs last, because auditwheel finds
    libraries by them and adds entries of its own.
    """
    layers, changes = [wheel], dict[str, Any]()
    if repair.strip:
        own = {one.path for one in facts.libraries if one.machine == os.uname().machine}
        system = Tools(env={**tools.env, "PATH": SYSTEM_PATH}, log=tools.log)  # the one that the key knows
        layer, changes["stripped"] = _edited(layers, work / "stripped", own, strip, system)
        layers += layer
    if repair.bundle and facts.libraries:
        known = {library.path for library in facts.libraries}
        part = compiled_part(layers, work, known)
        plat = _plat(facts, repair.platform) or AUTO
        for result in bundled(part, work, exclude=repair.exclude, plat=plat, tools=tools):
            layers.append(result)
            facts = read_facts(result)
            changes["bundled"] = sorted({one.path for one in facts.libraries} - known)
    if repair.clean_rpath:
        foreign = {
            one.path for one in facts.libraries if not all(beside_library(entry) for entry in one.host.rpaths)
        }
        layer, changes["rpath_entries_removed"] = _edited(layers, work / "rpath", foreign, clean_rpath, tools)
        layers += layer
    return layers, changes


def _edited(
    layers: Sequence[Path],
    work: Path,
    names: Collection[str],
    edit: Callable[[Path, str, Tools], T],
    tools: Tools,
) -> tuple[list[Path], dict[str, T]]:
    """A layer with those of the named files that `edit` changes, and what it says of each."""
    done: dict[str, T] = {}
    work.mkdir()
    layer, file = work / layers[-1].name, work / "file"
    with contextlib.ExitStack() as stack:
        present = merged([stack.enter_context(opened(one)) for one in layers])
        new = stack.enter_context(zipfile.ZipFile(layer, "w"))
        for name in sorted(names):
            archive, info = present[name]
            with archive.open(info) as packed, file.open("wb") as unpacked:
                shutil.copyfileobj(packed, unpacked, CHUNK)
            if did := edit(file, name, tools):
                done[name] = did
                entry = zipfile.ZipInfo(name)
                entry.external_attr = info.external_attr
                entry.file_size = file.stat().st_size
                with file.open("rb") as edited, new.open(entry, "w") as out:
                    shutil.copyfileobj(edited, out, CHUNK)
    return [layer] if done else [], done


def _plat(facts: WheelFacts, platform: str) -> str:
    """The tag that is asked for, with the machine; "" for what runs anywhere or when none is asked for."""
    found = [_LINUX.fullmatch(tag.rpartition("-")[2]) for tag in facts.filename_tags]
    machines = [one[1] for one in found if one]
    if not platform or not machines:
        return ""
    plat, known = f"{platform}_{machines[0]}", symbol_policies(f"linux-{machines[0]}")
    if plat not in known:
        newest = [tag for tag in known if tag.startswith("manylinux_")]
        raise AuditError(
            f"auditwheel knows no platform {plat}, so nobody can say whether the wheel keeps to it",
            hint=f"name one of these in repair.platform, without the machine: {', '.join(newest)}",
        )
    return plat


def _named(name: str, plat: str) -> tuple[str, list[str]]:
    """The wheel's name with this platform, and the tags that it then has; [] where they stay as they are."""
    start, _, old = name.removesuffix(".whl").rpartition("-")
    if not plat or plat in old.split("."):
        return name, []
    tag = "-".join([*start.split("-")[-2:], plat])
    return f"{start}-{plat}.whl", sorted(map(str, parse_tag(tag)))
