"""Real schedulers, workers and clients, as processes with roots of their own."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from http.client import HTTPConnection, HTTPException
from pathlib import Path

import pytest

from spark_build import __version__
from spark_build.farm import nodes
from spark_build.files import sha256_of
from spark_build.reporting import Reporter, reporting
from tests.conftest import Root
from tests.helpers import farms, processes
from tests.helpers.exports import make_key
from tests.helpers.farms import Lab, building, built_by, commands_with, held, release, until
from tests.helpers.recipe_roots import statuses

EIGHT = dict.fromkeys("abcdefgh", "")
NEEDS = {"b": "a", "c": "b", "d": "a", "f": "e", "g": "f"}
OTHER = "import spark_build; spark_build.__version__ = '0.0.1'; from spark_build.cli.main import run; run()"


@pytest.fixture
def token() -> Iterator[str]:
    """A number of seconds that nobody else sleeps; nobody does at the end."""
    number = f"9{random.randrange(10**8):08}"
    yield number
    for pid in commands_with(number):
        os.kill(pid, signal.SIGKILL)


def wheels(root: Root) -> dict[str, str]:
    """sha256 of each wheel in the view, read anew."""
    rows = root.json("wheelhouse", "list")["wheels"]
    return {Path(row["path"]).name: sha256_of(Path(row["path"])) for row in rows}


def entries(lab: Lab) -> set[str]:
    return {path.name for path in lab.remote.glob("entries/*/*")}


def abi(version: str) -> str:
    return f"cp{version.replace('.', '')}"


def answers(port: int, page: str) -> bool:
    """Whether somebody without a certificate is given a web page."""
    with contextlib.closing(HTTPConnection("127.0.0.1", port, timeout=10)) as asked:
        try:
            asked.request("GET", f"/{page}")
            return asked.getresponse().status < 400
        except (OSError, HTTPException):
            return False


def ended(client: subprocess.Popen[str]) -> tuple[dict[str, str], str]:
    """What became of each recipe, and what the client said."""
    out, err = client.communicate(timeout=240)
    assert client.returncode == 0, err
    return statuses(json.loads(out)), err


def test_a_worker_of_this_machine(tmp_path: Path) -> None:
    """local:1 starts and ends all it needs; the wheel and what happened come back."""
    lab = farms.make(tmp_path, {"a": ""})
    key = make_key(tmp_path, "me")
    refused = lab.client.run("build", "a", "--farm", "local:1")
    assert (refused.returncode, "there is none" in refused.stderr) == (2, True), refused.stderr
    words = ("remotes", "add", "lab", str(lab.remote), "--push", "--sign", str(key))
    lab.client.json(*words)
    refused = lab.client.run("build", "a", "--farm", "local:1")
    assert (refused.returncode, "nobody is trusted here" in refused.stderr) == (2, True), refused.stderr
    lab.client.json("wheelhouse", "trust", "add", "me", f"{key}.pub")
    done = lab.client.run("--json", "build", "a", "--no-closure", "--farm", "local:1")
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)["results"]
    assert (row["status"], "by " in row["reasons"][-1]) == ("built", True)
    assert Path(row["log"]).is_file()
    assert "a: build done in" in done.stderr, "progress comes back"
    assert [one["origin"] for one in lab.client.json("wheelhouse", "list")["wheels"]] == ["imported"]
    worker = lab.client.folder / "build" / "farm" / "0"
    assert not commands_with(str(worker))
    assert built_by(replace(lab.client, folder=worker)) == {"a"}


def test_who_is_refused(tmp_path: Path) -> None:
    """Clients and workers without the farm's certificate or of another version, and who asks for web pages."""
    lab = farms.make(tmp_path, {"a": ""})
    scheduler = lab.scheduler()
    (root,) = lab.roots("one")
    places = farms.listening(scheduler.pid)
    assert {host for host, _ in places} == {"127.0.0.1"}
    for page in ("health", "info/main/workers.html", "metrics"):
        assert not [port for _, port in places if answers(port, page)]
    assert lab.client.run("farm", "init", str(lab.certificates)).returncode == 2
    assert (lab.certificates / "farm.key").stat().st_mode & 0o777 == 0o600
    missing = lab.client.run("build", "a", "--farm", lab.address)
    assert (missing.returncode, "no certificate" in missing.stderr) == (2, True), missing.stderr
    plain = lab.client.run(*(word.replace("tls:", "tcp:") for word in lab.words("a")))
    assert (plain.returncode, "no address of a farm" in plain.stderr) == (2, True), plain.stderr
    lab.client.json("farm", "init", str(tmp_path / "others"))
    forged = lab.client.run(*lab.words("a")[:-1], str(tmp_path / "others"))
    assert (forged.returncode, "does not answer" in forged.stderr) == (4, True), forged.stderr
    stranger = lab.start("stranger", root, "worker", lab.address, certificates=tmp_path / "others")
    until(lambda: f"{lab.address} does not answer" in lab.said("stranger"), lambda: lab.said("stranger"))
    assert f"looking for the scheduler at {lab.address}" in lab.said("stranger")
    assert stranger.poll() is None
    assert "works for" not in lab.said("stranger")
    stranger.kill()
    for words in (lab.words("a"), ["farm", "worker", lab.address, "--certificates", str(lab.certificates)]):
        command = [sys.executable, "-c", OTHER, *root.command(*words)[3:]]
        other = subprocess.run(
            command, env=root.environment(), capture_output=True, text=True, check=False, timeout=60
        )
        assert other.returncode == 4, other.stderr
        assert f"runs spark-build {__version__}, this is spark-build 0.0.1" in other.stderr
    assert not entries(lab)


