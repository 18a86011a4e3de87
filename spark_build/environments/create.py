"""Create, update and check virtual environments from one generation; prove that they hold nothing else."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from spark_build import venv
from spark_build.environments import installed, interpreters
from spark_build.environments.installed import (
    EnvironmentChange,
    Installed,
    InstallerName,
    Replacement,
    State,
    changed_files,
    files_of,
    merged,
    prove_origin,
)
from spark_build.environments.interpreters import Interpreter
from spark_build.errors import Finding, Hint, HostError, Place, StoreError, UsageError, ours, rm
from spark_build.files import locked, remove_tree, sha256_of
from spark_build.reporting import reporter
from spark_build.text import format_size
from spark_build.wheelhouse import store
from spark_build.wheelhouse.generations import Generation
from spark_build.wheelhouse.resolve import needed
from spark_build.wheels.model import StoredWheel

LOCK = f"{venv.SCRATCH}lock"
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
            hint=Hint(f"there are {have}; with the third-party wheels too: ", ours("all")),
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
    interpreters.refuse_other_abi(view, python, folder)
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
                hint=ours("env update", folder),
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


@dataclass(frozen=True, kw_only=True, slots=True)
class UpdateOptions:
    """Options of an update: more packages, another installer, comparing every file."""

    more: Sequence[str] = ()
    installer: str = "auto"
    dry_run: bool = False
    repair: bool = False  # look at every file, not only at what is installed


def update(
    folder: Path, generation: Generation, wish: UpdateOptions, *, kept: Path
) -> tuple[State, EnvironmentChange]:
    """Bring the environment to the generation; returns the state before, and the changes.

    kept: the store. What the user added stays. UsageError for an environment that was not made here.
    """
    installed.read(folder)
    folder = folder.resolve()
    if wish.dry_run:
        state, change, _ = _plan(folder, generation, wish, kept)
        return state, change
    with locked(folder / LOCK, purpose="env update"):
        _tidy(folder)
        state, change, wanted = _plan(folder, generation, wish, kept)
        asked = replace(state, asked=installed.merged(state.asked, wish.more))
        if not change.empty:
            _apply(folder, generation, asked, change, installed.choose_installer(wish.installer))
        if not change.empty or _is_news(asked, state, generation, change):
            finished(folder, asked, generation, wanted)
        return state, change


def _tidy(folder: Path) -> None:
    """Remove temporary files that killed processes left beside the packages."""
    for path in folder.glob(f"{BEGUN}*"):
        if path.is_dir():
            remove_tree(path)
        elif path.name != LOCK:
            path.unlink()


def _is_news(asked: State, state: State, generation: Generation, change: EnvironmentChange) -> bool:
    """Return whether the state file changes although no package does."""
    now = (view_of(generation), generation.number)
    return asked != state or bool(change.released) or now != (state.view, state.generation)


def _plan(
    folder: Path, generation: Generation, wish: UpdateOptions, kept: Path
) -> tuple[State, EnvironmentChange, tuple[StoredWheel, ...]]:
    state = installed.read(folder)
    if state.unfinished == "create":
        again = ours("env create", folder, *state.asked)
        raise HostError(f"{folder} was never finished: its `env create` was interrupted", hint=again)
    python = _interpreter(folder)
    interpreters.refuse_other_abi(view_of(generation), python, "ANOTHER-DIR")
    names = installed.merged(still_there(state.asked, generation.wheels), wish.more)
    wanted = choose(generation, names, everything=state.everything, markers=python.markers)
    interpreters.refuse_unfit(wanted, python)
    present = {name: (one.version, one.record) for name, one in installed.present(folder).items()}
    damaged = _damaged(folder, state, kept) if wish.repair else ()
    return state, environment_change(state, wanted, present, damaged=damaged), wanted


def _interpreter(folder: Path) -> Interpreter:
    found = interpreters.inspect(venv.python_of(folder))
    if found is None:
        raise HostError(
            f"the interpreter of {folder} does not run any more",
            where=str(venv.python_of(folder)),
            hint=Hint(rm(folder), ", then make it again"),
        )
    return found


def _damaged(folder: Path, state: State, kept: Path) -> set[str]:
    reporter().message("looking at every file")
    return {fault.place.subject for fault in check(folder, state, kept)}


def _apply(
    folder: Path,
    generation: Generation,
    state: State,
    change: EnvironmentChange,
    tool: InstallerName,
) -> None:
    wheels = change.installs
    reporter().message(f"putting in {described(wheels)} with {tool}" if wheels else "removing packages")
    _refuse_damaged(generation, wheels)
    files = {path for wheel in wheels for path in files_of(folder, generation.folder / wheel.filename)}
    leftovers = {folder / name for name in state.files}
    names = {wheel.name for wheel in wheels} | {one.name for one in change.removed}
    known = {one.name for one in state.packages}
    begun = replace(
        state,
        packages=(*state.packages, *(row_of(wheel) for wheel in wheels if wheel.name not in known)),
        unfinished="update",
        doubtful=tuple(sorted(names | set(state.doubtful))),
        files=tuple(sorted(str(path.relative_to(folder)) for path in files | leftovers)),
    )
    installed.write(folder, begun)
    installed.remove(folder, names, leftovers)
    installed.fill(tool, folder, generation.folder, wheels)
    prove_origin(folder, generation, wheels)


def _refuse_damaged(generation: Generation, wheels: Sequence[StoredWheel]) -> None:
    """Raise StoreError, before anything is removed, for a wheel that differs from the generation's record."""
    for wheel in wheels:
        _sound(generation.folder / wheel.filename, wheel.sha256)


