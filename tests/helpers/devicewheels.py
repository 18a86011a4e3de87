"""Wheels for tests whose libraries hold what nvcc made (tests/data/fatbin)."""

from __future__ import annotations

import struct
from pathlib import Path

from tests.helpers.fatbins import elf
from tests.helpers.wheels import write_wheel

DATA = Path(__file__).parents[1] / "data/fatbin"
AARCH64 = "py3-none-manylinux2014_aarch64"


def first_entry(fatbin: bytes) -> bytes:
    """A container with the first entry only."""
    header, size = struct.unpack_from("<I", fatbin, 20)[0], struct.unpack_from("<Q", fatbin, 24)[0]
    return fatbin[:8] + struct.pack("<Q", header + size) + fatbin[16 : 16 + header + size]


SM_80 = first_entry((DATA / "plain.fatbin").read_bytes())
NATIVE_121 = (DATA / "zstd.fatbin").read_bytes()  # sm_90a, sm_120f, sm_121, sm_121a, compute_80


def small(folder: Path, fatbin: bytes, **files: bytes) -> Path:
    """A wheel whose library holds this fat binary."""
    inside = {f"demo/{name}": data for name, data in files.items()}
    return write_wheel(folder, {"demo/lib.so": elf([(".nv_fatbin", fatbin)]), **inside}, tag=AARCH64)
