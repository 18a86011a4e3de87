"""A folder for --root in which a torch extension with CUDA kernels of our own (tests/data/kernels) is built.

Needs nothing but Python: `python -m tests.helpers.kernels ROOT TORCH_VERSION [TRAIN]` makes one on a machine with a GPU.
"""

from __future__ import annotations

import hashlib
import io
import shutil
import sys
import tarfile
import tomllib
from pathlib import Path

DATA = Path(__file__).parents[1] / "data/kernels"
RECIPES = Path(__file__).parents[2] / "recipes"
SDIST = "demo_kernels-1.0.tar.gz"
TRAIN = """\
name = "t"
summary = "a train for tests"

[components.torch]
version = "{torch}"
sources = [{{ kind = "sdist", project = "torch", filename = "torch-{torch}.tar.gz", sha256 = "{no_sdist}" }}]

[components.kernels]
version = "1.0"
sources = [{{ kind = "sdist", project = "demo-kernels", filename = "{sdist}", sha256 = "{sha256}" }}]
"""
HERE = """\
name = "{name}-here"
summary = "{name}'s GPU, for this platform and Python"
platform = "host"
python = "host"
cuda_architectures = {architectures}
cuda = "{cuda}"
"""


def cuda_targets() -> dict[str, list[str]]:
    """Every shipped target with a GPU, with its compute capabilities."""
    documents = [tomllib.loads(path.read_text()) for path in sorted(RECIPES.glob("targets/*.toml"))]
    return {one["name"]: one["cuda_architectures"] for one in documents if "cuda_architectures" in one}


def sources() -> list[Path]:
    """The kernels' files."""
    return sorted((DATA / "project").rglob("*.cu"))


def write_sdist(folder: Path) -> str:
    """The project as an sdist; returns its sha256."""
    folder.mkdir(parents=True, exist_ok=True)
    project = DATA / "project"
    with tarfile.open(folder / SDIST, "w:gz") as tar:
        for path in sorted(project.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                member = tarfile.TarInfo(f"demo_kernels-1.0/{path.relative_to(project).as_posix()}")
                member.size, member.mtime = path.stat().st_size, 1_700_000_000
                tar.addfile(member, io.BytesIO(path.read_bytes()))
    return hashlib.sha256((folder / SDIST).read_bytes()).hexdigest()


def make_root(folder: Path, links: Path, torch: str, toolkit: str = "") -> None:
    """Recipe, patch, train `t`, a target NAME-here for each shipped one with a GPU, and every-here for all of
    these GPUs at once; the sdist in `links`. toolkit: the shipped train whose CUDA toolkit is taken; otherwise
    it is the machine's own."""
    recipes = folder / "recipes"
    for name in ("trains", "targets"):
        (recipes / name).mkdir(parents=True)
    shutil.copytree(DATA / "patches", folder / "patches")
    pin = hashlib.sha256((DATA / "patches/kernels/0001-wide.patch").read_bytes()).hexdigest()
    (recipes / "kernels.toml").write_text((DATA / "kernels.toml").read_text().replace("@PATCH@", pin))
    train = TRAIN.format(torch=torch, no_sdist="0" * 64, sdist=SDIST, sha256=write_sdist(links))
    if toolkit:
        shipped = (RECIPES / f"trains/{toolkit}.toml").read_text()
        train += shipped[shipped.index("[components.cuda]") : shipped.index("[components.cusparselt]")]
    (recipes / "trains/t.toml").write_text(train)
    targets = cuda_targets()
    every = sorted({one for architectures in targets.values() for one in architectures}, key=float)
    for name, architectures in {**targets, "every": every}.items():
        listed = str(architectures).replace("'", '"')
        text = HERE.format(name=name, architectures=listed, cuda="13.0")
        (recipes / f"targets/{name}-here.toml").write_text(text)


if __name__ == "__main__":
    make_root(Path(sys.argv[1]), Path(sys.argv[1]) / "links", *sys.argv[2:])
