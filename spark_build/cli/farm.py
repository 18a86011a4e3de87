"""The commands of farm: init, scheduler, worker; what `build` and `all` need of it."""

from __future__ import annotations

import contextlib
import secrets
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import update_wrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from spark_build.cli.options import DETACHED, SIZE, Options, group, shared
from spark_build.errors import HostError, UsageError, pip_install
from spark_build.events import Note

if TYPE_CHECKING:
    from spark_build.build.context import Context
    from spark_build.events import Emit
    from spark_build.farm.client import Farm
    from spark_build.farm.nodes import ReachedFarm, Workplace
    from spark_build.paths import Home
    from spark_build.recipes.model import BuildOptions, Plan

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
    """What a command that builds says of its farm."""

    address: str
    certificates: Path | None = None
    jobs: int | None = None
    memory_mib: int | None = None
    ignore_memory: bool = False


def farm_options(meaning: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add --farm and --certificates, handed on as `where`, None without --farm."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        def command(*arguments: Any, **named: Any) -> Any:
            address, certificates = named.pop("farm"), named.pop("certificates")
            if certificates is not None and (address is None or address.startswith(("ssh:", "local:"))):
                raise click.UsageError("--certificates belongs to --farm tls://HOST:PORT")
            where = None if address is None else FarmOptions(address=address, certificates=certificates)
            return function(*arguments, where=where, **named)

        decorated: Callable[..., Any] = update_wrapper(command, function)
        return CERTIFICATES(click.option("--farm", metavar="ADDRESS", help=meaning)(decorated))

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


@contextlib.contextmanager
def opened(
    options: Options, setting: Context, planned: Plan, wish: BuildOptions, where: FarmOptions, emit: Emit
) -> Iterator[Farm]:
    """Work with the farm that --farm names."""
    with _dask(), contextlib.ExitStack() as stack:
        from spark_build.farm import client
        from spark_build.farm.task import Task

        target = _name_for_workers(setting)
        client.require_return(setting)
        common = Task(
            run=secrets.token_hex(8),
            recipe="",
            plan_key="",
            train=setting.train.name,
            target=target,
            provide=dict(setting.provide),
            choices={f"{recipe}.{name}": value for (recipe, name), value in options.choices.items()},
            offline=wish.offline,
            ignore_memory=where.ignore_memory,
            require_sandbox=wish.require_sandbox,
        )
        farm = client.Farm(setting, planned, common, emit)
        there = stack.enter_context(reached(setting.home, where, lambda text: emit(Note(message=text))))
        yield stack.enter_context(farm.at(there.address, there.security, there.check))


@contextlib.contextmanager
def reached(home: Home, where: FarmOptions, tell: Callable[[str], None]) -> Iterator[ReachedFarm]:
    """Reach a farm, started here during the block where its address asks for that."""
    with _dask(), contextlib.ExitStack() as stack:
        from spark_build.farm import nodes

        kind, _, rest = where.address.partition(":")
        if kind == "ssh":
            yield stack.enter_context(nodes.by_ssh(rest, tell))
        elif kind == "local":
            if not rest.isdecimal() or int(rest) < 1:
                raise UsageError(f"--farm {where.address}: write local:N, N workers")
            site = _site(Options(), home, where.jobs, where.memory_mib)
            yield stack.enter_context(nodes.local(home, site, int(rest)))
        else:
            address = nodes.address_of(where.address)
            keeping = nodes.security(_folder(home, where.certificates))
            yield nodes.ReachedFarm(address=address, security=keeping)
