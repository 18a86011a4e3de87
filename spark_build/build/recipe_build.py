"""Build one recipe under its lock: keys, earlier results, work tree, stages."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from spark_build import probe
from spark_build.build import environment
from spark_build.build.context import Context, Job, Outputs, Provided, Shell, Stage
from spark_build.build.environment import locate, to_come
from spark_build.build.keys import UNKNOWING, brought_up, build_inputs, key_changes
from spark_build.build.plan import makes_prefix
from spark_build.errors import (
    GOES_ON,
    Finding,
    Hint,
    HostError,
    SparkBuildError,
    StageError,
    StoreError,
    ours,
    rm,
)
from spark_build.events import (
    Cost,
    Emit,
    Note,
    RecipeResult,
    Repetition,
    StageFinished,
    StageResult,
    StageStarted,
    Status,
)
from spark_build.files import (
    discard_tree,
    from_os_error,
    locked,
    make_folder,
    remove_tree,
    tail_of,
    write_atomically,
)
from spark_build.recipes.loader import closure_locks
from spark_build.recipes.model import CONFIGURE, BuildOptions, Step
from spark_build.reporting import Reporter
from spark_build.resources import governor
from spark_build.resources.governor import Governor
from spark_build.text import digest, document
from spark_build.wheelhouse import store as stores
from spark_build.wheelhouse.store import StoreEntry
from spark_build.wheelhouse.trust import is_trusted

LOG = "build.log"
AGAIN = "again"  # below the build folder: where a build is repeated


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """Values that all recipes of one command share."""

    setting: Context
    options: BuildOptions
    governor: Governor
    emit: Emit
    versions: Mapping[str, str]  # of what each recipe of the plan makes

    def last_stage(self, step: Step) -> str:
        """Return a step's last stage; repacked wheels have no configure step and run all stages."""
        stop = self.options.stop_after
        return "" if stop == CONFIGURE and not step.recipe.is_compiled else stop


def inputs_of(
    setting: Context, step: Step, keys: Mapping[str, str], expected: Mapping[str, str] | None = None
) -> tuple[dict[str, Any], tuple[Provided, ...]]:
    """Return the build key's inputs and the needs in them: declared, found, measured.

    expected: of needs that are not in the store the version, or the content digest where that counts.
    """
    provided = tuple(
        to_come(one, expected[one.need])
        if expected and one.need in expected
        else locate(one, setting.home.store, keys)
        for one in step.provisions
    )
    contents = {one.provision.need: one.identity for one in provided}
    return build_inputs(step.declared, contents, tools_of(step)), provided


def tools_of(step: Step) -> dict[str, str]:
    """Return a step's measured toolchain; a repacked wheel depends on no tool of this machine."""
    if not step.recipe.is_compiled:
        return {}
    # A toolkit of the store has no path here: the key has its content.
    toolkit = next((one.path for one in step.provisions if one.need == "cuda"), "")
    toolkit = toolkit or environment.machine_toolkit(step.recipe)
    tools = probe.toolchain(cuda_home=toolkit, packages=step.evaluated.apt, strip=step.recipe.repair.strip)
    if step.recipe.serves_any_target:
        del tools["python"]
    return tools


@dataclass(frozen=True, kw_only=True, slots=True)
class KeptResult:
    """The store's results for a step."""

    entry: stores.StoreEntry
    stale: tuple[str, ...] = ()  # why it must be audited again before it is reused
    lacking: str = ""  # why that is not possible, and it must be built again


def kept_of(setting: Context, step: Step, inputs: Mapping[str, Any]) -> KeptResult | None:
    """Return the entry of these inputs: of today's key, an older spark-build's, or a trusted signer's."""
    store = setting.home.store
    with_prefix = makes_prefix(step)
    entry = stores.read(store, digest(inputs))
    if entry is not None and with_prefix and entry.prefix is None:  # imported by one of November 2026
        told = f"{entry.name} {entry.folder.name[:12]} in the store has no prefix"
        raise StoreError(told, hint=Hint(rm(entry.folder), ", then ", GOES_ON))
    if entry is None:
        entry = find_older_entry(store, step.recipe.name, inputs, with_prefix=with_prefix)
    if entry is None and not with_prefix:
        trusted = (one for one in stores.imports_of(store, digest(inputs)) if is_trusted(store.parent, one))
        entry = next((stores.read(store, one["key"]) for one in trusted), None)
    if entry is None:
        return None
    judgement = environment.judgement_inputs_of(step)
    if stores.is_judged(entry, digest(judgement)):
        return KeptResult(entry=entry)
    lacking = ""
    if step.evaluated.features and not (entry.folder / LOG).is_file():
        lacking = (
            "whether it has the expected features only its build log could tell, which is not in the store"
        )
    return KeptResult(entry=entry, stale=changed_judgement(entry, judgement), lacking=lacking)


