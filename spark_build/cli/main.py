"""Entry point: the command table and the one handler of errors."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
from types import FrameType
from typing import Any

import click

from spark_build import __version__
from spark_build.cli.lazy_group import COMMANDS, SECTIONS, LazyGroup
from spark_build.cli.options import CALLED, COMMON, COMPLETE, DETACHED, Options
from spark_build.cli.terminal import OutputError, ReaderGoneError, escaped_output
from spark_build.errors import (
    AGAIN,
    Hint,
    HostError,
    RecipeError,
    SparkBuildError,
    StoreError,
    UsageError,
    ours,
)
from spark_build.text import printable


@click.group(
    cls=LazyGroup, table=COMMANDS, sections=SECTIONS, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(__version__, prog_name="spark-build")
def cli() -> None:
    """Build the PyTorch stack from source, keep the wheels, prove what they are worth."""


for _declare in COMMON:
    _declare(cli)


class Stopped(BaseException):
    """A signal that asks us to end; carries its number."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def _on_signal(number: int, _frame: FrameType | None) -> None:
    raise Stopped(number)


def run() -> None:
    """Run the command line and exit with its code."""
    _open_closed_streams()
    gc.set_threshold(100_000)  # almost nothing that start-up makes is freed before the end
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _on_signal)
    # A script's shell starts what it puts into the background with interrupts ignored, and Python keeps that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if os.environ.get(COMPLETE):
        cli.main(prog_name="spark-build", complete_var=COMPLETE)
    options = Options()
    options.program, options.is_root = _program(), os.geteuid() == 0
    if DETACHED in os.environ:
        sys.exit(be_background(os.environ.pop(DETACHED), options))
    code = main(sys.argv[1:], options)
    try:
        sys.stderr.flush()
    except OSError:  # Python 3.14 makes an exit code 120 of what it cannot write at the end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
    gc.freeze()  # to collect what ends with the process anyway takes a twelfth of `all` with nothing to do
    sys.exit(code)


