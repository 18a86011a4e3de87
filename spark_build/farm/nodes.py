"""The processes of a farm, scheduler and workers, and the certificate that they share with their clients."""

from __future__ import annotations

import asyncio
import datetime as dt
import io
import logging
import os
import re
import secrets
import shutil
import signal
import ssl
import stat
import tarfile
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import dask
from distributed import Scheduler, Security, Worker
from distributed.comm.core import connect

from spark_build import __version__, probe, process
from spark_build.build import compiler_cache
from spark_build.errors import Hint, HostError, UsageError, ours, shell
from spark_build.farm.address import address_of
from spark_build.files import write_atomically
from spark_build.machine import Machine
from spark_build.paths import Home, locate
from spark_build.reporting import reporter
from spark_build.text import render_template
from spark_build.transfer import remote
from spark_build.transfer.upload import Node
from spark_build.wheelhouse import trust

CERTIFICATE, KEY = "farm.pem", "farm.key"
VERSION = f"spark-build {__version__}"  # a resource of every worker, and the scheduler's answer to who it is
WHO = "spark-build"
MEMORY, GPU = "memory MiB", "GPU"  # resources
SSH_FAILED = 255  # of ssh itself, not of what it runs
PAUSE = 1.0  # seconds before a worker looks for its scheduler again; ten times that in the end

# Dask's web pages are neither encrypted nor asked for a certificate: there are none.
WEB: dict[str, Any] = {"dashboard": False, "dashboard_address": "127.0.0.1:0"}
NO_PAGES: dict[str, list[str]] = {
    "distributed.scheduler.http.routes": [],
    "distributed.worker.http.routes": [],
}

