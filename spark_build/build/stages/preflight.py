"""Take a stub wheel through repair, audit and import, before hours of compiling."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from fnmatch import fnmatchcase
from io import BytesIO
from pathlib import Path
from typing import Any

from spark_build import venv
from spark_build.build import environment, sandbox
from spark_build.build.context import Job, Outputs
from spark_build.errors import AuditError, StageError
from spark_build.files import remove_tree
from spark_build.probe import SYSTEM
from spark_build.process import Completed
from spark_build.process import run as run_command
from spark_build.recipes.model import Linked
from spark_build.wheels.model import WheelFacts
from spark_build.wheels.reader import read_facts
from spark_build.wheels.repair import findings_of, repair
from spark_build.wheels.rules import covers, required_on
from spark_build.wheels.writer import add, record_text

NAME = "preflight"
_MEND = "mend [repair] or [preflight] in recipes/{name}.toml; nothing was compiled yet"


def inputs(job: Job) -> Any:
    """Return the stub, its repair, and the tools and needs that it is linked with."""
    recipe = job.step.recipe
    return {"preflight": asdict(recipe.preflight), "repair": asdict(recipe.repair), "key": job.key}


def intact(_job: Job, _outputs: Outputs) -> bool:
    """Nothing of it is used later."""
    return True


def run(job: Job, earlier: Mapping[str, Outputs]) -> Outputs:
    """Link, repair, audit and import; raises AuditError or StageError where the real wheel would fail."""
    folder = job.work / NAME
    remove_tree(folder)
    for needed in (folder, job.work / "home", job.work / "tmp"):
        needed.mkdir(parents=True, exist_ok=True)
    libraries = {one.path: _linked(job, earlier, folder, one) for one in job.step.recipe.preflight.libraries}
    facts, wheel = _repaired(job, folder, write(job, folder / "dist", libraries))
    _imported(job, folder, facts, wheel)
    remove_tree(folder)
    return {
        "libraries": sorted(libraries),
        "needed": sorted({soname for one in facts.libraries for soname in one.needed}),
    }


def _linked(job: Job, earlier: Mapping[str, Outputs], folder: Path, one: Linked) -> Path:
    """Compile a library of the stub as the build would link it: in the sandbox, with the needs' folders."""
    name = one.path.rpartition("/")[2]
    source, made = folder / f"{name}.c", folder / name
    source.write_text("int spark_build_stub(void) { return 0; }\n")
    folders = environment.library_folders(job)
    # As CMAKE_INSTALL_RPATH_USE_LINK_PATH does; every library counts, used or not.
    flags = [flag for path in folders for flag in (f"-L{path}", f"-Wl,-rpath,{path}")]
    names = [f"-l{name}" for name in one.links]
    command = ["cc", "-shared", "-fPIC", "-o", str(made), str(source), f"-Wl,-soname,{name}"]
    command += ["-Wl,--no-as-needed", *flags, *names]
    own = environment.variables(job, environment.values(job, earlier, 1), int(earlier["patch"]["epoch"]))
    done = _sandboxed(job, command, folder, own, job.places)
    if done.returncode != 0:
        lines = [line for line in done.output.splitlines() if "cannot find" in line or "error" in line]
        said = job.unseen((lines or done.output.splitlines() or ["no output"])[0])
        raise StageError(
            f"preflight: {one.path} cannot be linked as {job.step.recipe.name} would link it: {said}",
            hint="install the library that is missing, or mend [preflight] in the recipe",
        )
    return made


def _sandboxed(
    job: Job, command: Sequence[str], folder: Path, env: Mapping[str, str], places: Mapping[Path, Path]
) -> Completed:
    """Run a command in the sandbox as a build does; places: folders of ours -> where it sees them as well."""
    words = environment.sandboxed(job, command, folder, env, placed=places, network=False)
    done = run_command(words, cwd=folder, log=job.log, pass_fds=job.keep)
    sandbox.refuse_unstarted(done)
    return done


