"""`recipes new`, `pin` and `outdated` as a user meets them: real indexes, real git, a real compile."""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import tarfile
import threading
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from spark_build.authoring import pins, recipe_set
from spark_build.errors import RecipeError, SourceError
from spark_build.events import Event, Progress
from spark_build.paths import _rooted
from tests.conftest import SETUPTOOLS, TRAIN, Root
from tests.helpers.wheelhouse import make_wheel

# A name that no index has; the distribution inside is another one on purpose.
PROJECT_NAME = "spark-build-sample"
TINY = {
    **SETUPTOOLS,
    "PKG-INFO": "Metadata-Version: 2.1\nName: spark_build_sample\nVersion: 1.0\nSummary: so small\n",
}
IDENTITY = ["-c", "user.name=t", "-c", "user.email=t@example.org"]


def make_sdist(folder: Path, version: str, files: Mapping[str, str] = TINY, name: str = PROJECT_NAME) -> str:
    """An sdist in `folder`; its sha256."""
    stem = f"{name.replace('-', '_')}-{version}"
    folder.mkdir(exist_ok=True)
    path = folder / f"{stem}.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        for file, text in files.items():
            member = tarfile.TarInfo(f"{stem}/{file}")
            member.size = len(text.encode())
            tar.addfile(member, io.BytesIO(text.encode()))
    return hashlib.sha256(path.read_bytes()).hexdigest()


def git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", *IDENTITY, *arguments], cwd=folder, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def make_repository(folder: Path, files: Mapping[str, str] = SETUPTOOLS) -> Path:
    """A repository with the tags v1.0 (annotated) and v1.1."""
    folder.mkdir()
    git(folder, "init", "--quiet")
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "-m", "one")
    git(folder, "tag", "-a", "v1.0", "-m", "one")
    git(folder, "commit", "--quiet", "--allow-empty", "-m", "two")
    git(folder, "tag", "v1.1")
    return folder


def alone(root: Root) -> Root:
    """The same root on a machine where pip knows only the folder of links."""
    return Root(
        folder=root.folder,
        links=root.links,
        env={**root.env, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(root.links)},
    )


def recipe_of(root: Root, name: str) -> dict[str, Any]:
    return tomllib.loads((root.folder / "recipes" / f"{name}.toml").read_text())


def assert_nothing_written(root: Root, name: str) -> None:
    assert not list((root.folder / "recipes").glob(f"*{name}*"))


def test_from_an_sdist_in_a_folder(root: Root) -> None:
    sha256 = make_sdist(root.links, "1.0")
    document = root.json("recipes", "new", "sample", "--sdist", f"{PROJECT_NAME}==1.0", "--needs", "onnx")
    assert document["file"] == str(root.folder / "recipes" / "sample.toml")
    assert document["next"] == f"spark-build --root {root.folder} build sample"
    raw = recipe_of(root, "sample")
    assert raw["pin"]["sources"] == [
        {
            "kind": "sdist",
            "project": PROJECT_NAME,
            "filename": "spark_build_sample-1.0.tar.gz",
            "sha256": sha256,
            "size": (root.links / "spark_build_sample-1.0.tar.gz").stat().st_size,
        }
    ]
    assert (raw["distribution"], raw["summary"]) == ("spark_build_sample", "so small")
    assert [one.partition("==")[0] for one in raw["build"]["requires"]] == ["setuptools"]
    assert raw["needs"] == [
        {"name": "onnx", "providers": ["store", "public"], "why": "asked for with --needs"}
    ]
    # Every train has it now, as if it listed it.
    (step,) = [one for one in root.json("plan")["steps"] if one["recipe"] == "sample"]
    assert (step["version"], step["needs"]) == ("1.0", ["onnx"])


def test_a_real_project_to_a_wheel(root: Root, tmp_path: Path) -> None:
    made = root.run("recipes", "new", "markupsafe", "--sdist", "markupsafe==3.0.3")
    assert made.returncode == 0, made.stderr
    assert made.stdout.splitlines()[-1] == f"next: spark-build --root {root.folder} build markupsafe"
    built = root.json("build", "markupsafe")
    (row,) = built["results"]
    assert (row["version"], row["status"]) == ("3.0.3", "built")
    created = root.run("env", "create", str(tmp_path / "env"), "markupsafe")
    assert created.returncode == 0, created.stderr
    use = "import markupsafe._speedups as s; print(s._escape_inner('<'))"
    answer = subprocess.check_output([tmp_path / "env/bin/python", "-c", use], text=True)
    assert answer == "&lt;\n"


