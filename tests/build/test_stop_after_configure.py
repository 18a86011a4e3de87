"""Runs that only configure: they end at the first build call, judge the features and publish nothing."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from spark_build.resources import jobserver
from tests.build.test_features_stop_a_build import CMAKELISTS, RECIPE
from tests.conftest import TRAIN, Root, make_root
from tests.helpers.jobs import tools
from tests.helpers.recipe_roots import make, sha256, statuses

__all__ = ["tools"]  # a fixture

ONLY = ("--stop-after", "configure")
# What a project prints, then a build of one step that leaves a file.
BUILDS = """
def work():
    print("--   USE_A : ON\\n--   USE_B : " + SAYS)
    with open("build.ninja", "w") as file:
        file.write("rule job\\n  command = echo made > $out\\nbuild made: job\\n")
    CALL
"""
NINJA = 'subprocess.run(["ninja"], check=True)'
CAPTURED = 'print(subprocess.run(["ninja"], capture_output=True).returncode, "went on", flush=True)'
# Its first step is printed; the second one takes long, until the test allows it not to.
BY_PATH = f"""
    with open("build.ninja", "a") as file:
        wait = "test -e $$HOME/../go-on || sleep 60; touch more"
        file.write(f"rule wait\\n  command = {{wait}}\\nbuild more: wait made\\n")
    found = [os.path.join(folder, "ninja") for folder in os.environ["PATH"].split(":")
             if not os.path.exists(os.path.join(folder, "{jobserver.MARK}"))]
    subprocess.run([next(path for path in found if os.path.exists(path))], check=True)
