"""Are DeepSpeed's kernels there without compiling, and right? Its optimizers for the CPU need no GPU."""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
# This file has the name of a package, for which its folder must not stand in.
sys.path[:] = [str(HERE.parent), *(entry for entry in sys.path if Path(entry or ".").resolve() != HERE)]

from judging import PREFIX, Skip, inside, run  # noqa: E402 - the path comes first

# The operators were built for this one; on a machine without a GPU DeepSpeed would look for those of its own.
os.environ.setdefault("DS_ACCELERATOR", "cuda")
BUILT = {
    "async_io": "AsyncIO", "cpu_adagrad": "CPUAdagrad", "cpu_adam": "CPUAdam", "cpu_lion": "CPULion",
    "dc": "DeepCompile", "fused_adam": "FusedAdam", "fused_lamb": "FusedLamb",
    "fused_lion": "FusedLion", "pin_memory": "PinMemory", "quantizer": "Quantizer", "random_ltd": "RandomLTD",
    "spatial_inference": "SpatialInference", "transformer_inference": "Inference", "utils": "Utils",
}  # fmt: skip
NO_DRIVER = "libcuda.so.1"
COUNTS = (1, 17, 1000, 70_001)  # odd ones leave a rest behind the vectors of a processor


def check_import() -> str:
    import deepspeed

    assert inside(deepspeed.__file__, PREFIX), f"{deepspeed.__file__} is not inside {PREFIX}"
    return f"deepspeed {deepspeed.__version__} from inside the environment"


def operator(name: str) -> Any:
    """The compiled operator; AssertionError where DeepSpeed would compile it now."""
    from deepspeed.git_version_info import installed_ops
    from deepspeed.ops import op_builder

    assert installed_ops.get(name), f"{name} was not built: it would be compiled at first use"
    # load() finds the compiled one; some need symbols of another, which it loads before.
    module = getattr(op_builder, f"{BUILT[name]}Builder")().load()
    assert inside(str(module.__file__), PREFIX), f"{module.__file__} is not inside {PREFIX}"
    return module


def check_operators() -> str:
    loaded, without_driver = [], []
    for name in BUILT:
        try:
            operator(name)
        except ImportError as error:
            if NO_DRIVER not in str(error):
                raise
            without_driver.append(name)
        else:
            loaded.append(name)
    missing = f"; {', '.join(without_driver)}: no driver here ({NO_DRIVER})" if without_driver else ""
    return f"{len(loaded)} of {len(BUILT)} loaded, none compiled{missing}"


def need_gpu(name: str) -> Any:
    import torch

    if not torch.cuda.is_available():
        raise Skip("no GPU here")
    return operator(name)


class Lion:
    """As published: the sign of a mixture of the mean and the gradient."""

    def __init__(
        self, parameters: list[Any], lr: float, betas: tuple[float, float], weight_decay: float
    ) -> None:
        import torch

        self.parameters, self.lr, self.betas, self.decay = parameters, lr, betas, weight_decay
        self.means = [torch.zeros_like(each) for each in parameters]

    def step(self) -> None:
        import torch

        with torch.no_grad():
            for each, mean in zip(self.parameters, self.means, strict=True):
                direction = (self.betas[0] * mean + (1 - self.betas[0]) * each.grad).sign()
                each.mul_(1 - self.lr * self.decay).sub_(self.lr * direction)
                mean.mul_(self.betas[1]).add_(each.grad, alpha=1 - self.betas[1])


class Lamb:
    """As published, without correction of the bias; the ratio of the norms within bounds."""

    def __init__(
        self, parameters: list[Any], lr: float, betas: tuple[float, float], weight_decay: float
    ) -> None:
        import torch

        self.parameters, self.lr, self.betas, self.decay = parameters, lr, betas, weight_decay
        self.means = [(torch.zeros_like(each), torch.zeros_like(each)) for each in parameters]

    def step(self) -> None:
        import torch

        with torch.no_grad():
            for each, (mean, square) in zip(self.parameters, self.means, strict=True):
                mean.mul_(self.betas[0]).add_(each.grad, alpha=1 - self.betas[0])
                square.mul_(self.betas[1]).add_(each.grad.square(), alpha=1 - self.betas[1])
                update = mean / (square.sqrt() + 1e-8) + self.decay * each
                each.sub_(self.lr * (each.norm() / update.norm()).clamp(0.01, 10.0) * update)


