"""Are Fourier transforms and decompositions right? By sums of sines, and by what they give back."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from judging import run
from numerics import Errors, normal, short, usual_device


def check_fourier() -> str:
    """FFTs of lengths of all kinds against sums of sines, and complex products."""
    errors = Errors()
    for length, double in itertools.product((8, 120, 127, 1024), (False, True)):
        kind = torch.complex128 if double else torch.complex64
        signal = torch.complex(normal(3, length), normal(3, length, seed=1)).to(kind)
        turns = torch.outer(torch.arange(length), torch.arange(length)) % length
        waves = torch.polar(torch.ones(length, length).double(), -2 * math.pi / length * turns.double())
        exact = signal.to(torch.complex128) @ waves
        mine, name = signal.to(usual_device()), f"{length} {short(kind)}"
        errors.compare(f"fft {name}", torch.fft.fft(mine), exact)
        errors.compare(
            f"ifft of fft {name}", torch.fft.ifft(torch.fft.fft(mine)), signal.to(torch.complex128)
        )
        real = signal.real.contiguous()
        half = (real.to(torch.complex128) @ waves)[:, : length // 2 + 1]
        errors.compare(f"rfft {name}", torch.fft.rfft(real.to(usual_device())), half)
        errors.compare(
            f"complex product {name}",
            mine @ mine.mH,
            signal.to(torch.complex128) @ signal.mH.to(torch.complex128),
        )
        errors.compare(
            f"modulus {name}", mine.abs(), (signal.real.double() ** 2 + signal.imag.double() ** 2).sqrt()
        )
    image = normal(2, 30, 17).to(usual_device())
    errors.compare("irfft2 of rfft2", torch.fft.irfft2(torch.fft.rfft2(image), s=(30, 17)), image)
    return str(errors)


def linear_libraries() -> list[str]:
    """Ways in which this build does linear algebra on its usual device.

    Not MAGMA, which PyTorch gives up and nobody gets unasked: asked for it, public 2.11.0+cu130 returns
    V in the place of its adjoint from `svd` (seen on an H200).
    """
    return ["lapack" if usual_device() == "cpu" else "cusolver"]


def check_decompositions() -> str:
    """Solve, decompose, invert: what comes out must give back what went in."""
    errors, libraries = Errors(), linear_libraries()
    for library in libraries:
        if usual_device() == "cuda":
            torch.backends.cuda.preferred_linalg_library(library)
        for size, dtype in itertools.product(
            (1, 5, 64, 131), (torch.float32, torch.float64, torch.complex64)
        ):
            decompose(errors, library, size, dtype)
    if usual_device() == "cuda":
        torch.backends.cuda.preferred_linalg_library("default")
    return f"{' and '.join(libraries)}: {errors}"


def decompose(errors: Errors, library: str, size: int, dtype: Any) -> None:
    wide = torch.complex128 if dtype.is_complex else torch.float64
    whole = normal(2, size, size, dtype=wide) + 2 * math.sqrt(size) * torch.eye(size, dtype=wide)
    right = normal(2, size, 3, seed=1, dtype=wide)
    given, name = whole.to(dtype), f"{library} {size} {short(dtype)}"
    matrix, sides = given.to(usual_device()), right.to(dtype).to(usual_device())
    one = torch.eye(size, dtype=wide).expand(2, size, size)
    exact, sided = given.to(wide), right.to(dtype).to(wide)

    def back(what: str, result: Any, wanted: Any) -> None:
        errors.compare(f"{what} {name}", result, wanted, kind=dtype)

    def wider(tensor: Any) -> Any:
        return tensor.to("cpu", wide)

    back("solve", exact @ wider(torch.linalg.solve(matrix, sides)), sided)
    back("inv", exact @ wider(torch.linalg.inv(matrix)), one)
    left, values, rightly = (wider(each) for each in torch.linalg.svd(matrix))
    back("svd", left * values.real.unsqueeze(-2) @ rightly, exact)
    back("svd: U", left.mH @ left, one)
    back("svd: V", rightly @ rightly.mH, one)
    turn, upper = (wider(each) for each in torch.linalg.qr(matrix))
    back("qr", turn @ upper, exact)
    back("qr: Q", turn.mH @ turn, one)
    hermitian = matrix @ matrix.mH
    lower = wider(torch.linalg.cholesky(hermitian))
    back("cholesky", lower @ lower.mH, wider(hermitian))
    roots, vectors = (wider(each) for each in torch.linalg.eigh(hermitian))
    back("eigh: vectors", vectors.mH @ vectors, one)
    back("eigh", vectors * roots.real.unsqueeze(-2) @ vectors.mH, wider(hermitian))
    factors = pivots(exact)
    sign, logarithm = torch.linalg.slogdet(matrix)
    back("slogdet: sign", wider(sign), torch.sgn(factors).prod(-1))
    back("slogdet", logarithm, factors.abs().log().sum(-1))


def pivots(matrices: Any) -> Any:
    """What elimination divides by: their product is the determinant. For matrices with a strong diagonal."""
    left, found = matrices.clone(), []
    for at in range(left.shape[-1]):
        row = left[:, at, at:].clone()
        found.append(row[:, 0])
        left[:, at + 1 :, at:] -= left[:, at + 1 :, at, None] / row[:, :1, None] * row[:, None]
    return torch.stack(found, -1)


CHECKS: dict[str, Callable[[], str]] = {
    "fourier": check_fourier,
    "decompositions": check_decompositions,
}


if __name__ == "__main__":
    sys.exit(run(CHECKS))
