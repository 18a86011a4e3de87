from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_build.build.environment import machine_toolkit
from spark_build.build.plan import (
    DOWNLOAD_RATE,
    StoredResult,
    choose_source,
    closure_of,
    critical_paths,
    jobs_for,
    make_plan,
    makespan,
    total,
)
from spark_build.events import ExpectedUsage
from spark_build.machine import Gpu, Limits, Machine
from spark_build.recipes.evaluation import machine_of, patches_for
from spark_build.recipes.model import (
    Build,
    Download,
    Need,
    Patch,
    Pin,
    Plan,
    Recipe,
    Requires,
    Source,
    SourceKind,
    Step,
    Target,
    Train,
    Variant,
    When,
)

CPU = Target(name="host-cpu", summary="s", platform="linux-x86_64", python="cp311")
GB10 = Target(
    name="gb10", summary="s", platform="linux-aarch64", python="cp312", cuda_architectures=("12.1",)
)
MACHINE = Machine(platform="linux-x86_64", python="cp311", cores=8, memory_mib=16_000, available_mib=10_000)


def source(kind: SourceKind = "sdist", platform: str = "") -> Source:
    return Source(kind=kind, platform=platform, sha256="a" * 64, commit="b" * 40)


def on_demand(name: str, *needs: Need) -> Recipe:
    """A recipe like torch: for CUDA, and without it only when named."""
    return dataclasses.replace(
        recipe(name, cuda=True, variants=(Variant(when=When(cuda=False), default=False),)),
        requires=Requires(cuda=True, cpu=True),
        needs=needs,
    )


def recipe(name: str, *needs: str, cuda: bool = False, **build: Any) -> Recipe:
    return Recipe(
        name=name,
        distribution=name,
        summary="s",
        kind="pep517",
        build=Build(**build),
        requires=Requires(cuda=cuda),
        needs=tuple(Need(name=need) for need in needs),
    )


def pin(*, platform: str = "", unestablished: tuple[str, ...] = ()) -> Pin:
    return Pin(version="1.0", sources=(source("sdist", platform),), unestablished=unestablished)


ELSEWHERE = pin(platform="linux-aarch64")  # nothing to build from on this platform


class OlderShop:
    """A store in memory that has everything as an older program left it."""

    def __init__(self) -> None:
        self.asked: dict[str, Mapping[str, str]] = {}

    def lookup(self, step: Step, needs: Mapping[str, str]) -> StoredResult:
        self.asked[step.recipe.name] = dict(needs)
        name = step.recipe.name
        return StoredResult(
            f"build key of {name}", True, stale=("rules changed",), stored_as=f"older key of {name}"
        )


class Shop:
    """A store in memory, which remembers what it was asked."""

    def __init__(self, *have: str) -> None:
        self.have = have
        self.asked: dict[str, Mapping[str, str]] = {}

    def lookup(self, step: Step, needs: Mapping[str, str]) -> StoredResult:
        self.asked[step.recipe.name] = dict(needs)
        return StoredResult(f"build key of {step.recipe.name}", step.recipe.name in self.have)


def plan(
    *recipes: Recipe,
    names: tuple[str, ...] = (),
    pins: Mapping[str, Pin] | None = None,
    target: Target = CPU,
    shop: Shop | OlderShop | None = None,
    provide: Mapping[str, str] | None = None,
    others: tuple[str, ...] = (),
) -> Plan:
    known = {one.name: one for one in recipes}
    components = dict(pins) if pins is not None else {name: pin() for name in known}
    train = Train(name="2.13", summary="s", components=components)
    lookup = (shop or Shop()).lookup
    asked = names if names or others else tuple(known)
    return make_plan(asked, known, train, target, MACHINE, lookup, provide, others=others)


def only(planned: Plan) -> Step:
    (step,) = planned.steps
    return step


# --- a prefix that the system may have ---------------------------------------------------------------

HOPPER = Target(name="h", summary="s", platform="linux-x86_64", python="cp311", cuda_architectures=("9.0",))


def with_toolkit(machine: Machine, target: Target, wish: str = "", *, pinned: bool = True) -> Step:
    """The step of a recipe that needs `cuda`, from the store or by a path; of targets with a GPU only."""
    wheels = tuple(
        Source(kind="wheel", project=name, filename=f"{name}-1-py3-none-any.whl", sha256=name * 64)
        for name in ("a", "b")
    )
    toolkit = dataclasses.replace(recipe("cuda", cuda=True), kind="assemble")
    need = Need(name="cuda", providers=("store", "path"), when=When(cuda=True))
    user = dataclasses.replace(recipe("user"), needs=(need,))
    pins = {"user": pin()} | ({"cuda": Pin(version="13.0.3", sources=wheels)} if pinned else {})
    train = Train(name="t", summary="s", components=pins)
    provide = {"cuda": wish} if wish else {}
    known = {"cuda": toolkit, "user": user}
    return make_plan(["user"], known, train, target, machine, Shop().lookup, provide).steps[-1]


