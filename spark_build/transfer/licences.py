"""NVIDIA's licence notice, and the pins of what its licence does not let us hand on."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from packaging.metadata import parse_email

from spark_build.errors import AuditError
from spark_build.transfer.instructions import Licence, notice_text, pins_text
from spark_build.wheelhouse.store import entry_folder, rows
from spark_build.wheels.model import StoredWheel
from spark_build.wheels.reader import TEXT, dist_info, files_of, opened, sane

# Redistributable libraries of the CUDA toolkit and beside it, under any version.
_LIBRARIES = re.compile(
    r"lib(cudart|cublas|cublasLt|cudnn\w*|nccl|cusparse|cusparseLt|cusolver\w*|cufft\w*|curand|cupti|cufile\w*|"
    r"nvrtc[\w-]*|nvJitLink|nvToolsExt|nvshmem\w*|nvblas|npp\w*|nvjpeg|nvinfer\w*|cudss\w*|cutensor\w*)"
    r"(-[0-9a-f]{8})?\.so(\.\d+)*"
)
_TOOLS = frozenset({"ptxas", "ptxas-blackwell", "cuobjdump", "nvdisasm", "libdevice.10.bc"})
_LICENCE = re.compile(r"(licen[cs]e|eula|notice|copying)[^/]*", re.IGNORECASE)


def notice(wheels: Sequence[Path]) -> str:
    """NOTICE.txt for these wheels; "" when nothing of NVIDIA's is inside."""
    vendors: dict[str, list[str]] = {}
    bundled: dict[str, list[str]] = {}
    licences: list[Licence] = []
    for path in sorted(wheels, key=lambda path: path.name):
        try:
            vendor, libraries, texts = _inside(path)
        except (AuditError, FileNotFoundError):
            continue  # the export itself will say that it is damaged
        if vendor:
            vendors[path.name] = [one.path for one in texts]
        elif libraries:
            bundled[path.name] = libraries
        if vendor or libraries:
            licences += texts
    return notice_text(vendors, bundled, licences) if vendors or bundled else ""


def pins_of(store: Path, wheels: Sequence[StoredWheel]) -> dict[str, str]:
    """File name -> requirements with hashes, for each prefix of vendor's wheels that these were built with.

    The prefix itself is never handed on; from the pins another machine makes the same.
    """
    needs: dict[str, set[str]] = {}
    for wheel in wheels:
        for name, identity in _key_inputs(store, wheel.key).get("needs", {}).items():
            needs.setdefault(name, set()).add(identity)
    found: dict[str, str] = {}
    for row in rows(store) if needs else ():
        if row["content_digest"] in needs.get(row["recipe"], ()):
            inputs = _key_inputs(store, row["key"])
            if inputs.get("recipe", {}).get("kind") == "assemble":
                platform = inputs["target"]["platform"]
                name = f"{row['recipe']}-{row['version']}-{platform}.pins.txt"
                found[name] = pins_text(row["recipe"], row["version"], platform, _sources(store, row["key"]))
    return found


def _key_inputs(store: Path, key: str) -> dict[str, Any]:
    """The inputs of an entry that was built; none of a public wheel."""
    return dict(_paper(store, key, "key.json").get("inputs", {}))


def _sources(store: Path, key: str) -> list[tuple[str, str]]:
    """The wheels' file names and hashes, as the entry's provenance has them."""
    definition = _paper(store, key, "provenance.json").get("predicate", {}).get("buildDefinition", {})
    return [(one["name"], one["digest"]["sha256"]) for one in definition.get("resolvedDependencies", ())]


def _paper(store: Path, key: str, name: str) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads((entry_folder(store, key) / name).read_text())
    except (OSError, ValueError):  # the export itself will say what is damaged
        return {}
    return found


def _inside(path: Path) -> tuple[bool, list[str], list[Licence]]:
    """(Is it NVIDIA's own?, names of libraries of NVIDIA's, licence texts); only small files are read."""
    with opened(path) as archive:
        infos = files_of(archive)
        folder = dist_info(archive, path.name)
        names = {info.filename.rpartition("/")[2] for info in infos}
        libraries = sorted(name for name in names if _LIBRARIES.fullmatch(name) or name in _TOOLS)
        written = f"{folder}/METADATA"
        metadata, _ = parse_email(sane(archive.read(written)) if written in archive.namelist() else b"")
        said = " ".join(
            str(metadata.get(key, "")) for key in ("author", "author_email", "maintainer", "license")
        )
        vendor = "nvidia" in f"{metadata.get('name', '')} {said}".lower()
        if not vendor and not libraries:
            return False, [], []
        texts = [
            Licence(
                wheel=path.name,
                path=info.filename,
                text=archive.read(info).decode(errors="replace"),
            )
            for info in infos
            if info.filename.startswith(f"{folder}/")
            and _LICENCE.fullmatch(info.filename.rpartition("/")[2])
            and info.file_size <= TEXT
        ]
        return vendor, libraries, texts
