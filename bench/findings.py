"""What a measured process has to say of a check: for scripts that run inside an arm."""

from __future__ import annotations

Finding = dict[str, str]


class Unsupported(Exception):  # noqa: N818 - says what is missing, it is no error
    """This device or build has no such thing."""


def verdict(name: str, good: bool, evidence: str) -> Finding:
    return {"name": name, "status": "ok" if good else "fail", "evidence": evidence}


def skipped(name: str, reason: str) -> Finding:
    return {"name": name, "status": "skipped", "evidence": reason}