def test_the_store_comes_before_the_systems_prefix() -> None:
    machine = dataclasses.replace(MACHINE, prefixes={"cuda": "/opt/kit"})
    (first,) = with_toolkit(machine, HOPPER).provisions
    assert (first.provider, first.path) == ("store", "")
    (second,) = with_toolkit(machine, HOPPER, pinned=False).provisions
    assert (second.provider, second.path) == ("path", "/opt/kit")
    (asked,) = with_toolkit(machine, HOPPER, "/my/kit").provisions
    assert (asked.provider, asked.path) == ("path", "/my/kit")
    nowhere = with_toolkit(MACHINE, HOPPER, pinned=False)
    assert (nowhere.decision, nowhere.reasons) == ("BLOCKED", ("needs cuda, which is SKIP",))


def test_a_need_of_gpus_is_none_without_one() -> None:
    step = with_toolkit(MACHINE, CPU)
    assert (step.decision, step.provisions) == ("BUILD", ())


# --- order ------------------------------------------------------------------------------------------


def test_what_is_needed_comes_first_and_is_added() -> None:
    known = {
        "triton": recipe("triton", "llvm"),
        "torch": recipe("torch", "triton", "cusparselt"),
        "vision": recipe("vision", "torch"),
        "llvm": recipe("llvm"),
        "cusparselt": recipe("cusparselt"),
        "onnx": recipe("onnx"),
    }
    assert closure_of(["vision"], known) == ("cusparselt", "llvm", "triton", "torch", "vision")
    assert closure_of(["onnx", "onnx"], known) == ("onnx",)
    assert closure_of([], known) == ()


def test_the_order_is_alphabetical_where_it_is_free() -> None:
    known = {"a": recipe("a", "z"), "b": recipe("b"), "c": recipe("c", "b"), "z": recipe("z")}
    assert closure_of(["c", "b", "a"], known) == ("b", "c", "z", "a")


@st.composite
def _recipes(draw: st.DrawFn) -> dict[str, Recipe]:
    """Recipes without circles, in any order and with any names."""
    letters = draw(st.permutations("abcdefgh"))[: draw(st.integers(1, 8))]
    found = []
    for index, name in enumerate(letters):
        earlier = st.sets(st.sampled_from(letters[:index])) if index else st.just(set[str]())
        needs = draw(earlier)
        found.append(recipe(name, *sorted(needs), cuda=draw(st.integers(0, 5)) == 0))
    return {one.name: one for one in draw(st.permutations(found))}


@given(_recipes(), st.data())
def test_any_set_of_recipes(known: dict[str, Recipe], data: st.DataObject) -> None:
    asked = data.draw(st.lists(st.sampled_from(sorted(known)), min_size=1))
    some = st.sets(st.sampled_from(sorted(known)))
    shop, without = Shop(*data.draw(some)), data.draw(some)
    pins = {name: ELSEWHERE if name in without else pin() for name in known}
    planned = plan(*known.values(), names=tuple(asked), pins=pins, shop=shop)
    steps: dict[str, Step] = {}
    for step in planned.steps:
        name = step.recipe.name
        needs = [need.name for need in known[name].needs]
        assert step.needs == tuple(needs)
        assert all(need in steps for need in needs), "a need comes before"
        before: set[str] = {steps[need].decision for need in needs}
        _check_decision(step, before, stored=name in shop.have, has_source=name not in without)
        if name in shop.asked:
            assert shop.asked[name] == {need: f"build key of {need}" for need in needs}
        assert step.reasons, "every decision has a reason"
        steps[name] = step
    assert set(asked) <= set(steps)
    assert all(name in asked or any(name in step.needs for step in planned.steps) for name in steps)
    again = plan(*known.values(), names=tuple(reversed(asked)), pins=pins, shop=Shop(*shop.have))
    assert again == planned, "the order of asking does not matter"


def _check_decision(step: Step, before: set[str], *, stored: bool, has_source: bool) -> None:
    if step.recipe.requires.cuda:
        assert step.decision == "SKIP"
    elif before & {"SKIP", "BLOCKED"} or not has_source:
        assert step.decision == "BLOCKED"
    elif "BUILD" in before or not stored:
        assert step.decision == "BUILD"
    else:
        assert step.decision == "REUSE"
    known = step.decision in ("BUILD", "REUSE") and "BUILD" not in before
    assert step.build_key == (f"build key of {step.recipe.name}" if known else "")


