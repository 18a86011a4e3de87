from __future__ import annotations

import ast
import dataclasses
import json
import platform
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_build import probe
from spark_build.build import diagnosis
from spark_build.build.keys import brought_up, build_inputs, judgement_inputs, plan_inputs, source_identity
from spark_build.recipes.evaluation import evaluate
from spark_build.recipes.model import (
    Audit,
    Build,
    Cmake,
    DeviceRule,
    Feature,
    Naming,
    Need,
    Option,
    Patch,
    Pin,
    Prefix,
    Provision,
    Recipe,
    Repair,
    Requires,
    Scons,
    Source,
    System,
    Target,
    Train,
    Variable,
    Variant,
    Verify,
    When,
)
from spark_build.text import canonical, digest
from spark_build.wheels import audit, elf, payload, rules, rules_device

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)
SDIST = Source(kind="sdist", project="demo", filename="demo-1.0.tar.gz", sha256="a" * 64)
GIT = Source(kind="git", url="https://example.invalid/demo.git", tag="v1", commit="b" * 40)
PATCHES = (
    Patch(file="demo/0001-a.patch", why="because", sha256="1" * 64),
    Patch(file="demo/0002-b.patch", why="because", sha256="2" * 64),
)
RECIPE = Recipe(
    name="demo",
    distribution="Demo",
    summary="a demonstration",
    kind="pep517",
    build=Build(
        requires=("setuptools==80.9.0", "wheel==0.45.1"),
        env={
            "MAX_JOBS": Variable(value="{jobs}", why="setup.py"),
            "A": Variable(value="{extra:protobuf} {extra:abseil}", why="too"),
        },
    ),
    needs=(Need(name="llvm"),),
    repair=Repair(bundle=True, exclude=("libcuda.so.1", "liba.so")),
)
LLVM = Provision(need="llvm", distribution="llvm", provider="store", coupling="content", version="19.1")
BASE: dict[str, Any] = {
    "recipe": RECIPE,
    "pin": Pin(version="1.0", sources=(SDIST,), extra_sources={"protobuf": GIT}),
    "source": SDIST,
    "patches": PATCHES,
    "target": Target(
        name="t", summary="s", platform="linux-x86_64", python="cp311", cuda_architectures=("9.0", "12.1")
    ),
    "provisions": (LLVM,),
    "keys": {"llvm": "c" * 64},
    "train": Train(name="2.13", summary="s", components={}),
}


def declared_by(**changes: Any) -> dict[str, Any]:
    given = {**BASE, **changes}
    evaluated = evaluate(given["recipe"], given["pin"], given["target"], given.pop("train"))
    return plan_inputs(**given, evaluated=evaluated)


def key(**changes: Any) -> str:
    return digest(declared_by(**changes))


def changed(what: str, **fields: Any) -> dict[str, Any]:
    return {what: dataclasses.replace(BASE[what], **fields)}


def build(**fields: Any) -> dict[str, Any]:
    return changed("recipe", build=dataclasses.replace(RECIPE.build, **fields))


def backwards(value: Any) -> Any:
    """The same value with every mapping filled in the opposite order."""
    if isinstance(value, dict):
        return {name: backwards(value[name]) for name in reversed(list(value))}
    return [backwards(one) for one in value] if isinstance(value, list) else value


@given(JSON)
def test_the_order_of_mappings_does_not_matter(value: Any) -> None:
    assert canonical(value) == canonical(backwards(value))
    assert digest(value) == digest(backwards(value))


@given(JSON)
def test_canonical_json_loses_nothing(value: Any) -> None:
    """Read back it is the same value: two values with one spelling would share a key."""
    assert json.loads(canonical(value)) == value


@given(st.lists(st.text(), min_size=2, unique=True))
def test_the_order_of_lists_does_matter(value: list[str]) -> None:
    assert digest(value) != digest(value[::-1])


