"""What a hostile recipe, source or need tries from inside a build, and what the host reads of it afterwards."""

from __future__ import annotations

import os
import re
import shutil
import socket
import stat
import struct
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_build.build.backends import BuildReached
from spark_build.build.sandbox import (
    ALLOWED,
    CAGE,
    CLONE,
    CLONE3,
    DENIED,
    EQUAL,
    IOCTL,
    LOAD,
    MACHINES,
    NEW_USER,
    REFUSED,
    UNSHARE,
    Sandbox,
    choose,
    clear_privileges,
    syscall_filter,
    wrap,
)
from spark_build.build.stages.compilation import MOST, Ending
from spark_build.files import read_made
from spark_build.process import run
from tests.conftest import PROJECT, RECIPE, ROOT, Root, make_root
from tests.helpers.wheels import compiled

# Of a real machine: what its administrator and others keep there.
PRIVATE = (
    "/boot", "/etc/shadow", "/etc/gshadow", "/etc/sudoers", "/etc/ssh", "/etc/ssl/private", "/etc/machine-id",
    "/home", "/media", "/mnt", "/opt", "/root", "/run/docker.sock", "/run/dbus", "/srv", "/sys/class", "/sys/fs",
    "/var/lib", "/var/run", "/var/spool",
)  # fmt: skip


def said(command: list[str], folder: Path, **variables: str) -> list[str]:
    """What a command prints in the sandbox, where it may write to `folder`."""
    return run(wrap(choose(), command, env=variables, writable=[folder], cwd=folder)).output.splitlines()


@pytest.fixture
def elsewhere() -> Iterator[Path]:
    """A folder outside the temporary ones, as another user's or a daemon's: empty file systems hide those."""
    folder = Path(tempfile.mkdtemp(prefix=".attacked-", dir=ROOT))
    yield folder
    shutil.rmtree(folder)


# --- what is there at all ---------------------------------------------------------------------------


def test_nothing_of_the_machine_is_there_but_what_compilers_need(tmp_path: Path) -> None:
    script = 'for path; do [ ! -e "$path" ] || echo "$path"; done'
    # The interpreter of these tests may lie in a home, alone.
    private = [one for one in PRIVATE if not Path(os.path.realpath(sys.base_prefix)).is_relative_to(one)]
    assert said(["sh", "-c", script, "sh", *private], tmp_path) == []
    shown = said(["sh", "-c", "ls -A /; ls -A /etc /var"], tmp_path)
    assert "usr" in shown
    assert not {"srv", "boot", "shadow", "sudoers", "ssh", "lib/dpkg", "spool"} & set(shown)
    assert said(["sh", "-c", "cat /etc/shadow || id -un"], tmp_path)[-1] == said(["id", "-un"], tmp_path)[0]


def test_files_and_sockets_elsewhere_are_not_reached(elsewhere: Path, tmp_path: Path) -> None:
    """As root, too; a socket leads to a daemon that may do what the build may not."""
    (elsewhere / "secret").write_text("do not tell")
    with socket.socket(socket.AF_UNIX) as daemon:
        os.chdir(elsewhere)  # a socket's path must be short
        try:
            daemon.bind("s")
        finally:
            os.chdir(ROOT)
        daemon.listen()
        code = (
            "import os, socket\n"
            f"print(os.path.exists({str(elsewhere / 'secret')!r}), os.path.exists({str(elsewhere / 's')!r}))\n"
            f"print(socket.socket(socket.AF_UNIX).connect_ex({str(elsewhere / 's')!r}))"
        )
        assert said(["python3", "-c", code], tmp_path)[0] == "False False"
        assert said(["python3", "-c", code], tmp_path)[1] != "0"


