"""The commands export, import, trust and serve."""

from __future__ import annotations

import signal
import socket
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from spark_build.cli import render
from spark_build.cli.hints import typeable
from spark_build.cli.options import Options, as_one, command, group, shared
from spark_build.cli.wheelhouse import current, listing, print_wheels
from spark_build.errors import AuditError, Hint, UsageError, ours
from spark_build.events import Emit, Note
from spark_build.text import format_size

if TYPE_CHECKING:
    from spark_build.transfer.bundle import Bundle, Progress
    from spark_build.transfer.bundle_import import ImportResult, Judgement
    from spark_build.wheelhouse.generations import Generation
    from spark_build.wheelhouse.server import Tls
    from spark_build.wheelhouse.trust import Signer

KEY = click.Path(path_type=Path, dir_okay=False)
PACKED = (".gz", ".bz2", ".xz", ".zip", ".tgz", ".zst")


@command()
@click.argument("what", nargs=-1, metavar="[FILE] [PACKAGE]...")
@click.option("--to", metavar="URL", help="Write to ssh://[USER@]NODE[:PORT]/PATH, or to any URL of fsspec.")
@click.option("--generation", "number", type=int, metavar="N", help="Export this one (default: the current).")
@click.option("--without-spark-build", is_flag=True, help="Leave out spark-build itself.")
@click.option(
    "--sign", "key", type=KEY, metavar="KEY", help="Sign with this ssh key, such as ~/.ssh/id_ed25519."
)
@shared
def export(
    options: Options,
    what: tuple[str, ...],
    to: str | None,
    number: int | None,
    key: Path | None,
    *,
    without_spark_build: bool,
) -> None:
    """Write wheels for another machine: FILE.tar, FILE.tar.zst, or a folder.

    Writes everything, or only the PACKAGEs with all they require. After an interruption the same command
    goes on in a folder and at a URL, and writes an archive again.
    """
    if not to and not what and "remote" in options.settings:
        to = str(options.settings["remote"].value)
    if not to and not what:
        raise click.UsageError("where to? Name FILE.tar, FILE.tar.zst or a folder; or --to URL")
    place, packages = (to, what) if to else (what[0], what[1:])
    with render.open_view(options.verbosity) as view:
        found, parcel = _packed(options, packages, number, key, view.emit, with_tool=not without_spark_build)
        count = _send(parcel, place, _progress(view.emit, "export"), view.emit, remote=bool(to))
    chosen = replace(found, wheels=parcel.wheels)
    shown = to or str(Path(place).absolute())
    if options.json:
        render.print_json({"file": shown, "size": count, **listing(chosen)})
    else:
        several = "" if len(chosen.wheels) == 1 else "s"
        print(f"{place}: {len(chosen.wheels)} wheel{several}, {format_size(count)}")


def _packed(
    options: Options,
    packages: tuple[str, ...],
    number: int | None,
    key: Path | None,
    emit: Emit,
    *,
    with_tool: bool,
) -> tuple[Generation, Bundle]:
    from spark_build.transfer.bundle import pack, select, wheels_of_itself
    from spark_build.wheelhouse import generations
    from spark_build.wheelhouse.trust import UNSIGNED, require_key

    if key:
        require_key(key)
    setting = options.setting()
    view = setting.view
    found = generations.read(generations.folder_of(view, number)) if number is not None else current(options)
    wheels, missing = select(found.wheels, packages, setting.markers)
    if missing:
        emit(Note(message=f"not in it, and needed to install all of it: {', '.join(missing)}"))
    if key and (unproven := [wheel.name for wheel in wheels if wheel.imported == UNSIGNED]):
        emit(Note(message=f"you vouch for what came to you unsigned: {', '.join(unproven)}"))
    tool: tuple[Path, ...] = ()
    if with_tool:
        tool = wheels_of_itself(
            setting.home,
            setting.target,
            is_here=setting.is_here,
            tell=lambda message: emit(Note(message=message)),
        )
    return found, pack(
        found,
        setting.home.store,
        wheels=wheels,
        python=setting.target.python,
        tool=tool,
        options=f"--target {setting.target.name} --train {setting.train.name} ",
        key=key,
    )


def _send(parcel: Bundle, place: str, progress: Progress, emit: Emit, *, remote: bool) -> int:
    if remote:
        from spark_build.transfer.upload import send

        return send(parcel, place, progress, emit)
    path = Path(place).absolute()
    if path.name.endswith((".tar", ".tar.zst")):
        from spark_build.transfer.bundle_write import write_archive

        if path.is_dir():
            raise UsageError(f"{path} is a folder", hint="choose another name")
        return write_archive(parcel, path, progress)
    if path.suffix in PACKED or (path.exists() and not path.is_dir()):
        raise UsageError(
            f"{path.name}: an export is FILE.tar, FILE.tar.zst or a folder", hint="choose another name"
        )
    from spark_build.transfer.bundle_write import write_folder

    return write_folder(parcel, path, progress)