def test_the_spelling_is_fixed_for_good() -> None:
    """Keys are compared between versions of this program and between machines."""
    assert canonical({"b": [1, None, True], "a": "ü\n"}) == '{"a":"ü\\n","b":[1,null,true]}'
    assert digest({}) == "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), [-float("inf")]])
def test_what_json_cannot_say_is_no_key(value: Any) -> None:
    with pytest.raises(ValueError, match="JSON"):
        canonical(value)


# --- plan key ---------------------------------------------------------------------------------------


IRRELEVANT = {
    "summary": changed("recipe", summary="other words"),
    "notes": changed("recipe", notes=("a note",)),
    "checks": changed("recipe", verify=Verify(checks=("demo",))),
    "system packages (the build key has their versions)": changed("recipe", system=System(apt=("g++",))),
    "where it makes sense": changed("recipe", requires=Requires(platforms=("linux-x86_64",))),
    "whether it is built unasked": changed("recipe", default=False),
    "an option that nothing refers to": changed("recipe", options={"blas": Option(value="MKL", why="w")}),
    "a compiler flag whose option is empty": changed(
        "recipe",
        options={"march": Option(value="", why="w")},
        build=dataclasses.replace(RECIPE.build, compile_flags=("-march={option:march}",)),
    ),
    "why it is needed": changed("recipe", needs=(Need(name="llvm", why="the compiler"),)),
    "where a need lies on this machine": {"provisions": (dataclasses.replace(LLVM, path="/opt"),)},
    "what the build must find (the judgement key has it)": changed(
        "recipe", features=(Feature(name="CUDA"),), cmake=Cmake(expect=("bin/x",))
    ),
    "what the audit asks (the judgement key has it)": changed("recipe", audit=Audit(host_only="Python")),
    "a variant for something else": build(
        variants=(Variant(when=When(cuda=False), requires=("wheel==1",), env={"A": RECIPE.build.env["A"]}),)
    ),
    "threads of a job": build(threads_per_job=7),
    "jobs at once": build(most_jobs=1),
    "memory per job": build(memory_per_job_mib=9999),
    "core minutes": build(core_minutes=99.0),
    "disk": build(disk_mib=99999),
    "order of the build requirements": build(requires=RECIPE.build.requires[::-1]),
    "order of the variables": build(env=backwards(RECIPE.build.env)),
    "reason of a variable": build(
        env={**RECIPE.build.env, "A": dataclasses.replace(RECIPE.build.env["A"], why="better said")}
    ),
    "order of the excludes": changed(
        "recipe", repair=Repair(bundle=True, exclude=("liba.so", "libcuda.so.1"))
    ),
    "other sources of the pin": changed("pin", sources=(SDIST, GIT)),
    "what is not established": changed("pin", unestablished=("the tag",)),
    "an extra source that nothing refers to": changed(
        "pin", extra_sources={"protobuf": GIT, "unused": SDIST}
    ),
    "where the source comes from": changed("source", project="mirror", filename="Demo_1.0.tgz", note="n"),
    "where an extra source comes from": changed(
        "pin", extra_sources={"protobuf": dataclasses.replace(GIT, url="file:///mirror", tag="")}
    ),
    "mirrors of the source": changed("source", mirrors=("https://mirror.invalid/demo",)),
    "mirrors of an extra source": changed(
        "pin", extra_sources={"protobuf": dataclasses.replace(GIT, mirrors=("https://m.invalid/x",))}
    ),
    "a patch's reason and name": {
        "patches": (dataclasses.replace(PATCHES[0], file="x.patch", why="?", upstream="u"), PATCHES[1])
    },
    "the target's name and prose": changed(
        "target", name="u", summary="v", gpu_names=("X",), unified_memory=True
    ),
}
RELEVANT = {
    "name": changed("recipe", name="other"),
    "distribution": changed("recipe", distribution="Other"),
    "kind": changed("recipe", kind="cmake"),
    "version of a build requirement": build(requires=("setuptools==81.0.0", "wheel==0.45.1")),
    "one build requirement less": build(requires=("wheel==0.45.1",)),
    "leave to use the network": build(network=True),
    "value of a variable": build(env={**RECIPE.build.env, "A": Variable(value="2", why="too")}),
    "name of a variable": build(env={"MAX_JOBS": RECIPE.build.env["MAX_JOBS"], "B": RECIPE.build.env["A"]}),
    "bundling": changed("recipe", repair=dataclasses.replace(RECIPE.repair, bundle=False)),
    "excludes": changed("recipe", repair=Repair(bundle=True)),
    "platform of the wheel": changed(
        "recipe", repair=dataclasses.replace(RECIPE.repair, platform="manylinux_2_34")
    ),
    "stripping": changed("recipe", repair=dataclasses.replace(RECIPE.repair, strip=True)),
    "cleaning of RPATHs": changed("recipe", repair=dataclasses.replace(RECIPE.repair, clean_rpath=True)),
    "version": changed("pin", version="1.1"),
    "source's hash": changed("source", sha256="d" * 64),
    "kind of source": {"source": GIT},
    "no source": {"source": None},
    "extra source's commit": changed(
        "pin", extra_sources={"protobuf": dataclasses.replace(GIT, commit="e" * 40)}
    ),
    "extra source's name": changed("pin", extra_sources={"abseil": GIT}),
    "no extra source": changed("pin", extra_sources={}),
    "what of an extra source is laid": changed(
        "pin", extra_sources={"protobuf": dataclasses.replace(GIT, copy={"src": "include"})}
    ),
    "where an extra source is laid": changed(
        "pin", extra_sources={"x": dataclasses.replace(GIT, folder="protobuf")}
    ),
    "what is placed in the source": build(place={"third_party": Variable(value="{extra:protobuf}", why="w")}),
    "content of a patch": {"patches": (dataclasses.replace(PATCHES[0], sha256="3" * 64), PATCHES[1])},
    "a patch less": {"patches": PATCHES[:1]},
    "order of the patches": {"patches": PATCHES[::-1]},
    "platform": changed("target", platform="linux-aarch64"),
    "python": changed("target", python="cp312"),
    "architectures": changed("target", cuda_architectures=("9.0",)),
    "order of the architectures (the last may also give PTX)": changed(
        "target", cuda_architectures=("12.1", "9.0")
    ),
    "plan key of a need": {"keys": {"llvm": "f" * 64}},
    "a need more": {"provisions": (LLVM, dataclasses.replace(LLVM, need="torch", provider="path"))},
    "public need": {"provisions": (dataclasses.replace(LLVM, provider="public"),)},
    "public need's lock": {"provisions": (dataclasses.replace(LLVM, provider="public", locked=("0" * 64,)),)},
    "public need's version": {"provisions": (dataclasses.replace(LLVM, provider="public", version="20.0"),)},
    "need from a path": {"provisions": (dataclasses.replace(LLVM, provider="path", path="/opt/llvm"),)},
    "need coupled by its version": {"provisions": (dataclasses.replace(LLVM, coupling="version"),)},
    "the wheel's version": changed("recipe", wheel=Naming(version="{version}+{label}")),
    "the top folder of cmake": changed("recipe", cmake=Cmake(source="llvm")),
    "what cmake is told": changed("recipe", cmake=Cmake(define={"A": Variable(value="ON", why="w")})),
    "what a prefix holds": changed("recipe", prefix=Prefix(copy={"lib": "lib"})),
    "links of a prefix": changed("recipe", prefix=Prefix(links={"a.so": "a.so.1"})),
    "kind scons": changed("recipe", kind="scons"),
    "what scons makes": changed("recipe", kind="scons", scons=Scons(targets=("build/a.so",))),
    "what scons is told": changed(
        "recipe", kind="scons", scons=Scons(argument={"debug": Variable(value="0", why="w")})
    ),
    "what is taken of what scons made": changed("recipe", kind="scons", scons=Scons(copy={"a": "lib"})),
    "a variant that holds": build(variants=(Variant(when=When(), requires=("wheel==0.46.0",)),)),
    "a compiler flag": build(compile_flags=("-O3",)),
    "an option": changed(
        "recipe",
        options={"blas": Option(value="MKL", why="w")},
        build=dataclasses.replace(RECIPE.build, env={"BLAS": Variable(value="{option:blas}", why="w")}),
    ),
    "another value of an option": changed(
        "recipe",
        options={"blas": Option(value="OpenBLAS", why="w")},
        build=dataclasses.replace(RECIPE.build, env={"BLAS": Variable(value="{option:blas}", why="w")}),
    ),
    "a variable of a variant that holds": build(
        variants=(Variant(when=When(cuda=True), env={"A": Variable(value="3", why="w")}),)
    ),
}