def _open_closed_streams() -> None:
    """Let what the caller closed of the standard streams lead nowhere, for children, too.

    Else the next file that is opened gets the number, and with it what is meant for the terminal.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest free number: this one
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w" if number else "r", encoding="utf-8", closefd=False))


def _program() -> str:
    """Return what starts this program when it is typed again, in the same folder."""
    import shlex
    import shutil

    called = os.environ.get(CALLED) or sys.argv[0]
    if called.rpartition("/")[2] != "spark-build":
        return "spark-build"
    found = shutil.which("spark-build")
    is_found = found and os.access(called, os.F_OK) and os.path.samefile(found, called)  # noqa: PTH121 - start-up
    return "spark-build" if is_found else shlex.quote(called)


def main(arguments: list[str], options: Options | None = None) -> int:
    """Run one command; returns the exit code. All expected failures end here."""
    code = 0
    with escaped_output():
        try:
            code = _main(arguments, options or Options())
            sys.stdout.flush()
        except OutputError as error:
            # Python writes once more at the end what is left: to where it is taken.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            if isinstance(error, ReaderGoneError):  # the reader went away: nobody is left to tell
                return 141
            if code == 0:
                click.echo(f"error: standard output cannot be written: {error}", err=True)
        else:
            return code
        return code or HostError.exit_code


def _main(arguments: list[str], options: Options) -> int:
    from spark_build.cli import config
    from spark_build.reporting import Reporter, reporting

    options.json = "--json" in arguments  # for what goes wrong before the options are read
    try:
        defaults = config.apply(options, _settings(arguments))
        # Commands return their exit code; click returns 0 for --help and --version.
        with reporting(Reporter(lambda text: click.echo(text, err=True))):
            code = cli.main(
                args=arguments,
                prog_name="spark-build",
                standalone_mode=False,
                obj=options,
                default_map=defaults,
            )
        return int(code or 0)
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.ClickException as error:
        return _report_usage(options, error)
    except SparkBuildError as error:
        return _report_error(options, error)
    except (KeyboardInterrupt, click.Abort) as stop:
        return _report(options, f"interrupted; {_what_then(stop)}", 130)
    except Stopped as stop:
        return _report(options, f"stopped; {_what_then(stop)}", 128 + stop.number)
    except OutputError:
        raise
    except OSError as error:
        return _report_os_error(options, error)
    except Exception as error:  # noqa: BLE001 - the last line of defence writes the crash report
        return _crash(options, error)


def _settings(arguments: list[str]) -> dict[str, Any]:
    """Return the settings; none where they are wrong and only help is asked for."""
    from spark_build.cli import config

    try:
        return config.settings()
    except UsageError:
        if {"-h", "--help", "--version"}.isdisjoint(arguments):
            raise
        return {}


def _report(options: Options, message: str, code: int, extra: dict[str, Any] | None = None) -> int:
    """One error line on stderr; with --json also one document on stdout."""
    click.echo(f"error: {printable(message)}", err=True)
    if options.json:
        import json

        with contextlib.suppress(OutputError):
            click.echo(json.dumps({"error": {"message": message, "exit_code": code, **(extra or {})}}))
    return code


def _what_then(stop: BaseException) -> str:
    return next(iter(getattr(stop, "__notes__", ())), "the same command goes on where it stopped")


def _report_usage(options: Options, error: click.ClickException) -> int:
    from spark_build.cli import config

    if not isinstance(error, click.exceptions.NoArgsIsHelpError):
        return _report(options, config.origin_of(options, error) + error.format_message(), 2)
    if options.json:
        return _report(options, "Missing command.", 2)
    click.echo(error.format_message())
    return 2


def _report_error(options: Options, error: Any) -> int:
    from spark_build.cli.hints import typeable

    hint = typeable(error.hint, options) if error.hint else error.hint
    problems = [str(problem) for problem in error.problems] if isinstance(error, RecipeError) else []
    place = f"{error.where}: " if error.where else ""
    code = _report(
        options,
        place + error.message,
        error.exit_code,
        {"where": error.where, "hint": hint, "log": error.log, "problems": problems},
    )
    for problem in problems:
        click.echo(f"  {printable(problem)}", err=True)
    if error.log:
        click.echo(f"  log:  {printable(error.log)}", err=True)
    if hint:
        click.echo(f"  next: {printable(hint)}", err=True)
    return code


def _report_os_error(options: Options, error: OSError) -> int:
    """Report what the user can mend: on the machine, where a path names it, in the folders of a root."""
    from pathlib import Path

    from spark_build.files import from_os_error
    from spark_build.journal import write_crash_report
    from spark_build.paths import locate

    is_kept = in_wheelhouse = False
    named = os.fsdecode(error.filename2 or error.filename or "")
    with contextlib.suppress(SparkBuildError, OSError):
        home, file = locate(options.root), Path(named).absolute()
        in_wheelhouse = bool(named) and file.is_relative_to(home.wheelhouse)
        others = (home.build, home.sources, home.runs, home.cache)
        is_kept = in_wheelhouse or (bool(named) and any(map(file.is_relative_to, others)))
    known = from_os_error(error, typed=not is_kept)
    if known is None and is_kept:
        report = write_crash_report(options.root, error)
        told, log = f"{named}: {error.strerror}", str(report) if report else None
        if in_wheelhouse:
            known = StoreError(f"damaged: {told}", hint=ours("wheelhouse check --repair"), log=log)
        else:
            known = HostError(told, hint=Hint("move it away, then ", AGAIN), log=log)
    return _crash(options, error) if known is None else _report_error(options, known)


def _crash(options: Options, error: BaseException) -> int:
    from spark_build.journal import write_crash_report

    report = write_crash_report(options.root, error)
    where = f"; report: {report}" if report else ""
    return _report(options, f"a bug in spark-build: {type(error).__name__}: {error}{where}", 70)


def be_background(folder: str, options: Options) -> int:
    """Run as the process that `start_background` starts; returns the exit code."""
    from pathlib import Path

    from spark_build.build import background

    # A session of its own gets none from a terminal; this is for a shell that sends it by hand.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    options.background = Path(folder)
    with background.hold(options.background, sys.argv[1:]):
        try:
            code = main(sys.argv[1:], options)
        except Stopped as stop:
            code = 128 + stop.number
        # The exit code says that the output is whole.
        sys.stdout.flush()
        background.finish(options.background, code)
    return code