def _repaired(job: Job, folder: Path, wheel: Path) -> tuple[WheelFacts, Path]:
    """Repair the stub as the wheel will be, and refuse what the audit would refuse."""
    step = job.step
    try:
        done = repair(
            wheel,
            folder / "out",
            repair=step.recipe.repair,
            build_tag="0_preflight",
            epoch=0,
            log=job.log,
            libraries=environment.library_folders(job),
        )
    except AuditError as error:
        error.message = f"preflight: {error.message}"
        raise
    facts = read_facts(done.path, own=[str(job.work)])
    found = findings_of(facts, step.recipe, step.evaluated.wheel_version, job.target)
    for one in found:
        job.log.write(f"preflight {one.severity} {one.rule}: {one.message}\n".encode())
    errors = [f"{one.rule}: {one.message}" for one in found if one.severity == "error"]
    if errors:
        raise AuditError(
            f"preflight: a wheel linked as {step.recipe.name} is could not be published: {'; '.join(errors)}",
            hint=_MEND.format(name=step.recipe.name),
        )
    return facts, done.path


def _imported(job: Job, folder: Path, facts: WheelFacts, wheel: Path) -> None:
    """Import the stub in a fresh environment that has the libraries of what it requires, and no others."""
    environment, package = folder / "env", job.step.recipe.preflight.package
    venv.create(environment, log=job.log)
    stub = venv.requirement_of(wheel)
    installed = venv.uv(environment, ["install", "--no-deps", "--no-build", stub], log=job.log)
    if installed.returncode != 0:
        raise StageError(f"preflight: the stub cannot be installed: {installed.output[-300:]}")
    (site,) = environment.glob("lib/python*/site-packages")
    _lay_libraries(job, facts, site)
    # In the sandbox: loading a library runs its code. The needs lie where no RPATH of the build leads.
    command = [str(venv.python_of(environment)), "-I", "-c", f"import {package}"]
    done = _sandboxed(job, command, folder, SYSTEM, {job.work: job.places[job.work]})
    if done.returncode != 0:
        said = (done.output.strip().splitlines() or ["no output"])[-1]
        raise AuditError(
            f"preflight: `import {package}` would fail in a fresh environment: {said}",
            hint=_MEND.format(name=job.step.recipe.name),
        )


def _lay_libraries(job: Job, facts: WheelFacts, site: Path) -> None:
    """Put the libraries of the required distributions where their wheels have them; the needs hold them."""
    required = required_on(facts, platform=job.target.platform, python=job.target.python)
    for one in job.step.recipe.repair.external:
        if not covers(required, one.distribution):
            continue
        place = site / one.folder
        place.mkdir(parents=True, exist_ok=True)
        for folder in environment.library_folders(job):
            for file in folder.iterdir():
                wanted = any(fnmatchcase(file.name, pattern) for pattern in one.libraries)
                if wanted and not (place / file.name).exists():
                    (place / file.name).symlink_to(file)


# Loads every library with all that it needs, as an import of the real package does.
_PACKAGE = """\
import ctypes, os, pathlib
site = pathlib.Path(__file__).parents[1]
for path in {paths!r}:
    ctypes.CDLL(str(site / path), os.RTLD_NOW)
"""


def write(job: Job, folder: Path, libraries: Mapping[str, Path]) -> Path:
    """Write the wheel into the folder; libraries: path in the wheel -> the file."""
    step, target = job.step, job.target
    name = re.sub(r"[-_.]+", "_", step.recipe.distribution).lower()
    version = step.evaluated.wheel_version
    tag = f"{target.python}-{target.python}-{target.platform.replace('-', '_')}"
    papers = f"{name}-{version}.dist-info"
    metadata = ("Metadata-Version: 2.1", f"Name: {step.recipe.distribution}", f"Version: {version}")
    marks = ("Wheel-Version: 1.0", "Generator: spark-build", "Root-Is-Purelib: false", f"Tag: {tag}")
    texts = {
        f"{step.recipe.preflight.package}/__init__.py": _PACKAGE.format(paths=list(libraries)),
        f"{papers}/METADATA": "".join(f"{line}\n" for line in metadata),
        f"{papers}/WHEEL": "".join(f"{line}\n" for line in marks),
    }
    contents = {path: text.encode() for path, text in texts.items()}
    contents |= {path: file.read_bytes() for path, file in libraries.items()}
    folder.mkdir(parents=True, exist_ok=True)
    wheel, record = folder / f"{name}-{version}-{tag}.whl", f"{papers}/RECORD"
    with zipfile.ZipFile(wheel, "w") as archive:
        rows = [
            add(archive, zipfile.ZipInfo(path), BytesIO(data), len(data)) for path, data in contents.items()
        ]
        archive.writestr(record, record_text([*rows, (record, "", "")]))
    return wheel
