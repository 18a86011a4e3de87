"""Builds in the sandbox, through the command line: what they cannot do, and that nothing outlives them.

bubblewrap must be installed and work here (run-tests sees to that).
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from spark_build.build.sandbox import PLACE, Sandbox, choose, refuse_unstarted, wrap
from spark_build.errors import HostError
from spark_build.process import Completed, run
from tests.conftest import PROJECT, RECIPE, Root, make_root
from tests.ground.test_process import alive, is_free
from tests.helpers import processes
from tests.helpers.wheelhouse import eventually

UNIQUE = f"3600.{secrets.randbelow(10**9):09d}"  # how long the sleepers of these tests sleep


def project(setup: str) -> dict[str, str]:
    """The small project, whose setup.py first does something."""
    return {**PROJECT, "setup.py": f"{setup}\n{PROJECT['setup.py']}"}


def provenance(root: Root) -> Any:
    (paper,) = root.folder.glob("wheelhouse/store/*/*/provenance.json")
    return json.loads(paper.read_text())["predicate"]["buildDefinition"]["internalParameters"]


def log_of(root: Root) -> str:
    (log,) = root.folder.glob("build/tiny/*/build.log")
    return log.read_text()


def allow_network(root: Root) -> None:
    root.recipe(RECIPE.format(disk=50) + "network = true\n")


@pytest.fixture
def server() -> Iterator[str]:
    """A server on this machine; its address."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"downloaded")

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as listening:
        threading.Thread(target=listening.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{listening.server_port}/"
        listening.shutdown()


@pytest.fixture
def bare_path(tmp_path: Path) -> Path:
    """A folder for PATH with what a build needs from there, without bwrap and unshare."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("sh", "true", "nice", "rm", "git", "dpkg-query", "c++", "cc", "gcc", "g++"):
        found = shutil.which(name)
        if found is not None:
            (folder / name).symlink_to(found)
    return folder


# --- what works -------------------------------------------------------------------------------------


def test_a_normal_build_passes_and_the_provenance_says_how(root: Root) -> None:
    done = root.run("build", "tiny", "--no-closure")
    assert done.returncode == 0, done.stderr
    assert "sandbox" not in done.stderr
    assert provenance(root)["sandbox"] == {"kind": "bubblewrap", "files": "allow-list", "network": False}


def test_the_tree_may_lie_in_the_home_and_behind_links(tmp_path: Path) -> None:
    """Where a user's checkout lies, and his interpreter may: below the folder that is hidden."""
    home = tmp_path / "home"
    root = make_root(home)
    (home / "link").symlink_to("root")
    linked = Root(folder=home / "link", links=root.links, env={"HOME": str(home)})
    done = linked.run("build", "tiny", "--no-closure")
    assert done.returncode == 0, done.stderr
    assert provenance(linked)["sandbox"]["kind"] == "bubblewrap"


def test_a_build_sees_its_own_home_and_scratch(tmp_path: Path) -> None:
    looking = (
        "import os, tempfile\nprint('HOME', os.listdir(os.path.expanduser('~')), os.environ['HOME'])\n"
        "print('TMP', tempfile.gettempdir(), os.listdir('/tmp'))\n"
        "open('/tmp/scratch', 'w').close()\nprint('PIDS', len([x for x in os.listdir('/proc') if x.isdigit()]))"
    )
    root = make_root(tmp_path, project(f"{looking}\nraise SystemExit(3)"))
    assert root.run("build", "tiny").returncode == 7
    (work,) = root.folder.glob("build/tiny/*/")
    said = dict(line.split(" ", 1) for line in log_of(root).splitlines() if line[:3] in ("HOM", "TMP", "PID"))
    assert said["HOME"] == f"[] {PLACE / 'tree/home'}"
    assert said["TMP"].startswith(str(PLACE / "tree/tmp"))
    assert (work / "home").is_dir()
    assert int(said["PIDS"]) <= 4, "processes of others are not to be seen"
    assert not Path("/tmp/scratch").exists()


# --- what does not ----------------------------------------------------------------------------------


def test_a_build_that_downloads_fails(tmp_path: Path, server: str) -> None:
    setup = f"import urllib.request\nprint('got', urllib.request.urlopen({server!r}).read())"
    root = make_root(tmp_path, project(setup))
    done = root.run("build", "tiny", "--no-closure")
    assert done.returncode == 7
    assert "URLError" in log_of(root)
    assert "got" not in [line.split(" ")[0] for line in log_of(root).splitlines()]


def test_the_sandbox_reaches_no_server(tmp_path: Path, server: str) -> None:
    code = f"import urllib.request; print(urllib.request.urlopen({server!r}).read())"
    asking = [sys.executable, "-c", code]
    shut = run(wrap(choose(), asking, env={}, writable=[tmp_path], cwd=tmp_path))
    assert (shut.returncode, "URLError" in shut.output) == (1, True)
    opened = run(wrap(choose(), asking, env={}, writable=[tmp_path], cwd=tmp_path, network=True))
    assert opened.output == "b'downloaded'"


def test_a_build_that_looks_up_a_name_fails(tmp_path: Path) -> None:
    root = make_root(tmp_path, project("import socket\nsocket.getaddrinfo('example.invalid', 80)"))
    assert root.run("build", "tiny", "--no-closure").returncode == 7
    assert "Temporary failure in name resolution" in log_of(root)


def test_a_recipe_may_allow_the_network(tmp_path: Path, server: str) -> None:
    setup = f"import urllib.request\nprint('got', urllib.request.urlopen({server!r}).read())"
    root = make_root(tmp_path, project(setup))
    allow_network(root)
    (step,) = [row for row in root.json("plan")["steps"] if row["recipe"] == "tiny"]
    assert "its build may use the network" in step["warnings"]
    done = root.run("build", "tiny", "--no-closure")
    assert done.returncode == 0, done.stderr
    assert provenance(root)["sandbox"] == {"kind": "bubblewrap", "files": "allow-list", "network": True}


def test_a_build_that_writes_outside_its_tree_fails(tmp_path: Path) -> None:
    """Each place is tried by a build of its own, which stops at the first error."""
    store = tmp_path / "store" / "root" / "wheelhouse" / "store"
    places = {
        "home": Path.home() / ".spark-build-test",
        "store": store / "x",
        "local": Path("/usr/local/spark-build-test"),
        "run": Path("/run/spark-build-test"),
    }
    for name, place in places.items():
        root = make_root(tmp_path / name, project(f"open({str(place)!r}, 'w').write('x')"))
        root.folder.joinpath("wheelhouse", "store").mkdir(parents=True)
        assert root.run("build", "tiny", "--no-closure").returncode == 7, name
        assert "Read-only file system" in log_of(root) or "No such file" in log_of(root), name
        assert not place.exists(), name


def test_what_is_written_beside_the_tree_does_not_arrive(tmp_path: Path) -> None:
    """/tmp is private and may be written, so with a root in /tmp such a build passes."""
    place = tmp_path / "root" / "build" / "tiny" / "x"
    root = make_root(tmp_path, project(f"open({str(place)!r}, 'w').write('x')"))
    root.run("build", "tiny", "--no-closure")
    assert not place.exists()


def test_the_users_home_cannot_be_read(tmp_path: Path) -> None:
    secret = Path.home() / f".spark-build-secret-{os.getpid()}"
    secret.write_text("do not tell")
    try:
        reading = f"import os\nprint('seen', os.path.exists({str(secret)!r}))\nraise SystemExit(3)"
        root = make_root(tmp_path, project(reading))
        assert root.run("build", "tiny", "--no-closure").returncode == 7
    finally:
        secret.unlink()
    assert "seen False" in log_of(root).splitlines()


def test_being_root_does_not_help(tmp_path: Path) -> None:
    """Who keeps its capabilities mounts everything writable again."""
    place = Path("/usr/local/spark-build-test")
    script = f"""
mount -o remount,rw,bind / && echo remounted
unshare --map-root-user --mount sh -c 'mount -o remount,rw,bind / && echo remounted'
touch {place}; grep CapBnd /proc/self/status"""
    done = run(wrap(choose(), ["sh", "-c", script], env={}, writable=[tmp_path], cwd=tmp_path))
    assert "remounted" not in done.output.splitlines()
    assert "CapBnd:\t0000000000000000" in done.output
    assert not place.exists()


# --- processes and locks ----------------------------------------------------------------------------


FAMILY = f"""
import subprocess, time
subprocess.Popen(["setsid", "sleep", "{UNIQUE}"])
subprocess.Popen(["setsid", "sh", "-c", "trap '' TERM HUP INT; while :; do sleep {UNIQUE}; done"])
import os
open("../tmp/running", "w").close()
while not os.path.exists("../go-on"): time.sleep(0.05)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_no_orphan_and_the_next_run_goes_on(tmp_path: Path, number: signal.Signals) -> None:
    root = make_root(tmp_path, project(FAMILY))
    process = processes.start(
        root.command("build", "tiny", "--no-closure"), env=root.environment(), stderr=subprocess.DEVNULL
    )
    try:
        assert eventually(lambda: any(root.folder.glob("build/tiny/*/tmp/running")), seconds=60)
        assert alive(UNIQUE)
        (lock,) = root.folder.glob("build/tiny/*.lock")
        assert not is_free(lock)
        process.send_signal(number)
        process.wait(timeout=60)
        assert eventually(lambda: not alive(UNIQUE), seconds=30), alive(UNIQUE)
        assert eventually(lambda: not lock.exists() or is_free(lock), seconds=30)
    finally:
        process.kill()
        for pid in alive(UNIQUE):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    (work,) = root.folder.glob("build/tiny/*/")
    (work / "go-on").touch()
    again = root.run("build", "tiny", "--no-closure")
    assert again.returncode == 0, again.stderr
    assert "environment kept from the last run" in again.stderr


def test_what_is_kept_open_arrives_inside(tmp_path: Path) -> None:
    """A lock's descriptor: who holds it inside holds the lock."""
    with (tmp_path / "lock").open("wb") as lock:
        command = [
            "sh",
            "-c",
            f"test -e /proc/self/fd/{lock.fileno()} && echo there; ls /proc/self/fd | wc -l",
        ]
        done = run(
            wrap(choose(), command, env={}, writable=[tmp_path], cwd=tmp_path), pass_fds=(lock.fileno(),)
        )
    assert done.output.splitlines() == ["there", "5"], "the lock, three standard ones, the listed folder"


def test_a_fifo_works_through_the_wall(tmp_path: Path) -> None:
    """As a jobserver needs it: bytes put in outside are taken inside, and come back."""
    fifo = tmp_path / "tokens"
    os.mkfifo(fifo)
    end = os.open(fifo, os.O_RDWR)
    try:
        os.write(end, b"+")
        script = "token=$(head -c 1 tokens); printf '%s' \"$token\" > tokens"
        assert (
            run(wrap(choose(), ["sh", "-c", script], env={}, writable=[tmp_path], cwd=tmp_path)).returncode
            == 0
        )
        assert os.read(end, 1) == b"+"
    finally:
        os.close(end)


# --- errors -----------------------------------------------------------------------------------------


def test_a_missing_program_is_called_missing(tmp_path: Path) -> None:
    done = run(wrap(choose(), ["no-such-program-here"], env={}, writable=[tmp_path], cwd=tmp_path))
    with pytest.raises(HostError, match="cannot run no-such-program-here: it is not installed"):
        refuse_unstarted(done)


def test_a_sandbox_that_cannot_be_set_up_is_called_so(tmp_path: Path) -> None:
    done = run(wrap(choose(), ["true"], env={}, writable=[tmp_path], cwd=tmp_path / "nowhere"))
    with pytest.raises(HostError, match="cannot set up the sandbox: bwrap: Can't chdir"):
        refuse_unstarted(done)


def test_a_failing_command_is_left_to_the_caller(tmp_path: Path) -> None:
    done = run(wrap(choose(), ["sh", "-c", "echo well; exit 1"], env={}, writable=[tmp_path], cwd=tmp_path))
    refuse_unstarted(done)
    assert (done.returncode, done.output) == (1, "well")
    refuse_unstarted(Completed(args=("sh",), returncode=127, output="bwrap: x", seconds=0.0))


# --- without bubblewrap -----------------------------------------------------------------------------


def test_without_bubblewrap_the_network_at_least_is_closed(
    bare_path: Path, tmp_path: Path, server: str
) -> None:
    (bare_path / "unshare").symlink_to(shutil.which("unshare") or "")
    setup = f"import urllib.request\nprint('got', urllib.request.urlopen({server!r}).read())"
    root = make_root(tmp_path, project(setup))
    root.env["PATH"] = str(bare_path)
    done = root.run("build", "tiny", "--no-closure")
    assert done.returncode == 7
    assert done.stderr.count("warning: no full sandbox: the file system is open to builds") == 1
    assert "bubblewrap is not installed" in done.stderr
    assert "URLError" in log_of(root)


def test_without_any_sandbox_builds_go_on_and_it_is_marked(bare_path: Path, tmp_path: Path) -> None:
    root = make_root(tmp_path)
    root.env["PATH"] = str(bare_path)
    done = root.run("build", "tiny", "--no-closure")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("warning: no full sandbox: network and file system are open to builds") == 1
    assert provenance(root)["sandbox"] == {"kind": "none", "files": "all", "network": True}


def test_who_requires_a_sandbox_gets_it_or_no_build(bare_path: Path, root: Root) -> None:
    weak = Root(folder=root.folder, links=root.links, env={"PATH": str(bare_path)})
    done = weak.run("build", "tiny", "--require-sandbox")
    assert done.returncode == 4, done.stderr
    assert "no full sandbox, and --require-sandbox was given: network and file system are open" in done.stderr
    allow_network(root)
    done = root.run("build", "tiny", "--require-sandbox")
    assert (done.returncode, "recipes/tiny.toml lets it use the network" in done.stderr) == (4, True)
    assert not list(root.folder.glob("build/tiny/*/src"))
    root.recipe(RECIPE.format(disk=50))
    done = root.run("build", "tiny", "--require-sandbox", "--no-closure")
    assert done.returncode == 0, done.stderr


def test_unshare_marks_what_it_is(bare_path: Path, root: Root) -> None:
    (bare_path / "unshare").symlink_to(shutil.which("unshare") or "")
    root.env["PATH"] = str(bare_path)
    done = root.run("build", "tiny", "--no-closure")
    assert done.returncode == 0, done.stderr
    assert provenance(root)["sandbox"] == {"kind": "unshare", "files": "all", "network": False}


@pytest.mark.parametrize(
    ("does", "reason"),
    [
        # As on Ubuntu 24.04 without a profile: it is installed, and fails. The reason is passed on.
        (
            "echo 'bwrap: setting up uid map: Permission denied' >&2; exit 1",
            "bwrap: setting up uid map: Permission denied",
        ),
        ("kill -KILL $$", "Killed"),  # as by a filter that refuses all calls
    ],
)
def test_a_bubblewrap_that_may_not_is_not_used(bare_path: Path, root: Root, does: str, reason: str) -> None:
    refusing = bare_path / "bwrap"
    refusing.write_text(f"#!/bin/sh\n{does}\n")
    refusing.chmod(0o755)
    root.env["PATH"] = str(bare_path)
    done = root.run("--json", "doctor")
    assert done.returncode == 0, done.stdout
    (finding,) = [one for one in json.loads(done.stdout)["findings"] if one["check"] == "sandbox"]
    assert finding["status"] == "warn"
    assert reason in finding["message"]
    assert finding["fix"]


def test_doctor_names_the_kind_or_the_package(bare_path: Path, root: Root) -> None:
    def finding(root: Root) -> Any:
        (one,) = [one for one in root.json("doctor")["findings"] if one["check"] == "sandbox"]
        return one

    good = finding(root)
    assert (good["status"], good["fix"]) == ("ok", "")
    assert "bubblewrap" in good["message"]
    (bare_path / "apt-get").symlink_to("/usr/bin/apt-get")
    root.env["PATH"] = str(bare_path)
    bad = finding(root)
    assert (bad["status"], bad["fix"].split()[-1]) == ("warn", "bubblewrap")


def test_a_recipe_with_network_is_not_caged_by_unshare(tmp_path: Path) -> None:
    """It closes nothing but the network; the mark says none."""
    weaker = Sandbox(kind="unshare", program=("unshare", "--net"), reason="r")
    assert wrap(weaker, ["true"], env={}, cwd=tmp_path, network=True)[0] == "/usr/bin/env"
    assert weaker.mark(network=True) == {"kind": "none", "files": "all", "network": True}


def test_the_interpreter_of_the_build_is_there(tmp_path: Path) -> None:
    """pyenv's and uv's lie in the home; a virtual environment of one works through its links."""
    made = subprocess.run(
        [getattr(sys, "_base_executable", sys.executable), "-m", "venv", "--without-pip", tmp_path / "env"],
        check=False,
    )
    assert made.returncode == 0
    link = tmp_path / "elsewhere"
    link.symlink_to("env")
    program = str(link / "bin" / "python")
    done = run(
        wrap(
            choose(),
            [program, "-c", "import ssl, sys; print(sys.prefix)"],
            env={},
            writable=[tmp_path / "env"],
            cwd=tmp_path / "env",
        )
    )
    assert done.output == str(link)