def test_the_user_may_show_a_folder_and_the_build_only_reads_it(
    elsewhere: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (elsewhere / "compiler").write_text("kept\n")
    monkeypatch.setenv(ALLOWED, f"relative:{elsewhere}")
    found = said(["sh", "-c", f"cat {elsewhere}/compiler; echo x > {elsewhere}/compiler"], tmp_path)
    assert found[0] == "kept"
    assert "Read-only file system" in found[1]
    assert (elsewhere / "compiler").read_text() == "kept\n"


# --- variables --------------------------------------------------------------------------------------


def test_a_recipes_variables_are_for_what_runs_inside_only(tmp_path: Path) -> None:
    """LD_PRELOAD would be loaded by bwrap and by our supervisor, outside."""
    inside = tmp_path / "work"
    code = """
#include <stdio.h>
#include <unistd.h>
__attribute__((constructor)) void run(void) { char to[99]; sprintf(to, "%s/%d", FOLDER, getpid()); fopen(to, "w"); }
"""
    evil = compiled(inside, "evil.so", code, f'-DFOLDER="{inside}"')
    assert said(["sh", "-c", "echo ran; echo $SECRET"], inside, LD_PRELOAD=str(evil))[0] == "ran"
    numbers = [int(path.name) for path in inside.iterdir() if path.name.isdigit()]
    assert numbers, "it runs inside"
    assert max(numbers) < 10, "inside, process ids begin at 1"


def test_the_users_variables_stay_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "do not tell")
    assert "do not tell" not in "".join(said(["env"], tmp_path, A="1"))
    assert "A=1" in said(["env"], tmp_path, A="1")


# --- what a build leaves ----------------------------------------------------------------------------

HOSTILE = """
import os, stat
for path in ("stamps", "build-key", "build.log", "env/../out", "jobserver/ninja", "compiler-cache/tools/cmake"):
    for attack in (lambda path: os.rename(path, path + "-"), lambda path: os.symlink("/etc/passwd", path),
                   lambda path: open(path, "w"), os.remove, os.mkdir, lambda path: open(path + "/x", "w")):
        try:
            attack("../" + path)
            print("PLANTED", path)
        except OSError:
            pass
cache = os.environ["CCACHE_DIR"]
print("CACHES", *os.listdir(cache + "/.."))
try:
    os.makedirs(cache + "/../other/0")  # in a private /tmp, perhaps, and then it does not arrive
except OSError:
    pass
os.mkdir("../home/hidden")
for path, mode in (("tool", 0o6755), ("../home/hidden/tool", 0o4711)):
    open(path, "w").close()
    os.chmod(path, mode)
os.chmod("../home/hidden", 0o311)
print("SET", oct(os.stat("tool").st_mode))
raise SystemExit(3)
"""


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Root:
    """A root in which a hostile project was built, under a recipe that is hostile as well; it failed."""
    base = tmp_path_factory.mktemp("attacked")
    root = make_root(base, {**PROJECT, "setup.py": HOSTILE})
    code = f'#include <stdio.h>\n__attribute__((constructor)) void run(void) {{ fopen("{base}/ran", "w"); }}'
    evil = compiled(base / "evil", "evil.so", code)
    (root.folder / "cache/compilers/other").mkdir(parents=True)
    root.recipe(RECIPE.format(disk=50) + f'\n[build.env.LD_PRELOAD]\nvalue = "{evil}"\nwhy = "to run it"\n')
    done = root.run("build", "tiny", "--no-closure")
    assert done.returncode == 7, done.stderr
    return root


def test_what_the_host_reads_and_writes_cannot_be_planted(attacked: Root) -> None:
    """A stamp says that the audit passed; a link where the host writes leads anywhere."""
    (log,) = attacked.folder.glob("build/tiny/*/build.log")
    lines = log.read_text().splitlines()
    assert any(line.startswith("SET 0o106755") for line in lines), "it was built"
    assert [line for line in lines if line.startswith("PLANTED")] == []
    assert {path.name for path in log.parent.glob("stamps/*")} == {
        "fetch.json",
        "patch.json",
        "environment.json",
    }


