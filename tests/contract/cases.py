"""The command lines whose output and exit codes are kept; `{root}` is the folder where the recorded root lies."""

from __future__ import annotations

import re
from dataclasses import dataclass

ROOT = ("--root", "{root}/root", "--train", "t", "--target", "host-cpu")


WRITING = (
    "build",
    "all",
    "matrix",
    "gc",
    "pin",
    "unpin",
    "rollback",
    "remove",
    "export",
    "import",
    "report",
    "verify",
    "new",
    "init",
)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One command line; what it writes, it writes into a copy of the root."""

    line: str  # as typed, without the options of ROOT
    before: tuple[str, ...] = ()  # typed first, in the same copy; must end with 0
    options: tuple[str, ...] = ROOT

    @property
    def name(self) -> str:
        """A file name for it."""
        where = () if self.options == ROOT else self.options
        said = " ".join((*self.before, self.line, *where)).replace("{root}/", "")
        return re.sub(r"[^a-z0-9.]+", "-", said.lower()).strip("-")[:100]

    @property
    def writes(self) -> bool:
        """Whether it may change the root: then it is run in a copy."""
        return bool({*self.line.split()} & {*WRITING}) or bool(self.before)

    def arguments(self, line: str) -> list[str]:
        """What the program is given."""
        return [*self.options, *line.split()]


def _both(*lines: str, before: tuple[str, ...] = (), options: tuple[str, ...] = ROOT) -> list[Case]:
    """Each line as it is and with --json."""
    return [
        Case(line=text, before=before, options=options) for line in lines for text in (line, f"--json {line}")
    ]


def _json(*lines: str, before: tuple[str, ...] = (), options: tuple[str, ...] = ROOT) -> list[Case]:
    return [Case(line=f"--json {line}", before=before, options=options) for line in lines]


OTHER_TARGET = ("--root", "{root}/root", "--train", "2.13", "--target", "gb10")
STACK = ("--root", "{root}/empty", "--train", "2.13", "--target", "host-cpu")
CASES = (
    # planning
    *_both("plan", "plan tiny", "plan broken", "plan --offline tiny", "why tiny", "why broken"),
    *_json("plan", options=OTHER_TARGET),
    *_json("plan", "plan onnx", options=STACK),
    Case(line="--version", options=()),
    # building, without anything to build
    *_both("build tiny", "all tiny", "build tiny --offline", "build tiny --stop-after configure"),
    *_json("matrix tiny --targets host-cpu,gb10", "matrix tiny --targets gb10", "matrix tiny --trains nothing"),
    *_both("matrix tiny --targets host-cpu,gb10 --pythons 3.11,3.12 --dry-run"),
    *_both("log tiny", "log broken", "log broken --diagnosis", "log tiny --diagnosis"),
    *_both("attach --list", "attach"),
    # recipes and patches
    *_both("recipes list", "recipes show tiny", "recipes show tiny --env", "recipes lint tiny"),
    *_json("recipes list", "recipes lint", "recipes show onnx", "recipes show torch", options=STACK),
    *_json("recipes show torch", options=OTHER_TARGET),
    *_json("recipes schema recipe", "recipes schema train", "recipes schema target", "recipes pin --check tiny"),
    *_json("recipes new tiny --sdist tiny", "patches check tiny --offline", "patches check"),
    Case(line="patches check tiny --offline"),
    # the wheelhouse
    *_both("wheelhouse list", "wheelhouse path", "wheelhouse generations", "wheelhouse check"),
    *_both("wheelhouse check --deep", "wheelhouse gc --dry-run"),
    *_both("wheelhouse gc --keep 1", "wheelhouse gc --older-than 0d --grace 0", "wheelhouse pin 2", "wheelhouse unpin 1"),
    *_both("wheelhouse rollback", "wheelhouse rollback 1", "wheelhouse remove little", "wheelhouse remove tiny"),
    *_both("wheelhouse inspect tiny", "wheelhouse inspect little", "wheelhouse inspect {root}/wheels/*.whl"),
    *_both("wheelhouse inspect {root}/wheels/*.whl tiny"),
    *_both("wheelhouse export {root}/out.tar --without-spark-build"),
    *_both("wheelhouse export {root}/out --without-spark-build --generation 1 tiny"),
    *_both("wheelhouse import {root}/given/view.tar", "wheelhouse import --unsigned {root}/given/view.tar"),
    *_both("wheelhouse trust list"),
    *_json("wheelhouse trust add alice {root}/nowhere.pub", "wheelhouse trust remove alice"),
    *_both("wheelhouse import --unsigned {root}/given/view.tar", options=("--root", "{root}/second", "--train", "t", "--target", "host-cpu")),
    *_both("remotes list"),
    *_json("remotes push nothing", "remotes remove nothing", "remotes gc nothing", "remotes add lab {root}/nowhere"),
    # the farm
    *_both("farm init {root}/farm"),
    *_json("farm scheduler --certificates {root}/nowhere", "farm worker tls://127.0.0.1:1 --certificates {root}/nowhere"),
    *_json("build tiny --farm local:2", "build tiny --farm local:2 --shell"),
    *_json("doctor --farm ssh:-x", "build tiny --farm ssh:a --certificates {root}/nowhere", "doctor --farm nothing", "doctor --farm local:2 --fix", "doctor --certificates {root}/nowhere"),
    # environments
    *_both("env check {root}/env", "env update {root}/env --dry-run", "env update {root}/env --dry-run --generation 1"),
    *_json("env update {root}/env --dry-run", before=("wheelhouse rollback 1",)),
    # measurements
    *_both("verify"),
    *_both("verify gate", "verify gate {root}/given/slower.json", "verify gate {root}/given/same.json"),
    *_both("verify gate {root}/given/slower.json --against {root}/given/same.json"),
    *_both("verify compare {root}/given/same.json {root}/given/slower.json"),
    *_both("verify compare {root}/given/burn-in.json {root}/given/burn-in.json"),
    *_both("bench compare {root}/given/bench.json", "bench compare {root}/given/bench.json --fail-over 5"),
    *_both("bench compare {root}/given/suite.json", "bench compare {root}/given/others.csv"),
    # drawing takes seconds: each run in one form
    *_json("bench report {root}/given/bench.json --out {root}/pages"),
    Case(line="bench report {root}/given/suite.json --out {root}/pages"),
    *_both("bench run --list"),
    *_json("verify", options=OTHER_TARGET),
    *_json("verify history", "recipes outdated tiny", "config show"),
    # this machine, made of files
    *_both("doctor"),
    *_json("doctor tiny", "doctor --cluster"),
    # what goes wrong
    *_json("plan tinny", "build tinny", "why tinny", "log tinny", "recipes show tinny", "recipes lint tinny"),
    *_json("plan --no-such-option", "plann", "wheelhouse lst", "plan --source tiny", "build tiny --memory much"),
    *_json("all tiny --stop-after configure --burn-in"),
    *_json("wheelhouse import {root}/nowhere.tar", "wheelhouse import {root}/given/others.csv", "wheelhouse import --unsigned {root}/given/cut.tar"),
    *_json("wheelhouse inspect {root}/damaged/*.whl", "wheelhouse inspect {root}/nowhere.whl", "wheelhouse inspect nothing"),
    *_json("wheelhouse pin 99", "wheelhouse unpin 2", "wheelhouse rollback 99", "wheelhouse remove nothing", "wheelhouse export"),
    *_json("env check {root}/nowhere", "env update {root}/given", "attach nothing"),
    *_json("verify --nodes one,two", "verify --rank 0", "verify --burn-in --rank 0", "verify --burn-in --nodes one"),
    *_json("verify --rounds 3", "verify gate {root}/nowhere.json", "verify gate {root}/given/bench.json"),
    *_json("verify compare {root}/given/same.json", "bench compare {root}/nowhere.json", "bench report {root}/given/same.json"),
    *_json("bench run --workload nothing", "doctor --fix"),
    *_json("wheelhouse list", "wheelhouse path", "wheelhouse generations", "verify", "log tiny", "verify gate",
           options=STACK),
    *_json("plan", options=("--root", "{root}/root", "--train", "nothing")),
    *_json("plan", options=("--root", "{root}/root", "--target", "nothing")),
    *_json("plan", options=("--root", "{root}/wrong")),
    *_json("plan", options=("--root", "{root}/given/others.csv")),
    *_json("env create {root}/new tiny", options=OTHER_TARGET),
)  # fmt: skip
