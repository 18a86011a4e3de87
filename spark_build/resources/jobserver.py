"""The jobserver, and the wrappers that pass it to ninja and make."""

from __future__ import annotations

import array
import contextlib
import errno
import fcntl
import os
import shutil
import signal
import tempfile
import termios
import threading
from collections.abc import Callable
from pathlib import Path

from spark_build.resources import memory, policy
from spark_build.resources.memory import JobTree, Process, TreeReading
from spark_build.text import render_template

TOKEN = b"+"
IDLE_SECONDS = 0.6  # unused for so long, a token may go to another stage
PATIENCE = (2.0, 16.0)  # seconds for which a stage then asks for no more; doubles up to the last
NOTHING = TreeReading(memory_mib=0, jobs=(), clients=0, largest_mib=0)


def _is_made(fifo: Path) -> bool:
    """Make a FIFO; return False on file systems that have none, such as sshfs."""
    try:
        os.mkfifo(fifo, 0o600)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS):
            raise
        return False
    return True


class Jobserver:
    """Tokens of one running stage; only the governor's thread changes them."""

    def __init__(
        self,
        *,
        name: str,
        folder: Path,
        cores: int,
        memory_per_job_mib: int,
        threads_per_job: int,
        root: Callable[[], int | None],
        changing: threading.Lock,
    ) -> None:
        self.name = name
        self.shims = folder / "shims"
        self.cores = cores
        self.threads_per_job = max(1, threads_per_job)
        self.memory_per_job_mib = max(1, memory_per_job_mib)  # grows when a job needs more
        self.peak_mib = 0  # of the whole tree
        self.most = 0  # jobs that ran at once
        self.ready = threading.Event()  # set when there is room for the first job
        self.reading = NOTHING
        self.tokens = 0  # put in and not taken back: free ones and those that clients hold
        self.aim = 0  # slots it shall have
        self.sure = 1  # slots for which its equal share of the memory surely suffices
        self.root = root
        self._changing = changing  # the governor's
        self._closed = False
        self._catcher: threading.Thread | None = None
        self._stopped: dict[int, Process] = {}
        self._job_peak = self._process_peak = 0
        self._peaks: dict[tuple[int, int], int] = {}  # of each job that runs
        self._idle_since: float | None = None
        self._modest_until = 0.0
        self._patience = PATIENCE[0]
        write_wrappers(self.shims, cores=cores)
        self._open_fifo(folder)

    def _open_fifo(self, folder: Path) -> None:
        # A client splits MAKEFLAGS at spaces, and runs unbounded when it finds no FIFO.
        spaced = any(character.isspace() for character in str(folder))
        self._elsewhere: Path | None = None
        self.fifo = folder / "tokens"
        self.fifo.unlink(missing_ok=True)  # a killed run's, whose clients may still hold it open
        if spaced or not _is_made(self.fifo):
            self._elsewhere = Path(tempfile.mkdtemp(prefix="spark-build-"))
            self.fifo = self._elsewhere / "tokens"
            os.mkfifo(self.fifo, 0o600)
        self.descriptor = os.open(self.fifo, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self._blocking = os.open(self.fifo, os.O_RDONLY | os.O_CLOEXEC)

    def environment(self, path: str) -> dict[str, str]:
        """Return the build's variables; `path` is the PATH it would have."""
        return {
            "PATH": f"{self.shims}:{path}",
            "MAKEFLAGS": f" -j{self.cores} --jobserver-auth=fifo:{self.fifo}",
            VARIABLE: str(self.fifo),
            "MAX_JOBS": str(self.sure),  # what memory surely allows now
        }

    @property
    def outside(self) -> tuple[Path, ...]:
        """Folders outside its own that the sandbox must let the build write to."""
        return (self._elsewhere,) if self._elsewhere else ()

    @property
    def slots(self) -> int:
        """Jobs that may run now: the implicit ones and all tokens."""
        return self.tokens + self.implicit

    @property
    def implicit(self) -> int:
        """Slots without a token: one for each client that no other client started."""
        return max(1, self.reading.clients) if self.ready.is_set() else 0

    @property
    def unused(self) -> int:
        """Number of tokens that nobody holds."""
        waiting = array.array("i", [0])
        fcntl.ioctl(self.descriptor, termios.FIONREAD, waiting)
        return waiting[0]

    @property
    def in_use(self) -> int:
        """Number of running jobs, as far as tokens show."""
        return self.slots - self.unused

    @property
    def going(self) -> int:
        """Number of jobs that run and are not stopped."""
        return max(0, self.in_use - sum(self.is_stopped(job) for job in self.reading.jobs))

    @property
    def promised_mib(self) -> int:
        """Memory that running jobs may grow to in MiB; one job's need where none can be told."""
        if not self.reading.jobs:
            return max(0, self.memory_per_job_mib - self.reading.memory_mib)
        return sum(self.growth_mib(job) for job in self.reading.jobs if not self.is_stopped(job))

    def wanted(self, now: float) -> int:
        """Return the slots that the stage can use: all, unless some stayed unused for a while."""
        if self.unused == 0:
            self._idle_since = None
        elif self._idle_since is None:
            self._idle_since = now
        elif now - self._idle_since >= IDLE_SECONDS and now >= self._modest_until:
            self._modest_until = now + self._patience
            self._patience = min(self._patience * 2, PATIENCE[1])
        if now < self._modest_until:
            return self.in_use
        if now - self._modest_until > 2 * IDLE_SECONDS and self._idle_since is None:
            self._patience = PATIENCE[0]  # it used what it was given
        return self.cores

    def put(self) -> None:
        """Add a token, unless a build has filled the FIFO with its own."""
        with contextlib.suppress(BlockingIOError):
            os.write(self.descriptor, TOKEN)
            self.tokens += 1

    def withdraw(self) -> None:
        """Take back excess tokens; those in use when they return."""
        with contextlib.suppress(BlockingIOError):
            while self.surplus > 0:
                os.read(self.descriptor, 1)
                self.tokens -= 1
        if self.surplus > 0 and self._catcher is None:
            self._catcher = threading.Thread(target=self._catch, name=f"tokens {self.name}", daemon=True)
            self._catcher.start()

    def _catch(self) -> None:
        """Take tokens that pass from one job to the next.

        The client that gives one back asks for it again within microseconds. Who waits inside read()
        is woken by the giving; a poll, a lock and a read would always come too late on a busy machine.
        """
        while True:
            os.read(self._blocking, 1)
            if self._closed:
                return
            with self._changing:
                due = self.surplus > 0
                self.tokens -= 1
                if not due and not self._closed:
                    self.put()  # we waited for it, and meanwhile more is allowed
                if self.surplus == 0:
                    self._catcher = None
                    return

    @property
    def surplus(self) -> int:
        """Number of tokens to withdraw."""
        return max(0, min(self.tokens, self.slots - self.aim))

    def sample(self, table: dict[int, Process]) -> None:
        """Measure the stage's processes."""
        pid = self.root()
        self.reading = NOTHING if pid is None else memory.read_tree(table, pid)
        self.peak_mib = max(self.peak_mib, self.reading.memory_mib)
        self.most = max(self.most, self.going)
        self._peaks = {
            _identity(job): max(job.memory_mib, self._peaks.get(_identity(job), 0))
            for job in self.reading.jobs
        }
        if not self.reading.jobs:
            self._process_peak = max(self._process_peak, self.reading.largest_mib)
        else:
            self._job_peak = max(self._job_peak, self.reading.largest_mib)
            self.memory_per_job_mib = max(self.memory_per_job_mib, self.reading.largest_mib)

    @property
    def peak_mib_per_job(self) -> int:
        """The largest job seen in MiB; the largest process where no client had jobs."""
        return self._job_peak or self._process_peak

    def growth_mib(self, job: JobTree) -> int:
        """Return how much a job of the last sample may still grow, in MiB."""
        peak = self._peaks.get(_identity(job), job.memory_mib)
        return policy.growth(now_mib=job.memory_mib, peak_mib=peak, per_job_mib=self.memory_per_job_mib)

    def is_stopped(self, job: JobTree) -> bool:
        """Return whether the job was stopped."""
        return job.members[0].pid in self._stopped

    def stop(self, job: JobTree) -> None:
        """Stop a job with all its processes until `resume`."""
        for process in job.members:
            if process.pid not in self._stopped:
                self._stopped[process.pid] = process
                _signal(process, signal.SIGSTOP)

    def resume(self, job: JobTree) -> None:
        """Let a stopped job go on."""
        for process in job.members:
            if self._stopped.pop(process.pid, None) is not None:
                _signal(process, signal.SIGCONT)

    def resume_all(self) -> None:
        """Resume everything that was stopped, also what belongs to no job any more."""
        while self._stopped:
            _signal(self._stopped.popitem()[1], signal.SIGCONT)

    def close(self) -> None:
        """Close the FIFO, with the tokens of killed clients. Must not be called under the lock."""
        self._closed = True
        while (catcher := self._catcher) is not None and catcher.is_alive():
            with contextlib.suppress(BlockingIOError):
                os.write(self.descriptor, TOKEN)
            catcher.join(0.02)
        os.close(self.descriptor)
        os.close(self._blocking)
        self.fifo.unlink(missing_ok=True)
        if self._elsewhere is not None:
            shutil.rmtree(self._elsewhere, ignore_errors=True)


def _identity(job: JobTree) -> tuple[int, int]:
    return job.members[0].pid, job.members[0].started


def _signal(process: Process, number: signal.Signals) -> None:
    """Send a signal, unless a later process has the id now."""
    current = memory.process_of(process.pid)
    if current is not None and current.started == process.started:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(process.pid, number)


VARIABLE = "SPARK_BUILD_JOBSERVER"  # path of the FIFO
STOP = "SPARK_BUILD_STOP"  # path of the file that says where a run that only configures ended
SIGN = "spark-build: configured; not run, as asked:"  # how they say so, the call follows
STOPPED = 75  # exit code of a call that was not made
MARK = ".spark-build-shims"  # a folder with this file holds shims, perhaps those of another stage


def write_wrappers(folder: Path, *, cores: int) -> None:
    """Write the wrapper scripts into `folder`, the same at each call."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MARK).touch()
    values = {"cores": cores, "mark": MARK, "stopped": STOPPED, "sign": SIGN}
    for name in ("ninja", "make", "gmake"):
        path = folder / name
        # A new file instead of a changed one: it may be running.
        temporary = path.with_name(f".{name}")
        temporary.write_text(render_template("build_wrapper.sh", ninja=name == "ninja", **values))
        temporary.chmod(0o755)
        temporary.replace(path)