@pytest.mark.parametrize("what", IRRELEVANT)
def test_what_does_not_reach_the_bytes_leaves_the_plan_key_alone(what: str) -> None:
    assert key(**IRRELEVANT[what]) == key()


@pytest.mark.parametrize("what", RELEVANT)
def test_what_reaches_the_bytes_changes_the_plan_key(what: str) -> None:
    assert key(**RELEVANT[what]) != key()


def test_every_relevant_change_has_a_key_of_its_own() -> None:
    keys = [key(), *(key(**changes) for changes in RELEVANT.values())]
    assert len(set(keys)) == len(keys)


def test_a_prefix_for_any_target_depends_on_the_platform_only() -> None:
    def of(shared: bool, **target: Any) -> str:
        recipe = dataclasses.replace(RECIPE, kind="cmake", build=Build(any_target=shared))
        return key(recipe=recipe, **changed("target", **target))

    others: list[dict[str, Any]] = [{"python": "cp313"}, {"cuda_architectures": ("12.1",)}]
    for target in others:
        assert of(True, **target) == of(True)
        assert of(False, **target) != of(False)
    assert of(True, platform="linux-aarch64") != of(True)


def test_every_field_of_a_recipe_was_thought_of() -> None:
    """A new field either reaches the bytes or not: this list makes whoever adds one decide."""
    assert {field.name for field in dataclasses.fields(Recipe)} == {
        *("name", "distribution", "kind", "build", "repair", "needs", "patches"),  # in the key
        *("cmake", "scons", "prefix", "wheel"),
        *("requires", "features", "audit"),  # in the judgement key, and `expect` of cmake
        "options",  # through what refers to them
        *("summary", "system", "verify", "notes", "pin", "default", "preflight", "closure"),  # in none
    }
    assert {field.name for field in dataclasses.fields(Build)} == {
        *("requires", "env", "variants", "network", "compile_flags", "place"),  # in the key
        "any_target",  # takes the target's GPU and Python out of it
        *("memory_per_job_mib", "threads_per_job", "most_jobs", "core_minutes", "disk_mib"),  # not
    }
    assert {field.name for field in dataclasses.fields(Repair)} == {
        *("bundle", "exclude", "platform", "strip", "clean_rpath", "rpath", "requires"),
        "external",  # its folders where `rpath` leads to them, its libraries as what is excluded; also judges
    }
    assert {field.name for field in dataclasses.fields(Source)} == {
        *("kind", "commit", "sha256", "submodules", "folder", "copy"),
        *("project", "filename", "url", "mirrors", "tag", "platform", "note", "size"),
    }


