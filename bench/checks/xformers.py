"""Does xFormers compute attention and 2:4 sparsity, forward and backward? Exact: plain torch in FP64."""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
# This file has the name of a package, for which its folder must not stand in.
sys.path[:] = [str(HERE.parent), *(entry for entry in sys.path if Path(entry or ".").resolve() != HERE)]

from judging import PREFIX, Skip, inside, run  # noqa: E402 - the path comes first

# What it says of an implementation that does not take a problem, or that is for other GPUs.
REFUSED = ("No operator found", "does not support inputs", "Supported only on GPUs", "compute capability")
PARTS = ("result", "dQ", "dK", "dV")
COMPILED = ("sparse24_sparsify_both_ways", "sparse24_apply", "sparseNM_dense", "_sparse24_gemm")


def check_import() -> str:
    import torch
    import xformers
    from xformers import _cpp_lib

    assert inside(xformers.__file__, PREFIX), f"{xformers.__file__} is not inside {PREFIX}"
    built = _cpp_lib._build_metadata
    assert built is not None, "the extension was not loaded: xFormers would go on without it"
    missing = [name for name in COMPILED if not hasattr(torch.ops.xformers, name)]
    assert not missing, f"no operator {', '.join(missing)}"
    wanted = torch.__version__.partition("+")[0]
    assert built.torch_version.startswith(wanted), f"built for torch {built.torch_version}, here is {wanted}"
    return f"xformers {xformers.__version__} with its extension for torch {built.torch_version}"


def kernels() -> Any:
    """Operators of the extension."""
    import torch
    import xformers  # noqa: F401 - loads them

    return torch.ops.xformers


def newest_gpu() -> tuple[int, int]:
    """Up to which capability nothing is refused: 12.1 with the patch, which is for torch from 2.13 on."""
    import torch

    return (12, 1) if tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 13) else (9, 0)


def check_operators() -> str:
    """Attention has an implementation on each GPU, by their own lists; needs no GPU."""
    from xformers.ops import fmha

    told = []
    for module in (fmha.cutlass, fmha.flash):
        forward, backward = module.FwOp, module.BwOp
        assert forward.is_available(), f"{forward.NAME} is not there"
        assert backward.is_available(), f"{backward.NAME} is not there"
        told.append(forward.NAME)
    most = fmha.cutlass.FwOp.CUDA_MAXIMUM_COMPUTE_CAPABILITY
    assert most is None or most >= newest_gpu(), f"FP32 and tensor biases end at {most}, not {newest_gpu()}"
    return f"{' and '.join(told)}; {told[0]} up to {most}"


def need_gpu() -> None:
    import torch

    if not torch.cuda.is_available():
        raise Skip("no GPU here")


def check_attention(dim: int) -> str:
    """Causal and not, cross, one query, odd lengths, a bias; by what xFormers chooses."""
    need_gpu()
    import torch
    import xformers.ops as xops
    from attending import Case, bias, exact
    from numerics import FLOATS, Errors, leaves, short, spoil

    errors, refused, taken = Errors(), [], 0
    cases = (
        Case(128, 128, dim), Case(257, 257, dim, causal=True), Case(129, 391, dim), Case(1, 333, dim),
        Case(64, 128, dim, mask=True),
    )  # fmt: skip
    for case, kind in itertools.product(cases, FLOATS):
        inputs, direction, wanted = exact(case, kind)
        tensors = leaves(*inputs, device="cuda")
        given: Any = xops.LowerTriangularMask() if case.causal else None
        if case.mask:
            given = bias(case).to("cuda", kind).expand(case.batch, case.heads, -1, -1).contiguous()
        spoil(*tensors, *tensors)
        try:
            rows = xops.memory_efficient_attention(
                *(each.transpose(1, 2) for each in tensors), attn_bias=given
            )
        except NotImplementedError as error:
            if not any(mark in str(error) for mark in REFUSED):
                raise
            refused.append(f"{short(kind)} {case}")
            gpu = torch.cuda.get_device_capability()
            assert gpu > newest_gpu(), f"refused, though {gpu} is not beyond {newest_gpu()}: {refused[-1]}"
            continue
        mine = rows.transpose(1, 2)
        found = [mine, *torch.autograd.grad(mine, tensors, direction.cuda())]
        for part, one, true in zip(PARTS, found, wanted, strict=True):
            errors.compare(f"{short(kind)} {case}: {part}", one, true)
        taken += 1
    if not taken:
        raise Skip(f"refused: {refused[0]}")
    return f"{errors}; refused {len(refused)} of {taken + len(refused)} cases" + "".join(
        f"; {each}" for each in refused[:1]
    )


