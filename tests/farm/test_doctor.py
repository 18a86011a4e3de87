"""The doctors of all workers of a farm, asked by one command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from spark_build import __version__
from spark_build.cli.doctor import differences, worst_of
from spark_build.cli.main import cli
from spark_build.farm.nodes import Workplace
from spark_build.farm.task import Examination
from spark_build.paths import locate
from tests.helpers import farms
from tests.helpers.farms import Lab, building, held, release, until


def asked(lab: Lab, *words: str) -> tuple[int, dict[str, Any], str]:
    where = ("--farm", lab.address, "--certificates", str(lab.certificates))
    done = lab.client.run("--json", "doctor", *where, *words)
    return done.returncode, json.loads(done.stdout), done.stderr


@pytest.mark.slow  # a farm of three processes
def test_every_worker_answers_also_while_it_builds(tmp_path: Path) -> None:
    lab = farms.make(tmp_path, {"a": held("987651")})
    lab.scheduler()
    code, document, said = asked(lab)
    assert (code, document["nodes"], "has no worker" in said) == (12, [], True)
    assert f": spark-build farm worker {lab.address}\n" in said
    roots = lab.roots("one", "two")
    lab.workers(*roots)
    client = lab.build("a")
    until(lambda: any(building(root, "a") for root in roots))
    code, document, said = asked(lab, "a")
    assert code == document["exit_code"]
    assert code == (4 if any(worst_of(node)[0] == "fail" for node in document["nodes"]) else 0)
    alone = json.loads(roots[0].run("--json", "doctor", "a").stdout)
    assert alone["machine"]["spark_build"] == __version__
    for node in document["nodes"]:
        assert node["machine"] == {**alone["machine"], "cuda": node["machine"]["cuda"]}
        assert {"writable", "disk", "memory", "python"} <= {one["check"] for one in node["findings"]}
    folders = {one["message"] for node in document["nodes"] for one in node["findings"]}
    assert all(any(str(root.folder) in told for told in folders) for root in roots), folders
    for words, told in ((("--option", "a.b=1"), "a has no option 'b'"), (("--with", "nothing"), "nothing")):
        code, document, _ = asked(lab, *words)
        assert code == 4
        assert all(told in node["problem"] for node in document["nodes"]), document
    _, document, _ = asked(lab, "a", "--provide", "b=store")
    assert all("no recipe is named 'b'" in node["problem"] for node in document["nodes"]), document
    (roots[1].folder / "recipes" / "a.toml").write_text("broken")
    code, document, _ = asked(lab, "a")
    assert code == 4
    problems = sorted(node["problem"] for node in document["nodes"])
    assert problems[0] == ""
    assert "a.toml" in problems[1]
    text = lab.client.run("doctor", "--farm", lab.address, "--certificates", str(lab.certificates)).stdout
    assert text.startswith("NODE")
    for root in roots:
        release(root, "a")
    client.communicate(timeout=120)


def node(name: str, problem: str = "", found: tuple[str, ...] = (), **machine: str) -> dict[str, Any]:
    alike = {"driver": "580.95", "cuda": "13.0", "python": "3.12.3", "spark_build": "1"}
    findings = [{"status": status, "check": status, "message": "m"} for status in found]
    return {"node": name, "problem": problem, "findings": findings, "machine": {**alike, **machine}}


def test_differences_are_named() -> None:
    three = [node("a"), node("b", driver="570.1"), node("c", cuda="")]
    assert differences(three) == {
        "driver": {"580.95": ["a", "c"], "570.1": ["b"]},
        "cuda": {"13.0": ["a", "b"], "": ["c"]},
    }
    assert differences([node("a"), node("b")]) == {}
    assert list(differences([node("a"), node("b", python="3.11.2")])) == ["python"]
    assert list(differences([node("a"), node("b", spark_build="2")])) == ["spark_build"]


@pytest.mark.parametrize(
    ("problem", "found", "worst"),
    [
        ("away", ("ok",), ("fail", "away")),
        ("", ("ok", "warn", "fail"), ("fail", "fail fail: m")),
        ("", ("ok", "warn"), ("warn", "warn warn: m")),
        ("", ("ok",), ("ok", "ok")),
    ],
)
def test_the_worst_finding(problem: str, found: tuple[str, ...], worst: tuple[str, str]) -> None:
    assert worst_of(node("a", problem, found)) == worst


def test_what_is_asked_becomes_only_words_of_its_own(tmp_path: Path) -> None:
    site = Workplace(home=locate(str(tmp_path)), program=(), record_in="")
    sly = "--root=/"
    asked = Examination(
        recipes=[sly, "--fix"],
        also=[sly],
        train=sly,
        target=sly,
        provide={"--fix": sly},
        choices={"--fix.--yes": sly},
        cluster=True,
    )
    words = asked.command(site)
    context = cli.make_context("spark-build", [*words])
    assert (context.obj.root, context.obj.train, context.obj.target) == (None, sly, sly)
    assert (context.obj.provide, context.obj.choices) == ({"--fix": sly}, {("--fix", "--yes"): sly})
    found = cli.get_command(context, "doctor")
    assert found is not None
    inner = found.make_context("doctor", words[words.index("doctor") + 1 :], parent=context)
    assert (inner.params["recipes"], inner.params["fix"]) == ((sly, "--fix"), False)
    assert inner.params["also"] == (sly,)