def test_from_a_tag(root: Root, tmp_path: Path) -> None:
    repository = make_repository(tmp_path / "repository")
    document = root.json("recipes", "new", "sample", "--git", f"file://{repository}@v1.0")
    raw = recipe_of(root, "sample")
    commit = git(repository, "rev-parse", "v1.0^{commit}")
    assert raw["pin"] == {
        "version": "1.0",
        "sources": [{"kind": "git", "url": f"file://{repository}", "tag": "v1.0", "commit": commit}],
    }
    assert document["version"] == "1.0"
    assert raw["distribution"] == "tiny"


def test_a_mistyped_tag_beside_one_that_is_no_version(root: Root, tmp_path: Path) -> None:
    repository = make_repository(tmp_path / "repository")
    git(repository, "tag", "v1.0a1b2")
    done = root.run("recipes", "new", "sample", "--git", f"file://{repository}@v9")
    assert done.returncode == SourceError.exit_code, done.stderr
    assert "tags are v1.1, v1.0, v1.0a1b2" in done.stderr


def test_submodules_are_asked_for(root: Root, tmp_path: Path) -> None:
    inner = make_repository(tmp_path / "inner")
    outer = make_repository(tmp_path / "outer")
    git(outer, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", f"file://{inner}", "inner")
    git(outer, "commit", "--quiet", "-m", "three")
    git(outer, "tag", "v2.0")
    root.json("recipes", "new", "sample", "--git", f"{outer}@v2.0")
    assert recipe_of(root, "sample")["pin"]["sources"][0]["submodules"] is True


def test_the_project_is_never_run(root: Root, tmp_path: Path) -> None:
    trap = f"open({str(tmp_path / 'ran')!r}, 'w')\n"
    hook = tmp_path / "template" / "hooks" / "post-checkout"
    hook.parent.mkdir(parents=True)
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path / 'ran'}\n")
    hook.chmod(0o755)
    files = {**SETUPTOOLS, "setup.py": trap + SETUPTOOLS["setup.py"]}
    make_sdist(root.links, "1.0", files)
    repository = make_repository(tmp_path / "repository", files)
    hooked = Root(folder=root.folder, links=root.links, env={"GIT_TEMPLATE_DIR": str(hook.parent.parent)})
    hooked.json("recipes", "new", "one", "--sdist", f"{PROJECT_NAME}==1.0")
    hooked.json("recipes", "new", "two", "--git", f"{repository}@v1.1")
    assert not (tmp_path / "ran").exists()