def build_recipe(run: Run, step: Step, results: Mapping[str, RecipeResult]) -> RecipeResult:
    """Build one recipe and return its result; failures are results too."""
    start = time.monotonic()
    setting, work, stop = run.setting, _work(run, step), run.last_stage(step)
    begin = _size(work / LOG)
    try:
        inputs, provided = _inputs(run, step, results)
        outputs = _build_under_lock(run, step, inputs, provided, work)
    except (SparkBuildError, OSError) as error:
        explained, seconds = _explained(error), time.monotonic() - start
        kept = Path(explained.log) if explained.log else None
        failed = result_of(step, "failed", seconds=seconds, log=kept, error=explained)
        return _only_configured(failed, step, work / LOG, begin) if stop == CONFIGURE else failed
    key = digest(inputs)
    seconds = time.monotonic() - start
    if isinstance(outputs, str):
        found = kept_of(setting, step, inputs)  # an import has a key of its own
        return result_of(step, "reused", reasons=(outputs,), key=found.entry.folder.name if found else key)
    if stop:
        tree = f"; its tree: {work}" if work.exists() else ""
        reason = f"after {stop}, as asked{tree}"
        if stop != CONFIGURE:
            return result_of(step, "stopped", seconds=seconds, reasons=(reason,))
        done = result_of(step, "configured", seconds=seconds, reasons=(reason,), log=work / LOG)
        return _only_configured(done, step, work / LOG, begin)
    log = stores.entry_folder(setting.home.store, key) / LOG
    cost = Cost(**outputs["build"].get("cost", {}))
    return result_of(step, "built", seconds=seconds, key=key, log=log, cost=cost)


def _inputs(
    run: Run, step: Step, results: Mapping[str, RecipeResult]
) -> tuple[dict[str, Any], tuple[Provided, ...]]:
    """Return `inputs_of`, or inputs without the needs where those were not built (sources only)."""
    if run.options.stop_after == "fetch":
        return dict(step.declared), ()
    keys = {name: results[name].build_key for name in step.from_store}
    coupled = {one.need for one in step.provisions if one.coupling == "version" and not keys.get(one.need)}
    if run.options.stop_after != CONFIGURE or not coupled & keys.keys():
        return inputs_of(run.setting, step, keys)
    # Of these nothing but the version counts: what they will be called tells.
    return inputs_of(run.setting, step, keys, {name: run.versions[name] for name in coupled & keys.keys()})


def _only_configured(result: RecipeResult, step: Step, log: Path, begin: int) -> RecipeResult:
    """Add the features as this run's log shows them, and how to try again."""
    if result.error is not None:
        again = ours("build", step.recipe.name, "--stop-after", CONFIGURE)
        result.error.hint = result.error.hint or Hint(again)
    if not log.is_file():
        return result
    from spark_build.build import diagnosis

    with log.open(errors="replace") as lines:
        lines.seek(begin if begin <= _size(log) else 0)
        return replace(result, features=diagnosis.judged(step.evaluated.features, lines))


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _build_under_lock(
    run: Run, step: Step, inputs: Mapping[str, Any], provided: tuple[Provided, ...], work: Path
) -> Mapping[str, Outputs] | str:
    """Run the stages, or explain why the store's result, perhaps audited again, is reused."""
    with _tree(run, step, work) as held, _tidied(work):
        found = kept_of(run.setting, step, inputs) or _fetched(run, step, inputs)
        if found is not None and not found.lacking:
            return _reused(run, step, inputs, found)
        stop = run.last_stage(step)
        if run.options.require_sandbox and step.recipe.is_compiled:
            _refuse_weak_sandbox(run, step)
        if stop == CONFIGURE:
            run.emit(Note(recipe=step.recipe.name, message=_intent(run, step)))
        if told := _fresh_tree(work, digest(inputs)):
            run.emit(Note(recipe=step.recipe.name, message=told))
        with _job(run, step, inputs, provided, work, held) as job:
            outputs = run_stages(job, stop)
        if not stop:
            _judge_what_was_there(run, step, inputs, work)
            _share_objects(run, step, work)
        if stop in ("", "fetch"):
            discard_tree(work, run.setting.home.build / ".trash")
    return outputs


