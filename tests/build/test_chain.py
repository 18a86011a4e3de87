"""A chain like LLVM, Triton, PyTorch, vision in miniature: real git, cmake, pybind11, submodules."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from spark_build.build.environment import locate
from spark_build.errors import UsageError
from spark_build.recipes.model import Provision
from tests.conftest import CLI
from tests.helpers.commands import invoke
from tests.helpers.validators import check_provenance, check_sbom

pytestmark = pytest.mark.slow  # nine builds, one after the other

PINS = '["cmake==3.31.10", "ninja==1.13.2", "pybind11==2.13.6", "setuptools==80.9.0", "wheel==0.45.1"]'
BACKEND = '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n'
LLVM = {
    "lib/CMakeLists.txt": """
cmake_minimum_required(VERSION 3.20)
project(mini CXX)
add_library(mini STATIC mini.cpp)
set_target_properties(mini PROPERTIES POSITION_INDEPENDENT_CODE ON)
target_compile_definitions(mini PRIVATE BASE=${BASE})
install(TARGETS mini ARCHIVE DESTINATION lib)
install(FILES mini.h DESTINATION include)
""",
    "lib/mini.h": "int mini();\n",
    "lib/mini.cpp": '#include "mini.h"\nint mini() { return BASE; }\n',
}
EXTRA = {"extra.h": "inline int extra() { return 2; }\n"}
TRITON = {
    "pyproject.toml": BACKEND,
    "setup.py": """
import os, pybind11
from setuptools import Extension, setup
mini = os.environ["MINI_PREFIX"]
extension = Extension("mini_triton", ["binding.cpp"], language="c++", extra_link_args=[mini + "/lib/libmini.a"],
    include_dirs=[pybind11.get_include(), mini + "/include", "third_party/extra"])
setup(name="mini-triton", version="1.0", ext_modules=[extension])
""",
    "binding.cpp": """
#include <pybind11/pybind11.h>
#include "mini.h"
#include "extra.h"
PYBIND11_MODULE(mini_triton, m) { m.def("value", [] { return mini() + extra(); }); }
""",
}
TORCH = {
    "pyproject.toml": BACKEND,
    "setup.py": 'import os\nfrom setuptools import setup\n'
    'setup(name="mini-torch", version=os.environ["MINI_VERSION"], py_modules=["mini_torch"],'
    ' install_requires=["mini-triton==1.0"])\n',
    "mini_torch.py": "ABI = 1\n",
}  # fmt: skip
VISION = {
    "pyproject.toml": BACKEND,
    # As torchvision does: the other package is imported while building.
    "setup.py": "import mini_torch\nfrom setuptools import setup\n"
    "open('mini_vision.py', 'w').write(f'BUILT_FOR = {mini_torch.ABI}\\n')\n"
    'setup(name="mini-vision", version="1.0", py_modules=["mini_vision"])\n',
}
RECIPES = {
    "mini-llvm": """
kind = "cmake"
[build]
requires = ["cmake==3.31.10", "ninja==1.13.2"]
any_target = true
[cmake]
source = "lib"
expect = ["lib/libmini.a", "include/mini.h"]
[cmake.define.BASE]
value = "40"
why = "lib/CMakeLists.txt"
""",
    "mini-triton": f"""
kind = "pep517"
[build]
requires = {PINS}
[build.env.MINI_PREFIX]
value = "{{need:mini-llvm}}"
why = "setup.py"
[[needs]]
name = "mini-llvm"
""",
    "mini-torch": f"""
kind = "pep517"
[build]
requires = {PINS}
[build.env.MINI_VERSION]
value = "{{wheel_version}}"
why = "setup.py"
[wheel]
version = "{{version}}+{{label}}"
[[needs]]
name = "mini-triton"
coupling = "version"
""",
    "mini-vision": f"""