def _progress(emit: Emit, stage: str) -> Progress:
    from spark_build.events import Progress as Event

    return lambda done, total: emit(Event(recipe="", stage=stage, done=done, total=total, unit="bytes"))


@command("import")
@click.argument("file", type=click.Path(path_type=Path, exists=True))
@click.option("--unsigned", is_flag=True, help="Accept an export that no trusted key signed.")
@click.option("--allow-downgrade", is_flag=True, help="Accept an export older than the last one.")
@click.option("--strict", is_flag=True, help="Take all third-party wheels or none.")
@shared
def import_(options: Options, file: Path, unsigned: bool, allow_downgrade: bool, strict: bool) -> int:
    """Take in what `export` wrote, or a folder or tar of third-party wheels, after checking every wheel.

    Third-party wheels that pip and uv would install are taken; the others are listed, with exit code 8.
    """
    from spark_build.recipes.model import Target
    from spark_build.transfer.bundle_import import Allowed, import_bundle

    def view() -> tuple[str, Target]:
        setting = options.setting()
        return setting.view.name, setting.target

    def targets() -> list[Target]:
        from spark_build.probe import probe
        from spark_build.recipes.evaluation import resolve_target
        from spark_build.recipes.loader import load

        machine = probe()
        return [resolve_target(one, machine) for one in load(options.home().data).targets.values()]

    with render.open_view(options.verbosity) as shown:
        taken = import_bundle(
            options.home(),
            file,
            view,
            targets=targets,
            allowed=Allowed(unsigned=unsigned, downgrade=allow_downgrade, strict=strict),
            copying=_progress(shown.emit, "import"),
            checking=_progress(shown.emit, "check"),
        )
    found = taken.generation
    code = AuditError.exit_code if any(one.refused for one in taken.judgements) else 0
    if options.json:
        render.print_json(_import_document(taken))
        return code
    print(f"generation {found.number} in {found.folder}" + ("" if taken.new else " (had it already)"))
    with render.details(options):
        _print_import(taken)
    if code:
        click.echo("  next: fetch or build these again; the others are taken in (--strict: none)", err=True)
    return code


def _import_document(taken: ImportResult) -> dict[str, Any]:
    from spark_build.wheels.model import finding_row

    return {
        "new": taken.new,
        **listing(taken.generation),
        "replaced": [{"name": one.name, "version": one.version, "key": one.key} for one in taken.replaced],
        "foreign": [
            {**asdict(one), "findings": [finding_row(found) for found in one.findings]}
            for one in taken.judgements
        ],
        "signer": taken.signer.name if taken.signer else None,
    }


def _print_import(taken: ImportResult) -> None:
    """Print the wheels, who signed them, what is to be said of each, and the way back."""
    found = taken.generation
    print_wheels(found)
    if taken.signer and taken.signer.key:
        print(f"signed by {taken.signer.name}, {taken.signer.fingerprint}")
    for one in taken.judgements:
        _print_judgement(one)
    for gone in taken.replaced:
        print(f"took the place of {gone.name} {gone.version}, built here")
    if taken.replaced:
        from spark_build.wheelhouse import generations

        view = generations.options_of(found.folder.parent.parent)
        print(f"back: {typeable(ours('wheelhouse rollback', found.before, options=view))}")


def _print_judgement(one: Judgement) -> None:
    for why in one.refused:
        click.echo(f"error: refused: {one.filename}: {why}", err=True)
    if not one.taken and not one.refused:
        print(f"left out, for another platform or Python: {one.filename}")
    for finding in one.findings:
        if finding.severity == "warning":
            print(f"{one.filename}: {finding.message}")


@group()
@shared
def trust(_options: Options) -> None:
    """Manage the keys whose exports `import` accepts and `plan` reuses."""


@trust.command()
@click.argument("name")
@click.argument("file", type=KEY, metavar="KEY.pub")
@shared
def add(options: Options, name: str, file: Path) -> None:
    """Trust a public ssh key, under NAME.

    Get the key from its owner, not with an export.
    """
    from spark_build.wheelhouse import trust as signatures

    _print_signers(options, [signatures.add(options.home().wheelhouse, name, file)], "trusted")


@trust.command("list")
@shared
def list_(options: Options) -> None:
    """Show who is trusted, with fingerprints."""
    from spark_build.wheelhouse import trust as signatures

    found = signatures.signers(options.home().wheelhouse)
    if not found and not options.json:
        print(typeable(Hint("nobody is trusted yet: ", ours("wheelhouse trust add NAME KEY.pub"))))
    _print_signers(options, found, "trusted")


@trust.command()
@click.argument("name")
@shared
def remove(options: Options, name: str) -> None:
    """Trust no key of NAME any more.

    The wheels that it signed stay in the store; builds no longer reuse them.
    """
    from spark_build.wheelhouse import trust as signatures

    _print_signers(options, signatures.remove(options.home().wheelhouse, name), "not trusted any more")