def _fetched(run: Run, step: Step, inputs: Mapping[str, Any]) -> KeptResult | None:
    """Fetch the result from a remote store that has it now, whatever the plan knew."""
    if run.options.stop_after == "fetch" or makes_prefix(step):
        return None
    found = run.setting.remotes.fetch(digest(inputs), run.setting.target, audited=True)
    return kept_of(run.setting, step, inputs) if found else None


def _refuse_weak_sandbox(run: Run, step: Step) -> None:
    """Raise HostError when this build could reach more than its own files, or the network."""
    from spark_build.build import sandbox

    why = sandbox.choose().limits
    if step.recipe.build.network:
        why = why or f"recipes/{step.recipe.name}.toml lets it use the network"
    if _compiles_outside(run):
        why = why or "sccache compiles outside the sandbox"
    if why:
        raise HostError(f"no full sandbox, and --require-sandbox was given: {why}", hint=ours("doctor"))


def _share_objects(run: Run, step: Step, work: Path) -> None:
    """Hand what was compiled to other machines, where the user named a folder for that."""
    from spark_build.build import compiler_cache

    if not (run.options.cached and step.recipe.is_compiled):
        return
    try:
        cache = compiler_cache.chosen_for(run.setting.home, os.environ)
        compiler_cache.share(cache, step.recipe.name, work / compiler_cache.LINKS)
    except (OSError, SparkBuildError) as error:  # the folder went away meanwhile
        told = f"warning: what was compiled is not shared: {error}"
        run.emit(Note(recipe=step.recipe.name, message=told))


def _reused(run: Run, step: Step, inputs: Mapping[str, Any], found: KeptResult) -> str:
    """Bring an entry to today's key and judge it by today's rules."""
    if not found.stale:
        return "in the store: what it needs came out with the same content, or another run built it"
    reasons = "; ".join(found.stale)
    run.emit(Note(recipe=step.recipe.name, message=f"in the store; auditing it again: {reasons}"))
    findings = _audited_again(run, step, found.entry, found.entry.folder / LOG)
    entry = found.entry
    if entry.folder.name != digest(inputs) and not entry.imported:
        # Judged before: what would not be reused is not taken over.
        entry = take_over(run.setting.home.store, entry, step.key, inputs)
    stores.note_judgement(entry, environment.judgement_inputs_of(step), findings)
    return f"in the store, and audited again: {reasons}"


def _judge_what_was_there(run: Run, step: Step, inputs: Mapping[str, Any], work: Path) -> None:
    """Judge an existing entry of the same inputs by the log of this build."""
    found = kept_of(run.setting, step, inputs)
    if found is not None and found.stale:
        findings = _audited_again(run, step, found.entry, work / LOG)
        stores.note_judgement(found.entry, environment.judgement_inputs_of(step), findings)


def _audited_again(run: Run, step: Step, entry: stores.StoreEntry, log: Path) -> tuple[Finding, ...]:
    from spark_build.build.stages import audit

    return audit.again(
        step, run.setting.target, entry, log, built_in=run.setting.home.build / step.recipe.name
    )


@contextmanager
def shell(run: Run, step: Step, keys: Mapping[str, str]) -> Iterator[Shell]:
    """Open a shell in a recipe's tree as a build sees it; `keys`: of the needs in the store."""
    from spark_build.build.stages import compilation as build_stage

    inputs, provided = inputs_of(run.setting, step, keys)
    key, work = digest(inputs), _work(run, step)
    with _tree(run, step, work) as held:
        _fresh_tree(work, key)
        with _job(run, step, inputs, provided, work, held) as job:
            # A tree whose build failed is entered as it is.
            ready = job.build_started.exists() and left_before_build(work)
            yield build_stage.shell(job, ready or run_stages(job, "environment"))


def repeat(run: Run, step: Step, keys: Mapping[str, str]) -> Repetition:
    """Build again in another folder without the compiler cache, and compare with the store's entry.

    A failed repetition leaves its tree, as any failed build; nothing else stays.
    """
    from spark_build.build import reproducibility

    build = run.setting.home.build
    home = replace(run.setting.home, build=build / AGAIN)
    again = replace(
        run,
        setting=replace(run.setting, home=home),
        options=replace(run.options, cached=False, stop_after=""),
    )
    inputs, provided = inputs_of(run.setting, step, keys)
    work = _work(again, step)
    with _tree(again, step, work) as held:
        try:
            remove_tree(work)
            _fresh_tree(work, digest(inputs))
            with _tidied(work), _job(again, step, inputs, provided, work, held) as job:
                found = reproducibility.repetition(job, run_stages(job, "audit"))
            discard_tree(work, build / ".trash")
        except (SparkBuildError, OSError):
            raise
        except BaseException:
            remove_tree(work)
            raise
    return found


