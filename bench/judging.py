"""What the check scripts share: run checks one by one, leave a JSON document. Needs nothing but Python."""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import importlib
import os
import shutil
import sys
import sysconfig
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from surroundings import write_report

PREFIX = Path(sys.prefix).resolve()
BASE = Path(sys.base_prefix).resolve()
FATAL = "FATAL: kernel"  # what a CUDA kernel prints that was not built for this GPU, and writes nothing
KNOWN = {
    "fmha_cutlass": "memory-efficient attention built for 12.1 writes nothing before torch 2.12.1 "
    "(pytorch#176243): build with patch torch/0001-attention-sm121, or for 12.0",
}


class Skip(Exception):  # noqa: N818 - says what happens, it is no error
    """The check does not apply here."""


def inside(path: str | Path, *folders: Path) -> bool:
    real = Path(path).resolve()
    return any(real.is_relative_to(folder) for folder in folders)


def kernels_inside(name: str) -> str:
    """Check that an extension of torch is this environment's, and has CUDA code where torch has."""
    import torch

    package = importlib.import_module(name)
    assert inside(package.__file__ or "", PREFIX), f"{package.__file__} is not inside {PREFIX}"
    cuda = getattr(torch.ops, name).cuda_version()
    assert torch.version.cuda is None or cuda > 0, f"without CUDA code beside torch for {torch.version.cuda}"
    return f"{name.replace('_', '-')} {package.__version__}, CUDA {cuda}, from inside the environment"


@contextlib.contextmanager
def listening(said: Path | None = None) -> Iterator[list[str]]:
    """Lines with FATAL that C code and kernels print meanwhile; all output is passed on afterwards.

    After a crash or a hang it lies in file `said`.
    """
    found: list[str] = []
    sys.stdout.flush()
    kept = os.dup(1)
    with tempfile.TemporaryFile() if said is None else said.open("w+b") as file:
        os.dup2(file.fileno(), 1)
        try:
            yield found
        finally:
            settle()
            sys.stdout.flush()
            ctypes.CDLL(None).fflush(None)  # kernels print through the C library
            os.dup2(kept, 1)
            os.close(kept)
            file.seek(0)
            text = file.read()
            with open(1, "wb", closefd=False) as out:
                out.write(text)
            if said is not None:
                said.unlink()
            lines = text.decode(errors="replace").splitlines()
            found += [line.strip() for line in lines if FATAL in line]


def settle() -> None:
    """Wait for the GPU: what it prints and what fails on it belongs to the check that started it."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        with contextlib.suppress(RuntimeError):  # said by the check itself, or by the next one
            torch.cuda.synchronize()


def need_compiler(variable: str, *names: str) -> str:
    """The compiler that `variable` or PATH names; Skip without one, or without Python's headers."""
    found = next(filter(None, map(shutil.which, filter(None, (os.environ.get(variable), *names)))), None)
    if found is None:
        raise Skip(f"no compiler here: none of {', '.join(names)} (apt install g++)")
    header = Path(sysconfig.get_path("include"), "Python.h")
    if not header.exists():
        raise Skip(f"no {header} here (apt install python3-dev)")
    return found


def judge(name: str, check: Callable[[], str], said: Path | None = None) -> dict[str, str]:
    with listening(said) as fatal:
        verdict = attempt(check)
    if fatal:
        why = next((each for mark, each in KNOWN.items() if mark in fatal[0]), "built for another GPU")
        verdict = {"status": "fail", "evidence": f"{len(fatal)} times: {fatal[0][:200]}: {why}"}
    return {"name": name, **verdict}


def attempt(check: Callable[[], str]) -> dict[str, str]:
    try:
        return {"status": "ok", "evidence": check()}
    except Skip as reason:
        return {"status": "skipped", "evidence": str(reason)}
    except Exception as error:  # whatever a check does is what it says
        traceback.print_exc()
        said = f"{type(error).__name__}: {error}" if type(error) is not AssertionError else str(error)
        return {"status": "fail", "evidence": said[:500]}


def run(checks: Mapping[str, Callable[[], str]]) -> int:
    """Run all checks; the document goes to --out, after each of them: a crash loses no other's result."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    out: Path = parser.parse_args().out
    done: list[dict[str, str]] = []
    for name, check in checks.items():
        unfinished = {"name": name, "status": "fail", "evidence": "the process ended during this check"}
        write_report(out, {"checks": [*done, unfinished]})
        done.append(judge(name, check, out.with_name(f"{out.name}.said")))
        print(f"{name}: {done[-1]['status']}: {done[-1]['evidence']}", flush=True)
    write_report(out, {"checks": done})
    return 0
