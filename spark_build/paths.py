"""Folders: recipes to read, state to write."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from spark_build.errors import UsageError
from spark_build.text import digest

PACKAGE = Path(__file__).resolve().parent


@dataclass(frozen=True, kw_only=True, slots=True)
class Home:
    """The folders of one invocation; `data` in order of preference (first file of a name wins)."""

    data: tuple[Path, ...]  # each holds recipes/, patches/, bench/ (or some of them)
    wheelhouse: Path
    build: Path
    sources: Path
    runs: Path
    cache: Path  # of the compilers; may be deleted at any time
    is_strange: bool = False  # nobody named the folder of the recipes: it may be anybody's

    @property
    def store(self) -> Path:
        """Content-addressed, immutable results."""
        return self.wheelhouse / "store"

    @property
    def views(self) -> Path:
        """One folder for each target, train and python ABI."""
        return self.wheelhouse / "views"

    def find(self, relative: str) -> Path | None:
        """Return the file or folder of that name in the first data folder that has it."""
        return next((base / relative for base in self.data if (base / relative).exists()), None)


def _shipped() -> Path:
    """Return the data of this installation: the checkout if there is one, else the package's copy."""
    checkout = PACKAGE.parent
    if (checkout / "recipes" / "trains").is_dir():
        return checkout
    return PACKAGE / "data"


def path_given(text: str, where: str) -> Path:
    """Return the path that a user names, `~` resolved. Raises UsageError where that is nobody's home."""
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise UsageError(f"{text}: there is no such user here", where=where, hint="give a path") from error


def folder_given(text: str, where: str) -> Path:
    """Return the folder that a user names, like `path_given`. Raises UsageError for what can be none."""
    if any(ord(letter) < ord(" ") or letter == "\x7f" for letter in text):
        raise UsageError(f"{text!r} has control characters", where=where, hint="give a folder to work in")
    return path_given(text, where)


def locate(root: str | None, *, is_named: bool = True) -> Home:
    """Return the folders to use.

    State: --root, else SPARK_BUILD_HOME, else a working directory with recipes/, else the checkout, else
    the user's data and cache folders. Recipes in --root or in the working directory come first.
    is_named: whether the user said `root`, and not the working directory's own file.
    """
    shipped, working = _shipped(), Path.cwd()
    at_work = root is None and any((working / "recipes").glob("*.toml"))
    if at_work:
        refuse_planted(working / "recipes")
    if root is not None:
        state = folder_given(root, "--root").absolute()
        if not next(place for place in (state, *state.parents) if place.exists()).is_dir():
            raise UsageError(f"--root {root} is not a folder", hint="give a folder to work in")
    elif os.environ.get("SPARK_BUILD_HOME"):
        state = folder_given(os.environ["SPARK_BUILD_HOME"], "SPARK_BUILD_HOME").absolute()
        at_work = at_work and state != working  # else the user named it
    elif at_work:
        state = working
    elif shipped != PACKAGE / "data":
        state = shipped
    else:
        return _user_home(shipped)
    return _rooted(state, shipped, working if at_work else None, is_named=is_named)


def refuse_planted(path: Path) -> None:
    """Raise UsageError for another user's file in a folder like /tmp, where everybody may put some."""
    around, owner = path.parent.stat().st_mode, path.lstat().st_uid  # a link is its maker's
    if around & stat.S_ISVTX and around & stat.S_IWOTH and owner not in (0, os.geteuid()):
        raise UsageError(f"{path} is another user's", hint="cd to a folder of your own")


def _rooted(state: Path, shipped: Path, working: Path | None, *, is_named: bool = True) -> Home:
    is_strange = not is_named or working not in (None, shipped)
    # What a stranger's recipes compile is nothing that recipes of the same name elsewhere take.
    cache = state / "cache"
    if is_strange and working not in (None, state):
        cache /= digest(str(working))[:16]
    first = () if working is None else (working,)
    own = [base for base in dict.fromkeys((*first, state)) if (base / "recipes").is_dir() and base != shipped]
    return Home(
        data=(*own, shipped),
        wheelhouse=state / "wheelhouse",
        build=state / "build",
        sources=state / "sources",
        runs=state / "runs",
        cache=cache,
        is_strange=is_strange,
    )


def _user_home(shipped: Path) -> Home:
    import platformdirs

    data = Path(platformdirs.user_data_dir("spark-build"))
    cache = Path(platformdirs.user_cache_dir("spark-build"))
    return Home(
        data=(shipped,),
        wheelhouse=data / "wheelhouse",
        build=cache / "build",
        sources=cache / "sources",
        runs=data / "runs",
        cache=cache / "cache",
    )
