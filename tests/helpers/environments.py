"""A wheelhouse and an environment that follows it, for tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from spark_build.environments import installed
from spark_build.environments.create import CreateOptions, UpdateOptions, check, create, update
from spark_build.environments.installed import EnvironmentChange, State
from spark_build.paths import Home
from spark_build.wheelhouse.generations import Generation
from spark_build.wheels.model import StoredWheel
from tests.environments.test_create import INSTALLED, run_in
from tests.helpers.wheelhouse import make_wheel, publish, put_built


@dataclass(frozen=True, kw_only=True)
class House:
    """A wheelhouse with one view, and an environment made from it."""

    root: Path
    home: Home
    env: Path

    def put(self, name: str, version: str, *, build: str = "", body: str = "", **more: object) -> StoredWheel:
        """A built wheel; the same version with another `build` has other bytes."""
        requires = more.get("requires", ())
        assert isinstance(requires, Sequence)
        module = name.replace("-", "_")
        text = f"VERSION = {version!r}\nBUILD = {build!r}\n{body}"
        extra = more.get("files", {})
        assert isinstance(extra, dict)
        files = {f"{module}/__init__.py": text.encode(), **extra}
        wheel = make_wheel(
            self.root / "dist",
            name,
            version,
            build=build,
            requires=[str(one) for one in requires],
            files=files,
        )
        return put_built(self.home.store, wheel, note=build)

    def publish(self, *wheels: StoredWheel) -> Generation:
        return publish(self.home, wheels)

    def create(self, generation: Generation, *names: str, with_pip: bool = False) -> State:
        wish = CreateOptions(names=names, everything=not names, with_pip=with_pip)
        return create(generation, self.env, wish)

    def update(
        self,
        generation: Generation,
        *names: str,
        dry_run: bool = False,
        repair: bool = False,
        installer: str = "auto",
    ) -> EnvironmentChange:
        wish = UpdateOptions(more=names, dry_run=dry_run, repair=repair, installer=installer)
        return update(self.env, generation, wish, kept=self.home.store)[1]

    def faults(self) -> list[tuple[str, str, str]]:
        found = check(self.env, installed.read(self.env), self.home.store)
        return [(one.place.subject, one.place.file, one.message) for one in found]

    def installed(self) -> str:
        return run_in(self.env, INSTALLED)

    def two_generations(self) -> tuple[Generation, Generation]:
        """They differ in one package's bytes, one's version, and each has one that the other has not."""
        files = {f"kept/part{number}.py": b"VALUE = 1\n" for number in range(5)}
        kept = self.put("kept", "1.0", files=files)
        tool = {"odd-1.0.data/scripts/odd-tool": b"#!python\nprint('works')\n", "odd/only_here.py": b""}
        first = [
            self.put("demo", "1.0", build="1_aa"),
            self.put("more", "1.0"),
            self.put("odd", "1.0", files=tool),
        ]
        second = [
            self.put("demo", "1.0", build="2_bb"),
            self.put("more", "2.0"),
            self.put("late", "1.0"),
        ]
        return self.publish(kept, *first), self.publish(kept, *second)