def check_packed() -> str:
    """Sequences of several lengths packed into one: each attends to itself alone."""
    need_gpu()
    import torch
    import xformers.ops as xops
    from attending import Case, exact
    from numerics import Errors, leaves, short

    errors, lengths = Errors(), (1, 64, 129, 300)
    for kind, causal in ((torch.float16, True), (torch.bfloat16, False)):
        parts = [exact(Case(length, length, 64, causal=causal, batch=1), kind) for length in lengths]
        mask = xops.fmha.attn_bias.BlockDiagonalMask.from_seqlens(list(lengths))
        joined = [torch.cat([part[0][which] for part in parts], dim=2) for which in range(3)]
        tensors = leaves(*joined, device="cuda")
        rows = xops.memory_efficient_attention(
            *(each.transpose(1, 2) for each in tensors), attn_bias=mask.make_causal() if causal else mask
        )
        mine, direction = rows.transpose(1, 2), torch.cat([part[1] for part in parts], dim=2).cuda()
        found = [mine, *torch.autograd.grad(mine, tensors, direction)]
        for at, (part, one) in enumerate(zip(PARTS, found, strict=True)):
            errors.compare(f"{short(kind)}: {part}", one, torch.cat([each[2][at] for each in parts], dim=2))
    return str(errors)


def check_layers() -> str:
    """SwiGLU, and the norm and rotary embedding in Triton, with the gradients that they have."""
    need_gpu()
    import torch
    import xformers.ops as xops
    from numerics import Errors, leaves, normal, short, spoil
    from torch.nn import functional
    from xformers.ops.rmsnorm import rms_norm

    errors = Errors()
    for kind, (rows, width) in itertools.product((torch.float16, torch.bfloat16), ((16, 128), (51, 384))):
        given = [normal(rows, width).to(kind)]
        given += [(normal(256, width, seed=seed) / width**0.5).to(kind) for seed in (1, 2)]
        given.append((normal(width, 256, seed=3) / 16).to(kind))
        wide, narrow = leaves(*given, dtype=torch.float64), leaves(*given, device="cuda")
        x, gate, up, down = wide
        true = (functional.silu(x @ gate.T) * (x @ up.T)) @ down.T
        spoil(*narrow, *narrow)
        x, gate, up, down = narrow
        mine = xops.swiglu(x, gate, None, up, None, down, None)
        direction = normal(*true.shape, seed=4).to(kind)
        slopes = torch.autograd.grad(true, wide, direction.double())
        errors.compare(f"SwiGLU {short(kind)} {rows}x{width}", mine, true)
        found = torch.autograd.grad(mine, narrow, direction.cuda())
        for part, one, other in zip(("x", "gate", "up", "down"), found, slopes, strict=True):
            errors.compare(f"SwiGLU {short(kind)} {rows}x{width}: gradient of {part}", one, other)
        scale = normal(width, seed=5).to(kind)
        normed = rms_norm(narrow[0].detach(), scale.cuda(), eps=1e-5)
        exact = functional.rms_norm(wide[0], (width,), scale.double(), 1e-5)
        errors.compare(f"RMSNorm {short(kind)} {rows}x{width}", normed, exact)
    return str(errors)


