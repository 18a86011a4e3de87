"""What extensions of torch bring: the same work by torch alone and by packages of the catalogue."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from ceilings import plain_copy
from findings import Finding, Unsupported, verdict
from torch.nn import functional as F  # noqa: N812 - as everyone calls it

from workloads import SHARES, Asked, Case, Run, Work, rotating, spoiled

ALONE = "torch"
TOLERANCE = 1e-3  # of the largest element; FP32 with sums of a few hundred
Tensors = tuple[Any, ...]


@dataclass(frozen=True, kw_only=True)
class Task:
    """The same work by several ways, each of which makes a callable of the device's name.

    make: inputs for one call; moved: bytes that a call must read and write at least; gpu: ways that
    compute on GPUs only.
    """

    name: str
    make: Callable[[Any], Tensors]
    moved: float
    ways: dict[str, Callable[[], Callable[..., Any]]]
    gpu: tuple[str, ...] = ()


def cases(asked: Asked) -> Iterator[Case]:
    scale = asked.pick(cpu_quick=1, cpu=4, cuda_quick=64, cuda=256)
    graphs = (_scatter(scale), _spmm(scale), _nearest(scale))
    for task in (*graphs, _convolution(scale), _scan(asked), _attention(asked), _norm(scale), _splats(asked)):
        for way in task.ways:
            yield _case(asked, task, way)


def _case(asked: Asked, task: Task, way: str) -> Case:
    work = Work(name=f"extensions.{task.name}.{way}", unit="B/s", amount=task.moved, dtype="fp32",
                mode=way, operation=task.name, moved=task.moved)  # fmt: skip

    def prepare() -> Run:
        if way in task.gpu and asked.device == "cpu":
            raise Unsupported(f"{way} computes on GPUs only")
        # A module of a package has parameters: without no_grad it alone would keep what gradients need.
        call = torch.no_grad()(spoiled(task.ways[way](), asked))
        generator = torch.Generator(asked.device).manual_seed(asked.seed)
        sets = rotating(torch, asked.device, lambda: task.make(generator), int(task.moved))
        call(*sets[0])  # a compiler's time is no part of the figure
        turn = 0

        def step() -> Any:
            nonlocal turn
            turn += 1
            return call(*sets[turn % len(sets)])

        def right() -> list[Finding]:
            found = call(*sets[0]).double()
            wide = [each.double() if each.is_floating_point() else each for each in sets[0]]
            exact = task.ways[ALONE]()(*wide)
            error = ((found - exact).abs().max() / exact.abs().max()).item()
            return [verdict(f"{work.name}.result", error <= TOLERANCE, f"relative error {error:.2g}")]

        # What is gathered and scattered is far from a copy; faster than one it cannot be.
        share = (0.0, SHARES[asked.device][1])
        return Run(
            step=step, countable=False, plain=plain_copy(torch, asked.device), share=share, after=right
        )

    return Case(work=work, prepare=prepare)


def _of(module: str, name: str) -> Callable[..., Any]:
    """A package's function. Raises Unsupported where it is not installed."""
    try:
        found: Callable[..., Any] = getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        if error.name != module.partition(".")[0]:  # installed, and broken
            raise
        raise Unsupported(f"{module.partition('.')[0]}: {error}") from error
    return found


