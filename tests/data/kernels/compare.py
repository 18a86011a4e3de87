"""On a GPU: whether the kernels compute what torch does. Exit code 1 when one of them does not."""

from __future__ import annotations

import sys

import demo_kernels
import torch

ROWS, COLUMNS = 33, (1, 63, 257, 5000)


def relative(found: torch.Tensor, exact: torch.Tensor) -> float:
    """The largest difference, in units of the largest value; inf where something is not finite."""
    error = ((found.double() - exact).abs().max() / exact.abs().max()).item()
    return error if error == error else float("inf")  # noqa: PLR0124 - not for NaN


def errors(dtype: torch.dtype, columns: int) -> dict[str, tuple[float, float]]:
    """Kernel -> (its error, the error of torch's own) against float64."""
    values = torch.randn(ROWS, columns, device="cuda").mul(300).to(dtype)  # squares of fp16 overflow
    small = (values / 300).to(dtype)
    weight = torch.rand(columns, device="cuda").to(dtype)
    other = torch.randn(columns, 70, device="cuda").to(dtype)
    norm, exact = torch.nn.functional.rms_norm, small.double()
    size, wide = (columns,), values.double()
    found = {
        "cumsum": (demo_kernels.cumsum(small), small.cumsum(1), exact.cumsum(1)),
        "matmul": (demo_kernels.matmul(small, other), small @ other, exact @ other.double()),
        "rms_norm": (
            demo_kernels.rms_norm(values, weight),
            norm(values, size, weight, 1e-6),
            norm(wide, size, weight.double(), 1e-6),
        ),
        "softmax": (demo_kernels.softmax(small), small.softmax(1), exact.softmax(1)),
    }
    return {name: (relative(mine, true), relative(own, true)) for name, (mine, own, true) in found.items()}


def main() -> int:
    """Print the worst errors of each kernel and type; torch's own beside them."""
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = False
    print(torch.__version__, torch.cuda.get_device_name(), demo_kernels.__file__)
    failed = False
    with torch.cuda.stream(torch.cuda.Stream()):
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            rows = [errors(dtype, columns) for columns in COLUMNS]
            # Ours add one product after the other in FP32.
            summed = torch.finfo(torch.float32).eps * max(COLUMNS) ** 0.5
            for name in rows[0]:
                mine, own = (max(row[name][which] for row in rows) for which in (0, 1))
                is_right = mine <= max(4 * own, 4 * torch.finfo(dtype).eps, summed)
                failed |= not is_right
                says = "ok" if is_right else "WRONG"
                print(f"{name:9} {str(dtype).removeprefix('torch.'):9} {mine:.1e}  torch {own:.1e}  {says}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
