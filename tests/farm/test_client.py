"""A client whose scheduler, remote store or workers fail it."""

from __future__ import annotations

import gc
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
from spark_build.events import RecipeFinished, RecipeResult, encode
from spark_build.farm import client, nodes
from spark_build.farm.address import FarmAddress, parse_address
from spark_build.farm.client import Connection, Farm, Order
from spark_build.farm.nodes import VERSION, ReachedFarm, Workplace
from spark_build.farm.task import Task, TaskAnswer, perform
from spark_build.paths import locate
from spark_build.recipes.loader import load
from spark_build.recipes.model import BuildOptions, Step, Target
from spark_build.transfer import remote
from spark_build.wheels.model import StoredWheel
from tests.helpers import farms
from tests.helpers.exports import make_key
from tests.helpers.farms import Lab

pytestmark = pytest.mark.filterwarnings("ignore:.*SSLSocket:pytest.PytestUnraisableExceptionWarning")

TASK = Task(run="", recipe="a", plan_key="", train="t", target="host-cpu")
NO_RUN = cast("Run", None)  # nothing is built here


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with dask.config.set({"distributed.comm.timeouts.connect": "1s"}):
        yield farms.make(tmp_path, {"a": "", "b": ""})
    gc.collect()  # Client.close stops its loop before all sockets are closed: not to the next test's harm


def setting_of(lab: Lab) -> Context:
    home = locate(str(lab.client.folder))
    return resolve_context(home, load(home.data), "host-cpu", "t", {})


def step_of(setting: Context, name: str = "a") -> Step:
    (step,) = plan(setting, [name]).steps
    return step


def reached(lab: Lab) -> ReachedFarm:
    return ReachedFarm(address=lab.address, security=nodes.security(lab.certificates))


def pushed(lab: Lab, name: str) -> str:
    """The build key of a recipe that somebody else built and pushed."""
    before = {*lab.remote.glob("entries/*/*")}
    replace(lab.client, folder=lab.folder / "one").json("build", name, "--no-closure")
    (entry,) = {*lab.remote.glob("entries/*/*")} - before
    return entry.name


def test_a_target_that_its_name_does_not_tell_is_refused(lab: Lab) -> None:
    """`auto` makes up a target that no file names. Another Python than the file's is part of the name."""
    setting = setting_of(lab)
    where = FarmOptions(farm=parse_address("local:1"))
    for changes in ({"name": "cuda-sm89"}, {"cuda_architectures": ("8.9",)}):
        other = replace(setting, target=replace(setting.target, **changes))
        with (
            pytest.raises(UsageError, match="for a target by its name") as refused,
            opened(Options(), other, plan(setting, ["a"]), BuildOptions(), where, print),
        ):
            pass
        assert "h200" in str(refused.value.hint)


def built_locally(setting: Context, site: Workplace, count: int = 1) -> RecipeResult:
    """What becomes of a recipe on a worker of this machine with another program than ours."""
    planned = plan(setting, ["a"])
    with (
        nodes.local(setting.home, site, count) as local,
        Farm(setting, planned, TASK, lambda _: None).at(local) as farm,
    ):
        assert local.address.startswith("inproc://"), "nobody else can connect"
        return farm.build(NO_RUN, planned.steps[0], {})


def test_what_a_worker_of_this_machine_says_is_the_error(lab: Lab) -> None:
    lab.share()
    setting = setting_of(lab)
    program = (sys.executable, "-c", "raise SystemExit('error: no luck')")
    result = built_locally(setting, Workplace(home=setting.home, program=program, record_in=""))
    assert isinstance(result.error, HostError)
    assert result.error.message == "no luck"