def compare_optimizer(errors: Any, name: str, ours: Any, exact: Any, where: str, kind: Any) -> None:
    """Three steps of both with the same gradients, of parameters of several sizes."""
    import torch
    from numerics import leaves, normal, short

    given = [normal(count, seed=count).to(kind) for count in COUNTS]
    wide, narrow = leaves(*given, dtype=torch.float64), leaves(*given, device=where)
    mine, true = ours(narrow), exact(wide)
    for step in range(3):
        for one, other in zip(narrow, wide, strict=True):
            slope = normal(*other.shape, seed=step + 1)
            # Never near 0, where the sign that Lion takes and what FP16 keeps of a square hang on rounding.
            slope = (slope.sign() * (0.5 + slope.abs().clamp(max=1) / 2)).to(kind)
            one.grad, other.grad = slope.to(where), slope.double()
        mine.step()
        true.step()
    for count, one, other in zip(COUNTS, narrow, wide, strict=True):
        # The steps are what is looked at, not the parameters that they are small beside.
        start = normal(count, seed=count).to(kind).double()
        what = f"{name}, {short(kind)}, {count}"
        allowed = 1e-3 if kind == torch.float32 else 5e-2
        errors.compare(what, one.detach().cpu() - start, other - start, allowed=allowed, kind=kind)


def check_cpu_optimizers() -> str:
    """Adam, AdamW, Adagrad and Lion on the CPU, which parameters are offloaded to."""
    import torch
    from numerics import FLOATS, Errors

    for name in ("cpu_adam", "cpu_adagrad", "cpu_lion"):
        operator(name)
    from deepspeed.ops.adagrad import DeepSpeedCPUAdagrad
    from deepspeed.ops.adam import DeepSpeedCPUAdam
    from deepspeed.ops.lion import DeepSpeedCPULion

    errors, rate, betas = Errors(), 0.5, (0.9, 0.99)
    for kind, decay in itertools.product(FLOATS, (0.0, 0.1)):
        rest: dict[str, Any] = {"lr": rate, "weight_decay": decay}
        for decoupled, exact in ((True, torch.optim.AdamW), (False, torch.optim.Adam)):
            compare_optimizer(
                errors, f"{exact.__name__}, decay {decay}",
                lambda p, decoupled=decoupled, rest=rest: DeepSpeedCPUAdam(
                    p, betas=betas, adamw_mode=decoupled, **rest),
                lambda p, exact=exact, rest=rest: exact(p, betas=betas, **rest), "cpu", kind,
            )  # fmt: skip
        compare_optimizer(
            errors, f"Lion, decay {decay}",
            lambda p, rest=rest: DeepSpeedCPULion(p, betas=betas, **rest),
            lambda p, rest=rest: Lion(p, betas=betas, **rest), "cpu", kind,
        )  # fmt: skip
        compare_optimizer(
            errors, f"Adagrad, decay {decay}",
            lambda p, rest=rest: DeepSpeedCPUAdagrad(p, eps=1e-10, **rest),
            lambda p, rest=rest: torch.optim.Adagrad(p, eps=1e-10, **rest), "cpu", kind,
        )  # fmt: skip
    return str(errors)


def check_fused_optimizers() -> str:
    """Adam, AdamW, Lion and LAMB on the GPU."""
    import torch
    from numerics import FLOATS, Errors

    for name in ("fused_adam", "fused_lion", "fused_lamb"):
        need_gpu(name)
    from deepspeed.ops.adam import FusedAdam
    from deepspeed.ops.lamb import FusedLamb
    from deepspeed.ops.lion import FusedLion

    errors, betas = Errors(), (0.9, 0.99)
    rest: dict[str, Any] = {"lr": 0.5, "betas": betas, "weight_decay": 0.1}
    pairs: tuple[tuple[str, Any, Any], ...] = (
        ("AdamW", lambda p: FusedAdam(p, **rest), lambda p: torch.optim.AdamW(p, **rest)),
        ("Adam", lambda p: FusedAdam(p, adam_w_mode=False, **rest), lambda p: torch.optim.Adam(p, **rest)),
        ("Lion", lambda p: FusedLion(p, **rest), lambda p: Lion(p, **rest)),
    )
    for kind, (name, ours, exact) in itertools.product(FLOATS, pairs):
        compare_optimizer(errors, name, ours, exact, "cuda", kind)
    lamb = {**rest, "bias_correction": False}
    compare_optimizer(
        errors, "LAMB", lambda p: FusedLamb(p, **lamb), lambda p: Lamb(p, **rest), "cuda", torch.float32
    )
    return str(errors)


