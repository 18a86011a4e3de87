"""What `--arm` says: NAME=WHAT[,KEY=VALUE...]; WHAT is public, wheelhouse, container:IMAGE or a folder."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from spark_build.errors import UsageError

KNOWN = ("public", "wheelhouse")
CONTAINER = "container:"
FORM = "write NAME=WHAT[,KEY=VALUE...]; WHAT is public, wheelhouse, container:IMAGE or a folder"


@dataclass(frozen=True, kw_only=True, slots=True)
class ArmWish:
    """One arm as it was asked for; `threads` 0: what the run uses."""

    name: str
    what: str
    threads: int = 0
    env: dict[str, str] = field(default_factory=dict)

    @property
    def image(self) -> str:
        """The container's image; empty for anything else."""
        return self.what.removeprefix(CONTAINER) if self.what.startswith(CONTAINER) else ""


def parse_arm(text: str) -> ArmWish:
    """One arm; a name may be left out of `public` and `wheelhouse`. Raises UsageError."""
    first, *settings = text.split(",")
    name, equals, what = first.partition("=")
    what = what if equals else name
    if not name or not what or (not equals and what not in KNOWN):
        raise UsageError(f"--arm {text}: no arm", hint=FORM)
    if not re.fullmatch(r"[\w.+-]+", name):
        raise UsageError(f"--arm {text}: {name!r} is no name", hint="use letters, digits, . + - _")
    if what == CONTAINER:
        raise UsageError(f"--arm {text}: no image", hint=FORM)
    threads, env = 0, {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals or not re.fullmatch(r"[A-Za-z_]\w*", key):
            raise UsageError(f"--arm {text}: {setting!r} is no KEY=VALUE", hint=FORM)
        if key == "threads":
            if not value.isdecimal() or int(value) < 1:
                raise UsageError(f"--arm {text}: threads={value} is no number of threads")
            threads = int(value)
        else:
            env[key] = value
    return ArmWish(name=name, what=what, threads=threads, env=env)


def parse_arms(texts: Sequence[str]) -> tuple[ArmWish, ...]:
    """Arms in order: the first is the baseline. Raises UsageError for names that are said twice."""
    wishes = tuple(parse_arm(text) for text in texts)
    names = [wish.name for wish in wishes]
    if len(set(names)) != len(names):
        raise UsageError(f"two arms have one name: {', '.join(names)}", hint=FORM)
    return wishes
