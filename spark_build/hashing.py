"""Canonical JSON and its digest."""

from __future__ import annotations

import hashlib
import json
from typing import Any


def canonical(value: Any) -> str:
    """Return JSON with one spelling per value: sorted keys, no spaces, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def digest(value: Any) -> str:
    """Return the hex sha256 of a value's canonical JSON."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()
