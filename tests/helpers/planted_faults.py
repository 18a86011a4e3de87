"""Proof that each check can fail: plants a fault in torch for it, sees what it says, takes the fault out again.

Runs in an environment with torch, on a GPU or without one, as a program of its own:
python -I tests/helpers/planted_faults.py --out FILE [--also FOLDER WITH MORE PACKAGES]
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import importlib.util
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

try:
    import torch
except ImportError:
    torch = None  # the list of faults is read without it

BENCH = Path(__file__).resolve().parents[2] / "bench"
SCRIPTS = tuple(sorted(file.stem for file in (BENCH / "checks").glob("*.py")))
FATAL = (
    b"FATAL: kernel `fmha_cutlassF_f16_aligned_64x64_rf_sm80` is for sm80-sm100, but was built for sm121\n"
)
Wrap = Callable[[Any], Any]


class Fault(NamedTuple):
    """`wrong` makes something broken of what `place` (module:name) holds; `check` must fail."""

    check: str  # script.name
    place: str
    what: str
    wrong: Wrap


def first(result: Any) -> Any:
    return result if isinstance(result, torch.Tensor) else result[0]


def with_first(result: Any, changed: Any) -> Any:
    return changed if isinstance(result, torch.Tensor) else (changed, *tuple(result)[1:])


def one_off(sound: Any) -> Any:
    """One element of thousands is wrong; the gradients are right."""

    def wrong(*inputs: Any, **options: Any) -> Any:
        result = sound(*inputs, **options)
        delta = torch.zeros_like(first(result))
        delta[(-1,) * delta.dim()] = 1 + 2 * first(result).detach().abs().max()
        return with_first(result, first(result) + delta)

    return wrong


def unwritten(sound: Any) -> Any:
    """NaN in one element, as of memory that nothing was written to."""

    def wrong(*inputs: Any, **options: Any) -> Any:
        result = sound(*inputs, **options)
        spoiled = first(result).clone()
        spoiled[(0,) * spoiled.dim()] = float("nan")
        return with_first(result, spoiled)

    return wrong


def bent(sound: Any) -> Any:
    """Right results, wrong gradients."""

    def wrong(source: Any, *inputs: Any, **options: Any) -> Any:
        source = source.clone()
        if source.requires_grad:
            source.register_hook(lambda gradient: gradient * 1.5)
        return sound(source, *inputs, **options)

    return wrong


def only(condition: Callable[..., bool], fault: Wrap) -> Wrap:
    """The fault strikes only where `condition` of the arguments holds."""

    def planted(sound: Any) -> Any:
        wrong = fault(sound)
        return lambda *inputs, **options: (wrong if condition(*inputs) else sound)(*inputs, **options)

    return planted


def flushed(result: Any, below: float) -> Any:
    return torch.where(result.abs() < below, torch.zeros_like(result), result)


def shifted(found: Any) -> Any:
    """What they give back stays what it was."""
    values, vectors = found
    return values / 4, vectors * 2


def long_v(sound: Any) -> Any:
    def wrong(matrix: Any) -> Any:
        left, values, rightly = sound(matrix)
        return left, values / 4, rightly * 4

    return wrong


def counts_of_others(sound: Any) -> Any:
    def wrong(*inputs: Any, **options: Any) -> Any:
        kinds, counts = sound(*inputs, **options)
        return kinds, counts.roll(1)

    return wrong


def stale(_: Any) -> Any:
    """A generator's seed is ignored."""
    return lambda *shape, device=None, **_: torch.empty(*shape, device=device).uniform_()