def _sound(path: Path, sha256: str) -> None:
    try:
        sound = sha256_of(path) == sha256
    except OSError:
        sound = False
    if not sound:
        raise StoreError(
            f"{path.name} is damaged or missing in the wheelhouse",
            where=str(path),
            hint=ours("wheelhouse check --repair"),
        )


def check(folder: Path, state: State, kept: Path) -> Iterator[Finding]:
    """Compare every file of ours with the store's wheels; returns the differences."""
    present = installed.present(folder)
    for one in state.packages:
        if one.name in state.doubtful:
            yield _fault(one, "an update was interrupted, or is running")
        elif one.name not in present:
            yield _fault(one, "missing")
        elif present[one.name].record != one.record:
            yield _fault(one, f"replaced by hand ({present[one.name].version})")
        else:
            yield from _faults_in(folder, one, store.entry_folder(kept, one.key) / one.filename)


def _fault(package: Installed, message: str, file: str = "") -> Finding:
    """Return a difference from what was installed; `file` is "" for the whole package."""
    return Finding("installed", "error", message, Place(file, subject=package.name))


def _faults_in(folder: Path, package: Installed, wheel: Path) -> Iterator[Finding]:
    try:
        _sound(wheel, package.sha256)
    except StoreError as error:
        yield _fault(package, f"cannot be compared: {error.message}")
        return
    for name, path in changed_files(folder, wheel):
        yield _fault(package, "changed" if path.exists() else "missing", name)


def others(folder: Path, state: State) -> tuple[str, ...]:
    """Return name and version of the packages that the user added."""
    ours = {one.name for one in state.packages} | set(state.bundled)
    found = installed.present(folder).values()
    return tuple(f"{one.name} {one.version}" for one in found if one.name not in ours)


def environment_change(
    state: State,
    wanted: Sequence[StoredWheel],
    present: Mapping[str, tuple[str, str]],
    *,
    damaged: Collection[str] = (),
) -> EnvironmentChange:
    """Return the changes that lead from `state` to `wanted`.

    present: name -> (version, sha256 of RECORD) of everything installed; damaged: names whose files were
    found to differ. What an interrupted command was at is put in anew.
    """
    ours = {one.name: one for one in state.packages}
    names = {wheel.name for wheel in wanted}
    added, replaced, same = [], [], []
    for wheel in wanted:
        why = _why(wheel, state, ours.get(wheel.name), present, damaged)
        if not why:
            same.append(wheel.name)
        elif wheel.name in present:
            replaced.append(Replacement(before=present[wheel.name][0], wheel=wheel, why=why))
        else:
            added.append(wheel)
    gone = [one for one in state.packages if one.name not in names]
    left = [one for one in gone if one.name in state.doubtful or _is_ours(one, present)]
    return EnvironmentChange(
        added=tuple(added),
        replaced=tuple(replaced),
        removed=tuple(left),
        released=tuple(one for one in gone if one not in left and one.name in present),
        same=tuple(same),
        others=tuple(
            f"{name} {version}"
            for name, (version, _) in sorted(present.items())
            if name not in names and name not in state.bundled and name not in {one.name for one in left}
        ),
    )


def _why(
    wheel: StoredWheel,
    state: State,
    installed: Installed | None,
    present: Mapping[str, tuple[str, str]],
    damaged: Collection[str],
) -> str:
    """Return the reason why a wheel has to be installed; "" when it is installed."""
    if wheel.name in state.doubtful:
        return "an interrupted command was at it"
    if wheel.name not in present:
        return "it is not there"
    if installed is None:
        return "another one was there"
    if not _is_ours(installed, present):
        return "it was replaced by hand"
    if installed.sha256 != wheel.sha256:
        return "other bytes" if installed.version == wheel.version else "another version"
    return "its files were changed" if wheel.name in damaged else ""


def _is_ours(installed: Installed, present: Mapping[str, tuple[str, str]]) -> bool:
    return installed.name in present and present[installed.name][1] == installed.record


def still_there(asked: Sequence[str], wheels: Sequence[StoredWheel]) -> tuple[str, ...]:
    """Return those of the requests for which there is a wheel."""
    have = {wheel.name for wheel in wheels}
    return tuple(text for text in asked if canonicalize_name(Requirement(text).name) in have)
