"""Roots with several small recipes, whose own build backend makes a wheel without needing anything."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.conftest import Root

BACKEND = """
import base64, hashlib, os, subprocess, sys, zipfile

def build_wheel(folder, config_settings=None, metadata_directory=None):
    work()
    name = f"{NAME}-1.0-py3-none-any.whl"
    info = f"{NAME}-1.0.dist-info"
    files = {
        f"{NAME}.py": MODULE(),
        f"{info}/METADATA": f"Metadata-Version: 2.1\\nName: {NAME}\\nVersion: 1.0\\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
    }
    rows = []
    for path, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        rows.append(f"{path},sha256={digest},{len(text.encode())}")
    files[f"{info}/RECORD"] = "\\n".join([*rows, f"{info}/RECORD,,"]) + "\\n"
    with zipfile.ZipFile(os.path.join(folder, name), "w") as wheel:
        for path, text in files.items():
            wheel.writestr(path, text)
    return name

MODULE = lambda: "VALUE = 1\\n"
def work():
    pass
"""
PYPROJECT = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
RECIPE = """\
name = "{name}"
distribution = "{name}"
summary = "a recipe for tests"
kind = "pep517"
{needs}
[build]
requires = []
memory_per_job_mib = 100
core_minutes = 0.1
disk_mib = 50
"""


def make(
    base: Path, recipes: Mapping[str, str], needs: Mapping[str, str] | None = None, *, folder: str = "root"
) -> Root:
    """A root with these recipes: name -> Python that replaces work() and MODULE of its backend.

    needs: name -> the recipe that it needs.
    """
    root = Root(folder=base / folder, links=base / "links")
    (root.folder / "recipes" / "trains").mkdir(parents=True)
    root.links.mkdir(parents=True)
    train = 'name = "t"\nsummary = "a train for tests"\n'
    for name, code in recipes.items():
        files = {"pyproject.toml": PYPROJECT, "backend.py": f"{BACKEND}\n{code}\nNAME = {name!r}\n"}
        path = root.links / f"{name}-1.0.tar.gz"
        with tarfile.open(path, "w:gz") as tar:
            for file, text in files.items():
                member = tarfile.TarInfo(f"{name}-1.0/{file}")
                member.size, member.mtime = len(text.encode()), 1_700_000_000
                tar.addfile(member, io.BytesIO(text.encode()))
        need = f'\n[[needs]]\nname = "{needs[name]}"\n' if needs and name in needs else ""
        text = RECIPE.format(name=name, needs="") + need
        (root.folder / "recipes" / f"{name}.toml").write_text(text)
        train += f"""
[components.{name}]
version = "1.0"
sources = [{{ kind = "sdist", project = "{name}", filename = "{path.name}", sha256 = "{sha256(path)}" }}]
"""
    root.train(train)
    return root


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def events(root: Root) -> list[dict[str, Any]]:
    """The events of the newest run."""
    newest = max(root.folder.glob("runs/*/events.jsonl"))
    return [json.loads(line) for line in newest.read_text().splitlines()]


def statuses(document: Any) -> dict[str, str]:
    """What became of each recipe."""
    return {row["recipe"]: row["status"] for row in document["results"]}
