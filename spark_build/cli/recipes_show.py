"""`recipes show`: one recipe as it is for a target and train, with a reason beside every variable."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from spark_build.cli import render
from spark_build.cli.options import Options, shared

if TYPE_CHECKING:
    from spark_build.build.context import Setting
    from spark_build.recipes.model import Evaluated, Patch, Pin, Recipe, Source

Document = dict[str, Any]


@click.command()
@click.argument("name")
@click.option("--env", "only_env", is_flag=True, help="Only the environment variables.")
@shared
def show(options: Options, name: str, *, only_env: bool) -> None:
    """Show a recipe as it is for the selected target and train; what only a build knows stays in {}."""
    from spark_build.errors import UsageError

    setting = options.setting()
    recipe = setting.catalogue.recipe(name)
    pin = setting.train.components.get(name)
    if pin is None:
        having = sorted(one.name for one in setting.catalogue.trains.values() if name in one.components)
        raise UsageError(
            f"train {setting.train.name} has no version of {name}",
            hint=f"trains that have one: {', '.join(having)}" if having else None,
        )
    document = _document(setting, recipe, pin)
    if options.json:
        wanted = {"recipe", "version", "target", "train", "env"}
        shown = {key: value for key, value in document.items() if not only_env or key in wanted}
        render.print_json(shown)
    elif only_env:
        for line in _env_lines(document["env"]):
            print(line)
    else:
        _print(document)


def _document(setting: Setting, recipe: Recipe, pin: Pin) -> Document:
    from spark_build.build.plan import choose_source
    from spark_build.recipes.evaluation import evaluate, for_target, patches_for

    recipe = for_target(recipe, setting.target, setting.train)
    evaluated = evaluate(recipe, pin, setting.target, setting.train)
    source = choose_source(pin, setting.target)
    return {
        "recipe": recipe.name,
        "distribution": recipe.distribution,
        "summary": recipe.summary,
        "version": pin.version,
        "wheel_version": evaluated.wheel_version,
        "kind": recipe.kind,
        "target": setting.target.name,
        "train": setting.train.name,
        "source": _source(source) if source else None,
        "extra_sources": {name: _source(extra) for name, extra in pin.extra_sources.items()},
        "patches": [_patch(patch) for patch in patches_for(recipe, setting.train)],
        "needs": [dataclasses.asdict(need) for need in recipe.needs],
        "requires": list(evaluated.requires),
        "options": {name: dataclasses.asdict(one) for name, one in recipe.options.items()},
        "compile_flags": list(evaluated.compile_flags),
        "built_by_default": recipe.default,
        "env": _environment(setting, recipe, pin, evaluated),
        "cmake": dataclasses.asdict(recipe.cmake) if recipe.kind == "cmake" else None,
        "prefix": dataclasses.asdict(recipe.prefix) if recipe.kind in ("repack", "assemble") else None,
        "features": [{"name": one.name, "value": one.value, "why": one.why} for one in evaluated.features],
        "system": {"apt": list(evaluated.apt), "dnf": list(evaluated.dnf)},
        "costs": {
            "memory_per_job_mib": recipe.build.memory_per_job_mib,
            "threads_per_job": recipe.build.threads_per_job,
            "core_minutes": recipe.build.core_minutes,
            "disk_mib": recipe.build.disk_mib,
        },
        "repair": dataclasses.asdict(recipe.repair),
        "audit": dataclasses.asdict(recipe.audit),
        "checks": list(recipe.verify.checks),
        "notes": list(recipe.notes),
        "unestablished": list(pin.unestablished),
    }


def _environment(setting: Setting, recipe: Recipe, pin: Pin, evaluated: Evaluated) -> Document:
    """Each variable with its value as far as it is known here, as it stands in the file, and its reason."""
    from spark_build.build.plan import jobs_for
    from spark_build.recipes import evaluation
    from spark_build.recipes.evaluation import label

    capabilities = setting.target.cuda_architectures
    values = {
        "jobs": str(jobs_for(recipe, setting.machine, setting.limits)),
        "version": pin.version,
        "label": label(setting.target, setting.train),
        "wheel_version": evaluated.wheel_version,
        **{f"arch_list:{one}": evaluation.arch_list(one, capabilities) for one in evaluation.CONSUMERS},
        **{f"version:{name}": one.version for name, one in setting.train.components.items()},
    }
    return {
        name: {"value": _filled(one.value, values), "template": one.value, "why": one.why}
        for name, one in sorted(evaluated.env.items())
    }


def _filled(text: str, values: Mapping[str, str]) -> str:
    return re.sub(r"\{([^{}]*)\}", lambda match: values.get(match[1], match[0]), text)


def _source(source: Source) -> Document:
    return {key: value for key, value in dataclasses.asdict(source).items() if value}


def _patch(patch: Patch) -> Document:
    return {"file": patch.file, "why": patch.why, "upstream": patch.upstream, "unverified": patch.unverified}


def _env_lines(env: Mapping[str, Document]) -> list[str]:
    """NAME=value, with the reason behind it; reasons are aligned where values are short."""
    pairs = [f"{name}={one['value']}" for name, one in env.items()]
    width = max((len(pair) for pair in pairs if len(pair) <= 60), default=0)
    return [f"{pair:<{width}}  # {one['why']}" for pair, one in zip(pairs, env.values(), strict=True)]


def _print(document: Document) -> None:
    print(f"{document['recipe']} {document['version']}: {document['summary']}")
    print(f"  for {document['target']}, train {document['train']}; kind {document['kind']}")
    print(f"  makes {document['distribution']} {document['wheel_version']}")
    if not document["built_by_default"]:
        print(f"  built for {document['target']} only when named")
    pinned = [("source", document["source"] or {}), *document["extra_sources"].items()]
    for name, source in pinned:
        place = source.get("filename") or source.get("url", "none")
        print(f"  {name}: {place} {source.get('commit') or source.get('sha256', '')}".rstrip())
    _block("patches", [_patch_line(one) for one in document["patches"]])
    _block("needs", [_need_line(one) for one in document["needs"]])
    _block("build environment", [" ".join(document["requires"])] if document["requires"] else [])
    _block("options", [_option_line(document["recipe"], *one) for one in document["options"].items()])
    _block("variables", _env_lines(document["env"]))
    _block("compiler flags", document["compile_flags"])
    _kind_blocks(document)
    _block("must be on", [f"{one['name']} = {one['value']}  # {one['why']}" for one in document["features"]])
    _block("repair", _repair_lines(document["repair"]))
    _block("device code", _audit_lines(document["audit"]))
    packages = {key: " ".join(names) for key, names in document["system"].items() if names}
    _block("system packages", [f"{key}: {names}" for key, names in packages.items()])
    _block("costs", [_cost_line(document["costs"])])
    _block("checks", document["checks"])
    _block("notes", document["notes"])
    _block("not established", document["unestablished"])


def _kind_blocks(document: Document) -> None:
    """What only one kind of build has."""
    if document["cmake"]:
        defined = {f"-D{name}": one for name, one in document["cmake"]["define"].items()}
        _block(f"cmake of {document['cmake']['source']}", _env_lines(defined))
        _block("expected in the prefix", document["cmake"]["expect"])
    if document["prefix"]:
        copied = [f"{folder}/ from {source}" for source, folder in document["prefix"]["copy"].items()]
        linked = [f"{link} -> {goal}" for link, goal in document["prefix"]["links"].items()]
        _block("development prefix", [*copied, *linked])


def _patch_line(patch: Document) -> str:
    seen = f"; unverified: {patch['unverified']}" if patch["unverified"] else ""
    upstream = f" ({patch['upstream']})" if patch["upstream"] else ""
    return f"{patch['file']}  # {patch['why']}{upstream}{seen}"


def _repair_lines(repair: Document) -> list[str]:
    """What is done to the wheel."""
    said = {
        "bundle": "copies into it what not every Linux has",
        "exclude": f"leaves outside: {' '.join(repair['exclude'])}",
        "platform": f"tags it {repair['platform']}",
        "strip": "takes out debug sections and symbols",
        "clean_rpath": "takes out what RPATHs name besides $ORIGIN",
    }
    return [text for option, text in said.items() if repair[option]]


def _audit_lines(audit: Document) -> list[str]:
    lines = [f"none  # {audit['host_only']}"] if audit["host_only"] else []
    for rule in audit["device"]:
        only = [f"on {', '.join(rule['architectures'])}"] if rule["architectures"] else []
        wishes = [f"{verb} {', '.join(rule[verb])}" for verb in ("require", "forbid") if rule[verb]]
        lines.append(f"{' '.join([rule['library'], *only, *wishes])}  # {rule['why']}")
    return lines


def _need_line(need: Document) -> str:
    anew = "content changes" if need["coupling"] == "content" else "version changes"
    return f"{need['name']} from {', '.join(need['providers'])}; built anew when its {anew}  # {need['why']}"


def _option_line(recipe: str, name: str, option: Document) -> str:
    choices = ", ".join(one or "''" for one in option["choices"])
    return f"{recipe}.{name}={option['value']}{f' (of {choices})' if choices else ''}  # {option['why']}"


def _cost_line(costs: Document) -> str:
    memory, threads = costs["memory_per_job_mib"], costs["threads_per_job"]
    job = f"{memory} MiB and {threads} thread{'s' * (threads > 1)} per job"
    return f"{job}, {costs['core_minutes']:g} core minutes, {costs['disk_mib']} MiB of disk"


def _block(title: str, lines: list[str]) -> None:
    if lines:
        print(f"{title}:")
        for line in lines:
            print(f"  {line}")