def _scatter(scale: int) -> Task:
    """The largest of each group of messages, as graph networks gather them; about 16 to a group."""
    count, width = 4096 * scale, 64

    def make(generator: Any) -> Tensors:
        device = generator.device
        index = torch.randint(count // 16, (count,), generator=generator, device=device)
        return torch.randn(count, width, generator=generator, device=device), index

    def alone(x: Any, index: Any) -> Any:
        empty = torch.zeros(count // 16, width, dtype=x.dtype, device=x.device)
        return empty.scatter_reduce(0, index[:, None].expand_as(x), x, "amax", include_self=False)

    def package() -> Callable[..., Any]:
        function = _of("torch_scatter", "scatter_max")
        return lambda x, index: function(x, index, dim=0, dim_size=count // 16)[0]

    moved = 4.0 * count * width * (1 + 1 / 16) + 8.0 * count
    return Task(name="scatter", make=make, moved=moved, ways={ALONE: lambda: alone, "torch-scatter": package})


def _spmm(scale: int) -> Task:
    """A sparse matrix of 16 entries to a row times a dense one."""
    rows, width = 1024 * scale, 64

    def make(generator: Any) -> Tensors:
        device = generator.device
        columns = torch.randint(rows, (rows, 16), generator=generator, device=device).sort(dim=1)[0]
        bounds = torch.arange(0, 16 * rows + 1, 16, device=device)
        values = torch.randn(16 * rows, generator=generator, device=device)
        return bounds, columns.flatten(), values, torch.randn(rows, width, generator=generator, device=device)

    def alone(bounds: Any, columns: Any, values: Any, factor: Any) -> Any:
        return torch.sparse_csr_tensor(bounds, columns, values, (rows, rows)) @ factor

    def package() -> Callable[..., Any]:
        kind, product = _of("torch_sparse", "SparseTensor"), _of("torch_sparse", "matmul")

        def call(bounds: Any, columns: Any, values: Any, factor: Any) -> Any:
            sizes = (rows, rows)
            sparse = kind(rowptr=bounds, col=columns, value=values, sparse_sizes=sizes, is_sorted=True,
                          trust_data=True)  # fmt: skip
            return product(sparse, factor)

        return call

    moved = 16.0 * rows * (8 + 4) + 4.0 * 2 * rows * width
    return Task(name="spmm", make=make, moved=moved, ways={ALONE: lambda: alone, "torch-sparse": package})


def _nearest(scale: int) -> Task:
    """The distances of 1024 points to the nearest of many."""
    many, few = 256 * scale, 1024

    def make(generator: Any) -> Tensors:
        device = generator.device
        return tuple(torch.randn(each, 3, generator=generator, device=device) for each in (many, few))

    def alone(x: Any, y: Any) -> Any:
        return (y - x[(y[:, None] - x).square().sum(-1).argmin(1)]).square().sum(-1)

    def package() -> Callable[..., Any]:
        function = _of("torch_cluster", "knn")

        def call(x: Any, y: Any) -> Any:
            asking, found = function(x, y, 1)
            return (y[asking] - x[found]).square().sum(-1)

        return call

    moved = 12.0 * (many + few) + 4.0 * few
    return Task(name="nearest", make=make, moved=moved, ways={ALONE: lambda: alone, "torch-cluster": package})


def _convolution(scale: int) -> Task:
    """A causal convolution of width 4 with SiLU, a filter for each channel, as in Mamba."""
    channels, length = 256, 64 * scale

    def make(generator: Any) -> Tensors:
        shapes = ((2, channels, length), (channels, 4), (channels,))
        return tuple(torch.randn(*each, generator=generator, device=generator.device) for each in shapes)

    def alone(x: Any, weight: Any, bias: Any) -> Any:
        return F.silu(F.conv1d(F.pad(x, (3, 0)), weight[:, None], bias, groups=channels))

    def package() -> Callable[..., Any]:
        function = _of("causal_conv1d", "causal_conv1d_fn")
        return lambda x, weight, bias: function(x, weight, bias, activation="silu")

    moved = 4.0 * 2 * 2 * channels * length
    return Task(name="causal-convolution", make=make, moved=moved, gpu=("causal-conv1d",),
                ways={ALONE: lambda: alone, "causal-conv1d": package})  # fmt: skip


def _scan(asked: Asked) -> Task:
    """Mamba's recurrence over positions: a loop by torch, and one kernel."""
    channels, size, length = 512, 16, asked.pick(cpu_quick=32, cpu=128, cuda_quick=256, cuda=1024)

    def make(generator: Any) -> Tensors:
        shapes = (
            (4, channels, length),
            (4, channels, length),
            (channels, size),
            (4, size, length),
            (4, size, length),
        )
        u, step, decay, into, out = (
            torch.randn(*each, generator=generator, device=generator.device) for each in shapes
        )
        return u, F.softplus(step), -decay.abs() - 0.1, into, out

    def loop(u: Any, step: Any, decay: Any, into: Any, out: Any) -> Any:
        state = torch.zeros(4, channels, size, dtype=u.dtype, device=u.device)
        results = []
        for place in range(length):
            here = step[:, :, place, None]
            fresh = here * into[:, None, :, place] * u[:, :, place, None]
            state = torch.exp(here * decay) * state + fresh
            results.append((state * out[:, None, :, place]).sum(-1))
        return torch.stack(results, dim=2)

    def package() -> Callable[..., Any]:
        return _of("mamba_ssm.ops.selective_scan_interface", "selective_scan_fn")

    moved = 4.0 * 4 * length * (3 * channels + 2 * size)
    return Task(name="scan", make=make, moved=moved, gpu=("mamba-ssm",),
                ways={ALONE: lambda: loop, "mamba-ssm": package})  # fmt: skip


def _attention(asked: Asked) -> Task:
    """Causal attention in FP32, heads of 64."""
    length = asked.pick(cpu_quick=64, cpu=256, cuda_quick=1024, cuda=2048)

    def make(generator: Any) -> Tensors:
        shape = (4, length, 8, 64)
        return tuple(torch.randn(shape, generator=generator, device=generator.device) for _ in range(3))

    def alone(query: Any, key: Any, value: Any) -> Any:
        heads = (each.transpose(1, 2) for each in (query, key, value))
        return F.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2)

    def package() -> Callable[..., Any]:
        function, mask = (
            _of("xformers.ops", "memory_efficient_attention"),
            _of("xformers.ops", "LowerTriangularMask"),
        )
        return lambda query, key, value: function(query, key, value, attn_bias=mask())

    return Task(name="attention", make=make, moved=4.0 * 4 * 4 * length * 8 * 64, gpu=("xformers",),
                ways={ALONE: lambda: alone, "xformers": package})  # fmt: skip


def _norm(scale: int) -> Task:
    """RMSNorm over 1024 numbers."""
    rows, width = 64 * scale, 1024

    def make(generator: Any) -> Tensors:
        shapes = ((1, rows, width), (width,))
        return tuple(torch.randn(*each, generator=generator, device=generator.device) for each in shapes)

    def alone(x: Any, weight: Any) -> Any:
        return F.rms_norm(x, (width,), weight, 1e-5)

    def engine() -> Callable[..., Any]:
        module = _of("transformer_engine.pytorch", "RMSNorm")(width, eps=1e-5, device="cuda")

        def call(x: Any, weight: Any) -> Any:
            module.weight.data = weight
            return module(x)

        return call

    def speed() -> Callable[..., Any]:
        kernels = _of("deepspeed.ops.op_builder", "InferenceBuilder")().load()
        return lambda x, weight: kernels.rms_norm(x, weight, 1e-5)

    return Task(name="norm", make=make, moved=4.0 * 2 * rows * width, gpu=("transformer-engine", "deepspeed"),
                ways={ALONE: lambda: alone, "transformer-engine": engine, "deepspeed": speed})  # fmt: skip


def _splats(asked: Asked) -> Task:
    """An image of 64 broad, faint Gaussians: none is ever left out, so that rounding decides nothing."""
    count, side = 64, asked.pick(cpu_quick=64, cpu=128, cuda_quick=512, cuda=1024)

    def make(generator: Any) -> Tensors:
        def uniform(*shape: int) -> Any:
            return torch.rand(shape, generator=generator, device=generator.device)

        sharpness = torch.tensor([1.0, 0.0, 1.0], device=generator.device) / side**2
        return (
            side * uniform(1, count, 2),
            sharpness * (1 + uniform(1, count, 1)),
            uniform(1, count, 3),
            0.05 + 0.02 * uniform(1, count),
        )

    def alone(means: Any, conics: Any, colors: Any, opacities: Any) -> Any:
        line = torch.arange(side, device=means.device) + 0.5
        places = torch.stack(torch.meshgrid(line, line, indexing="ij"), -1).flip(-1).reshape(1, -1, 1, 2)
        away = (places.to(means.dtype) - means[:, None]).square()
        alphas = opacities[:, None] * (-(away * conics[:, None, :, ::2]).sum(-1) / 2).exp()
        behind = (1 - alphas).cumprod(-1)
        weights = alphas * torch.cat((torch.ones_like(behind[..., :1]), behind[..., :-1]), -1)
        return (weights @ colors).unflatten(1, (side, side))

    def package() -> Callable[..., Any]:
        tiles, encode, draw = (
            _of("gsplat", name) for name in ("isect_tiles", "isect_offset_encode", "rasterize_to_pixels")
        )
        across = -(-side // 16)

        def call(means: Any, conics: Any, colors: Any, opacities: Any) -> Any:
            radii = torch.full((1, count, 2), 4 * side, dtype=torch.int32, device=means.device)
            depths = torch.arange(count, device=means.device)[None] + 1.0
            keys, order = tiles(means, radii, depths, 16, across, across)[1:]
            offsets = encode(keys, 1, across, across)
            return draw(means, conics, colors, opacities, side, side, 16, offsets, order)[0]

        return call

    return Task(name="splats", make=make, moved=4.0 * 3 * side**2, gpu=("gsplat",),
                ways={ALONE: lambda: alone, "gsplat": package})  # fmt: skip