def test_the_processors_and_memory_are_shared_among_the_workers_of_this_machine(lab: Lab) -> None:
    lab.share()
    setting, said = setting_of(lab), lab.folder / "said"
    program = ("sh", "-c", f'echo "$@" >{said}', "sh")
    site = Workplace(home=setting.home, program=program, record_in="", jobs=6, memory_mib=4000)
    for count, told in ((1, "--jobs=6 --memory=4000"), (2, "--jobs=3 --memory=2000")):
        built_locally(setting, site, count)
        assert told in said.read_text()


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


@pytest.mark.parametrize("is_strange", [False, True])
def test_what_a_strangers_recipes_compile_on_workers_is_taken_by_no_others(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, is_strange: bool
) -> None:
    """The roots of workers are named; what counts is whether the user named theirs."""
    lab.share()
    monkeypatch.setenv("SPARK_BUILD_CACHE", f"file:{lab.folder}")
    home, said = replace(setting_of(lab).home, is_strange=is_strange), lab.folder / "said"
    program = ("sh", "-c", f'echo "$SPARK_BUILD_CACHE" "$2" >>{said}', "sh")
    built_locally(replace(setting_of(lab), home=home), Workplace(home=home, program=program, record_in=""))
    name = f"{home.cache.name}-0" if is_strange else "0"
    cache = "ccache" if is_strange else f"file:{lab.folder}"
    assert said.read_text() == f"{cache} {home.build / 'farm' / name}\n"


def test_a_scheduler_that_is_away_is_looked_for_once(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """A closed connection is made again; where that was given up, nobody waits another time."""
    scheduler = lab.scheduler()
    order = Order(task=TASK, demands={}, priority=0)
    there = Connection(reached(lab), lambda _: None)
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
        "",
    ],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="no address of a farm"):
        parse_address(text)
    assert parse_address("head:8786") == FarmAddress(kind="tls", scheduler="tls://head:8786")
    assert parse_address("tls://[::1]:8786").scheduler == "tls://[::1]:8786"


@pytest.mark.parametrize(
    "text", ["local:", "local:0", "local:-1", "local:999", "local:1e1", "local: 1", "local:²"]
)
def test_so_many_workers_are_refused(text: str) -> None:
    """A thousand would take the machine's memory."""
    with pytest.raises(UsageError, match="one worker or more, and at most"):
        parse_address(text)


