"""Does flash-attention compute attention, forward and backward? PyTorch's own error stands beside it."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
# This file has the name of a package, for which its folder must not stand in.
sys.path[:] = [str(HERE.parent), *(entry for entry in sys.path if Path(entry or ".").resolve() != HERE)]

from judging import PREFIX, Skip, inside, run  # noqa: E402 - the path comes first


def check_import() -> str:
    import flash_attn

    assert inside(flash_attn.__file__, PREFIX), f"{flash_attn.__file__} is not inside {PREFIX}"
    return f"flash-attn {flash_attn.__version__} from inside the environment"


def need_gpu() -> None:
    import torch

    if not torch.cuda.is_available():
        raise Skip("no GPU here")


def differentiate(attend: Callable[..., Any], inputs: list[Any], direction: Any) -> list[Any]:
    """Result and gradients; all have the heads in front of the positions."""
    import torch
    from numerics import leaves, spoil

    tensors = leaves(*inputs, device="cuda")
    spoil(*tensors, *tensors)
    result = attend(*tensors)
    spoil(*tensors, *tensors)
    return [result, *torch.autograd.grad(result, tensors, direction.to("cuda"))]


def compare(errors: Any, name: str, results: list[Any], wanted: list[Any]) -> None:
    for part, mine, true in zip(("result", "dQ", "dK", "dV"), results, wanted, strict=True):
        errors.compare(f"{name}: {part}", mine, true)


def check_head(dim: int) -> str:
    """Causal and not, cross attention, one query, odd lengths, several query heads for one key."""
    need_gpu()
    import torch
    from attending import Case, exact
    from flash_attn import flash_attn_func
    from numerics import Errors, short

    cases = (
        Case(128, 128, dim), Case(257, 257, dim, causal=True), Case(129, 391, dim), Case(1, 333, dim),
        Case(128, 128, dim, groups=2), Case(77, 77, dim, causal=True, groups=4),
    )  # fmt: skip
    errors, torches, refusal = Errors(), Errors(), ""
    for case in cases:

        def ours(query: Any, key: Any, value: Any, case: Any = case) -> Any:
            positions = (each.transpose(1, 2) for each in (query, key, value))
            return flash_attn_func(*positions, causal=case.causal).transpose(1, 2)

        def sdpa(query: Any, key: Any, value: Any, case: Any = case) -> Any:
            attention = torch.nn.functional.scaled_dot_product_attention
            return attention(query, key, value, is_causal=case.causal, enable_gqa=case.groups > 1)

        for dtype in (torch.float16, torch.bfloat16):
            inputs, direction, wanted = exact(case, dtype)
            name = f"{short(dtype)} {case}"
            compare(errors, name, differentiate(ours, inputs, direction), wanted)
            try:  # what PyTorch does wrong is no fault of flash-attention
                compare(torches, name, differentiate(sdpa, inputs, direction), wanted)
            except (AssertionError, RuntimeError) as error:
                refusal = refusal or f"; but {str(error).splitlines()[0]}"
    return f"{errors}; PyTorch's own attention: {torches}{refusal}"


def check_varlen() -> str:
    """Sequences of several lengths packed into one: each attends to itself alone."""
    need_gpu()
    import torch
    from attending import Case, exact
    from flash_attn import flash_attn_varlen_func
    from numerics import Errors, short

    errors, lengths = Errors(), (1, 64, 129, 300)
    for dtype, causal in ((torch.float16, True), (torch.bfloat16, False)):
        parts = [exact(Case(length, length, 64, causal=causal, batch=1), dtype) for length in lengths]
        bounds = torch.tensor([0, *lengths], device="cuda").cumsum(0).to(torch.int32)

        def packed(query: Any, key: Any, value: Any, bounds: Any = bounds, causal: Any = causal) -> Any:
            rows = (each[0].transpose(0, 1) for each in (query, key, value))
            most = max(lengths)
            return flash_attn_varlen_func(*rows, bounds, bounds, most, most, causal=causal).transpose(0, 1)[
                None
            ]

        inputs = [torch.cat([part[0][which] for part in parts], dim=2) for which in range(3)]
        direction = torch.cat([part[1] for part in parts], dim=2)
        wanted = [torch.cat([part[2][which] for part in parts], dim=2) for which in range(4)]
        name = f"{short(dtype)} lengths {lengths}"
        compare(errors, name, differentiate(packed, inputs, direction), wanted)
    return str(errors)


CHECKS: dict[str, Callable[[], str]] = {
    "import": check_import,
    "head-64": functools.partial(check_head, 64),
    "head-128": functools.partial(check_head, 128),
    "varlen": check_varlen,
}


if __name__ == "__main__":
    sys.exit(run(CHECKS))
