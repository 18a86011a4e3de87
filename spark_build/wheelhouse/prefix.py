"""Folders as values: the content digest of a prefix or a source tree."""

from __future__ import annotations

from pathlib import Path

from spark_build.files import sha256_of
from spark_build.hashing import digest


def tree_digest(folder: Path) -> str:
    """Sha256 over every path with its content, link target and executable bit; .git does not count."""
    rows = []
    for path in sorted(folder.rglob("*")):
        relative = path.relative_to(folder)
        if ".git" in relative.parts:
            continue
        name = str(relative)
        if path.is_symlink():
            rows.append([name, "link", str(path.readlink())])
        elif path.is_file():
            executable = "x" if path.stat().st_mode & 0o111 else ""
            rows.append([name, f"file{executable}", sha256_of(path)])
    return digest(rows)
