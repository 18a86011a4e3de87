"""What the pages show was printed by the program: here and now, or on the day that stands beside it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from spark_build.cli.doctor import Scope, examine, print_findings
from tests.conftest import Root
from tests.ground.test_docs import DOCS, FENCE
from tests.helpers.commands import CLI, invoke
from tests.helpers.generations import VIEW, root_and_home
from tests.helpers.machines import Simulated
from tests.helpers.wheelhouse import home_in, make_wheel, publish, put_built, put_public
from tests.wheelhouse.test_gc import age

DATE = re.compile(r"\b20\d\d-\d\d-\d\d\b")
# How lines to type begin, and what belongs to them.
TYPED = re.compile(
    r"#|\s|\. ~/|(?:sudo |PIP_NO_INDEX|~/|\./|\.venv/|tools/)|"
    r"(?:spark-build|pip|uv|python[\d.]*|openssl|ssh-keygen|tar|grep|sha256sum|unshare|debootstrap|chroot|git|jupyter|mkdir) "
)
NO_OUTPUT = ("environment,workload", "schema = 1", "wheelhouse/\n")  # files, and a tree of folders
EXAMPLES = {
    "- GEMM-bound work": "h200-bench",
    "EQUIVALENT +-2%": "h200",
    "$ spark-build verify --burn-in --full --dtype tf32": "h200-tf32",
}
MACHINES = {"kernel             fail": "spark-worn", "cluster-nccl": "spark", "gpu             ok": "spark"}
BENCH = (
    "$ spark-build bench run --list",
    "$ spark-build bench run --arm mine=$HOME/env --workload gemm --profile nsys",
)
WHEELHOUSE = tuple(f"$ spark-build wheelhouse {name}" for name in ("generations", "remove", "pin", "check"))
ENVIRONMENT = ("installing 1 package", "         PACKAGE  VERSION", "PACKAGE  FILE")
ELSEWHERE = ("$ spark-build bench compare theirs.csv",)  # tests/measure/test_bench_docs.py
TESTED = (*EXAMPLES, *MACHINES, *BENCH, *WHEELHOUSE, *ENVIRONMENT, *ELSEWHERE)


@dataclass(frozen=True, kw_only=True)
class Block:
    """What a page shows, and the text before it in its section."""

    place: str
    text: str
    before: str

    @property
    def is_output(self) -> bool:
        prompts = self.text.startswith("$ ")
        others = [
            line
            for line in self.text.splitlines()
            if not (line.startswith("$ ") if prompts else TYPED.match(line))
        ]
        return bool(others) and not self.text.startswith(NO_OUTPUT)

    @property
    def printed(self) -> str:
        """Without the lines that were typed."""
        return "".join(line for line in self.text.splitlines(keepends=True) if not line.startswith("$ "))


def blocks() -> Iterator[Block]:
    for page in sorted(DOCS.glob("*.md")):
        text = page.read_text()
        for found in FENCE.finditer(text):
            before = text[: found.start()].rpartition("\n## ")[2]
            if not found["language"]:
                place = f"{page.name}:{text[: found.start()].count(chr(10)) + 1}"
                yield Block(place=place, text=found["text"], before=before)


def block(start: str) -> str:
    (found,) = [one.printed for one in blocks() if one.text.startswith(start)]
    return found


def words(text: str) -> list[str]:
    """Lines without what another machine, day or file system may have otherwise."""
    text = text.replace(VIEW.rpartition("-")[2], "cp311")
    text = re.sub(r"20\d\d-\d\d-\d\dT[\d:]{8}", "TIME", re.sub(r"[\d.]+ [KM]?i?B", "SIZE", text))
    return [" ".join(line.split()) for line in text.splitlines() if line.strip()]


def test_outputs_are_tested_or_have_their_date() -> None:
    shown = [one for one in blocks() if one.is_output]
    assert len(shown) > 30  # else the search itself is broken
    assert [
        one.place for one in shown if not one.text.startswith(TESTED) and not DATE.search(one.before)
    ] == []
    assert [start for start in TESTED if not any(one.text.startswith(start) for one in shown)] == []


@pytest.mark.parametrize("start", EXAMPLES)
def test_words_of_the_example_reports(start: str) -> None:
    report = " ".join((DOCS / "examples" / EXAMPLES[start] / "report.md").read_text().split())
    for sentence in re.split(r"\n(?=[-A-Z])", block(start)):
        assert " ".join(sentence.split()) in report


@pytest.mark.parametrize("start", MACHINES)
def test_findings_of_the_simulated_machines(
    start: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    machine = Simulated(MACHINES[start])
    setting = machine.setting(tmp_path)
    _, findings = examine(machine, setting, Scope(recipes=("torch",), cluster=True), indexes=machine.indexes)
    print_findings(findings)
    printed = words(capsys.readouterr().out)
    assert [line for line in words(block(start)) if line not in printed] == []


@pytest.mark.parametrize("start", BENCH)
def test_bench_without_a_measurement(start: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # without Nsight Systems
    line = start.removeprefix("$ spark-build ").replace("$HOME/env", str(tmp_path))
    done = invoke([*CLI, *line.split()])
    assert done.stdout + done.stderr == block(start)


@pytest.fixture
def kept(tmp_path: Path) -> Root:
    """The wheelhouse of docs/wheelhouse.md, with three generations."""
    root, home, view = root_and_home(tmp_path)
    dist = tmp_path / "dist"
    onnx = make_wheel(dist, "onnx", "1.19.1", build="1_aaaaaaaa", requires=["protobuf>=4"])
    again = make_wheel(dist, "onnx", "1.19.1", build="1_bbbbbbbb", requires=["protobuf>=4"])
    names = (
        ("numpy", "2.3.5"),
        ("protobuf", "6.33.0"),
        ("protobuf", "6.33.1"),
        ("typing-extensions", "4.15.0"),
    )
    numpy, old, new, typing = (put_public(home.store, make_wheel(dist, *one)) for one in names)
    first, second = put_built(home.store, onnx), put_built(home.store, again)
    for wheels in ((first, numpy, old), (second, numpy, old), (second, numpy, new, typing)):
        publish(home, wheels, view=view.name)
    return root


def said(root: Root, line: str) -> list[str]:
    done = root.run(*line.split())
    text = re.sub(
        rf"spark-build --root {root.folder}( --target host-cpu --train t)?",
        "spark-build",
        done.stderr + done.stdout,
    )
    return words(text.replace(f"{root.folder}/", ""))


def test_generations_rollback_remove_and_pin(kept: Root) -> None:
    assert said(kept, "wheelhouse generations") + said(kept, "wheelhouse rollback") == words(
        block(WHEELHOUSE[0])
    )
    assert said(kept, "wheelhouse remove protobuf") == words(block(WHEELHOUSE[1]))


def test_what_gc_would_take(kept: Root) -> None:
    kept.run("wheelhouse", "rollback")
    age(home_in(kept.folder), 30)
    assert said(kept, "wheelhouse pin 2") + said(kept, "wheelhouse gc --keep 1 --dry-run") == words(
        block(WHEELHOUSE[2])
    )


def test_faults_of_a_wheelhouse(kept: Root) -> None:
    newest = home_in(kept.folder).views / VIEW / "generations" / "3"
    (newest / "numpy-2.3.5-py3-none-any.whl").unlink()
    make_wheel(newest, "other", "1.0")
    assert said(kept, "wheelhouse check") == words(block(WHEELHOUSE[3]))


def test_an_environment_that_follows(tmp_path: Path) -> None:
    root, home, view = root_and_home(tmp_path)
    env = tmp_path / "myenv"

    def lines(*arguments: str) -> list[str]:
        text = "\n".join(said(root, f"env {' '.join(arguments)}"))
        return text.replace(str(env), "/home/me/myenv").splitlines()

    first = put_built(home.store, make_wheel(tmp_path / "dist", "tiny", build="1_aaaaaaaa"))
    publish(home, [first], view=view.name)
    assert lines("create", str(env), "--without-pip") == words(block(ENVIRONMENT[0]))
    (module,) = env.glob("lib/python*/site-packages/tiny/__init__.py")
    sound = module.read_bytes()
    module.write_bytes(b"")
    assert lines("check", str(env)) == words(block(ENVIRONMENT[2]))
    module.write_bytes(sound)
    publish(
        home,
        [put_built(home.store, make_wheel(tmp_path / "dist", "tiny", build="1_bbbbbbbb"))],
        view=view.name,
    )
    assert lines("update", str(env), "--dry-run") == words(block(ENVIRONMENT[1]))
