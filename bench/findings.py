"""What a measured process has to say of a check: for scripts that run inside an arm."""

from __future__ import annotations

Finding = dict[str, str]


class Unsupported(Exception):  # noqa: N818 - says what is missing, it is no error
    """This device or build has no such thing."""


# In torch's words: what this build, device or machine does not have. Whatever else goes wrong is broken.
SCALED_REFUSED = ("only supported",)
NO_COMPILER = (
    "No working C++ compiler",
    "Python.h: No such file",
    "Failed to find C compiler",
    "Cannot find a working triton installation",
    "too old to be supported by the triton",
    "not supported on Python",
)


def recognised(error: BaseException, marks: tuple[str, ...]) -> Unsupported:
    """What an error with one of `marks` in its words says is missing; raises any other error again."""
    said = str(error)
    if not any(mark in said for mark in marks):
        raise error
    line = next(each for each in said.splitlines() if any(mark in each for mark in marks))
    return Unsupported(f"torch refuses: {line.strip()[:200]}")


def verdict(name: str, good: bool, evidence: str) -> Finding:
    return {"name": name, "status": "ok" if good else "fail", "evidence": evidence}


def skipped(name: str, reason: str) -> Finding:
    return {"name": name, "status": "skipped", "evidence": reason}


def first_line(error: BaseException) -> str:
    """Its type and what it says first, in one line."""
    return f"{type(error).__name__}: {(str(error).strip() or '?').splitlines()[0][:300]}"


def said(rate: float, unit: str) -> str:
    """A rate with four digits, in the power of thousand that suits it: 51.26 TFLOP/s."""
    prefixes = (("T", 1e12), ("G", 1e9), ("M", 1e6)) if unit in ("FLOP/s", "B/s") else ()
    prefix, scale = next(((p, s) for p, s in prefixes if rate >= s), ("", 1.0))
    return f"{rate / scale:.4g} {prefix}{unit}"