def check_quantizers() -> str:
    """There and back: integers of 8 and 4 bits."""
    from numerics import normal

    integers = need_gpu("quantizer")
    told = []
    for bits, groups in itertools.product((8, 4), (1, 7)):
        given = normal(groups, 2048, seed=bits).half()
        packed, scales = integers.quantize(given.cuda(), groups, bits, integers.Symmetric)
        back = integers.dequantize(packed, scales, groups, bits, integers.Symmetric).cpu().double()
        step = given.double().abs().amax(-1, keepdim=True) / 2 ** (bits - 1)
        worst = float(((back.reshape(groups, 2048) - given.double()).abs() / step).max())
        limit = 1.01 + 2 ** (bits - 12)  # the largest is one step off, and FP16 rounds what comes back
        assert worst <= limit, f"int{bits}: an element is {worst:.3f} steps off, {limit:.3f} are allowed"
        told.append(f"int{bits} {worst:.2f} steps")
    return ", ".join(told)


def check_random_ltd() -> str:
    """Tokens that are dropped and come back, with the gradients of both: exact."""
    import torch
    from numerics import normal

    need_gpu("random_ltd")
    from deepspeed.ops.random_ltd.dropping_utils import GatherTokens, ScatterTokens, gpt_sample_tokens

    for kind, (batch, tokens, kept) in itertools.product(
        (torch.float32, torch.float16, torch.bfloat16), ((1, 64, 32), (3, 130, 77))
    ):
        chosen = gpt_sample_tokens(kept, tokens, batch, device="cuda")[0][0]
        assert torch.equal(chosen, chosen.sort(-1).values), "the indices are not in order"
        width = 64
        given = normal(batch, tokens, width).to(kind).cuda().requires_grad_()
        at = chosen.long()[..., None].expand(-1, -1, width)
        part = GatherTokens.apply(given, chosen, True)[1]
        assert torch.equal(part, given.gather(1, at)), f"gather of {kept} from {tokens}"
        slope = normal(batch, kept, width, seed=1).to(kind).cuda()
        wanted = torch.zeros_like(given).scatter(1, at, slope)
        assert torch.equal(torch.autograd.grad(part, given, slope)[0], wanted), "gradient of gather"
        other = normal(batch, kept, width, seed=2).to(kind).cuda().requires_grad_()
        whole = ScatterTokens.apply(given, other, chosen, True)
        assert torch.equal(whole, given.scatter(1, at, other)), f"scatter of {kept} into {tokens}"
        slope = normal(batch, tokens, width, seed=3).to(kind).cuda()
        assert torch.equal(torch.autograd.grad(whole, other, slope)[0], slope.gather(1, at)), (
            "gradient of scatter"
        )
    return "6 cases, results and gradients: exact"