def test_a_key_that_others_can_read(tmp_path: Path) -> None:
    """One that was there before `farm init` may be open elsewhere; one that was copied may have lost its mode."""
    folder, key = tmp_path / "farm", tmp_path / "farm" / "farm.key"
    folder.mkdir()
    key.touch()
    key.chmod(0o666)
    with key.open() as held:
        nodes.make_certificate(folder)
        assert held.read() == ""
    assert key.stat().st_mode & 0o777 == 0o600
    told: list[str] = []
    with reporting(Reporter(told.append)):
        nodes.security(folder)
        assert told == []
        key.chmod(0o644)
        nodes.security(folder)
    assert told == [f"warning: every user of this machine can read {key}: chmod 600 it"]


def test_what_a_farm_cannot_do_is_refused(tmp_path: Path) -> None:
    lab = farms.make(tmp_path, {"a": ""})
    for words in (
        ("--stop-after", "fetch"),
        ("--shell",),
        ("--check-reproducible",),
        ("--source", f"a={tmp_path}"),
    ):
        done = lab.client.run("build", "a", "--farm", "local:1", *words)
        assert (done.returncode, f"{words[0]} works on this machine only" in done.stderr) == (2, True)
    for wrong in ("local:none", "local:0", "local:999", "tcp://head:1", ""):
        for command in ("build a", "doctor", "matrix a --dry-run"):
            done = lab.client.run(*command.split(), "--farm", wrong)
            assert (done.returncode, "next: " in done.stderr) == (2, True), (command, wrong, done.stderr)
    for command in ("doctor", "doctor --farm ssh:a"):
        done = lab.client.run(*command.split(), "--certificates", str(tmp_path))
        assert (done.returncode, "--certificates belongs to" in done.stderr) == (2, True), done.stderr
    for given, told in (
        (("--farm", "tls://head:1", "--jobs", "2"), "`farm worker --jobs N`"),
        (("--farm", "tls://head:1", "--memory", "2G"), "`farm worker --memory SIZE`"),
        (("--farm", "local:1", "--certificates", str(tmp_path)), "--certificates belongs to"),
        (("--certificates", str(tmp_path)), "--certificates belongs to"),
    ):
        done = lab.client.run("build", "a", *given)
        assert (done.returncode, told in done.stderr) == (2, True), done.stderr