kind = "pep517"
[build]
requires = {PINS}
[[needs]]
name = "mini-torch"
providers = ["store", "public", "path"]
""",
}


def git(folder: Path, *arguments: str) -> str:
    """Run git as somebody, whatever this machine's configuration."""
    who = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    names = {f"GIT_{role}_{part}": "t" for role in ("AUTHOR", "COMMITTER") for part in ("NAME", "EMAIL")}
    command = ["git", "-c", "protocol.file.allow=always", "-c", "init.defaultBranch=main", *arguments]
    return subprocess.check_output(command, cwd=folder, env={**os.environ, **who, **names}, text=True).strip()


@dataclass(frozen=True, kw_only=True)
class Chain:
    """Four repositories and the root that builds them."""

    base: Path
    root: Path

    def commit(self, name: str, files: Mapping[str, str]) -> str:
        """Commit files, move to the next tag, pin it in the train."""
        folder = self.base / name
        if not folder.exists():
            folder.mkdir()
            git(folder, "init", "-q")
        for path, text in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
        git(folder, "add", "-A")
        git(folder, "commit", "-q", "-m", "change")
        git(folder, "tag", f"t{len(git(folder, 'tag').split())}")
        return git(folder, "rev-parse", "HEAD")

    def pin(self) -> None:
        """Write the train with each repository's newest tag."""
        lines = ['name = "t"', 'summary = "a chain"']
        for name in RECIPES:
            folder = self.base / name
            commit = git(folder, "rev-parse", "HEAD")
            tag = git(folder, "tag", "--points-at", "HEAD")
            lines += [
                f"[components.{name}]",
                'version = "1.0"',
                f'sources = [{{ kind = "git", url = "{folder}", tag = "{tag}", commit = "{commit}", submodules = true }}]',
            ]
        (self.root / "recipes/trains/t.toml").write_text("\n".join(lines) + "\n")

    def run(self, *arguments: str) -> Any:
        """Run with --json; it must succeed."""
        options = ["--root", str(self.root), "--train", "t", "--target", "host-cpu", "--json"]
        done = invoke([*CLI, *options, *arguments])
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout)

    def statuses(self) -> dict[str, str]:
        """Build the whole chain: recipe -> what became of it."""
        document = self.run("build", *RECIPES, "--no-closure")
        return {row["recipe"]: row["status"] for row in document["results"]}


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Chain:
    """The chain, built once."""
    base = tmp_path_factory.mktemp("chain")
    made = Chain(base=base, root=base / "root")
    (made.root / "recipes/trains").mkdir(parents=True)
    for name, text in RECIPES.items():
        head = f'name = "{name}"\ndistribution = "{name}"\nsummary = "in miniature"\n'
        (made.root / f"recipes/{name}.toml").write_text(head + text)
    made.commit("extra", EXTRA)
    made.commit("mini-llvm", LLVM)
    made.commit("mini-triton", TRITON)
    git(base / "mini-triton", "submodule", "-q", "add", str(base / "extra"), "third_party/extra")
    made.commit("mini-triton", {})
    made.commit("mini-torch", TORCH)
    made.commit("mini-vision", VISION)
    made.pin()
    assert made.statuses() == dict.fromkeys(RECIPES, "built")
    return made


def test_the_chain_works_once_installed(chain: Chain, tmp_path: Path) -> None:
    chain.run("env", "create", str(tmp_path / "env"), "mini-torch", "mini-vision", "--without-pip")
    script = "import mini_triton, mini_vision; print(mini_triton.value(), mini_vision.BUILT_FOR)"
    assert subprocess.check_output([tmp_path / "env/bin/python", "-c", script], text=True) == "42 1\n"
    versions = {row["name"]: row["version"] for row in chain.run("wheelhouse", "list")["wheels"]}
    assert versions == {"mini-triton": "1.0", "mini-torch": "1.0+cpu.spark1", "mini-vision": "1.0"}