def test_a_link_out_of_the_sources_is_not_read(root: Root, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("[project]\nname = 'secret'\n")
    repository = make_repository(tmp_path / "repository", {"a.txt": ""})
    (repository / "pyproject.toml").symlink_to(tmp_path / "secret")
    git(repository, "add", ".")
    git(repository, "commit", "--quiet", "-m", "link")
    git(repository, "tag", "v3.0")
    done = root.run("recipes", "new", "sample", "--git", f"{repository}@v3.0")
    path = root.folder / "recipes" / "sample.toml"
    assert "secret" not in done.stdout + done.stderr + (path.read_text() if path.exists() else "")


def test_existing_recipes_are_kept(root: Root) -> None:
    sha256 = make_sdist(root.links, "1.0")
    before = (root.folder / "recipes" / "tiny.toml").read_text()
    for name in ("tiny", "onnx"):  # one's own, a shipped one
        done = root.run("recipes", "new", name, "--sdist", f"{PROJECT_NAME}==1.0")
        assert done.returncode == 2
        assert f"there is a recipe named '{name}'" in done.stderr
    assert (root.folder / "recipes" / "tiny.toml").read_text() == before
    done = root.run("recipes", "new", "tiny", "--sdist", f"{PROJECT_NAME}==1.0", "--force")
    assert done.returncode == 0, done.stderr
    assert recipe_of(root, "tiny")["pin"]["sources"][0]["sha256"] == sha256
    assert "train t pins tiny 1.0 itself" in done.stdout


def test_another_folder(root: Root, tmp_path: Path) -> None:
    make_sdist(root.links, "1.0")
    document = root.json(
        "recipes", "new", "sample", "--sdist", f"{PROJECT_NAME}==1.0", "--in", str(tmp_path / "mine")
    )
    assert Path(document["file"]) == tmp_path / "mine" / "recipes" / "sample.toml"
    assert document["next"] == f"spark-build --root {tmp_path / 'mine'} build sample"
    assert_nothing_written(root, "sample")


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--sdist", f"{PROJECT_NAME}==9.9"), 5, "there of 1.1, 1.0"),
        (("--sdist", "spark-build-no-such-thing==1"), 5, "check the spelling"),
        (("--sdist", f"{PROJECT_NAME}>=1"), 2, "PROJECT==VERSION"),
        (("--sdist", f"{PROJECT_NAME}==1.1"), 5, "spark-build-nowhere"),
        (("--git", "{repository}@v1.2"), 5, "tags are v1.1, v1.0"),
        (("--git", "{repository}"), 2, "URL@TAG"),
        (("--git", "{repository}-gone@v1"), 5, "no such repository"),
        (("--git", "https://user:secret@example.invalid/x@v1"), 2, "login"),
        (("--git", "ext::sh -c true@v1"), 2, "URL@TAG"),
        ((), 2, "give a name and one source"),
        (("--sdist", "a==1", "--git", "{repository}@v1.0"), 2, "give a name and one source"),
        (("--sdist", f"{PROJECT_NAME}==1.0", "--needs", "onx"), 2, "did you mean 'onnx'"),
    ],
)
def test_failures_leave_no_recipe(
    root: Root, tmp_path: Path, arguments: tuple[str, ...], code: int, said: str
) -> None:
    make_sdist(root.links, "1.0")
    make_sdist(
        root.links,
        "1.1",
        {**SETUPTOOLS, "pyproject.toml": '[build-system]\nrequires = ["spark-build-nowhere"]\n'},
    )
    repository = make_repository(tmp_path / "repository")
    given = [argument.format(repository=repository) for argument in arguments]
    done = root.run("recipes", "new", "sample", *given)
    assert (done.returncode, said in done.stderr) == (code, True), done.stderr
    assert "secret" not in done.stderr
    assert len([line for line in done.stderr.splitlines() if line.startswith("error:")]) == 1
    assert_nothing_written(root, "sample")


def test_a_name_that_is_none(root: Root) -> None:
    done = root.run("recipes", "new", "My_Lib", "--sdist", "a==1")
    assert done.returncode == 2
    assert "try my-lib" in done.stderr


def test_a_python_that_is_too_old(root: Root) -> None:
    make_sdist(root.links, "1.0", {**TINY, "PKG-INFO": TINY["PKG-INFO"] + "Requires-Python: >=3.99\n"})
    done = root.run("recipes", "new", "sample", "--sdist", f"{PROJECT_NAME}==1.0")
    assert done.returncode == 4
    assert "wants Python >=3.99" in done.stderr
    assert_nothing_written(root, "sample")


def real_hash(root: Root) -> str:
    return hashlib.sha256((root.links / "tiny-1.0.tar.gz").read_bytes()).hexdigest()


COMMENTED = """\
# the train of the tests
name = "t" # its name
summary = ""

[components.tiny]
version = "1.0"   # the first

[[components.tiny.sources]]
kind = "sdist"
project = "tiny"
filename = "tiny-1.0.tar.gz"
sha256 = "{sha256}" # of the index
# nothing follows
"""


def offer_requirements(root: Root) -> None:
    """Put wheels of the names and versions that tiny's build asks for beside its sdist."""
    for name, version in (("ninja", "1.13.2"), ("setuptools", "80.9.0"), ("wheel", "0.45.1")):
        make_wheel(root.links, name, version)