def test_no_build_reaches_the_cache_of_another_recipe(attacked: Root) -> None:
    """An object that one planted there would be linked into what the other publishes."""
    (log,) = attacked.folder.glob("build/tiny/*/build.log")
    assert "CACHES tiny" in log.read_text().splitlines()
    assert not list((attacked.folder / "cache/compilers/other").iterdir())


def test_no_file_keeps_privileges_when_the_stage_has_ended(attacked: Root) -> None:
    (tree,) = attacked.folder.glob("build/tiny/*/src")
    found = [path for path in (tree / "tool", tree.parent / "home/hidden/tool") if path.is_file()]
    assert len(found) == 2
    assert [path for path in found if path.stat().st_mode & (stat.S_ISUID | stat.S_ISGID)] == []
    assert tree.parents[1].stat().st_mode & 0o077 == 0, "nor could others reach them before"


def test_a_recipes_preload_ran_nowhere_outside(attacked: Root) -> None:
    assert not (attacked.folder.parent / "ran").exists()


def test_links_keep_the_modes_of_what_they_lead_to(tmp_path: Path) -> None:
    (tmp_path / "others").touch()
    (tmp_path / "others").chmod(0o4755)
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "link").symlink_to(tmp_path / "others")
    clear_privileges([tmp_path / "work", tmp_path / "missing"])
    assert (tmp_path / "others").stat().st_mode & 0o7777 == 0o4755