def test_a_port_that_is_taken_is_an_error_of_the_machine(tmp_path: Path) -> None:
    lab = farms.make(tmp_path, {"a": ""})
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = ("--host", "127.0.0.1", "--port", str(taken.getsockname()[1]))
        words = ("farm", "scheduler", *where, "--certificates", str(lab.certificates))
        done = lab.client.run(*words, process=True)
    assert (done.returncode, "in use" in done.stderr) == (4, True), done.stderr


@pytest.mark.slow
def test_ctrl_c_ends_the_workers_of_this_machine(tmp_path: Path, token: str) -> None:
    lab = farms.make(tmp_path, {"a": held(token)})
    lab.share()
    client = lab.build("a", where=("--farm", "local:2"))
    until(lambda: commands_with(token))
    client.send_signal(signal.SIGINT)
    _, said = client.communicate(timeout=60)
    assert client.returncode == 130, said
    assert "Exception in thread" not in said
    assert not commands_with(token)
    assert not commands_with(str(lab.client.folder / "build" / "farm"))


@pytest.mark.slow
def test_a_worker_of_another_platform_is_given_nothing(tmp_path: Path) -> None:
    """The client waits, and says so, until one comes that will do."""
    lab = farms.make(tmp_path, {"a": ""})
    lab.scheduler()
    foreign, root = lab.roots("foreign", "one")
    lab.workers(foreign, before=("setarch", "i686"))
    client = lab.build("a")
    assert client.stderr is not None
    assert "no worker can take a: it needs spark-build " in client.stderr.readline()
    lab.workers(root)
    assert ended(client)[0] == {"a": "built"}
    assert not (foreign.folder / "build").exists()
    assert not (foreign.folder / "runs").exists()


@pytest.mark.slow
def test_eight_recipes_on_three_workers_are_what_one_machine_builds(tmp_path: Path) -> None:
    """Nothing is built twice; a fourth worker, of another platform, is asked for nothing."""
    lab = farms.make(tmp_path, EIGHT, NEEDS)
    lab.scheduler()
    *roots, foreign = lab.roots("one", "two", "three", "foreign")
    lab.workers(foreign, before=("setarch", "i686"))
    lab.workers(*roots)
    done, said = ended(lab.build(*EIGHT))
    assert done == dict.fromkeys(EIGHT, "built"), said
    shares = [built_by(root) for root in roots]
    assert sorted(name for share in shares for name in share) == [*EIGHT]
    assert all(shares), "each had something to do"
    assert not (foreign.folder / "build").exists()
    alone = replace(lab.client, folder=tmp_path / "alone")
    shutil.copytree(lab.client.folder / "recipes", alone.folder / "recipes")
    alone.json("build", *EIGHT, "--no-closure")
    assert built_by(alone) == {*EIGHT}
    assert wheels(alone) == wheels(lab.client)
    done, _ = ended(lab.build(*EIGHT))
    assert done == dict.fromkeys(EIGHT, "reused")


@pytest.mark.slow
def test_a_matrix_is_handed_out_at_once(tmp_path: Path, token: str) -> None:
    """Each Python to workers that have it: what nobody can build waits, the rest is published."""
    lab = farms.make(tmp_path, {"a": held(token)})
    trains = lab.client.folder / "recipes" / "trains"
    (trains / "u.toml").write_text((trains / "t.toml").read_text().replace('name = "t"', 'name = "u"'))
    lab.scheduler()
    roots = lab.roots("one", "two")
    lab.workers(*roots)
    here, other = f"3.{sys.version_info.minor}", f"3.{sys.version_info.minor + 1}"
    where = ("--no-closure", *lab.words()[-4:])
    command = lab.client.command("matrix", "a", "--trains", "t,u", "--pythons", f"{here},{other}", *where)
    log = tmp_path / "client.log"
    with log.open("w") as out:
        client = processes.start(command, env=lab.client.environment(), stdout=out, stderr=out)
    until(lambda: all(building(root, "a") for root in roots), log.read_text)
    for root in roots:
        release(root, "a")
    until(lambda: log.read_text().count(": built") == 2, log.read_text)
    until(lambda: f", python {abi(other)}, 100 MiB of memory; " in log.read_text(), log.read_text)
    views = lab.client.folder / "wheelhouse" / "views"
    assert {path.name for path in views.iterdir()} == {f"host-cpu-{train}-{abi(here)}" for train in "tu"}
    client.send_signal(signal.SIGINT)
    assert client.wait(timeout=60) == 130, log.read_text()


