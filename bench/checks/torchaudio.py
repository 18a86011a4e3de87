"""Does torchaudio's native part filter as it should?"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
# This file has the name of a package, for which its folder must not stand in.
sys.path[:] = [str(HERE.parent), *(entry for entry in sys.path if Path(entry or ".").resolve() != HERE)]

from judging import PREFIX, inside, run  # noqa: E402 - the path comes first


def check_import() -> str:
    import torchaudio

    assert inside(torchaudio.__file__, PREFIX), f"{torchaudio.__file__} is not inside {PREFIX}"
    return f"torchaudio {torchaudio.__version__} from inside the environment"


def check_filter() -> str:
    """y[n] = x[n] + 0.5 y[n-1] of an impulse is 1, 0.5, 0.25, ..."""
    import torch
    from torchaudio.functional import lfilter

    impulse = torch.zeros(1, 8)
    impulse[0, 0] = 1
    result = lfilter(impulse, torch.tensor([1.0, -0.5]), torch.tensor([1.0, 0.0]), clamp=False)
    expected = 0.5 ** torch.arange(8.0)
    assert torch.allclose(result[0], expected), f"the impulse response is {result[0].tolist()}"
    return "a recursive filter has the right impulse response"


if __name__ == "__main__":
    sys.exit(run({"import": check_import, "filter": check_filter}))
