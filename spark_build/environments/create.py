"""Create virtual environments from one generation, and prove that they hold nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote

from spark_build import venv
from spark_build.environments import installed, interpreters
from spark_build.environments.installed import Installed, State, merged, prove_origin
from spark_build.environments.interpreters import Interpreter
from spark_build.errors import StoreError, UsageError
from spark_build.files import locked, remove_tree
from spark_build.reporting import reporter
from spark_build.text import format_size
from spark_build.wheelhouse.generations import Generation
from spark_build.wheelhouse.resolve import needed
from spark_build.wheels.model import StoredWheel

LOCK = f"{installed.SCRATCH}lock"
BEGUN = ".spark-build"  # begins the names of what is written beside the packages


@dataclass(frozen=True, kw_only=True, slots=True)
class CreateOptions:
    """Options of `env create`; `everything`: install all that was built, and `names` too."""

    names: Sequence[str]
    everything: bool
    with_pip: bool
    python: Interpreter | None = None  # None: the one that runs this
    installer: str = "auto"


def view_of(generation: Generation) -> str:
    """Return the name of the view that a generation belongs to."""
    return generation.folder.parent.parent.name


def choose(
    generation: Generation,
    names: Sequence[str],
    *,
    everything: bool | None = None,
    markers: Mapping[str, str] | None = None,
) -> tuple[StoredWheel, ...]:
    """Return the wheels of this generation that `names` need under these markers.

    everything: all that is here for its own sake, too; so it is by default without names.
    """
    from packaging.markers import default_environment
    from packaging.requirements import InvalidRequirement

    try:
        wanted = everything or (everything is None and not names)
        own = [wheel.name for wheel in generation.own() if wanted]
        default = {key: str(value) for key, value in default_environment().items()}
        chosen, missing = needed([*own, *names], generation.wheels, markers or default)
    except InvalidRequirement as error:
        raise UsageError(f"no package: {error}") from error
    if missing:
        have = ", ".join(sorted({wheel.name for wheel in generation.wheels}))
        raise StoreError(
            f"the wheelhouse has no {', '.join(missing)}",
            where=str(generation.folder),
            hint=f"there are {have}; `spark-build all` publishes the third-party wheels too",
        )
    return chosen


def install(
    generation: Generation, folder: Path, names: Sequence[str], *, with_pip: bool, installer: str = "auto"
) -> tuple[str, ...]:
    """Create an environment for the interpreter that runs this; returns "name==version" of its packages."""
    wish = CreateOptions(names=names, everything=not names, with_pip=with_pip, installer=installer)
    state = create(generation, folder, wish)
    return tuple(f"{package.name}=={package.version}" for package in state.packages)


def create(generation: Generation, folder: Path, wish: CreateOptions) -> State:
    """Create an environment in `folder` from the generation: offline, with hashes, its origin proven.

    A folder with anything in it is refused, unless an earlier `create` was killed in it; after a failure
    nothing is left.
    """
    _refuse_taken(folder)
    python = wish.python or interpreters.own()
    view = view_of(generation)
    interpreters.refuse_other_abi(view, python, f"spark-build env create {quote(str(folder))}")
    chosen = choose(generation, wish.names, everything=wish.everything, markers=python.markers)
    interpreters.refuse_unfit(chosen, python)
    tool = installed.choose_installer(wish.installer)
    state = State(
        view=view,
        generation=generation.number,
        python=python.abi,
        asked=merged((), wish.names),
        everything=wish.everything,
        packages=(),
        unfinished="create",
    )
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / LOCK, purpose="env create"):
        _refuse_taken(folder)  # somebody else may have been faster
        try:
            _clear(folder)
            installed.write(folder, state)
            reporter().message(f"installing {described(chosen)} with {tool}")
            bundled = _make(folder, python, {wheel.name for wheel in chosen}, with_pip=wish.with_pip)
            installed.fill(tool, folder, generation.folder, chosen)
            reporter().message("proving the origin of every file")
            prove_origin(folder, generation, chosen)
            state = finished(folder, replace(state, bundled=bundled), generation, chosen)
        except BaseException:
            remove_tree(folder)
            raise
    return state


def _refuse_taken(folder: Path) -> None:
    """Raise UsageError for a folder that holds anything but the rest of a killed `create`."""
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise UsageError(f"{folder} is no new or empty folder", hint="choose another, or remove it first")
    if folder.is_dir() and not installed.is_unfinished_creation(folder):
        if installed.exists(folder):
            raise UsageError(
                f"{folder} already is an environment of a wheelhouse",
                hint=f"spark-build env update {quote(str(folder))}",
            )
        if any(not path.name.startswith(BEGUN) for path in folder.iterdir()):
            raise UsageError(f"{folder} is no new or empty folder", hint="choose another, or remove it first")


def _clear(folder: Path) -> None:
    """Remove what a killed `create` left, its marker last."""
    left = [path for path in folder.iterdir() if path.name not in (LOCK, installed.NAME)]
    for path in left:
        path.unlink() if path.is_symlink() or not path.is_dir() else remove_tree(path)


def _make(folder: Path, python: Interpreter, ours: AbstractSet[str], *, with_pip: bool) -> tuple[str, ...]:
    """Make the environment without any of `ours`; returns the packages that the interpreter added."""
    venv.create(folder, python=python.base, clear=False)
    if not with_pip:
        return ()
    installed.add_pip(folder)
    bundled = tuple(installed.present(folder))
    installed.remove(folder, ours & set(bundled))
    return bundled


def finished(folder: Path, state: State, generation: Generation, wheels: Sequence[StoredWheel]) -> State:
    """Record that the environment now holds exactly these wheels of the generation."""
    present = installed.present(folder)
    done = replace(
        state,
        view=view_of(generation),
        generation=generation.number,
        packages=tuple(row_of(wheel, present[wheel.name].record) for wheel in wheels),
        unfinished="",
        doubtful=(),
        files=(),
    )
    installed.write(folder, done)
    return done


def row_of(wheel: StoredWheel, record: str = "") -> Installed:
    """Return a wheel as a package of an environment."""
    return Installed(
        name=wheel.name,
        version=wheel.version,
        filename=wheel.filename,
        sha256=wheel.sha256,
        key=wheel.key,
        record=record,
    )


def described(wheels: Sequence[StoredWheel]) -> str:
    """Return the number of wheels and their size as text."""
    total = format_size(sum(wheel.size for wheel in wheels))
    return f"{len(wheels)} package{'' if len(wheels) == 1 else 's'} ({total})"