@pytest.mark.slow
def test_a_lost_workers_recipe_is_built_elsewhere(tmp_path: Path, token: str) -> None:
    """What the lost one had pushed is not built again, and its compilers do not outlive it."""
    lab = farms.make(tmp_path, {"a": "", "b": held(token)}, {"b": "a"})
    lab.scheduler()
    one, two = lab.roots("one", "two")
    (first,) = lab.workers(one)
    client = lab.build("b")
    until(lambda: building(one, "b") and commands_with(token), lambda: lab.said("one"))
    lab.workers(two)
    first.kill()
    until(lambda: building(two, "b"), lambda: lab.said("two"))
    until(lambda: len(commands_with(token)) == 1)
    release(two, "b")
    done, said = ended(client)
    assert done == {"a": "built", "b": "built"}, said
    assert (built_by(one), built_by(two)) == ({"a"}, {"b"})


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_the_end_of_a_client_ends_its_compilers(tmp_path: Path, token: str, number: int) -> None:
    """Also of one that is killed; the worker stays and is there for the next."""
    lab = farms.make(tmp_path, {"a": held(token)})
    lab.scheduler()
    (root,) = lab.roots("one")
    (worker,) = lab.workers(root)
    client = lab.build("a")
    until(lambda: commands_with(token), lambda: lab.said("one"))
    client.send_signal(number)
    _, said = client.communicate(timeout=60)
    assert client.returncode == (130 if number == signal.SIGINT else -number), said
    until(lambda: not commands_with(token))
    assert worker.poll() is None
    again = lab.build("a")
    until(lambda: commands_with(token), lambda: lab.said("one"))
    release(root, "a")
    assert ended(again)[0] == {"a": "built"}


@pytest.mark.slow
def test_after_a_schedulers_restart_what_is_missing_is_handed_in_again(tmp_path: Path, token: str) -> None:
    """The worker finds the new scheduler by itself; what was pushed is not built again."""
    lab = farms.make(tmp_path, {"a": "", "b": held(token), "c": ""}, {"b": "a", "c": "b"})
    scheduler = lab.scheduler()
    (root,) = lab.roots("one")
    lab.workers(root)
    client = lab.build("c")
    until(lambda: commands_with(token), lambda: lab.said("one"))
    assert len(entries(lab)) == 1
    scheduler.kill()
    scheduler.wait()
    until(lambda: not commands_with(token))
    lab.scheduler("again")
    until(lambda: commands_with(token), lambda: lab.said("one"))
    release(root, "b")
    done, said = ended(client)
    assert done == {"a": "built", "b": "built", "c": "built"}, said
    assert len(entries(lab)) == 3
    assert said.count("a: build done in") == 1


@pytest.mark.slow
def test_a_full_disk_sends_the_recipe_to_another_worker(tmp_path: Path) -> None:
    """The disk is a small one of its own; where every worker's is full, the error says so."""
    big = "def work():\n    with open('big', 'wb') as file:\n        os.posix_fallocate(file.fileno(), 0, 700 << 20)"
    lab = farms.make(tmp_path, {"a": big, "b": big})
    lab.scheduler()
    full, good = lab.roots("full", "good")
    (full.folder / "build").mkdir()
    mount = 'mount -t tmpfs -o size=600m none "$0" && exec "$@"'
    lab.workers(full, before=("unshare", "-rm", "sh", "-c", mount, str(full.folder / "build")))
    failed = lab.client.run(*lab.words("a"))
    assert (failed.returncode, "the disk is full" in failed.stderr) == (4, True), failed.stderr
    lab.workers(good)
    done, said = ended(lab.build("a", "b"))
    assert done == {"a": "built", "b": "built"}, said
    assert "cannot: the disk is full" in said
    assert built_by(good) == {"a", "b"}