# --- decisions --------------------------------------------------------------------------------------


def test_build() -> None:
    step = only(plan(recipe("onnx")))
    assert (step.decision, step.reasons) == ("BUILD", ("not in the store",))
    assert step.build_key == "build key of onnx"
    assert len(step.key) == 64


def test_reuse() -> None:
    step = only(plan(recipe("onnx"), shop=Shop("onnx")))
    assert (step.decision, step.reasons) == ("REUSE", ("in the store with the same inputs and toolchain",))


def test_what_is_stale_is_reused_after_another_audit() -> None:
    shop = OlderShop()
    llvm, torch = plan(recipe("torch", "llvm"), recipe("llvm"), shop=shop).steps
    assert (llvm.decision, llvm.build_key) == ("REUSE", "build key of llvm")
    assert llvm.reasons == (
        "in the store with the same inputs and toolchain",
        "under the key that an older spark-build gave it",
        "to be audited again: rules changed",
    )
    assert torch.decision == "REUSE", "what an audit says rebuilds nothing"
    assert shop.asked["torch"] == {"llvm": "older key of llvm"}, "there it lies until it is taken over"


def test_a_need_that_is_built_first_hides_the_build_key() -> None:
    """Its content is not known yet, so nobody may say REUSE."""
    shop = Shop("torch")
    _, torch = plan(recipe("torch", "llvm"), recipe("llvm"), shop=shop).steps
    assert (torch.decision, torch.reasons) == ("BUILD", ("needs llvm, which is built first",))
    assert torch.build_key == ""
    assert "torch" not in shop.asked
    both = plan(
        recipe("torch", "cuda", "acl", "llvm"), *map(recipe, ("cuda", "acl", "llvm")), shop=shop
    ).steps[-1]
    assert both.reasons == ("needs cuda, acl and llvm, which are built first",)


def test_a_need_in_the_store_gives_its_build_key() -> None:
    shop = Shop("torch", "llvm")
    assert [step.decision for step in plan(recipe("torch", "llvm"), recipe("llvm"), shop=shop).steps] == [
        "REUSE",
        "REUSE",
    ]
    assert shop.asked["torch"] == {"llvm": "build key of llvm"}


def test_skip_without_a_version() -> None:
    step = only(plan(recipe("onnx"), pins={}))
    assert (step.decision, step.reasons) == ("SKIP", ("train 2.13 has no version of it",))


def test_skip_without_a_gpu_tells_all_it_needs() -> None:
    llvm, torch = plan(recipe("torch", "llvm", cuda=True), recipe("llvm")).steps
    assert (llvm.decision, torch.decision) == ("BUILD", "SKIP")
    assert torch.reasons == ("host-cpu has no GPU; it needs a CUDA target such as gb10 (and llvm)",)


def test_skip_on_another_platform() -> None:
    arm = dataclasses.replace(recipe("onnx"), requires=Requires(platforms=("linux-aarch64",)))
    step = only(plan(arm))
    assert (step.decision, step.reasons) == ("SKIP", ("is for linux-aarch64, not linux-x86_64",))


def test_blocked_without_a_source_for_the_platform() -> None:
    step = only(plan(recipe("onnx"), pins={"onnx": ELSEWHERE}))
    assert (step.decision, step.reasons) == ("BLOCKED", ("train 2.13 names no source for linux-x86_64",))
    assert step.source is None


def test_blocked_is_handed_on_with_every_reason() -> None:
    chain = (
        recipe("a", cuda=True),
        recipe("b"),
        recipe("c", "a", "b"),
        recipe("d", "c"),
        recipe("e", "a"),
        recipe("f"),
    )
    pins = {one.name: ELSEWHERE if one.name == "b" else pin() for one in chain}
    steps = {step.recipe.name: step for step in plan(*chain, pins=pins, shop=Shop("c", "d")).steps}
    assert steps["c"].decision == "BLOCKED"
    assert steps["c"].reasons == ("needs a, which is SKIP", "needs b, which is BLOCKED")
    assert steps["d"].reasons == ("needs c, which is BLOCKED",)
    assert steps["e"].reasons == ("needs a, which is SKIP",)
    assert steps["f"].decision == "BUILD"


# --- providers --------------------------------------------------------------------------------------


def needing(name: str, need: Need) -> Recipe:
    return dataclasses.replace(recipe(name), needs=(need,))