Tell = Callable[[str], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Workplace:
    """Place of a worker's builds, and the program that does them.

    program: what begins its command lines; record_in: variable that names the folder for their events.
    """

    home: Home
    program: tuple[str, ...]
    record_in: str
    jobs: int | None = None
    memory_mib: int | None = None


def make_certificate(folder: Path) -> None:
    """Write a certificate, its own authority, and its key. Raise UsageError where there is one."""
    if (folder / CERTIFICATE).exists():
        raise UsageError(f"{folder} has a certificate already", hint=f"remove {folder / CERTIFICATE} first")
    made = Security.temporary()
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except (FileExistsError, FileNotFoundError) as error:  # a device stands there, or /proc makes none
        raise UsageError(f"{folder} can be no folder: {error.strerror}", hint="name another place") from error
    (folder / KEY).unlink(missing_ok=True)  # it may be another's, who would read what is written into it
    key = os.open(folder / KEY, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(key, "w") as file:
        file.write(str(made.tls_client_key))
    write_atomically(folder / CERTIFICATE, str(made.tls_ca_file))


def security(folder: Path) -> Security:
    """Return mutual TLS by the folder's certificate, whatever Dask's own settings are. Raise UsageError."""
    if not all((folder / name).is_file() for name in (CERTIFICATE, KEY)):
        copied = "name a copy of the farm's with --certificates DIR; for a new farm: "
        raise UsageError(
            f"{folder} has no certificate of a farm", hint=Hint(copied, ours("farm init", folder))
        )
    if (folder / KEY).stat().st_mode & stat.S_IROTH:
        reporter().message(f"warning: every user of this machine can read {folder / KEY}: chmod 600 it")
    pair = {"cert": str(folder / CERTIFICATE), "key": str(folder / KEY)}
    _refuse_unusable(folder)
    named = {
        f"tls_{role}_{part}": path
        for role in ("client", "scheduler", "worker")
        for part, path in pair.items()
    }
    return Security(require_encryption=True, tls_ca_file=pair["cert"], **named)


def _refuse_unusable(folder: Path) -> None:
    """Raise UsageError for a certificate and key that no connection can be made with."""
    from cryptography import x509

    again = ours("farm init NEW_FOLDER")
    try:
        ssl.create_default_context().load_cert_chain(folder / CERTIFICATE, folder / KEY)
        found = x509.load_pem_x509_certificate((folder / CERTIFICATE).read_bytes())
    except PermissionError as error:
        raise HostError(f"{error.filename or folder / KEY} cannot be read: {error.strerror}") from error
    except (OSError, ValueError) as error:
        told = f"the certificate and key in {folder} are damaged or no pair"
        raise UsageError(told, hint=again) from error
    now, first, last = dt.datetime.now(dt.UTC), found.not_valid_before_utc, found.not_valid_after_utc
    if not first <= now <= last:
        told = f"the certificate in {folder} holds from {first:%Y-%m-%d %H:%M} to {last:%Y-%m-%d %H:%M} UTC"
        hint = Hint(again, ", and copy it to all machines of the farm") if now > last else "set this clock"
        raise UsageError(f"{told}, and it is {now:%Y-%m-%d %H:%M} here", hint=hint)


def abilities(machine: Machine) -> dict[str, float]:
    """Return a machine's facts as Dask resources."""
    facts = {
        VERSION: 1,
        f"platform {machine.platform}": 1,
        f"python {machine.python}": 1,
        MEMORY: machine.memory_mib,
        "CUDA toolkit": int("cuda" in machine.prefixes),
        GPU: len(machine.gpus),
        **{f"{GPU} {gpu.capability}": 1 for gpu in machine.gpus},
    }
    return {name: float(value) for name, value in facts.items() if value}


def node_of(worker: object) -> str:
    """Return the machine that a worker's name begins with."""
    return str(worker).rsplit("-", 2)[0]


class BuildWorker(Worker):
    """A Dask worker that knows where its builds run."""

    def __init__(self, address: str, site: Workplace, **options: Any) -> None:
        super().__init__(address, nthreads=1, memory_limit=0, **WEB, **options)
        self.site = site


class BuildScheduler(Scheduler):
    """A Dask scheduler that says which spark-build runs it."""

    def get_metadata(self, keys: Sequence[Any], default: Any = "") -> Any:
        """Return the version for WHO, from the first connection on."""
        return VERSION if [*keys] == [WHO] else super().get_metadata([*keys], default)


def why(error: BaseException) -> str:
    """Return the reason that Dask wraps, where it has words."""
    return re.sub("^in <[^>]*>: ", "", str(error.__cause__ or "") or str(error))


def _run(work: Callable[[], Coroutine[Any, Any, None]], level: int) -> None:
    """Run a scheduler or a worker; SIGTERM, SIGINT and SIGHUP end it in good order.

    level: of Dask's messages.
    """

    async def main() -> None:
        task, loop = asyncio.create_task(work()), asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(number, task.cancel)
        try:
            await task
        except asyncio.CancelledError:
            if not task.cancelled():
                raise

    logging.getLogger("distributed").setLevel(level)
    with dask.config.set(NO_PAGES):
        asyncio.run(main())


def run_scheduler(folder: Path, host: str, port: int, tell: Tell) -> None:
    """Run a scheduler until a signal ends it."""
    keeping = security(folder)

    async def serve() -> None:
        try:
            async with BuildScheduler(
                protocol="tls://", host=host or None, port=port, security=keeping, **WEB
            ) as scheduler:
                tell(f"the farm's scheduler is at {scheduler.address}")
                await scheduler.finished()
        except (OSError, RuntimeError) as error:  # Dask wraps what hinders its start
            told = f"the scheduler cannot listen at {host}:{port}: {why(error)}"
            raise HostError(told, hint="--host NAME --port PORT, of this machine and free") from error

    _run(serve, logging.WARNING)


def refuse_other(said: object) -> None:
    """Raise HostError where a scheduler is of another version."""
    if said != VERSION:
        raise HostError(
            f"the farm's scheduler runs {said or 'no spark-build'}, this is {VERSION}",
            hint="install the same version on all machines of the farm",
        )


def run_worker(address: str, folder: Path, site: Workplace, machine: Machine, tell: Tell) -> None:
    """Run a worker until a signal ends it; when its scheduler ends, it waits for the next one.

    Raise UsageError or HostError for settings that would end every build.
    """
    process.niceness(os.environ)
    if told := _why_alone(site.home):  # its builds are told their root, as if the user had
        os.environ[compiler_cache.CHOICE] = "ccache"
        tell(f"objects are not shared: {told}")
    keeping, where = security(folder), address_of(address)
    if not any(one.push for one in remote.configured(site.home.wheelhouse)):
        raise UsageError(
            "a worker hands on what it builds by a remote store that it pushes to, and there is none",
            hint=ours("remotes add NAME URL --push --sign KEY"),
        )

    async def work() -> None:
        while True:
            await _look(where, keeping, tell)
            with tempfile.TemporaryDirectory(prefix="spark-build-farm-") as scratch:
                worker = BuildWorker(
                    where,
                    site,
                    resources=abilities(machine),
                    security=keeping,
                    local_directory=scratch,
                    # A scheduler may still list it under the name of a connection that broke.
                    name=f"{os.uname().nodename}-{os.getpid()}-{secrets.token_hex(2)}",
                )
                try:
                    await _work(worker, tell)
                    tell("the scheduler is gone")
                except (OSError, RuntimeError) as error:
                    tell(f"no work for the scheduler: {why(error)}")
            await asyncio.sleep(PAUSE)

    _run(work, logging.ERROR)


async def _look(where: str, keeping: Security, tell: Tell) -> None:
    """Wait for a scheduler; say for which, and each new reason why there is none."""
    tell(f"looking for the scheduler at {where}")
    told, pause = "", PAUSE
    while True:
        try:
            there = await connect(where, **keeping.get_connection_args("worker"))
        except OSError as error:  # after a while: Dask tries again and again
            reason = f"the scheduler at {where} does not answer: {why(error)}"
            if reason != told:
                tell(reason)
            told = reason
            await asyncio.sleep(pause)
            pause = min(2 * pause, 10 * PAUSE)
        else:
            await there.close()
            return


async def _work(worker: Worker, tell: Tell) -> None:
    """Work for a scheduler until it ends. Raise HostError for one of another version."""
    async with worker:
        refuse_other(await worker.scheduler.get_metadata(keys=[WHO], default=""))
        tell(f"{worker.name} works for {worker.scheduler.address}")
        await worker.finished()


@dataclass(frozen=True, kw_only=True, slots=True)
class ReachedFarm:
    """Way to a farm; `check` raises HostError when a farm that we started can do nothing any more.

    alive: how many of the workers that we started still run.
    """

    address: str
    security: Security
    check: Callable[[], None] = lambda: None
    alive: Callable[[], int] = lambda: 0


@contextmanager
def local(home: Home, site: Workplace, count: int) -> Iterator[ReachedFarm]:
    """Run a scheduler and workers in threads of this process, each worker with a root of its own.

    Nobody else can connect. Raise UsageError where no store is pushed to with a key that is trusted here.
    """
    if len(home.data) > 2:  # ours and the shipped ones: a root has no more
        folders = " and ".join(map(str, home.data[:-1]))
        raise UsageError(
            f"workers of this machine take recipes from one folder, and there are {folders}",
            hint="--root DIR, with all of them",
        )
    shared = _shared(home)
    sites = [_site(home, site, count, _root(home, shared, number)) for number in range(count)]
    node, resources = f"{os.uname().nodename}-{os.getpid()}", abilities(probe.probe())
    with tempfile.TemporaryDirectory(prefix="spark-build-farm-") as scratch:
        common = {"resources": resources, "local_directory": scratch}
        workers = {
            number: {"cls": BuildWorker, "options": {**common, "site": one, "name": f"{node}-{number}"}}
            for number, one in enumerate(sites)
        }
        with _cluster(workers, protocol="inproc://") as address:
            yield ReachedFarm(address=address, security=Security(), alive=lambda: count)


@contextmanager
def _cluster(workers: dict[int, Any], **options: Any) -> Iterator[str]:
    """Run a scheduler and workers in this process; yield the scheduler's address."""
    from distributed import SpecCluster

    logging.getLogger("distributed").setLevel(logging.ERROR)
    scheduler = {"cls": BuildScheduler, "options": {**WEB, **options}}
    keeping = options.get("security")
    with dask.config.set(NO_PAGES):
        try:
            cluster = SpecCluster(workers, scheduler, security=keeping)
        except (RuntimeError, OSError) as error:
            raise HostError(f"no farm can be started here: {error}", hint=ours("doctor")) from error
        with cluster:
            yield cluster.scheduler_address


@contextmanager
def _scheduler() -> Iterator[tuple[str, Path]]:
    """Run a scheduler in this process; yield its address and the folder of a certificate made for it."""
    with tempfile.TemporaryDirectory(prefix="spark-build-farm-") as scratch:
        folder = Path(scratch)
        make_certificate(folder)
        with _cluster({}, protocol="tls://", security=security(folder)) as address:
            yield address, folder


# One line without ', ! and backslash: any login shell hands it on as it is.
UNPACK = (
    'umask 077; folder=$(mktemp -d) || exit; head -c {size} | tar -xf - -C "$folder" && '
    'exec /bin/sh "$folder/worker.sh"; rm -rf -- "$folder"; exit 1'
)


@contextmanager
def by_ssh(nodes: Sequence[Node], tell: Tell) -> Iterator[ReachedFarm]:
    """Run a scheduler here and a worker on each node; they end with the block.

    A worker that ends is told and the others go on. Raise HostError once all have ended.
    """
    with _scheduler() as (address, folder):
        port = address.rpartition(":")[2]
        # It asks ssh for the client's address as seen from there.
        packed = _packed(folder, render_template("ssh_worker.sh", port=port))
        commands = [node.command(UNPACK.format(size=len(packed)), "-T") for node in nodes]
        told: set[int] = set()
        with _running(commands, packed) as children:

            def check() -> None:
                ended = [number for number, child in enumerate(children) if child.done()]
                for number in ended:
                    if number not in told:
                        told.add(number)
                        tell(_parted(nodes[number], children[number].result()))
                if len(ended) == len(nodes):
                    first = nodes[0]
                    option = ("-p", first.port) if first.port else ()
                    tried = shell("ssh", *option, first.login, "spark-build", "--version")
                    hint = Hint(tried, "  (it must work without a password)")
                    raise HostError(
                        f"no worker is left: {_parted(nodes[0], children[0].result())}", hint=hint
                    )

            here = f"tls://127.0.0.1:{port}"
            yield ReachedFarm(
                address=here,
                security=security(folder),
                check=check,
                alive=lambda: sum(not child.done() for child in children),
            )


def _packed(folder: Path, script: str) -> bytes:
    """Return a tar of the certificate, its key and the script that runs a worker with them."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name in (CERTIFICATE, KEY):
            archive.add(folder / name, name)
        row = tarfile.TarInfo("worker.sh")
        row.size = len(script.encode())
        archive.addfile(row, io.BytesIO(script.encode()))
    return out.getvalue()


def _parted(node: Node, done: process.Completed) -> str:
    """Say how a node's worker ended."""
    said = done.output.strip() or "without a word"
    if done.returncode == SSH_FAILED:
        return f"{node.login} cannot be reached by ssh: {said}"
    return f"the worker on {node.login} ended: {said}"


def _shared(home: Home) -> remote.Remote:
    """Return the remote store that workers of this machine share with it."""
    known = {one.key for one in trust.signers(home.wheelhouse)}
    pushed = [one for one in remote.configured(home.wheelhouse) if one.push]
    if not pushed:
        raise UsageError(
            "workers hand on what they build by a remote store that is pushed to, and there is none",
            hint=ours("remotes add NAME URL --push --sign KEY"),
        )
    if pushed[0].signer not in known:
        raise UsageError(
            f"workers of this machine sign with {pushed[0].key}, which is not trusted here",
            hint=ours("wheelhouse trust add me", f"{pushed[0].key.removesuffix('.pub')}.pub"),
        )
    return pushed[0]


def _why_alone(home: Home) -> str:
    """Return why the objects of this home's recipes are not shared though the user shares objects; or ""."""
    return compiler_cache.chosen_for(home, os.environ).unshared


def _site(home: Home, site: Workplace, count: int, root: Path) -> Workplace:
    """Return where one of `count` workers of this machine builds."""
    # Its root is named; whether the user named ours decides what is shared.
    alone = ("env", f"{compiler_cache.CHOICE}=ccache") if _why_alone(home) else ()
    return replace(
        site,
        home=locate(str(root)),
        program=(*alone, *site.program, "--root", str(root)),
        jobs=max(1, (site.jobs or len(os.sched_getaffinity(0))) // count),
        memory_mib=site.memory_mib // count if site.memory_mib else None,
    )


def _root(home: Home, shared: remote.Remote, number: int) -> Path:
    """Make the root of a worker of this machine: our recipes, our remote store, whom we trust."""
    # What a stranger's recipes compile is nothing that our own take: as the cache, a folder of their own.
    root = home.build / "farm" / (f"{home.cache.name}-{number}" if home.is_strange else str(number))
    root.mkdir(parents=True, exist_ok=True)
    for name in ("recipes", "patches"):
        own, link = home.data[0] / name, root / name
        link.unlink(missing_ok=True)
        if own.is_dir():
            link.symlink_to(own.absolute())
    there = locate(str(root)).wheelhouse
    known = remote.configured(there)
    if [replace(one, asked="") for one in known] != [replace(shared, asked="")]:
        for one in known:
            remote.remove(there, one.name)
        remote.add(there, shared.name, shared.url, push=True, key=Path(shared.key))
    trust.file_of(there).parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(trust.file_of(home.wheelhouse), trust.file_of(there))
    return root


@contextmanager
def _running(commands: list[list[str]], given: bytes) -> Iterator[list[Future[process.Completed]]]:
    """Run commands beside the block, and end them after it; they end with this process in any case.

    given: how their standard input begins; its end comes with theirs, or with ours.
    """
    pids: list[list[int]] = [[] for _ in commands]
    with ThreadPoolExecutor(len(commands)) as pool:
        children = [
            pool.submit(_fed, words, given, started.append)
            for words, started in zip(commands, pids, strict=True)
        ]
        try:
            yield children
        finally:
            for child, started in zip(children, pids, strict=True):
                end(child, started)


def _fed(words: Sequence[str], given: bytes, on_start: Callable[[int], None]) -> process.Completed:
    """Run a command whose standard input begins with `given`, which must fit into a pipe."""
    theirs, ours = os.pipe()
    try:
        os.write(ours, given)
        return process.run(words, stdin=theirs, on_start=on_start)
    finally:
        os.close(theirs)
        os.close(ours)


def end(child: Future[Any], pids: list[int]) -> None:
    """Have the supervisor of what `process.run` does in a thread end it with all that it started."""
    while not child.done() and not pids:
        time.sleep(0.01)  # about to start
    if not child.done():
        with suppress(ProcessLookupError):  # it ended by itself
            os.kill(pids[0], signal.SIGTERM)