def test_what_another_build_removes_meanwhile_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    walk = os.walk

    def meanwhile(top: Path) -> Iterator[tuple[str, list[str], list[str]]]:
        for found in walk(top):
            for name in ("a.tmp", "c.tmp"):  # as a compiler cache does that two builds share
                (tmp_path / name).unlink(missing_ok=True)
            yield found

    for name in ("a.tmp", "b", "c.tmp", "d"):
        (tmp_path / name).touch()
        (tmp_path / name).chmod(0o4755)
    monkeypatch.setattr(os, "walk", meanwhile)
    clear_privileges([tmp_path])
    assert {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {
        "b": 0o755,
        "d": 0o755,
    }


BACKEND = """
import os
def build_wheel(folder, config_settings=None, metadata_directory=None):
    {plant}
    return "tiny-1.0-py3-none-any.whl"
"""
PLANTS = {
    "a link for a wheel": 'os.symlink("/etc/passwd", folder + "/tiny-1.0-py3-none-any.whl")',
    "a pipe for a wheel": 'os.mkfifo(folder + "/tiny-1.0-py3-none-any.whl")',
    "a pipe for the answer": "import sys; os.mkfifo(sys.argv[-1] + '/output.json'); os._exit(0)",
}


@pytest.mark.parametrize("plant", PLANTS)
def test_a_product_that_is_no_file_ends_the_build(plant: str, tmp_path: Path) -> None:
    """A link would publish any file of the user's; a pipe would stop us for ever."""
    files = {
        "pyproject.toml": '[build-system]\nrequires = []\nbuild-backend = "b"\nbackend-path = ["."]\n',
        "b.py": BACKEND.format(plant=PLANTS[plant]),
    }
    root = make_root(tmp_path, files)
    root.recipe(RECIPE.format(disk=50))
    done = root.run("build", "tiny", "--no-closure")
    assert (done.returncode, "regular file" in done.stderr) == (7, True), done.stderr


# --- the mark of a run that only configures ---------------------------------------------------------


def ending(folder: Path) -> Ending:
    return Ending(call=folder / "call", mark=folder / "mark")


def test_what_configuring_ended_at_is_read_from_a_file_only(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("do not tell")
    (tmp_path / "call").symlink_to(tmp_path / "secret")
    ending(tmp_path).check()
    (tmp_path / "call").unlink()
    os.mkfifo(tmp_path / "call")
    ending(tmp_path).check()
    assert not (tmp_path / "mark").exists()


def test_what_configuring_ended_at_is_shown_without_escapes(tmp_path: Path) -> None:
    (tmp_path / "call").write_text("ninja \x1b]52;c;x\x07" + "y" * (1 << 20))
    with pytest.raises(BuildReached) as reached:
        ending(tmp_path).check()
    assert reached.value.call.isprintable()
    assert len(reached.value.call) < 2 * MOST


def test_our_mark_replaces_a_link_and_writes_nothing_through_it(tmp_path: Path) -> None:
    (tmp_path / "others").write_text("theirs")
    (tmp_path / "mark").symlink_to(tmp_path / "others")
    (tmp_path / "call").write_text("ninja")
    with pytest.raises(BuildReached):
        ending(tmp_path).check()
    assert (tmp_path / "others").read_text() == "theirs"


def test_a_pipe_with_a_writer_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    both_ends = os.open(tmp_path / "pipe", os.O_RDWR)
    try:
        os.write(both_ends, b"x")
        with pytest.raises(OSError, match="not a regular file"):
            read_made(tmp_path / "pipe", 10)
    finally:
        os.close(both_ends)


ODD_BACKEND = """
from setuptools import *
def get_requires_for_build_wheel(config_settings=None):
    return {answer}
"""


@pytest.mark.parametrize("answer", ["[\"a; python_version ~= 'x'\"]", "['a b']", "[1]", "3"])
def test_a_backend_with_an_odd_answer_fails_its_stage(tmp_path: Path, answer: str) -> None:
    own = PROJECT["pyproject.toml"].replace('"setuptools"', '"backend"')
    files = {**PROJECT, "pyproject.toml": own, "backend.py": ODD_BACKEND.format(answer=answer)}
    done = make_root(tmp_path, files).run("build", "tiny")
    assert done.returncode == 7, done.stderr
    assert "Traceback" not in done.stderr


# --- system calls -----------------------------------------------------------------------------------

# Each fails with EPERM; what it would do or answer else stands in test_the_filter_is_what_refuses.
CALLS = """
import ctypes, errno, fcntl, os, sys, threading
libc = ctypes.CDLL(None, use_errno=True)
def call(name, *arguments):
    ctypes.set_errno(0)
    libc.syscall(*arguments)
    print(name, errno.errorcode.get(ctypes.get_errno(), "well"))
column = ("x86_64", "aarch64").index(os.uname().machine)
for name, numbers in TABLE.items():
    call(name, numbers[column], *{"keyctl": (0, -3, 0)}.get(name, (0, 0, 0, 0, 0)))
call("clone", (56, 220)[column], 0x10000000, -1, 0, 0, 0)
call("unshare", (272, 97)[column], 0x10000000)
call("clone3", 435, 0, 0)
if not os.fork():
    os.setsid()
    master, slave = os.openpty()
    fcntl.ioctl(slave, 0x540E, 0)  # to be one's own terminal: into others' nobody types anyway
    for name, request in (("TIOCSTI", 0x5412), ("TIOCSTI by other bits", 0x100005412), ("TIOCGWINSZ", 0x5413)):
        call(name, (16, 29)[column], slave, ctypes.c_long(request), ctypes.create_string_buffer(b"x" * 8))
    os._exit(0)
os.wait()
thread = threading.Thread(target=print, args=("threads", "well"))
thread.start()
thread.join()
os.waitpid(os.spawnlp(os.P_NOWAIT, "sh", "sh", "-c", "ulimit -Hc"), 0)
"""


def answers(box: Sandbox, folder: Path) -> dict[str, str]:
    """What system calls answer inside."""
    code = f"TABLE = {DENIED!r}\n{CALLS}"
    done = run(wrap(box, ["python3", "-uc", code], env={}, writable=[folder], cwd=folder))
    *lines, limit = done.output.splitlines()
    return {**dict(line.rsplit(" ", 1) for line in lines), "core": limit}


def test_calls_that_reach_around_namespaces_are_refused(tmp_path: Path) -> None:
    """Keys of the session, the kernel's interpreter, a namespace to be root in, typing into a terminal."""
    found = answers(choose(), tmp_path)
    refused = [*DENIED, "clone", "unshare", "TIOCSTI", "TIOCSTI by other bits"]
    assert {name: found.pop(name) for name in refused} == dict.fromkeys(refused, "EPERM")
    assert found == {"clone3": "ENOSYS", "TIOCGWINSZ": "well", "threads": "well", "core": "0"}


def test_the_users_umask_is_in_no_wheel(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        assert said(["sh", "-c", "umask"], tmp_path) == ["0022"]
    finally:
        os.umask(before)


def test_the_filter_is_what_refuses(tmp_path: Path) -> None:
    """Without it a build reads and writes the user's keyring, and makes itself root of a namespace."""
    bare = choose().program[choose().program.index(CAGE[0]) - 1 :]
    found = answers(Sandbox(kind="bubblewrap", program=bare), tmp_path)
    assert [name for name in ("keyctl", "unshare") if found[name] == "EPERM"] == []
    assert found["clone3"] == "EINVAL"


HEADERS = {
    "x86_64": "/usr/include/x86_64-linux-gnu/asm/unistd_64.h",
    "aarch64": "/usr/include/asm-generic/unistd.h",  # aarch64 has the generic ones, which lie on every machine
}


@pytest.mark.parametrize("machine", sorted({"aarch64", os.uname().machine} & set(MACHINES)))
def test_the_numbers_of_the_filter_are_the_kernels(machine: str) -> None:
    text, column = Path(HEADERS[machine]).read_text(), list(MACHINES).index(machine)
    named = {**DENIED, "clone": CLONE, "unshare": UNSHARE, "clone3": CLONE3, "ioctl": IOCTL}
    for name, numbers in named.items():
        assert re.search(rf"^#define __NR_{name}\s+{numbers[column]}$", text, re.MULTILINE), name


def decided(machine: str, call: tuple[int, int, int, int]) -> int:
    """What the filter answers to (number, architecture, first argument, second), by the rules of BPF."""
    program = list(struct.iter_unpack("=HBBI", syscall_filter(machine)))
    data, loaded, at = struct.pack("=IIQQQ", call[0], call[1], 0, call[2], call[3]), 0, 0
    while True:
        code, yes, no, value = program[at]
        if code == REFUSED[0]:
            return int(value)
        if code == LOAD:
            (loaded,) = struct.unpack_from("=I", data, value)
        else:
            at += yes if (loaded == value if code == EQUAL else loaded & value) else no
        at += 1


@pytest.mark.parametrize("machine", MACHINES)
def test_the_filter_of_each_machine_decides_the_same(machine: str) -> None:
    """The other machine's cannot run here."""
    column, arch, here = list(MACHINES).index(machine), MACHINES[machine], 0x7FFF0000
    calls = {name: (numbers[column], arch, 0, 0) for name, numbers in DENIED.items()}
    calls |= {"clone": (CLONE[column], arch, NEW_USER | 17, 0), "typing": (IOCTL[column], arch, 0, 0x5412)}
    assert {name: decided(machine, one) for name, one in calls.items()} == dict.fromkeys(calls, 0x50001)
    for other in ((CLONE[column], arch, 17, 0), (IOCTL[column], arch, 0, 0x5401), (63, arch, 0, 0)):
        assert decided(machine, other) == here
    for other in ((63, 0x40000003, 0, 0), (0x40000000 | 63, arch, 0, 0), (435, arch, 0, 0)):
        assert decided(machine, other) == 0x50026
    assert syscall_filter("riscv64") == b""
    # Under qemu-user the calls are those of the machine below.
    assert {decided(other, one) for other in MACHINES for one in calls.values()} == {0x50001}
