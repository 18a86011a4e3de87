"""The pages of simulated runs, and the commands that write and read them."""

import dataclasses
import json
import re
import subprocess
import sys
from collections.abc import Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from spark_build.cli.bench import _print
from spark_build.measure import suite
from spark_build.measure.model import Bench, Check, Telemetry, bench_json
from tests.conftest import CLI
from tests.helpers import benches
from tests.helpers.benches import without_pictures
from tests.helpers.commands import invoke

__all__ = ["without_pictures"]  # fixture
TWO: Mapping[str, Mapping[str, float]] = {"native": {}, "container": {"gemm": 1.5, "overhead": 1 / 1.3}}
VOID = {"meta", "br", "img", "path", "use", "rect"}


class Page(HTMLParser):
    """Collects what is checked of a page; raises for tags that are not closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.heads: list[str] = []
        self.links: list[str] = []
        self.ids: list[str] = []
        self.text = ""
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.links += [str(found[name]) for name in ("href", "src", "xlink:href") if found.get(name)]
        self.ids += [str(found["id"])] if found.get("id") else []
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] == ["h2"]:
            self.heads.append(data)
        if not {"style", "script"} & set(self.open):
            self.text += data + " "


def pages(bench: Bench, folder: Path) -> tuple[Page, str]:
    page = suite.write_suite_report(bench, folder)
    assert page == folder / "report.html"
    return Page(page.read_text()), (folder / "report.md").read_text()


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return invoke([*CLI, "bench", *map(str, arguments)])


def saved(bench: Bench, file: Path) -> Path:
    file.write_text(json.dumps(bench_json(bench)))
    return file


def test_a_comparison_has_everything(tmp_path: Path) -> None:
    bench = benches.bench(TWO, memory={"native": 20000, "container": 46600})
    page, text = pages(bench, tmp_path / "new" / "folder")
    assert page.heads == [
        "Cases", "What to look at next", "Comparison", "Rates by arm", "Over size", "Roofline", "Memory",
        "Clocks, power, temperature", "Figures", "Memory by arm", "Validity gates", "Correctness",
        "Number formats and the floor of a token", "Arms", "Environment", "How it was measured",
    ]  # fmt: skip
    for said in ("GEMM-bound work (2 cases): container is 1.5", "Same speed, different memory: on ",
                 "Memory-bound work (3 cases): container is as fast as native within 2%"):  # fmt: skip
        assert said in page.text
        assert said in text
    html = (tmp_path / "new" / "folder" / "report.html").read_text()
    # What scrolls is reached by the keyboard, and a screen reader says which column a cell is of.
    assert html.count('class="scroll"') == html.count('tabindex="0" role="group" aria-label="') > 2
    assert "<main>" in html
    assert "<th>" not in html
    assert "throttled in 0 of 6 rounds" in page.text  # what the run says to the next checks
    assert "MemAvailable" in page.text
    assert "Room for KV cache" in page.text
    # 100000 MiB less a tenth, less 16.06 GB of weights, at 128 KiB for a token.
    assert f"{int((100000 * 2**20 * 0.9 - 16.06e9) // 131072):,} tokens" in page.text
    assert "513 ms" in page.text  # 140 GB at 273 GB/s
    assert {link for link in page.links if not link.startswith("#")} == {"bench.json", "samples.csv"}
    assert len(page.ids) == len(set(page.ids))
    raw = json.loads((tmp_path / "new/folder/bench.json").read_text())
    assert raw == json.loads(json.dumps(bench_json(bench)))


def test_one_environment_alone(tmp_path: Path) -> None:
    page, text = pages(benches.bench({"native": {}}), tmp_path)
    assert "Comparison" not in page.heads
    assert "Overhead" not in page.heads
    assert {"Roofline", "Over size", "Memory", "Figures"} <= set(page.heads)
    assert "Memory-bound work: 3 cases reach" in page.text
    assert text.startswith("# native")


def test_three_arms(tmp_path: Path) -> None:
    page, text = pages(benches.bench({"a": {}, "b": {}, "c": {"memory": 0.5}}, seed=2), tmp_path)
    assert "b, c against a" in page.text
    assert "Memory-bound work (3 cases): c takes 2.0 times as long as a, band above 40%" in text


@pytest.mark.usefixtures("without_pictures")
def test_what_spoils_a_run_stands_on_top(tmp_path: Path) -> None:
    wrong = Check(name="mlp.trains", status="fail", evidence="loss 2.30 -> 2.30")
    page, text = pages(benches.bench(TWO, checks=(wrong,), telemetry=Telemetry(throttled=2.0)), tmp_path)
    for said in ("container against native: nothing may be claimed", "loss 2.30 -> 2.30", "throttling: "):
        assert said in page.text
        assert said in text


@pytest.mark.usefixtures("without_pictures")
def test_a_busy_machine_bounds_nothing(tmp_path: Path) -> None:
    held = Check(name="decode.memory", status="ok", evidence="98% of a plain one")
    bench = benches.bench({"native": {}}, checks=(held,), telemetry=Telemetry(others=0.9))
    known = dataclasses.replace(bench, reference=None)
    _, text = pages(known, tmp_path)
    assert "| unbounded, see above (98% of a plain one) |" in text
    assert "No bandwidth is known, so there is no floor to tell." in text
    calm = benches.bench({"native": {}}, checks=(held,))
    assert "| 98% of a plain one |" in pages(calm, tmp_path)[1]


def test_transfers_alone_have_figures_though_no_class(tmp_path: Path) -> None:
    works = [dataclasses.replace(work, flops=None, moved=None) for work in benches.WORKS]
    page, text = pages(benches.bench({"native": {}}, pairs=1, works=works), tmp_path)
    for said in ("No case lies on a roofline", "1 round of each arm"):
        assert said in page.text
        assert said in text
    assert "No case has a figure" not in page.text


@pytest.mark.usefixtures("without_pictures")
def test_what_was_left_out_stands_in_the_table_with_its_reason(tmp_path: Path) -> None:
    skipped = Check(name="gemm.fp4.4096.run", status="skipped", evidence="needs compute capability 10.0")
    held = Check(name=f"{benches.WORKS[0].name}.bound", status="ok", evidence="98% of a plain one")
    bench = benches.bench({"native": {}}, checks=(skipped, held))
    fp4 = dataclasses.replace(bench.works[0], name="gemm.fp4.4096")
    _, text = pages(dataclasses.replace(bench, works=(*bench.works, fp4)), tmp_path)
    assert "| gemm.fp4.4096 | native | - | - | - | skipped: needs compute capability 10.0 |" in text
    line = next(line for line in text.splitlines() if line.startswith(f"| {benches.WORKS[0].name} |"))
    assert line.endswith("| 98% of a plain one |")


@pytest.mark.usefixtures("without_pictures")
def test_terminal_and_report_hold_what_memory_bounds_against_memory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checks = tuple(
        Check(name=f"{work}.{kind}", status="ok", evidence=f"by {kind}")
        for work in ("gemm.fp16.8192", "decode")
        for kind in ("peak", "memory")
    )
    bench = benches.bench({"native": {}}, checks=checks)
    _, text = pages(bench, tmp_path)
    _print(bench, fit=True)
    said = capsys.readouterr().out
    for work, bound in (("gemm.fp16.8192", "by peak"), ("decode", "by memory")):
        row = next(line for line in text.splitlines() if line.startswith(f"| {work} |"))
        shown = next(line for line in said.splitlines() if line.startswith(work))
        assert row.endswith(f"{bound} |")
        assert re.split(r"  +", shown) == [work, row.split(" | ")[2], bound]


def test_a_run_that_crashed_has_a_page(tmp_path: Path) -> None:
    bench = benches.bench(TWO, pairs=2)
    dead = tuple(dataclasses.replace(each, problem="killed by signal 9", figures=()) for each in bench.rounds)
    page, _ = pages(dataclasses.replace(bench, rounds=dead), tmp_path)
    assert "killed by signal 9" in page.text
    assert "No case has a figure" in page.text
    pages(dataclasses.replace(bench, rounds=()), tmp_path)
    pages(dataclasses.replace(bench, rounds=(), works=()), tmp_path)


def test_names_are_text(tmp_path: Path) -> None:
    evil = '<script>alert("x")</script>'
    bench = benches.bench({evil: {}, "b": {}})
    works = tuple(dataclasses.replace(work, workload=evil, unit=evil) for work in bench.works)
    assert bench.reference is not None
    known = dataclasses.replace(bench.reference, name=evil, sources=(evil,))
    rounds = tuple(
        dataclasses.replace(
            each, environment={evil: {evil: evil}, "libraries": [evil]},
            checks=(Check(name=evil, status="ok", evidence=evil),),
        )
        for each in bench.rounds
    )  # fmt: skip
    arms = tuple(dataclasses.replace(arm, origin=evil, versions={evil: evil}) for arm in bench.arms)
    told = dataclasses.replace(
        bench,
        works=works,
        rounds=rounds,
        arms=arms,
        scope={evil: evil},
        notes=(evil,),
        breaks=(evil,),
        reference=known,
    )
    suite.write_suite_report(told, tmp_path / "two")
    alone = tuple(each for each in rounds if each.slot.arm == evil)
    suite.write_suite_report(dataclasses.replace(told, arms=arms[:1], rounds=alone), tmp_path / "one")
    for folder in ("one", "two"):
        text = (tmp_path / folder / "report.html").read_text()
        assert "<script" not in text
        assert text.count("&lt;script&gt;") > 10


@pytest.mark.usefixtures("without_pictures")
def test_a_report_is_written_again(tmp_path: Path) -> None:
    file = saved(benches.bench(TWO), tmp_path / "bench.json")
    done = run("report", file, "--out", tmp_path / "out", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["report"] == str(tmp_path / "out" / "report.html")
    assert json.loads((tmp_path / "out" / "bench.json").read_text()) == json.loads(file.read_text())
    assert run("compare", tmp_path / "out" / "samples.csv").returncode == 2


@pytest.mark.usefixtures("without_pictures")
def test_what_takes_claims_away_stands_above(tmp_path: Path) -> None:
    wrong = Check(name="mlp.trains", status="fail", evidence="loss 2.30\n-> \x1b[31m2.30")
    file = saved(benches.bench(TWO, checks=(wrong,)), tmp_path / "bench.json")
    seen = run("compare", file)
    assert seen.returncode == 11
    said = seen.stdout.splitlines()
    first = r"nothing may be claimed: mlp.trains failed in native: loss 2.30\n-> \x1b[31m2.30"
    assert sorted(said[:2]) == sorted((first, first.replace("native", "container")))
    assert said[3] == "What was seen, for what it is worth:"
    assert said[4].startswith("CASE")
    assert "look next at" not in seen.stdout
    assert seen.stdout.count("nothing may be claimed") == 2


@pytest.mark.usefixtures("without_pictures")
def test_what_one_run_lacks_does_not_pass(tmp_path: Path) -> None:
    bench = benches.bench({"native": {}, "container": {}})
    rounds = tuple(
        dataclasses.replace(each, figures=each.figures[1:]) if each.slot.arm == "container" else each
        for each in bench.rounds
    )
    lost = dataclasses.replace(bench, rounds=rounds)
    done = run("compare", saved(lost, tmp_path / "bench.json"), "--fail-above", "10")
    assert done.returncode == 11
    assert "left out: gemm.fp16.4096: not in container" in done.stdout
    page, text = pages(lost, tmp_path / "out")
    assert "Left out: gemm.fp16.4096: not in container" in page.text
    assert "- Left out: gemm.fp16.4096: not in container" in text


def test_a_table_of_memory_alone(tmp_path: Path) -> None:
    file = tmp_path / "x.csv"
    rows = [f"{arm},w,peak,{gib},GiB,{at}\n" for arm, gib in (("a", 1), ("b", 9)) for at in (1, 2, 3)]
    file.write_text("environment,workload,metric,value,unit,run\n" + "".join(rows))
    done = run("compare", file)
    assert (done.returncode, done.stdout.startswith("Different memory: on w b needs up to 8.0 GiB")) == (
        0,
        True,
    )
    file.write_text(file.read_text().replace(",9,", ",1,"))
    done = run("compare", file)
    assert (done.returncode, "no memory is shown to differ" in done.stderr) == (11, True)
    file.write_text("environment,metric,value\na,fps,1\nb,fps,2\n")
    done = run("compare", file)
    assert done.returncode == 11
    assert "no case has two launches in both arms" in done.stderr
    assert "a row for each: run 1, 2, 3" in done.stderr
    few = run("compare", saved(benches.bench(TWO, pairs=1), tmp_path / "few.json"))
    assert "spark-build bench run --rounds 10" in few.stderr


def test_comparing_says_it_in_words_and_by_exit_code(tmp_path: Path) -> None:
    file = saved(benches.bench(TWO), tmp_path / "bench.json")
    done = run("compare", file)
    assert done.returncode == 0, done.stderr
    assert "GEMM-bound work (2 cases): container is 1.5" in done.stdout
    assert "overhead 20-40%: something is set up wrongly; look next at" in done.stdout
    assert "driver: do driver and libraries" in done.stdout
    assert "indicative: " in done.stdout
    slow = run("compare", file, "--fail-above", "10")
    assert slow.returncode == 9
    assert "slower by more than 10%: tiny.step" in slow.stdout
    told = run("compare", file, "--fail-above", "10", "--json")
    document: dict[str, Any] = json.loads(told.stdout)
    assert (told.returncode, document["exit_code"]) == (9, 9)
    assert {each["kind"] for each in document["classes"]} == {"gemm", "memory", "convolution", "overhead"}
    few = saved(benches.bench(TWO, pairs=1), tmp_path / "few.json")
    assert run("compare", few).returncode == 11
    two = run("compare", file, saved(benches.bench(TWO, seed=9), tmp_path / "later.json"))
    assert two.returncode == 0, two.stderr
    assert "as fast as container, old within 2%" in two.stdout  # by their ratios to native


@pytest.mark.parametrize(
    ("text", "extra", "problem"),
    [
        ("{}", (), "no list of records with numbers"),
        ("{", (), "not JSON"),
        ("[" * 200_000, (), "nested too deeply"),
        ("environment,metric,value\na,ms,x\n", (), "x.txt:2: 'x' is no number"),
        ("environment,metric,value\na,ms,1\n", (), "only one environment: a"),
        ("environment,metric,value\na,ms,1\nb,ms,1\n", ("--arm", "c"), "no arm 'c'"),
        ("environment,metric,value\na,ms,1\nb,ms,1\n", ("--lower-is-better", "fps"), "no such metric"),
        ("environment,metric,value\na,ms,1\n", ("--fail-above", "x"), "not a valid float"),
    ],
)
def test_bad_input_is_one_clear_error(
    tmp_path: Path, text: str, extra: tuple[str, ...], problem: str
) -> None:
    file = tmp_path / "x.txt"
    file.write_text(text)
    done = run("compare", file, *extra)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("error: ") == 1
    assert problem in done.stderr
    assert "next: " in done.stderr or extra == ("--fail-above", "x")


BAD = {
    "deep.json": b"[" * 200_000,
    "half.json": b'{"kind": ',
    "marked.json": b"\xef\xbb\xbf{}",
    "bytes.json": b"{\xff}",
    "missing.json": None,
    "folder.json": None,
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_document_is_refused_by_all_that_read_one(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    found = BAD[name]
    if name.startswith("folder"):
        file.mkdir()
    elif found is not None:
        file.write_bytes(found)
    for words, hint in (
        (("bench", "compare", file), "give "),
        (("bench", "report", file), "give the bench.json"),
        (("verify", "compare", file, file), "give the burn-in.json"),
        (("verify", "gate", file), "give the burn-in.json"),
    ):
        done = invoke([*CLI, *map(str, words)])
        assert (done.returncode, done.stdout) == (2, ""), done.stderr
        assert done.stderr.startswith(f"error: {file}: ")
        assert f"\n  next: {hint}" in done.stderr
        assert len(done.stderr.splitlines()) == 2


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    file = tmp_path / "x.csv"
    file.write_bytes(b"environment,metric,value\n\xff\xfe,a,1\n")
    done = run("compare", file)
    assert done.returncode == 2
    assert "no text in UTF-8" in done.stderr


def test_the_commands_start_light() -> None:
    for name in ("compare", "report"):
        done = subprocess.run(
            [sys.executable, "-X", "importtime", *CLI[1:], "bench", name, "--help"],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        imported = {line.rsplit("|", 1)[-1].strip() for line in done.stderr.splitlines() if "|" in line}
        assert not imported & {"pydantic", "rich", "scipy", "matplotlib", "numpy"}
