"""The command line as a user meets it: real processes, exit codes, stdout, files left on disk."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import pty
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from spark_build.errors import HostError, UsageError
from spark_build.files import from_os_error
from tests.conftest import CLI, PROJECT, RECIPE, TRAIN, Root, make_root
from tests.helpers import processes
from tests.helpers.commands import hint_text, invoke

JSON_COMMANDS = (
    ("plan",),
    ("doctor",),
    ("recipes", "list"),
    ("wheelhouse", "list"),
    ("wheelhouse", "path"),
    ("build", "tiny"),
    ("all",),
    ("verify",),
)


def lines_of(error: str) -> list[str]:
    """The error lines of a stderr."""
    return [line for line in error.splitlines() if line.startswith("error:")]


def imported(*arguments: str | Path, env: Mapping[str, str] | None = None) -> set[str]:
    """The modules that a Python of its own imports."""
    command = [sys.executable, "-X", "importtime", *arguments]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    return {line.rsplit("|", 1)[-1].strip() for line in done.stderr.splitlines() if "|" in line}


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_help_imports_hardly_more_than_click(option: str) -> None:
    found = imported(*CLI[1:], option) - imported("-c", "import click")
    own = {name for name in found if name.startswith("spark_build.")}
    commands = {f"spark_build.cli.{name}" for name in ("config", "lazy_group", "main", "options", "terminal")}
    assert own == {
        "spark_build.cli",
        *commands,
        *(f"spark_build.{name}" for name in ("errors", "reporting", "text")),
    }
    assert not found & {"hashlib", "json", "packaging", "pathlib", "pydantic", "rich"}


def test_version() -> None:
    done = invoke([*CLI, "--version"], check=True)
    assert done.stdout.startswith("spark-build, version ")


def test_the_whole_journey(built: Root, tmp_path: Path) -> None:
    listed = built.json("wheelhouse", "list")
    (wheel,) = [row for row in listed["wheels"] if row["name"] == "tiny"]
    assert wheel["filename"].startswith(f"tiny-1.0-1_{wheel['key'][:8]}-")
    assert Path(wheel["path"]).is_symlink()
    created = built.run("env", "create", str(tmp_path / "env"), "tiny")
    assert created.returncode == 0, created.stderr
    answer = subprocess.check_output(
        [tmp_path / "env/bin/python", "-c", "import tiny; print(tiny.answer())"], text=True
    )
    assert answer == "42\n"


def test_again_reuses_and_changes_nothing(built: Root, tmp_path: Path) -> None:
    root = built.copy(tmp_path / "root")
    before = root.state()
    document = root.json("all")
    statuses = {row["recipe"]: row["status"] for row in document["results"]}
    assert statuses["tiny"] == "reused"
    assert set(statuses.values()) == {"reused", "skipped"}
    assert document["generation"] == 1
    assert root.state() == before


def test_why_recipes_are_skipped_is_said_once(built: Root, tmp_path: Path) -> None:
    done = built.copy(tmp_path / "root").run("all")
    plan, _, rest = done.stdout.partition("\n\n")
    skipped = [line.split("SKIP")[1].strip() for line in plan.splitlines() if " SKIP " in line]
    assert skipped
    assert [reason for reason in skipped if reason in rest] == []
    assert f"\n{len(skipped)} skipped: the plan above says why\n" in rest


def test_nothing_to_do_imports_no_stage(built: Root) -> None:
    found = imported(*built.command("all")[1:], env=built.environment())
    planning = {f"spark_build.build.{name}" for name in ("context", "environment", "keys", "plan")}
    planning |= {"spark_build.build.recipe_build", "spark_build.build.scheduler"}
    assert {name for name in found if name.startswith("spark_build.build.")} == planning
    rooms = {name.split(".")[1] for name in found if name.startswith("spark_build.")}
    assert not rooms & {"authoring", "doctor", "environments", "measure", "sources"}
    others = {"spark_build.resources.jobserver", "spark_build.transfer.bundle", "spark_build.wheels.reader"}
    heavy = {
        "importlib.metadata",
        "requests",
        "pypi_simple",
        "bs4",
        "auditwheel",
        "git",
        "starlette",
        "pynvml",
        "build",
        "pydantic",
    }
    assert not found & {*others, *heavy, "jinja2", "rich", "spark_build.wheelhouse.simple_index"}


def test_a_plan_imports_no_source(built: Root) -> None:
    found = imported(*built.command("plan")[1:], env=built.environment())
    rooms = {name.split(".")[1] for name in found if name.startswith("spark_build.")}
    assert "build" in rooms
    assert not rooms & {"doctor", "environments", "measure", "sources"}
    assert not found & {"pydantic", "requests"}


def test_a_folder_of_ones_own_as_source(root: Root, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    for name, text in PROJECT.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text.replace("(42)", "(43)"))
    option = f"tiny={folder}"
    statuses = []
    for change in ("", "", "/* changed */"):
        with (folder / "native.c").open("a") as file:
            file.write(change)
        (result,) = [
            row
            for row in root.json("build", "tiny", "--source", option)["results"]
            if row["recipe"] == "tiny"
        ]
        statuses.append(result["status"])
    assert statuses == ["built", "reused", "built"]
    assert not (folder / "build").exists()  # what is built in is a copy
    created = root.run("env", "create", str(tmp_path / "env"), "--without-pip")
    assert created.returncode == 0, created.stderr
    shown = [str(tmp_path / "env/bin/python"), "-c", "import tiny; print(tiny.answer())"]
    assert subprocess.check_output(shown, text=True) == "43\n"
    planned = root.run("plan", "tiny", "--source", option)
    assert "not the pinned source, called 1.0 whatever it is" in " ".join(planned.stdout.split())
    (folder / "native.c").write_text("no C")
    failed = root.run("build", "tiny", "--source", option, "--provide", "llvm=public")
    assert failed.returncode == 7
    look = f"{root.line} --provide llvm=public build --source {option} tiny --shell"
    assert f"look: {look}" in failed.stderr
    shell = invoke([*CLI, *shlex.split(look)[1:]], env=root.environment(), input="cat native.c")
    assert (shell.returncode, shell.stdout) == (0, "no C"), shell.stderr
    missing = root.run("plan", "tiny", "--source", "tiny=nowhere")
    assert (missing.returncode, lines_of(missing.stderr)) == (
        2,
        ["error: --source tiny=nowhere: there is no such folder"],
    )


def test_prose_in_a_recipe_does_not_rebuild(built: Root, tmp_path: Path) -> None:
    root = built.copy(tmp_path / "root")
    (step,) = [row for row in root.json("plan")["steps"] if row["recipe"] == "tiny"]
    text = (root.folder / "recipes" / "tiny.toml").read_text()
    root.recipe("# a comment\n" + text.replace("small extension", "tiny extension"))
    (again,) = [row for row in root.json("plan")["steps"] if row["recipe"] == "tiny"]
    assert (again["decision"], again["key"]) == ("REUSE", step["key"])


@pytest.mark.parametrize("command", JSON_COMMANDS, ids=" ".join)
def test_json_is_pure(built: Root, command: tuple[str, ...]) -> None:
    for arguments in (("--json", *command), (*command, "--json")):
        done = built.run(*arguments)
        assert done.returncode == 0, done.stderr
        assert isinstance(json.loads(done.stdout), dict)


def test_json_of_commands_that_write(built: Root, tmp_path: Path) -> None:
    exported = built.json("wheelhouse", "export", str(tmp_path / "set.tar"), "--without-spark-build")
    assert exported["size"] == (tmp_path / "set.tar").stat().st_size
    other = Root(folder=tmp_path / "other", links=built.links)
    words = [
        "--root",
        str(other.folder),
        "--json",
        "wheelhouse",
        "import",
        "--unsigned",
        str(tmp_path / "set.tar"),
    ]
    imported = json.loads(invoke([*CLI, *words], check=True).stdout)
    assert [row["sha256"] for row in imported["wheels"]] == [row["sha256"] for row in exported["wheels"]]
    created = built.json("env", "create", str(tmp_path / "env"), "--without-pip")
    assert created["installed"] == ["tiny==1.0"]


def test_an_export_of_a_generation_and_of_packages(built: Root, tmp_path: Path) -> None:
    number = built.json("wheelhouse", "list")["generation"]
    arguments = ("tiny", "--generation", str(number), "--without-spark-build")
    exported = built.json("wheelhouse", "export", str(tmp_path / "set"), *arguments)
    assert [row["name"] for row in exported["wheels"]] == ["tiny"]
    assert (tmp_path / "set" / "INSTALL.txt").is_file()
    for wrong, say in (
        (("x.tar", "--generation", "99"), "no generation 99"),
        (("x.tar", "tinny"), "no tinny"),
        (("x.tar.gz",), "an export is FILE.tar, FILE.tar.zst or a folder"),
        ((), "where to?"),
    ):
        refused = built.run("wheelhouse", "export", *wrong, "--without-spark-build")
        assert (refused.returncode, say in refused.stderr) == (2, True), refused.stderr


def test_json_of_an_error(root: Root) -> None:
    done = root.run("--json", "plan", "tinny")
    assert done.returncode == 2
    assert json.loads(done.stdout)["error"]["exit_code"] == 2


def test_no_control_codes_without_a_terminal(built: Root) -> None:
    for command in (("plan",), ("all",), ("wheelhouse", "list"), ("doctor",)):
        done = built.run(*command)
        assert "\x1b" not in done.stdout + done.stderr


def test_no_control_codes_with_no_color_on_a_terminal(built: Root) -> None:
    parent, child = pty.openpty()
    process = processes.start(
        built.command("all", "--reverify"),
        env={**built.environment(), "NO_COLOR": "1", "TERM": "xterm"},
        stdout=child,
        stderr=child,
        stdin=child,
    )
    os.close(child)
    output = b""
    try:
        while chunk := os.read(parent, 4096):
            output += chunk
    except OSError:  # the terminal closes with its last process
        pass
    assert process.wait() == 0
    assert b"verified" in output
    assert b"\x1b" not in output


def test_unknown_recipe(root: Root) -> None:
    before = root.state()
    done = root.run("build", "tinny")
    assert done.returncode == 2
    assert len(lines_of(done.stderr)) == 1
    assert "tiny" in done.stderr
    assert root.state() == before


def test_unknown_command() -> None:
    done = invoke([*CLI, "biuld"])
    assert (done.returncode, lines_of(done.stderr)) == (
        2,
        ["error: no command 'biuld'; did you mean build?"],
    )


def test_no_command_shows_what_there_is() -> None:
    done = invoke(CLI)
    assert done.returncode == 2
    assert done.stdout.startswith("Usage:")
    assert "wheelhouse" in done.stdout
    assert done.stderr == ""


def test_a_recipe_asked_for_that_cannot_be_built(root: Root) -> None:
    root.train(TRAIN.format(sha256="0" * 64) + '\n[components.onnx]\nversion = "1"\nsources = []\n'
               'unestablished = ["where it is"]\n')  # fmt: skip
    for words in (("build", "onnx"), ("all", "onnx"), ("all", "--with", "onnx")):
        done = root.run(*words)
        assert done.returncode == 4, words
        assert "onnx cannot be built for host-cpu" in lines_of(done.stderr)[0]


def test_malformed_recipe_shows_all_problems(root: Root) -> None:
    root.recipe(RECIPE.format(disk=50).replace('kind = "pep517"', 'kind = "pep518"') + "\nneed = []\n")
    before = root.state()
    done = root.run("all")
    assert done.returncode == 3
    assert "recipes/tiny.toml:4:" in done.stderr
    assert "recipes/tiny.toml:12:" in done.stderr
    assert root.state() == before


def test_wrong_sha256_in_the_pin(root: Root) -> None:
    root.train(TRAIN.format(sha256="0" * 64))
    before = root.state()
    done = root.run("build", "tiny")
    assert done.returncode == 5
    assert len(lines_of(done.stderr)) == 1
    assert "0" * 64 in done.stderr
    assert root.state() == before


def test_no_network(root: Root) -> None:
    before = root.state()
    empty = Root(
        folder=root.folder,
        links=root.folder,
        # Nothing listens on the discard port.
        env={"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_EXTRA_INDEX_URL": "", "PIP_CONFIG_FILE": os.devnull},
    )  # fmt: skip
    done = empty.run("build", "tiny")
    assert done.returncode == 5
    assert len(lines_of(done.stderr)) == 1
    assert "127.0.0.1:9" in done.stderr
    assert root.state() == before


def test_offline_with_all_that_is_needed_brought_along(setuptools_root: Root) -> None:
    root = setuptools_root
    pip = [sys.executable, "-m", "pip", "-q", "download", "--no-deps", "--dest", str(root.links)]
    subprocess.run([*pip, "setuptools==80.9.0", "wheel==0.45.1", "ninja==1.13.2"], check=True)
    away = Root(
        folder=root.folder,
        links=root.links,
        env={
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(root.links),
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_INDEX_URL": "http://127.0.0.1:9/simple",
        },
    )
    (result,) = [row for row in away.json("build", "tiny", "--offline")["results"] if row["recipe"] == "tiny"]
    assert result["status"] == "built"


def test_offline_names_what_is_missing(root: Root) -> None:
    alone = Root(folder=root.folder, links=root.folder / "nothing")
    done = alone.run("build", "tiny", "--offline")
    assert done.returncode == 5
    assert "tiny-1.0.tar.gz" in lines_of(done.stderr)[0]


def in_namespace(root: Root, mount: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run with something mounted over the root that only this command sees."""
    script = f'{mount} && shift && exec "$@"'
    return subprocess.run(
        ["unshare", "--map-root-user", "--mount", "sh", "-c", script, "sh", str(root.folder), *root.command(*arguments)],
        env=root.environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_read_only_root(root: Root) -> None:
    done = in_namespace(root, 'mount --bind -o ro "$1" "$1" && mount -o remount,bind,ro "$1"', "all")
    assert done.returncode == 4, done.stderr
    assert "cannot be written" in lines_of(done.stderr)[0]


TMPFS = 'cp -r "$1" /tmp/keep.$$ && mount -t tmpfs -o size={size} tmpfs "$1" && cp -r /tmp/keep.$$/. "$1" && rm -r /tmp/keep.$$'


def test_disk_too_small_is_seen_before_the_build(root: Root) -> None:
    done = in_namespace(root, TMPFS.format(size="8m"), "build", "tiny")
    assert done.returncode == 4, done.stderr
    assert "MiB free" in lines_of(done.stderr)[0]
    fetched = in_namespace(root, TMPFS.format(size="8m"), "build", "tiny", "--stop-after", "fetch")
    assert fetched.returncode == 0, fetched.stderr  # sources are small


def test_disk_that_fills_up_during_the_build(tmp_path: Path) -> None:
    filler = {**PROJECT, "setup.py": "open('big', 'wb').write(bytes(900 << 20))\n" + PROJECT["setup.py"]}
    root = make_root(tmp_path, filler)
    done = in_namespace(root, TMPFS.format(size="700m"), "build", "tiny")
    assert done.returncode == 4, done.stderr
    assert "the disk is full" in lines_of(done.stderr)[0]


def test_lines_to_type_begin_with_the_pin_that_blocks_a_recipe(root: Root) -> None:
    other = RECIPE.format(disk=50).replace('"tiny"', '"huge"')
    (root.folder / "recipes" / "huge.toml").write_text(other)
    tag = 'sources = [{ kind = "git", url = "https://example.org/huge", tag = "v1.0" }]'
    train = root.folder / "recipes" / "trains" / "t.toml"
    train.write_text(f'{train.read_text()}\n[components.huge]\nversion = "1.0"\n{tag}\n')
    lines = root.run("plan").stdout.splitlines()
    typed = [
        line.rpartition(str(root.folder))[2] for line in lines[lines.index("to type, in this order:") + 1 :]
    ]
    assert typed[0] == " --target host-cpu --train t recipes pin huge"
    assert [line.split()[-1] for line in typed[1:]] == ["doctor", "all"]
    assert lines[-2].endswith("doctor")
    (pin, *_) = root.json("plan", "huge")["commands"]
    assert pin.endswith("recipes pin huge")  # also where nothing else is to be built


def test_doctor_takes_what_plan_takes(root: Root) -> None:
    other = RECIPE.format(disk=50).replace('"tiny"', '"huge"')
    (root.folder / "recipes" / "huge.toml").write_text(f"default = false\n{other}")
    train = root.folder / "recipes" / "trains" / "t.toml"
    tag = 'sources = [{ kind = "git", url = "https://example.org/huge", tag = "v1.0" }]'
    train.write_text(f'{train.read_text()}\n[components.huge]\nversion = "1.0"\n{tag}\n')
    assert [line.split()[-1] for line in root.json("plan")["commands"]] == ["doctor", "all"]
    (_, *lines) = root.json("plan", "--with", "huge")["commands"]  # the first makes its pin
    assert [line.split()[-3:] for line in lines] == [["doctor", "--with", "huge"], ["all", "--with", "huge"]]
    assert "huge" not in root.run("doctor").stdout
    assert "huge cannot be built" in root.run("doctor", "--with", "huge").stdout


def test_a_file_in_the_way_of_a_build_is_the_machines_fault(tmp_path: Path) -> None:
    root = make_root(tmp_path)
    (sdist,) = root.links.iterdir()
    digest = hashlib.sha256(sdist.read_bytes()).hexdigest()
    way = root.folder / "sources" / digest[:2]
    way.parent.mkdir()
    way.touch()
    done = root.run("build", "tiny")
    assert done.returncode == 4, done.stderr
    assert "a file stands where a folder would have to be" in lines_of(done.stderr)[0]
    assert "next: move it away, then run the same command again" in done.stderr


def test_a_name_too_long_is_shown_and_only_the_typed_one_is_the_users_fault() -> None:
    problem = OSError(
        errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), f"/a/rather/long/folder/{'n' * 300}"
    )
    for typed, kind in ((True, UsageError), (False, HostError)):
        told = from_os_error(problem, typed=typed)
        assert isinstance(told, kind)
        assert told.message.endswith(f"{'n' * 60}...")
        assert "--root DIR" in hint_text(told.hint)


