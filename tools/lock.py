"""Lock our own dependencies by hash; `.venv/bin/python tools/lock.py [--upgrade]`.

Writes tools/locks/EXTRAS.txt, what the launcher and run-tests install: one version of all, with the sha256 of
its files for all Pythons and processors; and docs/dependencies.md, the licences of what users get.
--upgrade takes the newest versions, else those in the locks stay where they can.
"""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOCKS = ROOT / "tools" / "locks"
EXTRAS = ("dev,docs", "dev", "verify")  # each has what the next one has
BACKEND = ("hatchling", "editables")  # what pip builds an editable spark-build with
PAGE = ROOT / "docs" / "dependencies.md"
HEAD = """\
# Dependencies

What `./spark-build` installs into its `.venv`, each file by its sha256 (`tools/locks/verify.txt`, which
`tools/lock.py` writes, and this page). The licences are what each distribution says of itself. Tests and this
site need more (`tools/locks/dev.txt`, `dev,docs.txt`), which no user gets. With `SPARK_BUILD_UNLOCKED=1` pip
takes what its index has and `pyproject.toml` allows.

Known holes: not audited yet. `pip-audit` 2.10.1 had no data where it was run (2026-11-23): the index there
answered 404 for each of the 57 distributions, and `osv` and `esms` could not be reached. Without
`--strict` it exits with 0 then and says "No known vulnerabilities found". CONTRIBUTING.md has the line that
a release is to pass on a connected machine.

| distribution | licence |
|---|---|
"""


def names(extras: str) -> list[str]:
    """Return the distributions of a lock."""
    return list(dict.fromkeys(re.findall(r"(?m)^([^\s#=]+)==", (LOCKS / f"{extras}.txt").read_text())))


def lock(extras: str, above: str, *options: str) -> None:
    """Write a lock, with the versions of the lock `above`."""
    uv = Path(sys.executable).with_name("uv")
    command = [str(uv), "pip", "compile", "--universal", "--python-version=3.11", "--generate-hashes"]
    command += ["--no-header", "--no-annotate", "--quiet", f"--output-file={LOCKS / extras}.txt", *options]
    command += [f"--constraints={LOCKS / above}.txt"] if above else []
    command += [f"--extra={one}" for one in extras.split(",")]
    backend = "\n".join(BACKEND).encode()
    subprocess.run([*command, "pyproject.toml", "-"], input=backend, cwd=ROOT, check=True)


def licence(name: str) -> str:
    """Return a distribution's licence, from the environment that this runs in."""
    try:
        told = metadata(name)
    except PackageNotFoundError:
        return "not installed here"
    classifiers = [
        one.rpartition(" :: ")[2] for one in told.get_all("Classifier", []) if one.startswith("License")
    ]
    written = (told.get("License") or "").strip()
    short = written if written and "\n" not in written and len(written) < 60 else ""
    return told.get("License-Expression") or short or ", ".join(classifiers) or "see its files"


def main() -> None:
    """Write the locks, then the page."""
    for above, extras in zip(("", *EXTRAS), EXTRAS, strict=False):
        lock(extras, above, *sys.argv[1:])
    PAGE.write_text(HEAD + "".join(f"| {name} | {licence(name)} |\n" for name in names("verify")))


if __name__ == "__main__":
    main()
