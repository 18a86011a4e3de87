"""Makes the recorded root anew: `python -m tests.contract.root [--measure]` (needs pip's index, git and a compiler).

Only for a root that later code shall *also* read: the one that is kept must stay what users have on their disks.
The two runs with measurements are taken from the archive that is there; --measure makes them anew, which
installs the public torch (minutes). Nothing in the archive names the machine where it was made: what the
commands are told of it is neutral, what they find out is replaced before its digests are taken or exported.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import lzma
import os
import pwd
import re
import shutil
import sys
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from unittest import mock

from spark_build.cli import main as program
from spark_build.measure.arms import baseline_arm
from spark_build.measure.model import bench_json
from spark_build.paths import Home
from tests.conftest import SETUP, SETUPTOOLS, SETUPTOOLS_RECIPE, TRAIN, make_sdist
from tests.contract import harness
from tests.helpers import benches
from tests.helpers.wheelhouse import make_wheel
from tests.measure.test_crossrun import document as burn_in

PLACE = Path(harness.RECORDED)
CONFIGURED = dict(os.environ)
SEARCHED = "/usr/local/bin:/usr/bin:/bin"  # the PATH that is recorded
HELPER = "little"
TINY = {**SETUPTOOLS, "setup.py": SETUP.replace('name="tiny"', f'name="tiny", install_requires=["{HELPER}"]')}
BROKEN = {**SETUPTOOLS, "native.c": '#include "nowhere.h"\n'}
PATCH = """\
--- a/native.c
+++ b/native.c
@@ -2,3 +2,3 @@
 #include <Python.h>
-static PyObject *answer(PyObject *self, PyObject *args) { return PyLong_FromLong(42); }
+static PyObject *answer(PyObject *self, PyObject *args) { return PyLong_FromLong(43); }
 static PyMethodDef methods[] = {{"answer", answer, METH_NOARGS, ""}, {NULL, NULL, 0, NULL}};
"""
PATCHED = """
[[patches]]
file = "tiny/0001-answer.patch"
why = "another answer"
sha256 = "{sha256}"
upstream = "https://example.org/1"
trains = ["t"]
"""
# Also keeps the RPATH of the recording machine's Python out of the wheel.
LINKED = """
[build.env.LDSHARED]
value = "gcc -shared -Wl,-rpath,/home/user/python/lib"
why = "a finding for the audit"
"""


def say(*arguments: str, expect: Sequence[int] = (0,)) -> None:
    """Run one command on the root; any other exit code ends the recording."""
    line = ["--root", str(PLACE / "root"), "--train", "t", "--target", "host-cpu", *arguments]
    code = program.main(line)
    if code not in expect:
        raise SystemExit(f"{' '.join(line)}: exit code {code}")


@contextlib.contextmanager
def recording() -> Iterator[None]:
    """As in the tests, but with only the folders of every system in PATH."""
    with harness.elsewhere(PLACE), mock.patch.dict(os.environ, {"PATH": SEARCHED}):
        yield


@contextlib.contextmanager
def installing() -> Iterator[None]:
    """With pip as this machine has it configured, and the wheels in links/."""
    pip = {name: value for name, value in CONFIGURED.items() if name.startswith(("PIP_", "UV_", "SSL_"))}
    links = f"{PLACE / 'links'} {CONFIGURED.get('PIP_FIND_LINKS', '')}".strip()
    with mock.patch.dict(os.environ, {**pip, "PIP_FIND_LINKS": links}):
        del os.environ["PIP_NO_INDEX"]
        yield


def sources() -> None:
    """Write the recipes that are frozen, the root's own, and what pip finds."""
    root, links = PLACE / "root", PLACE / "links"
    for name in ("recipes", "patches"):
        shutil.copytree(harness.CHECKOUT / name, PLACE / "shipped" / name)
    (PLACE / "shipped" / "bench").symlink_to(harness.CHECKOUT / "bench")
    (root / "recipes" / "trains").mkdir(parents=True)
    hashes = {}
    for name, files in (("broken", BROKEN), ("tiny", TINY)):
        made = make_sdist(
            links / name, {k.replace("tiny/", f"{name}/"): v.replace("tiny", name) for k, v in files.items()}
        )
        packed = made.rename(links / f"{name}-1.0.tar.gz")
        (links / name).rmdir()
        hashes[name] = hashlib.sha256(packed.read_bytes()).hexdigest()
        text = SETUPTOOLS_RECIPE.format(disk=50).replace("tiny", name)
        (root / "recipes" / f"{name}.toml").write_text(text)
    (root / "patches" / "tiny").mkdir(parents=True)
    (root / "patches" / "tiny" / "0001-answer.patch").write_text(PATCH)
    with (root / "recipes" / "tiny.toml").open("a") as file:
        file.write(PATCHED.format(sha256=hashlib.sha256(PATCH.encode()).hexdigest()) + LINKED)
    train = TRAIN.format(sha256=hashes["tiny"])
    component = train[train.index("[components.tiny]") :].replace(hashes["tiny"], hashes["broken"])
    (root / "recipes" / "trains" / "t.toml").write_text(train + "\n" + component.replace("tiny", "broken"))
    make_wheel(links, HELPER)