def of_tiny(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    """The rows of the train's only component; the shipped catalogue has pins of its own."""
    return [row for row in rows if row["recipe"] == "tiny"]


def test_pin_fills_in_what_is_missing(root: Root) -> None:
    offer_requirements(root)
    path, lock = (root.folder / "recipes" / one for one in ("trains/t.toml", "locks/pylock.tiny.toml"))
    size = (root.links / "tiny-1.0.tar.gz").stat().st_size
    whole = COMMENTED.format(sha256=real_hash(root))
    for text in (COMMENTED.format(sha256=""), TRAIN.format(sha256="")):
        path.write_text(text)
        assert root.run("plan", "tiny").returncode == 3  # no pin, no plan
        document = alone(root).json("recipes", "pin")
        assert [row["state"] for row in of_tiny(document["pins"])] == ["written", "written"]
        assert document["files"] == [str(path), str(lock)]
        lock.unlink()
        pinned = tomllib.loads(path.read_text())["components"]["tiny"]["sources"][0]
        assert (pinned["sha256"], pinned["size"]) == (real_hash(root), size)
        said = path.read_text().replace(f'"{real_hash(root)}"', '""')
        assert said.replace(f", size = {size}", "").replace(f"size = {size}\n", "") == text
    path.write_text("\n".join(line for line in whole.splitlines() if "sha256" not in line))
    assert alone(root).run("recipes", "pin", "tiny").returncode == 0
    assert tomllib.loads(path.read_text()) == tomllib.loads(whole + f"size = {size}\n")
    path.write_text(whole)
    for names, written in (((), whole), (("tiny",), whole.replace("# nothing", f"size = {size}\n# nothing"))):
        assert alone(root).run("recipes", "pin", *names).returncode == 0
        assert path.read_text() == written, "the sizes of what is pinned are asked for by name only"
    assert root.run("plan", "tiny").returncode == 0


def test_pin_fills_in_a_commit_of_a_recipe(root: Root, tmp_path: Path) -> None:
    repository = make_repository(tmp_path / "repository")
    root.json("recipes", "new", "sample", "--git", f"{repository}@v1.0")
    path = root.folder / "recipes" / "sample.toml"
    whole = path.read_text()
    path.write_text(whole.replace(git(repository, "rev-parse", "v1.0^{commit}"), ""))
    assert root.run("recipes", "pin", "sample").returncode == 0
    assert path.read_text() == whole


def test_pin_says_what_it_cannot_find(root: Root) -> None:
    path = root.folder / "recipes" / "trains" / "t.toml"
    text = COMMENTED.format(sha256="").replace("tiny-1.0.tar.gz", "tiny-3.0.tar.gz")
    path.write_text(text)
    done = alone(root).run("recipes", "pin")
    assert done.returncode == 5
    assert "tiny-3.0.tar.gz is not on" in done.stderr
    assert path.read_text() == text


def test_check_finds_a_changed_file_and_a_moved_tag(root: Root, tmp_path: Path) -> None:
    offer_requirements(root)
    repository = make_repository(tmp_path / "repository")
    root.json("recipes", "new", "sample", "--git", f"{repository}@v1.0")
    (
        root.folder / "recipes" / "locks" / "pylock.sample.toml"
    ).unlink()  # of wheels that are not in the folder
    check = ("recipes", "pin", "tiny", "sample", "--check")
    assert [row["state"] for row in alone(root).json(*check)["pins"]] == ["ok", "ok"]
    git(repository, "tag", "--force", "v1.0", "v1.1")
    with (root.links / "tiny-1.0.tar.gz").open("ab") as sdist:
        sdist.write(b"\0")
    before = root.state()
    done = alone(root).run("--json", *check)
    assert done.returncode == 5
    assert [row["state"] for row in json.loads(done.stdout)["pins"]] == ["changed", "changed"]
    assert real_hash(root) in done.stderr
    assert root.state() == before


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("components = 3", "components"),
        ("[components]\ntiny = 5", "components.tiny"),
        ("[components.tiny]\nsources = 5", "components.tiny.sources"),
        ("[components.tiny]\nsources = [5]", "components.tiny.sources"),
        ("[components.tiny]\nextra_sources = 5", "components.tiny.extra_sources"),
        ("[components.tiny.extra_sources]\nx = 5", "components.tiny.extra_sources"),
    ],
)
def test_pins_of_another_shape_are_told_with_their_file(root: Root, text: str, key: str) -> None:
    root.train(f'name = "t"\nsummary = "a train"\n{text}\n')
    done = root.run("recipes", "pin", "--check")
    assert done.returncode == RecipeError.exit_code, done.stderr
    assert f"t.toml: {key} must be " in done.stderr


def test_a_recipes_own_pin_of_another_shape(root: Root) -> None:
    (root.folder / "recipes" / "odd.toml").write_text("[pin]\nsources = 5\n")
    done = root.run("recipes", "pin", "--check")
    assert done.returncode == RecipeError.exit_code, done.stderr
    assert "odd.toml: pin.sources must be " in done.stderr


