"""Does Triton compile for this GPU, with which assembler, for which target, and do its kernels compute?"""

from __future__ import annotations

import atexit
import inspect
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
# This file has the name of a package, for which its folder must not stand in.
sys.path[:] = [str(HERE.parent), *(entry for entry in sys.path if Path(entry or ".").resolve() != HERE)]
CACHE = tempfile.mkdtemp(prefix="triton-")  # nothing that another run compiled
atexit.register(shutil.rmtree, CACHE, ignore_errors=True)
os.environ["TRITON_CACHE_DIR"] = CACHE

from judging import PREFIX, Skip, inside, need_compiler, run  # noqa: E402 - the path comes first

try:
    import triton
    import triton.language as tl

    @triton.jit
    def add(x, y, out, n, BLOCK: tl.constexpr):  # noqa: N803 - Triton's convention
        offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        mask = offsets < n
        tl.store(out + offsets, tl.load(x + offsets, mask=mask) + tl.load(y + offsets, mask=mask), mask=mask)

    @triton.jit
    def dot(a, b, out, M, N, K, BLOCK: tl.constexpr, DEPTH: tl.constexpr):  # noqa: N803
        rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[:, None]
        columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :]
        total = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
        for start in range(0, K, DEPTH):
            across = start + tl.arange(0, DEPTH)[None, :]
            down = start + tl.arange(0, DEPTH)[:, None]
            left = tl.load(a + rows * K + across, mask=(rows < M) & (across < K), other=0.0)
            right = tl.load(b + down * N + columns, mask=(down < K) & (columns < N), other=0.0)
            total = tl.dot(left, right, total)
        tl.store(out + rows * N + columns, total.to(tl.float16), mask=(rows < M) & (columns < N))

except ImportError:  # reported by check_import
    triton = None

EM_CUDA = 190
CUBIN_ABI_7 = 7  # ptxas up to CUDA 12.9 for what is older than sm_100
GB10, HOPPER = 121, 90


def target_of(cubin: bytes) -> str:
    """The architecture that machine code is for, from its ELF header: sm_121a."""
    kind, flags = struct.unpack_from("<H", cubin, 18)[0], struct.unpack_from("<I", cubin, 48)[0]
    assert cubin[:4] == b"\x7fELF", "the cubin is no ELF file"
    assert kind == EM_CUDA, f"the cubin is an ELF file for machine {kind}"
    if cubin[8] <= CUBIN_ABI_7:
        number, accelerated = flags & 0xFF, flags & 0x800
    else:
        number, accelerated = flags >> 8 & 0xFF, flags & 0x8
    # ptxas 13.0 sets no such flag; its note has the command line.
    told = re.search(rb"-arch (sm_%d[af]?)\b" % number, cubin)
    return told[1].decode() if told else f"sm_{number}{'a' if accelerated else ''}"


def name_of(arch: int) -> str:
    """What Triton compiles for."""
    return f"sm_{arch}{'a' if arch >= HOPPER else ''}"


def assembler(arch: int) -> tuple[str, str, set[str]]:
    """The ptxas that Triton takes for this architecture: path, version, targets it knows."""
    from triton.backends.nvidia import compiler

    choose: Any = compiler.get_ptxas
    tool = choose(arch) if inspect.signature(choose).parameters else choose()
    path = tool[0] if isinstance(tool, tuple) else tool.path
    version, known = (
        subprocess.run([path, option], capture_output=True, text=True, check=True).stdout
        for option in ("--version", "--help")
    )
    found = re.search(r"V(\d[\d.]*)", version)
    return path, found[1] if found else "?", set(re.findall(r"sm_\d+[af]?", known))


def described(path: str, version: str) -> str:
    """Where a ptxas comes from."""
    variables = [
        name for name in ("TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH") if os.environ.get(name) == path
    ]
    origin = (
        variables[0]
        if variables
        else "bundled"
        if inside(path, Path(triton.__file__).parent)
        else "from outside"
    )
    return f"ptxas {version} ({origin}: {path})"