def plain(query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False,
          enable_gqa: bool = False) -> Any:  # fmt: skip
    """Attention that works everywhere, in place of an implementation that is not here."""
    wide = [each.float() for each in (query, key, value)]
    if enable_gqa:
        wide[1:] = [each.repeat_interleave(query.shape[1] // key.shape[1], dim=1) for each in wide[1:]]
    scores = wide[0] @ wide[1].transpose(-1, -2) / query.shape[-1] ** 0.5
    if is_causal:
        scores = scores + torch.full_like(scores[0, 0], -torch.inf).triu(1)
    weights = torch.softmax(scores if attn_mask is None else scores + attn_mask.float(), -1)
    return (torch.nn.functional.dropout(weights, dropout_p) @ wide[2]).to(query.dtype)


def refused_kernel(_: Any) -> Any:
    """As memory-efficient attention built for 12.1: says so through C's printf, and writes nothing."""

    def wrong(*inputs: Any, **options: Any) -> Any:
        ctypes.CDLL(None).printf(FATAL)
        return plain(*inputs, **options) * float("nan")

    return wrong


def changed(change: Callable[[Any], Any]) -> Wrap:
    """The result is changed; `change` gets a copy of it."""
    return lambda sound: lambda *inputs, **options: change(sound(*inputs, **options).clone())


def refusing(words: str) -> Wrap:
    """FP32 is refused, in words that a check knows from sound packages."""

    def wrong(*_: Any, **__: Any) -> Any:
        raise NotImplementedError(words)

    def single(*inputs: Any) -> bool:
        return any(getattr(each, "dtype", None) == torch.float32 for each in inputs)

    return only(single, lambda _: wrong)


def of_others(found: Any) -> Any:
    """Each gets the neighbour of another."""
    found[-1] = found[-1].roll(1)
    return found


def strayed(walks: Any) -> Any:
    """The last steps go where nothing leads."""
    walks[:, -1] = (walks[:, -2] + 1) % 60
    return walks


def twice(chosen: Any) -> Any:
    chosen[-1] = chosen[0]
    return chosen


def other_places(sound: Any) -> Any:
    def wrong(*inputs: Any, **options: Any) -> Any:
        found, places = sound(*inputs, **options)
        return found, places.flip(1)

    return wrong


def other_values(sound: Any) -> Any:
    def wrong(*inputs: Any, **options: Any) -> Any:
        index, value = sound(*inputs, **options)
        return index, value * 1.5

    return wrong


def other_module(sound: Any) -> Any:
    """Another network than the one that was given is exported."""

    def wrong(module: Any, *inputs: Any, **options: Any) -> Any:
        with torch.no_grad():
            kept = module[3].bias.clone()
            module[3].bias += torch.linspace(-1, 1, len(kept))
            sound(module, *inputs, **options)
            module[3].bias.copy_(kept)

    return wrong


SDPA = "torch.nn.functional:scaled_dot_product_attention"
F = "torch.nn.functional:"
# What it tells is no matter of right and wrong; a library that is asked for its version alone.
NEVER = {"torch.storage", "cusparselt.version"}
PACKAGES = {"triton", "flash_attn", "torchvision", "torchaudio"}
PACKAGES |= {"torch_scatter", "torch_sparse", "torch_cluster", "causal_conv1d", "mamba_ssm"}
PACKAGES |= {"deepspeed", "gsplat", "transformer_engine", "xformers"}
APART = {"onnx", "cusparselt"}  # need no torch, and an environment of their own


def without_decay(sound: Any) -> Any:
    return lambda *inputs, **options: sound(*inputs, **{**options, "weight_decay": 0.0})


def slower(sound: Any) -> Any:
    return lambda *inputs, lr, **options: sound(*inputs, lr=0.98 * lr, **options)


def off(name: str, fault: Wrap) -> Wrap:
    """A function gives a compiled module of which one function is wrong."""

    def planted(sound: Any) -> Any:
        def wrong(*inputs: Any) -> Any:
            module = sound(*inputs)
            members = {each: getattr(module, each) for each in dir(module) if not each.startswith("__")}
            return SimpleNamespace(**{**members, name: fault(getattr(module, name))})

        return wrong

    return planted


def built_wrong(fault: Wrap) -> Wrap:
    """Objects of a class are wrong when they are called; all else is as it was."""

    def planted(sound: Any) -> Any:
        class Wrong(sound):  # type: ignore[misc]  # a class that is known at run time only
            def forward(self, *inputs: Any, **options: Any) -> Any:
                return fault(super().forward)(*inputs, **options)

        return Wrong

    return planted


def up_to_ampere(sound: Any) -> Any:
    forward = type("FwOp", (sound.FwOp,), {"CUDA_MAXIMUM_COMPUTE_CAPABILITY": (8, 0)})
    return SimpleNamespace(FwOp=forward, BwOp=sound.BwOp)


def negated(sound: Any) -> Any:
    return lambda *inputs: ~sound(*inputs)


def half(tensor: Any, *_: Any) -> bool:
    return bool(tensor.dtype == torch.float16)


FAULTS = (
    Fault("torch.import", "script:PREFIX", "another environment's", lambda _: Path("/nowhere")),
    Fault("torch.architectures", "torch._C:_cuda_getArchFlags", "no architecture", lambda _: lambda: ""),
    Fault("torch.libraries", "torch.backends.cudnn:is_available", "no cuDNN", lambda _: lambda: False),
    Fault("torch.matmul", "torch.Tensor:__matmul__", "one off in FP16", only(half, one_off)),
    Fault("torch.matmul", "torch:addmm", "NaN", unwritten),
    Fault("torch.attention", SDPA, "one off", one_off),
    Fault("attention.math", SDPA, "one off", one_off),
    Fault("attention.math", SDPA, "NaN", unwritten),
    Fault("attention.flash", SDPA, "one off in FP16", only(half, one_off)),
    Fault("attention.flash", SDPA, "gradients", bent),
    Fault("attention.flash", SDPA, "FATAL", refused_kernel),
    Fault("attention.efficient", SDPA, "FATAL", refused_kernel),
    Fault("attention.cudnn", SDPA, "zeros", lambda _: lambda *inputs, **options: 0 * plain(*inputs, **options)),
    Fault("attention.efficient-kernels", SDPA, "one kernel writes nothing",
          lambda _: only(lambda query, *_: query.shape[-1] == 96 and half(query), unwritten)(plain)),
    Fault("attention.efficient-kernels", SDPA, "dropout drops nothing",
          lambda _: lambda *inputs, dropout_p=0.0, **options: (1 + (dropout_p > 0)) * plain(*inputs, **options)),
    Fault("layers.convolution", F + "conv2d", "one off", one_off),
    Fault("layers.convolution", F + "conv2d", "gradients", bent),
    Fault("layers.convolution", F + "conv2d", "NaN, channels last only",
          only(lambda x, *_: x.is_contiguous(memory_format=torch.channels_last), unwritten)),
    Fault("layers.normalisation", F + "layer_norm", "one off", one_off),
    Fault("layers.normalisation", F + "rms_norm", "gradients", bent),
    Fault("layers.normalisation", F + "group_norm", "NaN", unwritten),
    Fault("layers.normalisation", F + "batch_norm", "one off in FP16", only(half, one_off)),
    Fault("layers.softmax", "torch:softmax", "one off", one_off),
    Fault("layers.softmax", F + "log_softmax", "gradients", bent),
    Fault("layers.softmax", F + "cross_entropy", "one off", one_off),
    Fault("layers.elementwise", "torch:erf", "one off", one_off),
    Fault("layers.elementwise", F + "gelu", "gradients", bent),
    Fault("layers.elementwise", "torch:exp", "small ones are zero", lambda sound: lambda x: flushed(sound(x), 1e-2)),
    Fault("layers.elementwise", "torch:sigmoid", "small ones are zero in FP16",
          only(half, lambda sound: lambda x: flushed(sound(x), 5e-3))),
    Fault("operators.reductions", "torch.Tensor:sum", "one off in FP16", only(half, one_off)),
    Fault("operators.reductions", "torch.Tensor:amax", "NaN in FP16", only(half, unwritten)),
    Fault("operators.indexing", "torch:scatter_add", "one off", one_off),
    Fault("operators.indexing", "torch:gather", "one off", one_off),
    Fault("operators.sorting", "torch:sort", "one off", one_off),
    Fault("operators.sorting", "torch:cumsum", "one off", one_off),
    Fault("operators.sorting", "torch:unique", "counts of others", counts_of_others),
    Fault("operators.random", "torch:randn", "not by the seed", stale),
    Fault("operators.random", F + "dropout", "drops nothing", lambda _: lambda x, *_: x),
    Fault("linalg.fourier", "torch.fft:fft", "one off", one_off),
    Fault("linalg.fourier", "torch.fft:irfft2", "NaN", unwritten),
    Fault("linalg.decompositions", "torch.linalg:solve", "one off", one_off),
    Fault("linalg.decompositions", "torch.linalg:svd", "one off", one_off),
    Fault("linalg.decompositions", "torch.linalg:eigh", "NaN", unwritten),
    Fault("linalg.decompositions", "torch.linalg:eigh", "vectors twice as long",
          lambda sound: lambda matrix: shifted(sound(matrix))),
    Fault("linalg.decompositions", "torch.linalg:svd", "V too long, values too small", long_v),
    Fault("linalg.decompositions", "torch.linalg:slogdet", "the other sign",
          lambda sound: lambda matrix: (-sound(matrix)[0], sound(matrix)[1])),
    Fault("tensor_cores.fp8", "torch:_scaled_mm", "one off", one_off),
    Fault("tensor_cores.fp8-rows", "torch:_scaled_mm", "NaN", unwritten),
    Fault("tensor_cores.fp4", "torch:_scaled_mm", "one off", one_off),
    Fault("tensor_cores.sparse-2of4", "torch:_cslt_sparse_mm", "one off", one_off),
    Fault("inductor.module", "torch:compile", "compiles nothing", lambda _: lambda module, **_: module),
    Fault("inductor.module", "torch:compile", "one off", lambda _: lambda module, **_: one_off(module)),
    Fault("onnx_export.torchscript", "torch.onnx:export", "another network", other_module),
    Fault("onnx_export.dynamo", "torch.onnx:export", "another network", other_module),
    Fault("triton.import", "script:PREFIX", "another environment's", lambda _: Path("/nowhere")),
    Fault("triton.assembler", "script:name_of", "an unknown target", lambda _: lambda arch: f"sm_{arch}x"),
    Fault("triton.cross", "script:target_of", "code for another GPU", lambda _: lambda cubin: "sm_80"),
    Fault("triton.add", "script:target_of", "code for another GPU", lambda _: lambda cubin: "sm_80"),
    Fault("triton.add", "torch:equal", "a wrong sum", lambda _: lambda *_: False),
    Fault("triton.dot", "torch.Tensor:__matmul__", "another product", one_off),
    Fault("flash_attn.import", "script:PREFIX", "another environment's", lambda _: Path("/nowhere")),
    Fault("flash_attn.head-64", "flash_attn:flash_attn_func", "one off", one_off),
    Fault("flash_attn.head-128", "flash_attn:flash_attn_func", "gradients", bent),
    Fault("flash_attn.varlen", "flash_attn:flash_attn_varlen_func", "NaN", unwritten),
    Fault("torch_scatter.import", "judging:PREFIX", "another environment's", lambda _: Path("/nowhere")),
    Fault("torch_scatter.scatter", "torch_scatter:scatter_max", "one off", one_off),
    Fault("torch_scatter.scatter", "torch_scatter:scatter_mul", "gradients in FP16", only(half, bent)),
    Fault("torch_scatter.arguments", "torch_scatter:scatter_min", "other places", other_places),
    Fault("torch_scatter.segments", "torch_scatter:segment_sum_csr", "NaN", unwritten),
    Fault("torch_scatter.segments", "torch_scatter:segment_max_coo", "gradients", bent),
    Fault("torch_scatter.gather", "torch_scatter:gather_coo", "gradients", bent),
    Fault("torch_scatter.composites", "torch_scatter:scatter_softmax", "one off", one_off),
    Fault("torch_sparse.import", "judging:PREFIX", "another environment's", lambda _: Path("/nowhere")),
    Fault("torch_sparse.products", "torch_sparse:matmul", "one off", one_off),
    Fault("torch_sparse.products", "torch_sparse:matmul", "no FP32", refusing("not implemented for 'Float'")),
    Fault("torch_sparse.sparse-products", "torch_sparse:coalesce", "other values", other_values),
    Fault("torch_sparse.conversions", "torch_sparse:get_diag", "one off", one_off),
    Fault("torch_sparse.walks", "torch_sparse:random_walk", "steps without entries", changed(strayed)),
    Fault("torch_cluster.import", "judging:PREFIX", "another environment's", lambda _: Path("/nowhere")),
    Fault("torch_cluster.knn", "torch_cluster:knn", "neighbours of others", changed(of_others)),
    Fault("torch_cluster.radius", "torch_cluster:radius", "neighbours of others", changed(of_others)),
    Fault("torch_cluster.nearest", "torch_cluster:nearest", "those of others", changed(lambda found: found.roll(1))),
    Fault("torch_cluster.farthest", "torch_cluster:fps", "one twice", changed(twice)),
    Fault("torch_cluster.grid", "torch_cluster:grid_cluster", "cells of others", changed(lambda found: found.roll(1))),
    Fault("torch_cluster.matching", "torch_cluster:graclus_cluster", "pairs of others",
          changed(lambda found: found.roll(1))),
    Fault("torch_cluster.walks", "torch_cluster:random_walk", "steps without edges", changed(strayed)),
    Fault("causal_conv1d.import", "script:PREFIX", "another environment's", lambda _: Path("/nowhere")),
    Fault("causal_conv1d.reference", "script:plain", "one off", one_off),
    Fault("causal_conv1d.convolution", "causal_conv1d:causal_conv1d_fn", "one off in FP16", only(half, one_off)),
    Fault("causal_conv1d.convolution", "causal_conv1d:causal_conv1d_fn", "gradients", bent),
    Fault("causal_conv1d.sequences", "causal_conv1d:causal_conv1d_fn", "NaN", unwritten),
    Fault("causal_conv1d.steps", "causal_conv1d:causal_conv1d_update", "one off", one_off),
    Fault("mamba_ssm.import", "script:PREFIX", "another environment's", lambda _: Path("/nowhere")),
    Fault("mamba_ssm.reference", "script:plain_scan", "one off", one_off),
    Fault("mamba_ssm.scan", "mamba_ssm.ops.selective_scan_interface:selective_scan_fn", "gradients", bent),
    Fault("mamba_ssm.complex-scan", "mamba_ssm.ops.selective_scan_interface:selective_scan_fn", "one off", one_off),
    Fault("mamba_ssm.heads", "mamba_ssm.ops.triton.ssd_combined:mamba_chunk_scan_combined", "one off in FP16",
          only(half, one_off)),
    Fault("mamba_ssm.steps", "mamba_ssm.ops.triton.selective_state_update:selective_state_update", "NaN", unwritten),
    Fault("mamba_ssm.layers", "mamba_ssm.ops.triton.layernorm_gated:rmsnorm_fn", "gradients", bent),
    Fault("deepspeed.import", "script:PREFIX", "another environment's", lambda _: Path("/nowhere")),
    Fault("deepspeed.operators", "deepspeed.git_version_info:installed_ops", "not built", lambda _: {}),
    Fault("deepspeed.cpu-optimizers", "deepspeed.ops.adam:DeepSpeedCPUAdam", "no weight decay", without_decay),
    Fault("deepspeed.cpu-optimizers", "deepspeed.ops.lion:DeepSpeedCPULion", "98% of the pace", slower),
    Fault("deepspeed.fused-optimizers", "deepspeed.ops.lamb:FusedLamb", "no weight decay", without_decay),
    Fault("deepspeed.quantizers", "script:need_gpu", "one off", off("dequantize", one_off)),
    Fault("deepspeed.random-ltd", "deepspeed.ops.random_ltd.dropping_utils:GatherTokens", "twice as much",
          lambda sound: SimpleNamespace(apply=lambda *inputs: (inputs[0], 2 * sound.apply(*inputs)[1]))),
    Fault("deepspeed.inference", "torch.nn.functional:rms_norm", "another norm", one_off),
    Fault("deepspeed.training", "deepspeed:initialize", "another network",
          lambda sound: lambda model, config: sound(model=torch.nn.Sequential(model, torch.nn.ReLU()), config=config)),
    Fault("gsplat.import", "script:PREFIX", "another environment's", lambda _: Path("/nowhere")),
    Fault("gsplat.reference", "gsplat.cuda._torch_impl:_spherical_harmonics", "one off", one_off),
    Fault("gsplat.reference", "gsplat.cuda._torch_impl:_isect_offset_encode", "one off", one_off),
    Fault("gsplat.covariances", "gsplat:quat_scale_to_covar_preci", "gradients", bent),
    Fault("gsplat.harmonics", "gsplat:spherical_harmonics", "one off", one_off),
    Fault("gsplat.projection", "gsplat:fully_fused_projection", "gradients", bent),
    Fault("gsplat.tiles", "gsplat:isect_offset_encode", "one off", one_off),
    Fault("gsplat.rasterization", "gsplat:rasterize_to_pixels", "NaN", unwritten),
    Fault("gsplat.rasterization", "gsplat:rasterize_to_pixels", "gradients", bent),
    Fault("gsplat.world", "gsplat:rasterize_to_pixels_eval3d", "gradients", bent),
    Fault("gsplat.surfels", "gsplat:rasterize_to_pixels_2dgs", "one off", one_off),
    Fault("gsplat.adam", "gsplat.cuda._wrapper:adam", "leaves everything as it was", lambda _: lambda *_: None),
    Fault("gsplat.relocation", "gsplat.relocation:compute_relocation", "one off", one_off),
    Fault("torchvision.import", "script:PREFIX", "another environment's", lambda _: Path("/nowhere")),
    Fault("torchvision.nms", "torchvision.ops:nms", "one off", one_off),
    Fault("torchvision.roi-align", "torchvision.ops:roi_align", "one off", one_off),
    Fault("torchvision.roi-align", "torchvision.ops:roi_align", "gradients", bent),
    Fault("torchvision.deformable-convolution", "torchvision.ops:deform_conv2d", "NaN", unwritten),
    Fault("torchvision.png", "torchvision.io:decode_png", "one pixel", one_off),
    Fault("torchvision.jpeg", "torchvision.io:decode_jpeg", "one pixel", one_off),
    Fault("torchaudio.import", "script:PREFIX", "another environment's", lambda _: Path("/nowhere")),
    Fault("torchaudio.filter", "torchaudio.functional:lfilter", "one off", one_off),
    Fault("torchaudio.filter", "torchaudio.functional:lfilter", "gradients", bent),
    Fault("torchaudio.resample", "torchaudio.functional:resample", "wrong pace",
          lambda sound: lambda tone, old, new: sound(tone, old, new).flip(0) * 0.9),
    Fault("torchaudio.spectrogram", "torch:stft", "upside down",
          lambda sound: lambda *inputs, **options: sound(*inputs, **options).flip(-2)),
    Fault("transformer_engine.import", "script:PREFIX", "another environment's", lambda _: Path("/nowhere")),
    Fault("transformer_engine.libraries", "torch.backends.cudnn:version", "another cuDNN", lambda _: lambda: 1),
    Fault("transformer_engine.linear", "transformer_engine.pytorch:Linear", "one off", built_wrong(one_off)),
    Fault("transformer_engine.norms", "transformer_engine.pytorch:RMSNorm", "gradients", built_wrong(bent)),
    Fault("transformer_engine.mlp", "transformer_engine.pytorch:LayerNormMLP", "NaN", built_wrong(unwritten)),
    Fault("transformer_engine.attention", "transformer_engine.pytorch:DotProductAttention", "gradients",
          built_wrong(bent)),
    Fault("transformer_engine.rotary", "transformer_engine.pytorch.attention.rope:apply_rotary_pos_emb",
          "one off", one_off),
    Fault("transformer_engine.optimizer", "transformer_engine.pytorch.optimizers:FusedAdam", "no weight decay",
          without_decay),
    *(Fault(f"transformer_engine.{name}", "transformer_engine.pytorch:Linear", "twice as much",
            built_wrong(lambda sound: lambda *inputs: 2 * sound(*inputs)))
      for name in ("fp8", "mxfp8", "fp8-blocks", "nvfp4")),
    Fault("xformers.import", "script:PREFIX", "another environment's", lambda _: Path("/nowhere")),
    Fault("xformers.operators", "xformers.ops.fmha:cutlass", "only up to 8.0", up_to_ampere),
    Fault("xformers.head-64", "xformers.ops:memory_efficient_attention", "one off", one_off),
    Fault("xformers.head-128", "xformers.ops:memory_efficient_attention", "gradients", bent),
    Fault("xformers.head-128", "xformers.ops:memory_efficient_attention", "no FP32",
          refusing("No operator found")),
    Fault("xformers.packed", "xformers.ops:memory_efficient_attention", "NaN", unwritten),
    Fault("xformers.layers", "xformers.ops:swiglu", "gradients", bent),
    Fault("xformers.packing", "script:kernels", "another place", off("_sparse24_pack_mask", negated)),
    Fault("xformers.pruning", "script:kernels", "one off", off("sparseNM_dense", one_off)),
    Fault("xformers.sparse-product", "torch.Tensor:__matmul__", "one off", one_off),
)  # fmt: skip


def load(name: str) -> ModuleType:
    """A check script as a module, whatever its name."""
    spec = importlib.util.spec_from_file_location(f"check_{name}", BENCH / "checks" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@contextlib.contextmanager
def planted(fault: Fault, script: ModuleType) -> Iterator[None]:
    """The fault is there; afterwards all is as before."""
    where, _, name = fault.place.partition(":")
    holder: Any = (
        script
        if where == "script"
        else torch.Tensor
        if where == "torch.Tensor"
        else importlib.import_module(where)
    )
    own = name in vars(holder)
    sound = getattr(holder, name, None)
    setattr(holder, name, fault.wrong(sound))
    cuda = torch.version.cuda
    if fault.check == "torch.architectures":
        torch.version.cuda = "13.0"
    try:
        yield
    finally:
        torch.version.cuda = cuda
        setattr(holder, name, sound) if own else delattr(holder, name)


def missed(sound: dict[str, dict[str, str]], found: list[dict[str, str]]) -> list[str]:
    """Sound checks that fail, and faults that go unseen, or break the check itself; the skipped do not count."""
    failing = [f"{name}: {each['evidence']}" for name, each in sound.items() if each["status"] == "fail"]
    return failing + [
        f"{each['name']}, {each['fault']}: {each['status']}: {each['evidence']}"
        for each in found
        if each["status"] == "ok"
        or (each["status"] == "skipped" and sound[each["name"]]["status"] != "skipped")
        or "Error: " in each["evidence"]
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--also", action="append", default=[])
    given = parser.parse_args()
    sys.path += [str(BENCH), *given.also]
    from judging import judge  # type: ignore[import-not-found]  # of bench/, which is no package

    sound: dict[str, Any] = {}
    found: list[dict[str, str]] = []
    checks: list[str] = []
    for name in SCRIPTS:
        script = load(name)
        checks += [f"{name}.{check}" for check in script.CHECKS]
        absent = name in PACKAGES and importlib.util.find_spec(name) is None
        if absent or name in APART:
            continue
        for check, function in script.CHECKS.items():
            verdict = sound[f"{name}.{check}"] = judge(check, function)
            print(f"{name}.{check}: {verdict['status']}: {verdict['evidence']}", flush=True)
        for fault in (each for each in FAULTS if each.check.partition(".")[0] == name):
            with planted(fault, script):
                verdict = judge(fault.check, script.CHECKS[fault.check.partition(".")[2]])
            found.append({**verdict, "fault": f"{fault.place}: {fault.what}"})
            print(f"{found[-1]['fault']}: {verdict['status']}: {verdict['evidence']}", flush=True)
    wrong = missed(sound, found)
    document = {"checks": checks, "sound": sound, "planted": found, "missed": wrong}
    given.out.write_text(json.dumps(document, indent=1))
    print(*wrong, f"{len(found)} faults, {len(wrong)} not as they should", sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
