"""The commands of remotes: add, list, remove, push, gc."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from spark_build.cli import render
from spark_build.cli.hints import typeable
from spark_build.cli.options import Options, group, shared
from spark_build.cli.transfer import KEY
from spark_build.cli.wheelhouse import AGE, current
from spark_build.errors import Hint, ours
from spark_build.text import format_size

if TYPE_CHECKING:
    from spark_build.transfer.remote import Remote


@group()
@shared
def remotes(_options: Options) -> None:
    """Share built wheels with other machines: `build` and `all` take from a remote store what it has.

    A remote store is a folder, sftp://, s3://, or http(s):// to read only. What a trusted signer pushed under
    the same build key is fetched, verified and audited in place of a build.
    """


@remotes.command()
@click.argument("name")
@click.argument("url")
@click.option("--sign", "key", type=KEY, metavar="KEY", help="Sign what is pushed with this ssh key.")
@click.option("--push", is_flag=True, help="Push what is built here after each publication.")
@click.option(
    "--trust",
    "signers",
    multiple=True,
    metavar="[SIGNER=]KEY.pub",
    help="Trust who pushes there, as `wheelhouse trust add SIGNER KEY.pub` does (default of SIGNER: NAME).",
)
@shared
def add(
    options: Options, name: str, url: str, key: Path | None, signers: tuple[str, ...], *, push: bool
) -> None:
    """Use the remote store at URL, or in a folder, under NAME."""
    from spark_build.transfer import remote
    from spark_build.wheelhouse import trust

    wheelhouse = options.home().wheelhouse
    trusted = [(signer or name, Path(file)) for signer, _, file in (text.rpartition("=") for text in signers)]
    for signer, file in trusted:  # before anything is written
        trust.read_signer(wheelhouse, signer, file)
    made = remote.add(wheelhouse, name, url, push=push, key=key)
    for signer, file in trusted:
        trust.add(wheelhouse, signer, file)
    _print(options, [made])
    if not options.json and not trust.signers(wheelhouse):
        click.echo(
            typeable(
                Hint("nobody is trusted yet, nothing is taken: ", ours("wheelhouse trust add NAME KEY.pub"))
            ),
            err=True,
        )


@remotes.command("list")
@shared
def list_(options: Options) -> None:
    """Show the remote stores, in the order in which they are asked."""
    from spark_build.transfer.remote import configured

    _print(options, list(configured(options.home().wheelhouse)))


@remotes.command()
@click.argument("name")
@shared
def remove(options: Options, name: str) -> None:
    """Forget a remote store. What is in it stays there, and so does what was fetched from it."""
    from spark_build.transfer import remote

    wheelhouse = options.home().wheelhouse
    remote.remove(wheelhouse, name)
    _print(options, list(remote.configured(wheelhouse)))


@remotes.command()
@click.argument("name")
@shared
def push(options: Options, name: str) -> None:
    """Push what was built here and is in the current generation. What is there already is left alone."""
    from spark_build.transfer.remote import Remotes, named

    home, found = options.home(), current(options)
    pushed = Remotes(home).push(named(home.wheelhouse, name), found)
    if options.json:
        rows = [{"name": one.name, "version": one.version, "filename": one.filename} for one in pushed]
        render.print_json({"remote": name, "pushed": rows})
    else:
        print(f"pushed to {name}: {len(pushed)}")


@remotes.command()
@click.argument("name")
@click.option("--older-than", type=AGE, default="7d", show_default=True, help="Remove nothing younger.")
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
@shared
def gc(options: Options, name: str, older_than: float, *, dry_run: bool) -> None:
    """Remove what no generation here names any more.

    Takes only what was pushed with this remote store's key. Machines that share a key take away each other's
    wheels: give each its own.
    """
    from spark_build.transfer.remote import Remotes, named

    home = options.home()
    store = named(home.wheelhouse, name)
    taken = Remotes(home).collect(store, older_than=older_than, dry_run=dry_run)
    freed = sum(one.size for one in taken)
    if options.json:
        rows = [{"name": one.name, "size": one.size} for one in taken]
        render.print_json({"remote": name, "taken": rows, "freed": freed, "dry_run": dry_run})
        return
    for one in taken if options.verbosity >= 0 else ():
        print(one.name)
    print(f"{'would free' if dry_run else 'freed'} {format_size(freed)} (entries: {len(taken)})")


def _print(options: Options, found: list[Remote]) -> None:
    rows: list[dict[str, Any]] = [
        {"name": one.name, "url": one.url, "push": one.push, "sign": one.key or None} for one in found
    ]
    if options.json:
        render.print_json({"remotes": rows})
    elif options.verbosity < 0:
        print(f"remote stores: {len(rows)}")
    elif not rows:
        print(typeable(Hint("there is no remote store: ", ours("remotes add NAME URL"))))
    else:
        shown = [[one.name, "yes" if one.push else "", one.key, one.url] for one in found]
        render.print_table(["NAME", "PUSH", "SIGN", "URL"], shown)