def need_assembler(arch: int) -> str:
    """In words; AssertionError when it does not know this architecture."""
    path, version, known = assembler(arch)
    said, variable = described(path, version), "TRITON_PTXAS_PATH"
    if path.endswith("ptxas-blackwell"):
        variable = "TRITON_PTXAS_BLACKWELL_PATH"
    assert name_of(arch) in known, (
        f"{said} does not know {name_of(arch)}: no kernel can be compiled; "
        f"set {variable} to CUDA 13's ptxas (/usr/local/cuda/bin/ptxas), or take Triton 3.6 or newer"
    )
    return said


def this_gpu() -> int:
    """Its architecture as a number, 121 for 12.1; Skip without a GPU or without torch."""
    try:
        import torch
    except ImportError as error:
        raise Skip("needs torch") from error
    if not torch.cuda.is_available():
        raise Skip("no GPU here")
    major, minor = torch.cuda.get_device_capability()
    return 10 * major + minor


def made(compiled: Any, arch: int) -> str:
    """What a kernel was compiled by and for; AssertionError for another target than this one."""
    ptx = str(compiled.asm["ptx"])
    version = re.search(r"^\.version (\S+)", ptx, re.MULTILINE)
    target = target_of(bytes(compiled.asm["cubin"]))
    assert target == name_of(arch), f"the cubin is for {target}, not for {name_of(arch)}"
    path, number, _ = assembler(arch)
    return f"cubin for {target}, PTX {version[1] if version else '?'}, {described(path, number)}"


def check_import() -> str:
    import triton

    assert inside(triton.__file__, PREFIX), f"{triton.__file__} is not inside {PREFIX}"
    return f"triton {triton.__version__} from inside the environment"


def check_assembler() -> str:
    """Triton always compiles for sm_<capability>a, and needs a ptxas that knows it."""
    return need_assembler(this_gpu())


def check_cross() -> str:
    """Compile for a GB10 and for Hopper: that needs no GPU."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature = {"x": "*fp32", "y": "*fp32", "out": "*fp32", "n": "i32", "BLOCK": "constexpr"}
    found, lacking = [], []
    for arch in (HOPPER, GB10):
        try:
            need_assembler(arch)
        except AssertionError as error:
            lacking.append(str(error))
            continue
        source = ASTSource(fn=add, signature=signature, constexprs={"BLOCK": 256})
        found.append(made(triton.compile(source, target=GPUTarget("cuda", arch, 32)), arch))
    if lacking:
        raise Skip("; ".join([*lacking, *found]))
    return "; ".join(found)


def check_add() -> str:
    arch = this_gpu()
    need_assembler(arch)
    need_compiler("CC", "gcc", "clang")
    import torch

    x, y = (torch.rand(1000, device="cuda") for _ in range(2))
    out = torch.full_like(x, float("nan"))
    compiled = add[(4,)](x, y, out, 1000, BLOCK=256)
    assert torch.equal(out, x + y), "a sum of two vectors is wrong"
    return f"right to the bit; {made(compiled, arch)}"


def check_dot() -> str:
    """A product by tensor cores, of sizes that fit no tile."""
    arch = this_gpu()
    need_assembler(arch)
    need_compiler("CC", "gcc", "clang")
    import torch
    from numerics import Errors

    errors, m, n, k = Errors(), 130, 200, 333
    a, b = (torch.randn(shape, device="cuda", dtype=torch.float16) for shape in ((m, k), (k, n)))
    out = torch.full((m, n), float("nan"), device="cuda", dtype=torch.float16)
    compiled = dot[(triton.cdiv(m, 64), triton.cdiv(n, 64))](a, b, out, m, n, k, BLOCK=64, DEPTH=32)
    errors.compare(f"{m}x{k}x{n}", out, a.cpu().double() @ b.cpu().double())
    assert "mma" in str(compiled.asm["ptx"]), "tl.dot was compiled without tensor cores"
    return f"{errors}; {made(compiled, arch)}"


CHECKS: dict[str, Callable[[], str]] = {
    "import": check_import,
    "assembler": check_assembler,
    "cross": check_cross,
    "add": check_add,
    "dot": check_dot,
}


if __name__ == "__main__":
    sys.exit(run(CHECKS))
