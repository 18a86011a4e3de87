"""Farms that start their workers by ssh: a real sshd on loopback, workers with roots of their own."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from spark_build.farm import nodes
from spark_build.farm.address import parse_address
from tests.conftest import Root
from tests.helpers import farms
from tests.helpers.farms import SHORT, Lab, building, built_by, commands_with, held, release, until
from tests.helpers.recipe_roots import statuses
from tests.transfer.test_export_remote import Sshd, start_sshd

# The first connection works in one root, the second in the other one.
PROGRAM = """#!/bin/sh
export PIP_FIND_LINKS={links} {short}
for root in {roots}; do
    mkdir "$root.taken" 2>/dev/null && exec {python} -m spark_build --root "$root" --train t --target host-cpu "$@"
done
exit 9
"""


@dataclass(kw_only=True)
class Machines:
    """Two names of one machine, on which spark-build has a root for each connection."""

    lab: Lab
    roots: list[Root]
    sshd: Sshd
    temporary: Path

    @property
    def address(self) -> str:
        return f"ssh:127.0.0.1:{self.sshd.port},localhost:{self.sshd.port}"

    def left(self) -> list[str]:
        """What is still there of the workers."""
        running = [str(pid) for root in self.roots for pid in commands_with(f"{root.folder}\0")]
        return [*running, *map(str, self.temporary.glob("tmp.*"))]


def make(folder: Path, recipes: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Machines]:
    lab = farms.make(folder, recipes)
    roots = lab.roots("one", "two")
    program, temporary = folder / "bin" / "spark-build", folder / "temporary"
    program.parent.mkdir()
    temporary.mkdir()
    text = PROGRAM.format(
        links=shlex.quote(lab.client.environment()["PIP_FIND_LINKS"]),
        short=" ".join(f"{name}={value}" for name, value in SHORT.items()),
        roots=" ".join(str(root.folder) for root in roots),
        python=sys.executable,
    )
    program.write_text(text)
    program.chmod(0o755)
    path = f"{program.parent}:/usr/bin:/bin"
    server, sshd = start_sshd(folder / "sshd", f"SetEnv PATH={path} TMPDIR={temporary}")
    known = folder / "sshd" / "known_hosts"
    known.write_text(known.read_text() + known.read_text().replace("127.0.0.1", "localhost"))
    monkeypatch.setenv("RSYNC_RSH", sshd.rsh)
    lab.client = replace(lab.client, env={**SHORT, "RSYNC_RSH": sshd.rsh})
    yield Machines(lab=lab, roots=roots, sshd=sshd, temporary=temporary)
    server.terminate()
    server.wait(timeout=20)


@pytest.fixture
def machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machines]:
    yield from make(tmp_path, {"a": held("987652"), "b": held("987653")}, monkeypatch)


def test_two_machines_build_and_nothing_is_left_there(machines: Machines) -> None:
    one, two = machines.roots
    client = machines.lab.build("a", "b", where=("--farm", machines.address))
    until(
        lambda: {name for name in "ab" for root in machines.roots if building(root, name)} == {"a", "b"},
        lambda: [str(path) for root in machines.roots for path in root.folder.glob("build/*/*")],
    )
    folders = list(machines.temporary.glob("tmp.*"))
    assert len(folders) == 2
    assert {folder.stat().st_mode & 0o777 for folder in folders} == {0o700}
    for root in machines.roots:
        release(root, "a")
        release(root, "b")
    out, err = client.communicate(timeout=240)
    assert client.returncode == 0, err
    assert statuses(json.loads(out)) == {"a": "built", "b": "built"}
    assert built_by(one) | built_by(two) == {"a", "b"}
    assert all(built_by(root) for root in machines.roots)
    until(lambda: not machines.left(), machines.left)


def test_all_ends_with_a_client_that_is_killed(machines: Machines) -> None:
    client = machines.lab.build("a", where=("--farm", machines.address))
    until(lambda: any(building(root, "a") for root in machines.roots))
    client.kill()
    until(lambda: not machines.left() and not commands_with("987652"), machines.left)


def test_a_machine_without_spark_build_is_named_and_the_other_one_works(machines: Machines) -> None:
    one, two = machines.roots
    (one.folder.with_name("one.taken")).mkdir()  # for it there is only one root
    client = machines.lab.build("a", where=("--farm", machines.address))
    until(lambda: building(two, "a"))
    release(two, "a")
    out, err = client.communicate(timeout=240)
    assert (client.returncode, statuses(json.loads(out))) == (0, {"a": "built"}), err
    assert "ended: " in err
    assert "the worker on " in err
    (machines.temporary.parent / "bin" / "spark-build").unlink()
    none = machines.lab.client.run("build", "b", "--farm", machines.address, process=True)
    assert (none.returncode, "no worker is left" in none.stderr) == (4, True), none.stderr
    assert "not found" in none.stderr


def test_a_machine_that_ssh_does_not_reach_is_named(machines: Machines) -> None:
    closed = machines.lab.client.run("build", "a", "--farm", "ssh:127.0.0.1:1")
    assert (closed.returncode, "127.0.0.1 cannot be reached by ssh" in closed.stderr) == (4, True), (
        closed.stderr
    )
    assert "next: ssh -p 1 127.0.0.1 spark-build --version  (it must work without" in closed.stderr
    for hosts in ("", "-oProxyCommand=x", "-l@a", "a,,b", "a/b", "a;b", "a b", "a,-x", "a@"):
        refused = machines.lab.client.run("build", "a", "--farm", f"ssh:{hosts}")
        assert (refused.returncode, "is no machine" in refused.stderr) == (2, True), refused.stderr
    words = ("--farm", machines.address, "--certificates", str(machines.lab.certificates))
    assert machines.lab.client.run("build", "a", *words).returncode == 2


def test_the_others_work_and_nothing_is_left_where_one_is_not_reached(machines: Machines) -> None:
    client = machines.lab.build("a", where=("--farm", f"{machines.address.partition(',')[0]},localhost:1"))
    until(lambda: any(building(root, "a") for root in machines.roots))
    for root in machines.roots:
        release(root, "a")
    _, err = client.communicate(timeout=240)
    assert (client.returncode, "localhost cannot be reached by ssh" in err) == (0, True), err
    until(lambda: not machines.left(), machines.left)


def test_nothing_is_left_of_what_did_not_arrive_whole(machines: Machines) -> None:
    """The client may be killed while it hands the key over."""
    (node,) = parse_address(machines.address.partition(",")[0]).nodes
    command = [*shlex.split(machines.sshd.rsh), *node.command(nodes.UNPACK.format(size=10240), "-T")[1:]]
    sent = subprocess.run(command, input=b"half", capture_output=True, check=False, timeout=60)
    assert (sent.returncode, machines.left()) == (1, []), sent.stderr


def test_any_login_shell_hands_the_script_on() -> None:
    """In single quotes only these mean something to csh or fish."""
    (node,) = parse_address("ssh:me@a").nodes
    *_, login, script = node.command(nodes.UNPACK.format(size=1))
    assert (login, script.startswith("exec /bin/sh -c '"), script[-1]) == ("me@a", True, "'")
    assert not {*script[len("exec /bin/sh -c '") : -1]} & {*"'!\\\n"}


def test_the_doctors_of_machines_without_a_farm(machines: Machines) -> None:
    done = machines.lab.client.run("--json", "doctor", "--farm", machines.address, process=True)
    document = json.loads(done.stdout)
    assert [node["problem"] for node in document["nodes"]] == ["", ""], done.stderr
    assert document["differences"] == {}
    assert len({node["node"] for node in document["nodes"]} | {os.uname().nodename}) == 1
    until(lambda: not machines.left(), machines.left)