def _work(run: Run, step: Step) -> Path:
    # What is only fetched must not disturb the tree of an interrupted build.
    prefix = "fetch-" if run.options.stop_after == "fetch" else ""
    return run.setting.home.build / step.recipe.name / f"{prefix}{step.key}"


def _tree(run: Run, step: Step, work: Path) -> AbstractContextManager[int]:
    """Return the lock of a recipe's tree."""
    name = step.recipe.name

    # While a build goes on it may set the set-user-ID bit of any file it has open; nobody else gets there.
    make_folder(work.parent)
    work.parent.chmod(0o700)
    lock = work.with_name(f"{work.name}.lock")
    to = Reporter(lambda text: run.emit(Note(recipe=name, message=text)))
    return locked(lock, purpose=f"building {name}", waiting=to.waiting)


@contextmanager
def _job(
    run: Run, step: Step, inputs: Mapping[str, Any], provided: tuple[Provided, ...], work: Path, held: int
) -> Iterator[Job]:
    """Open the log and yield what the stages work with. Raise HostError where a full disk stopped a tool."""
    setting = run.setting
    expected = governor.expected_usage(
        setting.home,
        step.recipe.name,
        target=setting.target.name,
        declared_mib=step.recipe.build.memory_per_job_mib,
        guess=step.estimate.seconds if step.estimate else None,
    )
    with (work / LOG).open("ab") as log:
        begin = log.tell()  # what earlier runs met is no reason of this one
        try:
            yield Job(
                step=step,
                target=setting.target,
                train=setting.train.name,
                home=setting.home,
                work=work,
                log=log,
                governor=run.governor,
                expected=expected,
                offline=run.options.offline,
                cached=run.options.cached,
                key=digest(inputs),
                inputs=inputs,
                emit=run.emit,
                provided=provided,
                keep=(held,),
                locks=closure_locks(setting.home, setting.train, setting.target.platform),
                places=_places(work, provided, outside=_compiles_outside(run)),
            )
        except StageError as error:
            log.flush()
            if b"No space left on device" in tail_of(work / LOG, 1 << 16, since=begin):
                raise HostError("the disk is full", hint=Hint("free some space, then ", GOES_ON)) from error
            raise


def _compiles_outside(run: Run) -> bool:
    """Return whether the compiler cache's server runs the compilers, outside the sandbox."""
    from spark_build.build import compiler_cache

    return run.options.cached and compiler_cache.choose(os.environ).kind == "sccache"


def _places(work: Path, provided: tuple[Provided, ...], *, outside: bool) -> dict[Path, Path]:
    """Return the paths of the tree and of the needs' prefixes as build commands see them.

    outside: compilers that are run outside the sandbox are told the same paths.
    """
    from spark_build.build import sandbox

    chosen = sandbox.Sandbox(kind="none") if outside else sandbox.choose()
    places = {work: sandbox.place_of(chosen, "tree", work)}
    for one in provided:
        if one.prefix is not None and one.site is None:
            name = f"needs/{one.provision.need}"
            places[one.prefix] = sandbox.place_of(chosen, name, one.prefix)
    return places


@contextmanager
def _tidied(work: Path) -> Iterator[None]:
    """Keep the tree and log of what fails during the block, unless no stage was completed in it.

    Under the tree's lock: afterwards the tree may be another process's.
    """
    try:
        yield
    except (SparkBuildError, OSError) as error:
        explained = _explained(error)
        if (work / "stamps").exists():
            explained.log = explained.log or str(work / LOG)
        else:
            remove_tree(work)
        raise explained from error


def _fresh_tree(work: Path, key: str) -> str:
    """Remove a tree of another build key: other tools would mix objects.

    Return what a user should know of one that goes; empty when none does.
    """
    mark, told = work / "build-key", ""
    if work.is_dir() and (not mark.is_file() or mark.read_text() != key):
        before = mark.read_text()[:8] if mark.is_file() else "unknown"
        told = f"its tree starts afresh: made with other tools or needs (build key {before}, now {key[:8]})"
        remove_tree(work)
    if not mark.is_file():
        write_atomically(mark, key)
    return told