def test_a_recipe_that_asks_for_no_new_repair_keeps_its_key() -> None:
    declared = declared_by()["recipe"]["repair"]
    assert declared == {"bundle": True, "exclude": ["liba.so", "libcuda.so.1"]}


# --- sources ----------------------------------------------------------------------------------------


def test_a_source_is_what_pins_it() -> None:
    assert source_identity(None) == {}
    assert source_identity(SDIST) == {"kind": "sdist", "sha256": "a" * 64}
    moved = dataclasses.replace(GIT, url="https://elsewhere.invalid/x.git", tag="another", note="n")
    assert source_identity(moved) == source_identity(GIT)
    assert source_identity(dataclasses.replace(GIT, commit="c" * 40)) != source_identity(GIT)


def test_submodules_are_part_of_a_git_source() -> None:
    """With them the exported tree is another one."""
    assert source_identity(dataclasses.replace(GIT, submodules=True)) != source_identity(GIT)


# --- build key --------------------------------------------------------------------------------------


TOOLS = {"c++": "g++ 12.2.0", "python": "3.11.7 cp311"}


def test_the_build_key_knows_contents_instead_of_plan_keys() -> None:
    declared = declared_by()
    inputs = build_inputs(declared, {"llvm": "content"}, TOOLS)
    assert inputs["needs"] == {"llvm": "content"}
    assert "c" * 64 not in canonical(inputs), "a need's plan key must not decide bytes"
    # The same content from another plan (a comment in a patch of a need, say) gives the same key.
    other = declared_by(keys={"llvm": "f" * 64})
    assert digest(build_inputs(other, {"llvm": "content"}, TOOLS)) == digest(inputs)
    assert digest(build_inputs(declared, {"llvm": "other content"}, TOOLS)) != digest(inputs)