def test_what_a_machine_refuses_is_no_bug() -> None:
    def told(number: int) -> tuple[type, str, str]:
        known = from_os_error(OSError(number, os.strerror(number), "/stick/x.tar"), typed=True)
        assert known is not None
        return type(known), known.message, hint_text(known.hint)

    kind, message, hint = told(errno.EFBIG)
    assert (kind, message) == (HostError, "the file system takes no file that large (/stick/x.tar)")
    assert "export to a folder" in hint
    kind, message, hint = told(errno.EMFILE)
    assert (kind, message) == (HostError, "too many files are open (/stick/x.tar)")
    assert "ulimit -n" in hint
    assert told(errno.ELOOP)[:2] == (
        UsageError,
        "a link stands where a file would have to be (/stick/x.tar)",
    )


def test_a_link_in_the_way_of_an_export(built: Root, tmp_path: Path) -> None:
    (tmp_path / "x").touch()
    (tmp_path / "set.tar.part").symlink_to("x")
    done = built.run("wheelhouse", "export", str(tmp_path / "set.tar"), "--without-spark-build")
    assert done.returncode == UsageError.exit_code, done.stderr
    assert lines_of(done.stderr) == [
        f"error: a link stands where a file would have to be ({tmp_path / 'set.tar.part'})"
    ]