def builds() -> None:
    """Two generations, the first one pinned; a build that failed."""
    recipe = PLACE / "root" / "recipes" / "tiny.toml"
    say("all", "tiny")
    say("wheelhouse", "pin", "1")
    recipe.write_text(recipe.read_text() + '\n[build.env.CFLAGS]\nvalue = "-O1"\nwhy = "another build"\n')
    say("all", "tiny")
    say("build", "broken", expect=(7,))


def measurements() -> None:
    """A burn-in and a run of the suite with the public torch."""
    state = PLACE / "torch"
    folders = {name: state / name for name in ("wheelhouse", "build", "sources", "runs", "cache")}
    with installing():
        baseline_arm(
            Home(data=(harness.CHECKOUT,), is_strange=False, **folders), "2.13", PLACE / "public", print
        )
    arms = ("--arm", f"a={PLACE / 'public'}", "--arm", f"b={PLACE / 'public'}")
    short = ("--rounds", "2", "--seed", "3")
    say("verify", "--burn-in", "--quick", *arms, *short, "--size", "128", "--duration", "0.3", expect=(0, 11))
    say("bench", "run", *arms, *short, "--workload", "elementwise", "--duration", "0.1")


def measured() -> None:
    """Take the folders of the burn-in and of the suite's run out of the archive."""
    with tarfile.open(harness.ARCHIVE) as tar:
        names = tar.getnames()
        runs = tuple(
            f"{Path(name).parent}/"
            for name in names
            if re.fullmatch(r"root/runs/[^/]*/(burn-in|bench)\.json", name)
        )
        assert len(runs) == 2, runs
        wanted = [member for member in tar.getmembers() if f"{member.name}/".startswith(runs)]
        tar.extractall(PLACE, wanted, filter="tar")