@pytest.mark.parametrize(
    "tools", [{**TOOLS, "c++": "g++ 13"}, {**TOOLS, "nvcc": "13.0"}, {"c++": "g++ 12.2.0"}]
)
def test_the_build_key_knows_the_toolchain(tools: dict[str, str]) -> None:
    declared = declared_by()
    assert digest(build_inputs(declared, {}, tools)) != digest(build_inputs(declared, {}, TOOLS))


@pytest.mark.parametrize(("host", "said"), [("x86_64", "on x86_64-linux-gnu"), ("aarch64", None)])
def test_the_toolchain_names_a_cross_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str, said: str | None
) -> None:
    """Under qemu-user compilers may be native to the real processor, which qemu hides from 8.1 on."""
    real = Path.read_text
    monkeypatch.setattr(
        Path,
        "read_text",
        lambda path, *a, **k: "CPU implementer : 0x41" if path.name == "cpuinfo" else real(path, *a, **k),
    )
    compiler = tmp_path / "c++"
    compiler.write_text(
        f"#!/bin/sh\necho --host={host}-linux-gnu --target=aarch64-linux-gnu >&2\necho c++ 12\n"
    )
    compiler.chmod(0o755)
    monkeypatch.setattr(probe, "SYSTEM", {"PATH": f"{tmp_path}:{probe.SYSTEM_PATH}"})
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert probe.toolchain(cuda_home="", packages=()).get("cross-compiled") == said


@pytest.mark.parametrize("what", [name for name in RELEVANT if not {"need", "need's"} & set(name.split())])
def test_the_build_key_knows_what_was_declared(what: str) -> None:
    one = build_inputs(declared_by(), {"llvm": "content"}, TOOLS)
    other = build_inputs(declared_by(**RELEVANT[what]), {"llvm": "content"}, TOOLS)
    assert digest(one) != digest(other)


def test_the_declared_inputs_stay_as_they_were() -> None:
    declared = declared_by()
    before = canonical(declared)
    build_inputs(declared, {"llvm": "content"}, TOOLS)
    assert canonical(declared) == before


# --- judgement key ----------------------------------------------------------------------------------


RULE = DeviceRule(library="lib*.so", why="w", architectures=("12.1", "9.0"), require=("sm_121", "sm_90"))
JUDGED = {
    "recipe": dataclasses.replace(
        RECIPE,
        kind="cmake",
        features=(Feature(name="USE_A"), Feature(name="USE_B", value="OFF")),
        cmake=Cmake(expect=("bin/a", "bin/b")),
        audit=Audit(device=(RULE, DeviceRule(library="b.so", why="w", forbid=("sm_50", "compute_50")))),
    )
}
JUDGED_RECIPE: Recipe = JUDGED["recipe"]


