"""`doctor` on this machine: what it finds is so, --fix runs commands, a bundle has no secrets."""

from __future__ import annotations

import ctypes.util
import json
import os
import pty
import socket
import subprocess
import tarfile
import threading
import time
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest

from spark_build.doctor import collect
from spark_build.doctor.model import IndexFacts
from spark_build.doctor.probe import MachineAccess
from tests.conftest import CLI, PROJECT, Root, make_root
from tests.helpers import processes
from tests.helpers.commands import invoke
from tests.helpers.webserver import serving

SECRET = "hunter2Xq7"


def by_check(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    return {one["check"]: one for one in json.loads(done.stdout)["findings"]}


# --- this machine --------------------------------------------------------------------------------


def test_what_it_says_of_this_machine_is_so(root: Root) -> None:
    done = root.run("--json", "doctor")
    found = by_check(done)
    assert done.returncode == 0, done.stdout
    assert {"check", "status", "message", "fix"} <= set(found["disk"])
    assert os.uname().release in found["kernel"]["message"]
    version = subprocess.run(["c++", "-dumpfullversion"], capture_output=True, text=True, check=True).stdout
    assert found["compiler"]["message"] == f"gcc {version.strip()}"
    names = dict(
        line.split("=", 1) for line in Path("/etc/os-release").read_text().splitlines() if "=" in line
    )
    assert names["PRETTY_NAME"].strip('"') in found["distribution"]["message"]


def test_this_machine_by_other_means() -> None:
    access = MachineAccess()
    seen = collect.system(access)
    free = subprocess.run(["free", "-m"], capture_output=True, text=True, check=False).stdout
    if free:  # procps is not everywhere
        assert seen.swap_total_mib == int(free.splitlines()[2].split()[1])
    assert abs(seen.now - time.time()) < 60
    assert seen.installed < time.time()
    assert access.which_all("sh", "/nowhere:relative:/bin") == ["/bin/sh"]
    assert access.read("/nowhere/at/all") == ""


def test_a_disk_that_is_too_small_fails(tmp_path: Path) -> None:
    root = make_root(tmp_path, disk=10**9)
    done = root.run("--json", "doctor")
    assert (done.returncode, by_check(done)["disk"]["status"]) == (4, "fail")


def test_the_text_says_what_mends_it(tmp_path: Path) -> None:
    root = make_root(tmp_path, disk=10**9)
    done = root.run("-q", "doctor")
    assert done.returncode == 4
    assert "disk   fail    " in done.stdout
    assert "disk: free some space" in done.stdout
    assert "memory" not in done.stdout  # -q leaves out what is well
    assert " 1 fail" in done.stdout


def test_a_tool_that_does_not_run_is_named_by_its_file(root: Root, tmp_path: Path) -> None:
    """As a wrapper of pip's is, called outside its environment; what is printed mends it."""
    broken = tmp_path / "my bin" / "cmake"
    broken.parent.mkdir()
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    env = {**root.environment(), "PATH": f"{broken.parent}:{os.environ['PATH']}"}

    def asked() -> dict[str, Any]:
        command = root.command("--json", "doctor")
        done = invoke(command, env=env)
        found: dict[str, Any] = by_check(done)["cmake"]
        return found

    before = asked()
    assert (before["status"], before["fix"]) == ("warn", f"rm '{broken}'")
    subprocess.run(before["fix"], shell=True, check=True)
    assert asked()["status"] == "ok"


def test_the_driver_is_asked_for_gpudirect_rdma(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against a libcuda of three functions, which answers the attribute of that number only."""
    if not ctypes.util.find_library("cuda"):
        assert MachineAccess().rdma() is None
    source = tmp_path / "cuda.c"
    source.write_text(
        "int cuInit(unsigned flags) { return flags; }\n"
        "int cuDeviceGet(int *device, int number) { *device = 7; return number; }\n"
        "int cuDeviceGetAttribute(int *value, int which, int device)\n"
        "{ *value = ANSWER; return which == 116 && device == 7 ? 0 : 1; }\n"
    )
    for answer in (0, 1):
        library = str(tmp_path / "libcuda.so.1")
        subprocess.run(["cc", "-shared", "-fPIC", f"-DANSWER={answer}", "-o", library, source], check=True)
        monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
        assert MachineAccess().rdma() is bool(answer)


def test_cluster_says_what_a_single_machine_lacks(root: Root) -> None:
    done = root.run("--json", "doctor", "--cluster")
    found = by_check(done)
    assert done.returncode == 4
    assert found["cluster-links"]["status"] == "fail"
    assert "cluster-links" not in by_check(root.run("--json", "doctor"))


# --- indexes -------------------------------------------------------------------------------------


def configured(monkeypatch: pytest.MonkeyPatch, *urls: str) -> IndexFacts:
    """What is found out about these indexes, and no others."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", urls[0])
    if urls[1:]:
        monkeypatch.setenv("PIP_EXTRA_INDEX_URL", " ".join(urls[1:]))
    return collect.reachable(lambda: 3)


def test_each_index_says_for_itself(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with serving() as site, socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()  # takes connections and never answers
        site.add("/well/pip/", b"")
        site.add("/locked/pip/", b"", login="me:you")
        site.add("/broken/pip/", b"", statuses=[503] * 9)
        quiet = f"http://127.0.0.1:{deaf.getsockname()[1]}"
        found = configured(
            monkeypatch,
            f"{site.url}/well",
            f"{site.url}/locked",
            f"{site.url}/broken",
            f"http://user:{SECRET}@127.0.0.1:{deaf.getsockname()[1]}",
            (tmp_path / "nowhere").as_uri(),
            tmp_path.as_uri(),
            f"{site.url}/without-that-project",
        )
    failures = [one.failure for one in found.asked]
    assert failures == [
        "", "it answers 401", "it answers 503", "no answer in time", "there is no such folder", "", "",
    ]  # fmt: skip
    assert SECRET not in str(found)
    assert quiet.removeprefix("http://") in found.asked[3].where
    assert found.lacking is None  # some answer: nobody needs to know


def test_what_lacks_is_counted_when_none_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    found = configured(monkeypatch, "http://127.0.0.1:1/simple")
    assert [one.failure for one in found.asked] == ["connection refused"]
    assert found.lacking == 3


def test_the_clock_of_the_index_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                date = formatdate(time.time() + 3600, usegmt=True)
                connection.sendall(f"HTTP/1.1 200 OK\r\nDate: {date}\r\nContent-Length: 0\r\n\r\n".encode())

        thread = threading.Thread(target=answer)
        thread.start()
        found = configured(monkeypatch, f"http://127.0.0.1:{server.getsockname()[1]}/simple")
        thread.join()
    (one,) = found.asked
    assert one.ahead is not None
    assert 3500 < one.ahead < 3700


def test_a_machine_without_index_that_has_everything(built: Root, tmp_path: Path) -> None:
    """Nothing is to be built: an index that is silent is worth a warning."""
    environment = {
        **built.environment(),
        "PIP_INDEX_URL": "http://127.0.0.1:1/simple",
        "PIP_EXTRA_INDEX_URL": "",
    }
    environment["PIP_CONFIG_FILE"] = os.devnull
    done = invoke(built.command("--json", "doctor"), env=environment)
    assert by_check(done)["index"]["status"] == "warn"
    assert done.returncode == 0, done.stdout


# --- --fix ---------------------------------------------------------------------------------------


@pytest.fixture
def mendable(root: Root, tmp_path: Path) -> Root:
    """A root whose PATH has no ccache, and an apt-get that makes one: the fix that is safe."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("sh", "true", "cat", "chmod", "dpkg-query", "c++", "bwrap", "git"):
        found = subprocess.run(["sh", "-c", f"command -v {name}"], capture_output=True, text=True, check=True)
        (folder / name).symlink_to(found.stdout.strip())
    apt = folder / "apt-get"
    apt.write_text(
        "#!/bin/sh\n"
        f'echo apt-get "$@"\necho "$@" >> {tmp_path}/ran\n'
        f"case \"$*\" in *ccache*) printf '#!/bin/sh\\necho ccache version 4.9\\n' > {folder}/ccache\n"
        f"chmod +x {folder}/ccache;; esac\n"
    )
    apt.chmod(0o755)
    root.env["PATH"] = str(folder)
    return root


def ran(root: Root) -> list[str]:
    file = root.folder.parent / "ran"
    return file.read_text().splitlines() if file.exists() else []


def test_fix_does_nothing_unasked(mendable: Root) -> None:
    done = mendable.run("doctor", "--fix")
    assert (done.returncode, ran(mendable)) == (2, [])
    assert "--fix --yes" in done.stderr


def test_fix_runs_what_is_safe_and_looks_again(mendable: Root) -> None:
    assert by_check(mendable.run("--json", "doctor"))["cache"]["status"] == "warn"
    assert ran(mendable) == []
    done = mendable.run("--json", "doctor", "--fix", "--yes")
    assert by_check(done)["cache"] == {
        "check": "cache", "status": "ok", "message": "ccache 4.9", "fix": "", "safe": False,
    }  # fmt: skip
    assert ran(mendable) == ["update", "install -y -- ccache"]
    (fixed,) = json.loads(done.stdout)["fixed"]
    assert (fixed["exit_code"], "install -y -- ccache" in fixed["command"]) == (0, True)
    assert "apt-get update" in done.stderr  # what it prints does not spoil the document


@pytest.mark.parametrize(("answer", "happens"), [(b"n\n", False), (b"y\n", True)])
def test_fix_asks_on_a_terminal(mendable: Root, answer: bytes, happens: bool) -> None:
    parent, child = pty.openpty()
    process = processes.start(
        mendable.command("doctor", "--fix"),
        env={**mendable.environment(), "NO_COLOR": "1"},
        stdin=child, stdout=child, stderr=child, start_new_session=True,
    )  # fmt: skip
    os.close(child)
    output = b""
    try:
        while chunk := os.read(parent, 4096):
            output += chunk
            if b"run it?" in output and answer:
                os.write(parent, answer)
                answer = b""
    except OSError:
        pass
    assert process.wait() == 0, output
    assert b"install -y -- ccache" in output
    assert bool(ran(mendable)) is happens


def test_a_fix_that_fails_is_told(mendable: Root) -> None:
    apt = Path(mendable.env["PATH"]) / "apt-get"
    apt.write_text("#!/bin/sh\nexit 100\n")
    done = mendable.run("--json", "doctor", "--fix", "--yes")
    (fixed,) = json.loads(done.stdout)["fixed"]
    assert fixed["exit_code"] == 100
    assert "failed with exit code 100" in done.stderr
    assert by_check(done)["cache"]["status"] == "warn"


# --- --bundle ------------------------------------------------------------------------------------

LEAKING = f"""
print("cloning https://user:{SECRET}@git.example/x and HF_TOKEN={SECRET}")
print("home is /home/adalove/secret-project")
raise SystemExit("token: {SECRET}")
"""


@pytest.fixture(scope="module")
def leaky(tmp_path_factory: pytest.TempPathFactory) -> Root:
    """A root in which a build failed that had printed secrets."""
    root = make_root(tmp_path_factory.mktemp("leaky"), {**PROJECT, "setup.py": LEAKING})
    done = root.run("build", "tiny")
    assert done.returncode == 7, done.stderr
    (log,) = root.folder.glob("build/tiny/*/build.log")
    assert SECRET in log.read_text()
    (run,) = root.folder.glob("runs/*/events.jsonl")
    assert SECRET in run.read_text()
    return root


def bundle(root: Root, path: Path, **variables: str) -> dict[str, str]:
    """The bundle's files by name."""
    done = subprocess.run(
        [*root.command(), "doctor", "--bundle", str(path)],
        env={**root.environment(), **variables}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    with tarfile.open(path) as tar:
        members = {one.name.partition("/")[2]: tar.extractfile(one) for one in tar.getmembers()}
        return {name: file.read().decode() for name, file in members.items() if file}


@pytest.mark.parametrize("name", ["bundle.tar", "bundle.tar.gz"])
def test_a_bundle_has_what_helps_and_no_secrets(leaky: Root, tmp_path: Path, name: str) -> None:
    files = bundle(
        leaky,
        tmp_path / name,
        https_proxy=f"http://user:{SECRET}@127.0.0.1:1",
        PIP_EXTRA_INDEX_URL=f"http://user:{SECRET}@127.0.0.1:1/simple",
        PIP_PASSWORD=SECRET,
        HOME=str(tmp_path / "adalove"),
        CPATH=str(tmp_path / "adalove" / "include"),
        SCCACHE_AZURE_CONNECTION_STRING=f"AccountKey={SECRET}",
        UNRELATED=SECRET,
    )
    log = next(name for name in files if name.startswith("logs/tiny-"))
    assert {
        "README.txt",
        "findings.json",
        "facts.json",
        "versions.json",
        "environment.json",
        "run/events.jsonl",
    } <= set(files)
    whole = "\n".join(files.values())
    assert SECRET not in whole
    assert json.loads(files["environment.json"])["CPATH"] == "~/include"
    assert "adalove" not in whole
    assert "cloning https://***@git.example/x" in files[log]
    assert json.loads(files["environment.json"])["PIP_EXTRA_INDEX_URL"] == "http://***@127.0.0.1:1/simple"
    assert "UNRELATED" not in files["environment.json"]
    events = [json.loads(line) for line in files["run/events.jsonl"].splitlines()]
    assert events[0]["event"]
    checks = {one["check"] for one in json.loads(files["findings.json"])}
    assert {"disk", "compiler", "index"} <= checks
    assert "click" in json.loads(files["versions.json"])["packages"]


def test_a_bundle_is_for_its_owner_s_eyes_and_overwrites_nothing(leaky: Root, tmp_path: Path) -> None:
    path = tmp_path / "b.tar"
    path.write_text("mine")
    done = leaky.run("doctor", "--bundle", str(path))
    assert (done.returncode, path.read_text()) == (2, "mine")
    assert "exists already" in done.stderr
    done = leaky.run("doctor", "--bundle", str(tmp_path / "nowhere" / "b.tar"))
    assert (done.returncode, (tmp_path / "nowhere").exists()) == (2, False)


def test_a_bundle_of_a_fresh_root(root: Root, tmp_path: Path) -> None:
    files = bundle(root, tmp_path / "b.tar")
    assert not [name for name in files if name.startswith(("run/", "logs/"))]
    document = json.loads(root.run("--json", "doctor", "--bundle", str(tmp_path / "c.tar")).stdout)
    assert document["bundle"]["path"] == str(tmp_path / "c.tar")


def test_help_is_there_without_a_machine() -> None:
    done = invoke([*CLI, "doctor", "--help"], check=True)
    assert "--bundle" in done.stdout