ANYWHERE = Need(name="torch", providers=("store", "public", "path"))


def test_a_need_from_elsewhere_is_not_built() -> None:
    known = (needing("vision", ANYWHERE), recipe("torch", "llvm"), recipe("llvm"))
    for where, shown in (("public", "torch 1.0 as public wheel"), ("/opt/env", "torch from /opt/env")):
        step = only(plan(*known, names=("vision",), provide={"torch": where}))
        assert (step.decision, step.reasons) == ("BUILD", ("not in the store", shown))


def test_a_public_need_that_no_lock_holds_is_said() -> None:
    known = (needing("vision", ANYWHERE), recipe("torch"))
    step = only(plan(*known, names=("vision",), provide={"torch": "public"}))
    assert step.warnings[-1].startswith("held by no lock: build requirements, public torch (")


def test_where_a_need_comes_from_changes_the_plan_key() -> None:
    known = (needing("vision", ANYWHERE), recipe("torch"))
    keys = {
        plan(*known, names=("vision",), provide={"torch": where}).steps[-1].key
        for where in ("store", "public", "/opt/env")
    }
    assert len(keys) == 3


def test_a_path_of_this_machine_is_not_in_the_plan_key() -> None:
    """Another machine has it elsewhere; what is in it counts, in the build key."""
    known = (needing("vision", ANYWHERE), recipe("torch"))
    one, other = (only(plan(*known, names=("vision",), provide={"torch": path})) for path in ("/a", "/b"))
    assert one.key == other.key


def test_a_provider_that_the_recipe_does_not_allow() -> None:
    known = (needing("torch", Need(name="llvm", providers=("store", "path"))), recipe("llvm"))
    step = only(plan(*known, names=("torch",), provide={"llvm": "public"}))
    assert (step.decision, step.reasons) == (
        "BLOCKED",
        ("llvm may come from store or path, not from public",),
    )


def test_where_a_need_cannot_be_built_its_public_wheel_will_do() -> None:
    gpu = recipe("torch", cuda=True)
    torch, vision = plan(needing("vision", ANYWHERE), gpu).steps
    assert (torch.decision, vision.decision) == ("SKIP", "BUILD")
    assert vision.reasons == ("not in the store", "torch 1.0 as public wheel")
    strict = needing("vision", Need(name="torch", providers=("store", "path")))
    assert plan(strict, gpu).steps[1].reasons == ("needs torch, which is SKIP",)


def test_a_need_coupled_by_its_version_changes_no_key_otherwise() -> None:
    loose = needing("audio", Need(name="torch", coupling="version"))
    keys = {
        plan(loose, recipe("torch", requires=(ninja,))).steps[1].key
        for ninja in ("ninja==1.13.1", "ninja==1.13.2")
    }
    assert len(keys) == 1
    pins = {"audio": pin(), "torch": dataclasses.replace(pin(), version="2.0")}
    assert plan(loose, recipe("torch"), pins=pins).steps[1].key not in keys


# --- keys -------------------------------------------------------------------------------------------


def test_plan_keys_hold_those_of_the_needs() -> None:
    """Also when the recipe is skipped: keys are for comparing, on any machine."""
    first = plan(recipe("torch", "llvm"), recipe("llvm")).steps
    other = plan(recipe("torch", "llvm"), recipe("llvm", requires=("wheel==0.45.1",))).steps
    assert first[0].key != other[0].key
    assert first[1].key != other[1].key
    assert first[0].key in first[1].declared["needs"]["llvm"]


def test_the_machine_does_not_change_plan_keys() -> None:
    train = Train(name="2.13", summary="s", components={"onnx": pin()})
    known = {"onnx": recipe("onnx")}
    keys = {
        only(make_plan(["onnx"], known, train, GB10, machine, Shop().lookup)).key
        for machine in (
            MACHINE,
            Machine(platform="linux-aarch64", python="cp312", cores=1, memory_mib=1, available_mib=1),
        )
    }
    assert len(keys) == 1


# --- sources, patches, warnings ---------------------------------------------------------------------


def test_the_first_source_in_order_of_preference() -> None:
    git, sdist = source("git"), source("sdist")
    assert choose_source(Pin(version="1", sources=(git, sdist)), CPU) is git
    assert choose_source(Pin(version="1", sources=(sdist, git)), CPU) is sdist
    assert choose_source(Pin(version="1", sources=()), CPU) is None