def judged(policies: str = "auditwheel 6", **fields: Any) -> str:
    recipe = dataclasses.replace(JUDGED_RECIPE, **fields)
    evaluated = evaluate(recipe, BASE["pin"], BASE["target"], BASE["train"])
    return digest(judgement_inputs(recipe, evaluated, policies))


def ruled(**fields: Any) -> dict[str, Any]:
    return {"audit": Audit(device=(dataclasses.replace(RULE, **fields), *JUDGED_RECIPE.audit.device[1:]))}


NOT_JUDGING: dict[str, dict[str, Any]] = {
    "prose": {"summary": "other words", "notes": ("a note",)},
    "order of the features": {"features": JUDGED_RECIPE.features[::-1]},
    "reason of a feature": {
        "features": (Feature(name="USE_A", why="it is fast"), *JUDGED_RECIPE.features[1:])
    },
    "a feature of something else": {
        "features": (*JUDGED_RECIPE.features, Feature(name="X", when=When(cuda=False)))
    },
    "order of the expected files": {"cmake": Cmake(expect=("bin/b", "bin/a"))},
    "order of the platforms": {"requires": Requires(platforms=("linux-aarch64", "linux-x86_64"))},
    "order of the device rules": {"audit": Audit(device=JUDGED_RECIPE.audit.device[::-1])},
    "order in a device rule": ruled(architectures=("9.0", "12.1"), require=("sm_90", "sm_121")),
    "reason of a device rule": ruled(why="better said"),
    "checks, which run after every publication": {"verify": Verify(checks=("demo",))},
    "what reaches the bytes": {"build": Build(network=True), "wheel": Naming(version="{version}+{label}")},
}
JUDGING: dict[str, dict[str, Any]] = {
    "one feature less": {"features": JUDGED_RECIPE.features[:1]},
    "name of a feature": {"features": (Feature(name="USE_C"), *JUDGED_RECIPE.features[1:])},
    "value of a feature": {"features": (Feature(name="USE_A", value="OFF"), *JUDGED_RECIPE.features[1:])},
    "an expected file": {"cmake": Cmake(expect=("bin/a",))},
    "need of a GPU": {"requires": Requires(cuda=True)},
    "platforms": {"requires": Requires(platforms=("linux-x86_64",))},
    "no device code wanted": {"audit": dataclasses.replace(JUDGED_RECIPE.audit, host_only="Python")},
    "one device rule less": {"audit": Audit(device=(RULE,))},
    "library of a device rule": ruled(library="*.so"),
    "architectures of a device rule": ruled(architectures=("12.1",)),
    "required code": ruled(require=("sm_121",)),
    "forbidden code": ruled(forbid=("sm_50",)),
    "rules of others": {"policies": "auditwheel 7"},
}


@pytest.mark.parametrize("what", NOT_JUDGING)
def test_what_does_not_judge_leaves_the_judgement_key_alone(what: str) -> None:
    assert judged(**NOT_JUDGING[what]) == judged()


def test_what_judges_changes_the_judgement_key() -> None:
    keys = [judged(), *(judged(**fields) for fields in JUDGING.values())]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("what", [name for name in JUDGING if name != "rules of others"])
def test_what_only_judges_changes_no_other_key(what: str) -> None:
    recipe = dataclasses.replace(JUDGED_RECIPE, **JUDGING[what])
    assert key(recipe=recipe) == key(**JUDGED)


