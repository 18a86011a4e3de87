"""Support bundles and fixes."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import io
import json
import os
import platform
import sys
import tarfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from spark_build import __version__
from spark_build.build import sandbox
from spark_build.doctor.model import Facts
from spark_build.errors import Finding, HintStep, UsageError
from spark_build.files import open_made, write_atomically
from spark_build.journal import EVENTS
from spark_build.paths import Home
from spark_build.process import interactive
from spark_build.text import render_template, scrub, scrub_value

# Variables that change what we do; those of the user's other programs are none of our business.
PREFIXES = ("PIP_", "SPARK_BUILD_", "CUDA", "NVCC", "CCACHE_", "SCCACHE_", "LC_", "TORCH_", "MAX_JOBS")
NAMES = ("PATH", "LANG", "CC", "CXX", "CFLAGS", "CXXFLAGS", "LD_LIBRARY_PATH", "LIBRARY_PATH", "CPATH")
PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
LONGEST = 1 << 20  # bytes of one log: its end, where the failure is
LOGS = 3  # the newest


def refuse_bundle(path: Path) -> None:
    """Raise UsageError when no bundle can be written there; nothing is overwritten."""
    if path.exists() or path.is_symlink():
        raise UsageError(f"--bundle {path}: it exists already", hint="give another name")
    if not path.parent.is_dir():
        raise UsageError(f"--bundle {path}: there is no folder {path.parent}")


def write_support_bundle(
    path: Path, home: Home, facts: Facts, findings: Sequence[Mapping[str, object]]
) -> list[str]:
    """Write the tar, compressed when its name says so; returns the names of its files."""
    held = io.BytesIO()
    names = []
    packed = path.suffix in (".gz", ".tgz")
    with tarfile.open(fileobj=held, mode="w:gz" if packed else "w") as tar:
        for name, text in _parts(home, facts, findings):
            content = text.encode(errors="replace")
            member = tarfile.TarInfo(f"spark-build-bundle/{name}")
            member.size, member.mtime, member.mode = len(content), int(time.time()), 0o600
            tar.addfile(member, io.BytesIO(content))
            names.append(name)
    write_atomically(path, held.getvalue())
    return names


def _parts(home: Home, facts: Facts, findings: Sequence[Mapping[str, object]]) -> Iterator[tuple[str, str]]:
    yield "README.txt", render_template("support.txt")
    yield "findings.json", _json(findings)
    yield "facts.json", _json(dataclasses.asdict(facts))
    yield "versions.json", _json(_versions())
    yield "environment.json", _json({name: value for name, value in os.environ.items() if _concerns(name)})
    yield from _run(home)
    # Deeper ones are a build's own; without a sandbox it may have put anything in the place of ours.
    logs = _newest(
        [log for log in home.build.glob("*/*/build.log") if log.is_file() and not log.is_symlink()]
    )
    for log in logs[:LOGS]:
        yield f"logs/{log.parent.parent.name}-{log.parent.name}.log", _text(log)


def _run(home: Home) -> Iterator[tuple[str, str]]:
    """Yield the files of the newest run, and the newest crash report."""
    runs = _newest([path.parent for path in home.runs.glob(f"*/{EVENTS}")])
    for file in sorted(runs[0].rglob("*")) if runs else ():
        if (
            file.is_file()
            and not file.is_symlink()
            and file.suffix in (".jsonl", ".log", ".json", ".txt", "")
        ):
            yield f"run/{file.relative_to(runs[0])}", _text(file)
    for crash in _newest(list(home.runs.glob("crash-*.txt")))[:1]:
        yield crash.name, _text(crash)


def _newest(paths: Sequence[Path]) -> list[Path]:
    return sorted(paths, key=lambda path: path.stat().st_mtime, reverse=True)


def _text(path: Path) -> str:
    """Return the end of a file without secrets; JSON stays valid JSON."""
    with open_made(path) as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - LONGEST))
        text = file.read().decode(errors="replace")
    if size > LONGEST:
        text = text.partition("\n")[2]
    lines = text.splitlines()
    if path.suffix == ".jsonl":
        return "".join(f"{_line(line)}\n" for line in lines)
    return scrub(text, home=str(Path.home()))


def _line(line: str) -> str:
    try:
        return json.dumps(scrub_value(json.loads(line), home=str(Path.home())))
    except ValueError:
        return scrub(line, home=str(Path.home()))


def _json(value: object) -> str:
    return json.dumps(scrub_value(value, home=str(Path.home())), indent=1) + "\n"


def _versions() -> dict[str, object]:
    packages = {
        distribution.name: distribution.version for distribution in importlib.metadata.distributions()
    }
    return {
        "spark-build": __version__,
        "python": sys.version,
        "platform": platform.platform(),
        "packages": dict(sorted(packages.items())),
    }


def _concerns(name: str) -> bool:
    return name in NAMES or name.lower() in PROXIES or name.startswith(PREFIXES)


# Where we are root already and there is no sudo, as in a container.
AS_ROOT = 'command -v sudo >/dev/null || sudo() { "$@"; }; '


def safe_line(finding: Finding) -> str:
    """Return the command that fixes it and may be run with the user's consent; "" without one."""
    hint = finding.hint
    return hint.words[0] if isinstance(hint, HintStep) and hint.safe else ""


def remedies(findings: Iterable[Finding]) -> dict[str, list[Finding]]:
    """Return safe commands with the findings that each fixes; a command appears once."""
    found: dict[str, list[Finding]] = {}
    for finding in findings:
        if line := safe_line(finding):
            found.setdefault(line, []).append(finding)
    return found


def apply_fixes(
    findings: Iterable[Finding], agree: Callable[[str, list[Finding]], bool]
) -> list[tuple[str, int]]:
    """Run every remedy that `agree` accepts; returns the commands with their exit codes."""
    done = []
    for command, mended in remedies(findings).items():
        if not agree(command, mended):
            continue
        # What it prints is progress; stdout is for our result. sudo asks on the terminal.
        script = f"exec 1>&2; {AS_ROOT if os.geteuid() == 0 else ''}{command}"
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        sys.stdout.flush()
        done.append((command, interactive(["sh", "-c", script], cwd=Path.cwd(), env=environment)))
    sandbox.choose.cache_clear()  # what was installed may be what it was missing
    return done