def check_packing() -> str:
    """A matrix of which 2 of 4 stay, packed by a mask on the CPU: what stays, and where it was."""
    import torch
    from numerics import normal

    for kind, (rows, width) in itertools.product((torch.float16, torch.bfloat16), ((32, 32), (96, 128))):
        dense = normal(rows, width, seed=width).to(kind)
        places = normal(rows, width // 4, 4, seed=1).argsort(-1)[..., :2].sort(-1).values
        mask = torch.zeros(rows, width // 4, 4, dtype=torch.bool).scatter(-1, places, True).flatten(1)
        code = (places[..., 0] + 4 * places[..., 1]).unflatten(-1, (-1, 4))
        wanted = (code << torch.tensor([0, 4, 8, 12])).sum(-1).to(torch.int16)
        meta = kernels()._sparse24_pack_mask(mask)
        assert torch.equal(meta, wanted), f"{int((meta != wanted).sum())} of {meta.numel()} places are wrong"
        order = kernels()._sparse24_reorder_meta(meta)
        packed = kernels()._sparse24_pack_tensor_according_to_mask(dense, order)
        exact = dense[mask].view(rows, width // 2)
        assert torch.equal(packed, exact), (
            f"{int((packed != exact).sum())} of {exact.numel()} numbers are wrong"
        )
    return "4 matrices packed on the CPU: exact"


def check_pruning() -> str:
    """Which 2 of 4 or of 8 stay: the largest, exactly; and in both directions of each tile of 4x4."""
    need_gpu()
    import torch
    from numerics import normal

    for (rows, width), many, name in itertools.product(
        ((64, 64), (192, 320)), (4, 8), ("largest", "largest_abs")
    ):
        dense = normal(rows, width, seed=many).bfloat16()
        groups = dense.view(rows, -1, many)
        best = (groups.abs() if name == "largest_abs" else groups).topk(2, -1).indices
        exact = torch.zeros_like(groups).scatter(-1, best, groups.gather(-1, best))
        found = kernels().sparseNM_dense(dense.cuda(), name, 2, many).cpu().view_as(groups)
        # Of equal ones either may stay: the order within a group does not count.
        sizes = (found.abs().sort(-1).values, exact.abs().sort(-1).values)
        assert torch.equal(*sizes), f"2 of {many}, {name}: {int((sizes[0] != sizes[1]).sum())} numbers differ"
        assert torch.equal(found[found != 0], groups[found != 0]), (
            f"2 of {many}: what stays is not what was there"
        )
    kept = []
    for kind, (rows, width) in itertools.product((torch.float16, torch.bfloat16), ((128, 128), (256, 512))):
        dense = normal(rows, width).abs().to(kind)  # it takes the largest, not the largest by amount
        mask = kernels().sparse24_largest_mask_2d(dense.cuda()).bool().cpu()
        tiles = mask.unflatten(0, (-1, 4)).unflatten(-1, (-1, 4)).transpose(1, 2)
        assert (tiles.sum(-1) <= 2).all(), "more than 2 of 4 in a row"
        assert (tiles.sum(-2) <= 2).all(), "more than 2 of 4 in a column"
        kept.append(float((dense * mask).double().square().sum() / dense.double().square().sum()))
        assert kept[-1] > 0.75, f"only {kept[-1]:.0%} of the energy is left: not the largest ones"
    return f"2 of 4 and of 8: exact; both ways at least {min(kept):.0%} of the energy stays"


def check_sparse_product() -> str:
    """Products with a matrix that is packed 2:4, and the gradient of the dense factor."""
    need_gpu()
    import torch
    from numerics import Errors, normal, short
    from xformers.ops import sp24

    errors = Errors()
    for kind, (rows, width) in itertools.product((torch.float16, torch.bfloat16), ((128, 128), (256, 512))):
        given, other = (normal(rows, width, seed=seed).to(kind).cuda().requires_grad_() for seed in (0, 1))
        try:
            packed = sp24.sparsify24(given, backend="cutlass")
            mine = packed @ other.T
        except (RuntimeError, NotImplementedError, AssertionError) as error:
            if not any(mark in str(error) for mark in REFUSED):
                raise
            raise Skip(str(error).splitlines()[0][:200]) from error
        dense = (packed.detach() @ torch.eye(width, device="cuda", dtype=kind)).double().cpu()
        exact = dense @ other.detach().double().cpu().T
        errors.compare(f"{short(kind)} {rows}x{width}", mine, exact)
        direction = normal(*exact.shape, seed=2).to(kind)
        (slope,) = torch.autograd.grad(mine, other, direction.cuda())
        errors.compare(f"{short(kind)} {rows}x{width}: gradient", slope, direction.double().T @ dense)
    return str(errors)


CHECKS: dict[str, Callable[[], str]] = {
    "import": check_import,
    "operators": check_operators,
    "head-64": functools.partial(check_attention, 64),
    "head-128": functools.partial(check_attention, 128),
    "packed": check_packed,
    "layers": check_layers,
    "packing": check_packing,
    "pruning": check_pruning,
    "sparse-product": check_sparse_product,
}


if __name__ == "__main__":
    sys.exit(run(CHECKS))
