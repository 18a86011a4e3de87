"""The commands of farm: init, scheduler, worker; what `build` and `all` need of it."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from spark_build.cli.options import DETACHED, SIZE, Options, as_one, group, shared
from spark_build.errors import HostError, SparkBuildError, UsageError, pip_install
from spark_build.events import Emit, Note
from spark_build.reporting import reporter

if TYPE_CHECKING:
    from spark_build.build.context import Context
    from spark_build.cli.judgement import VerifyOutcome
    from spark_build.farm.address import FarmAddress
    from spark_build.farm.client import Farm
    from spark_build.farm.nodes import ReachedFarm, Workplace
    from spark_build.farm.task import Task, TaskAnswer
    from spark_build.paths import Home
    from spark_build.recipes.model import BuildOptions, Plan
    from spark_build.wheels.model import StoredWheel

CERTIFICATES = click.option(
    "--certificates",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Folder that `farm init` wrote (default: farm/ in the wheelhouse).",
)


@contextlib.contextmanager
def _dask() -> Iterator[None]:
    """Say what to install where Dask is missing."""
    try:
        import cryptography
        import distributed
    except ImportError as error:
        raise HostError(
            f"a farm needs dask.distributed: {error}", hint=pip_install("spark-build[farm]")
        ) from error
    del cryptography, distributed
    yield


@group()
@shared
def farm(_options: Options) -> None:
    """Build on many machines: `build --farm tls://HOST:PORT` hands recipes to workers.

    Results travel through a remote store, which workers push to and everybody takes from.
    """


@farm.command()
@click.argument("folder", metavar="[DIR]", required=False, type=click.Path(file_okay=False, path_type=Path))
@shared
def init(options: Options, folder: Path | None) -> None:
    """Write the certificate and key of a new farm.

    Whoever has the key may run anything on the workers: copy DIR to scheduler, workers and clients by a safe
    way. The certificate holds for a year.
    """
    with _dask():
        from spark_build.farm.nodes import CERTIFICATE, KEY, make_certificate

        place = folder or _folder(options.home(), None)
        make_certificate(place)
    if options.json:
        from spark_build.cli.render import print_json

        print_json({"certificate": str(place / CERTIFICATE), "key": str(place / KEY)})
    else:
        print(f"{place / CERTIFICATE}, {place / KEY}: for all machines of the farm, and nobody else")


@farm.command()
@click.option("--host", default="", metavar="NAME", help="Address to listen at (default: all).")
@click.option("--port", default=8786, show_default=True, type=click.IntRange(0, 65535), help="Port; 0: any.")
@CERTIFICATES
@shared
def scheduler(options: Options, host: str, port: int, certificates: Path | None) -> None:
    """Run a farm's scheduler until it is stopped. It keeps nothing: clients hand in again what is missing."""
    with _dask():
        from spark_build.farm.nodes import run_scheduler

        run_scheduler(_folder(options.home(), certificates), host, port, _tell)


@farm.command()
@click.argument("address")
@click.option("--memory", type=SIZE, help="Memory for one build, such as 64G.")
@click.option("--jobs", type=click.IntRange(min=1), help="Compile jobs at once.")
@CERTIFICATES
@shared
def worker(
    options: Options, address: str, memory: int | None, jobs: int | None, certificates: Path | None
) -> None:
    """Build for the scheduler at ADDRESS until stopped.

    Builds one recipe at a time, in this root, and pushes to a remote store (`remotes add`).
    """
    with _dask():
        from spark_build import probe
        from spark_build.farm.nodes import run_worker

        home = options.home()
        site = _site(options, home, jobs, memory)
        run_worker(address, _folder(home, certificates), site, probe.probe(), _tell)


def _folder(home: Home, given: Path | None) -> Path:
    return (given or home.wheelhouse / "farm").absolute()


def _tell(text: str) -> None:
    click.echo(text, err=True)


def _site(options: Options, home: Home, jobs: int | None, memory_mib: int | None) -> Workplace:
    from spark_build.farm.nodes import Workplace

    root = ("--root", options.root) if options.root is not None else ()
    program = (sys.executable, "-m", "spark_build", *root)
    return Workplace(home=home, program=program, record_in=DETACHED, jobs=jobs, memory_mib=memory_mib)


@dataclass(frozen=True, kw_only=True, slots=True)
class FarmOptions:
    """Options of a command that may use a farm."""

    farm: FarmAddress | None = None
    certificates: Path | None = None
    jobs: int | None = None
    memory: int | None = None  # MiB
    insist: bool = False

    @property
    def address(self) -> FarmAddress:
        """Return the farm that was named. Raise UsageError when none was."""
        if self.farm is None:
            raise UsageError("no farm was named", hint="--farm ADDRESS")
        return self.farm


def _parse(_context: click.Context, _parameter: click.Parameter, text: str | None) -> FarmAddress | None:
    """Return the address that --farm names. Raise UsageError for what is none."""
    if text is None:
        return None
    from spark_build.farm.address import parse_address

    return parse_address(text)


