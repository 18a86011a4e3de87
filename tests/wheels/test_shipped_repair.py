"""The shipped recipes' [repair] on libraries that need what torch's really need."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from spark_build import venv
from spark_build.recipes.evaluation import for_target
from spark_build.recipes.loader import load
from spark_build.recipes.model import Target
from spark_build.wheels.audit import audit
from spark_build.wheels.reader import read_facts
from spark_build.wheels.repair import repair, system_libraries
from spark_build.wheels.rules import AuditExpectation
from tests.conftest import ROOT
from tests.helpers.wheels import PURE, compiled, write_wheel

MACHINE = os.uname().machine
CPU = Target(name="cpu", summary="", platform=f"linux-{MACHINE}", python="cp311")
OPENMP = """
#include <omp.h>
int threads(void) { int all = 0;
#pragma omp parallel reduction(+ : all)
    all += omp_get_num_threads() > 0;
    return all; }
"""


@pytest.mark.parametrize("name", ["torch", "torchaudio"])
def test_openmp_stays_outside_under_its_own_name(name: str, tmp_path: Path) -> None:
    """libtorch_cpu.so and libtorchaudio.so need libgomp.so.1; one process should have one of them."""
    library = compiled(tmp_path / "c", "lib.so", OPENMP, "-fopenmp").read_bytes()
    wheel = write_wheel(tmp_path, {**PURE, "demo/lib.so": library}, tag=f"py3-none-linux_{MACHINE}")
    shipped = load([ROOT])
    recipe = for_target(shipped.recipes[name], CPU, shipped.trains["2.13"])
    done = repair(wheel, tmp_path / "out", repair=recipe.repair, build_tag="1", epoch=1_750_000_000)
    facts = read_facts(done.path)
    assert [one.path for one in facts.libraries] == ["demo/lib.so"]
    assert "libgomp.so.1" in facts.libraries[0].needed
    found = audit(
        facts,
        AuditExpectation(
            distribution="demo",
            version="1.0",
            platform=f"linux-{MACHINE}",
            python="",
            provided=recipe.repair.exclude,
            system_libraries=system_libraries(f"linux-{MACHINE}"),
        ),
    )
    assert [one.message for one in found if one.rule == "libraries"] == []


def test_torchvision_takes_its_image_libraries_along_and_leaves_cudas(tmp_path: Path) -> None:
    folder = tmp_path / "c"
    for name in ("libpng16.so.16", "libnvjpeg.so.13"):
        function = f"int {name[3:6]}(void) {{ return 1; }}"
        compiled(folder, name, function, f"-Wl,-soname,{name}")
    flags = ("-Wl,--no-as-needed", f"-L{folder}", "-l:libpng16.so.16", "-l:libnvjpeg.so.13")
    library = compiled(folder, "image.so", "int image(void) { return 1; }", *flags).read_bytes()
    wheel = write_wheel(tmp_path, {**PURE, "demo/image.so": library}, tag=f"py3-none-linux_{MACHINE}")
    env = venv.clean_environment({"LD_LIBRARY_PATH": str(folder)})
    asked = load([ROOT]).recipes["torchvision"].repair
    done = repair(wheel, tmp_path / "out", repair=asked, build_tag="1", epoch=1_750_000_000, env=env)
    found = [one.path for one in read_facts(done.path).libraries if one.path.startswith("demo.libs/")]
    assert [path.partition("-")[0] for path in found] == ["demo.libs/libpng16"]
