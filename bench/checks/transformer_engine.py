"""Does Transformer Engine compute its layers, forward and backward? Exact results: plain torch in FP64."""

from __future__ import annotations

import functools
import importlib.metadata
import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
# This file has the name of a package, for which its folder must not stand in.
sys.path[:] = [str(HERE.parent), *(entry for entry in sys.path if Path(entry or ".").resolve() != HERE)]

from judging import PREFIX, Skip, inside, run  # noqa: E402 - the path comes first

PACKAGES = ("transformer-engine", "transformer-engine-cu13", "transformer-engine-torch")
LOW = {"fp8": 0.1, "mxfp8": 0.1, "fp8-blocks": 0.1, "nvfp4": 0.35}  # error allowed, as a share of the norm
SHAPES = (
    (16, 64, 128),
    (3 * 17, 128, 96),
    (1, 1024, 64),
)  # rows, inputs, outputs; cuBLASLt wants multiples of 8


def engine() -> Any:
    """The package; Skip where it cannot be loaded because there is no driver."""
    import torch  # noqa: F401 - first, or a toolkit in /usr/local/cuda gives it a cuBLAS beside torch's

    try:
        import transformer_engine.pytorch as te
    except (ImportError, OSError) as error:
        if "libcuda.so.1" not in str(error):
            raise
        raise Skip(f"no driver here: {error}") from error
    return te


def need_gpu() -> Any:
    import torch

    if not torch.cuda.is_available():
        raise Skip("no GPU here")
    return engine()


def check_import() -> str:
    """The extension is the one that was built, and of the version of NVIDIA's two wheels."""
    engine()
    import transformer_engine_torch

    path = str(transformer_engine_torch.__file__)
    assert inside(path, PREFIX), f"{path} is not inside {PREFIX}"
    versions = {name: importlib.metadata.version(name) for name in PACKAGES}
    assert len(set(versions.values())) == 1, f"different versions: {versions}"
    return f"{Path(path).name}, all three packages {versions[PACKAGES[0]]}"


def check_libraries() -> str:
    """It meets the cuDNN and cuBLASLt that torch has loaded; needs no GPU."""
    engine()
    import torch
    import transformer_engine_torch

    mine, theirs = transformer_engine_torch.get_cudnn_version(), torch.backends.cudnn.version()
    assert mine == theirs, f"cuDNN {mine}, torch has {theirs}"
    lines = Path("/proc/self/maps").read_text().splitlines()
    for library in ("libcublasLt.so", "libcudart.so", "libcudnn.so"):
        found = {line.split()[-1] for line in lines if library in line}
        assert len(found) == 1, f"{library} is loaded from {sorted(found) or 'nowhere'}; import torch first"
    return f"cuDNN {mine} and cuBLASLt {transformer_engine_torch.get_cublasLt_version()}, each loaded once"


def exact_parameters(module: Any) -> dict[str, Any]:
    import torch

    named = module.named_parameters()
    return {name: one.detach().cpu().to(torch.float64).requires_grad_() for name, one in named}


def compare_module(
    errors: Any, name: str, module: Any, exact: Any, inputs: list[Any], *, tf32: float | None = 5e-3
) -> None:
    """Result, gradients of the inputs and of all parameters; `exact` takes the parameters by name first.

    tf32: error allowed in FP32, whose products are TF32's inside, whatever torch is told; None: no product.
    """
    import torch
    from numerics import leaves, normal, spoil

    weights = exact_parameters(module)
    wide, narrow = leaves(*inputs, dtype=torch.float64), leaves(*inputs, device="cuda")
    true = exact(weights, *wide)
    spoil(*narrow, *narrow)
    mine = module(*narrow)
    allowed = tf32 if inputs[0].dtype == torch.float32 else None
    direction = normal(*true.shape, seed=9).to(inputs[0].dtype)
    parameters = dict(module.named_parameters())
    spoil(*narrow, *narrow)
    found = torch.autograd.grad(mine, [*narrow, *parameters.values()], direction.cuda().view_as(mine))
    wanted = torch.autograd.grad(true, [*wide, *weights.values()], direction.double())
    errors.compare(f"{name}: result", mine.view_as(true), true, allowed=allowed)
    names = [f"input {at}" for at in range(len(inputs))] + list(parameters)
    for part, one, other in zip(names, found, wanted, strict=True):
        errors.compare(f"{name}: gradient of {part}", one, other, allowed=allowed)


def noisy(module: Any) -> Any:
    """All parameters random: the usual ones and zeroes hide what is left out."""
    import torch
    from numerics import normal

    with torch.no_grad():
        for at, one in enumerate(module.parameters()):
            one.copy_(normal(*one.shape, seed=at) / max(1, one.shape[-1]) ** (0.5 * (one.dim() > 1)))
    return module


def linear(weights: dict[str, Any], x: Any, prefix: str = "") -> Any:
    return x @ weights[f"{prefix}weight"].T + weights[f"{prefix}bias"]


