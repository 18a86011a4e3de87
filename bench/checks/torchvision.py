"""Are torchvision's own operators right, on the CPU and on the GPU? Its codecs, too."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
# This file has the name of a package, for which its folder must not stand in.
sys.path[:] = [str(HERE.parent), *(entry for entry in sys.path if Path(entry or ".").resolve() != HERE)]

from judging import PREFIX, Skip, inside, run  # noqa: E402 - the path comes first

Box = tuple[float, float, float, float]


def check_import() -> str:
    import torchvision

    assert inside(torchvision.__file__, PREFIX), f"{torchvision.__file__} is not inside {PREFIX}"
    return f"torchvision {torchvision.__version__} from inside the environment"


def overlap(a: Box, b: Box) -> float:
    """Intersection over union."""
    width = min(a[2], b[2]) - max(a[0], b[0])
    height = min(a[3], b[3]) - max(a[1], b[1])
    shared = max(width, 0) * max(height, 0)
    areas = sum((box[2] - box[0]) * (box[3] - box[1]) for box in (a, b))
    return shared / (areas - shared)


def check_nms() -> str:
    """Of overlapping boxes the best is kept: 300 random ones, against plain loops."""
    import torch
    from numerics import devices
    from torchvision.ops import nms

    numbers = random.Random(0)
    corners = [(numbers.randrange(80), numbers.randrange(80)) for _ in range(300)]
    boxes: list[Box] = [(x, y, x + 15 + n % 7, y + 15 + n % 5) for n, (x, y) in enumerate(corners)]
    scores = [float(each) for each in numbers.sample(range(1000), len(boxes))]
    for limit in (0.303, 0.707):
        wanted: list[int] = []
        for at in sorted(range(len(boxes)), key=lambda at: -scores[at]):
            if all(overlap(boxes[at], boxes[kept]) <= limit for kept in wanted):
                wanted.append(at)
        for device in devices():
            kept = nms(
                torch.tensor(boxes, device=device).float(), torch.tensor(scores, device=device), limit
            ).tolist()
            assert kept == wanted, (
                f"on {device}: kept {len(kept)} boxes, {kept[:5]}...; plainly {wanted[:5]}..."
            )
    return f"300 boxes on {' and '.join(devices())}: as plain loops find"


def bilinear(image: list[list[float]], y: float, x: float) -> float:
    """Between the four pixels around; images end at their outermost pixels."""
    size = len(image)
    y, x = min(max(y, 0.0), size - 1.0), min(max(x, 0.0), size - 1.0)
    top, left = min(int(y), size - 2), min(int(x), size - 2)
    down, right = y - top, x - left
    rows = [image[row][left] * (1 - right) + image[row][left + 1] * right for row in (top, top + 1)]
    return rows[0] * (1 - down) + rows[1] * down


def plain_roi_align(image: list[list[float]], box: Box, bins: int, samples: int) -> list[list[float]]:
    """Mean of samples x samples points in each of bins x bins parts of the box."""
    x0, y0, x1, y1 = (edge - 0.5 for edge in box)
    high, wide = (y1 - y0) / bins, (x1 - x0) / bins
    steps = [(step + 0.5) / samples for step in range(samples)]
    return [
        [
            sum(
                bilinear(image, y0 + (row + v) * high, x0 + (column + u) * wide) for v in steps for u in steps
            )
            / samples**2
            for column in range(bins)
        ]
        for row in range(bins)
    ]


def check_roi_align() -> str:
    import torch
    from numerics import Errors, devices
    from torchvision.ops import roi_align

    errors = Errors()
    image = torch.rand(1, 2, 16, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    boxes: list[Box] = [(1, 2, 9, 12), (0, 0, 16, 16), (3.3, 4.7, 8.1, 9.9)]
    exact = torch.tensor(
        [[plain_roi_align(plane.tolist(), box, 3, 2) for plane in image[0]] for box in boxes],
        dtype=torch.float64,
    )
    for device in devices():
        for dtype in (torch.float64, torch.float32):
            given = image.to(device, dtype).requires_grad_()
            found = roi_align(
                given, [torch.tensor(boxes, device=device, dtype=dtype)], 3, sampling_ratio=2, aligned=True
            )
            errors.compare(f"roi_align on {device}", found, exact)
            (gradient,) = torch.autograd.grad(found.sum(), given)
            # Every sample's weights add up to 1: so do all bins' shares of the gradient.
            errors.compare(
                f"its gradient on {device}", gradient.sum(), torch.tensor(9.0 * 2 * len(boxes)).double()
            )
    return f"{' and '.join(devices())}: {errors}"


def check_deformable_convolution() -> str:
    """Without offsets it is a convolution; with whole ones the image is only moved."""
    import torch
    from numerics import Errors, devices
    from torchvision.ops import deform_conv2d

    errors = Errors()
    given = torch.Generator().manual_seed(0)
    image, kernel = (torch.rand(*shape, generator=given).double() for shape in ((1, 2, 12, 12), (3, 2, 3, 3)))
    for device in devices():
        for move in (0.0, 1.0):
            offset = torch.full((1, 18, 10, 10), move, device=device, dtype=torch.float64)
            found = deform_conv2d(image.to(device), offset, kernel.to(device))
            moved = torch.nn.functional.pad(image, (0, 1, 0, 1))[..., 1:, 1:] if move else image
            exact = torch.nn.functional.conv2d(moved, kernel)
            errors.compare(f"deform_conv2d on {device}", found, exact)
    return f"{' and '.join(devices())}: {errors}"


def coded(name: str, tolerance: int) -> str:
    """An image through a file format and back."""
    import torch
    from torchvision import io

    encode, decode = getattr(io, f"encode_{name}", None), getattr(io, f"decode_{name}", None)
    if encode is None or decode is None:
        raise Skip(f"this torchvision has no {name} codec")
    ramp = torch.arange(64, dtype=torch.uint8).mul(3)
    image = torch.stack(
        (ramp.expand(64, 64), ramp.expand(64, 64).t(), ramp.expand(64, 64).flip(1))
    ).contiguous()
    try:
        data = encode(image)
        again = decode(data)
    except RuntimeError as error:
        if "compiled" in str(error):
            raise Skip(f"built without {name}: {error}"[:200]) from error
        raise
    off = int((image.int() - again.int()).abs().max())
    assert off <= tolerance, f"{name}: a pixel is {off} off, allowed {tolerance}"
    return f"{data.numel()} bytes, largest difference {off} of 255 ({tolerance} allowed)"


def check_png() -> str:
    return coded("png", 0)


def check_jpeg() -> str:
    return coded("jpeg", 40)


CHECKS: dict[str, Callable[[], str]] = {
    "import": check_import,
    "nms": check_nms,
    "roi-align": check_roi_align,
    "deformable-convolution": check_deformable_convolution,
    "png": check_png,
    "jpeg": check_jpeg,
}


if __name__ == "__main__":
    sys.exit(run(CHECKS))