def _intent(run: Run, step: Step) -> str:
    """Return what a configure-only run is going to do, for the user."""
    setting = run.setting
    names = ", ".join(one.name for one in step.evaluated.features)
    return (
        f"only configuring {step.pin.version} for {setting.target.name}, train {setting.train.name}: "
        f"nothing is compiled or published; features to be judged: {names or 'none'}"
    )


def _explained(error: SparkBuildError | OSError) -> SparkBuildError:
    """Return a failure as the user should see it. Raise an OSError that no user can fix."""
    if isinstance(error, SparkBuildError):
        return error
    known = from_os_error(error)
    if known is None:
        raise error
    return known


def result_of(  # noqa: PLR0913 - a result's fields, most of them with defaults
    step: Step,
    status: Status,
    *,
    seconds: float = 0.0,
    reasons: tuple[str, ...] = (),
    key: str = "",
    log: Path | None = None,
    error: SparkBuildError | None = None,
    cost: Cost | None = None,
) -> RecipeResult:
    """Return a step's result."""
    return RecipeResult(
        recipe=step.recipe.name,
        version=step.pin.version,
        status=status,
        seconds=seconds,
        reasons=reasons,
        build_key=key,
        log=str(log) if log else "",
        error=error,
        cost=cost or Cost(),
    )


def _stages() -> tuple[Stage, ...]:
    # What they import takes a quarter of a second: only when something is built.
    from spark_build.build.stages import audit, compilation, fetch, patch, publish
    from spark_build.build.stages import environment as stages_environment

    return (fetch, patch, stages_environment, compilation, audit, publish)


def run_stages(job: Job, stop_after: str = "") -> Mapping[str, Outputs]:
    """Run each stage, unless an earlier run's result still holds."""
    outputs: dict[str, Any] = {}
    chain = ""
    for stage in _stages():
        chain = digest([chain, stage.NAME, stage.inputs(job)])
        kept = _kept(job, stage, chain)
        if stop_after == CONFIGURE and stage.NAME == "build":
            # No stamp: it is for this run, and the build stage begins with it again.
            outputs[CONFIGURE] = _run_stage(CONFIGURE, _configure, job, outputs)
            break
        if kept is not None and stage.intact(job, kept):
            outputs[stage.NAME] = kept
            result = StageResult(stage=stage.NAME, status="kept", seconds=0.0)
            job.emit(StageFinished(recipe=job.step.recipe.name, result=result))
        else:
            if stage.NAME == "build":
                _before_building(job, outputs)
            outputs[stage.NAME] = _run_stage(stage.NAME, stage.run, job, outputs, chain)
        # Another result of this stage invalidates what later ones made from the old one.
        chain = digest([chain, outputs[stage.NAME]])
        if stop_after == "preflight" and stage.NAME == "environment":
            _before_building(job, outputs)
            break
        if stop_after == stage.NAME:
            break
    return outputs


def _before_building(job: Job, earlier: Mapping[str, Outputs]) -> None:
    """Run a recipe's preflight, unless the same one passed earlier.

    It is no link of the chain: another preflight makes no other build.
    """
    if not job.step.recipe.preflight.libraries:
        return
    from spark_build.build.stages import preflight

    chain = digest([preflight.NAME, preflight.inputs(job)])
    if _kept(job, preflight, chain) is None:
        _run_stage(preflight.NAME, preflight.run, job, earlier, chain)


def _configure(job: Job, earlier: Mapping[str, Outputs]) -> Outputs:
    """Run the build stage up to the project's first build call."""
    from spark_build.build.stages import compilation

    return compilation.configure(job, earlier)


def _run_stage(
    stage: str,
    do: Callable[[Job, Mapping[str, Outputs]], Outputs],
    job: Job,
    earlier: Mapping[str, Outputs],
    chain: str = "",
) -> Outputs:
    """Run one stage and report its result; with a `chain` it leaves a stamp."""
    from spark_build.build import sandbox

    start, name = time.monotonic(), job.step.recipe.name
    job.emit(StageStarted(recipe=name, stage=stage, expected=job.expected if stage == "build" else None))
    try:
        outputs = dict(do(job, earlier))
    except (SparkBuildError, OSError) as error:
        failure = error if isinstance(error, SparkBuildError) else from_os_error(error)
        seconds = time.monotonic() - start
        result = StageResult(stage=stage, status="failed", seconds=seconds, error=failure)
        job.emit(StageFinished(recipe=name, result=result))
        raise
    finally:
        if stage in ("build", CONFIGURE, "preflight"):
            sandbox.clear_privileges(job.writable)
    result = StageResult(stage=stage, status="done", seconds=time.monotonic() - start)
    job.emit(StageFinished(recipe=name, result=result))
    if chain:
        stamp = {"chain": chain, "outputs": outputs}
        write_atomically(_stamp(job.work, stage), json.dumps(stamp))
    return outputs


