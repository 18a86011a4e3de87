"""Does torchvision's native part work? nms is what a build without CUDA ops lacks."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
# This file has the name of a package, for which its folder must not stand in.
sys.path[:] = [str(HERE.parent), *(entry for entry in sys.path if Path(entry or ".").resolve() != HERE)]

from judging import PREFIX, inside, run  # noqa: E402 - the path comes first


def check_import() -> str:
    import torchvision

    assert inside(torchvision.__file__, PREFIX), f"{torchvision.__file__} is not inside {PREFIX}"
    return f"torchvision {torchvision.__version__} from inside the environment"


def check_nms() -> str:
    import torch
    from torchvision.ops import nms

    boxes = torch.tensor([[0.0, 0, 10, 10], [1, 1, 11, 11], [20, 20, 30, 30]])
    scores = torch.tensor([0.9, 0.8, 0.7])
    devices = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    for device in devices:
        kept = nms(boxes.to(device), scores.to(device), 0.5).tolist()
        assert kept == [0, 2], f"on {device}: kept {kept}, not [0, 2]"
    return f"right on {' and '.join(devices)}"


if __name__ == "__main__":
    sys.exit(run({"import": check_import, "nms": check_nms}))