def test_a_tag_without_its_commit_is_no_source() -> None:
    tag = Source(kind="git", url="https://example.org/demo", tag="v1.0")
    assert choose_source(Pin(version="1", sources=(tag, source())), CPU) == source()
    step = only(plan(recipe("demo"), pins={"demo": Pin(version="1", sources=(tag,))}))
    (reason,) = step.reasons
    assert step.decision == "BLOCKED"
    assert reason.startswith("not pinned yet: the commit of v1.0 of https://example.org/demo. On a machine ")
    assert reason.endswith(": `recipes pin demo --train 2.13`")
    beside = Pin(version="1", sources=(source(),), extra_sources={"data": tag})
    assert only(plan(recipe("demo"), pins={"demo": beside})).decision == "BLOCKED"
    pinned = dataclasses.replace(tag, commit="1" * 40)
    assert only(plan(recipe("demo"), pins={"demo": Pin(version="1", sources=(pinned,))})).decision == "BUILD"


def test_a_source_for_one_platform() -> None:
    arm, intel = source("archive", "linux-aarch64"), source("archive", "linux-x86_64")
    both = Pin(version="1", sources=(arm, intel))
    assert choose_source(both, CPU) is intel
    assert choose_source(both, GB10) is arm


def test_patches_of_the_train() -> None:
    always = Patch(file="a.patch", why="w", sha256="1" * 64)
    old = Patch(file="b.patch", why="w", sha256="2" * 64, trains=("2.9",))
    patched = dataclasses.replace(recipe("onnx"), patches=(always, old))
    assert patches_for(patched, Train(name="2.9", summary="", components={})) == (always, old)
    assert patches_for(patched, Train(name="2.13", summary="", components={})) == (always,)


def test_warnings_say_what_is_not_certain() -> None:
    doubtful = Patch(file="onnx/0001.patch", why="w", sha256="1" * 64, unverified="2.12 was read")
    patched = dataclasses.replace(recipe("onnx"), patches=(doubtful,))
    step = only(plan(patched, pins={"onnx": pin(unestablished=("its tag",))}, target=GB10))
    assert step.warnings == (
        "not established: its tag",
        "patch onnx/0001.patch is unverified: 2.12 was read",
        "builds on linux-aarch64 only; this machine is linux-x86_64",
        "held by no lock: build requirements (`recipes pin` writes locks)",
    )
    assert only(plan(recipe("onnx"))).warnings == step.warnings[-1:]


# --- cost -------------------------------------------------------------------------------------------


@given(
    st.integers(1, 512),
    st.integers(0, 1 << 21),
    st.integers(1, 1 << 16),
    st.integers(0, 1 << 16),
    st.none() | st.integers(1, 1 << 21),
)
def test_jobs_fit_cores_and_memory(
    cores: int, available: int, per_job: int, reserve: int, memory: int | None
) -> None:
    machine = dataclasses.replace(MACHINE, cores=cores, available_mib=available)
    limits = Limits(cores=cores, reserve_mib=reserve, memory_mib=memory)
    room = max(0, min(available - reserve, available if memory is None else memory))
    jobs = jobs_for(recipe("torch", memory_per_job_mib=per_job), machine, limits)
    assert 1 <= jobs <= cores
    assert jobs == 1 or jobs * per_job <= room
    assert jobs == cores or (jobs + 1) * per_job > room, "what fits is used"


@pytest.mark.parametrize(("per_job", "jobs"), [(1024, 8), (2048, 4), (4096, 2), (20_000, 1)])
def test_estimates_are_for_the_jobs_that_fit(per_job: int, jobs: int) -> None:
    step = only(plan(recipe("torch", memory_per_job_mib=per_job, core_minutes=60.0, disk_mib=7)))
    assert step.estimate is not None
    assert (step.estimate.jobs, step.estimate.memory_mib) == (jobs, jobs * per_job)
    assert step.estimate.seconds == pytest.approx(3600 / jobs)
    assert step.estimate.disk_mib == 7


# --- what is built only when it is named ------------------------------------------------------------

CUSPARSELT = recipe("cusparselt", cuda=True)
TORCH = on_demand("torch", Need(name="cusparselt", when=When(cuda=True)))
VISION = on_demand("vision", Need(name="torch", providers=("store", "public")))
STACK = (recipe("onnx"), CUSPARSELT, TORCH, VISION)
NAMES = tuple(one.name for one in STACK)


def decisions(planned: Plan) -> dict[str, str]:
    return {step.recipe.name: step.decision for step in planned.steps}


def test_what_is_not_built_by_default_waits_to_be_named() -> None:
    planned = plan(*STACK, others=NAMES)
    assert decisions(planned) == {"onnx": "BUILD", "cusparselt": "SKIP", "torch": "SKIP", "vision": "SKIP"}
    reasons = {step.recipe.name: step.reasons for step in planned.steps}
    assert reasons["torch"] == ("not built for host-cpu unless named (--with torch)",)
    spark = decisions(plan(*STACK, others=NAMES, target=GB10))
    assert spark == dict.fromkeys(NAMES, "BUILD")