"""
FEATURES = '[[features]]\nname = "USE_A"\n\n[[features]]\nname = "USE_B"\n'
THREE = FEATURES + '\n[[features]]\nname = "USE_C"\n'


def project(base: Path, call: str = NINJA, *, says: str = "1", features: str = FEATURES) -> Root:
    """A root with a recipe `a` whose project prints two features and then makes this call."""
    root = make(base, {"a": BUILDS.replace("CALL", call).replace("SAYS", repr(says))})
    recipe = root.folder / "recipes" / "a.toml"
    recipe.write_text(recipe.read_text() + features)
    return root


def made(root: Root) -> list[Path]:
    """What the step of a project leaves."""
    return list(root.folder.glob("build/a/*/src/made"))


def features(document: Any) -> list[list[str | None]]:
    return [[one["name"], one["found"], one["status"]] for one in document["results"][0]["features"]]


def test_it_ends_at_the_first_build_call_and_a_build_goes_on_there(tmp_path: Path) -> None:
    root = project(tmp_path, features=THREE)
    done = root.run("build", "a", *ONLY)
    assert done.returncode == 0, done.stderr
    assert "a: only configuring 1.0 for host-cpu, train t: nothing is compiled or published" in done.stderr
    assert "features to be judged: USE_A, USE_B, USE_C" in done.stderr
    assert "a: configure done in" in done.stderr
    assert re.search(r"^a +1\.0 +configured ", done.stdout, re.MULTILINE)
    assert "\na: configured, features: USE_A ON, USE_B 1; not printed: USE_C\n" in done.stdout
    assert f"  next: {root.line} build a  (goes on in the same tree)\n" in done.stdout
    (log,) = root.folder.glob("build/a/*/build.log")
    assert f"  log:  {log}\n" in done.stdout
    assert "\nspark-build: configured; not run, as asked: ninja\n" in log.read_text()
    assert not made(root)
    assert not list((root.folder / "wheelhouse").glob("store/*/*/record.json"))
    assert not list((root.folder / "wheelhouse").glob("views/*/generations/*"))
    assert not list(root.folder.glob("runs/history/*"))
    assert "looks like an error" in root.run("log", "a", "--diagnosis").stdout

    again = root.json("build", "a", *ONLY)
    assert (statuses(again), again["exit_code"]) == ({"a": "configured"}, 0)
    assert features(again)[1:] == [["USE_B", "1", "ok"], ["USE_C", None, "not printed"]]
    assert (again["results"][0]["log"], again["results"][0]["seconds"] > 0) == (str(log), True)

    built = root.run("build", "a")
    assert built.returncode == 0, built.stderr
    assert "a: patch kept from the last run\na: environment kept from the last run\n" in built.stderr
    other = Root(folder=tmp_path / "other", links=root.links)
    shutil.copytree(root.folder / "recipes", other.folder / "recipes")
    assert statuses(other.json("build", "a")) == {"a": "built"}
    assert wheel(root) == wheel(other), "the same key and the same content as without configuring first"
    # What is in the store was configured and judged.
    assert statuses(root.json("build", "a", *ONLY)) == {"a": "reused"}


def wheel(root: Root) -> tuple[str, str]:
    (path,) = root.folder.glob("wheelhouse/store/*/*/*.whl")
    return path.name, json.loads(path.with_name("record.json").read_text())["content_digest"]


@pytest.mark.parametrize("call", [CAPTURED, BY_PATH], ids=["captured", "by path"])
def test_a_build_tool_past_our_wrapper_or_without_output(tmp_path: Path, call: str) -> None:
    root = project(tmp_path, call)
    done = root.run("build", "a", *ONLY)
    assert "\na: configured, features: USE_A ON, USE_B 1" in done.stdout
    assert bool(made(root)) is (call == BY_PATH)
    (tree,) = root.folder.glob("build/a/*/src")
    assert not (tree / "more").exists()
    (tree.parent / "go-on").touch()
    built = root.run("build", "a")
    assert built.returncode == 0, built.stderr
    assert "a: patch kept from the last run" in built.stderr


def test_all_missing_features_are_named_and_the_code_is_that_of_a_build(tmp_path: Path) -> None:
    root = project(tmp_path, says="OFF", features=THREE.replace('"USE_A"', '"USE_A"\nvalue = "OFF"'))
    done = root.run("--json", "build", "a", *ONLY)
    assert done.returncode == 7
    document = json.loads(done.stdout)
    assert (statuses(document), document["exit_code"]) == ({"a": "failed"}, 7)
    assert features(document) == [
        ["USE_A", "ON", "missing"], ["USE_B", "OFF", "missing"], ["USE_C", None, "not printed"],
    ]  # fmt: skip
    (error,) = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    assert "the build would lack USE_A" in error
    assert "the build would lack USE_B" in error
    assert root.run("build", "a").returncode == 7


def test_a_failed_configure_step(tmp_path: Path) -> None:
    """Steps of a nested build, which CMake prints when it gives up, are no build call."""
    said = "[1/9] Creating directories for 'sox-populate'\\nerror: no network"
    root = project(tmp_path, f'raise SystemExit("{said}")')
    done = root.run("build", "a", *ONLY)
    assert done.returncode == 7
    assert "a: configure failed after" in done.stderr
    assert f"  next: {root.line} build a --stop-after configure" in done.stderr


def test_a_project_that_compiles_by_itself(root: Root) -> None:
    """setuptools calls the compiler: nothing tells where configuring ends."""
    done = root.run("build", "tiny", *ONLY)
    assert done.returncode == 12, done.stderr
    (error,) = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    assert re.search("nothing was checked: .*, without ninja or make, so nothing tells where", error)
    assert f"  next: {root.line} build tiny" in done.stderr
    assert not list(root.folder.glob("wheelhouse/store/*/*"))
    built = root.run("build", "tiny", "--no-closure")
    assert built.returncode == 0, built.stderr
    assert "tiny: its tree is unpacked afresh: a build began there" in built.stderr


def test_a_project_with_nothing_to_compile(tmp_path: Path) -> None:
    root = make(tmp_path, {"a": ""})
    done = root.run("--json", "build", "a", *ONLY)
    assert (done.returncode, json.loads(done.stdout)["exit_code"]) == (12, 12)
    assert "nothing was checked: it was built to its end" in done.stderr


def test_the_room_that_compiling_takes_is_asked_for_before_compiling_only(tmp_path: Path) -> None:
    root = make(tmp_path, {"a": ""})
    recipe = root.folder / "recipes" / "a.toml"
    recipe.write_text(re.sub("disk_mib = .*", "disk_mib = 99999999", recipe.read_text()))
    early = root.run("build", "a", "--stop-after", "patch")
    assert early.returncode == 0, early.stderr
    late = root.run("build", "a", "--stop-after", "build")
    assert (late.returncode, "the builds need 1000" in late.stderr) == (4, True), late.stderr


def test_a_need_is_configured_and_what_reads_it_waits_for_its_build(tmp_path: Path) -> None:
    root = make(
        tmp_path, {name: BUILDS.replace("CALL", NINJA).replace("SAYS", "''") for name in "ab"}, {"b": "a"}
    )
    done = root.run("build", "b", *ONLY)
    assert done.returncode == 12, done.stderr
    assert "nothing was checked of b: needs a, which was only configured" in done.stdout
    assert f"  next: {root.line} build a, or --provide a=DIR" in done.stdout
    assert root.run("build", "a").returncode == 0
    assert statuses(root.json("build", "b", *ONLY)) == {"a": "reused", "b": "configured"}
    # Other tools or needs: the tree goes, and why.
    (key,) = root.folder.glob("build/b/*/build-key")
    key.write_text("0" * 64)
    done = root.run("all", "b", *ONLY)
    assert (done.returncode, "\nb: configured, " in done.stdout) == (0, True)
    assert "b: its tree starts afresh: made with other tools or needs (build key 00000000, now" in done.stderr


def test_a_need_of_which_the_version_counts_is_left_alone(tmp_path: Path) -> None:
    root = make(
        tmp_path, {name: BUILDS.replace("CALL", NINJA).replace("SAYS", "''") for name in "ab"}, {"b": "a"}
    )
    recipe = root.folder / "recipes" / "b.toml"
    recipe.write_text(recipe.read_text() + 'coupling = "version"\n')
    assert statuses(root.json("build", "b", *ONLY)) == {"a": "skipped", "b": "configured"}
    built = root.run("build", "b")
    assert built.returncode == 0, built.stderr
    assert "b: environment kept from the last run" in built.stderr, "the same build key"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (("build", "a", "--shell"), "--shell enters the tree as it is"),
        (("all", "a", "--burn-in"), "--stop-after configure builds nothing"),
        (("all", "a", "--reverify"), "--stop-after configure builds nothing"),
        (("build", "a", "--check-reproducible"), "--check-reproducible builds to the end"),
    ],
)
def test_options_that_contradict_it(tmp_path: Path, line: Sequence[str], said: str) -> None:
    root = make(tmp_path, {"a": ""})
    done = root.run(*line, *ONLY)
    assert done.returncode == 2
    assert said in done.stderr


def test_in_the_background(tmp_path: Path) -> None:
    root = project(tmp_path)
    assert root.run("build", "a", *ONLY, "--detach").returncode == 0
    done = root.run("attach", process=True)
    assert done.returncode == 0, done.stderr
    assert "a: configured, features: USE_A ON, USE_B 1" in done.stdout


def test_a_cmake_recipe_whose_probes_are_built(tmp_path: Path) -> None:
    """CMake builds its probes with the wrapped ninja: a configure step's own calls are made."""
    lists = CMAKELISTS.format(value="ON", hang="OFF").replace("{{", "{").replace("}}", "}")
    root = make_root(tmp_path, {"CMakeLists.txt": lists, "tiny.cpp": "int f() { return 1; }\n"})
    root.recipe(RECIPE.format(feature="USE_CUDNN"))
    root.train(TRAIN.format(sha256=sha256(root.links / "tiny-1.0.tar.gz")))
    document = root.json("build", "tiny", *ONLY)
    assert features(document) == [["USE_CUDNN", "ON", "ok"]]
    (tree,) = root.folder.glob("build/tiny/*/src/.spark-build")
    assert (tree / "build.ninja").exists()
    assert not list(tree.rglob("*.a"))
    assert "Detecting CXX compiler ABI info - done" in Path(document["results"][0]["log"]).read_text()
    built = root.run("build", "tiny", "--no-closure")
    assert built.returncode == 0, built.stderr
    assert "tiny: patch kept from the last run" in built.stderr