@pytest.mark.parametrize("call", ["get_metadata", "subscribe_topic"])
def test_a_connection_that_breaks_at_once_does_not_answer(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def broken(*_: object, **_more: object) -> None:
        raise CommClosedError("it broke")

    lab.scheduler()
    monkeypatch.setattr(Client, call, broken)
    with pytest.raises(HostError, match="does not answer: it broke"):
        Connection(reached(lab), lambda _: None)


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
    comes: int | None = None

    def workers(self, wanted: Mapping[str, float]) -> list[str]:
        return [] if self.lacks in wanted else [self.answer.address]

    def facts(self) -> str:
        return "w has nothing"

    def coming(self) -> int | None:
        return self.comes

    def ask(self, *given: Any) -> TaskAnswer:
        for _ in range(2):
            given[-1]()
        return self.answer


def test_what_no_worker_has_is_named_once_beside_what_they_have(lab: Lab) -> None:
    setting = setting_of(lab)
    planned = plan(setting, ["a"])
    lack = f"python {setting.target.python}"
    needs = f"{VERSION}, platform {setting.target.platform}, {lack}, 100 MiB of memory"
    told = f"no worker can take a: it needs {needs}; w has nothing"
    for lacks, expected in ((lack, [f"{told}; waiting 10 min for one that can"]), ("GPU", [])):
        said: list[Any] = []
        farm = Farm(setting, planned, TASK, said.append)
        answer = TaskAnswer(worker="w", address="tls://w:1", problem="it ends here")
        farm._there = cast("Connection", Answering(answer, lacks))
        farm.build(NO_RUN, planned.steps[0], {})
        assert [one.message for one in said if "no worker" in one.message] == expected


def test_nobody_waits_for_ever_for_a_worker_that_can(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time is over, or all workers of a farm of ours are there; meanwhile others may use all workers."""
    setting = setting_of(lab)
    planned = plan(setting, ["a"])
    answer = TaskAnswer(worker="w", address="tls://w:1", problem="it ends here")
    for fitting, comes in ((0.0, None), (0.0, 1), (600.0, 0)):
        monkeypatch.setattr(client, "FITTING", fitting)
        farm = Farm(setting, planned, TASK, lambda _: None)
        lacking = Answering(answer, f"python {setting.target.python}", comes=comes)
        farm._there = cast("Connection", lacking)
        result = farm.build(NO_RUN, planned.steps[0], {})
        assert isinstance(result.error, HostError)
        assert result.error.message.startswith("no worker can take a: it needs spark-build"), result.error
        assert farm.slots() == 1
    slots = []

    def ask(_self: Answering, *given: Any) -> TaskAnswer:
        given[-1]()
        slots.append(farm.slots())
        return answer

    lacking.comes = None
    monkeypatch.setattr(Answering, "ask", ask)
    farm.build(NO_RUN, planned.steps[0], {})
    assert [*slots, farm.slots()] == [2, 1], "it waits beside what others have workers for"


def test_nobody_waits_for_a_worker_with_a_gpu_that_went_away(monkeypatch: pytest.MonkeyPatch) -> None:
    left = [["w"], ["w"], []]

    class Leaving:
        def __init__(self, *_: Any) -> None: ...
        def await_all(self) -> None: ...
        def refuse_gone(self) -> None: ...
        def close(self) -> None: ...

        def workers(self, _demands: object) -> list[str]:
            return left.pop(0)

        def ask(self, *given: Any) -> None:
            for _ in range(2):
                given[-1]()

    monkeypatch.setattr(client, "Connection", Leaving)
    target = load([Path(__file__).parents[2]]).target("h200")
    with pytest.raises(HostError, match="went away"):
        client.verified_by(cast("ReachedFarm", None), TASK, target)


def test_workers_that_were_just_started_are_waited_for(lab: Lab) -> None:
    setting = setting_of(lab)
    planned = plan(setting, ["a"])
    said: list[Any] = []
    farm = Farm(setting, planned, TASK, said.append)
    answer = TaskAnswer(worker="w", address="tls://w:1", problem="it ends here")
    coming = Answering(answer, f"python {setting.target.python}", comes=2)
    farm._there = cast("Connection", coming)
    farm.build(NO_RUN, planned.steps[0], {})
    assert [one.message for one in said][:-1] == ["waiting for the workers that were just started"]


def test_machines_of_one_kind_are_named_once_and_not_all(lab: Lab) -> None:
    lab.scheduler()
    there = Connection(reached(lab), lambda _: None)
    assert there.facts() == "the farm has no worker"
    there._workers = {
        str(number): (f"n{number // 2}", {"memory MiB": 1.0, "GPU": 2.0}) for number in range(20)
    }
    assert there.facts().startswith("n0 has 1 MiB of memory, 2 GPU; n1 has")
    assert there.facts().endswith("; and 2 more")
    there.close()


def test_another_build_than_the_recipes_is_not_taken(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """However well it is signed; a key that is none is not looked for."""
    looked_for = set()
    fetch = remote.Remotes.fetch

    def noted(
        self: remote.Remotes, build_key: str, target: Target, *, audited: bool = False
    ) -> StoredWheel | None:
        looked_for.add(build_key)
        return fetch(self, build_key, target, audited=audited)

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
        farm._there = cast("Connection", Answering(answer))
        return farm.build(NO_RUN, step, {})

    for key in (other, f"../{own[:61]}", own.upper(), f"{own}\n", ""):
        refused = result(key)
        assert (refused.status, type(refused.error)) == ("failed", StoreError), key
    assert result(own).status == "built"
    assert looked_for == {own, other}