def test_moving_a_pin(root: Root) -> None:
    path = root.folder / "recipes" / "trains" / "t.toml"
    path.write_text(COMMENTED.format(sha256=real_hash(root)))
    sha256 = make_sdist(root.links, "1.2", SETUPTOOLS, name="tiny")
    done = alone(root).run("recipes", "pin", "--version", "tiny=1.3")
    assert done.returncode == 5
    assert "there are 1.2, 1.0" in done.stderr
    assert path.read_text() == COMMENTED.format(sha256=real_hash(root))
    done = alone(root).run("recipes", "pin", "--version", "tiny=1.2")
    assert done.returncode == 0, done.stderr
    moved = COMMENTED.format(sha256=sha256).replace('"1.0"', '"1.2"').replace("tiny-1.0", "tiny-1.2")
    assert path.read_text() == moved
    path.write_text(COMMENTED.format(sha256=real_hash(root)).replace("# nothing", "size = 1\n# nothing"))
    assert alone(root).run("recipes", "pin", "--version", "tiny=1.2").returncode == 0
    size = (root.links / "tiny-1.2.tar.gz").stat().st_size
    assert path.read_text() == moved.replace("# nothing", f"size = {size}\n# nothing")


def test_outdated(root: Root, tmp_path: Path) -> None:
    repository = make_repository(tmp_path / "repository")
    root.json("recipes", "new", "sample", "--git", f"{repository}@v1.0")
    for version in ("1.2", "2.0rc1"):
        make_sdist(root.links, version, SETUPTOOLS, name="tiny")
    make_sdist(root.links, "7-2", SETUPTOOLS, name="tiny")  # an older way to name files, no version 2
    document = alone(root).json("recipes", "outdated")
    rows = {row["recipe"]: row for row in document["components"]}
    assert rows["tiny"] == {
        "recipe": "tiny", "pinned": "1.0", "newest": "1.2", "source": "index", "state": "outdated",
    }  # fmt: skip
    assert rows["sample"] == {
        "recipe": "sample", "pinned": "1.0", "newest": "1.1", "source": "git", "state": "outdated",
    }  # fmt: skip


def ages(root: Root) -> dict[str, dict[str, str]]:
    return {row["recipe"]: row for row in alone(root).json("recipes", "outdated")["components"]}


def test_outdated_asks_the_index_where_the_git_host_is_silent(root: Root, tmp_path: Path) -> None:
    repository = make_repository(tmp_path / "repository")
    git_only = f"""\
name = "t"
summary = "s"

[components.tiny]
version = "1.0"
sources = [{{ kind = "git", url = "{repository}", tag = "v1.0", commit = "{"1" * 40}" }}]
"""
    root.train(git_only)
    for version in ("1.2", "1.4+ours"):  # what somebody built is no release
        make_sdist(root.links, version, SETUPTOOLS, name="tiny")
    assert (ages(root)["tiny"]["newest"], ages(root)["tiny"]["source"]) == ("1.1", "git")
    repository.rename(tmp_path / "gone")
    assert ages(root)["tiny"] == {
        "recipe": "tiny", "pinned": "1.0", "newest": "1.2", "source": "index", "state": "outdated",
    }  # fmt: skip
    root.train(git_only.replace('tag = "v1.0"', 'note = "between releases"'))
    assert ages(root)["tiny"]["newest"] == "1.2"
    # An install prefix is on no index, whatever project has its name.
    path = root.folder / "recipes" / "tiny.toml"
    prefix = '[cmake]\nexpect = ["bin/tiny"]\n'
    path.write_text(path.read_text().replace('"pep517"', '"cmake"') + prefix)
    done = alone(root).run("--json", "recipes", "outdated")
    assert done.returncode == 12
    (row,) = of_tiny(json.loads(done.stdout)["components"])
    assert row["state"].startswith("unknown (it is pinned by a commit")


def a_set(root: Root) -> str:
    """Make `tiny` a set of two projects' wheels; the train's text."""
    root.recipe(
        'name = "tiny"\ndistribution = "tiny-kit"\nsummary = "s"\nkind = "assemble"\n\n'
        "[build]\nmemory_per_job_mib = 1\ncore_minutes = 1\ndisk_mib = 1\n\n"
        '[prefix]\ncopy = { "one" = "." }\n'
    )
    wheels = [
        f'{{ kind = "wheel", project = "{one}", filename = "{one}-{version}-py3-none-any.whl", sha256 = "{"1" * 64}" }}'
        for one, version in (("one", "3.0"), ("two", "4.0"))
    ]
    text = (
        f'name = "t"\nsummary = "s"\n\n[components.tiny]\nversion = "1.0"\nsources = [{", ".join(wheels)}]\n'
    )
    root.train(text)
    return text