def test_an_export_larger_than_a_file_may_be(built: Root, tmp_path: Path) -> None:
    limited = ["sh", "-c", 'ulimit -f 4; exec "$@"', "sh"]
    words = built.command("wheelhouse", "export", str(tmp_path / "set.tar"), "--without-spark-build")
    done = subprocess.run(
        [*limited, *words], env=built.environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == HostError.exit_code, done.stderr
    assert "takes no file that large" in lines_of(done.stderr)[0]


def test_failing_compiler_names_the_error_and_keeps_the_log(tmp_path: Path) -> None:
    root = make_root(tmp_path, {**PROJECT, "native.c": "int broken(void) { return missing_name; }\n"})
    done = root.run("build", "tiny")
    assert done.returncode == 7
    assert "missing_name" in lines_of(done.stderr)[0]
    (log,) = root.folder.glob("build/tiny/*/build.log")
    assert str(log) in done.stderr
    assert "missing_name" in log.read_text()


def test_two_at_the_same_time_build_once(tmp_path: Path) -> None:
    slow = {**PROJECT, "setup.py": "import time; time.sleep(3)\n" + PROJECT["setup.py"]}
    root = make_root(tmp_path, slow)
    running = [
        processes.start(
            root.command("--json", "all"), env=root.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for _ in range(2)
    ]  # fmt: skip
    outputs = [process.communicate() for process in running]
    assert [process.returncode for process in running] == [0, 0], outputs
    statuses = sorted(
        row["status"] for out, _ in outputs for row in json.loads(out)["results"] if row["recipe"] == "tiny"
    )
    assert statuses == ["built", "reused"]
    assert any(b"waiting for another spark-build" in error for _, error in outputs)
    assert len(list(root.folder.glob("wheelhouse/views/*/generations/*"))) == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def test_signals_end_everything_and_the_next_run_goes_on(tmp_path: Path, number: signal.Signals) -> None:
    hanging = "import os, time\nwhile not os.path.exists('../go-on'): time.sleep(0.1)\n"
    root = make_root(tmp_path, {**PROJECT, "setup.py": hanging + PROJECT["setup.py"]})
    # As a script's shell starts what it puts into the background.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    process = processes.start(
        root.command("build", "tiny"), env=root.environment(), stderr=subprocess.PIPE, text=True
    )
    signal.signal(signal.SIGINT, before)
    building = str(root.folder / "build")
    deadline = time.monotonic() + 60
    while not any(root.folder.glob("build/tiny/*/build-started")) and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(0.5)
    process.send_signal(number)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert "goes on where it stopped" in error
    alive = subprocess.run(["pgrep", "-f", building], capture_output=True, check=False)
    assert alive.returncode == 1, alive.stdout
    (work,) = root.folder.glob("build/tiny/*/")
    (work / "go-on").touch()
    again = root.run("build", "tiny")
    assert again.returncode == 0, again.stderr
    assert "environment kept from the last run" in again.stderr