def test_a_name_adds_it_to_the_others() -> None:
    assert decisions(plan(*STACK, names=("torch",), others=NAMES))["torch"] == "BUILD"
    alone = plan(*STACK, names=("torch",))
    assert decisions(alone) == {"torch": "BUILD"}  # no need for cuSPARSELt without CUDA
    assert only(alone).needs == ()


def test_a_need_that_was_not_named_comes_as_a_public_wheel() -> None:
    planned = plan(*STACK, names=("vision",))
    assert decisions(planned) == {"torch": "SKIP", "vision": "BUILD"}
    assert [one.provider for one in planned.steps[-1].provisions] == ["public"]
    for named, wish in ((("torch", "vision"), None), (("vision",), {"torch": "store"})):
        planned = plan(*STACK, names=named, provide=wish)
        assert decisions(planned) == {"torch": "BUILD", "vision": "BUILD"}
        assert [one.provider for one in planned.steps[-1].provisions] == ["store"]


def test_what_comes_from_elsewhere_is_not_built_nor_what_only_it_needs() -> None:
    """Where no recipe is named, each is asked for; a provided one is not, whatever blocks it here."""
    recipes = (
        *(recipe("llvm"), recipe("triton", "llvm"), recipe("lonely"), recipe("toolkit")),
        dataclasses.replace(
            recipe("torch"),
            needs=(Need(name="triton", providers=("store", "public")), Need(name="toolkit")),
        ),
        dataclasses.replace(
            recipe("vision"),
            needs=(Need(name="torch", providers=("store", "public")), Need(name="toolkit")),
        ),
    )
    names = tuple(one.name for one in recipes)
    pins = {name: pin() for name in names} | {"torch": ELSEWHERE, "llvm": ELSEWHERE}
    planned = plan(*recipes, others=names, pins=pins, provide={"torch": "public"})
    assert decisions(planned) == {
        **dict.fromkeys(("llvm", "triton", "torch"), "SKIP"),
        **dict.fromkeys(("lonely", "toolkit", "vision"), "BUILD"),
    }
    reasons = {step.recipe.name: step.reasons for step in planned.steps}
    assert reasons["torch"] == ("comes from elsewhere (--provide)",)
    assert reasons["llvm"] == ("only triton would need it (--provide)",)
    named = plan(*recipes, names=("triton",), others=names, provide={"torch": "public"})
    assert decisions(named)["triton"] == decisions(named)["llvm"] == "BUILD"
    without = plan(*recipes, others=names, provide={"triton": "public"})
    assert decisions(without) == {**dict.fromkeys(names, "BUILD"), "triton": "SKIP", "llvm": "SKIP"}


def test_the_total_for_another_machine() -> None:
    """Its cores and memory, and nothing that was measured here."""
    box = dataclasses.replace(GB10, cores=20, memory_mib=124_000)
    builder = machine_of(box, MACHINE)
    assert (builder.cores, builder.memory_mib) == (20, 124_000)
    assert machine_of(GB10, MACHINE) is MACHINE, "a target that does not say"
    spark = dataclasses.replace(
        MACHINE, platform="linux-aarch64", gpus=(Gpu(name="NVIDIA GB10", capability="12.1"),)
    )
    assert machine_of(dataclasses.replace(box, gpu_names=("NVIDIA GB10",)), spark) is spark
    recipes = {
        "tool": dataclasses.replace(recipe("tool", core_minutes=20.0, disk_mib=100), kind="repack"),
        "demo": recipe("demo", core_minutes=40.0, disk_mib=1000, memory_per_job_mib=2048),
    }
    pins = {"tool": pin(), "demo": Pin(version="1.0", sources=(source("git"),))}
    train = Train(name="t", summary="", components=pins)
    shop = Shop()
    past = {"demo": ExpectedUsage(memory_per_job_mib=4096, seconds=7.0)}
    planned = make_plan(
        recipes,
        recipes,
        train,
        box,
        MACHINE,
        shop.lookup,
        builder=builder,
        history=lambda one: past.get(one.name),
    )
    found = total(planned, MACHINE)
    assert found.seconds == 1200 + 120, "a wheel is unpacked by one process"
    assert (found.memory_mib, found.disk_mib) == (20 * 4096, 1100)
    assert found.here == ("tool",)