def farm_option(meaning: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add --farm."""
    return click.option("--farm", metavar="ADDRESS", callback=_parse, help=meaning)


def refuse_certificates(address: FarmAddress | None) -> None:
    """Raise UsageError for --certificates on a command line where nothing would read them."""
    source = click.get_current_context().get_parameter_source("certificates")
    if source is ParameterSource.COMMANDLINE and (address is None or address.kind != "tls"):
        raise click.UsageError("--certificates belongs to --farm tls://HOST:PORT")


def farm_options(meaning: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add --farm and --certificates, handed on as `where`."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        decorated = as_one(FarmOptions, "where")(function)
        return CERTIFICATES(farm_option(meaning)(decorated))

    return decorate


def _name_for_workers(setting: Context) -> str:
    """Return the name of a target with its Python. Raise UsageError for one that no file tells workers of."""
    from spark_build.recipes.evaluation import resolve_target

    target, known = setting.target, setting.catalogue.targets
    name = f"{target.name}-{target.python}"
    if target.name in known and resolve_target(setting.catalogue.target(name), setting.machine) == target:
        return name
    raise UsageError(
        f"a farm builds for a target by its name, and {target.name} is no file's",
        hint=f"--target NAME, one of {', '.join(sorted(known))}",
    )


def _common(options: Options, setting: Context, wish: BuildOptions, where: FarmOptions) -> Task:
    """Return what all tasks of a command say alike. Raise UsageError for a target that no name tells."""
    import secrets

    from spark_build.farm.task import Task

    return Task(
        run=secrets.token_hex(8),
        recipe="",
        plan_key="",
        train=setting.train.name,
        target=_name_for_workers(setting),
        provide=dict(setting.provide),
        choices={f"{recipe}.{name}": value for (recipe, name), value in options.choices.items()},
        offline=wish.offline,
        ignore_memory=where.insist,
        require_sandbox=wish.require_sandbox,
    )


def with_gpu(
    options: Options,
    setting: Context,
    wish: BuildOptions,
    where: FarmOptions,
    published: Mapping[str, Sequence[StoredWheel]],
    judged: VerifyOutcome,
    *,
    reverify: bool,
) -> VerifyOutcome:
    """Have a worker with a GPU check recipes' wheels where this machine cannot; else say what is open."""
    lacks = setting.target.cuda_architectures and not (setting.is_here and setting.machine.gpus)
    if where.farm is None or where.farm.kind == "local" or not lacks or not published:
        return judged
    wheels = {wheel.filename: wheel.sha256 for own in published.values() for wheel in own}
    answer = _verified(options, setting, replace(wish, named=tuple(published)), where, reverify=reverify)
    others = [name for name, sha256 in wheels.items() if answer.wheels.get(name) != sha256]
    if others and not answer.problem:
        answer = replace(answer, checks=[], problem=f"{answer.worker} has other bytes of {', '.join(others)}")
    if (left := _left_out(setting, answer, published)) and not answer.problem:
        answer = replace(answer, checks=[], problem=f"{answer.worker} did not do {', '.join(left)}")
    if not answer.problem:
        row = {"worker": answer.worker, "problem": "", "checks": answer.checks}
        try:
            told = f"on {answer.worker}, which has a GPU"
            return judged.joined(answer.checks, told, {**judged.document, "with_gpu": row})
        except (TypeError, ValueError, LookupError):
            answer = replace(
                answer, checks=[], problem=f"{answer.worker} answers with something else than checks"
            )
    row = {"worker": answer.worker, "problem": answer.problem, "checks": answer.checks}
    lines = [*judged.lines, f"open: the checks that need a GPU: {answer.problem}"]
    return replace(judged, document={**judged.document, "with_gpu": row}, lines=lines)


def _left_out(setting: Context, answer: TaskAnswer, recipes: Iterable[str]) -> list[str]:
    """Return the check scripts of recipes of which a worker did not do a single check."""
    done = {
        (one.get("package"), str(one.get("name")).partition(".")[0])
        for one in answer.checks
        if one.get("status") != "skipped"
    }
    wanted = [(name, script) for name in recipes for script in setting.catalogue.recipes[name].verify.checks]
    return [f"{script} of {name}" for name, script in wanted if (name, script) not in done]


def _verified(
    options: Options, setting: Context, wish: BuildOptions, where: FarmOptions, *, reverify: bool
) -> TaskAnswer:
    """Return a worker's answer on the recipes that `wish` names, or the problem."""
    with _dask(), contextlib.ExitStack() as stack:
        from spark_build.farm import client
        from spark_build.farm.task import TaskAnswer

        nobody = TaskAnswer(worker="", address="", problem="no worker of the farm for this target has one")
        try:
            common = _common(options, setting, wish, where)
            task = replace(common, recipe=wish.named[0], verified=[*wish.named], reverify=reverify)
            tell = reporter().message
            tell("asking the farm for a worker with such a GPU to verify it")
            there = stack.enter_context(reached(setting.home, where, tell))
            return client.verified_by(there, task, setting.target) or nobody
        except (SparkBuildError, OSError) as error:
            return replace(nobody, problem=getattr(error, "message", str(error)))


@contextlib.contextmanager
def opened(
    options: Options, setting: Context, planned: Plan, wish: BuildOptions, where: FarmOptions, emit: Emit
) -> Iterator[Farm]:
    """Work with the farm that --farm names."""
    with _dask(), contextlib.ExitStack() as stack:
        from spark_build.farm import client

        common = _common(options, setting, wish, where)
        client.require_return(setting)
        farm = client.Farm(setting, planned, common, emit)
        there = stack.enter_context(reached(setting.home, where, lambda text: emit(Note(message=text))))
        yield stack.enter_context(farm.at(there))


@contextlib.contextmanager
def reached(home: Home, where: FarmOptions, tell: Callable[[str], None]) -> Iterator[ReachedFarm]:
    """Reach a farm, started here during the block where its address asks for that."""
    with _dask(), contextlib.ExitStack() as stack:
        from spark_build.farm import nodes

        address = where.address
        if address.kind == "ssh":
            yield stack.enter_context(nodes.by_ssh(address.nodes, tell))
        elif address.kind == "local":
            site = _site(Options(), home, where.jobs, where.memory)
            yield stack.enter_context(nodes.local(home, site, address.count))
        else:
            keeping = nodes.security(_folder(home, where.certificates))
            yield nodes.ReachedFarm(address=address.scheduler, security=keeping)