def test_each_link_names_the_one_before_in_its_papers(chain: Chain) -> None:
    """A prefix has papers, too: no wheel, so its subject is the content."""
    entries = {
        json.loads((folder / "record.json").read_text())["recipe"]: folder
        for folder in (chain.root / "wheelhouse/store").glob("??/*")
    }
    llvm = check_provenance((entries["mini-llvm"] / "provenance.json").read_bytes())
    content = json.loads((entries["mini-llvm"] / "record.json").read_text())["content_digest"]
    assert llvm["subject"] == [{"name": "prefix", "digest": {"sparkBuildContent": content}}]
    sbom = check_sbom((entries["mini-llvm"] / "sbom.json").read_bytes())
    assert sbom["metadata"]["component"]["purl"] == "pkg:generic/mini-llvm@1.0"
    triton = check_provenance((entries["mini-triton"] / "provenance.json").read_bytes())
    used = {one["name"]: one for one in triton["predicate"]["buildDefinition"]["resolvedDependencies"]}
    assert used["mini-llvm"]["digest"] == {"sparkBuildContent": content}
    assert used["mini-llvm"]["uri"] == "pkg:generic/mini-llvm@1.0"
    assert len(used["mini-triton"]["digest"]["gitCommit"]) == 40
    check_sbom((entries["mini-triton"] / "sbom.json").read_bytes())


def test_a_plan_goes_in_order_and_reuses(chain: Chain) -> None:
    steps = chain.run("plan", "mini-vision")["steps"]
    assert [step["recipe"] for step in steps] == list(RECIPES)
    assert {step["decision"] for step in steps} == {"REUSE"}


def test_a_prefix_for_any_target_is_built_once(chain: Chain) -> None:
    """Another GPU and another Python take the same prefix; a wheel is built for each."""
    target = 'name = "gpu"\nsummary = "s"\nplatform = "host"\npython = "cp399"\n'
    (chain.root / "recipes/targets").mkdir(exist_ok=True)
    (chain.root / "recipes/targets/gpu.toml").write_text(
        f'{target}cuda_architectures = ["12.1"]\ncuda = "13.0"\n'
    )
    llvm, triton = chain.run("--target", "gpu", "plan", "mini-triton")["steps"]
    assert (llvm["decision"], triton["decision"]) == ("REUSE", "BUILD")
    keys = [
        json.loads(path.read_text())["inputs"] for path in chain.root.glob("wheelhouse/store/??/*/key.json")
    ]
    with_python = {key["recipe"]["name"] for key in keys if "python" in key["toolchain"]}
    assert with_python == set(RECIPES) - {"mini-llvm"}


def test_changing_the_middle_rebuilds_exactly_its_dependents(chain: Chain) -> None:
    # Another Triton of the same version: torch only requires it, by its version.
    chain.commit("mini-triton", {"binding.cpp": TRITON["binding.cpp"].replace("+ extra()", "+ 2 * extra()")})
    chain.pin()
    assert chain.statuses() == {
        "mini-llvm": "reused", "mini-triton": "built", "mini-torch": "reused", "mini-vision": "reused",
    }  # fmt: skip
    # Another torch: what is linked against it is built anew, what it needs is not.
    chain.commit("mini-torch", {"mini_torch.py": "ABI = 2\n"})
    chain.pin()
    assert chain.statuses() == {
        "mini-llvm": "reused", "mini-triton": "reused", "mini-torch": "built", "mini-vision": "built",
    }  # fmt: skip
    # The bottom: up to where only a version couples.
    chain.commit("mini-llvm", {"lib/mini.cpp": LLVM["lib/mini.cpp"].replace("BASE", "BASE + 1")})
    chain.pin()
    assert chain.statuses() == {
        "mini-llvm": "built", "mini-triton": "built", "mini-torch": "reused", "mini-vision": "reused",
    }  # fmt: skip


