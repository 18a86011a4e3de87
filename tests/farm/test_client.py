"""A client whose scheduler, remote store or workers fail it."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import dask
import pytest
from distributed import Client
from distributed.comm.core import CommClosedError

from spark_build.build.context import Context, resolve_context
from spark_build.build.recipe_build import Run, result_of
from spark_build.build.scheduler import plan
from spark_build.cli.farm import FarmOptions, opened
from spark_build.cli.options import Options
from spark_build.errors import HostError, StoreError, UsageError
from spark_build.events import RecipeFinished, encode
from spark_build.farm import client, nodes
from spark_build.farm.client import Connection, Farm, Order
from spark_build.farm.nodes import Workplace
from spark_build.farm.task import Task, TaskAnswer, perform
from spark_build.paths import locate
from spark_build.recipes.loader import load
from spark_build.recipes.model import BuildOptions, Step, Target
from spark_build.transfer import remote
from spark_build.wheels.model import StoredWheel
from tests.helpers import farms
from tests.helpers.exports import make_key
from tests.helpers.farms import Lab

TASK = Task(run="", recipe="a", plan_key="", train="t", target="host-cpu")
NO_RUN = cast("Run", None)  # nothing is built here


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with dask.config.set({"distributed.comm.timeouts.connect": "1s"}):
        yield farms.make(tmp_path, {"a": "", "b": ""})


def setting_of(lab: Lab) -> Context:
    home = locate(str(lab.client.folder))
    return resolve_context(home, load(home.data), "host-cpu", "t", {})


def step_of(setting: Context, name: str = "a") -> Step:
    (step,) = plan(setting, [name]).steps
    return step


def pushed(lab: Lab, name: str) -> str:
    """The build key of a recipe that somebody else built and pushed."""
    before = {*lab.remote.glob("entries/*/*")}
    replace(lab.client, folder=lab.folder / "one").json("build", name, "--no-closure")
    (entry,) = {*lab.remote.glob("entries/*/*")} - before
    return entry.name


def test_a_target_that_its_name_does_not_tell_is_refused(lab: Lab) -> None:
    """`auto` makes up a target that no file names. Another Python than the file's is part of the name."""
    setting = setting_of(lab)
    where = FarmOptions(farm="local:1")
    for changes in ({"name": "cuda-sm89"}, {"cuda_architectures": ("8.9",)}):
        other = replace(setting, target=replace(setting.target, **changes))
        with (
            pytest.raises(UsageError, match="for a target by its name") as refused,
            opened(Options(), other, plan(setting, ["a"]), BuildOptions(), where, print),
        ):
            pass
        assert "h200" in str(refused.value.hint)


def test_a_worker_of_this_machine_that_ends_is_an_error_with_its_words(lab: Lab) -> None:
    lab.share()
    setting = setting_of(lab)
    site = Workplace(
        home=setting.home, program=(sys.executable, "-c", "raise SystemExit('no luck')"), record_in=""
    )
    planned = plan(setting, ["a"])
    with (
        nodes.local(setting.home, site, 1) as local,
        Farm(setting, planned, TASK, lambda _: None).at(local.address, local.security, local.check) as farm,
    ):
        result = farm.build(NO_RUN, planned.steps[0], {})
    assert isinstance(result.error, HostError)
    assert "no luck" in result.error.message


def test_a_worker_of_this_machine_has_the_remote_store_and_recipes_of_now(lab: Lab) -> None:
    lab.share()
    home = setting_of(lab).home
    site = Workplace(home=home, program=(sys.executable, "-c", ""), record_in="")
    other = lab.folder / "other"
    other.mkdir()
    root = home.build / "farm" / "0"
    for url in (lab.remote, other):
        lab.client.json("remotes", "remove", "lab")
        key = make_key(lab.folder, f"key-{url.name}")
        lab.client.json("remotes", "add", "lab", str(url), "--push", "--sign", str(key))
        lab.client.json("wheelhouse", "trust", "add", url.name, f"{key}.pub")
        with nodes.local(home, site, 1):
            pass
        (own,), (there,) = remote.configured(home.wheelhouse), remote.configured(locate(str(root)).wheelhouse)
        assert (there.url, there.signer) == (f"file://{url}", own.signer)
        assert (root / "recipes").samefile(home.data[0] / "recipes")
        (root / "recipes").unlink()
        (root / "recipes").symlink_to(lab.folder)