def _kept(job: Job, stage: Stage, chain: str) -> dict[str, Any] | None:
    """Return what the stage left at its end, if nothing that it depends on has changed since."""
    stamp = _read_stamp(job.work, stage.NAME)
    return stamp["outputs"] if stamp and stamp["chain"] == chain else None


def _stamp(work: Path, stage: str) -> Path:
    return work / "stamps" / f"{stage}.json"


def _read_stamp(work: Path, stage: str) -> dict[str, Any] | None:
    try:
        stamp: dict[str, Any] = json.loads(_stamp(work, stage).read_text())
    except (OSError, ValueError):
        return None
    return stamp


def left_before_build(work: Path) -> dict[str, Outputs]:
    """Return the outputs of the stages before the build; empty when one is missing."""
    stamps = {name: _read_stamp(work, name) for name in ("fetch", "patch", "environment")}
    return {name: stamp["outputs"] for name, stamp in stamps.items() if stamp} if all(stamps.values()) else {}


KEY = "key.json"
OLD_KEY = f"key.format-{UNKNOWING}.json"  # key.json of the older program, which the provenance speaks of


def find_older_entry(
    store: Path, recipe: str, inputs: Mapping[str, Any], *, with_prefix: bool
) -> StoreEntry | None:
    """Return the newest entry of an older program with the same inputs."""
    key, network = digest(inputs), bool(inputs["recipe"]["network"])
    rows = [row for row in stores.index_rows(store) if row["recipe"] == recipe]
    rows = [row for row in rows if row["origin"] == "built" or is_trusted(store.parent, row)]
    for row in sorted(rows, key=lambda row: str(row["committed"]), reverse=True):
        folder = stores.entry_folder(store, row["key"])
        try:
            recorded = json.loads((folder / KEY).read_bytes())["inputs"]
            if recorded["format"] != UNKNOWING or network not in _leaves(folder):
                continue
            today = brought_up(recorded, network=network)
        except (OSError, ValueError, LookupError, TypeError):
            continue  # a damaged one is for `check` to tell
        if today is not None and digest(today) == key:
            entry = stores.read(store, row["key"])
            if entry is not None and (entry.prefix is not None or not with_prefix):
                return entry
    return None


def take_over(store: Path, old: StoreEntry, plan_key: str, inputs: Mapping[str, Any]) -> StoreEntry:
    """Link an older entry under the key of these inputs, atomically."""
    key = digest(inputs)
    written = {"key": key, "plan_key": plan_key, "inputs": inputs, "taken_over_from": old.folder.name}
    return stores.again(store, old, key=key, changed={KEY: document(written)}, kept_as={KEY: OLD_KEY})


def recorded_inputs(store: Path, document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the inputs in a key.json, converted to today's format where possible."""
    inputs: Mapping[str, Any] = document["inputs"]
    try:
        leaves = _leaves(stores.entry_folder(store, document["key"]))
        return brought_up(inputs, network=min(leaves)) or inputs
    except (OSError, ValueError, LookupError, TypeError):
        return inputs


def _leaves(folder: Path) -> frozenset[bool]:
    """Return whether a build might use the network, by its provenance; both where it made no difference."""
    provenance = json.loads((folder / "provenance.json").read_bytes())
    sandbox = provenance["predicate"]["buildDefinition"]["internalParameters"]["sandbox"]
    if sandbox["kind"] == "unknown":
        raise ValueError("the provenance does not say in what sandbox")
    if sandbox["kind"] == "none":  # any build could
        return frozenset({False, True})
    return frozenset({bool(sandbox["network"])})


def changed_judgement(entry: StoreEntry, inputs: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what is judged today and was not at the last judgement, in a few words."""
    last = stores.last_judged_inputs(entry)
    return key_changes(last, inputs) if last is not None else ("what it was judged by is not recorded",)
