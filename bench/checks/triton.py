"""Does Triton compile and run a kernel for this GPU, and for which target?"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
# This file has the name of a package, for which its folder must not stand in.
sys.path[:] = [str(HERE.parent), *(entry for entry in sys.path if Path(entry or ".").resolve() != HERE)]

from judging import PREFIX, Skip, inside, run  # noqa: E402 - the path comes first

try:
    import triton
    import triton.language as tl

    @triton.jit
    def add(x, y, out, n, BLOCK: tl.constexpr):  # noqa: N803 - Triton's convention
        offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        mask = offsets < n
        tl.store(out + offsets, tl.load(x + offsets, mask=mask) + tl.load(y + offsets, mask=mask), mask=mask)

except ImportError:  # reported by check_import
    triton = None


def check_import() -> str:
    import triton

    assert inside(triton.__file__, PREFIX), f"{triton.__file__} is not inside {PREFIX}"
    return f"triton {triton.__version__} from inside the environment"


def check_kernel() -> str:
    try:
        import torch
    except ImportError as error:
        raise Skip("needs torch") from error
    if not torch.cuda.is_available():
        raise Skip("no GPU here")
    x, y = (torch.rand(1000, device="cuda") for _ in range(2))
    out = torch.full_like(x, float("nan"))
    compiled = add[(4,)](x, y, out, 1000, BLOCK=256)
    assert torch.equal(out, x + y), "a sum of two vectors is wrong"
    ptx = str(compiled.asm["ptx"])
    target = next(line.split()[1] for line in ptx.splitlines() if line.startswith(".target"))
    return f"compiled for {target.rstrip(',')} and right"


if __name__ == "__main__":
    sys.exit(run({"import": check_import, "kernel": check_kernel}))
