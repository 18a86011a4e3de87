"""What `wheelhouse inspect` reads of a wheel beside its facts."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from spark_build.files import CHUNK
from spark_build.wheels.device import DeviceCode
from spark_build.wheels.device_code import Difference, cross_check
from spark_build.wheels.diff import Member
from spark_build.wheels.policies import symbol_policies, system_libraries
from spark_build.wheels.reader import files_of, opened
from spark_build.wheels.rules import Policies


def members(path: Path) -> dict[str, Member]:
    """Size and checksum of every file, as the zip's directory has them: nothing is unpacked."""
    with opened(path) as archive:
        return {info.filename: (info.file_size, info.CRC) for info in files_of(archive)}


def known_libraries(platform: str) -> frozenset[str]:
    """As `system_libraries`; none for what auditwheel does not know."""
    try:
        return system_libraries(platform) if platform.startswith("linux-") else frozenset()
    except ValueError:
        return frozenset()


def known_policies(platform: str) -> Policies:
    """As `symbol_policies`; none for what auditwheel does not know."""
    try:
        return symbol_policies(platform) if platform.startswith("linux-") else {}
    except ValueError:
        return {}


def cross_checked(
    path: Path, codes: Sequence[DeviceCode], cuobjdump: Path
) -> dict[str, tuple[Difference, ...]]:
    """For each file with device code, where cuobjdump lists something else; HostError when it fails."""
    found: dict[str, tuple[Difference, ...]] = {}
    with opened(path) as archive:
        for code in codes:
            if code.kind == "other":  # given up
                continue
            with tempfile.TemporaryDirectory(prefix="spark-build-") as folder:
                copy = Path(folder, "file" + "".join(Path(code.path).suffixes[-1:]))
                with archive.open(code.path) as packed, copy.open("wb") as file:
                    shutil.copyfileobj(packed, file, CHUNK)
                found[code.path] = cross_check(copy, cuobjdump, code=code)
    return found