@given(st.data())
def test_a_key_depends_on_nothing_but_its_inputs(data: st.DataObject) -> None:
    """Any mixture of changes: the plan key moves with the relevant ones, the judgement key with its own."""
    fields: dict[str, Any] = {}
    for table in (JUDGING, NOT_JUDGING):
        names = [name for name in table if not {"policies", "build"} & table[name].keys()]
        for name in data.draw(st.lists(st.sampled_from(names), unique=True, max_size=2)):
            fields = {**table[name], **fields}
    network = data.draw(st.booleans())
    recipe = dataclasses.replace(
        JUDGED_RECIPE, **fields, build=dataclasses.replace(RECIPE.build, network=network)
    )
    assert (key(recipe=recipe) == key(**JUDGED)) is not network
    same = all(judged(**{name: value}) == judged() for name, value in fields.items())
    assert (judged(**fields) == judged()) is same


def test_every_field_that_judges_was_thought_of() -> None:
    def names(kind: Any) -> set[str]:
        return {field.name for field in dataclasses.fields(kind)}

    assert names(Audit) == {"host_only", "device"}
    assert names(DeviceRule) == {"library", "why", "architectures", "require", "forbid"}
    assert names(Feature) == {"name", "value", "why", "when"}
    assert names(Requires) == {"cuda", "cpu", "platforms"}
    assert names(Cmake) == {"source", "define", "expect"}


def logic(module: ModuleType) -> list[str]:
    """The lines of a module without its imports, comments and docstrings."""
    assert module.__file__ is not None
    text = Path(module.__file__).read_text()
    prose = {
        line
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Import | ast.ImportFrom)
        or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    lines = enumerate(text.splitlines(), start=1)
    return [line for number, line in lines if number not in prose and line.split("#")[0].strip()]


def test_rules_that_changed_have_another_version() -> None:
    """When this fails: raise RULES in keys.py if anything may now be judged otherwise, then write the new
    digest here."""
    modules = (audit, rules_device, rules, payload, elf, diagnosis)
    code = digest([line for module in modules for line in logic(module)])
    assert code[:16] == "a7474b7830ee1808"


# --- fixed keys -------------------------------------------------------------------------------------


def test_keys_are_the_same_for_good() -> None:
    """What changes one of these makes every wheelhouse build or audit anew. Only raise them knowingly."""
    declared = declared_by()
    assert digest(declared) == "9dc9ddcd6e0c1a123ea8eeda60af3ae99910796d9685a39c83764176355be3d8"
    assert (
        digest(build_inputs(declared, {"llvm": "content"}, TOOLS))
        == "e27577e583c6a00a11ee9fc4c4ea673a8fb7e628f7db4f10481b61cd94b05282"
    )
    recipe, evaluated = JUDGED_RECIPE, evaluate(JUDGED_RECIPE, BASE["pin"], BASE["target"], BASE["train"])
    inputs = judgement_inputs(recipe, evaluated, "auditwheel 6")
    assert (
        digest({**inputs, "rules": 1}) == "7d9d1095b298d7c474d756a939cdb1c06c2031c496d83b78b947b860b81da844"
    )


def test_locked_requirements_are_in_the_keys_of_those_that_lock_some() -> None:
    evaluated = evaluate(RECIPE, BASE["pin"], BASE["target"], BASE["train"])
    given = {name: value for name, value in BASE.items() if name != "train"}
    locked = dataclasses.replace(evaluated, hashes={"six==1.17.0": ("a" * 64,)})
    assert plan_inputs(**given, evaluated=locked) == {
        **plan_inputs(**given, evaluated=evaluated),
        "locked_requirements": {"six==1.17.0": ["a" * 64]},
    }


@pytest.mark.parametrize("network", [False, True])
def test_older_inputs_are_written_as_today(network: bool) -> None:
    today = build_inputs(declared_by(**build(network=network)), {"llvm": "content"}, TOOLS)
    recipe = {name: value for name, value in today["recipe"].items() if name != "network"}
    older = {**today, "format": 2, "recipe": recipe}
    assert brought_up(older, network=network) == today
    assert brought_up(older, network=not network) != today
    assert brought_up({**older, "format": 1}, network=network) is None
    assert brought_up(today, network=network) is None, "today's says itself"