def test_a_set_of_wheels_goes_by_the_vendors_name_for_it(root: Root) -> None:
    a_set(root)
    make_sdist(root.links, "9.0", SETUPTOOLS, name="one")
    make_sdist(root.links, "1.1", SETUPTOOLS, name="tiny-kit")
    assert ages(root)["tiny"] == {
        "recipe": "tiny", "pinned": "1.0", "newest": "1.1", "source": "index", "state": "outdated",
    }  # fmt: skip


def test_a_set_of_wheels_is_not_moved_by_one_version(root: Root) -> None:
    text = a_set(root)
    path = root.folder / "recipes" / "trains" / "t.toml"
    done = alone(root).run("recipes", "pin", "--version", "tiny=1.1")
    assert done.returncode == 2
    assert "tiny is a set of 2 projects' wheels, each with a version of its own" in done.stderr
    assert f"in {path} write the filenames" in done.stderr
    assert f"then: {root.line} recipes pin tiny" in done.stderr
    assert path.read_text() == text


def planned(root: Root) -> dict[str, Any]:
    (step,) = [one for one in root.json("plan")["steps"] if one["recipe"] == "tiny"]
    return dict(step)


def test_the_line_that_plan_prints_pins_a_tag(root: Root, tmp_path: Path) -> None:
    repository = make_repository(tmp_path / "repository")
    waiting = """\
name = "t"
summary = "s"

[components.tiny]
version = "1.0"
sources = [{{ kind = "git", url = "{url}", tag = "v1.0", commit = "{commit}" }}] # stays
"""
    root.train(waiting.format(url=repository, commit=""))
    step = planned(root)
    (reason,) = step["reasons"]
    assert (step["decision"], reason.rpartition(": ")[2]) == (
        "BLOCKED",
        "`recipes pin tiny --train t`",
    )
    lint = root.run("recipes", "lint")
    assert lint.returncode == 0
    assert f"tiny: not established: the commit of v1.0 of {repository}. On a machine" in lint.stdout
    assert root.run(*reason.split("`")[1].split()).returncode == 0
    commit = git(repository, "rev-parse", "v1.0^{commit}")
    path = root.folder / "recipes" / "trains" / "t.toml"
    assert path.read_text() == waiting.format(url=repository, commit=commit)
    assert planned(root)["decision"] == "BUILD"
    assert "tiny: not established" not in root.run("recipes", "lint").stdout


def test_outdated_without_anybody_to_ask(root: Root) -> None:
    nobody = Root(
        folder=root.folder,
        links=root.folder,
        env={"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_EXTRA_INDEX_URL": "", "PIP_CONFIG_FILE": os.devnull,
             "PIP_FIND_LINKS": "", "PIP_RETRIES": "0"},
    )  # fmt: skip
    done = nobody.run("--json", "recipes", "outdated")
    assert done.returncode == 12
    assert (
        "error: nothing was checked: no index or repository answers for any pin of train t: " in done.stderr
    )
    (row,) = of_tiny(json.loads(done.stdout)["components"])
    assert row["state"].startswith("unknown (")
    assert "127.0.0.1:9" in row["state"]


def test_own_pins_are_judged_like_a_trains(root: Root) -> None:
    recipe = root.folder / "recipes" / "tiny.toml"
    recipe.write_text(
        recipe.read_text()
        + '\n[pin]\nversion = "1.0"\nversoin = ""\nsources = [{ kind = "sdist", project = "tiny", filename = "tiny-2.0.tar.gz", sha256 = "0" }]\n'
    )
    done = root.run("plan")
    assert done.returncode == 3
    for said in ("is version 2.0", "64 hexadecimal digits", "did you mean 'version'"):
        assert said in done.stderr


# --- a whole requirements file ----------------------------------------------------------------------


def from_file(root: Root, text: str, *more: str) -> tuple[int, Any]:
    (root.links.parent / "requirements.txt").write_text(text)
    done = root.run("--json", "recipes", "new", "-r", str(root.links.parent / "requirements.txt"), *more)
    return done.returncode, json.loads(done.stdout) if done.stdout else done.stderr