def test_what_compiles_one_file_after_the_other_takes_its_core_minutes() -> None:
    for most, jobs in ((1, 1), (3, 3), (None, 8)):
        step = only(plan(recipe("scatter", most_jobs=most, core_minutes=12.0, memory_per_job_mib=100)))
        assert step.estimate is not None
        assert (step.estimate.jobs, step.estimate.seconds) == (jobs, 720 / jobs)
        assert step.estimate.memory_mib == 100 * jobs


def test_downloads_take_time_and_what_two_need_is_fetched_once() -> None:
    shared = Download(kind="file", name="a" * 64, size=DOWNLOAD_RATE * 10)
    unknown = Download(kind="git", name="somewhere@1")
    fetched = {"tool": (shared, unknown), "demo": (shared, Download(kind="wheel", name="cmake==3"))}
    recipes = {name: recipe(name, core_minutes=8.0) for name in (*fetched, "kept")}
    train = Train(name="t", summary="", components=dict.fromkeys(recipes, pin()))
    planned = make_plan(
        recipes,
        recipes,
        train,
        CPU,
        MACHINE,
        Shop("kept").lookup,
        downloads_of=lambda one: fetched[one.recipe.name],
    )
    assert [step.downloads for step in planned.steps] == [fetched["demo"], (), fetched["tool"]]
    waits = [step.estimate.download_seconds for step in planned.steps if step.estimate]
    assert waits == [10, 0, 10]
    found = total(planned, MACHINE)
    assert (found.download_bytes, found.download_seconds) == (DOWNLOAD_RATE * 10, 10)
    assert (found.git, found.files, found.wheels, found.public, found.downloads_unknown) == (1, 1, 1, 0, 2)
    assert found.seconds == 10 + sum(step.estimate.seconds for step in planned.steps[::2] if step.estimate)


# --- needs whose public wheel is the usual one --------------------------------------------------------

SCATTER = dataclasses.replace(
    recipe("scatter"), default=False, needs=(Need(name="torch", providers=("public", "store")),)
)
USUAL = (recipe("llvm"), recipe("torch", "llvm"), SCATTER)


def provider(planned: Plan) -> str:
    (step,) = [one for one in planned.steps if one.recipe.name == "scatter"]
    return step.provisions[0].provider


def test_nothing_is_built_for_what_usually_takes_the_public_wheel() -> None:
    planned = plan(*USUAL, names=("scatter",))
    assert decisions(planned) == {"scatter": "BUILD"}
    assert only(planned).reasons == ("not in the store", "torch 1.0 as public wheel")
    assert provider(plan(*USUAL, names=("scatter",), shop=Shop("llvm"))) == "public"


def test_what_the_store_has_comes_before_the_public_wheel() -> None:
    planned = plan(*USUAL, names=("scatter",), shop=Shop("llvm", "torch"))
    assert decisions(planned) == {"llvm": "REUSE", "torch": "REUSE", "scatter": "BUILD"}
    assert provider(planned) == "store"
    assert planned.steps[-1].reasons == ("not in the store", "torch 1.0 built here")
    assert provider(plan(*USUAL, names=("scatter",), shop=Shop("torch"))) == "public"  # of another LLVM
    wished = plan(*USUAL, names=("scatter",), shop=Shop("llvm", "torch"), provide={"torch": "public"})
    assert (decisions(wished), provider(wished)) == ({"scatter": "BUILD"}, "public")


def test_what_is_built_anyway_comes_before_the_public_wheel() -> None:
    others = ("llvm", "torch")  # the catalogue is not among them
    assert decisions(plan(*USUAL, others=others)) == {"llvm": "BUILD", "torch": "BUILD"}
    together = plan(*USUAL, names=("scatter",), others=others)
    assert decisions(together) == {"llvm": "BUILD", "torch": "BUILD", "scatter": "BUILD"}
    assert provider(together) == "store"
    for planned in (
        plan(*USUAL, names=("scatter", "torch")),
        plan(*USUAL, names=("scatter",), provide={"torch": "store"}),
    ):
        assert (decisions(planned), provider(planned)) == (decisions(together), "store")


def test_what_a_variant_costs_is_what_the_plan_says() -> None:
    small = Variant(when=When(cuda=False), memory_per_job_mib=500, core_minutes=8, disk_mib=70)
    one = recipe("torch", memory_per_job_mib=4000, core_minutes=80, disk_mib=7000, variants=(small,))
    found = [only(plan(one, target=target)).estimate for target in (CPU, GB10)]
    assert [(each.memory_per_job_mib, each.disk_mib) for each in found if each] == [(500, 70), (4000, 7000)]
    assert found[0] is not None
    assert found[0].seconds == 60  # 8 minutes of 8 jobs


