"""What counts as a configure step, and which lines show that something is compiled."""

from __future__ import annotations

import pytest

from spark_build.build.diagnosis import judged
from spark_build.build.stages.compilation import COMPILING, STEP, is_configure_step
from spark_build.events import JudgedFeature
from spark_build.recipes.model import Feature


@pytest.mark.parametrize(
    ("command", "is_step"),
    [
        ("cmake -S . -B build -G Ninja", True),
        ("/env/bin/python /env/bin/cmake ..", True),
        ("/bin/sh ./configure --prefix=/usr", True),
        ("/bin/sh ./config.status", True),
        ("cmake --build build", False),
        ("/env/bin/cmake -E env X=1 ninja", False),
        ("cmake -DX=1 -P script.cmake", False),
        ("python setup.py configure", False),
        ("ninja -C build", False),
        ("", False),
    ],
)
def test_configure_steps(command: str, is_step: bool) -> None:
    assert is_configure_step(command.split()) is is_step


@pytest.mark.parametrize(
    ("line", "step", "compiling"),
    [
        ("[1/5710] Building CXX object lib/a.o", True, False),
        ("[  3%] Building CXX object lib/a.o", True, False),
        ("    [1/2] Building C object CMakeFiles/cmTC_1.dir/a.c.o", False, False),
        ("gcc -pthread -Wall -fPIC -I/x -c native.c -o build/native.o", False, True),
        ("/usr/bin/x86_64-linux-gnu-g++-14 -O2 -c src/a.cpp -o a.o", False, True),
        ("/cuda/bin/nvcc -O3 -c a.cu -o a.o", False, True),
        ("gcc (Debian 14.2.0) 14.2.0", False, False),
        ("cc: error: unrecognized option -c", False, False),
        ("checking for gcc -c flags... yes", False, False),
    ],
)
def test_lines_of_a_build(line: str, step: bool, compiling: bool) -> None:
    assert (STEP.match(line) is not None, COMPILING.match(line) is not None) == (step, compiling)


def test_features_as_the_last_command_that_names_them_printed_them() -> None:
    wanted = [
        Feature(name="USE_A"),
        Feature(name="USE_B"),
        Feature(name="BLAS", value="open"),
        Feature(name="X"),
    ]
    log = ["$ cmake 1", "USE_A : OFF", "BLAS : mkl", "$ cmake 2", "USE_A : 1", "USE_B : OFF", "$ ninja"]
    assert judged(wanted, log) == (
        JudgedFeature(name="USE_A", expected="ON", found="1"),
        JudgedFeature(name="USE_B", expected="ON", found="OFF", missing=True),
        JudgedFeature(name="BLAS", expected="open", found="mkl", missing=True),
        JudgedFeature(name="X", expected="ON", found=None),
    )