def offer_projects(root: Root) -> None:
    """`upper` is compiled against `lower`; `lower` has a wheel, of an older version only."""
    needs = '[build-system]\nrequires = ["setuptools==80.9.0", "lower>=1"]\nbuild-backend = "setuptools.build_meta"\n'
    offer_requirements(root)
    for version in ("1.0", "2.0"):
        make_sdist(root.links, version, {**SETUPTOOLS, "pyproject.toml": needs}, name="upper")
        make_sdist(root.links, version, SETUPTOOLS, name="lower")
    make_wheel(root.links, "lower", "1.0")


def test_a_set_has_one_resolution_and_needs_in_order(root: Root) -> None:
    offer_projects(root)
    lines = "# what we build\nupper >= 1, < 2 \\\n    --hash=sha256:00\n\nLower\nwin; sys_platform == 'win32'\ntiny\n"
    code, document = from_file(alone(root), lines)
    assert code == 0, document
    found = [(one["recipe"], one["version"], one["needs"]) for one in document["recipes"]]
    assert found == [("lower", "1.0", []), ("upper", "1.0", ["lower"])]
    assert document["kept"] == ["tiny"]
    assert document["next"] == f"spark-build --root {root.folder} build lower upper"
    assert recipe_of(root, "upper")["needs"][0]["versions"] == ">=1"
    steps = {one["recipe"]: one for one in root.json("plan")["steps"]}
    assert steps["upper"]["needs"] == ["lower"]


def test_one_project_that_fails_leaves_the_others(root: Root) -> None:
    offer_projects(root)
    code, document = from_file(alone(root), "lower\nnowhere\nupper>7\n")
    assert code == 5
    assert [one["recipe"] for one in document["recipes"]] == ["lower"]
    assert set(document["failed"]) == {"nowhere", "upper"}
    assert_nothing_written(root, "nowhere")


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("--index-url https://example.org/simple\n", 2, "requirement 1: '--index-url"),
        ("a\n./here\n", 2, "requirement 2: './here' names no project of an index"),
        ("a @ https://example.org/a.whl\n", 2, "a is given by a URL"),
        ("a; python_version ~= 'x'\n", 2, "names no project of an index"),
    ],
)
def test_a_file_that_names_other_things(root: Root, text: str, code: int, said: str) -> None:
    found, document = from_file(alone(root), text)
    assert found == code
    assert said in document["error"]["message"]


def test_a_file_that_names_nothing(root: Root) -> None:
    code, document = from_file(alone(root), "# nothing\n")
    assert (code, document) == (12, {"recipes": [], "kept": [], "failed": {}, "next": ""})


def test_projects_are_looked_into_side_by_side_and_counted() -> None:
    everyone, told = threading.Barrier(recipe_set.WORKERS, timeout=60), list[Event]()

    def work(name: str) -> str:
        everyone.wait()  # passes only when as many work at once
        return name.upper()

    names = [f"p{number}" for number in range(3 * recipe_set.WORKERS)]
    found = recipe_set._side_by_side(work, names, told.append, "asking")
    assert found == {name: name.upper() for name in names}
    assert list(found) == names
    assert [each.done for each in told if isinstance(each, Progress)] == list(range(1, 13))


def test_of_a_private_root_only_its_own_pins_are_asked_for(tmp_path: Path) -> None:
    shipped, own = tmp_path / "shipped", tmp_path / "shipped" / "own"
    for base, name in ((shipped, "vendor"), (own, "mine")):
        (base / "recipes" / "trains").mkdir(parents=True)
        pin = "[pin]\nversion = '1'\n" if base == own else ""
        (base / "recipes" / f"{name}.toml").write_text(f"name = '{name}'\n{pin}")
    (shipped / "recipes" / "trains" / "t.toml").write_text(
        "default = true\n[components.vendor]\nversion = '1'\n"
    )
    home = _rooted(own, shipped, None)
    assert [site.recipe for site in pins.sites(home, None, ())] == ["mine"]
    assert [site.recipe for site in pins.sites(home, None, ("vendor",))] == ["vendor"]
    assert [site.recipe for site in pins.sites(_rooted(tmp_path / "empty", shipped, None), None, ())] == [
        "vendor"
    ]