def test_a_scheduler_that_is_away_is_looked_for_once(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """A closed connection is made again; where that was given up, nobody waits another time."""
    scheduler = lab.scheduler()
    order = Order(task=TASK, demands={}, priority=0)
    there = Connection(lab.address, nodes.security(lab.certificates), lambda _: None, lambda: None)
    there.close()
    assert there.workers({}) == []
    assert there.ask(perform, order, (), lambda: None) is None, "connected again"
    monkeypatch.setattr(client, "PATIENCE", 0.0)
    there.close()
    scheduler.kill()
    scheduler.wait()
    with pytest.raises(HostError, match="does not answer") as first:
        there.ask(perform, order, (), lambda: None)
    with pytest.raises(HostError) as second:
        there.ask(perform, order, (), lambda: None)
    assert second.value is first.value


@pytest.mark.parametrize(
    "text",
    [
        "tls://head:abc",
        "tls://:8786",
        "tls://head:",
        "head",
        "tls://head:70000",
        "tcp://head:1",
        "tls://a b:1",
    ],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="no address of a farm"):
        nodes.address_of(text)
    assert nodes.address_of("head:8786") == "tls://head:8786"
    assert nodes.address_of("tls://[::1]:8786") == "tls://[::1]:8786"


@pytest.mark.parametrize("call", ["get_metadata", "subscribe_topic"])
def test_a_connection_that_breaks_at_once_does_not_answer(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def broken(*_: object, **_more: object) -> None:
        raise CommClosedError("it broke")

    lab.scheduler()
    monkeypatch.setattr(Client, call, broken)
    with pytest.raises(HostError, match="does not answer: it broke"):
        Connection(lab.address, nodes.security(lab.certificates), lambda _: None, lambda: None)


def test_a_remote_store_that_was_away_is_asked_again(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Earlier in the run, and while a result is fetched."""
    lab.roots("one")
    pushed(lab, "a")
    setting = setting_of(lab)
    step = step_of(setting)
    assert step.remote == "lab"
    away = lab.remote.rename(lab.folder / "away")
    assert setting.remotes.fetch(step.build_key, setting.target) is None

    def sleep(seconds: float) -> None:
        if seconds:
            away.rename(lab.remote)

    monkeypatch.setattr(remote, "time", SimpleNamespace(sleep=sleep, time=time.time))
    farm = Farm(setting, plan(setting, ["a"]), TASK, lambda _: None)
    assert farm.build(NO_RUN, step, {}).status == "reused"


@dataclass
class Answering:
    """In place of a connection: every worker answers this, whatever it `lacks`."""

    answer: TaskAnswer
    lacks: str = ""

    def workers(self, wanted: Mapping[str, float]) -> list[str]:
        return [] if self.lacks in wanted else [self.answer.address]

    def ask(self, *given: Any) -> TaskAnswer:
        for _ in range(2):
            given[-1]()
        return self.answer


def test_what_no_worker_has_is_named_once(lab: Lab) -> None:
    setting = setting_of(lab)
    planned = plan(setting, ["a"])
    lack = f"python {setting.target.python}"
    for lacks, told in ((lack, [f"waiting for a worker with {lack}, 100 memory MiB"]), ("GPU", [])):
        said: list[Any] = []
        farm = Farm(setting, planned, TASK, said.append)
        answer = TaskAnswer(worker="w", address="tls://w:1", problem="it ends here")
        farm._connection = cast("Connection", Answering(answer, lacks))
        farm.build(NO_RUN, planned.steps[0], {})
        assert [one.message for one in said if "waiting" in one.message] == told


def test_another_build_than_the_recipes_is_not_taken(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """However well it is signed; a key that is none is not looked for."""
    looked_for = set()
    fetch = remote.Remotes.fetch

    def noted(self: remote.Remotes, build_key: str, target: Target) -> StoredWheel | None:
        looked_for.add(build_key)
        return fetch(self, build_key, target)

    monkeypatch.setattr(remote.Remotes, "fetch", noted)
    lab.roots("one")
    setting = setting_of(lab)
    planned = plan(setting, ["a"])
    (step,) = planned.steps
    built = encode(RecipeFinished(result=result_of(step, "built")))
    own, other = pushed(lab, "a"), pushed(lab, "b")
    farm = Farm(setting, planned, TASK, lambda _: None)

    def result(key: str) -> Any:
        answer = TaskAnswer(worker="w", address="tls://w:1", result=built, build_key=key)
        farm._connection = cast("Connection", Answering(answer))
        return farm.build(NO_RUN, step, {})

    for key in (other, f"../{own[:61]}", own.upper(), f"{own}\n", ""):
        refused = result(key)
        assert (refused.status, type(refused.error)) == ("failed", StoreError), key
    assert result(own).status == "built"
    assert looked_for == {own, other}