def test_only_older_recipes_take_the_machines_toolkit_unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.delenv("CUDA_PATH", raising=False)
    older = recipe("older", cuda=True)
    assert machine_toolkit(older)
    assert machine_toolkit(recipe("newer", "cuda", cuda=True)) == ""
    # Its need for the toolkit is left out where there is no GPU; a CPU build must not depend on nvcc.
    assert machine_toolkit(dataclasses.replace(older, requires=Requires(cuda=True, cpu=True))) == ""
    assert machine_toolkit(recipe("plain")) == ""


# --- the versions of a need that will do -----------------------------------------------------------


@pytest.mark.parametrize(("versions", "decision"), [(">=1.0", "BUILD"), ("", "BUILD"), (">1.0", "BLOCKED")])
def test_a_need_of_another_version_blocks(versions: str, decision: str) -> None:
    user = dataclasses.replace(recipe("user"), needs=(Need(name="base", versions=versions),))
    planned = plan(recipe("base"), user)
    step = planned.steps[-1]
    assert step.decision == decision
    if decision == "BLOCKED":
        assert step.reasons == ("it takes base >1.0, and the train has 1.0",)


def test_versions_that_are_no_versions_are_not_compared() -> None:
    """LLVM goes by the start of its commit."""
    user = dataclasses.replace(recipe("user"), needs=(Need(name="base", versions=">1.0"),))
    pins = {"base": dataclasses.replace(pin(), version="1f126a6dea50"), "user": pin()}
    assert plan(recipe("base"), user, pins=pins).steps[-1].decision == "BUILD"


def timed(graph: list[Recipe], seconds: dict[str, float], *have: str) -> Plan:
    """Plan recipes whose builds took that long before; `have`: in the store."""
    return make_plan(
        [*seconds],
        {one.name: one for one in graph},
        Train(name="t", summary="s", components={name: pin() for name in seconds}),
        CPU,
        MACHINE,
        Shop(*have).lookup,
        history=lambda one: ExpectedUsage(memory_per_job_mib=1, seconds=seconds[one.name]),
    )


@given(
    st.lists(
        st.tuples(st.integers(1, 50), st.sets(st.integers(0, 7), max_size=3), st.booleans()),
        min_size=1,
        max_size=8,
    ),
    st.integers(1, 5),
)
def test_machines_end_between_the_bounds_of_a_schedule(
    rows: list[tuple[int, set[int], bool]], machines: int
) -> None:
    """Never before the longest chain or an equal share; one machine takes all; a prefix is made on each."""
    graph = []
    for number, (_, needs, is_prefix) in enumerate(rows):
        own = recipe(f"r{number}", *(f"r{need}" for need in sorted(needs) if need < number))
        graph.append(dataclasses.replace(own, kind="cmake" if is_prefix else "pep517"))
    seconds = {one.name: float(row[0]) for one, row in zip(graph, rows, strict=True)}
    planned = timed(graph, seconds)
    work, longest = sum(seconds.values()), max(critical_paths(planned).values())
    assert makespan(planned, 1) == work
    assert max(longest, work / machines) <= makespan(planned, machines) + 1e-9
    if not any(is_prefix for _, _, is_prefix in rows):
        assert makespan(planned, machines) <= longest + (work - longest) / machines + max(seconds.values())


def test_machines_share_what_does_not_wait_and_make_prefixes_each() -> None:
    base = dataclasses.replace(recipe("base"), kind="cmake")
    graph = [base, recipe("left", "base"), recipe("right", "base"), recipe("alone")]
    seconds = {"base": 5.0, "left": 2.0, "right": 3.0, "alone": 4.0}
    planned = timed(graph, seconds)
    assert [makespan(planned, count) for count in (1, 2, 3)] == [14.0, 10.0, 8.0]


def test_a_critical_path_is_the_longest_chain_that_waits_for_a_step() -> None:
    """By the history where there is one; what is not built takes no time."""
    seconds = {"base": 5.0, "left": 2.0, "right": 3.0, "top": 1.0, "alone": 4.0}
    graph = [
        recipe("base"),
        recipe("left", "base"),
        recipe("right", "base"),
        recipe("top", "left", "right"),
        recipe("alone"),
    ]

    def paths(*have: str) -> dict[str, float]:
        return critical_paths(timed(graph, seconds, *have))

    assert paths() == {"base": 9.0, "right": 4.0, "left": 3.0, "top": 1.0, "alone": 4.0}
    assert paths("base", "alone")["base"] == 4.0
    assert paths("alone")["alone"] == 0.0
