"""Do torchaudio's filters and its resampling compute what they should?"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
# This file has the name of a package, for which its folder must not stand in.
sys.path[:] = [str(HERE.parent), *(entry for entry in sys.path if Path(entry or ".").resolve() != HERE)]

from judging import PREFIX, inside, run  # noqa: E402 - the path comes first

FORWARD, BACK = (0.2, 0.3, 0.1), (1.0, -0.6, 0.25)  # a stable filter of second order


def check_import() -> str:
    import torchaudio

    assert inside(torchaudio.__file__, PREFIX), f"{torchaudio.__file__} is not inside {PREFIX}"
    return f"torchaudio {torchaudio.__version__} from inside the environment"


def plain_filter(samples: list[float]) -> list[float]:
    """y[n] = sum of FORWARD[k] x[n-k] less the sum of BACK[k] y[n-k]."""
    found: list[float] = []
    for at in range(len(samples)):
        value = sum(FORWARD[k] * samples[at - k] for k in range(3) if at >= k)
        found.append(value - sum(BACK[k] * found[at - k] for k in (1, 2) if at >= k))
    return found


def check_filter() -> str:
    """A recursive filter against plain loops, its gradient against their impulse response."""
    import torch
    from numerics import Errors, devices, short
    from torchaudio.functional import biquad, lfilter

    errors, numbers = Errors(), random.Random(0)
    signal = [[numbers.uniform(-0.3, 0.3) for _ in range(301)] for _ in range(2)]
    exact = torch.tensor([plain_filter(channel) for channel in signal], dtype=torch.float64)
    response = plain_filter([1.0] + [0.0] * 300)
    slope = torch.tensor([math.fsum(response[: 301 - at]) for at in range(301)], dtype=torch.float64).expand(
        2, 301
    )
    for device in devices():
        for dtype in (torch.float32, torch.float64):
            given = torch.tensor(signal, dtype=dtype, device=device, requires_grad=True)
            back, forward = (torch.tensor(each, dtype=dtype, device=device) for each in (BACK, FORWARD))
            found = lfilter(given, back, forward, clamp=False)
            name = f"{short(dtype)} on {device}"
            errors.compare(f"lfilter {name}", found, exact)
            errors.compare(f"gradient of lfilter {name}", torch.autograd.grad(found.sum(), given)[0], slope)
            errors.compare(f"biquad {name}", biquad(given, *FORWARD, *BACK), exact)
    return f"{' and '.join(devices())}: {errors}"


def check_resample() -> str:
    """A tone stays the tone that it was; its ends are left out, where the signal stops."""
    import torch
    from numerics import Errors, devices
    from torchaudio.functional import resample

    errors = Errors()
    for device in devices():
        for old, new in ((16_000, 8_000), (16_000, 24_000), (44_100, 16_000)):
            seconds = [torch.arange(rate // 5, dtype=torch.float64) / rate for rate in (old, new)]
            tone, exact = (torch.sin(2 * math.pi * 440 * each) for each in seconds)
            found = resample(tone.to(device, torch.float32), old, new)[: len(exact)]
            middle = slice(len(exact) // 10, -len(exact) // 10)
            errors.compare(f"{old} to {new} Hz on {device}", found[middle], exact[middle], allowed=1e-2)
    return f"440 Hz on {' and '.join(devices())}: {errors}"


def check_spectrogram() -> str:
    """A tone's power lies where its frequency is."""
    import torch
    from numerics import devices
    from torchaudio.transforms import Spectrogram

    for device in devices():
        tone = torch.sin(2 * math.pi * 1000 * torch.arange(16_000, device=device) / 16_000)
        power = Spectrogram(n_fft=512).to(device)(tone)
        peaks = set(power[:, 2:-2].argmax(0).tolist())
        assert peaks == {32}, f"1000 Hz of 16000 lies at {sorted(peaks)} of 512, not at 32, on {device}"
    return f"1000 Hz is found at 1000 Hz on {' and '.join(devices())}"


CHECKS: dict[str, Callable[[], str]] = {
    "import": check_import,
    "filter": check_filter,
    "resample": check_resample,
    "spectrogram": check_spectrogram,
}


if __name__ == "__main__":
    sys.exit(run(CHECKS))