def normed(weights: dict[str, Any], x: Any, prefix: str = "", *, kind: str = "LayerNorm") -> Any:
    import torch

    scale = weights[f"{prefix}weight"]
    if kind == "RMSNorm":
        return torch.nn.functional.rms_norm(x, scale.shape, scale, 1e-5)
    return torch.nn.functional.layer_norm(x, scale.shape, scale, weights[f"{prefix}bias"], 1e-5)


def each_case() -> Any:
    import torch

    return itertools.product((torch.float32, torch.float16, torch.bfloat16), SHAPES)


def check_linear() -> str:
    te = need_gpu()
    from numerics import Errors, normal, short

    errors = Errors()
    for kind, (rows, width, out) in each_case():
        module = noisy(te.Linear(width, out, params_dtype=kind, device="cuda"))
        name = f"{short(kind)} {rows}x{width} to {out}"
        compare_module(errors, name, module, linear, [normal(rows, width).to(kind)])
    return str(errors)


def check_norms() -> str:
    """LayerNorm and RMSNorm, alone and in one with a product."""
    te = need_gpu()
    from numerics import Errors, normal, short

    errors = Errors()
    for (kind, (rows, width, out)), norm in itertools.product(each_case(), ("LayerNorm", "RMSNorm")):
        name, inputs = f"{norm} {short(kind)} {rows}x{width}", [normal(rows, width).to(kind)]
        alone = noisy(getattr(te, norm)(width, eps=1e-5, dtype=kind, device="cuda"))
        compare_module(errors, name, alone, functools.partial(normed, kind=norm), inputs, tf32=None)
        both = te.LayerNormLinear(width, out, normalization=norm, params_dtype=kind, device="cuda")

        def exact(weights: Any, x: Any, norm: str = norm) -> Any:
            return linear(weights, normed(weights, x, "layer_norm_", kind=norm))

        compare_module(errors, f"{name}, product", noisy(both), exact, inputs)
    return str(errors)


def activations() -> dict[str, Callable[[Any], Any]]:
    from torch.nn import functional

    def gated(call: Any) -> Callable[[Any], Any]:
        return lambda x: call(x.chunk(2, -1)[0]) * x.chunk(2, -1)[1]

    smooth = functools.partial(functional.gelu, approximate="tanh")
    return {
        "gelu": smooth, "relu": functional.relu, "geglu": gated(smooth), "reglu": gated(functional.relu),
        "swiglu": gated(functional.silu), "srelu": lambda x: functional.relu(x).square(),
    }  # fmt: skip


def check_mlp() -> str:
    """Norm, product, activation and product in one, with six activations."""
    te = need_gpu()
    import torch
    from numerics import Errors, normal, short

    errors = Errors()
    for kind, (name, call) in itertools.product((torch.float32, torch.bfloat16), activations().items()):
        module = noisy(te.LayerNormMLP(128, 192, activation=name, params_dtype=kind, device="cuda"))
        if name in ("relu", "reglu"):  # far from the kink: a sign turned by rounding changes the gradient
            with torch.no_grad():
                module.fc1_bias.copy_(8 - 16 * (torch.arange(module.fc1_bias.numel()) % 2))

        def exact(weights: Any, x: Any, call: Any = call) -> Any:
            hidden = call(linear(weights, normed(weights, x, "layer_norm_"), "fc1_"))
            return linear(weights, hidden, "fc2_")

        compare_module(errors, f"{name} {short(kind)}", module, exact, [normal(51, 128).to(kind)])
    return str(errors)


def check_attention() -> str:
    """Causal and not, several query heads for one key, odd lengths; by whatever implementation is chosen."""
    te = need_gpu()
    import torch
    from attending import Case, exact
    from numerics import Errors, leaves, short

    errors = Errors()
    cases = (
        Case(128, 128, 64), Case(256, 256, 64, causal=True), Case(129, 391, 128),
        Case(257, 257, 128, causal=True, groups=2),
    )  # fmt: skip
    for case, kind in itertools.product(cases, (torch.float16, torch.bfloat16)):
        inputs, direction, wanted = exact(case, kind)
        module = te.DotProductAttention(
            case.heads, case.dim, num_gqa_groups=case.heads // case.groups, qkv_format="bshd",
            attn_mask_type="causal" if case.causal else "no_mask",
        )  # fmt: skip
        tensors = leaves(*inputs, device="cuda")
        rows = module(*(each.transpose(1, 2).contiguous() for each in tensors))
        mine = rows.unflatten(-1, (case.heads, case.dim)).transpose(1, 2)
        found = [mine, *torch.autograd.grad(mine, tensors, direction.cuda())]
        for part, one, true in zip(("result", "dQ", "dK", "dV"), found, wanted, strict=True):
            errors.compare(f"{short(kind)} {case}: {part}", one, true)
    return str(errors)