def given() -> None:
    """Files that commands are given: of the runs, of simulated ones with known differences, and damaged ones."""
    folder, runs = PLACE / "given", PLACE / "root" / "runs"
    folder.mkdir(exist_ok=True)
    for name, kept in (("burn-in.json", "burn-in.json"), ("bench.json", "suite.json")):
        (found,) = runs.glob(f"*/{name}")
        shutil.copy(found, folder / kept)
    for name, rate in (("same", 1.0), ("slower", 0.7)):
        (folder / f"{name}.json").write_text(json.dumps(burn_in(candidate=rate)))
    speeds = {"native": {}, "container": {"gemm": 1.5, "overhead": 1 / 1.3}}
    simulated = benches.bench(speeds, memory={"native": 20000, "container": 46600})
    (folder / "bench.json").write_text(json.dumps(bench_json(simulated)))
    rows = [
        f"{arm},latency_ms,{value + step / 100}" for arm, value in (("a", 10), ("b", 12)) for step in range(8)
    ]
    (folder / "others.csv").write_text("\n".join(["environment,metric,value", *rows, ""]))
    for name, size in (("wheels", None), ("damaged", -100)):
        (PLACE / name).mkdir()
        wheel = next((PLACE / "root" / "wheelhouse" / "store").rglob("tiny-1.0-1_*.whl"))
        (PLACE / name / wheel.name).write_bytes(wheel.read_bytes()[:size])
    whole = (folder / "view.tar").read_bytes()
    (folder / "cut.tar").write_bytes(whole[: len(whole) // 2])
    wrong = PLACE / "wrong" / "recipes"
    wrong.mkdir(parents=True)
    (wrong / "bad.toml").write_text('name = "other"\nkind = "magic"\nunknown = 1\n')


def _leading(path: str) -> re.Pattern[str]:
    """Return what matches a path where one begins and up to a whole name; also behind -I and -L."""
    return re.compile(rf"(?:(?<![\w.)}}/-])|(?<=\s-[IL])){re.escape(path)}(?![\w-]|\.\w)")


def neutral() -> dict[re.Pattern[str], str]:
    """Return what tells of this machine, with what stands in its place; longer paths first."""
    paths = {
        str(Path(sys.executable).parent): "/usr/bin",
        str(Path(sys.prefix)): "/usr",
        str(Path(sys.base_prefix).resolve()): "/usr",
        str(harness.CHECKOUT): "/usr/share/spark-build",
        # HOME is another one while commands run; the sandbox asks the system
        **dict.fromkeys((pwd.getpwuid(os.getuid()).pw_dir, CONFIGURED["HOME"]), "/home/user"),
    }
    words = {os.uname().release: "6.1.0"}
    for model in re.findall(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text()):
        words[model] = "Example CPU"
    return {
        re.compile(r"^Looking in (links|indexes): .*\n", re.MULTILINE): "",
        **{_leading(path): paths[path] for path in sorted(paths, key=len, reverse=True)},
        **{re.compile(re.escape(word)): words[word] for word in words},
    }


def scrub(*, stamp: bool) -> None:
    """Take the recording machine out of all text files; a paper's digest in its record follows."""
    swaps = neutral()
    for path in sorted(PLACE.rglob("*")):
        if path.is_symlink() or not path.is_file() or path.suffix in (".whl", ".so", ".gz", ".tar"):
            continue
        with contextlib.suppress(UnicodeDecodeError):
            text = old = path.read_text()
            for found, instead in swaps.items():
                text = found.sub(instead, text)
            if text != old:
                path.write_text(text)
    for record in PLACE.glob("root/wheelhouse/store/*/*/record.json") if stamp else ():
        said = json.loads(record.read_text())
        for name in said.get("papers", {}):
            said["papers"][name] = hashlib.sha256((record.parent / name).read_bytes()).hexdigest()
        record.write_text(json.dumps(said, indent=1, sort_keys=True) + "\n")


def leftovers() -> None:
    """Remove what is large or of no use elsewhere: environments' interpreters, compiler caches, build requirements."""
    for name in ("torch", "public", "user", "root/cache", "public.log"):
        shutil.rmtree(PLACE / name, ignore_errors=True)
    for work in (PLACE / "root" / "build").glob("*/*/"):
        for name in ("env", "requirements", "dist", "tmp"):
            shutil.rmtree(work / name, ignore_errors=True)
    shutil.rmtree(PLACE / "root" / "build" / "baseline", ignore_errors=True)
    for kept in (PLACE / "root" / "sources").rglob("*.whl"):
        kept.unlink()
    shutil.rmtree(PLACE / "env" / "bin", ignore_errors=True)
    (PLACE / "env" / "lib64").unlink(missing_ok=True)
    (PLACE / "shipped" / "bench").unlink()


def pack() -> None:
    """One archive, of the same bytes for the same files."""

    def plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        return member

    harness.DATA.mkdir(exist_ok=True)
    with (
        lzma.open(harness.ARCHIVE, "wb", preset=9 | lzma.PRESET_EXTREME) as file,
        tarfile.open(fileobj=file, mode="w") as tar,
    ):
        for path in sorted(PLACE.rglob("*")):
            tar.add(path, path.relative_to(PLACE), recursive=False, filter=plain)


def make(*, measure: bool) -> None:
    """Record all of it."""
    shutil.rmtree(PLACE, ignore_errors=True)
    PLACE.mkdir(parents=True)
    sources()
    with recording():
        with installing():
            builds()
        if measure:
            measurements()
        else:
            measured()
        scrub(stamp=True)
        say("wheelhouse", "check", "--deep")
        say("wheelhouse", "export", str(PLACE / "given" / "view.tar"), "--without-spark-build")
        say("env", "create", str(PLACE / "env"), "tiny", "--without-pip")
    given()
    scrub(stamp=False)
    with recording():
        say("wheelhouse", "check", "--deep")
    leftovers()
    pack()
    print(f"{harness.ARCHIVE}: {harness.ARCHIVE.stat().st_size} bytes")


if __name__ == "__main__":
    make(measure=sys.argv[1:] == ["--measure"])
