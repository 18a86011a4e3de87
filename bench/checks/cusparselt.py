"""Does the vendor's cuSPARSELt load, and which version is it?"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

HERE = Path(__file__).resolve().parent
# This file has the name of a package, for which its folder must not stand in.
sys.path[:] = [str(HERE.parent), *(entry for entry in sys.path if Path(entry or ".").resolve() != HERE)]

from judging import PREFIX, Skip, run  # noqa: E402 - the path comes first


def check_version() -> str:
    """Asked of the library itself; it needs no GPU for that, but its own dependencies."""
    (library,) = PREFIX.glob("lib/python*/site-packages/nvidia/cusparselt/lib/libcusparseLt.so.0")
    try:
        loaded = ctypes.CDLL(str(library))
    except OSError as error:
        raise Skip(f"cannot be loaded here: {error}") from error
    numbers = []
    for which in range(3):  # major, minor, patch of library_types.h
        value = ctypes.c_int(-1)
        status = loaded.cusparseLtGetProperty(which, ctypes.byref(value))
        assert status == 0, f"cusparseLtGetProperty({which}) answers {status}"
        numbers.append(value.value)
    said = ".".join(map(str, numbers))
    wheel = version("nvidia-cusparselt-cu13")
    assert wheel.startswith(said), f"the wheel is {wheel}, the library says {said}"
    return f"the library says {said}"


CHECKS: dict[str, Callable[[], str]] = {"version": check_version}


if __name__ == "__main__":
    sys.exit(run(CHECKS))
