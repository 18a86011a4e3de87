"""What a worker does with a task, and what a client makes of its answer."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from spark_build.build.context import resolve_context
from spark_build.build.scheduler import plan
from spark_build.cli.main import cli
from spark_build.farm.client import demands
from spark_build.farm.nodes import Workplace, abilities
from spark_build.farm.task import Task
from spark_build.machine import Machine
from spark_build.paths import locate
from spark_build.recipes.loader import load
from spark_build.recipes.model import Provision, Step
from spark_build.transfer.remote import entry_name
from spark_build.wheelhouse import trust
from tests.conftest import Root
from tests.helpers import farms, recipe_roots
from tests.helpers.exports import make_key
from tests.helpers.farms import Lab
from tests.helpers.recipe_roots import statuses


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    """A farm of one worker."""
    made = farms.make(tmp_path, {"a": "", "y": "", "z": ""}, {"z": "y"})
    made.scheduler()
    return made


@pytest.fixture
def worker(lab: Lab) -> Root:
    (root,) = lab.roots("one")
    lab.workers(root)
    return root


def test_a_task_becomes_only_words_of_its_own(tmp_path: Path) -> None:
    """However a client calls a recipe or a train, click takes it for that and nothing else."""
    site = Workplace(home=locate(str(tmp_path)), program=(), record_in="")
    sly = "--root=/"
    task = Task(
        run="",
        recipe=sly,
        plan_key="",
        train=sly,
        target=sly,
        provide={sly: sly},
        choices={"--root.x": sly},
    )
    words = task.command(site)
    context = cli.make_context("spark-build", [*words])
    assert context.obj.root is None
    assert (context.obj.train, context.obj.target) == (sly, sly)
    found = cli.get_command(context, "build")
    assert found is not None
    inner = found.make_context("build", words[words.index("build") + 1 :], parent=context)
    assert inner.params["recipes"] == (sly,)
    assert context.obj.root is None


def test_a_machine_without_what_a_recipe_takes_is_given_nothing(tmp_path: Path) -> None:
    """Dask compares what a task demands with a worker's resources."""
    root = recipe_roots.make(tmp_path, {"a": ""})
    home = locate(str(root.folder))
    setting = resolve_context(home, load(home.data), "host-cpu", "t", {})
    (step,) = plan(setting, ["a"]).steps
    assert step.estimate is not None
    cuda = Provision(
        need="cuda", distribution="cuda", provider="path", coupling="version", version="13.0", path="/cuda"
    )
    large = replace(step.estimate, memory_per_job_mib=setting.machine.memory_mib + 1)

    def may(machine: Machine, step: Step = step) -> bool:
        has = abilities(machine)
        return all(has.get(name, 0) >= amount for name, amount in demands(step, setting.target).items())

    here = replace(setting.machine, prefixes={})
    assert may(here)
    assert not may(replace(here, platform="linux-aarch64"))
    assert not may(replace(here, python="cp39"))
    assert not may(here, replace(step, estimate=large))
    assert not may(here, replace(step, provisions=(cuda,)))
    assert may(replace(here, prefixes={"cuda": "/cuda"}), replace(step, provisions=(cuda,)))


@pytest.mark.slow
def test_other_recipes_than_the_clients_are_not_built(lab: Lab, worker: Root) -> None:
    text = (worker.folder / "recipes" / "a.toml").read_text()
    (worker.folder / "recipes" / "a.toml").write_text(text + '[build.env]\nX = { value = "1", why = "no" }\n')
    done = lab.client.run(*lab.words("a"))
    assert done.returncode == 4, done.stderr
    assert "its recipes or settings make another a than the client's" in done.stderr
    assert not (worker.folder / "build").exists()


@pytest.mark.slow
def test_what_a_worker_signs_whom_nobody_trusts_is_not_taken(lab: Lab, worker: Root) -> None:
    lab.client.json("wheelhouse", "trust", "remove", "one")
    nobody = lab.client.run(*lab.words("a"))
    assert (nobody.returncode, "nobody is trusted here" in nobody.stderr) == (2, True), nobody.stderr
    key = make_key(lab.folder, "somebody")
    lab.client.json("wheelhouse", "trust", "add", "somebody", f"{key}.pub")
    for _ in range(2):
        done = lab.client.run(*lab.words("a"))
        assert (done.returncode, "by a trusted signer" in done.stderr) == (10, True), done.stderr
        assert statuses(json.loads(done.stdout)) == {"a": "failed"}
        entry = next(lab.remote.glob("entries/*/*/*.tar"))
        (trusted,) = trust.signers(lab.client.folder / "wheelhouse")
        entry.replace(lab.remote / entry_name(entry.parent.name, trusted.key))


@pytest.mark.slow
def test_the_longest_chain_comes_first(lab: Lab, worker: Root) -> None:
    done = lab.client.run(*lab.words("a", "z"))
    assert done.returncode == 0, done.stderr
    assert done.stderr.index("y: build done") < done.stderr.index("a: build done")


@pytest.mark.slow
def test_a_failed_build_is_explained_and_not_tried_elsewhere(tmp_path: Path) -> None:
    """Its log comes back; what needs it is blocked, the rest is built with --keep-going."""
    broken = "def work():\n    print('it is broken')\n    raise SystemExit(3)"
    lab = farms.make(tmp_path, {"a": broken, "b": "", "c": ""}, {"b": "a"})
    lab.scheduler()
    one, two = lab.roots("one", "two")
    lab.workers(one, two)
    done = lab.client.run(*lab.words("b", "c"), "--keep-going")
    assert done.returncode == 7, done.stderr
    assert statuses(json.loads(done.stdout)) == {"a": "failed", "b": "blocked", "c": "built"}
    log = lab.client.folder / "build" / "a" / "farm.log"
    assert "it is broken" in log.read_text()
    assert len([root for root in (one, two) if (root.folder / "build" / "a").exists()]) == 1


@pytest.mark.slow
def test_a_need_that_fails_on_the_worker_is_the_error(lab: Lab) -> None:
    """The client has that need, and no remote store: the worker must make it, and its source is damaged there."""
    lab.client.json("build", "y", "--no-closure")
    (root,) = lab.roots("one")
    links = lab.folder / "damaged"
    shutil.copytree(root.links, links)
    (links / "y-1.0.tar.gz").write_bytes(b"damaged")
    lab.workers(replace(root, links=links))
    done = lab.client.run(*lab.words("z"))
    assert done.returncode == 5, done.stderr
    assert statuses(json.loads(done.stdout)) == {"y": "reused", "z": "failed"}
    assert "y-1.0.tar.gz" in done.stderr