def _print_signers(options: Options, signers: Sequence[Signer], state: str) -> None:
    from spark_build.wheelhouse.trust import file_of

    if options.json:
        rows = [{"name": one.name, "fingerprint": one.fingerprint, "key": one.key} for one in signers]
        render.print_json({"signers": rows, "file": str(file_of(options.home().wheelhouse))})
        return
    for one in signers:
        print(f"{state}: {one.name} {one.fingerprint} ({one.key.split()[0]})")


FILE = click.Path(path_type=Path, dir_okay=False, exists=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class ServeOptions:
    """Options of the server."""

    host: str
    port: int
    generation: int | None
    certificate: Path | None
    key: Path | None
    token_file: Path | None
    connections: int

    def tls(self) -> Tls | None:
        """Return the certificate to serve with, checked; None without one."""
        from spark_build.wheelhouse.server import Tls, check_tls

        if self.key and not self.certificate:
            raise click.UsageError("--key needs --certificate")
        tls = Tls(certificate=self.certificate, key=self.key) if self.certificate else None
        if tls:
            check_tls(tls)
        return tls


@command()
@click.option(
    "--host",
    metavar="ADDRESS",
    default="127.0.0.1",
    show_default=True,
    help="Where to listen; 0.0.0.0: all addresses.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8765,
    show_default=True,
    help="Where to listen; 0: any free port.",
)
@click.option("--generation", type=click.IntRange(1), help="Serve only this one of the selected view.")
@click.option("--certificate", type=FILE, help="Serve over TLS with this PEM file.")
@click.option("--key", type=FILE, help="Key of the certificate, if it is in another file.")
@click.option("--token-file", type=FILE, help="Ask for the token in FILE (or SPARK_BUILD_TOKEN).")
@click.option(
    "--connections",
    type=click.IntRange(4),
    default=400,
    show_default=True,
    help="Most connections at once; one address may have a quarter.",
)
@as_one(ServeOptions, "asked")
@shared
def serve(options: Options, asked: ServeOptions) -> int:
    """Serve the wheels to pip, uv and browsers on other nodes, until it is interrupted.

    Serves all views, what is published later, too, and the remote stores that are folders and pushed to
    (`remotes add --push`). With --generation: only that one.
    """
    from spark_build.transfer.remote import configured
    from spark_build.wheelhouse import server
    from spark_build.wheelhouse.server import Shelf, application

    tls, token = asked.tls(), server.read_token(asked.token_file)
    home = options.home()
    only = (options.setting().view.name, asked.generation) if asked.generation else None
    folders = tuple(one.folder for one in configured(home.wheelhouse) if one.push and one.folder)
    shelf = Shelf(views=home.views, store=home.store, only=only, token=token, remotes=() if only else folders)
    shelf.prepare()
    limits = server.ClientLimits(connections=asked.connections)
    with server.bind(asked.host, asked.port, limits) as listening:
        _warn(asked.host, tls, token)
        _announce(options, shelf.names(), listening, asked.host, tls=tls, token=token)
        app, verbose = application(shelf), options.verbosity > 0
        ended_by = server.serve(app, listening, tls=tls, verbose=verbose, limits=limits)
    if options.verbosity >= 0:
        click.echo(f"{signal.Signals(ended_by).name}: ended", err=True)
    return 128 + ended_by


def _warn(host: str, tls: Tls | None, token: str) -> None:
    from spark_build.wheelhouse.server import is_loopback

    if is_loopback(host):
        return
    if not token:
        click.echo(
            "warning: everyone who reaches this port can read the wheels; --token-file FILE asks for a token",
            err=True,
        )
    if tls is None:
        sent = "the token and what is sent" if token else "what is sent"
        click.echo(
            f"warning: without TLS everyone on the way can read {sent}, and change it; "
            "--certificate FILE --key FILE encrypts it",
            err=True,
        )


def _announce(
    options: Options, views: list[str], listening: socket.socket, host: str, *, tls: Tls | None, token: str
) -> None:
    from spark_build.wheelhouse.server import install_lines, is_loopback

    shown = socket.gethostname() if host in ("0.0.0.0", "::", "") else host  # noqa: S104 - only compared
    shown = f"[{shown}]" if ":" in shown else shown
    root = f"{'https' if tls else 'http'}://{shown}:{listening.getsockname()[1]}"
    indexes = {view: f"{root}/{view}/simple/" for view in views}
    if options.json:
        render.print_json({"url": f"{root}/", "indexes": indexes})
    elif options.verbosity >= 0:
        print(f"serving {root}/ (a page for people; Ctrl-C ends)")
        trusted = "" if tls or is_loopback(shown) else shown
        for view in views:
            print(f"{view}:")
            for line in install_lines(indexes[view], token=bool(token), trusted=trusted):
                print(f"  {line}")
    # Nobody may wait for more before they see it.
    sys.stdout.flush()
