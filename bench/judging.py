"""What the check scripts share: run checks one by one, leave a JSON document. Needs nothing but Python."""

from __future__ import annotations

import argparse
import json
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path

PREFIX = Path(sys.prefix).resolve()
BASE = Path(sys.base_prefix).resolve()


class Skip(Exception):  # noqa: N818 - says what happens, it is no error
    """The check does not apply here."""


def inside(path: str | Path, *folders: Path) -> bool:
    real = Path(path).resolve()
    return any(real.is_relative_to(folder) for folder in folders)


def judge(name: str, check: Callable[[], str]) -> dict[str, str]:
    try:
        return {"name": name, "status": "ok", "evidence": check()}
    except Skip as reason:
        return {"name": name, "status": "skipped", "evidence": str(reason)}
    except Exception as error:
        traceback.print_exc()
        return {"name": name, "status": "fail", "evidence": f"{type(error).__name__}: {error}"[:500]}


def run(checks: Mapping[str, Callable[[], str]]) -> int:
    """Run all checks; the document goes to --out."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    out: Path = parser.parse_args().out
    document = json.dumps({"checks": [judge(name, check) for name, check in checks.items()]}, indent=1)
    temporary = out.with_name(f".{out.name}.{os.getpid()}")
    temporary.write_text(document)
    temporary.replace(out)
    return 0
