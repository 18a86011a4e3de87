"""The matrices of one case: random, in rotating buffers larger than the caches; exact in FP64 on demand."""

from __future__ import annotations

import argparse
import math
from typing import Any

from findings import Unsupported
from surroundings import cache_bytes, free_bytes

# name: (torch type, unit roundoff of inputs as multiplied, of the accumulator, of the output)
DTYPES = {
    "fp32": ("float32", 0.0, 2.0**-24, 2.0**-24),
    "tf32": ("float32", 2.0**-11, 2.0**-24, 2.0**-24),
    "bf16": ("bfloat16", 0.0, 2.0**-24, 2.0**-8),
    "fp16": ("float16", 0.0, 2.0**-24, 2.0**-11),
    # Tensor cores add FP8 and FP4 products with few bits; the result is BF16.
    "fp8": ("float8_e4m3fn", 0.0, 2.0**-13, 2.0**-8),
    "fp4": ("float4_e2m1fn_x2", 0.0, 2.0**-13, 2.0**-8),
}
LAYOUTS = ("ab", "linear", "scaled")
SCALED = {"fp8": (8, 9), "fp4": (10, 0)}  # compute capability from which a GPU has them
FP4_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # by code; bit 3 is the sign
FP4_BLOCK = 16  # values that share a scale
UNIFORM = 1 / 3  # mean square of uniform [-1,1]
FP4_SQUARE = sum(value * value for value in FP4_VALUES) / len(FP4_VALUES)


class Operands:
    """Input sets of one dtype and size: at least two, more than twice the cache, at most 1/4 of memory."""

    def __init__(self, torch: Any, given: argparse.Namespace, dtype: str, size: int) -> None:
        self.torch, self.size, self.dtype, self.device = torch, size, dtype, given.device
        self._refuse_unsupported()
        self.kind = getattr(torch, DTYPES[dtype][0])
        self.generator = torch.Generator(device=given.device).manual_seed(given.seed)
        pair = 2 * size * size * self.kind.itemsize // (2 if dtype == "fp4" else 1)
        self.cache = cache_bytes(torch, given.device)
        room = free_bytes(torch, given.device) // (4 * pair)
        self.count = max(2, min(math.ceil(2 * self.cache / pair), room))
        self.bytes = self.count * pair
        self.sets = [(self._random(), self._random()) for _ in range(self.count)]
        self.result = torch.bfloat16 if dtype in SCALED else self.kind
        self.outs = [torch.empty(size, size, dtype=self.result, device=given.device) for _ in range(2)]
        self.one = torch.ones((), device=given.device)

    def _refuse_unsupported(self) -> None:
        torch, name = self.torch, DTYPES[self.dtype][0]
        if not hasattr(torch, name):
            raise Unsupported(f"torch {torch.__version__} has no {name}")
        least = SCALED.get(self.dtype)
        if least is None:
            return
        if self.device == "cpu" and self.dtype == "fp4":
            raise Unsupported("no FP4 on a CPU")
        if self.device == "cuda" and torch.cuda.get_device_capability() < least:
            have = ".".join(map(str, torch.cuda.get_device_capability()))
            raise Unsupported(f"needs compute capability {least[0]}.{least[1]}, this device has {have}")

    def _random(self) -> Any:
        """Uniform [-1,1]; of FP4 every code is as likely as any other."""
        torch, size = self.torch, self.size
        if self.dtype == "fp4":
            codes = torch.empty(size, size // 2, dtype=torch.uint8, device=self.device)
            return codes.random_(0, 256, generator=self.generator).view(self.kind)
        values = torch.empty(size, size, device=self.device)
        return values.uniform_(-1, 1, generator=self.generator).to(self.kind)

    def _ones(self) -> Any:
        """Block scales of FP4, all 1: so their order in memory does not matter."""
        rows, blocks = -(-self.size // 128) * 128, -(-self.size // FP4_BLOCK // 4) * 4
        return self.torch.ones(rows * blocks, device=self.device).to(self.torch.float8_e4m3fn)

    def poison(self) -> None:
        """NaN in every output, and in the freed block that a fresh result will probably be given."""
        for out in self.outs:
            out.fill_(math.nan)
        spare = self.torch.full_like(self.outs[0], math.nan)
        del spare

    def product(self, layout: str, index: int, out: int = 0) -> Any:
        """One product. A scaled one takes its second matrix by columns, as F.linear does."""
        a, b = self.sets[index % self.count]
        if layout == "linear":
            return self.torch.nn.functional.linear(a, b)
        if layout == "ab":
            return self.torch.mm(a, b, out=self.outs[out])
        if self.dtype == "fp4" and self.one.dim() == 0:
            self.one = self._ones()
        return self.torch._scaled_mm(a, b.t(), scale_a=self.one, scale_b=self.one, out_dtype=self.result)

    def exact(self, layout: str) -> tuple[Any, Any]:
        """Left and right matrix of set 0 in FP64, as the product of this layout takes them."""
        left, right = (self._double(each) for each in self.sets[0])
        return left, right if layout == "ab" else right.t()

    def _double(self, values: Any) -> Any:
        torch = self.torch
        if self.dtype != "fp4":
            return values.to(torch.float64)
        both = (*FP4_VALUES, *(-value for value in FP4_VALUES))
        table = torch.tensor(both, dtype=torch.float64, device=self.device)
        codes = values.view(torch.uint8).int()  # the first of two values is in the low half
        return torch.stack((table[codes & 15], table[codes >> 4]), dim=-1).reshape(self.size, self.size)

    def tolerance(self) -> float:
        """Expected error of one element, which itself is sqrt(K) times a mean square."""
        _, inputs, accumulator, output = DTYPES[self.dtype]
        square = FP4_SQUARE if self.dtype == "fp4" else UNIFORM
        root = math.sqrt(self.size)
        return root * square * (output + root * accumulator / 2 + 2 * inputs)