# As typed below a `cmake` or `configure` that is one of these scripts, or by itself.
CALLS = {
    "ninja": True,
    "ninja -v": True,
    "make -j4": True,
    "gmake": True,
    "cmake --build b": True,
    "sh -c ./cmake\\ --build\\ b": True,
    "./cmake -E env make": True,
    "ninja --version": False,
    "ninja -t clean": False,
    "make --version": False,
    "make -v": False,
    "make -n": False,
    "./cmake -S . -B b": False,
    "sh ./configure --prefix=/x": False,
    "sh -c ./cmake\\ .": False,
}


@pytest.mark.parametrize(("call", "ends"), CALLS.items(), ids=CALLS)
def test_calls_that_end_it(tmp_path: Path, call: str, ends: bool) -> None:
    """Real calls go to a tool that notes them."""
    jobserver.write_wrappers(tmp_path / "shims", cores=2)
    (tmp_path / "real").mkdir()
    for name in ("ninja", "make", "gmake"):
        (tmp_path / "real" / name).write_text('#!/bin/sh\necho "called $*"\n')
    for name in ("cmake", "configure"):
        (tmp_path / name).write_text("#!/bin/sh\nmake sub || exit\nexit\n")
    (tmp_path / "sleep").write_text("#!/bin/sh\n")
    for path in (*tmp_path.glob("real/*"), *(tmp_path / name for name in ("cmake", "configure", "sleep"))):
        path.chmod(0o755)
    env = {"PATH": f"{tmp_path}/shims:{tmp_path}:{tmp_path}/real:/usr/bin:/bin", jobserver.STOP: "stopped at"}
    done = subprocess.run(
        ["sh", "-c", call], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    assert (tmp_path / "stopped at").exists() is ends, done
    assert ("called" in done.stdout) is not ends
    assert done.returncode == (jobserver.STOPPED if ends else 0)