def check_inference() -> str:
    """Norms, activations, softmax and additions of a bias, in three types."""
    import torch
    from numerics import FLOATS, Errors, normal, short, spoil

    kernels, spatial = need_gpu("transformer_inference"), operator("spatial_inference")
    plain, errors = torch.nn.functional, Errors()
    names = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}
    for kind, (rows, width) in itertools.product(FLOATS, ((1, 128), (5, 72), (33, 1000), (7, 4096))):
        given = [normal(2, rows, width).to(kind), *(normal(width, seed=seed).to(kind) for seed in (1, 2))]
        x, scale, shift = (each.double() for each in given)
        mine = [each.cuda() for each in given]
        spoil(*mine, *mine)
        found = {
            "layer_norm": (kernels.layer_norm(*mine, 1e-5), plain.layer_norm(x, (width,), scale, shift)),
            "rms_norm": (kernels.rms_norm(*mine[:2], 1e-5), plain.rms_norm(x, (width,), scale, 1e-5)),
        }
        for name, call in (("gelu", lambda y: plain.gelu(y, approximate="tanh")), ("relu", plain.relu)):
            kernel = getattr(kernels, f"bias_{name}_{names[kind]}")
            found[name] = kernel(mine[0].clone(), mine[2]), call(x + shift)
        for name, (one, exact) in found.items():
            errors.compare(f"{name}, {short(kind)} {rows}x{width}", one, exact)
    given = [normal(2, 37, 64, seed=seed).half() for seed in (0, 1)]
    bias = normal(64, seed=2).half()
    (x, y), b = (each.double() for each in given), bias.double()
    for name, rest, exact in (("", (), x + b), ("_add", (given[1],), x + b + y)):
        kernel = getattr(spatial, f"nhwc_bias_add{name}")
        errors.compare(
            f"nhwc{name}", kernel(given[0].cuda(), bias.cuda(), *(each.cuda() for each in rest)), exact
        )
    return str(errors)


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """A process group of this process."""
    import deepspeed
    import torch

    store = {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "0",
    }
    before = dict(os.environ)
    os.environ.update(store)
    try:
        if not torch.distributed.is_initialized():  # once: DeepSpeed keeps what it has of a group
            deepspeed.init_distributed("nccl", verbose=False)
            atexit.register(torch.distributed.destroy_process_group)
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def check_training() -> str:
    """Ten steps of a small random network by ZeRO, the optimizer on the GPU and on the CPU: as torch does."""
    import copy

    import deepspeed
    import torch
    from numerics import normal

    need_gpu("fused_adam")
    torch.manual_seed(0)
    first = torch.nn.Sequential(torch.nn.Linear(64, 96), torch.nn.GELU(), torch.nn.Linear(96, 8))
    batches = [normal(16, 64, seed=step).float().cuda() for step in range(10)]
    told = []
    settings = {"lr": 1e-2, "betas": [0.9, 0.99], "weight_decay": 0.01}

    def losses(network: Any, step: Callable[[Any], None]) -> list[float]:
        found = []
        for batch in batches:
            loss = network(batch).square().mean()
            step(loss)
            found.append(loss.item())
        return found

    plain = copy.deepcopy(first).cuda()
    optimizer = torch.optim.AdamW(plain.parameters(), **settings)

    def usual(loss: Any) -> None:
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    wanted = losses(plain, usual)
    with alone():
        for stage, offload in ((0, False), (1, False), (2, True), (3, False)):
            zero: dict[str, Any] = {"stage": stage}
            if offload:
                zero["offload_optimizer"] = {"device": "cpu"}
            engine = deepspeed.initialize(
                model=copy.deepcopy(first),
                config={
                    "train_micro_batch_size_per_gpu": 16,
                    "optimizer": {"type": "AdamW", "params": settings},
                    "zero_optimization": zero,
                },
            )[0]

            def by_engine(loss: Any, engine: Any = engine) -> None:
                engine.backward(loss)
                engine.step()

            found = losses(engine, by_engine)
            errors = [abs(one - true) / wanted[0] for one, true in zip(found, wanted, strict=True)]
            error = max(errors)
            assert all(each <= 1e-3 for each in errors), (
                f"ZeRO {stage}: losses {error:.1e} off, 1e-3 allowed: {found}, torch {wanted}"
            )
            told.append(f"ZeRO {stage}{' offloaded' if offload else ''} {error:.1e}")
    return f"loss {wanted[0]:.3f} to {wanted[-1]:.3f} in ten steps; off by {', '.join(told)} (1e-3 allowed)"


CHECKS: dict[str, Callable[[], str]] = {
    "import": check_import,
    "operators": check_operators,
    "cpu-optimizers": check_cpu_optimizers,
    "fused-optimizers": check_fused_optimizers,
    "quantizers": check_quantizers,
    "random-ltd": check_random_ltd,
    "inference": check_inference,
    "training": check_training,
}


if __name__ == "__main__":
    sys.exit(run(CHECKS))
