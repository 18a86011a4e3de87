"""The processes of a farm, scheduler and workers, and the certificate that they share with their clients."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import secrets
import shutil
import signal
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import Any, BinaryIO, cast

import dask
from distributed import Scheduler, Security, Worker
from distributed.comm.core import connect

from spark_build import __version__, process
from spark_build.errors import Hint, HostError, UsageError, ours
from spark_build.files import write_atomically
from spark_build.machine import Machine
from spark_build.paths import Home, locate
from spark_build.text import render_template
from spark_build.transfer import remote
from spark_build.transfer.upload import Node, parse_destination
from spark_build.wheelhouse import trust

CERTIFICATE, KEY = "farm.pem", "farm.key"
VERSION = f"spark-build {__version__}"  # a resource of every worker, and the scheduler's answer to who it is
WHO = "spark-build"
PAUSE = 1.0  # seconds before a worker looks for its scheduler again; ten times that in the end

# Dask's web pages are neither encrypted nor asked for a certificate: there are none.
WEB: dict[str, Any] = {"dashboard": False, "dashboard_address": "127.0.0.1:0"}
NO_PAGES: dict[str, list[str]] = {
    "distributed.scheduler.http.routes": [],
    "distributed.worker.http.routes": [],
}

_ADDRESS = re.compile(r"(?:tls://)?([\w.-]+|\[[0-9A-Fa-f:.]+\]):([0-9]{1,5})", re.ASCII)

Tell = Callable[[str], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Workplace:
    """Where a worker's builds run and how they are started.

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
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    key = os.open(folder / KEY, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(key, "w") as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(str(made.tls_client_key))
    write_atomically(folder / CERTIFICATE, str(made.tls_ca_file))


def security(folder: Path) -> Security:
    """Return mutual TLS by the folder's certificate, whatever Dask's own settings are. Raise UsageError."""
    if not all((folder / name).is_file() for name in (CERTIFICATE, KEY)):
        copied = "name a copy of the farm's with --certificates DIR; for a new farm: "
        raise UsageError(
            f"{folder} has no certificate of a farm", hint=Hint(copied, ours("farm init", folder))
        )
    pair = {"cert": str(folder / CERTIFICATE), "key": str(folder / KEY)}
    named = {
        f"tls_{role}_{part}": path
        for role in ("client", "scheduler", "worker")
        for part, path in pair.items()
    }
    return Security(require_encryption=True, tls_ca_file=pair["cert"], **named)


def address_of(text: str) -> str:
    """Return tls://HOST:PORT. Raise UsageError for what is none, or not encrypted."""
    found = _ADDRESS.fullmatch(text)
    if not found or not 0 < int(found[2]) < 1 << 16:
        raise UsageError(f"{text!r} is no address of a farm", hint="tls://HOST:PORT, ssh:HOSTS or local:N")
    return f"tls://{found[1]}:{found[2]}"


def abilities(machine: Machine) -> dict[str, float]:
    """Return a machine's facts as Dask resources."""
    facts = {
        VERSION: 1,
        f"platform {machine.platform}": 1,
        f"python {machine.python}": 1,
        "memory MiB": machine.memory_mib,
        "CUDA toolkit": int("cuda" in machine.prefixes),
        "GPU": len(machine.gpus),
    }
    return {name: float(value) for name, value in facts.items() if value}


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


def _quiet(level: int) -> None:
    logging.getLogger("distributed").setLevel(level)


def _why(error: BaseException) -> str:
    """Return the reason that Dask wraps, where it has words."""
    return re.sub("^in <[^>]*>: ", "", str(error.__cause__ or "") or str(error))


async def _stopped(task: asyncio.Task[None]) -> None:
    """Wait for a task; SIGTERM, SIGINT and SIGHUP end it in good order."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, task.cancel)
    try:
        await task
    except asyncio.CancelledError:
        if not task.cancelled():
            raise


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
            told = f"the scheduler cannot listen at {host}:{port}: {_why(error)}"
            raise HostError(told, hint="--host NAME --port PORT, of this machine and free") from error

    async def main() -> None:
        await _stopped(asyncio.create_task(serve()))

    _quiet(logging.WARNING)
    with dask.config.set(NO_PAGES):
        asyncio.run(main())


def refuse_other(said: object) -> None:
    """Raise HostError where a scheduler is of another version."""
    if said != VERSION:
        raise HostError(
            f"the farm's scheduler runs {said or 'no spark-build'}, this is {VERSION}",
            hint="install the same version on all machines of the farm",
        )


def run_worker(address: str, folder: Path, site: Workplace, machine: Machine, tell: Tell) -> None:
    """Run a worker until a signal ends it; when its scheduler ends, it waits for the next one."""
    where, keeping = address_of(address), security(folder)
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
                    tell(f"no work for the scheduler: {_why(error)}")
            await asyncio.sleep(PAUSE)

    async def main() -> None:
        await _stopped(asyncio.create_task(work()))

    _quiet(logging.ERROR)
    with dask.config.set(NO_PAGES):
        asyncio.run(main())


async def _look(where: str, keeping: Security, tell: Tell) -> None:
    """Wait for a scheduler; say for which, and each new reason why there is none."""
    tell(f"looking for the scheduler at {where}")
    told, pause = "", PAUSE
    while True:
        try:
            there = await connect(where, **keeping.get_connection_args("worker"))
        except OSError as error:  # after a while: Dask tries again and again
            reason = f"the scheduler at {where} does not answer: {_why(error)}"
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
    """How a farm is reached; `check` raises HostError when a farm that we started can do nothing any more.

    alive: how many of the workers that we started still run.
    """

    address: str
    security: Security
    check: Callable[[], None] = lambda: None
    alive: Callable[[], int] = lambda: 0


@contextmanager
def local(home: Home, site: Workplace, count: int) -> Iterator[ReachedFarm]:
    """Run a scheduler and workers of this machine, each with a root of its own.

    Raise UsageError where no remote store is pushed to with a key that is trusted here.
    """
    if len(home.data) > 2:  # ours and the shipped ones: a root has no more
        folders = " and ".join(map(str, home.data[:-1]))
        raise UsageError(
            f"workers of this machine take recipes from one folder, and there are {folders}",
            hint="--root DIR, with all of them",
        )
    shared = _shared(home)
    with _scheduler("127.0.0.1") as (address, folder):
        words = ["farm", "worker", address, "--certificates", str(folder)]
        words += ["--jobs", str(max(1, (site.jobs or len(os.sched_getaffinity(0))) // count))]
        words += ["--memory", f"{site.memory_mib // count}M"] if site.memory_mib else []
        roots = [_root(home, shared, number) for number in range(count)]
        commands = [[*site.program, "--root", str(root), *words] for root in roots]
        with _running(commands) as workers:

            def check() -> None:
                for why in workers.ended().values():
                    raise HostError(f"a worker of this machine ended: {why}")

            yield ReachedFarm(
                address=address, security=security(folder), check=check, alive=lambda: workers.alive
            )


@contextmanager
def _scheduler(host: str | None) -> Iterator[tuple[str, Path]]:
    """Run a scheduler in this process; yield its address and the folder of a certificate made for it."""
    from distributed import LocalCluster

    _quiet(logging.ERROR)
    with tempfile.TemporaryDirectory(prefix="spark-build-farm-") as scratch:
        folder = Path(scratch)
        make_certificate(folder)
        with (
            dask.config.set(NO_PAGES),
            LocalCluster(
                n_workers=0,
                processes=False,
                protocol="tls://",
                security=security(folder),
                scheduler_kwargs={**WEB, "host": host},
            ) as cluster,
        ):
            cluster.scheduler.task_metadata[WHO] = VERSION
            yield cluster.scheduler_address, folder


SSH_FOLDER = 'umask 077 && folder=$(mktemp -d) && tar -xf - -C "$folder" && echo "$folder"'


@contextmanager
def by_ssh(hosts: str, tell: Tell) -> Iterator[ReachedFarm]:
    """Run a scheduler here and a worker on each of [USER@]HOST[:PORT],...; they end with the block.

    A worker that ends is told and the others go on. Raise HostError once all have ended.
    """
    nodes = [_ssh_node(host) for host in hosts.split(",")]
    with _scheduler(None) as (address, folder):
        port = address.rpartition(":")[2]
        with ThreadPoolExecutor(len(nodes)) as pool:
            folders = list(pool.map(lambda node: _hand_over(node, folder), nodes))
        # It asks ssh for the client's address as seen from there. With the connection its terminal goes, and
        # the hangup reaches only the shell.
        scripts = [render_template("ssh_worker.sh", folder=quote(there), port=port) for there in folders]
        commands = [
            [*node.ssh(), "-tt", "--", node.login, f"exec sh -c {quote(script)}"]
            for node, script in zip(nodes, scripts, strict=True)
        ]
        told: set[int] = set()
        with _running(commands) as workers:

            def check() -> None:
                ended = workers.ended()
                for number in ended.keys() - told:
                    told.add(number)
                    tell(f"the worker on {nodes[number].login} ended: {ended[number]}")
                if len(ended) == len(nodes):
                    raise HostError(f"no worker is left: {nodes[0].login}: {ended[0]}")

            here = f"tls://127.0.0.1:{port}"
            yield ReachedFarm(
                address=here, security=security(folder), check=check, alive=lambda: workers.alive
            )


def _ssh_node(text: str) -> Node:
    with suppress(UsageError):
        if (node := parse_destination(f"ssh://{text}/-")).path == "/-":
            return node
    raise UsageError(f"--farm ssh: {text!r} is no machine", hint="--farm ssh:[USER@]HOST[:PORT],...")


def _hand_over(node: Node, folder: Path) -> str:
    """Put the certificate and its key into a new folder on a node, readable by its owner; return its path."""
    with tempfile.TemporaryFile(dir=folder) as packed:
        with tarfile.open(fileobj=packed, mode="w") as archive:
            for name in (CERTIFICATE, KEY):
                archive.add(folder / name, name)
        packed.seek(0)
        said = process.capture([*node.ssh(), "--", node.login, SSH_FOLDER], stdin=cast("BinaryIO", packed))
    path = (said or "").strip().rpartition("\n")[2]
    if not path.startswith("/"):
        port = f" -p {node.port}" if node.port else ""
        hint = f"`ssh{port} {node.login} mktemp -d` must work without a password (ssh-copy-id)"
        raise HostError(f"{node.login} cannot be reached by ssh", hint=hint)
    return path


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


def _root(home: Home, shared: remote.Remote, number: int) -> Path:
    """Make the root of a worker of this machine: our recipes, our remote store, whom we trust."""
    root = home.build / "farm" / str(number)
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


class Children:
    """Commands that run beside a block."""

    def __init__(self, children: Sequence[Future[process.Completed]]) -> None:
        self._children = children

    @property
    def alive(self) -> int:
        """Return how many still run."""
        return sum(not child.done() for child in self._children)

    def ended(self) -> dict[int, str]:
        """Return what those that ended said, by their number."""
        return {
            number: child.result().output or "without a word"
            for number, child in enumerate(self._children)
            if child.done()
        }


@contextmanager
def _running(commands: list[list[str]]) -> Iterator[Children]:
    """Run commands beside the block, and end them after it; they end with this process in any case."""
    pids: list[list[int]] = [[] for _ in commands]
    with ThreadPoolExecutor(len(commands)) as pool:
        children = [
            pool.submit(process.run, words, on_start=started.append)
            for words, started in zip(commands, pids, strict=True)
        ]
        try:
            yield Children(children)
        finally:
            for child, started in zip(children, pids, strict=True):
                end(child, started)


def end(child: Future[Any], pids: list[int]) -> None:
    """Have the supervisor of what `process.run` does in a thread end it with all that it started."""
    while not child.done() and not pids:
        time.sleep(0.01)  # about to start
    if not child.done():
        with suppress(ProcessLookupError):  # it ended by itself
            os.kill(pids[0], signal.SIGTERM)
