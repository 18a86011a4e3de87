"""Files that a command is given to read: their text, and JSON in it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from spark_build.errors import UsageError


def text_of(file: Path, hint: str) -> str:
    """UTF-8, with a byte order mark or without. Raises UsageError; `hint` says what to give instead."""
    try:
        return file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"no text in UTF-8: {error.reason}", where=str(file), hint=hint) from error
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror}", where=str(file), hint=hint) from error


def json_of(text: str, where: str, hint: str) -> Any:
    """A document. Raises UsageError, for one that is nested too deeply too."""
    try:
        return json.loads(text)
    except ValueError as error:
        raise UsageError(f"not JSON: {error}", where=where, hint=hint) from error
    except RecursionError as error:
        raise UsageError("not JSON of ours: nested too deeply", where=where, hint=hint) from error