def check_rotary() -> str:
    """Rotary embedding in one kernel, both ways of pairing."""
    need_gpu()
    import torch
    from numerics import FLOATS, Errors, leaves, normal, short
    from transformer_engine.pytorch.attention.rope import RotaryPositionEmbedding, apply_rotary_pos_emb

    errors = Errors()
    for kind, interleaved in itertools.product(FLOATS, (False, True)):
        angles = RotaryPositionEmbedding(64, interleaved=interleaved)(77).cuda()
        given = normal(77, 2, 3, 96).to(kind)
        (wide,), (narrow,) = leaves(given, dtype=torch.float64), leaves(given, device="cuda")
        turned, kept = wide[..., :64], wide[..., 64:]
        if interleaved:
            other = torch.stack((-turned[..., 1::2], turned[..., ::2]), -1).flatten(-2)
        else:
            other = torch.cat((-turned[..., 32:], turned[..., :32]), -1)
        turns = angles.cpu().double()
        true = torch.cat((turned * turns.cos() + other * turns.sin(), kept), -1)
        mine = apply_rotary_pos_emb(narrow, angles, fused=True, interleaved=interleaved)
        direction = normal(*given.shape, seed=3).to(kind)
        name = f"{short(kind)}{', interleaved' if interleaved else ''}"
        errors.compare(f"{name}: result", mine, true)
        (slope,) = torch.autograd.grad(mine, narrow, direction.cuda())
        errors.compare(f"{name}: gradient", slope, torch.autograd.grad(true, wide, direction.double())[0])
    return str(errors)


def check_optimizer() -> str:
    """Adam and AdamW of all parameters in one launch."""
    te = need_gpu()
    import torch
    from numerics import Errors, leaves, normal

    errors = Errors()
    for decoupled, exact in ((True, torch.optim.AdamW), (False, torch.optim.Adam)):
        given = [normal(count, seed=count).float() for count in (1, 17, 70_001)]
        wide, narrow = leaves(*given, dtype=torch.float64), leaves(*given, device="cuda")
        settings = {"lr": 0.5, "weight_decay": 0.1}
        mine = te.optimizers.FusedAdam(narrow, adam_w_mode=decoupled, **settings)
        true = exact(wide, **settings)
        for step in range(3):
            for one, other in zip(narrow, wide, strict=True):
                slope = normal(*other.shape, seed=step).float()
                one.grad, other.grad = slope.cuda(), slope.double()
            mine.step()
            true.step()
        for one, other in zip(narrow, wide, strict=True):
            errors.compare(f"{exact.__name__} {len(other)}", one, other, allowed=1e-3)
    return str(errors)


def check_low(name: str) -> str:
    """A linear layer in 8 or 4 bits: as near to FP64 as that many bits come, forward and backward."""
    te = need_gpu()
    import torch
    from numerics import leaves, normal
    from transformer_engine.common import recipe as recipes

    asked, recipe = {
        "fp8": (te.is_fp8_available, recipes.Float8CurrentScaling),
        "mxfp8": (te.is_mxfp8_available, recipes.MXFP8BlockScaling),
        "fp8-blocks": (te.is_fp8_block_scaling_available, recipes.Float8BlockScaling),
        "nvfp4": (te.is_nvfp4_available, recipes.NVFP4BlockScaling),
    }[name]
    able, reason = asked(return_reason=True)
    if not able:
        raise Skip(reason)
    told = []
    for rows, width, out in ((128, 256, 128), (384, 1024, 512)):
        module = noisy(te.Linear(width, out, params_dtype=torch.bfloat16, device="cuda"))
        weights, given = exact_parameters(module), normal(rows, width).bfloat16()
        (wide,), (narrow,) = leaves(given, dtype=torch.float64), leaves(given, device="cuda")
        with te.autocast(enabled=True, recipe=recipe()):
            mine = module(narrow)
        direction = normal(rows, out, seed=5).bfloat16()
        mine.backward(direction.cuda())
        true = linear(weights, wide)
        slopes = torch.autograd.grad(true, [wide, weights["weight"]], direction.double())
        pairs = ((mine, true), (narrow.grad, slopes[0]), (module.weight.grad, slopes[1]))
        for part, (one, other) in zip(("result", "dInput", "dWeight"), pairs, strict=True):
            error = float((one.detach().cpu().double() - other).norm() / other.norm())
            assert error <= LOW[name], f"{rows}x{width}, {part}: error {error:.2g}, {LOW[name]} allowed"
            told.append(error)
    return f"{len(told)} results; largest error {max(told):.2g} of the norm ({LOW[name]} allowed)"


CHECKS: dict[str, Callable[[], str]] = {
    "import": check_import,
    "libraries": check_libraries,
    "linear": check_linear,
    "norms": check_norms,
    "mlp": check_mlp,
    "attention": check_attention,
    "rotary": check_rotary,
    "optimizer": check_optimizer,
    **{name: functools.partial(check_low, name) for name in LOW},
}


if __name__ == "__main__":
    sys.exit(run(CHECKS))