def test_a_need_rebuilt_to_the_same_content_rebuilds_nobody(chain: Chain) -> None:
    # A new commit, but not one byte of the wheel: a file that is not packaged.
    chain.commit("mini-torch", {"NOTES": "nothing of this gets into the wheel\n"})
    chain.pin()
    assert chain.statuses()["mini-torch"] == "built"
    steps = {step["recipe"]: step for step in chain.run("plan")["steps"]}
    assert steps["mini-vision"]["decision"] == "REUSE"


def test_an_existing_environment_provides(chain: Chain, tmp_path: Path) -> None:
    env = tmp_path / "mine"
    chain.run("env", "create", str(env), "mini-torch", "--without-pip")
    (step,) = chain.run("--provide", f"mini-torch={env}", "plan", "mini-vision")["steps"]
    assert (step["decision"], step["needs"]) == ("BUILD", ["mini-torch"])
    (result,) = chain.run("--provide", f"mini-torch={env}", "build", "mini-vision", "--no-closure")["results"]
    assert result["status"] == "built"


def test_a_provider_that_is_not_there(chain: Chain, tmp_path: Path) -> None:
    options = ["--root", str(chain.root), "--train", "t", "--provide", f"mini-torch={tmp_path}/nowhere"]
    done = invoke([*CLI, *options, "plan", "mini-vision"])
    assert done.returncode == 2
    assert "there is no such folder" in done.stderr


def test_a_provider_that_is_a_mere_word(chain: Chain) -> None:
    """Also where the needs are built first, so that nothing else looks at it."""
    options = ["--root", str(chain.root), "--train", "t", "--provide", "mini-torch=path"]
    for name in ("mini-vision", "mini-torch"):
        done = invoke([*CLI, *options, "plan", name])
        assert done.returncode == 2, name
        assert "--provide mini-torch=path: there is no such folder\n  next: " in done.stderr


@pytest.fixture
def provided(tmp_path: Path) -> Provision:
    """Return an environment of the user's with torch 2.9.0."""
    env = tmp_path / "env"
    site = env / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    (site / "torch-2.9.0.dist-info").mkdir(parents=True)
    (site / "torch-2.9.0.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: torch\nVersion: 2.9.0\n"
    )
    (env / "bin").mkdir()
    (env / "bin" / "python").symlink_to(os.path.realpath(sys.executable))
    (env / "pyvenv.cfg").write_text(f"home = {Path(os.path.realpath(sys.executable)).parent}\n")
    return Provision(
        need="torch",
        distribution="torch",
        provider="path",
        coupling="version",
        version="2.9.0",
        path=str(env),
    )


def test_the_current_folder_does_not_answer_for_an_environment(
    provided: Provision, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkout = tmp_path / "checkout"
    (checkout / "torch.egg-info").mkdir(parents=True)
    (checkout / "torch.egg-info" / "PKG-INFO").write_text(
        "Metadata-Version: 2.1\nName: torch\nVersion: 2.12.0\n"
    )
    (checkout / "json.py").write_text("raise SystemExit('this is ours')\n")
    monkeypatch.chdir(checkout)
    monkeypatch.setenv("PYTHONPATH", str(checkout))
    found = locate(provided, tmp_path / "store", {})
    assert (found.identity, found.site) == ("2.9.0", next(Path(provided.path).glob("lib/*/site-packages")))


def test_an_environment_that_greets_is_read_and_a_broken_one_is_named(
    provided: Provision, tmp_path: Path
) -> None:
    (site,) = Path(provided.path).glob("lib/*/site-packages")
    (site / "greets.pth").write_text("import sys; sys.stdout.write('hello')\n")
    assert locate(provided, tmp_path / "store", {}).identity == "2.9.0"
    (site / "greets.pth").write_text("import atexit; atexit.register(print, 'goodbye')\n")
    with pytest.raises(UsageError, match="its Python does not say what is in it"):
        locate(provided, tmp_path / "store", {})
