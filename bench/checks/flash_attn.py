"""Does flash-attention equal PyTorch's own, forward and backward?"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
# This file has the name of a package, for which its folder must not stand in.
sys.path[:] = [str(HERE.parent), *(entry for entry in sys.path if Path(entry or ".").resolve() != HERE)]

from judging import PREFIX, Skip, inside, run  # noqa: E402 - the path comes first


def check_import() -> str:
    import flash_attn

    assert inside(flash_attn.__file__, PREFIX), f"{flash_attn.__file__} is not inside {PREFIX}"
    return f"flash-attn {flash_attn.__version__} from inside the environment"


def check_against_sdpa() -> str:
    import torch

    if not torch.cuda.is_available():
        raise Skip("no GPU here")
    from flash_attn import flash_attn_func

    torch.manual_seed(0)
    worst = 0.0
    for dtype in (torch.float16, torch.bfloat16):
        tensors = [torch.randn(2, 128, 4, 64, device="cuda", dtype=dtype) for _ in range(3)]
        ours = [tensor.clone().requires_grad_() for tensor in tensors]
        true = [tensor.double().transpose(1, 2).requires_grad_() for tensor in tensors]
        mine = flash_attn_func(*ours)
        exact = torch.nn.functional.scaled_dot_product_attention(*true).transpose(1, 2)
        mine.sum().backward()
        exact.sum().backward()
        pairs = [(mine, exact), *((a.grad, b.grad.transpose(1, 2)) for a, b in zip(ours, true, strict=True))]
        error = max((a.double() - b).abs().max().item() for a, b in pairs)
        assert error < 0.1, f"{dtype}: off by {error:.1e}"
        worst = max(worst, error)
    return f"fp16 and bf16, forward and backward, within {worst:.1e}"


if __name__ == "__main__":
    sys.exit(run({"import": check_import, "against-sdpa": check_against_sdpa}))
